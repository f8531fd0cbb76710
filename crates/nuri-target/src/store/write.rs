//! Writes, punches and deletes chunks.
//!
//! Order of a large write; the lock is held only in 1 and 4:
//! ```text
//! 1 take free blocks                crash: still free, nothing names them
//! 2 write the data there            crash: orphan bytes in free blocks
//! 3 load their checksum pages       (reads)
//! 4 change memory, append a record  crash: the record was in memory: the old content is there
//! 5 (stable) sync data, then log    crash: old content before the log's sync, new content after
//! ```
//!
//! The blocks that held the old content are reused only when the record is durable. A small write
//! merges its partial blocks with what the chunk holds. Then it does 4 and 5 with the bytes in the
//! record. Step 4 orders two writers of one chunk.

use nuri_io::disk::{Disk, DiskOp};
use nuri_proto::id::{ChunkKey, ObjectId};
use nuri_proto::limit::{LOG_FIRST, MAX_CHUNK, MAX_PAYLOAD};
use nuri_proto::op::data::Durability;
use nuri_rules::broken;
use parking_lot::MutexGuard;

use super::alloc::Run;
use super::contents::{Change, Contents, smalls};
use super::credits::{Need, Payer};
use super::error::{StoreError, is_full};
use super::index::Extent;
use super::log::{Body, MAX_DELETE, Record};
use super::state::State;
use super::sums::{bind, raw_sums};
use super::{BLOCK, ChunkStore, WriteOutcome};

/// The end of a change that is in memory: its record's number (0: nothing to log) and how many
/// blocks it took or freed.
#[derive(Clone, Copy, Default)]
pub(super) struct Done {
    pub seq: u64,
    pub blocks: u64,
}

impl Done {
    fn and(self, other: Done) -> Done {
        Done { seq: self.seq.max(other.seq), blocks: self.blocks + other.blocks }
    }
}

impl<D: Disk> ChunkStore<D> {
    /// As [`ChunkStore::write_for`], for nobody's programs.
    ///
    /// # Errors
    /// The same.
    pub fn write(
        &self,
        key: ChunkKey,
        offset: u32,
        data: &[u8],
        durability: Durability,
    ) -> Result<WriteOutcome, StoreError> {
        self.write_for(Payer::Upkeep, key, offset, data, durability)
    }

    /// Writes `data` at `offset` of the chunk. Data that lies on 4 KiB boundaries in memory and in
    /// the chunk goes to the disk without a copy.
    ///
    /// # Errors
    /// No space, but what was promised to others: of a write in several parts the first ones may
    /// have been made.
    pub fn write_for(
        &self,
        payer: Payer,
        key: ChunkKey,
        offset: u32,
        data: &[u8],
        durability: Durability,
    ) -> Result<WriteOutcome, StoreError> {
        check_range(offset, data.len())?;
        let (head, body, tail) = split(offset, data);
        let mut done = Done::default();
        let mut at = offset;
        if !head.is_empty() {
            done = done.and(self.write_small(payer, key, at, head)?);
            at += head.len() as u32;
        }
        for part in body.chunks(MAX_PAYLOAD) {
            done = done.and(self.write_large(payer, key, at / BLOCK as u32, part)?);
            at += part.len() as u32;
        }
        if !tail.is_empty() {
            done = done.and(self.write_small(payer, key, at, tail)?);
        }
        if durability == Durability::Stable && !broken!("ack_before_log") {
            self.flush_to(done.seq)?;
        }
        Ok(WriteOutcome { allocated_bytes: done.blocks * BLOCK as u64 })
    }

    /// Makes the range a hole; partial blocks at its ends are zeroed. Durable after a flush.
    /// Returns the bytes given back.
    ///
    /// # Errors
    /// Out of service, or a partial block that cannot be read.
    pub fn punch(&self, key: ChunkKey, offset: u32, len: u32) -> Result<u64, StoreError> {
        check_range(offset, len as usize)?;
        let end = offset + len;
        let block = BLOCK as u32;
        let first = offset.next_multiple_of(block);
        let last = end / block * block;
        if first > last {
            self.zero_part(key, offset, len)?;
            return Ok(0);
        }
        self.zero_part(key, offset, first - offset)?;
        self.zero_part(key, last, end - last)?;
        let (at, len) = (first / block, (last - first) / block);
        if len == 0 {
            return Ok(0);
        }
        let record = Record::Punch { key, at, len };
        let done = self.log_change(&record, |c, seq| c.punch(key, seq, at, len))?;
        Ok(done.blocks * BLOCK as u64)
    }

