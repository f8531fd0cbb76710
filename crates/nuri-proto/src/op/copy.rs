//! Calls that keep a copy of the metadata on another node.
//!
//! The first node begins a copy under a new generation, and sends what there is and what changes.
//! Then it says that all of it was sent. From then on the copy is whole, and what is durable at the
//! first node is durable in the copy.

use serde::{Deserialize, Serialize};

use super::call;
use super::data::Durability;
use crate::id::{ClusterId, NodeId};
use crate::map::Map;

/// Asks for the highest generation of a copy on this node, whole or not; 0 for none.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CopyLatest {}
call!(CopyLatest => u64);

/// Begins a copy. A whole copy of an earlier generation stays until the new one is whole.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CopyBegin {
    pub origin: Origin,
}
call!(CopyBegin => ());

/// The space whose metadata a copy holds.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Origin {
    pub cluster: ClusterId,
    /// Rises each time that a copy is begun.
    pub generation: u64,
    /// The node that runs the metadata server, and its address.
    pub node: NodeId,
    pub address: String,
}

/// Sends changes of one file, in order; the bytes of all writes are the payload. Without changes,
/// the call asks whether the copy of this generation is still there.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CopyWrite {
    pub generation: u64,
    pub file: CopyFile,
    pub changes: Vec<Change>,
    /// Stable: answered once everything sent so far is durable.
    pub durability: Durability,
}
call!(CopyWrite => ());

/// A file of the metadata store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum CopyFile {
    Log,
    Tables,
}

/// One change of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Change {
    Write {
        at: u64,
        len: u32,
    },
    SetLen(u64),
    /// Writes zeros, which are not in the payload; in one call at most as many as a payload may
    /// have bytes.
    Zero {
        at: u64,
        len: u32,
    },
}

/// Sends the authority's map, which is durable before the answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CopyMap {
    pub generation: u64,
    pub map: Map,
}
call!(CopyMap => ());

/// Says that everything was sent: the copy is marked whole, durably.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CopyWhole {
    pub generation: u64,
}
call!(CopyWhole => ());
