//! Telling the server what was logged.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nuri_proto::Status;
use nuri_proto::clock::{LOG_DELAY, REQUEST};
use nuri_proto::id::{Ino, SessionId};
use nuri_proto::limit::{MAX_ARGS, MAX_INLINE, MAX_PAYLOAD};
use nuri_proto::op::log::{Applied, Apply, Change, Step};
use nuri_proto::op::meta::{Publish, PublishData, SetTime, Time};
use nuri_proto::status::RetryClass;

use super::{Log, LogState, Logged};
use crate::fs::Shared;
use crate::node::{Node, NodeState};
use crate::session::Slot;

/// Steps of one call.
const BATCH: usize = 256;
/// Their bytes, of what a call may have.
const BATCH_ARGS: usize = MAX_ARGS / 2;
const BATCH_PAYLOAD: usize = MAX_PAYLOAD / 2;

/// Steps on their way.
pub(super) struct Batch {
    call: Apply,
    payload: Vec<u8>,
    /// Number of its last step.
    last: u64,
    made: Vec<Ino>,
    published: Vec<Published>,
    touched: Vec<Ino>,
    /// Where it was sent before, without an answer.
    slot: Option<Slot>,
    /// Whose leases it relies on.
    session: SessionId,
}

/// A file whose data went along.
struct Published {
    node: Arc<Node>,
    size: u64,
    version: u64,
}

/// The file's inline data as a step, and what it changes here.
pub(super) fn publication(state: &mut NodeState, now: Time) -> Option<Logged> {
    let (attr, file) = (state.attr.as_mut()?, state.file.as_ref()?);
    let inline = file.inline.clone().filter(|data| data.len() as u64 == file.size)?;
    let at = now.max(attr.ctime).max(file.mtime.unwrap_or_default());
    let (size, allocated) = (file.size, file.size.next_multiple_of(512));
    attr.changed(at);
    (attr.size, attr.allocated) = (size, allocated);
    attr.mtime = file.mtime.unwrap_or(attr.mtime);
    let (ino, mtime, data) = (attr.ino, file.mtime.map(SetTime::At), PublishData::Inline);
    let call = Publish { ino, size, allocated, mtime, data };
    let step = Step { at, change: Change::Publish(call) };
    Some(Logged { step, inline, touched: vec![ino] })
}

impl Batch {
    /// The oldest steps, as many as fit.
    fn take(state: &mut LogState, told: u64, session: SessionId) -> Batch {
        let (mut steps, mut payload, mut touched) = (Vec::new(), Vec::new(), Vec::new());
        let mut args = 0;
        while let Some(next) = state.steps.front() {
            args += next.len();
            let full = steps.len() == BATCH
                || args > BATCH_ARGS
                || payload.len() + next.inline.len() > BATCH_PAYLOAD;
            if full && !steps.is_empty() {
                break;
            }
            let Some(next) = state.steps.pop_front() else { break };
            payload.extend(next.inline);
            touched.extend(next.touched);
            steps.push(next.step);
        }
        state.since = (!state.steps.is_empty()).then(Instant::now);
        let last = told + steps.len() as u64;
        let made = |step: &Step| match &step.change {
            Change::Make(ino, _) => Some(*ino),
            _ => None,
        };
        let made = steps.iter().filter_map(made).collect();
        let call = Apply { steps };
        Batch { call, payload, last, made, published: Vec::new(), touched, slot: None, session }
    }

    /// Adds what was written to the files that it makes.
    fn add_data(&mut self, shared: &Shared) {
        for ino in &self.made {
            let Some(node) = shared.find(*ino) else { continue };
            let mut state = node.state.lock();
            let is_wanted = state.file.as_ref().is_some_and(|f| f.unpublished.is_some());
            let room = self.payload.len() + MAX_INLINE as usize <= MAX_PAYLOAD;
            if !is_wanted || !room || state.orphan {
                continue;
            }
            let Some(data) = publication(&mut state, shared.session.now()) else { continue };
            let Some(file) = &state.file else { continue };
            let (size, version) = (file.size, file.version);
            drop(state);
            self.call.steps.push(data.step);
            self.payload.extend(data.inline);
            self.published.push(Published { node, size, version });
        }
    }
}

impl Shared {
    /// Tells everything that is logged by now; durable when it returns.
    ///
    /// # Errors
    /// The server is not reached, or has no room: what is not told is told later. What was lost
    /// with a session is no error here: the open files know.
    pub(crate) fn tell_log(&self) -> Result<(), Status> {
        let upto = self.log.state.lock().last;
        if self.log.is_told(upto) {
            return Ok(());
        }
        let Some(_teller) = self.log.telling.try_lock_for(REQUEST) else {
            return Err(Status::UNREACHABLE);
        };
        while !self.log.is_told(upto) {
            let unsure = self.log.state.lock().unsure.take();
            let batch = match unsure {
                Some(batch) => batch,
                None => {
                    let told = self.log.told.load(Ordering::SeqCst);
                    let session = self.session.id();
                    let mut batch = Batch::take(&mut self.log.state.lock(), told, session);
                    batch.add_data(self);
                    batch
                }
            };
            self.tell(batch)?;
        }
        Ok(())
    }

