//! The embedded engine: group-commit log, memory tables, redb behind.
//!
//! 1 commit: changes enter the active table       crash: lost, nobody was told otherwise
//! 2 the group is written to the log and synced   crash: torn group, dropped by its checksum
//! 3 callers are told "durable"
//! 4 a full segment freezes the active table; the other segment begins (head, then groups)
//! 5 the frozen table enters redb in one durable transaction with its last sequence
//!                                                crash: replayed from the log again
//! 6 the old segment may be reused; replay skips sequences that redb has
//!
//! The first caller that waits writes for all; the engine has no thread of its own. A failed write
//! or sync stops the store until it is opened again, because it is unknown what is durable. Only
//! step 5 may need new space on the disk. Where there is none, the frozen table stays. Commits go
//! on while the other segment has space for them, and are refused after that. Nothing stops, and
//! nothing that was accepted is lost.

use std::sync::Arc;

use nuri_io::buf::AlignedBuf;
use nuri_io::disk::Disk;
use nuri_rules::broken;
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::engine::{Batch, CommitId, Engine, KvError, Pair};
use crate::log::{self, BLOCK, Gap, HeadState, MAX_BODY, Place, RECORD_HEAD, SegmentHead};
use crate::memtable::{MemTable, merge, overlay};
use crate::tables::Tables;

/// Sizes of the engine.
#[derive(Clone, Copy, Debug)]
pub struct KvConfig {
    /// Length of each of the two log segments of a new store, bytes (a multiple of 4 KiB, at least
    /// 64 KiB). An existing store keeps its own.
    pub segment_bytes: usize,
    /// Cache of the tables, bytes.
    pub cache_bytes: usize,
    /// By how much the epoch rises: more than 1 where later owners than the stored one may have
    /// been, as after an old copy was restored.
    pub epoch_step: u64,
}

impl Default for KvConfig {
    fn default() -> Self {
        // Every space of a test writes both once, and fills them sooner.
        let segment_bytes = if cfg!(debug_assertions) { 8 << 20 } else { 32 << 20 };
        KvConfig { segment_bytes, cache_bytes: 64 << 20, epoch_step: 1 }
    }
}

/// The embedded engine.
pub struct Embedded {
    log: Arc<dyn Disk>,
    tables: Tables,
    config: KvConfig,
    epoch: u64,
    state: Mutex<State>,
    progress: Condvar,
    /// Held while a frozen table moves into redb.
    absorbing: Mutex<()>,
}

struct State {
    active: MemTable,
    frozen: Option<Arc<Frozen>>,
    /// Encoded records that no sync has covered.
    pending: Vec<u8>,
    /// Start of each pending record, for resealing when the segment changes.
    starts: Vec<usize>,
    last: u64,
    durable: u64,
    /// Some thread is writing a group.
    flushing: bool,
    stopped: bool,
    /// The tables' disk had no room for the frozen table.
    starved: bool,
    segment: usize,
    /// Where the next group goes, from the segment's start.
    at: usize,
    generation: u64,
}

struct Frozen {
    table: MemTable,
    last: u64,
}

impl Embedded {
    /// Opens or creates a store on two disks. The caller holds their lock.
    ///
    /// # Errors
    /// [`KvError::Damaged`] where the log has a hole before valid records, [`KvError::Version`]
    /// for a newer format.
    pub fn open(
        log: Arc<dyn Disk>,
        tables: Arc<dyn Disk>,
        config: KvConfig,
    ) -> Result<Embedded, KvError> {
        if head_at(&*log, 0)? == HeadState::Empty {
            // Nothing was ever committed: what a crash left of half made tables can go.
            Tables::clear_unfinished(&*tables)?;
        }
        let tables = Tables::open(tables, config.cache_bytes)?;
        let config = KvConfig { segment_bytes: settle_log(&*log, &tables, config)?, ..config };
        let mut state = State {
            active: MemTable::default(),
            frozen: None,
            pending: Vec::new(),
            starts: Vec::new(),
            last: tables.state("sequence")?,
            durable: 0,
            flushing: false,
            stopped: false,
            starved: false,
            segment: 0,
            at: BLOCK,
            generation: tables.state("generation")?,
        };
        let mut epoch = tables.state("epoch")?;
        replay(&*log, config, &mut state, &mut epoch)?;
        state.durable = state.last;
        epoch += config.epoch_step;
        // What was replayed enters the tables, and the log starts afresh under the new epoch.
        let generation = state.generation + 1;
        let numbers = [
            ("sequence", state.last),
            ("epoch", epoch),
            ("generation", generation),
            ("segment_bytes", config.segment_bytes as u64),
        ];
        tables.absorb(&state.active, &numbers)?;
        state.active = MemTable::default();
        state.generation = generation;
        state.segment = 0;
        state.at = BLOCK;
        write_head(&*log, config, 0, generation)?;
        io(log.sync())?;
        let state = Mutex::new(state);
        let (progress, absorbing) = (Condvar::new(), Mutex::new(()));
        Ok(Embedded { log, tables, config, epoch, state, progress, absorbing })
    }

