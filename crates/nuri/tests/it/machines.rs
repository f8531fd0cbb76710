//! Machines on a switch: a namespace for the network of each, one for its mounts, and directories
//! of its own in the places that the documents name.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::support::{NURI, Space, text, wait};

const SOON: Duration = Duration::from_secs(20);
/// Directories of each machine.
const OWN: [&str; 4] = ["srv", "mnt", "root", "var/lib"];
/// Leaves the mounts of other tests, of which a new name space of mounts holds copies. A forced
/// unmount of a copy would end the mount itself.
const LEAVE_MOUNTS: &str = "umount --all --types fuse.nuri --lazy";
/// Ends every mount of a machine, whatever its daemon does.
const END_MOUNTS: &str = "timeout 10 umount --all --types fuse.nuri --force --lazy";

/// Counts those of this process.
static TURN: AtomicU32 = AtomicU32::new(0);

/// Machines at 10.0.0.1, 10.0.0.2 and so on.
pub struct Machines {
    tmp: tempfile::TempDir,
    name: String,
    count: usize,
    /// The first process of those that run.
    running: BTreeMap<usize, Child>,
}

fn must(program: &str, args: &str) {
    let out = Command::new(program).args(args.split(' ')).output().unwrap();
    assert!(out.status.success(), "{program} {args}: {}", text(&out.stderr));
}

impl Machines {
    /// None runs yet.
    pub fn new(name: &str, count: usize) -> Machines {
        let tmp = tempfile::Builder::new().prefix("nuri-it-").tempdir().unwrap();
        let turn = TURN.fetch_add(1, Ordering::Relaxed);
        let name = format!("nuri-{name}-{}-{turn}", std::process::id());
        let machines = Machines { tmp, name, count, running: BTreeMap::new() };
        let switch = machines.net("switch");
        must("ip", &format!("netns add {switch}"));
        must("ip", &format!("-n {switch} link add name br0 type bridge"));
        must("ip", &format!("-n {switch} link set br0 up"));
        for machine in 1..=count {
            machines.connect(machine);
            for name in OWN {
                fs::create_dir_all(machines.path(machine, name)).unwrap();
            }
        }
        machines
    }

    fn net(&self, name: &str) -> String {
        format!("{}-{name}", self.name)
    }

    fn connect(&self, machine: usize) {
        let (net, switch) = (self.net(&machine.to_string()), self.net("switch"));
        must("ip", &format!("netns add {net}"));
        must("ip", &format!("-n {net} link set lo up"));
        let cable = format!("eth0 type veth peer name p{machine} netns {switch}");
        must("ip", &format!("-n {net} link add {cable}"));
        must("ip", &format!("-n {net} addr add 10.0.0.{machine}/24 dev eth0"));
        must("ip", &format!("-n {net} link set eth0 up"));
        must("ip", &format!("-n {switch} link set p{machine} master br0 up"));
    }

    /// Does something in a machine's network.
    pub fn in_network<T: Send>(&self, machine: usize, act: impl FnOnce() -> T + Send) -> T {
        let net = format!("/run/netns/{}", self.net(&machine.to_string()));
        let net = fs::File::open(net).unwrap();
        std::thread::scope(|scope| {
            let there = scope.spawn(move || {
                let kind = Some(LinkNameSpaceType::Network);
                move_into_link_name_space(net.as_fd(), kind).unwrap();
                act()
            });
            there.join().unwrap()
        })
    }

    /// Plugs a machine's cable in (`up`) or pulls it (`down`), at the switch.
    pub fn cable(&self, machine: usize, state: &str) {
        let switch = self.net("switch");
        must("ip", &format!("-n {switch} link set p{machine} {state}"));
    }

    /// Where a file of a machine lies, seen from outside.
    pub fn path(&self, machine: usize, name: &str) -> PathBuf {
        self.tmp.path().join(machine.to_string()).join(name.trim_start_matches('/'))
    }

