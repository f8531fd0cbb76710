//! Checkpoints: small writes move to their places, the index is written, the log is cut.
//!
//! ```text
//! 1 seal the log's batch, note the place L after it, list the overlay, find places for blocks
//!   that have none                            crash: nothing changed
//! 2 write and sync the sealed batch           crash: every listed block is durable in the log
//! 3 write listed blocks to their places       crash: replay from the old tail shadows them
//! 4 memory: they are in place; take the index image and the changed checksum pages as of now (P)
//! 5 flush the log up to P, write pages, write the image into free blocks, sync
//!                                             crash: old superblock, image and tail: as in 3
//! 6 superblock A, sync; superblock B, sync    crash: image P, replay from L; what lies between
//!                                             L and P is in the image, doing it again is once
//! 7 memory: cut the log to L, free the old image
//! ```
//!
//! The device may have no space for new places in 3 or for the image in 5. Then they are taken from
//! the reserve, which has its space (`room.rs`).
//!
//! Writing in place is safe in 3, because the log holds the block until 6. The lock is held in 1, 4
//! and 7 only. Between 1 and 4 no freed block gets a new owner: otherwise 3 could overwrite it.

use std::io;
use std::sync::Arc;

use nuri_io::buf::AlignedBuf;
use nuri_io::disk::{Disk, DiskOp};
use nuri_proto::id::ChunkKey;
use parking_lot::MutexGuard;

use super::alloc::{MAX_RUN, Run};
use super::contents::Small;
use super::error::{StoreError, is_full};
use super::image;
use super::index::Extent;
use super::journal::Batch;
use super::state::State;
use super::sums::{bind, write_pages};
use super::superblock::{CheckpointAt, LogStart, Superblock};
use super::{BLOCK, ChunkStore};

/// Most bytes of small writes copied for one batch of transfers.
const APPLY_BYTES: usize = 4 << 20;

/// One overlay block on its way to the disk.
struct Move {
    key: ChunkKey,
    block: u32,
    small: Arc<Small>,
    to: u64,
    birth: u64,
    /// The place is new, not the one that the index names.
    fresh: bool,
}

impl Move {
    fn run(&self) -> Run {
        Run { start: self.to, len: 1 }
    }
}

struct Begun {
    batch: Option<Batch>,
    start: LogStart,
    moves: Vec<Move>,
    /// Places of the fresh ones.
    places: Vec<Run>,
}

/// What step 4 took.
struct Snapshot {
    image: Vec<u8>,
    runs: Vec<Run>,
    pages: Vec<(u64, Arc<[u64; BLOCK / 8]>)>,
    /// Free once the superblock no longer leads to the image before.
    replaced: Vec<Run>,
    seq: u64,
    next: Superblock,
}

impl<D: Disk> ChunkStore<D> {
    /// Applies small writes, writes the index and frees log space. Writers go on meanwhile.
    ///
    /// # Errors
    /// Any I/O error takes the store out of service.
    pub fn checkpoint(&self) -> Result<(), StoreError> {
        let alone = self.checkpointing.lock();
        self.run(&alone)
    }

    /// A checkpoint, unless another one has finished since `seen` were counted.
    pub(super) fn checkpoint_after(&self, seen: u64) -> Result<(), StoreError> {
        let alone = self.checkpointing.lock();
        if self.state.lock().checkpoints != seen {
            return Ok(());
        }
        self.run(&alone)
    }

    fn run(&self, _alone: &MutexGuard<'_, ()>) -> Result<(), StoreError> {
        let Some(mut begun) = self.begin()? else { return Ok(()) };
        if let Some(batch) = begun.batch.take() {
            self.write_batch(batch)?;
        }
        let mut moved = self.move_out(&begun.moves);
        if moved.as_ref().is_err_and(is_full) && self.replace(&mut begun) {
            moved = self.move_out(&begun.moves);
        }
        moved.map_err(|e| self.state.lock().fail("data write", &e))?;
        let places: Vec<Run> = begun.moves.iter().map(Move::run).collect();
        self.load_sums(&places)?;
        let snapshot = self.settle(&begun.moves, &places, begun.start)?;
        self.flush_to(snapshot.seq)?;
        self.publish(snapshot)
    }

