//! Calls to a storage target. Payloads: the bytes to write, the bytes read.

use serde::{Deserialize, Serialize};

use super::call;
use crate::id::{BootId, ChunkKey, Epoch, GroupId, ObjectId, TargetId};

/// What a data request may do, and on whose behalf. The MAC is all-zero until TLS comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Capability {
    pub session_epoch: u64,
    pub group_epoch: Epoch,
    pub layout_generation: u32,
    pub truncate_version: u32,
    pub lease: u64,
    pub mac: [u8; 16],
}

/// How durable a write is when it is acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Durability {
    /// In the target's memory: lost if the target restarts before a flush.
    Memory,
    /// On stable storage.
    Stable,
}

/// Which space a write may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Room {
    /// That which its session was promised ([`DataRoom`]).
    Promised,
    /// That which nobody was promised.
    Unpromised,
}

/// Writes the payload at `offset` of the chunk.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DataWrite {
    pub target: TargetId,
    pub key: ChunkKey,
    pub offset: u32,
    pub durability: Durability,
    pub room: Room,
    pub capability: Capability,
}
call!(DataWrite => WriteReply);

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WriteReply {
    /// Who holds the bytes in memory until the next flush.
    pub boot: BootId,
    /// Bytes newly allocated by this write.
    pub allocated: u64,
}

/// Reads `len` bytes at `offset` of the chunk as payload; what was never written reads as zeros.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DataRead {
    pub target: TargetId,
    pub key: ChunkKey,
    pub offset: u32,
    pub len: u32,
    pub capability: Capability,
}
call!(DataRead => ());

/// Makes everything that was acknowledged before durable.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DataFlush {
    pub target: TargetId,
}
call!(DataFlush => FlushReply);

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FlushReply {
    pub boot: BootId,
}

/// Makes a range of the chunk a hole.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DataPunch {
    pub target: TargetId,
    pub key: ChunkKey,
    pub offset: u32,
    pub len: u32,
    pub capability: Capability,
}
call!(DataPunch => PunchReply);

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PunchReply {
    pub boot: BootId,
    /// Bytes given back.
    pub freed: u64,
}

/// Deletes all chunks of the object with `stripe >= from` on this target, durably.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DataTruncate {
    pub target: TargetId,
    pub object: ObjectId,
    pub from: u32,
    pub capability: Capability,
    /// The redundant group that this is for, and its epoch as the caller knows it.
    pub within: Option<(GroupId, Epoch)>,
}
call!(DataTruncate => PunchReply);

/// Deletes whole objects, durably. Deleting what is not there is success.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DataDelete {
    pub target: TargetId,
    pub objects: Vec<ObjectId>,
}
call!(DataDelete => ());

/// Asks for a promise of space to the calling session, in place of its promise before. The call
/// names the bytes that the session needs for what it accepted, and as many as it would like.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DataRoom {
    pub target: TargetId,
    pub needed: u64,
    pub wanted: u64,
}
call!(DataRoom => RoomReply);

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RoomReply {
    /// Another one than before: what the target held in memory is lost, and takes room again.
    pub boot: BootId,
    /// Bytes that are the session's now; perhaps fewer than it must have.
    pub promised: u64,
    /// Bytes that the target has left at all, those promised to others among them.
    pub left: u64,
}

/// Frees the whole blocks of a range that hold nothing but zeros. No byte changes, so the call may
/// come late or twice.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DataTrim {
    pub target: TargetId,
    pub key: ChunkKey,
    pub offset: u32,
    pub len: u32,
}
call!(DataTrim => PunchReply);

/// Asks which ranges of the chunk hold data, as (offset, length), ascending. Those that a staged
/// write adds are among them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DataExtents {
    pub target: TargetId,
    pub key: ChunkKey,
}
call!(DataExtents => Vec<(u32, u32)>);
