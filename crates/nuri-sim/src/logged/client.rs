//! A simulated client: the leases that it believes to hold, its journal, and what it still has to
//! send.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::time::Duration;

use nuri_client::lease::revocation::Revocation;
use nuri_client::lease::state::{GrantValidity, LeaseState};
use nuri_client::queue::{Logged, Queue};
use nuri_client::record::{Closed, LockKey, LockRecord};
use nuri_proto::id::{Ino, SessionId};
use nuri_proto::op::lock::{HeldLock, LockClass, LockMode, LockSet, LockTell};
use nuri_proto::op::meta::{Grant, LeaseMode, Recall, RecallDone};
use nuri_proto::range_map::RangeMap;

use super::tree::Note;
use super::turns::Parted;
use crate::check::{Wrong, wrong};

/// Programs of a client that lock files.
pub const OWNERS: u64 = 3;
/// Reply slots of a client: more than it has changes under way.
const SLOTS: u32 = 4;

/// A reply slot: the same number and sequence is the same change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot {
    pub number: u32,
    pub sequence: u64,
}

/// What is known of one inode: the client's own belief of its lease, and what lies under it.
#[derive(Clone, Default)]
pub struct Held {
    pub hold: LeaseState,
    /// What the lease covers was read under it.
    pub is_known: bool,
    /// Of a directory that was taken for a turn: its change counter then.
    pub taken: Option<u64>,
    /// Removed by this step of the log: it goes when that is told.
    pub gone_at: Option<u64>,
}

/// What is asked beside the log, in a slot until it is answered.
#[derive(Clone)]
pub enum Errand {
    Reserve,
    Release(Vec<(Ino, u64)>),
    Orphans(Vec<Ino>),
}

/// A call under way, until it is answered.
#[derive(Clone)]
pub struct LockCall {
    pub slot: Slot,
    pub key: LockKey,
    pub generation: u64,
    pub call: LockSet,
    /// It gives up all that the owner has.
    pub closes: bool,
}

/// The locks of a client's programs.
#[derive(Default)]
pub struct Locks {
    pub record: LockRecord,
    pub calls: VecDeque<LockCall>,
    pub tells: VecDeque<LockTell>,
    /// Closes that were answered by the end of the session, which are noted once that is heard of.
    pub late_closes: Vec<(LockKey, u64)>,
    /// What programs were told that they hold.
    pub told: BTreeMap<LockPlaceKey, RangeMap<LockMode>>,
}

/// A file, a class and an owner, in an order.
pub type LockPlaceKey = (Ino, LockClass, u64);

impl Locks {
    /// The session ended: another one has heard of nothing. Programs hear of what they lost, and
    /// only those that were told that they hold something, or wait for an answer.
    pub fn session_ended(&mut self) -> Result<(), Wrong> {
        let lost = |locks: &Locks| {
            let is_lost = |owner: &u64| locks.record.lost_through(*owner);
            (1..=OWNERS).filter(is_lost).collect::<BTreeSet<_>>()
        };
        let before = lost(self);
        self.record.session_ended();
        for (key, generation) in std::mem::take(&mut self.late_closes) {
            self.record.closed(key, generation, Closed::SessionGone);
        }
        let holds = |(key, ranges): (&LockPlaceKey, &RangeMap<LockMode>)| {
            (!ranges.is_empty()).then_some(key.2)
        };
        let mut may_lose: BTreeSet<u64> = self.told.iter().filter_map(holds).collect();
        may_lose.extend(self.calls.iter().map(|call| call.key.owner));
        may_lose.extend(before);
        if let Some(owner) = lost(self).difference(&may_lose).next() {
            return Err(wrong!("owner {owner} has lost a lock that it does not have"));
        }
        *self = Locks::default();
        Ok(())
    }
}

/// What it waits for.
#[derive(Clone, Copy)]
pub struct Wish {
    pub ino: Ino,
    pub mode: LeaseMode,
    /// Times that it will still ask.
    pub patience: u32,
}

