//! The options of an endpoint: the session, its bounds, and its timeouts.

use std::path::PathBuf;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::region::PAGE;

/// Most ranks of a session.
pub const MAX_RANKS: u32 = 4096;
/// Longest name of a session, in bytes.
pub const MAX_NAME: usize = 40;

const RECORDS: usize = 256 << 10;
const BULK: usize = 4 << 20;
const HEAP: usize = 64 << 20;
const SPILL: usize = 64 << 20;

/// When a message may be copied straight from the sender's memory by the receiver.
///
/// It leaves the sender's core idle and needs no memory for a ring, and it is slower: between two
/// cores by the copy that the sender does not share, on one core because the kernel looks up each
/// page anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrossMemory {
    /// Never.
    Never,
    /// From this many bytes on, if the kernel allows it; messages up to 1 KiB never.
    From(usize),
}

/// What an endpoint is opened with. All ranks of a session use the same name and size; the rest may
/// differ.
#[derive(Clone, Debug)]
pub struct Config {
    pub(crate) name: String,
    pub(crate) rank: u32,
    pub(crate) size: u32,
    pub(crate) dir: Option<PathBuf>,
    pub(crate) records: usize,
    pub(crate) bulk: usize,
    pub(crate) heap: usize,
    pub(crate) spill: usize,
    pub(crate) connect: Duration,
    pub(crate) cross_memory: CrossMemory,
}

impl Config {
    /// Rank `rank` of `size` in the session `name`.
    pub fn new(name: &str, rank: u32, size: u32) -> Self {
        Self {
            name: name.to_owned(),
            rank,
            size,
            dir: None,
            records: RECORDS,
            bulk: BULK,
            heap: HEAP,
            spill: SPILL,
            connect: Duration::from_secs(10),
            cross_memory: CrossMemory::Never,
        }
    }

    /// Directory that holds sessions, mode 0700. Without it: `nuri-ipc` in `$XDG_RUNTIME_DIR`,
    /// else in `/run/user/UID`, else `/tmp/nuri-ipc-UID`.
    pub fn dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.dir = Some(dir.into());
        self
    }

    /// Bytes of the ring of short messages to each peer: a power of two, 16 KiB to 16 MiB.
    pub fn records(mut self, bytes: usize) -> Self {
        self.records = bytes;
        self
    }

    /// Bytes of the ring of long messages to each peer: a power of two, 64 KiB to 1 GiB. Its
    /// memory is taken when the first long message is sent.
    pub fn bulk(mut self, bytes: usize) -> Self {
        self.bulk = bytes;
        self
    }

    /// Most bytes of buffers lent to peers, whole pages. Memory is taken as it is written.
    pub fn heap(mut self, bytes: usize) -> Self {
        self.heap = bytes;
        self
    }

    /// Most bytes of messages kept that nobody has asked for yet. Beyond it they stay in their
    /// ring, and their senders wait.
    pub fn spill(mut self, bytes: usize) -> Self {
        self.spill = bytes;
        self
    }

    /// How long a send waits for a peer that has not opened its endpoint yet.
    pub fn connect(mut self, patience: Duration) -> Self {
        self.connect = patience;
        self
    }

    /// When messages to others are copied from memory to memory by the kernel; never by itself.
    pub fn cross_memory(mut self, when: CrossMemory) -> Self {
        self.cross_memory = when;
        self
    }

    pub(crate) fn check(&self) -> Result<()> {
        let fine = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        let length = (1..=MAX_NAME).contains(&self.name.len());
        if !length || !self.name.chars().all(fine) || self.name.starts_with('.') {
            return Err(Error::BadName(self.name.clone()));
        }
        if self.size == 0 || self.size > MAX_RANKS {
            return Err(Error::OutOfRange("a session has 1 to 4096 ranks"));
        }
        if self.rank >= self.size {
            return Err(Error::WrongRank { rank: self.rank, size: self.size });
        }
        sizes_fit(self.records, self.bulk, self.heap)
    }
}

/// Checks sizes of our own and those a peer names.
pub(crate) fn sizes_fit(records: usize, bulk: usize, heap: usize) -> Result<()> {
    if !records.is_power_of_two() || !(16 << 10..=16 << 20).contains(&records) {
        return Err(Error::OutOfRange("records: a power of two, 16 KiB to 16 MiB"));
    }
    if !bulk.is_power_of_two() || !(64 << 10..=1 << 30).contains(&bulk) {
        return Err(Error::OutOfRange("bulk: a power of two, 64 KiB to 1 GiB"));
    }
    if heap == 0 || !heap.is_multiple_of(PAGE) || heap > 1 << 40 {
        return Err(Error::OutOfRange("heap: whole pages, up to 1 TiB"));
    }
    Ok(())
}
