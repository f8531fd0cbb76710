//! The queue of journal steps on their way to the server: in order, each once. Pure: the caller
//! brings the time, makes the calls, and reports their outcome.
//!
//! QUEUE-1 One batch is under way at a time. While its outcome is not known, the client sends the
//!    same batch again, unchanged and in the same reply slot. The batch may have been carried out,
//!    and the steps after it rely on it.
//! QUEUE-2 A step is flushed when all steps up to it were answered as durable, in the order of
//!    numbers.
//! QUEUE-3 A lost step takes all steps after it along. Later steps begin anew.
//!
//! Callers: `tell.rs`, and the simulator.

use std::collections::VecDeque;
use std::time::Instant;

use nuri_proto::Status;
use nuri_proto::clock::LOG_DELAY;
use nuri_proto::id::{Ino, SessionId};
use nuri_proto::limit::{MAX_ARGS, MAX_PAYLOAD};
use nuri_proto::op::log::{Apply, Change, Step};
use nuri_proto::op::meta::MakeKind;
use nuri_proto::status::RetryClass;
use nuri_rules::broken;

/// Steps beyond which the server is asked directly, which tells them all.
const MOST_STEPS: usize = 8192;
/// Most steps of one call.
pub const BATCH: usize = 256;
/// Their bytes, of what a call may have.
const BATCH_ARGS: usize = MAX_ARGS / 2;
const BATCH_PAYLOAD: usize = MAX_PAYLOAD / 2;
/// Bytes of an answer in which a file's place is told, at most.
const LONGEST_RECORD: usize = 16 << 10;

/// Journal steps that are not flushed yet. `K` is what the caller keeps with a batch: at least the
/// reply slot under which it was sent.
#[derive(Default)]
pub struct Queue<K> {
    steps: VecDeque<Logged>,
    /// Number of the last step, and of the last one that is told or lost.
    last: u64,
    told: u64,
    /// Since when the oldest waits.
    since: Option<Instant>,
    unsure: Option<Batch<K>>,
}

/// A step of the journal.
pub struct Logged {
    pub step: Step,
    /// Of a publication.
    pub inline: Vec<u8>,
    /// Inodes that it concerns.
    pub touched: Vec<Ino>,
}

/// Steps on their way.
pub struct Batch<K> {
    pub call: Apply,
    pub payload: Vec<u8>,
    /// Inodes that it makes.
    pub made: Vec<Ino>,
    /// Inodes that its steps concern.
    pub touched: Vec<Ino>,
    /// Whose leases it relies on.
    pub session: SessionId,
    pub kept: K,
    /// Numbers of its first and last step.
    first: u64,
    last: u64,
}

/// What an answer, or its absence, says of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Done, durably.
    Told,
    /// It may have been done, or there is no room: it has to be told again.
    Unsure,
    /// It never will be: the session ended, or the server refuses it.
    Lost,
}

impl Outcome {
    /// The outcome of a call that came back with this status.
    pub fn of(status: Status) -> Outcome {
        match status {
            Status::OK => Outcome::Told,
            Status::SESSION_GONE => Outcome::Lost,
            Status::NOSPC => Outcome::Unsure,
            _ if status.retry() == RetryClass::Later => Outcome::Unsure,
            _ => Outcome::Lost,
        }
    }
}

/// What was lost.
pub struct Lost<K> {
    /// Steps up to this one were told.
    pub told: u64,
    /// The batch whose outcome was not known.
    pub unsure: Option<Batch<K>>,
}

impl<K: Default> Queue<K> {
    /// Appends a step; returns its number.
    pub fn append(&mut self, step: Logged, now: Instant) -> u64 {
        self.steps.push_back(step);
        self.since.get_or_insert(now);
        self.last += 1;
        self.last
    }

    /// Number of the last step.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Number of the last step that is flushed or lost.
    pub fn settled(&self) -> u64 {
        self.told
    }

    /// Whether another step may be journalled.
    pub fn has_room(&self) -> bool {
        self.steps.len() < MOST_STEPS
    }

    /// Whether steps wait that no batch has taken.
    pub fn is_waiting(&self) -> bool {
        self.since.is_some()
    }

    /// Whether it is time to flush.
    pub fn is_due(&self, now: Instant) -> bool {
        let is_old = self.since.is_some_and(|at| now.saturating_duration_since(at) >= LOG_DELAY);
        is_old || self.unsure.is_some() || self.steps.len() >= BATCH
    }

    /// The batch to flush next (QUEUE-1). The caller that takes it reports the outcome:
    /// [`Queue::told`], [`Queue::unsure`] or [`Queue::lose`].
    pub fn next(&mut self, session: SessionId, now: Instant) -> Batch<K> {
        let overtakes = broken!("log_overtakes") && !self.steps.is_empty();
        match self.unsure.take_if(|_| !overtakes) {
            Some(batch) => batch,
            None => self.take(session, now),
        }
    }

