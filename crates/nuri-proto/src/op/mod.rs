//! The calls. A request names its reply type; bulk bytes travel beside the arguments as payload.

use serde::{Serialize, de::DeserializeOwned};

pub mod cluster;
pub mod copy;
pub mod data;
pub mod disk;
pub mod lock;
pub mod log;
pub mod member;
pub mod meta;
pub mod near;
pub mod once;
pub mod part;

/// A typed call.
pub trait Call: Serialize + DeserializeOwned {
    const OP: Op;
    type Reply: Serialize + DeserializeOwned;
}

macro_rules! ops {
    ($($service:ident { $($name:ident = $value:expr,)* })*) => {
        /// Numbers of the calls on the wire. A number is never reused.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u16)]
        pub enum Op { $($($name = $value,)*)* }

        impl Op {
            pub fn from_wire(value: u16) -> Option<Op> {
                match value { $($($value => Some(Op::$name),)*)* _ => None }
            }

            /// The service of a node that answers the call.
            pub fn service(self) -> ServiceName {
                match self { $($(Op::$name)|* => ServiceName::$service,)* }
            }
        }
    };
}

/// The services of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ServiceName {
    /// The first node's: who is in the space, and the map.
    Authority,
    /// The first node's: whether it reaches another node. It takes seconds.
    Reach,
    /// Every node's: copies of the metadata.
    MetadataCopy,
    /// Every node's: the chunks on its targets.
    Targets,
    /// The first node's: files and names.
    Metadata,
    /// Every node's: its raw disks.
    Disks,
    /// The connection itself.
    Connection,
}

ops! {
    Authority {
        MapGet = 1, Join = 2, Heartbeat = 3, ClusterStatus = 4, MountReport = 5,
        MemberSynced = 6, TargetReplace = 7, ResyncSet = 8, ScrubSet = 9,
        TargetRetire = 10, MemberMove = 11, TargetRemove = 12, TargetProved = 13, GroupRenew = 14,
        SpaceSet = 21,
    }
    Reach {
        NodeReach = 15,
    }
    MetadataCopy {
        CopyLatest = 16, CopyBegin = 17, CopyWrite = 18, CopyMap = 19, CopyWhole = 20,
    }
    Targets {
        DataWrite = 32, DataRead = 33, DataFlush = 34, DataPunch = 35, DataDelete = 36,
        DataExtents = 37, DataTruncate = 38, DataRoom = 39, DataTrim = 40,
        MemberStage = 48, MemberCommit = 49, MemberAbort = 50, MemberHeld = 51, MemberRead = 52,
        MemberInstall = 53, MemberChanged = 54, MemberForget = 55,
    }
    Metadata {
        SessionOpen = 64, Events = 65, RecallDone = 66, Reclaim = 67, SessionClose = 68,
        Downgrade = 69,
        Lookup = 80, GetAttr = 81, SetAttr = 82, Make = 83, Link = 84, Unlink = 85, Rename = 86,
        ReadDir = 87, Acquire = 88, Release = 89, Publish = 90, XattrGet = 91, XattrSet = 92,
        XattrList = 93, XattrRemove = 94, LayoutSet = 95, StatFs = 96, OrphanRelease = 97,
        TruncateDone = 98, LayoutGet = 99, Extend = 100, LockSet = 101, LockTest = 102,
        LockCancel = 103, MakeUnnamed = 110, Accessed = 111,
        Reserve = 112, Apply = 113, AcquirePart = 114, TakeDirectory = 115, Children = 116,
        GroupUse = 117, SwapData = 118, XattrAll = 119, LockTell = 120,
        ChangeOnce = 121, CallsDone = 122,
    }
    Disks {
        DiskList = 124, DiskOpen = 125,
    }
    Connection {
        PeerMemoryAsk = 128, PeerMemoryProof = 129, Echo = 130,
    }
}

/// The role of one side of a connection, given by the secret that it proves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// A node or an operator: all calls.
    Node,
    /// A mount: files, under the leases of its session.
    Mount,
}

impl Op {
    /// Whether a peer with this role may make the call. Calls that join, move, copy or delete for
    /// the whole space are not for mounts.
    pub fn is_for(self, role: Role) -> bool {
        role == Role::Node || self.is_for_mounts()
    }

    fn is_for_mounts(self) -> bool {
        match self {
            Op::MapGet | Op::ClusterStatus | Op::MountReport => true,
            Op::DataDelete | Op::MemberChanged | Op::GroupUse => false,
            other => match other.service() {
                ServiceName::Authority
                | ServiceName::Reach
                | ServiceName::MetadataCopy
                | ServiceName::Disks => false,
                ServiceName::Targets | ServiceName::Metadata | ServiceName::Connection => true,
            },
        }
    }
}

/// Ties a call to its number and reply.
macro_rules! call {
    ($name:ident => $reply:ty) => {
        impl crate::op::Call for $name {
            const OP: crate::op::Op = crate::op::Op::$name;
            type Reply = $reply;
        }
    };
}
pub(crate) use call;

#[cfg(test)]
mod tests {
    use super::{Op, Role};

    #[test]
    fn mounts_work_on_files_and_nothing_else() {
        let all = || (0..=u16::MAX).filter_map(Op::from_wire);
        assert!(all().all(|op| op.is_for(Role::Node)));
        // A mount that brings an interrupted write to its end forgets what was cut off.
        let for_mounts = [Op::MapGet, Op::DataWrite, Op::MemberForget, Op::Rename, Op::Echo];
        assert!(for_mounts.iter().all(|op| op.is_for(Role::Mount)));
        let others = [Op::Join, Op::Heartbeat, Op::MemberSynced, Op::TargetRemove, Op::CopyBegin];
        assert!(others.iter().all(|op| !op.is_for(Role::Mount)));
        assert!([Op::SpaceSet, Op::DataDelete].iter().all(|op| !op.is_for(Role::Mount)));
    }

    #[test]
    fn numbers_round_trip() {
        assert_eq!(Op::from_wire(Op::Rename as u16), Some(Op::Rename));
        assert_eq!(Op::from_wire(9999), None);
    }
}
