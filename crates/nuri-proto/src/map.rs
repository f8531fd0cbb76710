//! The map: nodes, targets, pools and groups of a space, as data. The authority owns it.

use serde::{Deserialize, Serialize};

use crate::id::{ClusterId, Epoch, GroupId, NodeId, PoolId, TargetId};
use crate::layout::Shape;

/// Where a node can be reached.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Node {
    pub id: NodeId,
    /// `HOST:PORT` that its services listen on.
    pub address: String,
    pub pid: u32,
    /// Heard from within the failure-detection time.
    pub up: bool,
}

/// One target and what it last reported.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Target {
    pub id: TargetId,
    pub node: NodeId,
    /// Path on its node.
    pub path: String,
    pub state: TargetState,
    /// Bytes that chunks can use, and that they do use.
    pub size: u64,
    pub used: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum TargetState {
    Up,
    /// Its node is not heard from, or does not serve it.
    Down,
    /// Took itself out of service after an I/O error.
    Failed,
}

/// A named set of targets.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Pool {
    pub id: PoolId,
    pub name: String,
    pub groups: Vec<GroupId>,
}

/// The ordered targets of one stripe group.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Group {
    pub id: GroupId,
    pub epoch: Epoch,
    pub shape: Shape,
    pub members: Vec<TargetId>,
}

/// The whole map.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Map {
    pub cluster: ClusterId,
    /// Counts changes of membership (not of usage figures).
    pub epoch: Epoch,
    pub nodes: Vec<Node>,
    pub targets: Vec<Target>,
    pub pools: Vec<Pool>,
    pub groups: Vec<Group>,
    /// Node that runs the metadata server.
    pub meta: Option<NodeId>,
}

impl Map {
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.iter().find(|n| n.id == id)
    }

    pub fn target(&self, id: TargetId) -> Option<&Target> {
        self.targets.iter().find(|t| t.id == id)
    }

    pub fn group(&self, id: GroupId) -> Option<&Group> {
        self.groups.iter().find(|g| g.id == id)
    }

    /// Address of the node that serves `target`.
    pub fn target_address(&self, target: TargetId) -> Option<&str> {
        Some(self.node(self.target(target)?.node)?.address.as_str())
    }

    /// The metadata server's address.
    pub fn meta_address(&self) -> Option<&str> {
        Some(self.node(self.meta?)?.address.as_str())
    }

    /// Groups of the pool, empty where it does not exist.
    pub fn pool_groups(&self, id: PoolId) -> &[GroupId] {
        self.pools.iter().find(|p| p.id == id).map_or(&[], |p| &p.groups)
    }

    /// (size, used) over all targets, bytes.
    pub fn capacity(&self) -> (u64, u64) {
        self.targets.iter().fold((0, 0), |(size, used), t| (size + t.size, used + t.used))
    }
}