    /// Starts a machine: `first` is the end of a script, and becomes its first process. It has
    /// process numbers of its own.
    pub fn start(&mut self, machine: usize, first: &str) {
        let mut script = format!("set -e\n{LEAVE_MOUNTS}\n");
        for name in OWN {
            script += &format!("mount --bind {} /{name}\n", self.path(machine, name).display());
        }
        script += &format!("mount -t proc proc /proc\ntouch /root/ready\n{first}");
        let ready = self.path(machine, "root/ready");
        let _ = fs::remove_file(&ready);
        let net = format!("--net=/run/netns/{}", self.net(&machine.to_string()));
        let own = ["--mount", "--pid", "--uts", "--ipc", "--propagation", "private"];
        let mut command = Command::new("nsenter");
        command.arg(net).args(["unshare", "--fork", "--kill-child"]).args(own);
        let child = command.args(["bash", "-c", &script]).spawn().unwrap();
        self.running.insert(machine, child);
        wait("the machine", SOON, || ready.exists());
    }

    /// The first process of a machine, as it is numbered outside.
    pub fn first(&self, machine: usize) -> i32 {
        let mut first = None;
        wait("its first process", SOON, || {
            first = self.first_now(machine);
            first.is_some()
        });
        first.unwrap()
    }

    fn first_now(&self, machine: usize) -> Option<i32> {
        let pid = self.running[&machine].id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
        children.split_whitespace().next()?.parse().ok()
    }

    /// Ends all that runs on a machine at once.
    pub fn cut_power(&mut self, machine: usize) {
        self.end_mounts(machine);
        kill_process(Pid::from_raw(self.first(machine)).unwrap(), Signal::KILL).unwrap();
        self.wait_stopped(machine);
    }

    /// A daemon that is killed together with the name space of its mount may wait in the kernel for
    /// ever, in the release of the mount, and every later `sync` of this computer for it
    /// (`docs/operate/tune.md`). So the mount goes before.
    fn end_mounts(&self, machine: usize) {
        if self.first_now(machine).is_some() {
            let _ = self.command(machine, END_MOUNTS).status();
        }
    }

    /// Waits until a machine has stopped.
    pub fn wait_stopped(&mut self, machine: usize) {
        let mut child = self.running.remove(&machine).unwrap();
        wait("the machine stops", SOON * 3, || child.try_wait().unwrap().is_some());
    }

    /// A shell on a machine, which is to run a line.
    pub fn command(&self, machine: usize, line: &str) -> Command {
        let pid = self.first(machine).to_string();
        let mut command = Command::new("nsenter");
        command.args(["-t", &pid, "--net", "--mount", "--pid", "--wd=/", "sh", "-c", line]);
        let beside = Path::new(NURI).parent().unwrap();
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", beside.display()));
        command
    }

    /// What stays until [`Machines::end_daemon`].
    pub fn daemon(&self, machine: usize, line: &str) -> Command {
        self.command(machine, &format!("echo $$ > /root/daemon.pid; exec {line}"))
    }

    /// Asks what was started last by [`Machines::daemon`] to end.
    pub fn end_daemon(&self, machine: usize) {
        self.run(machine, "kill -TERM $(cat /root/daemon.pid)");
    }

    /// Runs a line that must do what it says; returns what it said.
    pub fn run(&self, machine: usize, line: &str) -> String {
        let out = self.command(machine, line).output().unwrap();
        let said = format!("{}{}", text(&out.stdout), text(&out.stderr));
        assert!(out.status.success(), "{machine}: {line}: {said}");
        said
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        // With its first process all others of a machine end, and its mounts go.
        self.running.keys().for_each(|machine| self.end_mounts(*machine));
        for child in self.running.values_mut() {
            let _ = child.kill();
            let _ = child.wait();
        }
        for machine in (1..=self.count).map(|machine| machine.to_string()) {
            let _ = Command::new("ip").args(["netns", "del", &self.net(&machine)]).status();
        }
        let _ = Command::new("ip").args(["netns", "del", &self.net("switch")]).status();
    }
}

/// Tests run beside each other on one computer.
#[test]
fn a_machine_that_ends_takes_no_mount_of_others() {
    let space = Space::up(&["--targets", "1", "--target-size", "64M"]);
    let file = space.mnt().join("f");
    fs::write(&file, "bytes").unwrap();
    let mut machines = Machines::new("apart", 2);
    (1..=2).for_each(|machine| machines.start(machine, "exec sleep 600"));
    assert_eq!(machines.run(1, "grep -c fuse.nuri /proc/mounts || true"), "0\n");
    machines.cut_power(1);
    assert_eq!(fs::read_to_string(&file).unwrap(), "bytes");
    drop(machines);
    assert_eq!(fs::read_to_string(&file).unwrap(), "bytes");
    space.down_clean();
}
