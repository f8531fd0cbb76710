//! Space on the device under the store: what must never lack space gets it beforehand.
//!
//! A store in a file is sparse, and the file system under it may fill up at any time. Then a large
//! write is refused. But what was accepted into the log must find its place, and a checkpoint must
//! find space for the index. Otherwise the log could never be cut again. So some free blocks are
//! kept as a reserve that was written once and has its space. The reserve is used only when other
//! free blocks turn out to have no space. Log, checksum table and superblocks have theirs since the
//! store was made.
//!
//! ```text
//! 1 take free blocks out of the map        crash: free
//! 2 write zeros there; now they are the reserve
//!                                          crash: free and written, found again at opening
//! 3 append the record that counts on them, sync
//!                                          crash: zeros and record are durable, or none counts
//! ```
//!
//! The other way round, free blocks that were written give their space back, so that deleting in
//! the store frees space on the file system. Blocks come into the free map only when the record
//! that freed them, or the superblock that replaced their image, is durable:
//!
//! ```text
//! 1 take a long run out of the map     crash: free and written, found again at opening
//! 2 punch it                           crash: a hole or not; nothing reads free blocks
//! 3 put it back, as never written
//! ```
//!
//! Between 1 and 3 no chunk can own the run. A read that was planned before the run was freed finds
//! a checksum that fails. It is planned anew, as after any other reuse.
//!
//! A file system that copies what is overwritten can promise nothing. If it is full, the store
//! stops.

use nuri_io::buf::AlignedBuf;
use nuri_io::disk::Disk;

use super::alloc::{FreeMap, MAX_RUN, Run};
use super::error::{StoreError, is_full};
use super::state::{State, TrimSearch};
use super::superblock::Regions;
use super::{BLOCK, ChunkStore};

/// Least blocks that the reserve grows by where there are as many.
const STEP: u64 = MAX_RUN as u64;
/// Shortest run whose room is given back, blocks: below, a punch costs more than it gives.
const TRIM: u32 = 64;
/// Bytes given back for a large write that found no room, so that it can be tried again.
const TRIM_AT_ONCE: u64 = 64 << 20;

/// Free blocks that have their room on the device; the map counts them as used.
#[derive(Default)]
pub struct Reserve {
    runs: Vec<Run>,
    blocks: u64,
}

impl Reserve {
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    pub fn push(&mut self, run: Run) {
        self.blocks += u64::from(run.len);
        self.runs.push(run);
    }

    /// So many blocks, or none at all.
    pub fn take(&mut self, count: u64) -> Option<Vec<Run>> {
        if count > self.blocks {
            return None;
        }
        self.blocks -= count;
        let (mut taken, mut left) = (Vec::new(), count);
        while left > 0 {
            let run = self.runs.pop()?;
            let len = u64::from(run.len).min(left) as u32;
            left -= u64::from(len);
            taken.push(Run { start: run.start, len });
            if len < run.len {
                self.runs.push(Run { start: run.start + u64::from(len), len: run.len - len });
            }
        }
        Some(taken)
    }
}

/// Finds out which free blocks were written.
pub fn find_written(
    disk: &impl Disk,
    regions: &Regions,
    free: &mut FreeMap,
) -> std::io::Result<()> {
    let mut at = regions.data_at;
    while disk.is_sparse()
        && at < regions.end()
        && let Some(range) = disk.next_written(at)?
    {
        at = range.end.max(at + 1);
        let end = range.end.min(regions.end()).saturating_sub(regions.data_at) / BLOCK as u64;
        let mut start = range.start.saturating_sub(regions.data_at).div_ceil(BLOCK as u64);
        while start < end {
            let len = (end - start).min(1 << 30) as u32;
            free.set_written(Run { start, len });
            start += u64::from(len);
        }
    }
    Ok(())
}

impl<D: Disk> ChunkStore<D> {
    /// Whether blocks that a write counts on must be given room first. `small`: so many blocks of
    /// it will be placed later.
    pub(super) fn lacks_room(&self, state: &State, small: u64) -> bool {
        state.lacking(small) > 0 && self.disk.is_sparse()
    }

