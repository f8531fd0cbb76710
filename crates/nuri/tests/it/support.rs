//! A space of its own for a test; everything ends with it, however the test ends.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

pub const NURI: &str = env!("CARGO_BIN_EXE_nuri");

/// How much longer things take on a machine that runs other tests.
pub const BUSY: u32 = 3;

/// A directory with a space, its mounts, and whatever else a test starts.
pub struct Space {
    tmp: tempfile::TempDir,
    mounts: Vec<PathBuf>,
    children: Vec<std::process::Child>,
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs a program and panics with its words where it fails.
pub fn run(program: &str, args: &[&str]) -> String {
    let out = Command::new(program).args(args).output();
    let out = out.unwrap_or_else(|e| panic!("{program}: {e}; run scripts/setup"));
    let words = format!("{}{}", text(&out.stdout), text(&out.stderr));
    assert!(out.status.success(), "{program} {args:?}: {words}");
    words
}

/// Runs nuri, whatever its outcome.
pub fn nuri(args: &[&str]) -> Output {
    Command::new(NURI).args(args).output().unwrap()
}

/// Runs nuri, which must fail with one sentence that contains `words`.
pub fn refused(args: &[&str], words: &str) {
    let out = nuri(args);
    let said = text(&out.stderr);
    assert!(!out.status.success(), "{args:?} should have failed: {}", text(&out.stdout));
    assert!(said.contains(words), "{args:?} said: {said}");
    assert!(!said.contains("panicked"), "{said}");
}

/// What a look at a state tells: whether it is the one that is waited for, else what was seen.
pub trait Look {
    fn seen(self) -> Result<(), String>;
}

impl Look for bool {
    fn seen(self) -> Result<(), String> {
        if self { Ok(()) } else { Err("not so".into()) }
    }
}

impl Look for Result<(), String> {
    fn seen(self) -> Result<(), String> {
        self
    }
}

/// Waits until `f` says so, at most so long on a machine that has nothing else to do. Fails with
/// what it waited for and what it saw last.
pub fn wait<L: Look>(what: &str, at_most: Duration, mut f: impl FnMut() -> L) {
    let start = Instant::now();
    while let Err(seen) = f().seen() {
        let took = start.elapsed();
        assert!(took < BUSY * at_most, "waited {took:?} for: {what}; seen last: {seen}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// How often a test of a time is tried: the machine may have been busy with something else.
const TRIES: usize = 3;
const TOO_SLOW: &str = "too slow";

/// Something took that long and was to take so many seconds at most: else its test is done again,
/// and fails where that happens each time.
pub fn in_time(took: Duration, seconds: f64, what: &str) {
    assert!(took.as_secs_f64() <= seconds, "{TOO_SLOW}: {what} took {took:?}, not {seconds} s");
}

/// A test with [`in_time`] in it: CI runs at most one more such test beside it. Whatever else fails
/// in it fails at once.
pub fn timed(test: impl Fn()) {
    for _ in 1..TRIES {
        let Err(panic) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(&test)) else {
            return;
        };
        let is_slow = panic.downcast_ref::<String>().is_some_and(|s| s.starts_with(TOO_SLOW));
        if !is_slow {
            std::panic::resume_unwind(panic);
        }
        eprintln!("once more: the machine may have been busy with something else");
    }
    test();
}

pub fn is_mounted(point: &Path) -> bool {
    let line = format!(" {} fuse.nuri ", point.display());
    text(&fs::read("/proc/mounts").unwrap()).contains(&line)
}

/// Kills everything at once, as a power failure would.
pub fn kill_all(space: &Space, nodes: &[&str]) {
    let roles = [nodes, &["supervisor", "mount"]].concat();
    let pids: Vec<_> = roles.iter().map(|role| space.pid(role)).collect();
    let _frozen = freeze(space, "supervisor");
    roles.iter().for_each(|role| space.kill(role));
    wait("all have ended", Duration::from_secs(10), || pids.iter().all(|pid| has_ended(*pid)));
    wait("the mount is dead", Duration::from_secs(10), || fs::metadata(space.mnt()).is_err());
}

/// Gone, or a zombie whose last thread has ended: then its locks are free.
pub fn has_ended(pid: i32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return true };
    let zombie = stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z'));
    let threads = fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    zombie && threads <= 1
}

/// A process that is frozen until this is dropped, however the test ends.
pub struct Frozen(Pid);

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

pub fn freeze(space: &Space, role: &str) -> Frozen {
    let pid = Pid::from_raw(space.pid(role)).unwrap();
    stop(pid);
    Frozen(pid)
}

/// Ends the load of a test when dropped, also where the test fails in the middle: a scope of
/// threads waits for all of them.
pub struct SetAtEnd<'f>(pub &'f AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Stops a process, and waits until it stands still: its threads run on until one of them has taken
/// the signal.
pub fn stop(pid: Pid) {
    kill_process(pid, Signal::STOP).unwrap();
    let tasks = format!("/proc/{}/task", pid.as_raw_nonzero());
    // One that waits in the kernel for what nobody may interrupt runs no program.
    let stands = |stat: &str| {
        let state = stat.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next());
        state.is_none_or(|state| "TtDZX".contains(state))
    };
    wait("the process stands still", Duration::from_secs(10), || {
        let tasks = fs::read_dir(&tasks).unwrap().flatten();
        let mut stats = tasks.map(|task| fs::read_to_string(task.path().join("stat")));
        stats.all(|stat| stat.is_ok_and(|stat| stands(&stat)))
    });
}

impl Space {
    /// A directory with nothing in it yet.
    pub fn bare() -> Space {
        assert!(rustix::process::geteuid().is_root(), "these tests need root");
        assert!(Path::new("/dev/fuse").exists(), "these tests need FUSE");
        let tmp = tempfile::Builder::new().prefix("nuri-it-").tempdir().unwrap();
        Space { tmp, mounts: Vec::new(), children: Vec::new() }
    }

