//! An exclusive lock on a directory, file or device, so that two processes never run one store.
//!
//! The lock is advisory (`flock`): it excludes only processes that take the same lock. The kernel
//! drops it when the holder ends, however it ends. Callers: the code that opens a target or a
//! metadata store.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};

/// Holds the lock until dropped.
#[derive(Debug)]
pub struct ExclusiveLock {
    _file: File,
}

/// Why the lock was not taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error("{} is in use by another process: stop that one first", .0.display())]
    Held(PathBuf),
    #[error("cannot lock {}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
}

impl ExclusiveLock {
    /// Takes the lock of `path` without waiting.
    ///
    /// # Errors
    /// [`LockError::Held`] where another holder lives.
    pub fn acquire(path: &Path) -> Result<ExclusiveLock, LockError> {
        let _file = lock(path, FlockOperation::NonBlockingLockExclusive)?;
        Ok(ExclusiveLock { _file })
    }

    /// As `acquire`, where others may look whether the lock is held ([`ExclusiveLock::is_held`]):
    /// each look is over in a moment.
    ///
    /// # Errors
    /// As there.
    pub fn acquire_beside_lookers(path: &Path) -> Result<ExclusiveLock, LockError> {
        let start = Instant::now();
        loop {
            match ExclusiveLock::acquire(path) {
                Err(LockError::Held(_)) if start.elapsed() < LOOK => {}
                outcome => return outcome,
            }
            std::thread::sleep(LOOK / 100);
        }
    }

    /// Whether a holder lives. Looking takes a shared lock for a moment: several may look at once.
    pub fn is_held(path: &Path) -> bool {
        let looked = lock(path, FlockOperation::NonBlockingLockShared);
        matches!(looked, Err(LockError::Held(_)))
    }
}

/// No look takes so long, also where the processors are busy.
const LOOK: Duration = Duration::from_secs(1);

fn lock(path: &Path, how: FlockOperation) -> Result<File, LockError> {
    let io = |e: rustix::io::Errno| LockError::Io { path: path.to_owned(), source: e.into() };
    let file = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(io)?;
    match flock(&file, how) {
        Ok(()) => Ok(File::from(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(LockError::Held(path.to_owned())),
        Err(e) => Err(io(e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_holder_is_told_and_drop_frees() {
        let dir = tempfile::tempdir().unwrap();
        let held = ExclusiveLock::acquire(dir.path()).unwrap();
        let again = ExclusiveLock::acquire(dir.path());
        assert!(matches!(again, Err(LockError::Held(_))), "{again:?}");
        drop(held);
        ExclusiveLock::acquire(dir.path()).unwrap();
        assert!(!ExclusiveLock::is_held(dir.path()));
        let missing = ExclusiveLock::acquire(&dir.path().join("none"));
        assert!(matches!(missing, Err(LockError::Io { .. })));
    }
    /// Who starts must not take those that look whether it runs for another one of its kind.
    #[test]
    fn lookers_hinder_neither_each_other_nor_who_takes_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let is_over = std::sync::atomic::AtomicBool::new(false);
        let look = || {
            let mut seen = 0;
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                seen += usize::from(ExclusiveLock::is_held(dir.path()));
            }
            seen
        };
        std::thread::scope(|scope| {
            let lookers = [scope.spawn(look), scope.spawn(look)];
            std::thread::sleep(Duration::from_millis(20));
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
            let seen: usize = lookers.into_iter().map(|looker| looker.join().unwrap()).sum();
            assert_eq!(seen, 0, "nobody holds it");
        });
        is_over.store(false, std::sync::atomic::Ordering::Relaxed);
        std::thread::scope(|scope| {
            (0..2).for_each(|_| _ = scope.spawn(look));
            let take = || ExclusiveLock::acquire_beside_lookers(dir.path()).map(drop);
            let taken: Result<(), _> = (0..200).try_for_each(|_| take());
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
            taken.unwrap();
        });
        let _held = ExclusiveLock::acquire(dir.path()).unwrap();
        assert!(ExclusiveLock::is_held(dir.path()));
    }
}
