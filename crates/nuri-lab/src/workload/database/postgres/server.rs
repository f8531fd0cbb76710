//! The processes of PostgreSQL. They are found where Debian installs them, and run by a user with
//! few rights. They end with the process that started them, however that ends.
//!
//! A server listens on a Unix socket only, in a directory that only its user and root can enter.
//! When our process is gone, the kernel tells the server to stop (SIGQUIT). When the server's files
//! are gone, it ends by itself within a minute. Where that is permitted, the server has System V
//! shared memory of its own, which goes with its last process.

use std::fs::{DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use postgres::{Client, Config, NoTls};
use rustix::process::{Pid, Signal, kill_process};

use crate::{LabError, Result, at, work};

/// A directory for each version, with its programs in `bin`.
const VERSIONS: &str = "/usr/lib/postgresql";
const SERVER: &str = "postgres";
const INITDB: &str = "initdb";
/// Who may run the server where we are root, by preference: it refuses to be root's.
const ACCOUNTS: [&str; 2] = ["postgres", "nobody"];
/// The only user of a cluster, and its first database.
const USER: &str = "nuri";
const DATABASE: &str = "postgres";
/// Names the socket; there is no network.
const PORT: u16 = 5432;
/// Of a socket, in Linux.
const LONGEST_PATH: usize = 107;
/// In KiB, as PostgreSQL requires it.
const LEAST_CACHE: u64 = 128;
const LOOK: Duration = Duration::from_millis(5);
/// How long a server may take to start.
const STARTING: Duration = Duration::from_secs(120);
/// How long one that was told to stop at once may take.
const ENDING: Duration = Duration::from_secs(10);

/// How its programs are run on this machine.
pub(super) struct Installed {
    programs: PathBuf,
    account: Option<Account>,
    has_own_memory: bool,
}

struct Account {
    name: &'static str,
    user: u32,
    group: u32,
}

impl Installed {
    pub(super) fn find() -> Result<Installed> {
        let programs = newest(Path::new(VERSIONS)).ok_or_else(|| {
            let missing = format!("PostgreSQL is not installed: there is no {VERSIONS}/*/bin");
            LabError(format!("{missing}/{SERVER}; install it (apt install postgresql)"))
        })?;
        let is_root = rustix::process::geteuid().is_root();
        let account = is_root.then(account).transpose()?;
        let has_own_memory = Command::new("unshare").args(["--ipc", "true"]).output();
        let has_own_memory = has_own_memory.is_ok_and(|ran| ran.status.success());
        Ok(Installed { programs, account, has_own_memory })
    }

    /// One that ends with this process.
    fn command(&self, program: &str) -> Command {
        let mut words: Vec<String> = Vec::new();
        if self.has_own_memory {
            words.extend(["unshare", "--ipc", "--"].map(String::from));
        }
        words.extend(["setpriv", "--pdeathsig", "QUIT"].map(String::from));
        if let Some(Account { user, group, .. }) = &self.account {
            words.push("--clear-groups".into());
            words.extend([format!("--reuid={user}"), format!("--regid={group}")]);
        }
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).arg("--").arg(program);
        // Ours may be closed to that user; messages are to be in one language.
        command.current_dir("/").env("LC_ALL", "C").stdin(Stdio::null());
        command
    }

    fn program(&self, name: &str) -> Command {
        self.command(&self.programs.join(name).display().to_string())
    }

    /// A directory that only the server's user and root can enter.
    fn make_dir(&self, path: &Path) -> Result<()> {
        DirBuilder::new().mode(0o700).create(path).map_err(at(path.display()))?;
        let Some(Account { name, user, group }) = &self.account else {
            return Ok(());
        };
        chown(path, Some(*user), Some(*group)).map_err(at(path.display()))?;
        let mut look = self.command("test");
        let ran = look.arg("-x").arg(path).output().map_err(at("setpriv (of util-linux)"))?;
        if ran.status.success() {
            return Ok(());
        }
        Err(LabError(format!(
            "{} cannot be reached by the user {name}, as whom PostgreSQL runs because it refuses \
             to be root's: open the directories above it (chmod a+x)",
            path.display()
        )))
    }

    /// Where the socket is to be.
    pub(super) fn make_private(&self, private: &Path) -> Result<()> {
        let socket = socket(private);
        let path = socket.join(format!(".s.PGSQL.{PORT}"));
        if path.as_os_str().len() > LONGEST_PATH {
            let path = path.display();
            return Err(LabError(format!(
                "{path} is too long for a socket, at most {LONGEST_PATH} bytes: set TMPDIR to a \
                 shorter one"
            )));
        }
        self.make_dir(&socket)
    }

    /// A new cluster, with a checksum on each page.
    pub(super) fn make_cluster(&self, place: &Path) -> Result<()> {
        work::remove(place);
        self.make_dir(place)?;
        let mut initdb = self.program(INITDB);
        initdb.args(["-k", "-A", "trust", "-U", USER, "-E", "UTF8", "--locale=C", "-D"]);
        let ran = initdb.arg(place).output().map_err(at("setpriv (of util-linux)"))?;
        if ran.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        Err(LabError(format!("{INITDB} failed ({}): {}", ran.status, reason(&said))))
    }
}

