//! Where ranks find each other: a private directory, with a socket and a lock for each rank.
//!
//! `BASE/NAME/RANK.lock` is locked as long as the rank lives, so the kernel tells which ranks live.
//! The process that gets the lock of a dead rank removes what that rank left. Peers connect to
//! `BASE/NAME/RANK.sock`. Nothing else has a name. Directories belong to the user and have mode
//! 0700; links are not followed.

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::FlockOperation;

use crate::config::Config;
use crate::error::{Error, Result, io, system};
use crate::socket;

/// One rank's place in a session, given up when dropped.
#[derive(Debug)]
pub(crate) struct Session {
    base: PathBuf,
    dir: PathBuf,
    rank: u32,
    _lock: File,
}

impl Session {
    /// Takes the rank and listens for its peers.
    pub(crate) fn join(config: &Config) -> Result<(Self, OwnedFd)> {
        let base = match &config.dir {
            Some(dir) => dir.clone(),
            None => default_base(),
        };
        let dir = base.join(&config.name);
        let lock = take(&base, &dir, config.rank)?;
        let session = Self { base, dir, rank: config.rank, _lock: lock };
        let path = session.socket(config.rank);
        let _ = fs::remove_file(&path);
        let listener = socket::listen(&path)?;
        sweep(&session.base);
        Ok((session, listener))
    }

    /// Where a rank listens.
    pub(crate) fn socket(&self, rank: u32) -> PathBuf {
        self.dir.join(format!("{rank}.sock"))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        remove_rank(&self.dir, &self.rank.to_string());
        sweep(&self.base);
        let _ = fs::remove_dir(&self.base);
    }
}

/// Somebody may remove what looks abandoned just before it is locked, and has the lock for that
/// moment: then again.
fn take(base: &Path, dir: &Path, rank: u32) -> Result<File> {
    const TRIES: u32 = 100;
    for attempt in 1..=TRIES {
        match private_dir(base).and_then(|()| private_dir(dir)) {
            Err(Error::System { errno, .. }) if errno == rustix::io::Errno::NOENT => continue,
            other => other?,
        }
        match lock(&lock_path(dir, &rank.to_string()))? {
            Lock::Held(file) => return Ok(file),
            Lock::Taken if attempt == TRIES => return Err(Error::RankTaken { rank }),
            Lock::Taken => std::thread::sleep(Duration::from_millis(1)),
            Lock::Vanished => (),
        }
    }
    Err(Error::System { what: "session directory", errno: rustix::io::Errno::AGAIN })
}

enum Lock {
    Held(File),
    Taken,
    Vanished,
}

/// Locks a file by name; a lock on a file that lost its name meanwhile is none.
fn lock(path: &Path) -> Result<Lock> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    let file = match options.open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Lock::Vanished),
        Err(e) => return Err(io("lock file")(e)),
    };
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => (),
        Err(rustix::io::Errno::WOULDBLOCK) => return Ok(Lock::Taken),
        Err(e) => return Err(system("flock")(e)),
    }
    let ours = file.metadata().map_err(io("lock file"))?.ino();
    match fs::symlink_metadata(path) {
        Ok(there) if there.ino() == ours => Ok(Lock::Held(file)),
        _ => Ok(Lock::Vanished),
    }
}