    /// The oldest steps, as many as fit.
    fn take(&mut self, session: SessionId, now: Instant) -> Batch<K> {
        let (mut steps, mut payload, mut touched) = (Vec::new(), Vec::new(), Vec::new());
        let mut args = 0;
        while let Some(next) = self.steps.front() {
            args += next.len();
            let full = steps.len() == BATCH
                || args > BATCH_ARGS
                || payload.len() + next.inline.len() > BATCH_PAYLOAD;
            if full && !steps.is_empty() {
                break;
            }
            let Some(next) = self.steps.pop_front() else { break };
            payload.extend(next.inline);
            touched.extend(next.touched);
            steps.push(next.step);
        }
        self.since = (!self.steps.is_empty()).then_some(now);
        let last = self.last - self.steps.len() as u64;
        let first = last + 1 - steps.len() as u64;
        let made = |step: &Step| match &step.change {
            Change::Make(ino, _) => Some(*ino),
            _ => None,
        };
        let made = steps.iter().filter_map(made).collect();
        let (call, kept) = (Apply { steps }, K::default());
        Batch { call, payload, made, touched, session, kept, first, last }
    }

    /// Notes that the batch is carried out, durably.
    pub fn told(&mut self, batch: &Batch<K>) {
        self.told = self.told.max(batch.last);
    }

    /// Notes that the batch has to be sent again.
    pub fn unsure(&mut self, batch: Batch<K>) {
        self.unsure = Some(batch);
    }

    /// Drops all steps: neither journalled steps nor the batch under way can be flushed any more
    /// (QUEUE-3).
    pub fn lose(&mut self) -> Lost<K> {
        self.steps.clear();
        self.since = None;
        let told = std::mem::replace(&mut self.told, self.last);
        Lost { told, unsure: self.unsure.take() }
    }
}

impl<K> Batch<K> {
    /// Number of its last step.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Files that the batch reports to grow, each with the number of the step that reports it.
    pub fn grown(&self) -> impl Iterator<Item = (Ino, u64)> + '_ {
        let numbered = self.call.steps.iter().zip(self.first..);
        // Those that were added are as of its last step.
        numbered.filter_map(|(step, number)| match &step.change {
            Change::Extend(call) => Some((call.ino, number.min(self.last))),
            _ => None,
        })
    }

    /// Adds a step that was not journalled and may go along, because its data is known only now.
    pub fn add(&mut self, step: Step, inline: Vec<u8>) {
        self.call.steps.push(step);
        self.payload.extend(inline);
    }

    /// Adds a step that was not logged and says of a file that it grows, while the answer can tell
    /// of its place.
    /// Where a file lies takes so many bytes of an answer.
    pub fn add_place(&mut self, grows: Logged, record: usize) {
        let told = |step: &&Step| matches!(step.change, Change::Extend(_));
        let places = self.call.steps.iter().filter(told).count();
        if (places + 1) * record.min(LONGEST_RECORD) <= BATCH_ARGS {
            self.call.steps.push(grows.step);
        }
    }
}

impl Logged {
    /// A step without data.
    pub fn new(step: Step, touched: &[Ino]) -> Logged {
        Logged { step, inline: Vec::new(), touched: touched.to_vec() }
    }

    /// Bytes that it takes in a call or its answer, at most.
    fn len(&self) -> usize {
        let names = match &self.step.change {
            Change::Make(_, call) => match &call.kind {
                MakeKind::Symlink(to) => call.name.len() + to.len(),
                _ => call.name.len(),
            },
            Change::Unlink(call, _) => call.name.len(),
            Change::Rename(call, _) => call.name.len() + call.new_name.len(),
            Change::Link(call) => call.name.len(),
            Change::XattrSet(call) => call.name.len() + call.value.len(),
            Change::XattrRemove(call) => call.name.len(),
            Change::SetAttr(_) | Change::Publish(_) => 0,
            Change::Extend(_) => LONGEST_RECORD,
        };
        names + 128
    }
}

#[cfg(test)]
mod tests {
    use nuri_proto::codec;
    use nuri_proto::limit::{MAX_INLINE, MAX_SYMLINK};
    use nuri_proto::op::meta::{Exclusive, Make, SetAttr, SetTime, Time};

    use super::*;

    const SESSION: SessionId = SessionId(1);

    fn logged(ino: u64, inline: usize) -> Logged {
        let set = SetAttr { ino: Ino(ino), ..SetAttr::default() };
        let step = Step { at: Time::default(), change: Change::SetAttr(set) };
        Logged { step, inline: vec![7; inline], touched: vec![Ino(ino)] }
    }