/// The programs of the highest version that has them.
fn newest(versions: &Path) -> Option<PathBuf> {
    let dirs = std::fs::read_dir(versions).into_iter().flatten().flatten();
    let version = |dir: &PathBuf| -> Option<Vec<u32>> {
        dir.file_name()?.to_str()?.split('.').map(|part| part.parse().ok()).collect()
    };
    let known = dirs.filter_map(|dir| Some((version(&dir.path())?, dir.path().join("bin"))));
    let is_whole = |bin: &Path| [SERVER, INITDB].iter().all(|name| bin.join(name).is_file());
    known.filter(|(_, bin)| is_whole(bin)).max().map(|(_, bin)| bin)
}

fn account() -> Result<Account> {
    let users = std::fs::read_to_string("/etc/passwd").map_err(at("/etc/passwd"))?;
    let found = ACCOUNTS.iter().find_map(|name| entry(&users, name));
    found.ok_or_else(|| {
        let [first, second] = ACCOUNTS;
        LabError(format!("PostgreSQL refuses to be root's: no user is {first} or {second}"))
    })
}

fn entry(users: &str, name: &'static str) -> Option<Account> {
    let fields = |line: &str| line.split(':').map(String::from).collect::<Vec<_>>();
    let found = users.lines().map(fields).find(|fields| fields[0] == name)?;
    let number = |i: usize| found.get(i)?.parse().ok();
    Some(Account { name, user: number(2)?, group: number(3)? })
}

fn socket(private: &Path) -> PathBuf {
    private.join("pg")
}

/// Why a program failed, of what it wrote.
fn reason(said: &str) -> &str {
    let is_told = |line: &&str| ["FATAL:", "PANIC:", "error:"].iter().any(|w| line.contains(w));
    let last = || said.lines().rfind(|line| !line.trim().is_empty());
    said.lines().find(is_told).or_else(last).unwrap_or("no word").trim()
}

/// What the server is told beside its defaults. `cache` in bytes.
fn settings(socket: &Path, cache: u64) -> Vec<String> {
    let kib = (cache >> 10).max(LEAST_CACHE);
    let mut settings = vec![
        format!("unix_socket_directories={}", socket.display()),
        format!("port={PORT}"),
        format!("shared_buffers={kib}kB"),
    ];
    let fixed = [
        "listen_addresses=",
        "fsync=on",
        "synchronous_commit=on",
        "full_page_writes=on",
        // Nothing but the workload is to happen.
        "autovacuum=off",
        // Goes with its processes, which files in /dev/shm do not.
        "dynamic_shared_memory_type=sysv",
    ];
    settings.extend(fixed.map(String::from));
    settings
}

/// One that runs. It ends with the value.
pub(super) struct Server {
    process: Child,
    socket: PathBuf,
    log: PathBuf,
}

