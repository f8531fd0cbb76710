//! Calls of the client log: what a client did alone, under leases that it holds, told in batches.

use serde::{Deserialize, Serialize};

use super::call;
use super::meta::{
    Extend, FileRecord, Grant, InodeReply, Link, Make, Publish, Rename, SetAttr, Time, Unlink,
    XattrRemove, XattrSet,
};
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

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Applied {
    /// In the order of the steps that made inodes: their write leases.
    pub made: Vec<Option<Grant>>,
    /// In the order of the steps that said of files that they grow: where their data goes.
    pub placed: Vec<FileRecord>,
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
    /// Without an exchange. A directory moves within its parent, or has no directories in it.
    Rename(Rename, Fate),
    /// With no size but zero.
    SetAttr(SetAttr),
    /// Inline.
    Publish(Publish),
    /// Of a file that gets too long to lie with its inode.
    Extend(Extend),
    /// Of what has a name.
    Link(Link),
    /// Without a condition.
    XattrSet(XattrSet),
    XattrRemove(XattrRemove),
}

/// What becomes of an inode that loses its last name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Fate {
    /// Nothing of the session needs it.
    Dropped,
    /// The session has it open, and says `OrphanRelease` later.
    Open,
}

/// Takes a directory's write lease for a turn: others that ask for it so wait until the turn is
/// over, everything else takes it back at once.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TakeDirectory {
    pub ino: Ino,
    /// The directory's change counter when the caller last knew all its names.
    pub known: Option<u64>,
}
call!(TakeDirectory => DirectoryTaken);

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DirectoryTaken {
    /// With the write lease, unless that is being recalled from the caller.
    pub inode: InodeReply,
    /// It hands no access control list down to new files.
    pub is_bare: bool,
    /// What others did to its names since then, and the caller by direct calls, in order; `None`
    /// where that is not known any more: then the names are to be read.
    pub changes: Option<Vec<NameChange>>,
}

/// Asks for inodes of a directory that the caller has alone, each alone too where nobody else has
/// it. Nobody is waited for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Children {
    pub dir: Ino,
    /// At most `MAX_CHILDREN`.
    pub inos: Vec<Ino>,
}
call!(Children => ChildrenReply);

/// Those that are there and not being written elsewhere; none where the directory is somebody
/// else's by now.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ChildrenReply {
    pub inodes: Vec<InodeReply>,
}

/// What a name of a directory became.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NameChange {
    pub name: Vec<u8>,
    /// The inode and whether it is a directory; `None`: removed.
    pub to: Option<(Ino, bool)>,
}
