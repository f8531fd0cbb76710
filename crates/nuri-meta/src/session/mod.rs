//! A client's session at the metadata server: its heartbeat, its reply slots, and the events that
//! it still has to hear.

pub(crate) mod eviction;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use nuri_proto::limit::MAX_EVENTS;
use nuri_proto::op::meta::Event;
use parking_lot::Condvar;

use crate::namespace::schema::SlotRecord;

/// A session in memory. Its record and slots are also in the store.
pub(crate) struct Session {
    pub(crate) client: String,
    /// When it was heard last (monotonic).
    pub(crate) heard: Duration,
    pub(crate) slots: HashMap<u32, SlotRecord>,
    /// Slots whose call is running now, with its sequence.
    pub(crate) busy: HashMap<u32, u64>,
    events: VecDeque<(u64, Event)>,
    next_event: u64,
    /// There is something to tell, or the session ended. Others have theirs and sleep on.
    pub(crate) told: Arc<Condvar>,
}

/// What a reply slot says of a call.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum SlotState {
    /// Not seen before: run it.
    New,
    /// Done before: this was the outcome.
    Done(SlotRecord),
    /// The first attempt is still running.
    Running,
    /// Older than what the slot remembers: a delayed duplicate.
    Overtaken,
}

impl Session {
    pub(crate) fn new(client: String, heard: Duration) -> Session {
        Session {
            client,
            heard,
            slots: HashMap::new(),
            busy: HashMap::new(),
            events: VecDeque::new(),
            next_event: 1,
            told: Arc::default(),
        }
    }

    pub(crate) fn slot(&self, slot: u32, sequence: u64) -> SlotState {
        match (self.busy.get(&slot), self.slots.get(&slot)) {
            (Some(running), _) if *running == sequence => SlotState::Running,
            (_, Some(done)) if done.sequence == sequence => SlotState::Done(done.clone()),
            (_, Some(done)) if done.sequence > sequence => SlotState::Overtaken,
            _ => SlotState::New,
        }
    }

    pub(crate) fn push(&mut self, event: Event) {
        self.events.push_back((self.next_event, event));
        self.next_event += 1;
        self.told.notify_all();
    }

    /// Drops the events that were acknowledged. Returns the next events to send, and the number of
    /// the last one.
    pub(crate) fn pending(&mut self, acknowledged: u64) -> (u64, Vec<Event>) {
        while self.events.front().is_some_and(|(number, _)| *number <= acknowledged) {
            self.events.pop_front();
        }
        let next = self.events.iter().take(MAX_EVENTS);
        let upto = next.clone().next_back().map_or(acknowledged, |(number, _)| *number);
        (upto, next.map(|(_, event)| *event).collect())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.told.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use nuri_proto::id::Ino;

    use super::*;

    #[test]
    fn events_come_again_until_acknowledged() {
        let mut session = Session::new(String::new(), Duration::ZERO);
        session.push(Event::Unlinked(Ino(5)));
        assert_eq!(session.pending(0), (1, vec![Event::Unlinked(Ino(5))]));
        session.push(Event::Unlinked(Ino(6)));
        assert_eq!(session.pending(0).1.len(), 2);
        assert_eq!(session.pending(2), (2, vec![]));
    }

    #[test]
    fn a_slot_knows_done_running_and_overtaken_calls() {
        let mut session = Session::new(String::new(), Duration::ZERO);
        let record = SlotRecord { sequence: 4, status: 0, reply: vec![1] };
        session.slots.insert(0, record.clone());
        session.busy.insert(1, 9);
        assert_eq!(session.slot(0, 4), SlotState::Done(record));
        assert_eq!(session.slot(0, 3), SlotState::Overtaken);
        assert_eq!(session.slot(0, 5), SlotState::New);
        assert_eq!(session.slot(1, 9), SlotState::Running);
    }
}
