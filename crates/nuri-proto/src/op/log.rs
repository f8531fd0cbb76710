//! Calls that flush a client's journal: operations that the client answered by itself, under leases
//! that it holds.

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

/// Numbers that belong to the session from now on; the server gives them to no other session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Reserved {
    pub first: Ino,
    pub count: u32,
}

/// Applies steps of a journal in the order in which they were done, all or none. The session holds
/// the write lease of every inode that they change. Payload: the inline data of all publications,
/// one after the other.
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

/// One operation of the journal.
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

/// Takes a directory's write lease for a turn. Other clients that ask for a turn wait until this
/// one is over. Everything else takes the lease back at once.
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

/// Asks for inodes of a directory that the caller holds exclusively. Each inode is granted
/// exclusively too, where no other client has it. The call waits for no other client.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Children {
    pub dir: Ino,
    /// At most `MAX_CHILDREN`.
    pub inos: Vec<Ino>,
}
call!(Children => ChildrenReply);

/// The inodes that exist and are not being written elsewhere. None, where another client has the
/// directory by now.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ChildrenReply {
    pub inodes: Vec<InodeReply>,
}

/// A change of one name in a directory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NameChange {
    pub name: Vec<u8>,
    /// The inode and whether it is a directory; `None`: removed.
    pub to: Option<(Ino, bool)>,
}