    /// Deletes the object's chunks with `stripe >= from`, durably. Returns the bytes given back.
    ///
    /// # Errors
    /// Out of service.
    pub fn truncate(&self, object: ObjectId, from: u32) -> Result<u64, StoreError> {
        if !self.state.lock().contents.knows(object, from) {
            // No record: an object has most of its groups for chunks that were never written. What
            // took the others away may still be on its way to the disk.
            return self.flush().map(|()| 0);
        }
        let record = Record::Truncate { object, from };
        let done = self.log_change(&record, |c, seq| c.truncate(object, seq, from))?;
        self.flush_to(done.seq)?;
        Ok(done.blocks * BLOCK as u64)
    }

    /// Deletes whole objects, durably. Those that are not there count as deleted.
    ///
    /// # Errors
    /// Out of service.
    pub fn delete(&self, objects: &[ObjectId]) -> Result<(), StoreError> {
        let mut last = 0;
        for part in objects.chunks(MAX_DELETE) {
            let record = Record::Delete { objects: part.to_vec() };
            let delete = |c: &mut Contents, seq| {
                part.iter().fold(Change::default(), |mut all, object| {
                    let one = c.truncate(*object, seq, 0);
                    all.freed.extend(one.freed);
                    all.lost += one.lost;
                    all
                })
            };
            last = self.log_change(&record, delete)?.seq;
        }
        self.flush_to(last)
    }

    pub(super) fn log_change(
        &self,
        record: &Record<'_>,
        change: impl FnOnce(&mut Contents, u64) -> Change,
    ) -> Result<Done, StoreError> {
        let body = Body::new(record);
        let mut guard = self.admit(Payer::Upkeep, body.log_len(), 0, |_| Need::NONE)?;
        let state = &mut *guard;
        let change = change(&mut state.contents, state.journal.next_seq());
        let blocks = change.lost;
        let seq = state.commit(&body, change);
        self.nudge(state);
        Ok(Done { seq, blocks })
    }

    /// Zeroes part of a block that holds data; a hole stays one.
    fn zero_part(&self, key: ChunkKey, offset: u32, len: u32) -> Result<(), StoreError> {
        let held = len > 0 && {
            let state = self.state.lock();
            state.contents.held(key, offset / BLOCK as u32, 1) > 0
        };
        if held {
            self.write_small(Payer::Upkeep, key, offset, &[0; BLOCK][..len as usize])?;
        }
        Ok(())
    }

    fn write_large(
        &self,
        payer: Payer,
        key: ChunkKey,
        first: u32,
        data: &[u8],
    ) -> Result<Done, StoreError> {
        let count = (data.len() / BLOCK) as u32;
        let need = |state: &State| state.contents.need(key, first, count);
        let done = self.with_blocks(payer, need, |runs, birth| {
            let (extents, sums) = self.lay(key, first, data, runs, birth)?;
            let record = Record::Write { key, extents, sums };
            let body = Body::new(&record);
            let Record::Write { extents, sums, .. } = record else { return Ok(None) };
            let mut guard = self.admit(Payer::Upkeep, body.log_len(), 0, |_| Need::NONE)?;
            let state = &mut *guard;
            self.book(state, runs, &extents, &sums)?;
            let change = state.contents.write(key, state.journal.next_seq(), &extents);
            let blocks = change.gained;
            let seq = state.commit(&body, change);
            self.nudge(state);
            Ok(Some(Done { seq, blocks }))
        })?;
        done.ok_or(StoreError::OutOfRange)
    }

    /// Takes blocks and a birth for new data. Without a result nothing names the blocks, and they
    /// are free again.
    pub(super) fn with_blocks<T>(
        &self,
        payer: Payer,
        need: impl Fn(&State) -> Need,
        write: impl FnOnce(&[Run], u64) -> Result<Option<T>, StoreError>,
    ) -> Result<Option<T>, StoreError> {
        let (runs, birth) = self.take_blocks(payer, need)?;
        let result = write(&runs, birth);
        self.state.lock().landed(&runs);
        if !matches!(result, Ok(Some(_))) {
            self.abandon(&runs);
        }
        result
    }

    /// Writes data to these blocks and tells its extents and checksums (bound), whose pages are
    /// loaded then.
    pub(super) fn lay(
        &self,
        key: ChunkKey,
        first: u32,
        data: &[u8],
        runs: &[Run],
        birth: u64,
    ) -> Result<(Vec<Extent>, Vec<u64>), StoreError> {
        let mut at = first;
        let extents: Vec<Extent> = runs
            .iter()
            .map(|run| {
                let extent = Extent { at, len: run.len, block: run.start, birth };
                at += run.len;
                extent
            })
            .collect();
        self.put_data(&extents, data)?;
        let raw = raw_sums(data);
        let sums = (first..).zip(&raw).map(|(block, sum)| bind(*sum, key, block, birth)).collect();
        self.load_sums(runs)?;
        Ok((extents, sums))
    }

