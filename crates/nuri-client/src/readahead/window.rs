//! The window of one file: the blocks that were read ahead, and the pattern of the readers.

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Instant;

use nuri_io::buf::PooledBuf;
use nuri_proto::id::ObjectId;
use nuri_proto::layout::Layout;
use parking_lot::{Condvar, Mutex};

/// Reads in a row that make a stream.
const STREAK: u32 = 2;
/// Requests from this length on may come in another order, up to so many of them; shorter ones too
/// where a stream is known, as far as so many long ones reach: several clients' programs, and
/// clients that ask for several pieces at once, are served by several threads.
const LONG: u64 = 64 << 10;
const OVERTAKING: u64 = 4;
/// Behind the block of a read so many are kept, for those that were overtaken.
const KEPT_BEHIND: u64 = 1;
/// Blocks on their way to the readers of one file.
#[derive(Default)]
pub(crate) struct Ahead {
    /// Where the next read of the stream begins, and how many came in a row.
    pub(super) next: u64,
    pub(super) streak: u32,
    /// Bytes that short reads left out so far: those that were overtaken come soon.
    pub(super) holes: u64,
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
    /// Fetches of the blocks that count, up to the first that is not there. What lies long before
    /// them is dropped.
    pub(super) fn find(&mut self, blocks: RangeInclusive<u64>, version: u64) -> Vec<Arc<Fetch>> {
        let first = *blocks.start();
        let kept = |fetch: &Fetch| fetch.block + KEPT_BEHIND >= first && fetch.version == version;
        self.blocks.retain(|fetch| kept(fetch));
        let of = |block| self.blocks.iter().find(|fetch| fetch.block == block).cloned();
        blocks.map_while(of).collect()
    }

    /// Notes a read; returns whether blocks beyond its own are worth fetching.
    pub(super) fn note(&mut self, offset: u64, len: u64) -> bool {
        // Requests of one stream may overtake each other.
        let is_known = len >= LONG || self.streak >= STREAK;
        let reach = OVERTAKING * len.max(LONG);
        if len < LONG {
            self.holes += offset.saturating_sub(self.next);
            self.holes = self.holes.saturating_sub(if offset < self.next { len } else { 0 });
        }
        let near = offset.abs_diff(self.next) <= reach && self.holes <= reach && is_known;
        let follows = offset == self.next || near;
        self.streak = if follows { self.streak.saturating_add(1) } else { 0 };
        self.next = if follows { self.next.max(offset + len) } else { offset + len };
        self.used = Some(Instant::now());
        if self.streak == 0 {
            self.holes = 0;
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

#[cfg(test)]
mod tests {
    use nuri_io::rng::Rng;

    use super::*;

    const SHORT: u64 = 16 << 10;

    /// Whether each read was taken for one of a stream, from the `from`th on.
    fn streams(reads: impl Iterator<Item = u64>, len: u64, from: usize) -> Vec<bool> {
        let mut ahead = Ahead::default();
        reads.map(|at| ahead.note(at, len)).skip(from).collect()
    }

    #[test]
    fn a_stream_of_short_reads_that_overtake_each_other_is_one() {
        let mut random = Rng::new(7);
        let mut places: Vec<u64> = (0..1000).map(|i| i * SHORT).collect();
        for turn in places[8..].chunks_mut(8) {
            (1..turn.len()).rev().for_each(|i| turn.swap(i, random.below(i as u64 + 1) as usize));
        }
        assert!(streams(places.into_iter(), SHORT, STREAK as usize).iter().all(|is| *is));
    }

    #[test]
    fn reads_with_gaps_between_them_are_none() {
        // After a stream that was one.
        let stream = (0..100).map(|i| i * SHORT);
        let gaps = (0..100).map(|i| (100 + i * 8) * SHORT);
        let taken = streams(stream.chain(gaps), SHORT, 104);
        assert!(taken.iter().all(|is| !is));
    }

    #[test]
    fn reads_here_and_there_are_none() {
        let mut random = Rng::new(7);
        let places = (0..1000).map(|_| random.below(1 << 20) * SHORT);
        assert!(streams(places, SHORT, 0).iter().all(|is| !is));
    }
}
