//! Calls to a target as the member of a redundant group. Rules: `nuri-stripe`.

use serde::{Deserialize, Serialize};

use super::call;
use super::data::Room;
use crate::id::{ChunkKey, Epoch, GroupId, TargetId};
use crate::stripe::{Change, Covers, Held, Stage, StageReply, Version, WriteId};

/// Stages a write: the member holds the payload durably beside the base.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MemberStage {
    pub target: TargetId,
    pub key: ChunkKey,
    /// The group's, as the writer knows it.
    pub epoch: Epoch,
    pub stage: Stage,
    pub change: Change,
    pub room: Room,
}
call!(MemberStage => StageReply);

/// Says that these staged writes are decided: they become the base. Durable with the next flush.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MemberCommit {
    pub target: TargetId,
    pub decided: Vec<(ChunkKey, Version)>,
}
call!(MemberCommit => ());

/// Makes the member promise, durably, that it stages nothing of the stripe up to this version any
/// more. Answered with what the member holds then: a committed version stays.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MemberAbort {
    pub target: TargetId,
    pub key: ChunkKey,
    pub epoch: Epoch,
    pub group: GroupId,
    pub version: Version,
    /// What is staged up to it is dropped too; else it stays.
    pub drops: bool,
}
call!(MemberAbort => Held);

/// Asks what the member holds of the stripe.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MemberHeld {
    pub target: TargetId,
    pub key: ChunkKey,
    pub group: GroupId,
    pub epoch: Epoch,
    /// Also where it may have lost what it held: who asks knows that what it lacks is no evidence.
    pub in_doubt: bool,
}
call!(MemberHeld => Held);

/// Reads the committed bytes as payload. A staged version up to `decided` is committed first.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MemberRead {
    pub target: TargetId,
    pub key: ChunkKey,
    pub group: GroupId,
    pub offset: u32,
    pub len: u32,
    pub decided: Version,
    pub purpose: Purpose,
}
call!(MemberRead => MemberReadReply);

/// The purpose of a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Purpose {
    /// A program: not from a member that may have missed writes, not beside an undecided one.
    Use,
    /// A writer or repairer that compares the versions itself: the base, whatever is staged.
    Base,
    /// Who computes what others are to hold once this write is committed: the base as it will be
    /// then. Where the write is not staged, this is the base as it is.
    After { version: Version, id: WriteId },
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MemberReadReply {
    /// What the bytes stand for.
    pub covers: Covers,
}

/// Installs a part of a chunk's whole content (at most a frame), computed from the other members.
/// With the last part, the content becomes the base, if its versions are newer than the member's.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MemberInstall {
    pub target: TargetId,
    pub key: ChunkKey,
    pub epoch: Epoch,
    pub install: Install,
}
call!(MemberInstall => Held);

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Install {
    pub group: GroupId,
    /// Ties the parts together.
    pub id: WriteId,
    pub covers: Covers,
    pub reason: Reason,
    pub offset: u32,
    pub last: bool,
}

/// Why content is installed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Reason {
    /// The member missed writes: only what is newer.
    Behind,
    /// The member lacks this write, which is not decided: only what is newer, and not once the
    /// member promised to have no part in the write.
    Undecided { version: Version },
    /// What it holds is damaged: also the same versions.
    Damaged,
    /// A look at all members found it damaged or behind: also the same versions, but only while
    /// this is the last write that it knows.
    Found { last: WriteId },
}

/// Asks for stripes of the group that changed in epoch `since` or later, ascending from after
/// `after`. Each comes with the versions that the member's bytes stand for, those of a staged write
/// included.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MemberChanged {
    pub target: TargetId,
    pub group: GroupId,
    /// No write of an earlier one comes after the answer.
    pub epoch: Epoch,
    pub since: Epoch,
    pub after: Option<ChunkKey>,
    pub limit: u32,
}
call!(MemberChanged => Vec<(ChunkKey, Covers)>);

/// Makes the member drop its chunk, durably, because the chunk is from before a truncation.
/// `Status::RETRY` where the chunk is not what the caller saw, or a write of the present epoch is
/// staged.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MemberForget {
    pub target: TargetId,
    pub key: ChunkKey,
    pub group: GroupId,
    pub epoch: Epoch,
    /// What the caller saw there.
    pub covers: Covers,
    /// Another member keeps a promise that nothing of it comes back: also a write that is staged on
    /// it, in whatever epoch, ends.
    pub was_cut_off: bool,
}
call!(MemberForget => ());
