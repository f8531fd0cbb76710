//! Calls that concern a connection itself. The call layer answers them, at every node.
//!
//! With two of these calls both ends find out whether they may read each other's memory. Each end
//! shows, in its memory, bytes that the other end just gave it. The kernel says which process the
//! other end is, so nobody is asked. The third call moves bytes that mean nothing, to measure the
//! path.

use serde::{Deserialize, Serialize};

use super::call;

/// Asks for the bytes of a proof.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct PeerMemoryAsk {}
call!(PeerMemoryAsk => PeerMemoryAsked);

/// The bytes that the asker has to show in its memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PeerMemoryAsked {
    pub proof: [u8; 16],
}

/// Where in its memory the caller shows the bytes that it was given, and the bytes that the server
/// has to show.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct PeerMemoryProof {
    pub address: u64,
    pub proof: [u8; 16],
}
call!(PeerMemoryProof => PeerMemoryProved);

/// Where the server shows its proof, until the next request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PeerMemoryProved {
    /// The server can read the caller's memory.
    pub reads: bool,
    pub address: u64,
}

/// Asks for so many zeros as payload, at most as many as a payload may have. The payload of the
/// request is thrown away.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Echo {
    pub bytes: u32,
}
call!(Echo => ());