    /// The epoch under which this owner writes.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Moves everything into the tables, so that the next opening has nothing to replay.
    ///
    /// # Errors
    /// As for commits.
    pub fn checkpoint(&self) -> Result<(), KvError> {
        self.wait_durable(self.last_commit())?;
        self.absorb_frozen()?;
        {
            let mut state = self.state.lock();
            while state.flushing {
                self.progress.wait(&mut state);
            }
            if state.active.is_empty() || state.frozen.is_some() {
                return Ok(());
            }
            freeze(&mut state);
        }
        self.absorb_frozen()
    }

    /// Moves the frozen table into redb, if there is one.
    ///
    /// # Errors
    /// As for commits.
    pub fn absorb_frozen(&self) -> Result<(), KvError> {
        let _one_at_a_time = self.absorbing.lock();
        let Some(frozen) = self.state.lock().frozen.clone() else {
            return Ok(());
        };
        let outcome = self.tables.absorb(&frozen.table, &[("sequence", frozen.last)]);
        let mut state = self.state.lock();
        match &outcome {
            Ok(()) => (state.frozen, state.starved) = (None, false),
            Err(KvError::NoSpace) => state.starved = true,
            Err(_) => state.stopped = true,
        }
        self.progress.notify_all();
        outcome
    }

    /// Whether a frozen table waits to be moved.
    pub fn has_frozen(&self) -> bool {
        self.state.lock().frozen.is_some()
    }

    /// Writes all pending records as one group. Enters and leaves with the lock held.
    fn flush_group(&self, state: &mut MutexGuard<'_, State>) -> Result<(), KvError> {
        state.flushing = true;
        let outcome = match self.make_place(state) {
            // Nothing was written: the group waits.
            Err(KvError::NoSpace) => None,
            placed => Some(placed.and_then(|()| self.write_group(state))),
        };
        state.flushing = false;
        match outcome {
            Some(Ok(upto)) => state.durable = state.durable.max(upto),
            Some(Err(_)) => state.stopped = true,
            None => {}
        }
        self.progress.notify_all();
        outcome.unwrap_or(Err(KvError::NoSpace)).map(|_| ())
    }

    /// Frees the other segment where the group does not fit into this one.
    fn make_place(&self, state: &mut MutexGuard<'_, State>) -> Result<(), KvError> {
        while !self.fits(state, 0) && state.frozen.is_some() {
            MutexGuard::unlocked(state, || self.absorb_frozen())?;
        }
        Ok(())
    }

    /// Whether the group, with so many bytes more, fits into this segment.
    fn fits(&self, state: &State, more: usize) -> bool {
        let len = (state.pending.len() + more).next_multiple_of(BLOCK);
        state.at + len <= self.config.segment_bytes
    }

    fn write_group(&self, state: &mut MutexGuard<'_, State>) -> Result<u64, KvError> {
        if !self.fits(state, 0) {
            self.switch_segment(state)?;
        }
        let mut group = std::mem::take(&mut state.pending);
        state.starts.clear();
        let len = group.len().next_multiple_of(BLOCK);
        group.resize(len, 0);
        let (upto, at) = (state.last, state.at);
        let offset = (state.segment * self.config.segment_bytes + at) as u64;
        state.at += len;
        let outcome = MutexGuard::unlocked(state, || {
            if broken!("kv_ack_before_sync") {
                return io(self.log.write_at(offset, &aligned(&group)));
            }
            io(self.log.write_at(offset, &aligned(&group))).and_then(|()| io(self.log.sync()))
        });
        outcome.map(|()| upto)
    }

