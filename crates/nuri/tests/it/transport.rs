//! Both ways that the kernel hands requests over: readers of the device, and io_uring rings.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};

use crate::stopwatch::Stopwatch;
use crate::support::{NURI, SetAtEnd, Space, in_time, is_mounted, nuri, text, timed, wait};

pub const TRANSPORTS: [&str; 2] = ["classic", "uring"];

/// A mount in a process of ours.
pub struct Foreground {
    child: Child,
    pub point: PathBuf,
}

impl Foreground {
    pub fn new(space: &mut Space, name: &str, transport: &str) -> Foreground {
        let point = space.make_dir(name);
        let mut command = Command::new(NURI);
        command.args(["fs", "mount", "--foreground", "--transport", transport]);
        command.arg(space.dir()).arg(&point).stdin(Stdio::null());
        let child = command.spawn().unwrap();
        space.own_mount(point.clone());
        wait("the mount", Duration::from_secs(20), || is_mounted(&point));
        fs::metadata(&point).unwrap();
        Foreground { child, point }
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// The process must end by itself, and say that all is well.
    pub fn ends_well(mut self) {
        let mut status = None;
        wait("the mount's process ends", Duration::from_secs(20), || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        assert!(status.unwrap().success(), "{status:?}");
    }
}

impl Drop for Foreground {
    fn drop(&mut self) {
        // Aborts the connection first: a recall of the daemon waits in the kernel for requests that
        // a killed daemon would never answer, and would keep it from ending.
        let _ = unmount(&self.point, UnmountFlags::FORCE | UnmountFlags::DETACH);
        // Also one that a failed test left stopped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A number that the mount shows about its transport.
fn shown(mount: &Path, key: &str) -> Option<String> {
    let mut buf = [0; 256];
    let len = rustix::fs::getxattr(mount, "nuri.transport", &mut buf[..]).unwrap();
    let text = text(&buf[..len]);
    let found = text.split(' ').find_map(|w| w.strip_prefix(key)?.strip_prefix('='));
    found.map(str::to_owned)
}

fn count(mount: &Path, key: &str) -> u64 {
    shown(mount, key).unwrap().parse().unwrap()
}

#[test]
fn a_mount_uses_the_transport_that_was_asked_for() {
    let mut space = Space::up(&[]);
    for transport in TRANSPORTS {
        let mount = Foreground::new(&mut space, transport, transport);
        assert_eq!(shown(&mount.point, "transport").unwrap(), transport);
        fs::write(mount.point.join(transport), vec![7; 3 << 20]).unwrap();
        assert!(nuri(&["fs", "umount", &mount.point.display().to_string()]).status.success());
        mount.ends_well();
    }
    for transport in TRANSPORTS {
        assert_eq!(fs::read(space.mnt().join(transport)).unwrap(), vec![7; 3 << 20]);
    }
    let refused = nuri(&["fs", "mount", "--transport", "pigeon", &space.dir(), "/mnt"]);
    assert!(text(&refused.stderr).contains("expected auto, classic or uring"));
    space.down_clean();
}

#[test]
fn every_size_of_request_passes() {
    let mut space = Space::up(&[]);
    for transport in TRANSPORTS {
        let mount = Foreground::new(&mut space, transport, transport);
        let data: Vec<u8> =
            (0..2_500_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        for (i, size) in [1, 4095, 4096, 4097, 131_072, 1 << 20, (1 << 20) + 1, 2_500_000]
            .into_iter()
            .enumerate()
        {
            let path = mount.point.join(format!("{transport}{i}"));
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(true)
                .open(&path)
                .unwrap();
            file.write_all_at(&data[..size], 0).unwrap();
            let mut back = vec![0; size];
            file.read_exact_at(&mut back, 0).unwrap();
            assert_eq!(back, data[..size]);
            assert_eq!(
                fs::read(space.mnt().join(format!("{transport}{i}"))).unwrap(),
                data[..size]
            );
        }
        // Long names, long link targets, and a listing of more than one page.
        let dir = mount.point.join(format!("dir-{transport}"));
        fs::create_dir(&dir).unwrap();
        let long = "n".repeat(240);
        (0..400).for_each(|i| drop(File::create(dir.join(format!("{long}{i}"))).unwrap()));
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 400);
        let target = "t".repeat(4000);
        std::os::unix::fs::symlink(&target, dir.join("link")).unwrap();
        assert_eq!(fs::read_link(dir.join("link")).unwrap().to_str(), Some(&*target));
    }
    space.down_clean();
}

#[test]
fn what_the_kernel_forgets_is_given_back() {
    let mut space = Space::up(&[]);
    for transport in TRANSPORTS {
        let mount = Foreground::new(&mut space, transport, transport);
        let before = count(&mount.point, "forgotten");
        for i in 0..1500 {
            fs::write(mount.point.join(format!("f{i}")), "x").unwrap();
        }
        for i in 0..1500 {
            fs::remove_file(mount.point.join(format!("f{i}"))).unwrap();
        }
        wait("all references came back", Duration::from_secs(10), || {
            count(&mount.point, "forgotten") >= before + 1500
        });
    }
    space.down_clean();
}

/// Files whose leases a mount holds, and the mount does not answer.
struct Held {
    holder: Foreground,
    names: Vec<PathBuf>,
    _open: Vec<File>,
}

impl Held {
    fn new(space: &mut Space, transport: &str, count: usize, seen_from: &Foreground) -> Held {
        let holder = Foreground::new(space, &format!("holds-{transport}"), transport);
        let dir = format!("held-{transport}");
        fs::create_dir(holder.point.join(&dir)).unwrap();
        let name = |i: usize| format!("{dir}/{i}");
        let make = |i| {
            let mut file = File::create(holder.point.join(name(i))).unwrap();
            file.write_all(b"held").unwrap();
            file
        };
        let open = (0..count).map(make).collect();
        let names = (0..count).map(|i| seen_from.point.join(name(i))).collect();
        holder.signal(Signal::STOP);
        Held { holder, names, _open: open }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // Its files are closed next, and closing waits for it.
        self.holder.signal(Signal::CONT);
    }
}

/// Works on a file for so long; returns the rounds and the longest one.
pub fn busy_beside(path: &Path, during: Duration) -> (u32, Duration) {
    let (mut worst, mut rounds) = (Duration::ZERO, 0);
    let until = Instant::now() + during;
    while Instant::now() < until {
        let start = Stopwatch::start();
        fs::write(path, vec![rounds as u8; 20_000]).unwrap();
        assert_eq!(fs::read(path).unwrap(), vec![rounds as u8; 20_000]);
        assert_eq!(fs::metadata(path).unwrap().size(), 20_000);
        worst = worst.max(start.elapsed());
        rounds += 1;
    }
    (rounds, worst)
}

/// Waiters that all need what a stopped mount holds, one file each.
fn blocked_behind_a_stopped_holder(transport: &str, waiters: usize) {
    let mut space = Space::up(&[]);
    let mount = Foreground::new(&mut space, "waits", transport);
    // A directory of its own: the holder has a lease on the root.
    fs::create_dir(mount.point.join("own")).unwrap();
    let held = Held::new(&mut space, transport, waiters, &mount);
    std::thread::scope(|scope| {
        let wait = |name| scope.spawn(move || fs::metadata(name));
        let waiting: Vec<_> = held.names.iter().map(wait).collect();
        std::thread::sleep(Duration::from_millis(700));
        // Within the holder's session: afterwards it is evicted and the waiters go on.
        let (rounds, worst) = busy_beside(&mount.point.join("own/free"), Duration::from_secs(2));
        let waited = waiting.iter().filter(|w| !w.is_finished()).count();
        held.holder.signal(Signal::CONT);
        assert_eq!(waited, waiters, "all waited meanwhile");
        for waiter in waiting {
            waiter.join().unwrap().unwrap();
        }
        println!("{transport}: {waiters} waiting, {rounds} rounds beside them, worst {worst:?}");
        in_time(worst, 1.0, "what is done beside them");
        assert!(rounds > 20, "{rounds} rounds");
    });
    drop(held);
    space.down_clean();
}

#[test]
fn other_requests_go_on_beside_waiting_ones_classic() {
    timed(|| blocked_behind_a_stopped_holder("classic", 50));
}

/// A queue has 64 entries on machines of up to 16 processors.
#[test]
fn other_requests_go_on_beside_waiting_ones_uring() {
    timed(|| blocked_behind_a_stopped_holder("uring", 60));
}

fn bind_to(processor: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(processor);
    rustix::thread::sched_setaffinity(None, &set).unwrap();
}

/// More waiters on one processor than its queue has entries: the other one's programs go on.
#[test]
fn a_full_queue_stops_its_own_processor_only() {
    timed(|| {
        let mut space = Space::up(&[]);
        let mount = Foreground::new(&mut space, "waits", "uring");
        fs::create_dir(mount.point.join("own")).unwrap();
        let held = Held::new(&mut space, "uring", 80, &mount);
        std::thread::scope(|scope| {
            let wait = |name| {
                scope.spawn(move || {
                    bind_to(0);
                    fs::metadata(name)
                })
            };
            let waiting: Vec<_> = held.names.iter().map(wait).collect();
            std::thread::sleep(Duration::from_millis(700));
            let beside = scope.spawn(|| {
                bind_to(1);
                busy_beside(&mount.point.join("own/free"), Duration::from_secs(2))
            });
            let (rounds, worst) = beside.join().unwrap();
            let waited = waiting.iter().filter(|w| !w.is_finished()).count();
            held.holder.signal(Signal::CONT);
            assert_eq!(waited, 80, "all waited meanwhile");
            in_time(worst, 1.0, "what is done beside them");
            assert!(rounds > 20, "{rounds} rounds");
        });
        drop(held);
        space.down_clean();
    });
}

/// A program killed while it waits ends at the latest with the answer, and leaves all in order.
#[test]
fn killed_waiters_end() {
    let mut space = Space::up(&[]);
    for transport in TRANSPORTS {
        let mount = Foreground::new(&mut space, transport, transport);
        let held = Held::new(&mut space, transport, 5, &mount);
        let cat = |name: &PathBuf| Command::new("cat").arg(name).stdout(Stdio::null()).spawn();
        let mut cats: Vec<_> = held.names.iter().map(|name| cat(name).unwrap()).collect();
        std::thread::sleep(Duration::from_millis(300));
        cats.iter_mut().for_each(|cat| cat.kill().unwrap());
        held.holder.signal(Signal::CONT);
        wait("killed programs end", Duration::from_secs(10), || {
            cats.iter_mut().all(|cat| cat.try_wait().unwrap().is_some())
        });
        drop(held);
    }
    space.down_clean();
}

/// Each mount holds a file mapped and dirty that all threads of the other one want to read: the
/// recalls need WRITE requests served while all those threads wait.
fn mapped_files_cross(transport: &str) {
    let mut space = Space::up(&[]);
    let a = Foreground::new(&mut space, "a", transport);
    let b = Foreground::new(&mut space, "b", transport);
    let stop = AtomicBool::new(false);
    let script = "import mmap,sys,time
f=open(sys.argv[1],'r+b'); m=mmap.mmap(f.fileno(),1<<20); n=0
while True:
    n+=1
    for p in range(0,1<<20,4096): m[p:p+8]=n.to_bytes(8,'little')
    m.flush(); time.sleep(0.05)";
    for mount in [&a, &b] {
        let own = mount.point.join(mount.point.file_name().unwrap());
        File::create(&own).unwrap().set_len(1 << 20).unwrap();
        let mut command = Command::new("python3");
        space.own_child(command.arg("-c").arg(script).arg(own).spawn().unwrap());
    }
    let news = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let ending = SetAtEnd(&stop);
        for (reader, other) in [(&a, "b"), (&b, "a")] {
            for thread in 0..20u64 {
                let (path, stop, news) = (reader.point.join(other), &stop, &news);
                scope.spawn(move || {
                    let mut last = [0; 8];
                    while !stop.load(Ordering::Relaxed) {
                        let file = File::open(&path).unwrap();
                        let mut page = [0; 8];
                        file.read_exact_at(&mut page, thread % 256 * 4096).unwrap();
                        assert!(u64::from_le_bytes(page) >= u64::from_le_bytes(last));
                        news.fetch_add(u64::from(page != last), Ordering::Relaxed);
                        last = page;
                        std::thread::sleep(Duration::from_millis(20));
                    }
                });
            }
        }
        std::thread::sleep(Duration::from_secs(6));
        drop(ending);
    });
    let news = news.load(Ordering::Relaxed);
    println!("{transport}: {news} changes of mapped files seen by the other mount");
    in_time(Duration::from_secs(6) / (news as u32 + 1), 0.15, "a change seen");
}

#[test]
fn recalls_of_mapped_files_do_not_wait_for_their_waiters_classic() {
    timed(|| mapped_files_cross("classic"));
}

#[test]
fn recalls_of_mapped_files_do_not_wait_for_their_waiters_uring() {
    timed(|| mapped_files_cross("uring"));
}

#[test]
fn unmounting_under_load_leaves_nothing() {
    let mut space = Space::up(&[]);
    for transport in TRANSPORTS {
        let mount = Foreground::new(&mut space, transport, transport);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let ending = SetAtEnd(&stop);
            for thread in 0..8 {
                let (dir, stop) = (mount.point.clone(), &stop);
                scope.spawn(move || {
                    let path = dir.join(format!("load{thread}"));
                    while !stop.load(Ordering::Relaxed) {
                        // Errors are what programs see when their mount is taken away.
                        let _ = fs::write(&path, vec![thread; 300_000]);
                        let _ = fs::read(&path);
                        let _ = fs::remove_file(&path);
                    }
                });
            }
            std::thread::sleep(Duration::from_millis(700));
            let point = mount.point.display().to_string();
            assert!(nuri(&["fs", "umount", "--force", &point]).status.success());
            std::thread::sleep(Duration::from_millis(300));
            drop(ending);
        });
        assert!(!is_mounted(&mount.point));
        mount.ends_well();
    }
    space.down_clean();
}
