//! Calls to the authority.

use serde::{Deserialize, Serialize};

use super::call;
use crate::id::{BootId, Epoch, GroupId, Incarnation, NodeId, SessionId, TargetId};
use crate::layout::Shape;
use crate::map::{Map, Pace, Run, ScrubPolicy, TargetState};

/// Fetches the map.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MapGet {}
call!(MapGet => Map);

/// A node announces itself and its targets; answered with their ids. Repeating it is harmless:
/// targets are recognised by incarnation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Join {
    /// The id that the node had before, if any.
    pub node: Option<NodeId>,
    pub address: String,
    pub pid: u32,
    pub serves_meta: MetaRole,
    pub run: Run,
    /// Of this process: another one with the same number is a copy of the node's directory.
    pub instance: u64,
    /// Of its machine's kernel: another one means that disks may have lost their caches since.
    pub machine: BootId,
    pub targets: Vec<JoinTarget>,
}
call!(Join => JoinReply);

/// Whether the joining node runs the metadata server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum MetaRole {
    None,
    Owner,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct JoinTarget {
    /// The id in its superblock, if it was ever part of this space.
    pub id: Option<TargetId>,
    pub incarnation: Incarnation,
    /// Of its superblock: rises with every change, also with every opening.
    pub sequence: u64,
    /// Tells one opening from another.
    pub boot: BootId,
    /// Refused before, as an older state of itself; opening it has raised `sequence` since.
    pub is_doubted: bool,
    /// The newest map that it obeyed.
    pub map_epoch: Epoch,
    pub path: String,
    pub size: u64,
    pub used: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct JoinReply {
    pub node: NodeId,
    /// Ids in the order of the request's targets.
    pub targets: Vec<TargetId>,
    pub map: Map,
}

/// Whether the first node can connect to an address that a node wants to join with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NodeReach {
    pub address: String,
}
call!(NodeReach => bool);

/// Reports that a node lives, and how full its targets are.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Heartbeat {
    pub node: NodeId,
    /// As when it joined.
    pub instance: u64,
    pub targets: Vec<TargetReport>,
    /// Version of the admission list in force at its targets, 0 for none.
    pub admitted: u64,
    /// Targets that are being brought up to date.
    pub resyncs: Vec<Resync>,
    pub scrub: Scrub,
}
call!(Heartbeat => HeartbeatReply);

/// How far the resync of a target is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Resync {
    pub target: TargetId,
    /// Stripes to look at, and looked at.
    pub stripes: u64,
    pub done: u64,
    /// Brought to it so far.
    pub bytes: u64,
    /// Since it began.
    pub seconds: u64,
}

/// How far a node is with the scrub, or what its last scrub found.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Scrub {
    /// As in the map's [`ScrubPolicy`].
    pub number: u64,
    pub has_ended: bool,
    /// Stripes and chunks to look at, and looked at.
    pub stripes: u64,
    pub done: u64,
    /// Of them left to the next one: being written all the time, or out of reach.
    pub skipped: u64,
    /// Read so far.
    pub bytes: u64,
    /// Chunks that were not as they should be.
    pub repaired: u64,
    pub unrepaired: u64,
    /// Some of them, for people; those that could not be repaired come first.
    pub findings: Vec<String>,
}

/// Renews the service lease of the node's targets.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HeartbeatReply {
    pub map_epoch: Epoch,
    /// A list that the node does not have yet: in force before the lease is.
    pub admitted: Option<Admitted>,
}

/// Sessions whose changes targets accept: those that live, and those opened after the list was
/// made. A session that ended is fenced by not being in it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Admitted {
    /// Rises with every list, also across restarts of the metadata server.
    pub version: u64,
    /// The last session that was open when the list was made.
    pub horizon: SessionId,
    pub live: Vec<SessionId>,
}

