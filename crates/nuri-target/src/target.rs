//! One target: opens it at its place, creates it where that was asked for, and reports its state.
//!
//! A target whose number the node knows must be there when the node starts, and must stay where it
//! is. A disk that was not mounted leaves an empty directory, and a target that was created there
//! would hide the real one. Such a target is [`Lost`]: it is reported as failed, and never created
//! anew.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use nuri_io::disk::Disk;
use nuri_io::file::OpenMode;
use nuri_io::lock::{ExclusiveLock, LockError};
use nuri_io::uring::open_disk;
use nuri_proto::id::{BootId, ClusterId, Incarnation, TargetId};
use nuri_proto::map::TargetState;
use nuri_proto::op::cluster::{JoinTarget, TargetReport};

use crate::store::{ChunkStore, FormatError, FormatOptions, OpenError, StoreConfig, StoreError};

/// Name of the store in a target's directory.
pub const STORE_FILE: &str = "store";

/// Why a target cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    #[error("target {0}: {1}")]
    Lock(String, LockError),
    #[error("target {0}: {1}")]
    Open(String, OpenError),
    #[error("target {0}: {1}")]
    Format(String, FormatError),
    #[error("target {0}: {1}")]
    Io(String, std::io::Error),
    #[error("target {0} is not empty and holds no store; choose an empty directory or device")]
    NotEmpty(String),
    #[error("target {0} belongs to another space ({1}); wipe it first if its data is not needed")]
    OtherSpace(String, ClusterId),
    #[error("target {0} is not there: is its disk mounted?")]
    Gone(String),
    #[error("target {0} is empty: is its disk mounted?")]
    Empty(String),
    #[error("{0} holds target {1}, not target {2}: is the right disk mounted there?")]
    OtherTarget(String, TargetId, TargetId),
    #[error("the system gave no random bytes")]
    Random,
}

impl TargetError {
    /// Whether the place does not hold the target, which may be well elsewhere.
    pub fn is_elsewhere(&self) -> bool {
        let other = matches!(self, TargetError::OtherTarget(..) | TargetError::OtherSpace(..));
        other || matches!(self, TargetError::Gone(_) | TargetError::Empty(_))
    }
}

/// What to do with a place that holds no target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Making {
    /// Makes one of so many bytes; of a device's own length there.
    Allowed(u64),
    Refused,
}

/// A target that its node knows and that is not there.
#[derive(Clone, Debug)]
pub struct Lost {
    pub id: TargetId,
    pub why: String,
}

impl Lost {
    pub(crate) fn report(&self) -> TargetReport {
        let (id, state, why) = (self.id, TargetState::Failed, self.why.clone());
        TargetReport { id, state, size: 0, used: 0, sequence: 0, why }
    }
}

/// One store and where it lies.
pub struct Target {
    path: PathBuf,
    pub(crate) store: ChunkStore<Arc<dyn Disk>>,
    place: Option<Place>,
    /// Why it is no longer where it was.
    gone: OnceLock<String>,
    _lock: Option<ExclusiveLock>,
}

/// Where the store of an open target is: tells that from what may come in its place.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Place {
    file: PathBuf,
    /// File system and number of the directory, and of the store in it.
    directory: (u64, u64),
    store: (u64, u64),
}

impl Place {
    fn of(path: &Path) -> std::io::Result<Place> {
        let number = |path: &Path| std::fs::metadata(path).map(|m| (m.dev(), m.ino()));
        let file = store_path(path);
        Ok(Place { directory: number(path)?, store: number(&file)?, file })
    }

    /// What is wrong with the place now, if anything is known to be.
    fn trouble(&self, path: &Path) -> Option<String> {
        let number = |path: &Path| std::fs::metadata(path).map(|m| (m.dev(), m.ino()));
        let is_missing = |e: &std::io::Error| {
            matches!(e.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory)
        };
        match number(path) {
            Err(e) if is_missing(&e) => return Some(format!("{} was removed", path.display())),
            Ok((device, _)) if device != self.directory.0 => {
                let path = path.display();
                return Some(format!("another file system is at {path}: was its disk unmounted?"));
            }
            Ok(found) if found != self.directory => {
                return Some(format!("something else is at {}", path.display()));
            }
            // It does not say: if the disk is dying, the store will notice.
            _ => {}
        }
        match number(&self.file) {
            Err(e) if is_missing(&e) => Some(format!("{} was removed", self.file.display())),
            Ok(found) if found != self.store => {
                Some(format!("another file is at {}", self.file.display()))
            }
            _ => None,
        }
    }
}

/// The store of a directory, or the device itself.
pub fn store_path(path: &Path) -> PathBuf {
    if path.is_dir() { path.join(STORE_FILE) } else { path.to_owned() }
}