    /// Sets the checksums of what [`ChunkStore::lay`] wrote; it must be durable before the record
    /// that comes next.
    pub(super) fn book(
        &self,
        state: &mut State,
        runs: &[Run],
        extents: &[Extent],
        sums: &[u64],
    ) -> Result<(), StoreError> {
        if runs.is_empty() {
            return Ok(());
        }
        self.pin_sums(state, runs)?;
        let mut rest = sums;
        for extent in extents {
            let (now, later) = rest.split_at(extent.len as usize);
            state.sums.set(extent.block, now);
            rest = later;
        }
        state.journal.require_data();
        state.sums.trim();
        Ok(())
    }

    /// Writes data to its new place. Where the file system under the store is full, what was
    /// deleted and is not given back yet makes room first.
    fn put_data(&self, extents: &[Extent], data: &[u8]) -> Result<(), StoreError> {
        let put = || {
            let mut rest = data;
            let mut ops: Vec<DiskOp<'_>> = extents
                .iter()
                .map(|extent| {
                    let (now, later) = rest.split_at(extent.len as usize * BLOCK);
                    rest = later;
                    DiskOp::Write { offset: self.regions.block_at(extent.block), data: now }
                })
                .collect();
            self.disk.submit(&mut ops)
        };
        let mut outcome = put();
        if outcome.as_ref().is_err_and(is_full) && self.trim_now() > 0 {
            outcome = put();
        }
        outcome.map_err(|e| self.data_error(&e))
    }

    /// Reads the checksum pages of these blocks, without the lock.
    pub(super) fn load_sums(&self, runs: &[Run]) -> Result<(), StoreError> {
        for run in runs {
            loop {
                let group = {
                    let state = self.state.lock();
                    state.check()?;
                    state.sums.missing(run.start, run.len).map(|page| state.sums.group(page))
                };
                let Some(group) = group else { break };
                self.load_group(&group).map_err(|e| self.state.lock().fail("checksum read", &e))?;
            }
        }
        Ok(())
    }

    /// Reads again what was dropped from the cache since [`ChunkStore::load_sums`]; seldom any.
    pub(super) fn pin_sums(&self, state: &mut State, runs: &[Run]) -> Result<(), StoreError> {
        for run in runs {
            let loaded = state.sums.load(&self.disk, run.start, run.len);
            loaded.map_err(|e| state.fail("checksum read", &e))?;
        }
        Ok(())
    }

    fn write_small(
        &self,
        payer: Payer,
        key: ChunkKey,
        offset: u32,
        data: &[u8],
    ) -> Result<Done, StoreError> {
        let end = offset as usize + data.len();
        let first = offset / BLOCK as u32;
        let count = (end.div_ceil(BLOCK) - first as usize) as u32;
        let skip = offset as usize % BLOCK;
        if skip == 0 && end.is_multiple_of(BLOCK) {
            let done = self.log_blocks(payer, key, first, data, None)?;
            return done.ok_or(StoreError::OutOfRange);
        }
        let _one_at_a_time = self.merge_lock(key).lock();
        let mut blocks = vec![0; count as usize * BLOCK];
        loop {
            let seen = self.read_ends(key, first, &mut blocks, skip, end)?;
            blocks[skip..skip + data.len()].copy_from_slice(data);
            // A write without a partial block may have come in between: merge again.
            if let Some(done) = self.log_blocks(payer, key, first, &blocks, Some(seen))? {
                return Ok(done);
            }
        }
    }

    /// Reads the blocks that are written in part; returns the version of the chunk they are of.
    pub(super) fn read_ends(
        &self,
        key: ChunkKey,
        first: u32,
        blocks: &mut [u8],
        skip: usize,
        end: usize,
    ) -> Result<u64, StoreError> {
        let tail = blocks.len() - BLOCK;
        let at = first * BLOCK as u32;
        loop {
            let head_seen = if skip > 0 || tail == 0 {
                self.read_versioned(key, at, &mut blocks[..BLOCK])?
            } else {
                self.version(key)
            };
            let tail_seen = if tail > 0 && !end.is_multiple_of(BLOCK) {
                self.read_versioned(key, at + tail as u32, &mut blocks[tail..])?
            } else {
                head_seen
            };
            if head_seen == tail_seen {
                return Ok(head_seen);
            }
        }
    }

    fn version(&self, key: ChunkKey) -> u64 {
        self.state.lock().contents.index.version(key)
    }

