//! What resources an endpoint uses, for people and for tests.

use std::fmt;

use crate::distance::Cores;

/// An endpoint's state at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// Shared memory of the rings this endpoint made, in bytes; peers count their own.
    pub rings: usize,
    /// Messages that nobody has asked for yet, in bytes; bounded by [`crate::Config::spill`].
    pub kept: usize,
    /// Buffers of the heap that the program or a peer holds, in bytes, whole pages each.
    pub heap: usize,
    /// Peers that were met.
    pub peers: Vec<PeerInfo>,
}

impl fmt::Display for Info {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "memory: rings {}, kept {}, heap {}", self.rings, self.kept, self.heap)?;
        self.peers.iter().try_for_each(|peer| writeln!(f, "{peer}"))
    }
}

impl fmt::Display for PeerInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let links = match (self.sends, self.receives) {
            _ if self.gone => "gone",
            (true, true) => "both ways",
            (true, false) => "sends",
            _ => "receives",
        };
        write!(f, "rank {}: {links}, shared memory, cores {:?}", self.rank, self.cores)?;
        match self.cross_memory {
            None => Ok(()),
            Some(Ok(())) => write!(f, ", cross-memory copy"),
            Some(Err(errno)) => write!(f, ", no cross-memory copy: {errno}"),
        }
    }
}

/// One peer, as this endpoint knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerInfo {
    /// Its rank.
    pub rank: u32,
    /// It has a link to us.
    pub sends: bool,
    /// We have a link to it.
    pub receives: bool,
    /// It was there and is not any more.
    pub gone: bool,
    /// Where its core is, as measured by long messages to it.
    pub cores: Cores,
    /// Whether it can copy messages straight from our memory, and what forbids it; nothing while
    /// there is no link to it.
    pub cross_memory: Option<std::result::Result<(), rustix::io::Errno>>,
}