    /// Freezes the active table and begins the other segment.
    fn switch_segment(&self, state: &mut State) -> Result<(), KvError> {
        freeze(state);
        state.segment = 1 - state.segment;
        state.at = BLOCK;
        state.generation += 1;
        let (segment, generation) = (state.segment, state.generation);
        let starts = state.starts.clone();
        for start in starts {
            let end = record_end(&state.pending, start);
            log::reseal(&mut state.pending[start..end], generation);
        }
        // No sync of its own: a group is valid only with its head, and one sync covers both.
        write_head(&*self.log, self.config, segment, generation)
    }
}

fn record_end(pending: &[u8], start: usize) -> usize {
    let mut len = [0; 4];
    len.copy_from_slice(&pending[start..start + 4]);
    start + RECORD_HEAD + u32::from_le_bytes(len) as usize
}

fn freeze(state: &mut State) {
    let table = std::mem::take(&mut state.active);
    state.frozen = Some(Arc::new(Frozen { table, last: state.last }));
}

fn io<T>(outcome: std::io::Result<T>) -> Result<T, KvError> {
    outcome.map_err(|e| match e.raw_os_error() {
        Some(28) => KvError::NoSpace,
        _ => KvError::Io(e.to_string()),
    })
}

fn aligned(bytes: &[u8]) -> AlignedBuf {
    let mut buf = AlignedBuf::zeroed(bytes.len());
    buf.copy_from_slice(bytes);
    buf
}

/// Finds the length of the log's segments; makes the log of a new store. A log that does not fit
/// its tables is refused, never made anew: it may hold the only copy of what was acknowledged.
fn settle_log(log: &dyn Disk, tables: &Tables, config: KvConfig) -> Result<usize, KvError> {
    let len = io(log.len())?;
    let stored = tables.state("segment_bytes")? as usize;
    if tables.state("epoch")? > 0 {
        let segment = if stored > 0 { stored } else { config.segment_bytes };
        if len < 2 * segment as u64 {
            let damage = format!("the log has {len} bytes of {}", 2 * segment);
            return Err(KvError::Damaged(damage));
        }
        return Ok(segment);
    }
    if head_at(log, 0)? != HeadState::Empty {
        return Err(KvError::Damaged("there is a log, but its tables are empty".into()));
    }
    zero_log(log, config.segment_bytes)?;
    Ok(config.segment_bytes)
}

/// Of the segment that starts there, which a short file may not have.
fn head_at(log: &dyn Disk, start: u64) -> Result<HeadState, KvError> {
    let len = io(log.len())?.saturating_sub(start).min(BLOCK as u64);
    let mut head = AlignedBuf::zeroed(len as usize);
    io(log.read_at(start, &mut head))?;
    Ok(SegmentHead::decode(&head))
}

/// Writes zeros once, so that later syncs need no journal commit of the file system below.
fn zero_log(log: &dyn Disk, segment_bytes: usize) -> Result<(), KvError> {
    let total = 2 * segment_bytes as u64;
    io(log.set_len(total))?;
    let zeros = AlignedBuf::zeroed((1 << 20).min(segment_bytes));
    let mut at = 0;
    while at < total {
        let part = zeros.len().min((total - at) as usize);
        io(log.write_at(at, &zeros[..part]))?;
        at += part as u64;
    }
    io(log.sync())
}

fn write_head(
    log: &dyn Disk,
    config: KvConfig,
    segment: usize,
    generation: u64,
) -> Result<(), KvError> {
    let head = SegmentHead { generation }.encode();
    io(log.write_at((segment * config.segment_bytes) as u64, &aligned(&head)))
}

/// Reads both segments, the older first, and applies what the tables do not have.
fn replay(
    log: &dyn Disk,
    config: KvConfig,
    state: &mut State,
    epoch: &mut u64,
) -> Result<(), KvError> {
    let mut segments = Vec::new();
    for segment in 0..2 {
        let start = (segment * config.segment_bytes) as u64;
        match head_at(log, start)? {
            HeadState::Empty => {}
            HeadState::Damaged => {
                return Err(KvError::Damaged(format!("head of log segment {segment}")));
            }
            HeadState::Valid(head) => {
                let mut bytes = AlignedBuf::zeroed(config.segment_bytes);
                io(log.read_at(start, &mut bytes))?;
                segments.push((head.generation, bytes));
            }
            HeadState::UnknownFormat(found) => {
                return Err(KvError::Version { found, known: log::FORMAT });
            }
        }
    }
    segments.sort_by_key(|(generation, _)| *generation);
    let stored = state.last;
    for (generation, bytes) in segments {
        let (records, gap) = log::scan(&bytes, generation);
        // A crash may lose the new head of a segment and keep some of its first group: then what
        // is left of the older use looks damaged. The tables have all of that.
        if let Gap::Damage { at, later } = gap
            && later > stored
        {
            return Err(KvError::Damaged(format!("log block {} is unreadable", at / BLOCK)));
        }
        state.generation = state.generation.max(generation);
        for record in records {
            if record.epoch < *epoch || record.sequence <= state.last {
                continue;
            }
            if record.sequence != state.last + 1 {
                let (have, next) = (state.last, record.sequence);
                return Err(KvError::Damaged(format!("log jumps from {have} to {next}")));
            }
            *epoch = record.epoch;
            state.last = record.sequence;
            state.active.apply(&record.batch);
        }
    }
    Ok(())
}