    fn tell(&self, mut batch: Batch) -> Result<(), Status> {
        let slot = batch.slot.take().unwrap_or_else(|| self.session.take_slot());
        let outcome = match batch.session == self.session.id() {
            true => self.session.change_in(slot, &batch.call, &batch.payload),
            false => Err(Status::SESSION_GONE),
        };
        let is_unsure = |status: &Status| {
            *status != Status::SESSION_GONE
                && (status.retry() == RetryClass::Later || *status == Status::NOSPC)
        };
        match outcome {
            Ok(applied) => {
                self.session.free_slot(slot);
                self.told(batch, &applied);
                Ok(())
            }
            Err(status) if is_unsure(&status) => {
                batch.slot = Some(slot);
                self.log.state.lock().unsure = Some(batch);
                Err(status)
            }
            Err(status) => {
                self.session.free_slot(slot);
                if status != Status::SESSION_GONE {
                    eprintln!("client: the server refused what was logged: {status}");
                }
                self.lose_log();
                Err(Status::IO)
            }
        }
    }

    fn told(&self, batch: Batch, applied: &Applied) {
        let standing = self.session.standing();
        for (ino, grant) in batch.made.iter().zip(&applied.made) {
            if let Some(node) = self.find(*ino) {
                node.state.lock().take_lease(*grant, standing);
            }
        }
        for Published { node, size, version } in batch.published {
            let mut state = node.state.lock();
            let Some(file) = &mut state.file else { continue };
            file.published_size = size;
            if file.version == version {
                file.unpublished = None;
            }
        }
        self.log.told.fetch_max(batch.last, Ordering::SeqCst);
        for node in batch.touched.iter().filter_map(|ino| self.find(*ino)) {
            self.drop_if_unused(&node);
        }
    }

    /// What is logged cannot be told any more: programs hear of it from their open files, and
    /// whoever syncs a directory.
    pub(crate) fn lose_log(&self) {
        let mut log = self.log.state.lock();
        log.steps.clear();
        let unsure = log.unsure.take();
        (log.since, log.numbers) = (None, 0..0);
        log.directories.clear();
        log.parted.clear();
        // What a teller has taken is lost too: its session ended, or it says so itself.
        let told = self.log.told.fetch_max(log.last, Ordering::SeqCst);
        drop(log);
        if let Some(slot) = unsure.and_then(|batch| batch.slot) {
            self.session.free_slot(slot);
        }
        let mut lost = 0;
        for node in self.all_nodes() {
            let mut state = node.state.lock();
            state.names_known = false;
            state.names_changed();
            if state.logged > told {
                state.note_error(Status::IO);
                lost += 1;
            }
        }
        if lost > 0 {
            eprintln!(
                "client: names and attributes of {lost} inodes that were not synced are lost"
            );
        }
    }

    /// Tells what waits for long.
    pub(crate) fn log_worker(&self) {
        while !self.stopping() {
            self.log.wait_logged(Duration::from_millis(200));
            if self.log.is_due() {
                if self.tell_log().is_err() {
                    std::thread::sleep(LOG_DELAY);
                }
            } else {
                std::thread::sleep(LOG_DELAY / 4);
            }
        }
    }
}

impl Log {
    fn is_due(&self) -> bool {
        let state = self.state.lock();
        let is_old = state.since.is_some_and(|since| since.elapsed() >= LOG_DELAY);
        is_old || state.unsure.is_some() || state.steps.len() >= BATCH
    }
}

#[cfg(test)]
mod tests {
    use nuri_proto::op::meta::SetAttr;

    use super::*;

    fn logged(ino: u64, inline: usize) -> Logged {
        let set = SetAttr { ino: Ino(ino), ..SetAttr::default() };
        let step = Step { at: Time::default(), change: Change::SetAttr(set) };
        Logged { step, inline: vec![7; inline], touched: vec![Ino(ino)] }
    }

    fn inos(batch: &Batch) -> Vec<u64> {
        batch.touched.iter().map(|ino| ino.0).collect()
    }

    #[test]
    fn batches_take_the_oldest_in_order_and_as_many_as_fit() {
        let mut state = LogState::default();
        (0..BATCH as u64 + 3).for_each(|ino| {
            state.append(logged(ino, 0));
        });
        let first = Batch::take(&mut state, 0, SessionId(1));
        assert_eq!(inos(&first), (0..BATCH as u64).collect::<Vec<_>>());
        assert_eq!((first.last, state.since.is_some()), (BATCH as u64, true));
        let rest = Batch::take(&mut state, first.last, SessionId(1));
        assert_eq!(inos(&rest), (BATCH as u64..BATCH as u64 + 3).collect::<Vec<_>>());
        assert_eq!((rest.last, state.last), (state.last, rest.last));
        assert!(state.since.is_none());
    }

    #[test]
    fn data_of_a_batch_is_bounded_but_one_step_always_fits() {
        let mut state = LogState::default();
        for size in [BATCH_PAYLOAD, 1, MAX_INLINE as usize] {
            state.append(logged(1, size));
        }
        let lens = |state: &mut LogState| {
            std::iter::from_fn(|| {
                (!state.steps.is_empty()).then(|| Batch::take(state, 0, SessionId(1)))
            })
            .map(|batch| batch.payload.len())
            .collect::<Vec<_>>()
        };
        assert_eq!(lens(&mut state), [BATCH_PAYLOAD, 1 + MAX_INLINE as usize]);
    }
}