    /// Gives room to what is promised and `more` blocks.
    ///
    /// # Errors
    /// No space where the file system under the store is full.
    pub(super) fn make_room(&self, more: u64) -> Result<(), StoreError> {
        let _one_at_a_time = self.moving.lock();
        loop {
            let mut state = self.state.lock();
            state.check()?;
            state.refill(more);
            let lacking = state.lacking(more);
            if lacking == 0 {
                return Ok(());
            }
            let runs = state.free.take_last(lacking.max(STEP));
            let count: u64 = runs.iter().map(|run| u64::from(run.len)).sum();
            state.moving += count;
            drop(state);
            let grown = self.write_zeros(&runs);
            let mut state = self.state.lock();
            state.moving -= count;
            match grown {
                // What a running checkpoint holds on to comes back when it ends.
                Ok(()) if count > 0 => {}
                Ok(()) | Err(StoreError::NoSpace) if state.landing > 0 => {
                    drop(state);
                    drop(self.checkpointing.lock());
                }
                other => return other,
            }
        }
    }

    /// Gives room of free blocks back to the file system under the store, at most about so many
    /// bytes, and none that writers seem to need again. Returns how many. To be called again and
    /// again by a thread that has time.
    pub fn trim(&self, at_most: u64) -> u64 {
        let keep = std::mem::take(&mut self.state.lock().taken);
        self.trim_runs(TRIM, keep, at_most)
    }

    /// Before a write is refused for want of room: whatever can be given back is, however short.
    pub(super) fn trim_now(&self) -> u64 {
        // What is too short otherwise was passed over.
        self.state.lock().look_again();
        self.trim_runs(1, 0, TRIM_AT_ONCE)
    }

    /// Gives back runs of which some found no room: what was written of them is punched, so that
    /// failing costs none.
    pub(super) fn abandon(&self, runs: &[Run]) {
        for run in runs {
            let bytes = u64::from(run.len) * BLOCK as u64;
            let _ = self.disk.punch(self.regions.block_at(run.start), bytes);
        }
        let mut state = self.state.lock();
        runs.iter().for_each(|run| state.free.give_blank(*run));
    }

    fn trim_runs(&self, least: u32, keep: u64, at_most: u64) -> u64 {
        let mut given = 0;
        while given < at_most && self.disk.is_sparse() {
            let _one_at_a_time = self.moving.lock();
            let mut state = self.state.lock();
            if state.failed.is_some() {
                break;
            }
            let run = match state.take_for_trim(least, keep) {
                Ok(run) => run,
                Err(TrimSearch::Goes) => continue,
                Err(TrimSearch::Over) => break,
            };
            drop(state);
            let bytes = u64::from(run.len) * BLOCK as u64;
            // A failure costs room and nothing else.
            let punched = self.disk.punch(self.regions.block_at(run.start), bytes);
            given += punched.map_or(0, |()| bytes);
            self.state.lock().trimmed(run);
        }
        given
    }

    /// Writes the runs one by one; each is in the reserve or in the free map afterwards.
    fn write_zeros(&self, runs: &[Run]) -> Result<(), StoreError> {
        let zeros = AlignedBuf::zeroed(MAX_RUN as usize * BLOCK);
        let mut outcome = Ok(());
        for run in runs {
            if outcome.is_ok() {
                let zeros = &zeros[..run.len as usize * BLOCK];
                outcome = self.disk.write_at(self.regions.block_at(run.start), zeros);
            }
            let mut state = self.state.lock();
            match outcome {
                Ok(()) => state.reserve.push(*run),
                Err(_) => state.free.give_blank(*run),
            }
        }
        outcome.map_err(|e| self.data_error(&e))
    }

    /// A write to a new place failed: no space where the file system under the store is full,
    /// anything else takes the store out of service.
    pub(super) fn data_error(&self, error: &std::io::Error) -> StoreError {
        if is_full(error) {
            return StoreError::NoSpace;
        }
        self.state.lock().fail("data write", error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserve_gives_exactly_what_it_has() {
        let mut reserve = Reserve::default();
        reserve.push(Run { start: 10, len: 5 });
        reserve.push(Run { start: 100, len: 2 });
        assert!(reserve.take(8).is_none());
        let taken = reserve.take(4).unwrap();
        assert_eq!(taken, [Run { start: 100, len: 2 }, Run { start: 10, len: 2 }]);
        assert_eq!(reserve.take(3).unwrap(), [Run { start: 12, len: 3 }]);
        assert_eq!((reserve.blocks(), reserve.take(0)), (0, Some(vec![])));
    }
}