    /// Step 1. `None` where nothing happened since the last checkpoint.
    fn begin(&self) -> Result<Option<Begun>, StoreError> {
        let mut guard = self.state.lock();
        while guard.journal.flushing {
            guard.check()?;
            self.flushed.wait(&mut guard);
        }
        let state = &mut *guard;
        state.check()?;
        let quiet = state.journal.is_quiet() && state.contents.overlay_len() == 0;
        if quiet && state.journal.mark() == state.superblock.log {
            return Ok(None);
        }
        let mut moves = list(state);
        let count = moves.iter().filter(|m| m.fresh).count() as u64;
        // Set aside when the small writes were taken in.
        state.landing = if count <= state.free.free() { count } else { 0 };
        let places = state.take_promised(count).ok_or(StoreError::NoSpace)?;
        let birth = state.next_birth;
        state.next_birth += 1;
        place(&mut moves, &places);
        for fresh in moves.iter_mut().filter(|m| m.fresh) {
            fresh.birth = birth;
            state.contents.placed(fresh.key, fresh.block);
        }
        state.quarantine = true;
        let batch = (!state.journal.is_quiet()).then(|| state.journal.take_batch());
        let start = state.journal.mark();
        Ok(Some(Begun { batch, start, moves, places }))
    }

    /// Step 3: neighbours on the disk go together.
    fn move_out(&self, moves: &[Move]) -> io::Result<()> {
        let mut order: Vec<&Move> = moves.iter().collect();
        order.sort_unstable_by_key(|m| m.to);
        // One for all: fresh memory is zeroed.
        let mut buf = AlignedBuf::zeroed(order.len().min(APPLY_BYTES / BLOCK) * BLOCK);
        for part in order.chunks(APPLY_BYTES / BLOCK) {
            buf.set_len(part.len() * BLOCK);
            for (m, out) in part.iter().zip(buf.chunks_exact_mut(BLOCK)) {
                out.copy_from_slice(&m.small.data[..]);
            }
            let mut rest: &[u8] = &buf;
            let mut ops = Vec::new();
            for run in part.chunk_by(|a, b| a.to + 1 == b.to) {
                for piece in run.chunks(MAX_RUN as usize) {
                    let (now, later) = rest.split_at(piece.len() * BLOCK);
                    rest = later;
                    let offset = self.regions.block_at(piece[0].to);
                    ops.push(DiskOp::Write { offset, data: now });
                }
            }
            self.disk.submit(&mut ops)?;
        }
        Ok(())
    }

    /// New places had no room: takes those of the reserve. False where that cannot help.
    fn replace(&self, begun: &mut Begun) -> bool {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let Some(runs) = state.reserve.take(state.landing) else { return false };
        drop(guard);
        if runs.is_empty() {
            return false;
        }
        place(&mut begun.moves, &runs);
        self.abandon(&std::mem::replace(&mut begun.places, runs));
        true
    }

