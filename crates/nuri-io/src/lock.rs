//! An exclusive lock on a directory, file or device, so that two processes never run one store.
//!
//! Advisory (`flock`): it excludes others that take the same lock. The kernel drops it when the
//! holder ends, however it ends. Used by whoever opens a target or a metadata store.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

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
        let io = |e: rustix::io::Errno| LockError::Io { path: path.to_owned(), source: e.into() };
        let file = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(io)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(ExclusiveLock { _file: File::from(file) }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(LockError::Held(path.to_owned())),
            Err(e) => Err(io(e)),
        }
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
        let missing = ExclusiveLock::acquire(&dir.path().join("none"));
        assert!(matches!(missing, Err(LockError::Io { .. })));
    }
}