    /// Logs whole blocks. `None` where the chunk is no longer at the version that was merged.
    fn log_blocks(
        &self,
        payer: Payer,
        key: ChunkKey,
        first: u32,
        blocks: &[u8],
        merged: Option<u64>,
    ) -> Result<Option<Done>, StoreError> {
        let sums = raw_sums(blocks);
        let smalls = smalls(&sums, blocks);
        let count = smalls.len() as u32;
        let body = Body::new(&Record::Data { key, first, sums, data: blocks });
        let needs = |state: &State| state.contents.needs(key, first, count);
        let need = |state: &State| Need::new(needs(state));
        let mut guard = self.admit(payer, body.log_len(), smalls.len(), need)?;
        let state = &mut *guard;
        if merged.is_some_and(|seen| seen != state.contents.index.version(key)) {
            return Ok(None);
        }
        state.credits.take(payer, needs(state));
        let change = state.contents.data(key, state.journal.next_seq(), first, smalls);
        let blocks = change.gained;
        let seq = state.commit(&body, change);
        self.nudge(state);
        Ok(Some(Done { seq, blocks }))
    }

    fn take_blocks(
        &self,
        payer: Payer,
        need: impl Fn(&State) -> Need,
    ) -> Result<(Vec<Run>, u64), StoreError> {
        let mut state = self.admit(payer, 0, 0, &need)?;
        let count = need(&state).blocks;
        state.take_off(payer, count).ok_or(StoreError::NoSpace)
    }

    /// Waits until a record of `log_bytes` fits, the overlay takes `smalls` more blocks and there
    /// are as many free blocks as `need` says beside what is kept from who takes them (RESERVE-1,
    /// RESERVE-4). Returns with the lock held.
    ///
    /// # Errors
    /// No space even after everything freed became usable, or none on the device for what the
    /// write counts on.
    pub(super) fn admit(
        &self,
        payer: Payer,
        log_bytes: usize,
        smalls: usize,
        need: impl Fn(&State) -> Need,
    ) -> Result<MutexGuard<'_, State>, StoreError> {
        loop {
            let mut state = self.state.lock();
            state.check()?;
            state.release();
            let need = need(&state);
            let (needed, kept) = (need.blocks, state.kept_from(payer, need));
            if needed > 0 && needed + kept > state.available() {
                if needed + kept > state.available() + state.pending_blocks() {
                    return Err(StoreError::NoSpace);
                }
                self.wait_for_blocks(state)?;
                continue;
            }
            let placed_later = if smalls > 0 { needed } else { 0 };
            if needed > 0 && self.lacks_room(&state, placed_later) {
                drop(state);
                self.make_room(placed_later)?;
                continue;
            }
            if log_bytes > 0 && !state.journal.buffer_has_room(log_bytes) {
                let seq = state.journal.last_seq();
                drop(state);
                self.flush_to(seq)?;
                continue;
            }
            if state.has_room(&self.config, log_bytes, smalls) {
                return Ok(state);
            }
            let seen = state.checkpoints;
            drop(state);
            self.checkpoint_after(seen)?;
        }
    }

    /// Freed blocks wait for their record to become durable, for a checkpoint to end, or for
    /// whoever moves them.
    fn wait_for_blocks(&self, state: MutexGuard<'_, State>) -> Result<(), StoreError> {
        let (quarantine, moving) = (state.quarantine, state.moving > 0);
        let seq = state.journal.last_seq();
        drop(state);
        if quarantine {
            drop(self.checkpointing.lock());
        } else if moving {
            drop(self.moving.lock());
        } else {
            self.flush_to(seq)?;
        }
        Ok(())
    }

    /// Tells whoever waits for work that there is some.
    pub(super) fn nudge(&self, state: &State) {
        if state.wants_checkpoint(&self.config) {
            self.work.notify_one();
        }
    }
}

pub(super) fn check_range(offset: u32, len: usize) -> Result<(), StoreError> {
    let end = u64::from(offset) + len as u64;
    if end > u64::from(MAX_CHUNK) { Err(StoreError::OutOfRange) } else { Ok(()) }
}

/// Parts of a write: before, on, and after whole blocks that are many enough to go straight to the
/// disk. All of it is one small write where they are not.
pub(super) fn split(offset: u32, data: &[u8]) -> (&[u8], &[u8], &[u8]) {
    let first = (offset as usize).next_multiple_of(BLOCK);
    let end = offset as usize + data.len();
    let last = end / BLOCK * BLOCK;
    if last < first + LOG_FIRST as usize {
        return (data, &[], &[]);
    }
    let (head, rest) = data.split_at(first - offset as usize);
    let (body, tail) = rest.split_at(last - first);
    (head, body, tail)
}