pub struct Client {
    /// 0 while it has none.
    pub session: SessionId,
    pub boot: u64,
    /// Grants up to this number are of earlier sessions.
    pub void: u64,
    pub acknowledged: u64,
    slots: Vec<Slot>,
    pub queue: Queue<Option<Slot>>,
    /// Logged, not known to be durable.
    pub undecided: VecDeque<Note>,
    pub numbers: Range<u64>,
    pub holds: BTreeMap<Ino, Held>,
    /// Those that it was told of, with how far it obeys them.
    pub recalls: Vec<(Recall, Option<Revocation>)>,
    pub answers: VecDeque<RecallDone>,
    /// Leases to reclaim at a new start of the server, and locks.
    pub reclaims: Option<Vec<(Ino, LeaseMode)>>,
    pub held_locks: Vec<HeldLock>,
    pub errands: VecDeque<(Slot, Errand)>,
    pub wish: Option<Wish>,
    pub locks: Locks,
    /// Names of directories that others have for now.
    pub parted: BTreeMap<Ino, Parted>,
    /// Removed while open here, by a step of the log.
    pub orphans: Vec<(u64, Ino)>,
    /// The server ended its session; it may not have heard.
    pub is_gone: bool,
    /// It does nothing before this time.
    pub frozen: Duration,
}

impl Client {
    pub fn new() -> Client {
        Client {
            session: SessionId(0),
            boot: 0,
            void: 0,
            acknowledged: 0,
            slots: (0..SLOTS).map(|number| Slot { number, sequence: 1 }).collect(),
            queue: Queue::default(),
            undecided: VecDeque::new(),
            numbers: 0..0,
            holds: BTreeMap::new(),
            recalls: Vec::new(),
            answers: VecDeque::new(),
            reclaims: None,
            held_locks: Vec::new(),
            errands: VecDeque::new(),
            wish: None,
            locks: Locks::default(),
            parted: BTreeMap::new(),
            orphans: Vec::new(),
            is_gone: false,
            frozen: Duration::ZERO,
        }
    }

    /// What it held and had not told is void; it needs another session.
    pub fn lose(&mut self) -> Result<(), Wrong> {
        let (queue, mut locks) = (std::mem::take(&mut self.queue), std::mem::take(&mut self.locks));
        locks.session_ended()?;
        let frozen = self.frozen;
        *self = Client { queue, locks, frozen, ..Client::new() };
        self.queue.lose();
        Ok(())
    }

    pub fn take_slot(&mut self) -> Option<Slot> {
        self.slots.pop()
    }

    pub fn free_slot(&mut self, slot: Slot) {
        self.slots.push(Slot { sequence: slot.sequence + 1, ..slot });
    }

    pub fn counts(&self, ino: Ino, grant: Grant) -> bool {
        let hold = self.holds.get(&ino).map_or(LeaseState::default(), |held| held.hold);
        hold.counts(grant, self.standing())
    }

    fn standing(&self) -> GrantValidity {
        GrantValidity { server_boot: self.boot, void: self.void }
    }

    /// Takes over a lease that an answer brings; says whether it counts.
    pub fn take_lease(&mut self, ino: Ino, grant: Option<Grant>) -> bool {
        let standing = self.standing();
        let Some(grant) = grant.filter(|grant| self.counts(ino, *grant)) else { return false };
        if grant.mode == LeaseMode::Write {
            // Own changes from here on are told to nobody here.
            self.parted.remove(&ino);
        }
        let held = self.holds.entry(ino).or_default();
        held.is_known &= held.hold.mode.is_some();
        held.hold.take(Some(grant), standing)
    }

    /// Whether it may log changes of the inode.
    pub fn is_alone(&self, ino: Ino) -> bool {
        let is_alone =
            |held: &Held| held.hold.is_alone() && held.is_known && held.gone_at.is_none();
        self.holds.get(&ino).is_some_and(is_alone)
    }

    /// Appends a step to the log, and to what is not known to be durable.
    pub fn log(&mut self, note: Note, now: std::time::Instant) -> Note {
        let Note { step, inline, touched, .. } = note.clone();
        let number = self.queue.append(Logged { step, inline, touched }, now);
        let note = Note { number, ..note };
        self.undecided.push_back(note.clone());
        note
    }
}
