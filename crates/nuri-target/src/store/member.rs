//! Chunks of redundant groups: writes staged beside the base, committed or aborted later.
//!
//! `nuri_stripe::member` decides what may happen. This is the order of staging a write. The lock is
//! held in 1 and 4 only, and nothing is locked per chunk:
//! ```text
//! 1 decide; where the write before is known to be decided, commit that first
//! 2 make whole blocks: merge parts of blocks, or add, with what the base holds
//! 3 write long runs of them to new places   crash: orphan bytes in free blocks
//! 4 if nothing came in between (else 1): one record with all of it, and what is held then
//! 5 sync data, then the log                 crash: nothing staged before, all of it after
//! ```
//! A commit moves the blocks in memory and appends a record. An answer that tells what is held
//! leaves when that is durable. The answer to a commit does not wait, because its caller knows what
//! was decided.

use nuri_io::buf::AlignedBuf;
use nuri_io::disk::Disk;
use nuri_proto::id::{ChunkKey, Epoch, GroupId, ObjectId};
use nuri_proto::limit::{MAX_MEMBERS, MAX_PAYLOAD};
use nuri_proto::op::member::Purpose;
use nuri_proto::stripe::{Change, Covers, Held, Stage, StageReply, Version};
use nuri_rules::broken;
use nuri_stripe::member::{self, First, ReadVerdict, StageVerdict};

use super::contents::smalls;
use super::credits::{Need, Payer};
use super::error::StoreError;
use super::log::{Body, Record};
use super::shadow::{is_base, staged_of};
use super::state::State;
use super::sums::raw_sums;
use super::write::{check_range, split};
use super::{BLOCK, ChunkStore};

/// Stripes looked at under the lock at once.
const LOOK: usize = 4096;

/// What a read of a member found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MemberRead {
    /// The bytes stand for this.
    Read(Covers),
    /// A write is staged of which the reader does not know what became.
    Undecided,
}

/// What a stripe was like when it was looked at.
#[derive(PartialEq, Eq)]
struct Seen {
    held: Held,
    /// Of the base's bytes.
    version: u64,
}

impl Seen {
    /// What the base will stand for, to a reader that asks for what comes after the write that is
    /// staged.
    fn covers_after(&self, purpose: Purpose) -> Option<Covers> {
        let Purpose::After { version, id } = purpose else { return None };
        let staged = self.held.staged.as_ref().filter(|s| s.version == version && s.id == id);
        staged.map(|s| s.covers.clone())
    }

    fn now(state: &State, key: ChunkKey) -> Seen {
        Seen { held: state.contents.members.get(key), version: state.contents.index.version(key) }
    }
}

enum Decision {
    Go(Seen, First),
    Answer(StageReply),
}

/// The blocks of a write, whole: a long run that goes straight to the disk, and others.
struct Blocks<'a> {
    at: u32,
    run: &'a [u8],
    loose: Vec<u64>,
    bytes: Vec<u8>,
}

impl<D: Disk> ChunkStore<D> {
    /// As [`ChunkStore::stage_for`], for nobody's programs.
    ///
    /// # Errors
    /// The same.
    pub fn stage(
        &self,
        key: ChunkKey,
        ask: &Stage,
        change: Change,
        data: &[u8],
    ) -> Result<StageReply, StoreError> {
        self.stage_for(Payer::Upkeep, key, ask, change, data)
    }

    /// Holds a write durably beside the base, where the rules allow it.
    ///
    /// # Errors
    /// No space but what was promised to others, and nothing changed; a part of a block that cannot
    /// be read from the base.
    pub fn stage_for(
        &self,
        payer: Payer,
        key: ChunkKey,
        ask: &Stage,
        change: Change,
        data: &[u8],
    ) -> Result<StageReply, StoreError> {
        let (Change::Bytes { offset } | Change::Xor { offset }) = change;
        check_range(offset, data.len())?;
        check_words(key, &ask.covers)?;
        if data.len() > MAX_PAYLOAD {
            return Err(StoreError::OutOfRange);
        }
        loop {
            let (seen, first) = match self.decide(key, ask)? {
                Decision::Go(seen, first) => (seen, first),
                Decision::Answer(reply) => {
                    self.flush()?;
                    return Ok(reply);
                }
            };
            let mut sum = AlignedBuf::zeroed(0);
            let blocks = match change {
                Change::Bytes { .. } => self.whole_blocks(key, seen.version, offset, data)?,
                Change::Xor { .. } => self.sum_blocks(key, &seen, offset, data, &mut sum)?,
            };
            let staged = match blocks {
                Some(blocks) => self.put_staged((payer, key, ask), &seen, first, &blocks)?,
                None => None,
            };
            let Some((seq, blocks)) = staged else { continue };
            if !broken!("stage_unflushed") {
                self.flush_to(seq)?;
            }
            return Ok(StageReply::Staged { allocated: blocks * BLOCK as u64 });
        }
    }

