//! What the store's one lock guards, and the accounting over it. No I/O here.
//!
//! Invariant: free blocks >= blocks that the overlay will need + blocks for the next index image
//! beside the present one. So applying and checkpointing never fail for want of space. In a sparse
//! file as many free blocks have their space already: the reserve (`room.rs`).

use std::collections::VecDeque;
use std::sync::Arc;

use nuri_proto::id::SessionId;
use nuri_rules::broken;

use super::alloc::{FreeMap, MAX_RUN, Run};
use super::contents::{Change, Contents};
use super::credits::{Credits, Need, Payer, Wish, margin};
use super::error::StoreError;
use super::image::blocks_for;
use super::index::{CHUNK_BYTES, EXTENT_BYTES};
use super::journal::Journal;
use super::log::Body;
use super::room::Reserve;
use super::sums::SumTable;
use super::superblock::Superblock;
use super::{StoreConfig, Usage};

/// Extents and chunks that may come between two checks of the reserve.
const SLACK_EXTENTS: u64 = 512;

/// Why there is no run to trim now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TrimSearch {
    /// There may be one further on.
    Goes,
    Over,
}

pub struct State {
    pub contents: Contents,
    pub free: FreeMap,
    /// More free blocks, which the map does not know.
    pub reserve: Reserve,
    pub credits: Credits,
    /// Blocks on their way between map, reserve and device.
    pub moving: u64,
    /// Blocks of a running checkpoint's fresh places that may turn out to have no room.
    pub landing: u64,
    /// Where to look next for room to give back.
    trim_at: u64,
    /// Blocks that large writes took since the last trim: as many will be wanted soon.
    pub taken: u64,
    /// Nothing was freed since all was looked through.
    trimmed: bool,
    pub sums: SumTable,
    pub journal: Journal,
    pub superblock: Superblock,
    /// Where the index image lies.
    pub image: Vec<Run>,
    pub next_birth: u64,
    /// Extents of large writes whose data is on its way.
    in_flight: u64,
    /// Checkpoints finished since opening.
    pub checkpoints: u64,
    /// Freed blocks with the record that freed them; usable once that is durable.
    pending: VecDeque<(u64, Run)>,
    pending_blocks: u64,
    /// A checkpoint writes in place: no freed block may find a new owner now.
    pub quarantine: bool,
    pub failed: Option<Arc<str>>,
}

impl State {
    pub fn new(
        contents: Contents,
        free: FreeMap,
        sums: SumTable,
        journal: Journal,
        superblock: Superblock,
    ) -> State {
        State {
            contents,
            free,
            reserve: Reserve::default(),
            credits: Credits::default(),
            moving: 0,
            landing: 0,
            trim_at: 0,
            taken: 0,
            trimmed: false,
            sums,
            journal,
            superblock,
            image: Vec::new(),
            next_birth: 0,
            in_flight: 0,
            checkpoints: 0,
            pending: VecDeque::new(),
            pending_blocks: 0,
            quarantine: false,
            failed: None,
        }
    }

    /// # Errors
    /// Where the store went out of service.
    pub fn check(&self) -> Result<(), StoreError> {
        match &self.failed {
            Some(why) => Err(StoreError::OutOfService(why.clone())),
            None => Ok(()),
        }
    }

    /// Takes the store out of service for good.
    pub fn fail(&mut self, doing: &str, error: &std::io::Error) -> StoreError {
        let why = self.failed.get_or_insert_with(|| format!("{doing}: {error}").into());
        StoreError::OutOfService(why.clone())
    }

    /// Blocks that new data may take.
    pub fn available(&self) -> u64 {
        (self.free.free() + self.reserve.blocks()).saturating_sub(self.promised())
    }

    /// Free blocks that are spoken for.
    fn promised(&self) -> u64 {
        self.contents.reserved() + self.image_reserve()
    }

    /// Blocks that become free without anything being deleted.
    pub fn pending_blocks(&self) -> u64 {
        self.pending_blocks + self.moving
    }

    /// How many blocks the reserve lacks of what is promised and `more`.
    pub fn lacking(&self, more: u64) -> u64 {
        (self.promised() + self.landing + more).saturating_sub(self.reserve.blocks())
    }

    /// Fills the reserve from free blocks that have their room already.
    pub fn refill(&mut self, more: u64) {
        let mut from = 0;
        while self.lacking(more) > 0
            && let Some(run) = self.free.take_written(from, MAX_RUN)
        {
            from = run.start;
            self.reserve.push(run);
        }
    }

    /// Takes free blocks, those of the reserve last.
    pub fn take(&mut self, count: u64) -> Option<Vec<Run>> {
        let beyond = count.saturating_sub(self.free.free());
        let reserved = self.reserve.take(beyond)?;
        let mut runs = self.free.take(count - beyond)?;
        runs.extend(reserved);
        Some(runs)
    }

    /// Takes blocks for what was promised, not from both sides where one has enough: whoever finds
    /// no room in those of the map then finds as many in the reserve.
    pub fn take_promised(&mut self, count: u64) -> Option<Vec<Run>> {
        if count <= self.free.free() {
            return self.free.take(count);
        }
        self.reserve.take(count).or_else(|| self.take(count))
    }

    /// A run that was written is free again.
    pub fn give(&mut self, run: Run) {
        if self.lacking(0) > 0 {
            self.reserve.push(run);
        } else {
            self.free.give(run);
            self.trimmed = false;
        }
    }

