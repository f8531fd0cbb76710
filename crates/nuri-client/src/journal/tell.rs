//! Flushes the journal to the server.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nuri_proto::Status;
use nuri_proto::clock::{LOG_DELAY, REQUEST};
use nuri_proto::limit::{MAX_INLINE, MAX_PAYLOAD};
use nuri_proto::op::log::{Applied, Change, Step};
use nuri_proto::op::meta::{Publish, PublishData, SetTime, Time};
use nuri_rpc::lock_within;
use nuri_rules::broken;

use super::Journal;
use super::queue::{Batch, Logged, Lost, Outcome};
use crate::inode::{FileData, Inode, InodeState};
use crate::lease::drain::Drain;
use crate::session::Slot;

/// What is kept with a batch.
#[derive(Default)]
pub(super) struct Sent {
    /// Where it was sent before, without an answer.
    slot: Option<Slot>,
    published: Vec<Published>,
}

/// A file whose data went along.
struct Published {
    node: Arc<Inode>,
    size: u64,
    version: u64,
}

/// The file's inline data as a step, and what it changes here.
pub(super) fn publication(state: &mut InodeState, now: Time) -> Option<Logged> {
    let (attr, file) = (state.attr.as_mut()?, state.file.as_ref()?);
    let own = &file.own;
    let inline = own.inline().filter(|data| data.len() as u64 == own.size())?.to_vec();
    let at = now.max(attr.ctime).max(own.mtime().unwrap_or_default());
    let (size, allocated) = (own.size(), own.size().next_multiple_of(512));
    attr.published(own.mtime());
    (attr.size, attr.allocated) = (size, allocated);
    let (ino, mtime, data) = (attr.ino, own.mtime().map(SetTime::At), PublishData::Inline);
    let call = Publish { ino, size, allocated, mtime, data };
    let step = Step { at, change: Change::Publish(call) };
    Some(Logged { step, inline, touched: vec![ino] })
}

/// Why steps cannot be flushed any more.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// With it goes all that is known.
    OfSession,
    /// The server refuses them, and the session goes on.
    OfSteps,
}

impl Batch<Sent> {
    /// Adds what was written to the files that it makes.
    fn add_data(&mut self, journal: &Journal) {
        for ino in self.made.clone() {
            let Some(node) = journal.inodes.find(ino) else { continue };
            let mut state = node.state.lock();
            let is_wanted = state.file.as_ref().is_some_and(|f| f.own.is_unpublished());
            let room = self.payload.len() + MAX_INLINE as usize <= MAX_PAYLOAD;
            if !is_wanted || !room || state.orphan {
                continue;
            }
            if let Some(floor) = state.waits_for_place() {
                self.add_place(journal.extension(ino, floor), journal.longest_record());
                continue;
            }
            let Some(data) = publication(&mut state, journal.session.now()) else { continue };
            let Some(file) = &state.file else { continue };
            let (size, version) = (file.own.size(), file.own.version());
            drop(state);
            self.add(data.step, data.inline);
            self.kept.published.push(Published { node, size, version });
        }
    }
}

/// What was logged under the lease is told before it goes (JOURNAL-4).
impl Drain for Journal {
    fn drain(&self, _: &Arc<Inode>) -> bool {
        broken!("recall_keeps_log") || self.flush().is_ok()
    }
}

impl Journal {
    /// Flushes everything that is journalled by now; it is durable when the call returns.
    ///
    /// # Errors
    /// The server is not reached, or has no space: then the rest is flushed later. Steps that were
    /// lost with a session are no error here, because the open files know.
    pub(crate) fn flush(&self) -> Result<(), Status> {
        let upto = self.state.lock().queue.last();
        if self.is_flushed(upto) {
            return Ok(());
        }
        let Some(_teller) = lock_within(&self.telling, REQUEST) else {
            return Err(Status::UNREACHABLE);
        };
        while !self.is_flushed(upto) {
            let mut log = self.state.lock();
            // Under the lock: what is logged in a session is told in it.
            let mut batch = log.queue.next(self.session.id(), Instant::now());
            drop(log);
            if batch.kept.slot.is_none() {
                batch.add_data(self);
            }
            self.tell(batch)?;
        }
        Ok(())
    }

    /// Bytes in which the server says where a file lies, at most.
    fn longest_record(&self) -> usize {
        const GROUP: usize = 5;
        128 + GROUP * self.cluster.with_map(|map| map.groups.len())
    }

