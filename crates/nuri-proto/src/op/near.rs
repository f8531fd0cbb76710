//! Calls that concern a connection itself. The call layer answers them, at every node.
//!
//! By two of them both ends find out that they may read each other's memory: each shows in its
//! memory what the other just gave it. Which process that is, the kernel says: nobody is asked. The
//! third moves bytes that mean nothing, to measure.

use serde::{Deserialize, Serialize};

use super::call;

/// Asks for a proof's bytes.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct PeerMemoryAsk {}
call!(PeerMemoryAsk => NearAsked);

/// To be shown in the asker's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NearAsked {
    pub proof: [u8; 16],
}

/// Where the caller shows what it was given, and what is to be shown to it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct PeerMemoryProof {
    pub address: u64,
    pub proof: [u8; 16],
}
call!(PeerMemoryProof => NearProved);

/// Until the next request the proof is shown there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NearProved {
    /// The server can read the caller's memory.
    pub reads: bool,
    pub address: u64,
}

/// Asks for so many zeros as payload, at most as a payload may have; what the request brings is
/// thrown away.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Echo {
    pub bytes: u32,
}
call!(Echo => ());