    /// Takes the next run of at least `least` free blocks whose room can be given back, or says
    /// whether to ask again. Leaves `keep` blocks that have room.
    pub fn take_for_trim(&mut self, least: u32, keep: u64) -> Result<Run, TrimSearch> {
        let few = self.free.written() < keep.max(u64::from(least));
        if few || self.trim_at == 0 && std::mem::replace(&mut self.trimmed, true) {
            return Err(TrimSearch::Over);
        }
        let (found, next) = self.free.take_long_written(self.trim_at, least, MAX_RUN);
        self.trim_at = if next < self.superblock.regions.data_blocks { next } else { 0 };
        self.moving += found.map_or(0, |run| u64::from(run.len));
        found.ok_or(TrimSearch::Goes)
    }

    /// What was passed over is looked through once more.
    pub fn look_again(&mut self) {
        self.trimmed = false;
    }

    /// The run of [`State::take_for_trim`] has no room any more.
    pub fn trimmed(&mut self, run: Run) {
        self.free.give_blank(run);
        self.moving -= u64::from(run.len);
    }

    /// Old and new image exist together while a checkpoint runs, and the next old one may be as
    /// large as the next new one. What the present image holds is no longer free already.
    fn image_reserve(&self) -> u64 {
        let extents = self.contents.overlay_len() as u64 + self.in_flight;
        let both = reserve(self.contents.image_bytes() + extents * EXTENT_BYTES);
        let held: u64 = self.image.iter().map(|run| u64::from(run.len)).sum();
        both.saturating_sub(held)
    }

    /// Takes blocks and a birth for a large write; end with [`State::landed`].
    pub fn take_off(&mut self, payer: Payer, blocks: u64) -> Option<(Vec<Run>, u64)> {
        let runs = self.take(blocks)?;
        self.credits.take(payer, blocks);
        self.taken += blocks;
        self.in_flight += runs.len() as u64;
        self.next_birth += 1;
        Some((runs, self.next_birth - 1))
    }

    /// The large write into these runs is in the index, or given up.
    pub fn landed(&mut self, runs: &[Run]) {
        self.in_flight -= runs.len() as u64;
    }

    pub fn usage(&self) -> Usage {
        let (blocks, free) = self.size_and_free();
        let bytes = |blocks: u64| blocks * super::BLOCK as u64;
        Usage { size: bytes(blocks), used: bytes(blocks - free) }
    }

    /// As programs can fill it: the margin is nobody's.
    pub fn fillable(&self) -> Usage {
        let Usage { size, used } = self.usage();
        let blocks = self.size_and_free().0;
        let size = size - margin(blocks) * super::BLOCK as u64;
        Usage { size, used: used.min(size) }
    }

    /// Blocks that new data may take, of an empty store and now; the margin is among them.
    fn size_and_free(&self) -> (u64, u64) {
        let size = self.superblock.regions.data_blocks.saturating_sub(reserve(8));
        (size, (self.available() + self.pending_blocks).min(size))
    }

    /// Blocks that must be left when somebody takes some.
    pub fn kept_from(&self, payer: Payer, need: Need) -> u64 {
        self.credits.kept_from(payer, need, margin(self.size_and_free().0))
    }

    /// Promises a session room, in blocks, in the place of what it was promised before. Returns how
    /// much it is, and what there is at all beside what was written.
    pub fn promise(&mut self, session: SessionId, wish: Wish) -> (u64, u64) {
        let (size, free) = self.size_and_free();
        let beside = free.saturating_sub(margin(size));
        (self.credits.promise(session, wish, beside), free)
    }

    /// Appends the record and books what it changed; returns its sequence number.
    pub fn commit(&mut self, body: &Body<'_>, change: Change) -> u64 {
        let seq = self.journal.append(body);
        for run in change.freed {
            if broken!("free_before_durable") {
                self.free.give(run);
                continue;
            }
            self.pending.push_back((seq, run));
            self.pending_blocks += u64::from(run.len);
        }
        seq
    }

    /// Makes blocks usable whose freeing became durable.
    pub fn release(&mut self) {
        while let Some((seq, run)) = self.pending.front().copied() {
            if self.quarantine || seq > self.journal.durable_seq() {
                break;
            }
            self.pending.pop_front();
            self.pending_blocks -= u64::from(run.len);
            self.give(run);
        }
    }

    /// Time for a checkpoint, before writers must wait for one.
    pub fn wants_checkpoint(&self, config: &StoreConfig) -> bool {
        self.journal.beyond(1, 2)
            || self.contents.overlay_len() * 2 > config.overlay_blocks()
            || self.sums.dirty_beyond(1, 2)
    }

    /// A record of `bytes` with `smalls` overlay blocks can be taken without a checkpoint.
    pub fn has_room(&self, config: &StoreConfig, bytes: usize, smalls: usize) -> bool {
        self.journal.has_room(bytes)
            && self.contents.overlay_len() + smalls <= config.overlay_blocks()
            && !self.sums.dirty_beyond(1, 1)
    }
}

/// Blocks for two images of this size.
fn reserve(image_bytes: u64) -> u64 {
    2 * (blocks_for(image_bytes + SLACK_EXTENTS * (EXTENT_BYTES + CHUNK_BYTES)) + 1)
}