impl Admitted {
    pub fn admits(&self, session: SessionId) -> bool {
        session > self.horizon || self.live.contains(&session)
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TargetReport {
    pub id: TargetId,
    pub state: TargetState,
    pub size: u64,
    pub used: u64,
    /// Of its superblock.
    pub sequence: u64,
    /// Why it is failed; empty otherwise.
    pub why: String,
}

/// Sets the shape of new files in directories without a layout of their own.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct SpaceSet {
    pub shape: Shape,
}
call!(SpaceSet => ());

/// Reports a mount to the authority (every heartbeat).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountReport {
    pub host: String,
    pub pid: u32,
    pub mountpoint: String,
    pub session: u64,
    /// That it remembers.
    pub inodes: u64,
    pub links: Vec<Link>,
    pub programs: Programs,
}
call!(MountReport => ());

/// The traffic between a mount and programs that bypass the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Programs {
    /// Connections now; a program has some for its threads.
    pub connections: u32,
    /// Both ways, and how many bytes were copied for them between program and mount.
    pub bytes: u64,
    pub copied: u64,
}

/// The traffic between a mount and a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    pub address: String,
    pub path: Path,
    /// Of payloads, both ways, and how many bytes were copied for them by both ends.
    pub bytes: u64,
    pub copied: u64,
}

/// How payloads reach the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u8)]
pub enum Path {
    Tcp,
    /// Within a machine, where memory cannot be read.
    Unix,
    /// Bulk is copied once, from the sender's memory.
    SingleCopy,
}

/// The whole state for `nuri status`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClusterStatus {}
call!(ClusterStatus => ClusterState);

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClusterState {
    pub map: Map,
    pub mounts: Vec<MountReport>,
    pub resyncs: Vec<Resync>,
    /// By node.
    pub scrubs: Vec<(NodeId, Scrub)>,
    /// Why failed targets are failed, as their nodes say.
    pub reasons: Vec<(TargetId, String)>,
    /// Nodes that have the whole metadata now.
    pub metadata: Vec<NodeId>,
    /// (size, used) in bytes of files of the space's shape.
    pub usable: (u64, u64),
}

/// Reports that a `Syncing` member holds everything now, as seen while its group was at `epoch`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MemberSynced {
    pub group: GroupId,
    pub target: TargetId,
    pub epoch: Epoch,
}
call!(MemberSynced => ());

/// Replaces a target by another one in all groups.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TargetReplace {
    pub old: TargetId,
    pub new: TargetId,
}
call!(TargetReplace => ());

/// Makes new files avoid the target from now on, or use it again.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct TargetRetire {
    pub target: TargetId,
    pub retiring: bool,
}
call!(TargetRetire => ());

/// Removes from the map a target that is gone for ever.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct TargetRemove {
    pub target: TargetId,
}
call!(TargetRemove => ());

/// Reports that a target whose machine was started anew was compared with the other members of some
/// of its groups, as these were in the named epochs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TargetProved {
    pub target: TargetId,
    /// The opening that was looked at.
    pub boot: BootId,
    /// It lacks nothing in these, and may answer for them.
    pub proven: Vec<(GroupId, Epoch)>,
    pub behind: Vec<(GroupId, Epoch)>,
}
call!(TargetProved => ());

/// Makes the group, which is at `epoch`, take the next one. Then writes that nobody finished in
/// this one can be settled.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct GroupRenew {
    pub group: GroupId,
    pub epoch: Epoch,
}
call!(GroupRenew => ());

/// Moves a place of the group to a target that has a copy of the data. The new target may have
/// missed writes from the epoch `since` on.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct MemberMove {
    pub group: GroupId,
    pub from: TargetId,
    pub to: TargetId,
    pub since: Epoch,
}
call!(MemberMove => ());

/// Sets how fast targets are brought up to date, from now on.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ResyncSet {
    pub pace: Pace,
}
call!(ResyncSet => ());

/// Begins a scrub, ends it, or sets when the next ones begin. Answered with the policy that holds
/// then.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ScrubSet {
    pub change: ScrubChange,
}
call!(ScrubSet => ScrubPolicy);

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ScrubChange {
    /// Now, on all nodes, at this many bytes per second; one that runs begins anew.
    Start {
        rate: u64,
    },
    Stop,
    /// `None` for never.
    EveryDays(Option<u16>),
}
