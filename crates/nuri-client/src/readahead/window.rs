//! What was read ahead of one file's readers, and the pattern of their reads.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use nuri_io::buf::PooledBuf;
use nuri_proto::id::ObjectId;
use nuri_proto::layout::Layout;
use parking_lot::{Condvar, Mutex};

/// Reads in a row that make a stream.
const STREAK: u32 = 2;
/// Requests from this length on may come in another order, up to so many of them.
const LONG: u64 = 64 << 10;
const OVERTAKING: u64 = 4;
/// Blocks on their way to the readers of one file.
#[derive(Default)]
pub(crate) struct Ahead {
    /// Where the next read of the stream begins, and how many came in a row.
    pub(super) next: u64,
    pub(super) streak: u32,
    pub(super) blocks: VecDeque<Arc<Fetch>>,
    pub(super) used: Option<Instant>,
}

/// One block.
pub(crate) struct Fetch {
    pub(super) block: u64,
    /// The file's when it was asked for.
    pub(super) version: u64,
    pub(super) object: ObjectId,
    pub(super) layout: Arc<Layout>,
    pub(super) len: usize,
    pub(super) state: Mutex<FetchState>,
    pub(super) done: Condvar,
    pub(super) _alive: Arc<()>,
}

pub(super) enum FetchState {
    Pending,
    Ready(PooledBuf),
    Failed,
}

impl Ahead {
    /// The block's fetch, if there is one that counts. What lies before it is dropped.
    pub(super) fn find(&mut self, block: u64, version: u64) -> Option<Arc<Fetch>> {
        self.blocks.retain(|fetch| fetch.block >= block && fetch.version == version);
        self.blocks.front().filter(|fetch| fetch.block == block).cloned()
    }

    /// Notes a read; says whether blocks beyond its own are worth having.
    pub(super) fn note(&mut self, offset: u64, len: u64) -> bool {
        // Requests of one stream may overtake each other.
        let near = offset.abs_diff(self.next) <= OVERTAKING * len && len >= LONG;
        let follows = offset == self.next || near;
        self.streak = if follows { self.streak.saturating_add(1) } else { 0 };
        self.next = if follows { self.next.max(offset + len) } else { offset + len };
        self.used = Some(Instant::now());
        if self.streak == 0 {
            self.blocks.clear();
        }
        self.streak >= STREAK
    }

    pub(super) fn has(&self, block: u64) -> bool {
        self.blocks.iter().any(|fetch| fetch.block == block)
    }
}

impl Fetch {
    pub(super) fn end(&self, outcome: FetchState) {
        *self.state.lock() = outcome;
        self.done.notify_all();
    }

    /// Waits for the block and copies from `within` it; false where it could not be had.
    pub(super) fn copy(&self, within: usize, out: &mut [u8]) -> bool {
        let mut state = self.state.lock();
        while matches!(*state, FetchState::Pending) {
            self.done.wait(&mut state);
        }
        match &*state {
            FetchState::Ready(buf) if within + out.len() <= buf.len() => {
                out.copy_from_slice(&buf[within..within + out.len()]);
                true
            }
            _ => false,
        }
    }
}