/// Whether a store was ever made there.
pub fn is_made(path: &Path) -> bool {
    let open = || -> std::io::Result<bool> {
        let disk = open_disk(&store_path(path), OpenMode::Existing)?;
        Ok(!is_blank(&*disk, disk.len()?)?)
    };
    // What cannot be read may hold one.
    open().unwrap_or_else(|e| e.kind() != std::io::ErrorKind::NotFound)
}

/// A device must be there, while a directory is made: also one in memory, below `/dev/shm`.
fn names_a_device(path: &Path) -> bool {
    path.starts_with("/dev") && !path.starts_with("/dev/shm")
}

fn random() -> Result<u64, TargetError> {
    getrandom::u64().map_err(|_| TargetError::Random)
}

impl Target {
    /// Opens the target at a directory or block device. Where there is none it is made, if that is
    /// allowed.
    ///
    /// # Errors
    /// A target that is not there, in use, damaged, of another space, not the one that is expected,
    /// or a place that is not empty; nothing was changed then.
    pub fn open(
        path: &Path,
        cluster: ClusterId,
        expected: Option<TargetId>,
        making: Making,
    ) -> Result<Target, TargetError> {
        let name = || path.display().to_string();
        let io = |e| TargetError::Io(name(), e);
        if !path.exists() {
            if making == Making::Refused || names_a_device(path) {
                return Err(TargetError::Gone(name()));
            }
            std::fs::create_dir_all(path).map_err(io)?;
        }
        let lock = ExclusiveLock::acquire(path).map_err(|e| TargetError::Lock(name(), e))?;
        if !is_made(path) {
            match making {
                Making::Refused => return Err(TargetError::Empty(name())),
                Making::Allowed(capacity) => make(path, cluster, capacity)?,
            }
        }
        let disk = open_disk(&store_path(path), OpenMode::Existing).map_err(io)?;
        let boot = BootId(random()?);
        let store = ChunkStore::open(disk, boot, StoreConfig::default())
            .map_err(|e| TargetError::Open(name(), e))?;
        if store.cluster() != cluster {
            return Err(TargetError::OtherSpace(name(), store.cluster()));
        }
        if let (Some(expected), Some(found)) = (expected, store.target())
            && expected != found
        {
            return Err(TargetError::OtherTarget(name(), found, expected));
        }
        let place = Place::of(path).map_err(io)?;
        let path = path.to_owned();
        Ok(Target { path, store, place: Some(place), gone: OnceLock::new(), _lock: Some(lock) })
    }