    /// A running space, mounted at `mnt`.
    pub fn up(more: &[&str]) -> Space {
        let mut space = Space::bare();
        space.start(more);
        space
    }

    pub fn start(&mut self, more: &[&str]) {
        let point = self.make_dir("mnt");
        let (dir, mnt) = (self.dir(), point.display().to_string());
        let mut args = vec!["up", "--create", "--dir", &dir, "--mount", &mnt];
        if !more.contains(&"--target-size") {
            args.extend(["--target-size", "2G"]);
        }
        args.extend(more);
        let out = nuri(&args);
        assert!(out.status.success(), "{}\n{}", text(&out.stderr), self.logs());
        self.mounts.push(point);
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.tmp.path().join(name)
    }

    pub fn str(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    pub fn make_dir(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(&path).unwrap();
        path
    }

    /// The space's directory.
    pub fn dir(&self) -> String {
        self.str("space")
    }

    pub fn mnt(&self) -> PathBuf {
        self.path("mnt")
    }

    /// One more mount of the space.
    pub fn mount(&mut self, name: &str) -> PathBuf {
        self.mount_with(name, &[])
    }

    /// As `mount`, by a process with these variables in its environment.
    pub fn mount_with(&mut self, name: &str, variables: &[(&str, &str)]) -> PathBuf {
        let point = self.make_dir(name);
        let (dir, mnt) = (self.dir(), point.display().to_string());
        let mut mount = Command::new(NURI);
        mount.args(["fs", "mount", &dir, &mnt]).envs(variables.iter().copied());
        let out = mount.output().unwrap();
        assert!(out.status.success(), "{}", text(&out.stderr));
        self.mounts.push(point.clone());
        point
    }

    pub fn own_mount(&mut self, point: PathBuf) {
        self.mounts.push(point);
    }

    pub fn own_child(&mut self, child: std::process::Child) {
        self.children.push(child);
    }

    /// Starts a node that was told by hand and waits until it serves.
    pub fn own_node(&mut self, mut node: Command) {
        let said = self.path(&format!("node{}.out", self.children.len()));
        let out = fs::File::create(&said).unwrap();
        self.own_child(node.stdout(Stdio::null()).stderr(out).spawn().unwrap());
        let serves = || fs::read_to_string(&said).unwrap().contains(" serves ");
        wait("the node serves", Duration::from_secs(10), serves);
    }

    /// Kills what was started by hand.
    pub fn end_children(&mut self) {
        for mut child in self.children.drain(..) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// `nuri status --json`.
    pub fn status(&self) -> serde_json::Value {
        let out = nuri(&["status", "--json", "--dir", &self.dir()]);
        serde_json::from_slice(&out.stdout).unwrap()
    }

    /// Waits until the status says so; fails with the status that it saw last.
    pub fn wait_status(
        &self,
        what: &str,
        at_most: Duration,
        mut is_so: impl FnMut(&serde_json::Value) -> bool,
    ) {
        wait(what, at_most, || {
            let status = self.status();
            if is_so(&status) { Ok(()) } else { Err(format!("status {status}")) }
        });
    }

    /// The pid of a role's process.
    pub fn pid(&self, role: &str) -> i32 {
        let path = self.path("space").join("run").join(format!("{role}.lock"));
        let mut pid = None;
        // A process that is just starting has taken the lock and not yet written its pid.
        wait("a pid", Duration::from_secs(5), || {
            pid = fs::read_to_string(&path).unwrap().trim().parse().ok();
            pid.is_some()
        });
        pid.unwrap()
    }

    pub fn kill(&self, role: &str) {
        let pid = rustix::process::Pid::from_raw(self.pid(role)).unwrap();
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }

    pub fn down(&self) {
        let out = nuri(&["down", "--dir", &self.dir()]);
        assert!(out.status.success(), "{}", text(&out.stderr));
    }

    pub fn again(&self) {
        let out = nuri(&["up", "--dir", &self.dir()]);
        assert!(out.status.success(), "{}\n{}", text(&out.stderr), self.logs());
    }

    /// Stops the space and proves it clean.
    pub fn down_clean(&self) {
        self.down();
        let out = nuri(&["doctor", "--dir", &self.dir()]);
        assert!(out.status.success(), "{}{}", text(&out.stdout), text(&out.stderr));
    }

    pub fn logs(&self) -> String {
        let Ok(entries) = fs::read_dir(self.path("space").join("log")) else {
            return String::new();
        };
        let log = |e: fs::DirEntry| {
            let words = fs::read_to_string(e.path()).unwrap_or_default();
            format!("--- {}\n{words}", e.path().display())
        };
        entries.flatten().map(log).collect()
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.logs());
        }
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        for point in self.mounts.iter().rev() {
            if is_mounted(point) {
                let _ = nuri(&["fs", "umount", "--force", &point.display().to_string()]);
            }
        }
        if self.path("space").join("space.json").exists() {
            let _ = nuri(&["down", "--force", "--dir", &self.dir()]);
        }
    }
}
