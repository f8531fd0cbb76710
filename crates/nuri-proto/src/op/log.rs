//! Calls of the client log: what a client did alone, under leases that it holds, told in batches.

use serde::{Deserialize, Serialize};

use super::call;
use super::meta::{Grant, Make, Publish, Rename, SetAttr, Time, Unlink};
use crate::id::Ino;

/// Takes numbers for inodes that the session will make by itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Reserve {
    pub count: u32,
}
call!(Reserve => Reserved);

/// The session's own from here on; the server gives them to nobody again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Reserved {
    pub first: Ino,
    pub count: u32,
}

/// Steps in the order in which they were done, all or none. The session holds the write lease of
/// every inode that they change. Payload: the inline data of all publications, one after the
/// other.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Apply {
    pub steps: Vec<Step>,
}
call!(Apply => Applied);

/// In the order of the steps that made inodes: their write leases.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Applied {
    pub made: Vec<Option<Grant>>,
}

/// One operation of the log.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Step {
    /// By the server's clock, as the client keeps it.
    pub at: Time,
    pub change: Change,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Change {
    /// Makes an inode of a reserved number.
    Make(Ino, Make),
    Unlink(Unlink, Fate),
    /// Of files and links, and over such.
    Rename(Rename, Fate),
    /// Without a size.
    SetAttr(SetAttr),
    /// Inline.
    Publish(Publish),
}

/// What becomes of an inode that loses its last name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Fate {
    /// Nothing of the session needs it.
    Dropped,
    /// The session has it open, and says `OrphanRelease` later.
    Open,
}