impl Engine for Embedded {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, KvError> {
        let state = self.state.lock();
        if let Some(value) = state.active.get(key) {
            return Ok(value.map(<[u8]>::to_vec));
        }
        if let Some(value) = state.frozen.as_ref().and_then(|f| f.table.get(key)) {
            return Ok(value.map(<[u8]>::to_vec));
        }
        // Unlocked: a frozen table leaves memory only after the tables have it.
        drop(state);
        self.tables.get(key)
    }

    fn scan(&self, prefix: &[u8], after: &[u8], limit: usize) -> Result<Vec<Pair>, KvError> {
        if after >= prefix {
            return self.scan_above(prefix, after, limit, Vec::new());
        }
        // The range below excludes its start.
        let mut out = Vec::new();
        if limit > 0
            && let Some(value) = self.get(prefix)?
        {
            out.push((prefix.to_vec(), value));
        }
        self.scan_above(prefix, prefix, limit, out)
    }

    fn commit(&self, batch: Batch) -> Result<CommitId, KvError> {
        let (bytes, most) = (batch.bytes(), self.most());
        if bytes > most {
            return Err(KvError::TooLarge { bytes, most });
        }
        let mut state = self.state.lock();
        if batch.is_empty() && !state.stopped {
            return Ok(CommitId(state.last));
        }
        // A group must fit into a segment with room to spare: flush a large backlog first.
        loop {
            if state.stopped {
                return Err(KvError::Stopped);
            }
            if state.starved && !self.fits(&state, RECORD_HEAD + bytes) {
                return Err(KvError::NoSpace);
            }
            if state.pending.len() <= self.config.segment_bytes / 4 {
                break;
            }
            if state.flushing {
                self.progress.wait(&mut state);
            } else {
                self.flush_group(&mut state)?;
            }
        }
        state.last += 1;
        let (sequence, generation) = (state.last, state.generation);
        let start = state.pending.len();
        let place = if start == 0 { Place::First } else { Place::Later };
        state.starts.push(start);
        log::encode(&mut state.pending, generation, self.epoch, sequence, place, &batch);
        state.active.apply(&batch);
        Ok(CommitId(sequence))
    }

    fn wait_durable(&self, id: CommitId) -> Result<(), KvError> {
        let mut state = self.state.lock();
        // A number that was never given cannot be waited for.
        let wanted = id.0.min(state.last);
        while state.durable < wanted {
            if state.stopped {
                return Err(KvError::Stopped);
            }
            if state.flushing {
                self.progress.wait(&mut state);
            } else {
                self.flush_group(&mut state)?;
            }
        }
        Ok(())
    }

    fn last_commit(&self) -> CommitId {
        CommitId(self.state.lock().last)
    }

    fn durable(&self) -> CommitId {
        CommitId(self.state.lock().durable)
    }
}

impl Embedded {
    /// Longest batch: with a full backlog before it, it still fits into a segment.
    fn most(&self) -> usize {
        MAX_BODY.min(self.config.segment_bytes / 2)
    }

    fn scan_above(
        &self,
        prefix: &[u8],
        after: &[u8],
        limit: usize,
        mut out: Vec<Pair>,
    ) -> Result<Vec<Pair>, KvError> {
        let state = self.state.lock();
        let empty = MemTable::default();
        let frozen = state.frozen.as_ref().map_or(&empty, |f| &f.table);
        let changes = overlay(state.active.above(after), frozen.above(after));
        let more = limit.saturating_sub(out.len());
        out.extend(merge(changes, prefix, after, more, |from| self.tables.page(prefix, from))?);
        Ok(out)
    }
}
