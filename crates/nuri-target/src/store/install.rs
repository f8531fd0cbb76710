//! Installs content that others computed: a chunk's whole content comes in parts, and becomes the
//! base with the last part.
//!
//! ```text
//! 1 write each part beside the base, as any unsynced write   crash: dropped at the next opening
//! 2 with the last one: a record that makes them the base     crash: the old base or the new
//! 3 sync data, then the log
//! ```
//! One part of a chunk is written at a time. Truncation ends an install at any moment. Step 2 is
//! never done while a checkpoint is between its first and fourth step (`shadow.rs`).

use nuri_io::disk::Disk;
use nuri_proto::id::{ChunkKey, Epoch};
use nuri_proto::limit::MAX_PAYLOAD;
use nuri_proto::op::data::Durability;
use nuri_proto::op::member::Install;
use nuri_proto::stripe::{Covers, Held};
use nuri_stripe::member;

use super::credits::{Need, Payer};
use super::error::StoreError;
use super::log::{Body, Record};
use super::member::check_words;
use super::shadow::parts_of;
use super::state::State;
use super::trim_zeros::is_zero;
use super::write::check_range;
use super::{BLOCK, CHUNK_BLOCKS, ChunkStore};

impl<D: Disk> ChunkStore<D> {
    /// Takes one part, which starts on a block, and tells what is held then. The last one makes
    /// all of them the base, durably, where that is newer or the base is damaged; what no part
    /// covered is a hole. Parts come in order: one at 0 begins anew, one of another install than
    /// the running one changes nothing.
    ///
    /// # Errors
    /// No space: the parts before are gone too.
    pub fn install(
        &self,
        key: ChunkKey,
        install: &Install,
        data: &[u8],
    ) -> Result<Held, StoreError> {
        check_range(install.offset, data.len())?;
        check_words(key, &install.covers)?;
        if data.len() > MAX_PAYLOAD || !install.offset.is_multiple_of(BLOCK as u32) {
            return Err(StoreError::OutOfRange);
        }
        let _one_part = self.install_lock(key).lock();
        if !self.begin_part(key, install)? {
            return self.held(key);
        }
        let outcome = self.write_part(parts_of(key), install.offset, data);
        if outcome.is_ok() && install.last {
            return self.make_base(key, install);
        }
        let goes_on = is_running(&self.state.lock(), key, install);
        if outcome.is_err() || !goes_on {
            self.drop_parts(key)?;
        }
        outcome.and_then(|()| self.look(key))
    }

    /// Drops the chunk and what is held of its stripe, durably, if that is what the caller saw and
    /// no write of `epoch` is staged on it. Returns whether it did.
    /// One record, so that the bytes never stand for anything else: an install of nothing.
    ///
    /// # Errors
    /// Out of service.
    pub fn forget(&self, key: ChunkKey, saw: &Covers, epoch: Epoch) -> Result<bool, StoreError> {
        check_words(key, saw)?;
        let _no_part = self.install_lock(key).lock();
        loop {
            let before = self.look(key)?;
            if !member::forgets(&before, saw, epoch) {
                return Ok(false);
            }
            self.drop_parts(key)?;
            let body = Body::new(&Record::Install { key, held: Held::default() });
            let mut guard = self.admit(Payer::Upkeep, body.log_len(), 0, |_| Need::NONE)?;
            let state = &mut *guard;
            if state.contents.members.get(key) != before {
                continue;
            }
            let change = state.contents.install(key, state.journal.next_seq(), &Held::default());
            let seq = state.commit(&body, change);
            self.nudge(state);
            drop(guard);
            return self.flush_to(seq).map(|()| true);
        }
    }

    /// Whether the part belongs to what is under way, or begins it.
    fn begin_part(&self, key: ChunkKey, install: &Install) -> Result<bool, StoreError> {
        let allowed = member::installs(&self.look(key)?, install);
        if allowed && install.offset == 0 {
            self.drop_parts(key)?;
            let mut state = self.state.lock();
            state.contents.installing.insert(key, (install.id, 0));
            return Ok(true);
        }
        let mut state = self.state.lock();
        let running = state.contents.installing.get_mut(&key);
        let Some((_, at)) = running.filter(|(id, at)| *id == install.id && *at <= install.offset)
        else {
            return Ok(false);
        };
        *at = install.offset;
        drop(state);
        if !allowed {
            self.drop_parts(key)?;
        }
        Ok(allowed)
    }

    /// Blocks of zeros stay holes.
    fn write_part(&self, parts: ChunkKey, offset: u32, data: &[u8]) -> Result<(), StoreError> {
        let blocks: Vec<&[u8]> = data.chunks(BLOCK).collect();
        let mut rest = data;
        let mut at = offset;
        for run in blocks.chunk_by(|a, b| is_zero(a) == is_zero(b)) {
            let (now, later) = rest.split_at((run.len() * BLOCK).min(rest.len()));
            if !is_zero(run[0]) {
                self.write(parts, at, now, Durability::Memory)?;
            }
            at += now.len() as u32;
            rest = later;
        }
        Ok(())
    }

    /// Steps 2 and 3.
    fn make_base(&self, key: ChunkKey, install: &Install) -> Result<Held, StoreError> {
        loop {
            let before = self.look(key)?;
            let held = member::installed(&before, install);
            let is_new = before == Held::default();
            let record = Record::Install { key, held };
            let body = Body::new(&record);
            let need = |_: &State| Need::new(is_new.into());
            let mut guard = self.admit(Payer::Upkeep, body.log_len(), 0, need)?;
            let state = &mut *guard;
            if state.quarantine {
                drop(guard);
                drop(self.checkpointing.lock());
                continue;
            }
            let Record::Install { held, .. } = record else { return Ok(before) };
            if !is_running(state, key, install) || !member::installs(&before, install) {
                drop(guard);
                self.drop_parts(key)?;
                return self.held(key);
            }
            if state.contents.members.get(key) != before {
                continue;
            }
            let change = state.contents.install(key, state.journal.next_seq(), &held);
            let seq = state.commit(&body, change);
            self.nudge(state);
            drop(guard);
            self.flush_to(seq)?;
            return self.look(key);
        }
    }

    fn drop_parts(&self, key: ChunkKey) -> Result<(), StoreError> {
        let parts = parts_of(key);
        let any = {
            let mut state = self.state.lock();
            state.contents.installing.remove(&key);
            state.contents.held(parts, 0, CHUNK_BLOCKS) > 0
        };
        if any {
            let record = Record::Punch { key: parts, at: 0, len: CHUNK_BLOCKS };
            self.log_change(&record, |c, seq| c.punch(parts, seq, 0, CHUNK_BLOCKS))?;
        }
        Ok(())
    }
}

fn is_running(state: &State, key: ChunkKey, install: &Install) -> bool {
    state.contents.installing.get(&key).is_some_and(|(id, _)| *id == install.id)
}
