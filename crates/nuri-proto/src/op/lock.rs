//! Calls to the metadata server about locks of programs on files.
//!
//! A lock that must wait is parked at the server: the call is answered at once, and the end of the
//! wait comes as an event. The caller numbers each call that may wait, so every message may come
//! twice.
//!
//! A client that has the only locks of a file may be handed all decisions about them. An event asks
//! for the decisions back ([`LockRecall`], [`LockTell`]).

use serde::{Deserialize, Serialize};

use super::call;
use crate::id::Ino;
use crate::range_map::Span;

/// Locks of different classes do not see each other, as on Linux.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum LockClass {
    /// `fcntl`: byte ranges, owned by a process (POSIX) or an open file (OFD).
    Range,
    /// `flock`: the whole file, owned by an open file.
    Flock,
}

/// What a lock lets others do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum LockMode {
    /// Others may hold it too.
    Shared,
    /// Nobody else holds it.
    Exclusive,
}

/// What to do where the lock is held by another.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum LockWait {
    /// Refuse.
    No,
    /// Queue it under this number, which is the session's own.
    Queue { request: u64, deadlock: Deadlock },
}

/// Whether a wait that can never end is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Deadlock {
    /// Locks of processes.
    Detect,
    /// Locks of open files: threads may share one, so a circle of waits may still end.
    Ignore,
}

/// Sets, changes or (`mode: None`) gives up locks on a range of bytes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LockSet {
    pub ino: Ino,
    pub class: LockClass,
    /// The session's own number for who holds it.
    pub owner: u64,
    pub span: Span,
    pub mode: Option<LockMode>,
    /// Shown to others of the same session.
    pub pid: u32,
    pub wait: LockWait,
}
call!(LockSet => LockReply);

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LockReply {
    /// Orders the changes of locks. The upper bits are the epoch of the server, as of grants.
    pub number: u64,
    pub outcome: LockOutcome,
    /// From here on the caller decides about all locks of the file by itself, until they are
    /// recalled. What it has in `number` names this.
    pub delegated: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum LockOutcome {
    /// It is as it was asked for.
    Done,
    /// Another holds it. (What the owner had by `flock` is gone, as on Linux.)
    Refused,
    /// It is queued: an event tells the end.
    Waits,
}

/// The end of a wait, sent as an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LockEnd {
    pub request: u64,
    /// As in the reply.
    pub number: u64,
    pub granted: Granted,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Granted {
    Yes,
    /// The wait could never have ended.
    Deadlock,
}

/// Gives up waits. Answered for each wait, in order: whether it was still waiting. If not, its end
/// was sent before.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LockCancel {
    pub requests: Vec<u64>,
}
call!(LockCancel => Vec<bool>);

/// Asks for the decisions about a file's locks back, because another client wants locks of the
/// file. Answered by [`LockTell`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LockRecall {
    pub ino: Ino,
    /// Of the answer that handed them over.
    pub number: u64,
}

/// Gives the decisions about a file's locks back. A client may call it asked or unasked, and any
/// number of times.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LockTell {
    pub ino: Ino,
    /// Of the answer that handed them over.
    pub number: u64,
    /// All that the caller's programs hold there. `None` where nothing was decided since: then
    /// what the server knows still holds.
    pub locks: Option<Vec<HeldLock>>,
}
call!(LockTell => ());

/// Asks which owner would be in the way of a lock.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LockTest {
    pub ino: Ino,
    pub owner: u64,
    pub span: Span,
    pub mode: LockMode,
}
call!(LockTest => Option<LockHolder>);

/// A range that another owner holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LockHolder {
    pub span: Span,
    pub mode: LockMode,
    /// 0 where it is held through another mount: process numbers mean nothing elsewhere.
    pub pid: u32,
}

/// A lock that a session holds: from before the server restarted, or by its own decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HeldLock {
    pub ino: Ino,
    pub class: LockClass,
    pub owner: u64,
    pub span: Span,
    pub mode: LockMode,
    pub pid: u32,
}