    /// A store that is open already, on a disk of the caller's.
    pub fn over(store: ChunkStore<Arc<dyn Disk>>) -> Target {
        Target { path: PathBuf::new(), store, place: None, gone: OnceLock::new(), _lock: None }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How the node announces it.
    pub fn announce(&self) -> JoinTarget {
        let usage = self.store.fillable();
        let superblock = self.store.superblock();
        JoinTarget {
            id: self.store.target(),
            incarnation: superblock.incarnation,
            sequence: superblock.sequence,
            boot: self.store.boot(),
            is_doubted: superblock.is_doubted(),
            map_epoch: superblock.map_epoch,
            path: self.path.display().to_string(),
            size: usage.size,
            used: usage.used,
        }
    }

    /// Writes the id that the authority gave into the superblock, once: it took the target as it
    /// is.
    ///
    /// # Errors
    /// Where the superblock cannot be written.
    pub fn assign(&self, cluster: ClusterId, id: TargetId) -> Result<(), StoreError> {
        if self.store.target() != Some(id) {
            self.store.assign(cluster, id)?;
        }
        self.store.doubt(false)
    }

    /// The authority refused the target as an older state of itself.
    ///
    /// # Errors
    /// Where the superblock cannot be written.
    pub fn doubt(&self) -> Result<(), StoreError> {
        self.store.doubt(true)
    }

    /// Takes the target out of service, for good, where its directory or store is no longer what
    /// was opened: what is written there would be lost with the last descriptor.
    pub(crate) fn look_at_place(&self) {
        if let Some(why) = self.place.as_ref().and_then(|place| place.trouble(&self.path))
            && self.gone.set(why.clone()).is_ok()
        {
            let path = self.path.display();
            tracing::error!("target {path}: out of service until its node is started anew: {why}");
        }
    }

    pub(crate) fn is_in_place(&self) -> bool {
        self.gone.get().is_none()
    }

    pub(crate) fn is_served(&self) -> bool {
        self.is_in_place() && self.store.is_in_service()
    }

    pub(crate) fn report(&self) -> Option<TargetReport> {
        let usage = self.store.fillable();
        let why = self.gone.get().cloned().or_else(|| self.store.failure().map(|s| s.to_string()));
        let state = if why.is_none() { TargetState::Up } else { TargetState::Failed };
        let id = self.store.target()?;
        let sequence = self.store.superblock().sequence;
        let why = why.unwrap_or_default();
        Some(TargetReport { id, state, size: usage.size, used: usage.used, sequence, why })
    }
}

/// Makes a store in an empty directory, or on a blank device.
fn make(path: &Path, cluster: ClusterId, capacity: u64) -> Result<(), TargetError> {
    let name = || path.display().to_string();
    let io = |e| TargetError::Io(name(), e);
    let is_directory = path.is_dir();
    if is_directory && foreign_files(path) {
        return Err(TargetError::NotEmpty(name()));
    }
    let file = store_path(path);
    let disk = open_disk(&file, OpenMode::Create).map_err(io)?;
    let options = FormatOptions {
        cluster,
        target: None,
        incarnation: Incarnation(random()?),
        capacity_bytes: if is_directory { capacity } else { disk.len().map_err(io)? },
        log_bytes: FormatOptions::LOG_BYTES,
    };
    ChunkStore::format(&disk, options).map(drop).map_err(|e| {
        if is_directory {
            let _ = std::fs::remove_file(&file);
        }
        TargetError::Format(name(), e)
    })
}

/// Nothing was ever written: an empty file, or a device whose first blocks are zeros.
fn is_blank(disk: &dyn Disk, length: u64) -> std::io::Result<bool> {
    let mut head = nuri_io::buf::AlignedBuf::zeroed(length.min(64 << 10) as usize & !4095);
    disk.read_at(0, &mut head)?;
    Ok(head.iter().all(|b| *b == 0))
}

fn foreign_files(dir: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(dir) else { return true };
    entries.flatten().any(|e| e.file_name() != STORE_FILE && e.file_name() != "lost+found")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 16 << 20;

    fn open(path: &Path, expected: Option<u32>, making: Making) -> Result<Target, TargetError> {
        Target::open(path, ClusterId([7; 16]), expected.map(TargetId), making)
    }

    #[test]
    fn a_device_is_not_made_but_a_directory_in_memory_is() {
        let device = open(Path::new("/dev/nuri-none"), None, Making::Allowed(SIZE));
        assert!(matches!(device, Err(TargetError::Gone(_))));
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        assert!(open(&dir.path().join("target"), None, Making::Allowed(SIZE)).is_ok());
    }

    #[test]
    fn only_what_was_asked_for_is_made() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("target");
        let missing = open(&path, None, Making::Refused);
        assert!(missing.is_err_and(|e| e.is_elsewhere() && matches!(e, TargetError::Gone(_))));
        assert!(!path.exists());
        std::fs::create_dir(&path).unwrap();
        let empty = open(&path, Some(1), Making::Refused);
        assert!(empty.is_err_and(|e| e.is_elsewhere() && matches!(e, TargetError::Empty(_))));
        assert_eq!(std::fs::read_dir(&path).unwrap().count(), 0, "not even an empty file");
        let made = open(&path, None, Making::Allowed(SIZE)).unwrap();
        made.assign(ClusterId([7; 16]), TargetId(3)).unwrap();
        drop(made);
        assert!(open(&path, Some(3), Making::Refused).is_ok());
        // A child that another test just forks has a copy of the lock until it runs its program.
        let other = loop {
            match open(&path, Some(4), Making::Allowed(SIZE)).map(|_| ()).unwrap_err() {
                TargetError::Lock(..) => std::thread::sleep(std::time::Duration::from_millis(5)),
                other => break other,
            }
        };
        assert!(other.is_elsewhere() && other.to_string().contains("target 3, not target 4"));
    }

    #[test]
    fn a_target_that_leaves_its_place_is_failed_for_good() {
        let dir = tempfile::tempdir().unwrap();
        let [path, aside] = ["target", "aside"].map(|name| dir.path().join(name));
        let target = open(&path, None, Making::Allowed(SIZE)).unwrap();
        target.assign(ClusterId([7; 16]), TargetId(3)).unwrap();
        target.look_at_place();
        assert!(target.is_served() && target.report().unwrap().why.is_empty());
        std::fs::rename(&path, &aside).unwrap();
        assert!(target.place.as_ref().unwrap().trouble(&path).unwrap().contains("was removed"));
        std::fs::create_dir(&path).unwrap();
        target.look_at_place();
        let report = target.report().unwrap();
        assert!(report.why.contains("something else is at"), "{report:?}");
        assert_eq!(report.state, TargetState::Failed);
        std::fs::remove_dir(&path).unwrap();
        std::fs::rename(&aside, &path).unwrap();
        target.look_at_place();
        assert!(!target.is_served(), "what was written meanwhile may lie elsewhere");
        let store = path.join(STORE_FILE);
        std::fs::remove_file(&store).unwrap();
        assert!(target.place.as_ref().unwrap().trouble(&path).unwrap().contains("store was"));
    }
}