    /// Step 4.
    fn settle(
        &self,
        moves: &[Move],
        places: &[Run],
        start: LogStart,
    ) -> Result<Snapshot, StoreError> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        state.check()?;
        self.pin_sums(state, places)?;
        let replaced = moves.iter().flat_map(|m| settle_one(state, m)).collect();
        state.quarantine = false;
        state.landing = 0;
        state.release();
        let image = state.contents.encode();
        let blocks = image::blocks_for(image.len() as u64);
        let runs = state.take_promised(blocks).ok_or(StoreError::NoSpace)?;
        let mut next = state.superblock.clone();
        next.sequence += 1;
        next.checkpoint.generation += 1;
        next.log = start;
        next.next_birth = state.next_birth;
        let pages = state.sums.take_dirty();
        Ok(Snapshot { image, runs, pages, replaced, seq: state.journal.last_seq(), next })
    }

    /// Steps 5 to 7.
    fn publish(&self, snapshot: Snapshot) -> Result<(), StoreError> {
        let Snapshot { image, mut runs, pages, replaced, mut next, .. } = snapshot;
        let generation = next.checkpoint.generation;
        let written = write_pages(&self.disk, self.regions.sums_at, &pages)
            .and_then(|()| self.write_image(generation, &mut runs, &image))
            .and_then(|at| {
                next.checkpoint = at;
                self.disk.sync()?;
                next.store(&self.disk)
            });
        let mut guard = self.state.lock();
        let state = &mut *guard;
        written.map_err(|e| state.fail("checkpoint", &e))?;
        state.journal.advance_tail(next.log.position);
        state.superblock = next;
        for run in std::mem::replace(&mut state.image, runs).into_iter().chain(replaced) {
            state.give(run);
        }
        state.sums.written();
        state.sums.trim();
        state.checkpoints += 1;
        Ok(())
    }

    /// Writes the image into the runs, or into others where those have no room.
    fn write_image(
        &self,
        generation: u64,
        runs: &mut Vec<Run>,
        image: &[u8],
    ) -> io::Result<CheckpointAt> {
        let write = |runs: &[Run]| image::write(&self.disk, &self.regions, generation, runs, image);
        let first = write(runs);
        if !first.as_ref().is_err_and(is_full) {
            return first;
        }
        let blocks = image::blocks_for(image.len() as u64);
        let Some(others) = self.state.lock().reserve.take(blocks) else { return first };
        self.abandon(&std::mem::replace(runs, others));
        write(runs)
    }
}

/// Spreads the fresh moves over the runs.
fn place(moves: &mut [Move], runs: &[Run]) {
    let places = runs.iter().flat_map(|run| run.start..run.start + u64::from(run.len));
    moves.iter_mut().filter(|m| m.fresh).zip(places).for_each(|(m, place)| m.to = place);
}

fn list(state: &State) -> Vec<Move> {
    let all = state.contents.all_smalls();
    all.map(|(key, block, over)| {
        let there = state.contents.index.block(key, block);
        Move {
            key,
            block,
            small: over.small.clone(),
            to: there.map_or(0, |e| e.block),
            birth: there.map_or(0, |e| e.birth),
            fresh: there.is_none(),
        }
    })
    .collect()
}

/// The block lies at its place now. What happened to the chunk meanwhile decides what that means.
/// Returns the place that it replaces where the image before may still name that.
fn settle_one(state: &mut State, m: &Move) -> Vec<Run> {
    let key = state.contents.whereabouts(m.key, m.block, &m.small);
    let extent = Extent { at: m.block, len: 1, block: m.to, birth: m.birth };
    let now = state.contents.index.block(key, m.block);
    let mut replaced = Vec::new();
    if m.fresh && key != m.key {
        // Committed meanwhile. Its record may lie before the new tail, so it must be placed now.
        replaced = state.contents.index.unmap(key, m.block, 1);
        state.contents.index.map(key, extent);
        state.contents.placed(key, m.block);
    } else if m.fresh {
        // Deleted meanwhile, or a large write took over: the place is not needed.
        if now.is_some() || state.contents.overlaid(key, m.block).is_none() {
            state.give(m.run());
            return replaced;
        }
        state.contents.index.map(key, extent);
        state.contents.placed(key, m.block);
    } else if now.is_none_or(|e| (e.block, e.birth) != (m.to, m.birth)) {
        return replaced;
    }
    state.sums.set(m.to, &[bind(m.small.sum, key, m.block, m.birth)]);
    state.contents.settle(key, m.block, &m.small);
    replaced
}