    fn tell(&self, mut batch: Batch<Sent>) -> Result<(), Status> {
        let slot = batch.kept.slot.take().unwrap_or_else(|| self.session.take_slot());
        let answer = match batch.session == self.session.id() {
            true => self.session.change_in(slot, &batch.call, &batch.payload),
            false => Err(Status::SESSION_GONE),
        };
        let status = answer.as_ref().err().copied().unwrap_or(Status::OK);
        match (Outcome::of(status), answer) {
            (Outcome::Told, Ok(applied)) => {
                self.session.free_slot(slot);
                self.told(batch, &applied);
                Ok(())
            }
            (Outcome::Unsure, _) => {
                batch.kept.slot = Some(slot);
                self.state.lock().queue.unsure(batch);
                Err(status)
            }
            _ => {
                self.session.free_slot(slot);
                if status == Status::SESSION_GONE {
                    self.lose(Loss::OfSession);
                } else {
                    tracing::error!("client: the server refused what was logged: {status}");
                    self.lose(Loss::OfSteps);
                }
                Err(Status::IO)
            }
        }
    }

    fn told(&self, mut batch: Batch<Sent>, applied: &Applied) {
        let standing = self.session.standing();
        for (ino, grant) in batch.made.iter().zip(&applied.made) {
            if let Some(node) = self.inodes.find(*ino) {
                node.state.lock().hold.take(*grant, standing);
            }
        }
        for ((ino, step), record) in batch.grown().zip(&applied.placed) {
            self.inodes.with(ino, |_, state| {
                let is_current = |file: &&mut Box<FileData>| file.emptied_at <= step;
                if let Some(file) = state.file.as_mut().filter(is_current) {
                    self.place(file, record.clone());
                    file.own.growth_is_known();
                }
            });
        }
        for Published { node, size, version } in std::mem::take(&mut batch.kept.published) {
            let mut state = node.state.lock();
            let is_current = |file: &&mut Box<FileData>| file.emptied_at <= batch.last();
            let Some(file) = state.file.as_mut().filter(is_current) else { continue };
            file.own.published_inline(size, version);
        }
        let mut log = self.state.lock();
        log.queue.told(&batch);
        self.note_settled(&log);
        drop(log);
        for node in batch.touched.iter().filter_map(|ino| self.inodes.find(*ino)) {
            self.releaser.drop_if_unused(&node);
        }
    }

    /// Drops journalled steps that cannot be flushed any more. Programs hear of it from their open
    /// files, or when they sync a directory.
    pub(crate) fn lose(&self, loss: Loss) {
        let mut log = self.state.lock();
        // What a teller has taken is lost too: its session ended, or it says so itself.
        let Lost { told, unsure } = log.queue.lose();
        log.numbers = 0..0;
        log.directories.clear();
        log.parted.clear();
        log.losses += 1;
        self.note_settled(&log);
        drop(log);
        if let Some(slot) = unsure.and_then(|batch| batch.kept.slot) {
            self.session.free_slot(slot);
        }
        let mut lost = 0;
        for node in self.inodes.all() {
            let mut state = node.state.lock();
            state.names_known = false;
            state.names_changed();
            if state.logged > told {
                if loss == Loss::OfSteps {
                    self.forget_lost(&mut state);
                }
                state.note_error(Status::IO);
                lost += 1;
            }
        }
        if lost > 0 {
            tracing::error!(
                "client: names and attributes of {lost} inodes that were not synced are lost"
            );
        }
    }

    /// Forgets what was true only with steps that are lost.
    fn forget_lost(&self, state: &mut InodeState) {
        state.attr = None;
        state.xattrs.doubt();
        // Of a file that was made or emptied by a lost step the server knows another place.
        let unplaced = state.file.take_if(|file| !file.is_placed());
        let Some(mut file) = unplaced else { return };
        if file.own.is_dirty() && state.writers == 0 && !state.is_beyond_reach() {
            self.untold.fetch_add(1, Ordering::SeqCst);
        }
        self.budget.give(file.own.buffer.clear());
    }

    /// The worker: flushes steps that wait for long.
    pub(crate) fn run(&self) {
        while !self.session.stopping() {
            self.wait_logged(Duration::from_millis(200));
            if self.is_due() {
                if self.flush().is_err() {
                    std::thread::sleep(LOG_DELAY);
                }
            } else {
                std::thread::sleep(LOG_DELAY / 4);
            }
        }
    }
}

impl Journal {
    fn is_due(&self) -> bool {
        self.state.lock().queue.is_due(Instant::now())
    }
}