impl Server {
    /// Starts it with the cluster in `place`, and connects.
    pub(super) fn start(
        installed: &Installed,
        place: &Path,
        private: &Path,
        cache: u64,
    ) -> Result<(Server, Client)> {
        let (log, socket) = (private.join("log"), socket(private));
        let said = File::create(&log).map_err(at(log.display()))?;
        let mut command = installed.program(SERVER);
        command.arg("-D").arg(place);
        for setting in settings(&socket, cache) {
            command.arg("-c").arg(setting);
        }
        let process = command.stdout(Stdio::null()).stderr(said).spawn();
        let process = process.map_err(at("setpriv (of util-linux)"))?;
        let mut server = Server { process, socket, log };
        let client = server.connect()?;
        Ok((server, client))
    }

    /// As soon as it listens.
    pub(super) fn connect(&mut self) -> Result<Client> {
        let mut config = Config::new();
        config.host_path(&self.socket).port(PORT).user(USER).dbname(DATABASE);
        let start = Instant::now();
        loop {
            let error = match config.connect(NoTls) {
                Ok(client) => return Ok(client),
                Err(error) => super::told(&error),
            };
            if self.process.try_wait().map_err(at(SERVER))?.is_some() {
                return Err(self.failed());
            }
            if start.elapsed() > STARTING {
                let seconds = STARTING.as_secs();
                return Err(LabError(format!("{SERVER} did not start in {seconds} s: {error}")));
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Lets it write out what it holds.
    pub(super) fn stop(mut self) -> Result<()> {
        self.tell(Signal::INT);
        let status = self.process.wait().map_err(at(SERVER))?;
        if status.success() { Ok(()) } else { Err(self.failed()) }
    }

    fn tell(&self, signal: Signal) {
        // One that is gone needs no telling.
        let _ = kill_process(Pid::from_child(&self.process), signal);
    }

    fn failed(&self) -> LabError {
        let said = std::fs::read_to_string(&self.log).unwrap_or_default();
        LabError(format!("{SERVER} failed: {}", reason(&said)))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !matches!(self.process.try_wait(), Ok(None)) {
            return;
        }
        self.tell(Signal::QUIT);
        let start = Instant::now();
        while matches!(self.process.try_wait(), Ok(None)) && start.elapsed() < ENDING {
            std::thread::sleep(LOOK);
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_that_is_whole_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(newest(dir.path()), None);
        assert_eq!(newest(&dir.path().join("none")), None);
        for (version, programs) in [
            ("9.6", &["initdb", "postgres"][..]),
            ("15", &["initdb", "postgres"]),
            ("17", &["psql"]),
        ] {
            let bin = dir.path().join(version).join("bin");
            std::fs::create_dir_all(&bin).unwrap();
            programs.iter().for_each(|name| std::fs::write(bin.join(name), "").unwrap());
        }
        assert_eq!(newest(dir.path()), Some(dir.path().join("15/bin")));
    }

    #[test]
    fn users_are_found_by_name() {
        let users = "root:x:0:0:root:/root:/bin/bash\nbad\nnobody:x:65534:65533:n:/x:/bin/false\n";
        let found = entry(users, "nobody").unwrap();
        assert_eq!((found.name, found.user, found.group), ("nobody", 65534, 65533));
        assert!(entry(users, "postgres").is_none() && entry(users, "bad").is_none());
    }

    #[test]
    fn a_failure_is_told_by_its_own_line() {
        let said = "LOG: starting\n1 FATAL:  no space\nLOG: shut down\n";
        assert_eq!(reason(said), "1 FATAL:  no space");
        assert_eq!(reason("one\ntwo \n\n"), "two");
        assert_eq!(reason(""), "no word");
    }

    #[test]
    fn the_path_of_a_socket_has_a_limit() {
        let installed = Installed::find().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("x".repeat(90));
        std::fs::create_dir(&deep).unwrap();
        let error = installed.make_private(&deep).unwrap_err().to_string();
        assert!(error.contains("too long for a socket, at most 107"), "{error}");
        assert_eq!(std::fs::read_dir(&deep).unwrap().count(), 0);
    }
}
