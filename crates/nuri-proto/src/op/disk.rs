//! Calls about raw disks of a node, which the node gives to NBD servers on other machines.

use serde::{Deserialize, Serialize};

use super::call;
use crate::id::BootId;

/// Asks for the disks of a node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DiskList {}
call!(DiskList => DiskListReply);

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DiskListReply {
    pub disks: Vec<NodeDisk>,
}

/// A disk of a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeDisk {
    /// As the node's `/dev` names it.
    pub path: String,
    pub size: u64,
    /// Bytes that it reads and writes at once.
    pub block: u32,
    pub model: String,
    pub read_only: bool,
    /// What uses it.
    pub used: Option<String>,
    /// The node gives it to other machines.
    pub is_exported: bool,
}

/// Asks a node to open a disk for an NBD server on another machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DiskOpen {
    pub path: String,
    pub writable: bool,
}
call!(DiskOpen => DiskOpenReply);

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum DiskOpenReply {
    Opened(OpenedDisk),
    /// Why not, in a sentence.
    Refused(String),
}

/// A disk that is open and waits some seconds for the server that asked for it to connect.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OpenedDisk {
    /// Of the node's door for NBD servers.
    pub port: u16,
    /// What opens the door.
    pub token: u128,
    pub size: u64,
    pub block: u32,
    /// Since when the machine runs.
    pub boot: BootId,
}