    fn queue(steps: impl Iterator<Item = Logged>) -> Queue<u32> {
        let mut queue = Queue::default();
        steps.for_each(|step| {
            queue.append(step, Instant::now());
        });
        queue
    }

    fn next(queue: &mut Queue<u32>) -> Batch<u32> {
        queue.next(SESSION, Instant::now())
    }

    fn inos(batch: &Batch<u32>) -> Vec<u64> {
        batch.touched.iter().map(|ino| ino.0).collect()
    }

    #[test]
    fn batches_take_the_oldest_in_order_and_as_many_as_fit() {
        let mut queue = queue((0..BATCH as u64 + 3).map(|ino| logged(ino, 0)));
        let first = next(&mut queue);
        assert_eq!(inos(&first), (0..BATCH as u64).collect::<Vec<_>>());
        assert_eq!((first.last, queue.is_waiting()), (BATCH as u64, true));
        queue.told(&first);
        let rest = next(&mut queue);
        assert_eq!(inos(&rest), (BATCH as u64..BATCH as u64 + 3).collect::<Vec<_>>());
        assert_eq!((rest.last, queue.is_waiting()), (queue.last(), false));
        assert_eq!(queue.settled(), BATCH as u64);
        queue.told(&rest);
        assert_eq!(queue.settled(), queue.last());
    }

    #[test]
    fn data_of_a_batch_is_bounded_but_one_step_always_fits() {
        let sizes = [BATCH_PAYLOAD, 1, MAX_INLINE as usize];
        let mut queue = queue(sizes.into_iter().map(|size| logged(1, size)));
        let lens = std::iter::from_fn(|| queue.is_waiting().then(|| next(&mut queue)));
        let lens: Vec<_> = lens.map(|batch| batch.payload.len()).collect();
        assert_eq!(lens, [BATCH_PAYLOAD, 1 + MAX_INLINE as usize]);
    }

    /// Catches `broken!("log_overtakes")`.
    #[test]
    fn what_may_have_been_done_is_told_again_before_anything_later() {
        let mut queue = queue([logged(1, 0)].into_iter());
        let mut first = next(&mut queue);
        first.kept = 9;
        queue.unsure(first);
        queue.append(logged(2, 0), Instant::now());
        assert!(queue.is_due(Instant::now()), "there is something to tell again");
        let again = next(&mut queue);
        assert_eq!((inos(&again), again.kept), (vec![1], 9), "the same under the same slot");
        assert_eq!(queue.settled(), 0);
        queue.told(&again);
        assert_eq!((inos(&next(&mut queue)), queue.settled()), (vec![2], 1));
    }

    #[test]
    fn what_is_lost_is_settled_and_what_is_logged_later_is_told() {
        let mut queue = queue((0..3).map(|ino| logged(ino, 0)));
        let taken = next(&mut queue);
        queue.append(logged(3, 0), Instant::now());
        let lost = queue.lose();
        assert_eq!((lost.told, lost.unsure.is_none()), (0, true));
        assert_eq!((queue.settled(), queue.is_waiting()), (4, false));
        queue.append(logged(4, 0), Instant::now());
        queue.told(&taken);
        assert_eq!(queue.settled(), 4, "of before");
        let later = next(&mut queue);
        queue.told(&later);
        assert_eq!((inos(&later), queue.settled()), (vec![4], 5));
    }

    #[test]
    fn an_answer_tells_whether_to_tell_again() {
        for status in [Status::RETRY, Status::UNREACHABLE, Status::NOSPC] {
            assert_eq!(Outcome::of(status), Outcome::Unsure, "{status}");
        }
        for status in [Status::SESSION_GONE, Status::STALE, Status::EXIST] {
            assert_eq!(Outcome::of(status), Outcome::Lost, "{status}");
        }
        assert_eq!(Outcome::of(Status::OK), Outcome::Told);
    }

    #[test]
    fn no_step_takes_more_of_a_call_than_was_reckoned() {
        let far = Time { sec: i64::MIN, nsec: u32::MAX };
        let time = Some(SetTime::At(far));
        let (ino, most) = (Ino(u64::MAX), Some(u32::MAX));
        let set =
            SetAttr { ino, mode: most, uid: most, gid: most, size: None, atime: time, mtime: time };
        let make = |kind| Make {
            parent: ino,
            name: vec![255; 255],
            kind,
            mode: u32::MAX,
            umask: u32::MAX,
            uid: u32::MAX,
            gid: u32::MAX,
            exclusive: Exclusive::Yes,
        };
        for change in [
            Change::SetAttr(set),
            Change::Make(ino, make(MakeKind::File)),
            Change::Make(ino, make(MakeKind::Symlink(vec![255; MAX_SYMLINK]))),
        ] {
            let logged = Logged::new(Step { at: far, change }, &[]);
            assert!(codec::encode(&logged.step).unwrap().len() <= logged.len());
        }
    }
}
