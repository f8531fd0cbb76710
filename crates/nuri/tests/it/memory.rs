//! Memory is short: the kernel kills a mount, a node or all of a space in its control group. What
//! was killed is started again, and nothing that was synced is lost.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::support::{Space, wait};

const SOON: Duration = Duration::from_secs(30);
/// Bytes: less than any process of a space takes that works.
const SHORT: u64 = 6_000_000;
/// Bytes: less than all processes of a space take together, and more than each takes at its start.
/// One of them is ended for what they all take, and what is started in its place finds room.
const SHORT_OF_ALL: u64 = 40_000_000;

/// A control group with a bound of memory, of either version of the kernel's interface.
struct Group {
    path: PathBuf,
    bound: &'static str,
    bounds: Vec<&'static str>,
}

impl Group {
    fn new(name: &str) -> Group {
        let name = format!("nuri-it-{}-{name}", std::process::id());
        let first = Path::new("/sys/fs/cgroup/memory");
        let (root, bound, swap) = if first.exists() {
            (first, "memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
        } else {
            let root = Path::new("/sys/fs/cgroup");
            let _ = fs::write(root.join("cgroup.subtree_control"), "+memory");
            (root, "memory.max", "memory.swap.max")
        };
        let path = root.join(name);
        fs::create_dir(&path).unwrap();
        Group { path, bound, bounds: vec![bound, swap] }
    }

    fn take(&self, pid: i32) {
        fs::write(self.path.join("cgroup.procs"), pid.to_string()).unwrap();
    }

    /// Bounds what those in it may have together.
    fn squeeze(&self, bytes: u64) {
        for bound in &self.bounds {
            // Without swap there is no second one; and of what is in use not all can be taken back.
            let _ = fs::write(self.path.join(bound), bytes.to_string());
        }
    }

    fn release(&self) {
        for bound in self.bounds.iter().rev() {
            let most = if self.bound == "memory.max" { "max" } else { "-1" };
            let _ = fs::write(self.path.join(bound), most);
        }
    }

    /// How many were killed in it.
    fn kills(&self) -> u64 {
        let file = if self.bound == "memory.max" { "memory.events" } else { "memory.oom_control" };
        let text = fs::read_to_string(self.path.join(file)).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        line.and_then(|count| count.trim().parse().ok()).unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.release();
        let procs = fs::read_to_string(self.path.join("cgroup.procs")).unwrap_or_default();
        let parent = self.path.parent().unwrap().join("cgroup.procs");
        procs.lines().for_each(|pid| drop(fs::write(&parent, pid)));
        let _ = fs::remove_dir(&self.path);
    }
}

/// Writes through the mount until it fails, or for a while: that takes memory of all.
fn load(mnt: &Path) {
    let part = vec![7; 1 << 20];
    for file in 0..4 {
        let Ok(file) = fs::File::create(mnt.join(format!("load{file}"))) else { return };
        for at in 0..16 {
            if file.write_all_at(&part, at << 20).is_err() {
                return;
            }
        }
    }
}

fn is_killed_and_comes_back(roles: &[&str], bytes: u64) {
    let space = Space::up(&["--nodes", "2"]);
    let kept = space.mnt().join("kept");
    fs::write(&kept, vec![1; 300_000]).unwrap();
    fs::File::open(&kept).unwrap().sync_all().unwrap();
    let group = Group::new(roles[0]);
    roles.iter().for_each(|role| group.take(space.pid(role)));
    std::thread::scope(|scope| {
        // Released at once: what is started anew has room, so that nobody else is killed.
        let watch = scope.spawn(|| {
            wait("one is killed", SOON, || group.kills() > 0);
            group.release();
        });
        group.squeeze(bytes);
        while !watch.is_finished() {
            load(&space.mnt());
        }
    });
    space.wait_status("all run again", SOON, |status| status["health"]["state"] == "ok");
    wait("the mount is back", SOON, || fs::read(&kept).is_ok_and(|bytes| bytes == [1; 300_000]));
    wait("it takes writes", SOON, || fs::write(space.mnt().join("new"), "1").is_ok());
    space.down_clean();
}

#[test]
fn a_mount_that_was_killed_for_its_memory_is_mounted_again() {
    is_killed_and_comes_back(&["mount"], SHORT);
}

#[test]
fn a_node_that_was_killed_for_its_memory_serves_again() {
    is_killed_and_comes_back(&["node1"], SHORT);
}

#[test]
fn a_space_that_ran_out_of_memory_as_a_whole_comes_back() {
    is_killed_and_comes_back(&["supervisor", "node0", "node1", "mount"], SHORT_OF_ALL);
}
