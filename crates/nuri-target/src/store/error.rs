//! What can go wrong in a chunk store, and what the caller should do about it.
//!
//! There is one enum per operation: [`StoreError`] for calls on an open store, [`FormatError`] and
//! [`OpenError`] for making and opening one. They are mapped to wire statuses in one place, here.

use std::io;
use std::sync::Arc;

use nuri_proto::Status;
use nuri_proto::id::{ChunkKey, ClusterId, TargetId};

/// A call on an open store failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// Nothing was changed; delete something or use another target.
    #[error("no space left on the target")]
    NoSpace,
    /// The block's bytes do not match its checksum and were not returned.
    #[error("block {1} of chunk {0:?} failed its checksum")]
    Corrupt(ChunkKey, u32),
    /// An I/O error happened; what was not flushed may be lost. Reopen the store.
    #[error("the store is out of service ({0}): reopen it after checking the disk")]
    OutOfService(Arc<str>),
    /// The range ends beyond the largest chunk.
    #[error("the range ends beyond the largest chunk")]
    OutOfRange,
    /// The store already belongs to someone.
    #[error("the store already belongs to target {1} of cluster {0}")]
    Assigned(ClusterId, TargetId),
}

impl From<StoreError> for Status {
    fn from(error: StoreError) -> Status {
        match error {
            StoreError::NoSpace => Status::NOSPC,
            StoreError::Corrupt(..) => Status::CORRUPT,
            StoreError::OutOfService(_) => Status::OUT_OF_SERVICE,
            StoreError::OutOfRange => Status::INVAL,
            StoreError::Assigned(..) => Status::EXIST,
        }
    }
}

/// A store could not be made.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    #[error("{0} bytes are too few for a store: give it at least {1}")]
    TooSmall(u64, u64),
    /// What must never lack room needs it at once, in MiB.
    #[error(
        "the file system has too little room for a new store, which needs {0} MiB of it at once: \
         make room there, or choose another directory"
    )]
    NoRoom(u64),
    #[error("cannot write the new store: {0}")]
    Io(#[from] io::Error),
}

/// The file system has no room left, or not for us.
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// A store could not be opened. Nothing was written to it.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("this is not a Nuri store: both superblocks lack its mark; format it first")]
    NotAStore,
    #[error(
        "both superblocks are damaged: check the disk, restore from another copy, or format the \
         target anew and let its data be rebuilt"
    )]
    SuperblocksDamaged,
    #[error("the store has format version {0}, this program reads {1}: use a newer program")]
    Version(u32, u32),
    #[error("the store uses features {0:#x} that this program does not know: use a newer program")]
    Features(u64),
    #[error("the store's disk has {0} bytes, its superblock says {1}: is the file cut short?")]
    Short(u64, u64),
    #[error("the log is damaged at byte {at}: a later record is whole at byte {later}; run check")]
    LogDamaged { at: u64, later: u64 },
    #[error("the store's index is damaged ({0}): run check")]
    IndexDamaged(String),
    #[error("cannot read the store: {0}")]
    Io(#[from] io::Error),
    #[error("the store could not be brought up: {0}")]
    Store(#[from] StoreError),
}