/// Removes what ranks of any session here left that were killed.
fn sweep(base: &Path) {
    for session in entries(base) {
        for file in entries(&session) {
            let stem = file.file_stem().and_then(|s| s.to_str()).unwrap_or_default();
            let is_lock = file.extension().is_some_and(|e| e == "lock");
            if is_lock && let Ok(Lock::Held(_held)) = lock(&file) {
                remove_rank(&session, stem);
            }
        }
        let _ = fs::remove_dir(&session);
    }
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// The socket first: without its lock it would look like nobody's.
fn remove_rank(dir: &Path, rank: &str) {
    let _ = fs::remove_file(dir.join(format!("{rank}.sock")));
    let _ = fs::remove_file(lock_path(dir, rank));
}

fn lock_path(dir: &Path, rank: &str) -> PathBuf {
    dir.join(format!("{rank}.lock"))
}

fn default_base() -> PathBuf {
    let uid = rustix::process::geteuid().as_raw();
    let given = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let usual = PathBuf::from(format!("/run/user/{uid}"));
    let runtime = given.into_iter().chain([usual]).find(|dir| is_private(dir, uid));
    match runtime {
        Some(dir) => dir.join("nuri-ipc"),
        None => PathBuf::from(format!("/tmp/nuri-ipc-{uid}")),
    }
}

fn private_dir(path: &Path) -> Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(io("mkdir")(e)),
        _ => (),
    }
    // It may be gone again.
    let found = fs::symlink_metadata(path).map_err(io("mkdir"))?;
    match belongs_to(&found, rustix::process::geteuid().as_raw()) {
        true => Ok(()),
        false => Err(Error::NotPrivate(path.to_owned())),
    }
}

fn is_private(path: &Path, uid: u32) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| belongs_to(&found, uid))
}

fn belongs_to(found: &fs::Metadata, uid: u32) -> bool {
    found.is_dir() && found.uid() == uid && found.mode() & 0o077 == 0
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn config(dir: &Path) -> Config {
        Config::new("test", 1, 2).dir(dir.join("base"))
    }

    #[test]
    fn a_rank_is_taken_once_and_leaves_nothing() {
        let temp = tempfile::tempdir().unwrap();
        let first = Session::join(&config(temp.path())).unwrap();
        assert_eq!(first.0.socket(1), temp.path().join("base/test/1.sock"));
        let again = Session::join(&config(temp.path()));
        assert_eq!(again.unwrap_err(), Error::RankTaken { rank: 1 });
        drop(first);
        assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 0);
    }

    /// Who leaves removes the directories; who comes at that moment makes them anew.
    #[test]
    fn ranks_come_while_others_leave() {
        let temp = tempfile::tempdir().unwrap();
        let base = temp.path().join("base");
        std::thread::scope(|scope| {
            for rank in 0..4 {
                let config = Config::new("test", rank, 4).dir(base.clone());
                scope.spawn(move || (0..500).for_each(|_| drop(Session::join(&config).unwrap())));
            }
        });
        assert!(!base.exists());
    }

    /// Who removes what the dead left has each lock for a moment.
    #[test]
    fn a_lock_that_is_only_looked_at_takes_no_rank() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("base/test");
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir).unwrap();
        let Lock::Held(looker) = lock(&lock_path(&dir, "1")).unwrap() else { panic!("free") };
        let away = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(10));
            drop(looker);
        });
        Session::join(&config(temp.path())).unwrap();
        away.join().unwrap();
    }

    #[test]
    fn what_the_dead_left_is_removed() {
        let temp = tempfile::tempdir().unwrap();
        let dead = temp.path().join("base/gone");
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&dead).unwrap();
        fs::write(dead.join("3.lock"), "").unwrap();
        fs::write(dead.join("3.sock"), "").unwrap();
        let session = Session::join(&config(temp.path())).unwrap();
        assert!(!dead.exists());
        drop(session);
    }

    #[test]
    fn directories_of_others_are_refused() {
        let temp = tempfile::tempdir().unwrap();
        let base = temp.path().join("base");
        fs::create_dir(&base).unwrap();
        fs::set_permissions(&base, fs::Permissions::from_mode(0o750)).unwrap();
        let refused = |r: Result<(Session, OwnedFd)>| matches!(r, Err(Error::NotPrivate(_)));
        assert!(refused(Session::join(&config(temp.path()))));
        fs::remove_dir(&base).unwrap();
        let real = temp.path().join("real");
        fs::DirBuilder::new().mode(0o700).create(&real).unwrap();
        symlink(&real, &base).unwrap();
        assert!(refused(Session::join(&config(temp.path()))));
    }
}