    /// Step 1.
    fn decide(&self, key: ChunkKey, ask: &Stage) -> Result<Decision, StoreError> {
        let state = self.state.lock();
        state.check()?;
        let seen = Seen::now(&state, key);
        let decision = match member::stage(&seen.held, ask) {
            StageVerdict::Accept(First::Commit) => {
                let version = seen.held.staged.map_or(Version::NONE, |staged| staged.version);
                drop(state);
                self.commit(key, version)?;
                return self.decide(key, ask);
            }
            StageVerdict::Accept(first) => Decision::Go(seen, first),
            StageVerdict::Already => {
                let is_staged = seen.held.staged.is_some_and(|staged| staged.id == ask.id);
                let gained = if is_staged { state.contents.gained(staged_of(key)) } else { 0 };
                let allocated = gained * BLOCK as u64;
                Decision::Answer(StageReply::Staged { allocated })
            }
            StageVerdict::Refuse => Decision::Answer(StageReply::Refused(seen.held)),
        };
        Ok(decision)
    }

    /// Step 2 of bytes that are added to those of the base; they come to lie in `sum`.
    fn sum_blocks<'a>(
        &self,
        key: ChunkKey,
        seen: &Seen,
        offset: u32,
        data: &[u8],
        sum: &'a mut AlignedBuf,
    ) -> Result<Option<Blocks<'a>>, StoreError> {
        let skip = offset as usize % BLOCK;
        let at = offset - skip as u32;
        let whole = if data.is_empty() { 0 } else { (skip + data.len()).next_multiple_of(BLOCK) };
        *sum = AlignedBuf::zeroed(whole);
        if !data.is_empty() && self.read_versioned(key, at, sum)? != seen.version {
            return Ok(None);
        }
        sum[skip..].iter_mut().zip(data).for_each(|(there, added)| *there ^= added);
        self.whole_blocks(key, seen.version, at, sum)
    }

    /// Step 2. `None` where the base is no longer of that version.
    fn whole_blocks<'a>(
        &self,
        key: ChunkKey,
        version: u64,
        offset: u32,
        data: &'a [u8],
    ) -> Result<Option<Blocks<'a>>, StoreError> {
        let (head, run, tail) = split(offset, data);
        let at = (offset as usize + head.len()).div_ceil(BLOCK) as u32;
        let end = offset + (head.len() + run.len()) as u32;
        let mut blocks = Blocks { at, run, loose: Vec::new(), bytes: Vec::new() };
        let ends = [(offset, head), (end, tail)];
        for (offset, part) in ends.into_iter().filter(|(_, part)| !part.is_empty()) {
            if !self.merge(key, version, offset, part, &mut blocks)? {
                return Ok(None);
            }
        }
        Ok(Some(blocks))
    }

    /// Adds whole blocks made of these bytes and, around them, those of the base.
    fn merge(
        &self,
        key: ChunkKey,
        version: u64,
        offset: u32,
        part: &[u8],
        blocks: &mut Blocks<'_>,
    ) -> Result<bool, StoreError> {
        let (skip, end) = (offset as usize % BLOCK, offset as usize + part.len());
        let first = offset / BLOCK as u32;
        let count = end.div_ceil(BLOCK) - first as usize;
        let start = blocks.bytes.len();
        blocks.bytes.resize(start + count * BLOCK, 0);
        blocks.loose.extend(u64::from(first)..u64::from(first) + count as u64);
        let bytes = &mut blocks.bytes[start..];
        let partial = skip > 0 || !end.is_multiple_of(BLOCK);
        if partial && self.read_ends(key, first, bytes, skip, end)? != version {
            return Ok(false);
        }
        bytes[skip..skip + part.len()].copy_from_slice(part);
        Ok(true)
    }

    /// Steps 3 and 4. The number of the record and the blocks gained, or `None` where something
    /// came in between.
    fn put_staged(
        &self,
        (payer, key, ask): (Payer, ChunkKey, &Stage),
        seen: &Seen,
        first: First,
        blocks: &Blocks<'_>,
    ) -> Result<Option<(u64, u64)>, StoreError> {
        let held = member::staged(&seen.held, ask, first);
        let raw = raw_sums(&blocks.bytes);
        let loose = smalls(&raw, &blocks.bytes);
        let count = loose.len();
        // Beside the base until the write is decided; then what the base has there is free.
        let run = (blocks.run.len() / BLOCK) as u32;
        let need_of_run = |state: &State| state.contents.need(key, blocks.at, run);
        let need_of_loose = |state: &State| {
            let needs = |block: &u64| state.contents.needs(key, *block as u32, 1);
            Need { blocks: count as u64, gained: blocks.loose.iter().map(needs).sum() }
        };
        self.with_blocks(payer, need_of_run, |runs, birth| {
            let (extents, sums) = self.lay(key, blocks.at, blocks.run, runs, birth)?;
            let (at, data) = (blocks.loose.clone(), &blocks.bytes[..]);
            let record = Record::Stage { key, held, extents, sums, blocks: at, raw, data };
            let body = Body::new(&record);
            let mut guard = self.admit(payer, body.log_len(), count, need_of_loose)?;
            let state = &mut *guard;
            if Seen::now(state, key) != *seen {
                return Ok(None);
            }
            let Record::Stage { held, extents, sums, blocks, .. } = record else {
                return Ok(None);
            };
            self.book(state, runs, &extents, &sums)?;
            state.credits.take(payer, count as u64);
            let loose = blocks.into_iter().map(|block| block as u32).zip(loose).collect();
            let seq = state.journal.next_seq();
            let change = state.contents.stage(key, seq, &held, &extents, loose);
            let gained = state.contents.gained(staged_of(key));
            let seq = state.commit(&body, change);
            self.nudge(state);
            Ok(Some((seq, gained)))
        })
    }

    /// The staged write becomes the base if it is of exactly this version; else nothing happens.
    /// Durable with the next flush.
    ///
    /// # Errors
    /// Out of service.
    pub fn commit(&self, key: ChunkKey, version: Version) -> Result<(), StoreError> {
        let body = Body::new(&Record::Commit { key, version });
        let mut guard = self.admit(Payer::Upkeep, body.log_len(), 0, |_| Need::NONE)?;
        let state = &mut *guard;
        if !member::commits(&state.contents.members.get(key), version) {
            return Ok(());
        }
        let change = state.contents.commit(key, state.journal.next_seq(), version);
        if broken!("commit_without_record") {
            return Ok(());
        }
        state.commit(&body, change);
        self.nudge(state);
        Ok(())
    }

    /// Nothing up to this version is staged any more, durably, also where the stripe was never
    /// written; what is staged so is dropped. Returns what is held then.
    ///
    /// # Errors
    /// Out of service; no space for one more entry in a full store.
    pub fn abort(
        &self,
        key: ChunkKey,
        group: GroupId,
        version: Version,
    ) -> Result<Held, StoreError> {
        self.change_held(key, |before| Held { group, ..member::aborted(before, version) })
    }

    /// As [`ChunkStore::abort`], but what is staged already stays.
    ///
    /// # Errors
    /// As [`ChunkStore::abort`].
    pub fn promise(
        &self,
        key: ChunkKey,
        group: GroupId,
        version: Version,
    ) -> Result<Held, StoreError> {
        self.change_held(key, |before| Held { group, ..member::promised(before, version) })
    }

    /// Takes back promises about versions of epochs that the space did not reach: nobody of it can
    /// have asked for them, and no write would ever be taken again. The caller sees to it that no
    /// write of before comes back.
    ///
    /// # Errors
    /// As [`ChunkStore::abort`].
    pub fn lower_promises(&self) -> Result<Vec<(ChunkKey, GroupId)>, StoreError> {
        let last = self.superblock().map_epoch;
        let mut beyond = self.state.lock().contents.members.beyond(last);
        beyond.retain(|(_, held)| held.floor.epoch() > last);
        for (key, _) in &beyond {
            self.change_held(*key, |before| Held { floor: Version::NONE, ..before.clone() })?;
        }
        Ok(beyond.into_iter().map(|(key, held)| (key, held.group)).collect())
    }

    fn change_held(
        &self,
        key: ChunkKey,
        change: impl Fn(&Held) -> Held,
    ) -> Result<Held, StoreError> {
        check_words(key, &Covers::default())?;
        loop {
            let before = self.look(key)?;
            let held = change(&before);
            let is_new = before == Held::default();
            let record = Record::Held { key, held };
            let body = Body::new(&record);
            let need = |_: &State| Need::new(is_new.into());
            let mut guard = self.admit(Payer::Upkeep, body.log_len(), 0, need)?;
            let state = &mut *guard;
            let Record::Held { held, .. } = record else { return Ok(before) };
            if state.contents.members.get(key) != before {
                continue;
            }
            let change = state.contents.set_held(key, state.journal.next_seq(), &held);
            let seq = state.commit(&body, change);
            self.nudge(state);
            drop(guard);
            if !broken!("abort_unflushed") {
                self.flush_to(seq)?;
            }
            return Ok(held);
        }
    }

    /// What is held of the stripe, durably.
    ///
    /// # Errors
    /// Out of service.
    pub fn held(&self, key: ChunkKey) -> Result<Held, StoreError> {
        let held = self.look(key)?;
        self.flush()?;
        Ok(held)
    }

    pub(super) fn look(&self, key: ChunkKey) -> Result<Held, StoreError> {
        let state = self.state.lock();
        state.check()?;
        Ok(state.contents.members.get(key))
    }

    /// Fills `buf` from the base, or as the base will be (`purpose`), and tells what the bytes
    /// stand for. A staged write of the version `decided` is committed first.
    ///
    /// # Errors
    /// As [`ChunkStore::read`].
    pub fn read_member(
        &self,
        key: ChunkKey,
        offset: u32,
        buf: &mut [u8],
        decided: Version,
        purpose: Purpose,
    ) -> Result<MemberRead, StoreError> {
        check_words(key, &Covers::default())?;
        loop {
            let seen = {
                let state = self.state.lock();
                state.check()?;
                Seen::now(&state, key)
            };
            match member::read(&seen.held, decided) {
                ReadVerdict::CommitFirst => {
                    self.commit(key, decided)?;
                    continue;
                }
                ReadVerdict::Undecided if purpose == Purpose::Use => {
                    return Ok(MemberRead::Undecided);
                }
                ReadVerdict::Undecided | ReadVerdict::Serve => {}
            }
            if let Some(covers) = seen.covers_after(purpose) {
                self.read_with_staged(key, offset, buf)?;
                if Seen::now(&self.state.lock(), key) == seen {
                    return Ok(MemberRead::Read(covers));
                }
                continue;
            }
            if buf.is_empty() || self.read_versioned(key, offset, buf)? == seen.version {
                return Ok(MemberRead::Read(seen.held.covers));
            }
        }
    }

    /// Stripes of the group that were written or staged in the epoch `since` or later, ascending
    /// from after `after`, at most `limit`.
    pub fn changed(
        &self,
        group: GroupId,
        since: Epoch,
        after: Option<ChunkKey>,
        limit: usize,
    ) -> Vec<(ChunkKey, Covers)> {
        let start = ChunkKey { object: ObjectId(0), component: 0, stripe: 0 };
        let mut next = Some(after.unwrap_or(start));
        let mut all = Vec::new();
        while let Some(from) = next.filter(|_| all.len() < limit) {
            let (found, more) =
                self.state.lock().contents.members.changed(group, since, from, LOOK);
            all.extend(found.into_iter().filter(|(key, _)| Some(*key) != after));
            next = more;
        }
        all.truncate(limit);
        all
    }
}

/// A key of a base, and no more versions than a group has members.
pub(super) fn check_words(key: ChunkKey, covers: &Covers) -> Result<(), StoreError> {
    let sane = is_base(key) && covers.0.len() <= MAX_MEMBERS;
    if sane { Ok(()) } else { Err(StoreError::OutOfRange) }
}
