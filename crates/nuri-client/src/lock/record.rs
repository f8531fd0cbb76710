//! The locks that this client's programs hold and wait for, so that a restarted server can learn
//! them. Pure.
//!
//! Replies and events about the same owner may overtake each other. Each one carries the number of
//! its change, and for each byte the highest number counts. Numbers are forgotten once nothing is
//! under way for the owner. A lock that a session held when it ended is lost. Its owner gets errors
//! until it acknowledges the loss, by giving the lock up or by closing the file.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

use nuri_proto::Status;
use nuri_proto::id::Ino;
use nuri_proto::op::lock::{
    Deadlock, HeldLock, LockClass, LockMode, LockOutcome, LockReply, LockSet, LockWait,
};
use nuri_proto::op::meta::Grant;
use nuri_proto::range_map::{RangeMap, Span};
use nuri_rules::broken;

use super::delegation::Delegations;

/// Interruptions kept for requests that are not known yet.
const EARLY: usize = 1024;

/// An owner of locks on a file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LockKey {
    pub ino: Ino,
    pub class: LockClass,
    pub owner: u64,
}

/// The last change of a byte; `mode` is `None` where it was given up.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) mode: Option<LockMode>,
    pub(super) number: u64,
}

#[derive(Default)]
pub(super) struct Owned {
    pub(super) ranges: RangeMap<Cell>,
    pid: u32,
    /// Open files through which it asked.
    handles: Vec<u64>,
    /// Calls and waits under way, and what they changed.
    busy: u32,
    changed: Vec<Span>,
    /// A call's outcome is not known: the server may hold more than this.
    doubt: bool,
    /// A call under way lowers or gives up what counts as given up since it was sent.
    weakened: bool,
    /// What was there before.
    before: Vec<(Span, Cell)>,
    /// So it was told to a server that restarted meanwhile.
    told_weakened: bool,
    /// It was closed and the server did not answer.
    stale: bool,
    lost: bool,
}

impl Owned {
    /// Whether calls or waits are under way.
    pub(super) fn is_busy(&self) -> bool {
        self.busy > 0
    }

    /// Whether the server may have another state than this record.
    pub(super) fn is_unsure(&self) -> bool {
        self.doubt || self.stale
    }

    pub(super) fn held(&self, key: LockKey) -> impl Iterator<Item = HeldLock> + '_ {
        let (LockKey { ino, class, owner }, pid) = (key, self.pid);
        self.ranges.iter().filter_map(move |(span, cell)| {
            Some(HeldLock { ino, class, owner, span, mode: cell.mode?, pid })
        })
    }
}

/// The function that the front end wants called at the end of a wait.
pub type Done = Box<dyn FnOnce(Result<(), Status>) + Send>;

/// A request of a program that may wait.
pub struct Wait {
    pub(crate) key: LockKey,
    pub span: Span,
    pub(crate) mode: LockMode,
    pub(crate) pid: u32,
    pub(crate) deadlock: Deadlock,
    /// The server has answered that it is queued.
    pub(crate) parked: bool,
    pub(crate) interrupted: bool,
    pub(crate) generation: u64,
    pub(crate) done: Done,
}

/// How the server was told that an owner closed the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Closed {
    Told,
    /// It does not know the session any more: nothing is held.
    SessionGone,
    /// It may hold locks of the owner until it is told.
    Untold,
}

/// Whether an answer counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Applied {
    Yes,
    /// It is of another server than the present one: ask again.
    AskAgain,
    /// It is of a session that ended.
    Ended,
}

/// The locks and waits of this client's programs; see the module's text.
#[derive(Default)]
pub struct LockRecord {
    boot: u64,
    generation: u64,
    pub(super) owned: HashMap<LockKey, Owned>,
    pub(super) by_file: HashMap<Ino, Vec<LockKey>>,
    pub(super) delegations: Delegations,
    by_handle: HashMap<u64, Vec<LockKey>>,
    /// Open files that own byte ranges by their own number, and the owner that the kernel names.
    renamed: HashMap<u64, u64>,
    /// Open files with locks of which a descriptor was closed: maybe the last one.
    closing: HashMap<u64, Ino>,
    waits: HashMap<u64, Wait>,
    early: VecDeque<u64>,
    /// The front end is gone: nobody may wait any more.
    abandoned: bool,
}

/// The change of a call or an event.
#[derive(Clone, Copy)]
pub struct Change {
    pub span: Span,
    /// `None`: given up.
    pub mode: Option<LockMode>,
    pub number: u64,
}

fn forget<K: Eq + Hash>(index: &mut HashMap<K, Vec<LockKey>>, of: K, key: LockKey) {
    if let Some(keys) = index.get_mut(&of) {
        keys.retain(|other| *other != key);
        if keys.is_empty() {
            index.remove(&of);
        }
    }
}

impl Change {
    /// What an answer changes. A conversion of `flock` that failed has released the old lock.
    pub fn of(call: &LockSet, reply: LockReply) -> Option<Change> {
        let mode = match (reply.outcome, call.class) {
            (LockOutcome::Done, _) => call.mode,
            (_, LockClass::Flock) => None,
            _ => return None,
        };
        Some(Change { span: call.span, mode, number: reply.number })
    }
}

impl LockRecord {
    /// Notes that a session was opened at a server with that boot id.
    pub fn began(&mut self, boot: u64) {
        self.boot = boot;
    }

    /// Changes with each session.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Called when the owner gives a lock up. Returns whether the owner must hear that the lock was
    /// lost before.
    pub(crate) fn tell_loss(&mut self, key: LockKey) -> bool {
        let told = self.owned.get_mut(&key).is_some_and(|o| std::mem::take(&mut o.lost));
        self.drop_unused(key);
        told
    }

    /// Notes that a call for the owner begins. Returns the generation that its answer must have.
    pub fn begin(&mut self, key: LockKey, fh: u64, pid: u32) -> Result<u64, Status> {
        let owned = self.owned.entry(key).or_insert_with(|| {
            self.by_file.entry(key.ino).or_default().push(key);
            Owned::default()
        });
        if owned.lost || owned.stale {
            return Err(Status::IO);
        }
        (owned.busy, owned.pid) = (owned.busy + 1, pid);
        if !owned.handles.contains(&fh) {
            owned.handles.push(fh);
            self.by_handle.entry(fh).or_default().push(key);
        }
        Ok(self.generation)
    }

    /// Called before a call is sent. What the call gives up or lowers counts as given up from now
    /// on. The server may carry the call out, give the lock to others and die before it answers.
    /// The lock is then theirs.
    pub fn ask_for(&mut self, key: LockKey, span: Span, mode: Option<LockMode>) {
        let Some(owned) = self.owned.get_mut(&key) else { return };
        let weaker = |have: LockMode| match key.class {
            LockClass::Range => mode.map(|mode| mode.min(have)),
            // A conversion gives the old lock up first.
            LockClass::Flock => mode.filter(|mode| *mode == have),
        };
        if !broken!("lock_given_up_late") {
            let is_less = |cell: Cell| cell.mode.and_then(weaker) != cell.mode;
            let less = owned.ranges.meeting(span).filter(|(_, cell)| is_less(*cell));
            let less = less.map(|(part, cell)| (part.part_of(span), cell)).collect::<Vec<_>>();
            owned.weakened |= !less.is_empty();
            owned.before.extend(less);
            let weaken = |cell: Cell| Cell { mode: cell.mode.and_then(weaker), ..cell };
            owned.ranges.update(span, |cell| cell.map(weaken));
            owned.changed.push(span);
        }
    }

    /// Takes over what an answer says. `change` is `None` where nothing changed.
    pub fn apply(
        &mut self,
        key: LockKey,
        generation: u64,
        number: u64,
        change: Option<Change>,
    ) -> Applied {
        if generation != self.generation {
            return Applied::Ended;
        }
        if number >> Grant::EPOCH_SHIFT != self.boot {
            return Applied::AskAgain;
        }
        if let (Some(change), Some(owned)) = (change, self.owned.get_mut(&key)) {
            let Change { span, mode, number } = change;
            let fresh = Some(Cell { mode, number });
            let newer = |old: Option<Cell>| old.filter(|old| old.number > number).or(fresh);
            owned.ranges.update(span, newer);
            owned.changed.push(span);
        }
        Applied::Yes
    }

    /// Notes that a call or wait changed nothing. What it would have given up is still held, or is
    /// lost if the server restarted meanwhile. Returns whether it is lost.
    pub fn changed_nothing(&mut self, key: LockKey) -> bool {
        let waits = self.waits.values().filter(|wait| wait.key == key).count();
        let Some(owned) = self.owned.get_mut(&key) else { return false };
        if !std::mem::take(&mut owned.weakened) || broken!("lock_lowered_by_a_refusal") {
            return false;
        }
        let before = std::mem::take(&mut owned.before);
        if std::mem::take(&mut owned.told_weakened) {
            owned.lost = true;
        } else if owned.busy as usize <= 1 + waits {
            for (span, cell) in before {
                let is_same = |now: &Cell| now.number == cell.number;
                owned.ranges.update(span, |now| {
                    if now.as_ref().is_some_and(is_same) { Some(cell) } else { now }
                });
            }
        } else {
            // Another call of the owner may give it up.
            owned.doubt = true;
        }
        owned.lost
    }

    /// Whether the owner may hold anything.
    pub(crate) fn knows(&self, key: LockKey) -> bool {
        self.owned.contains_key(&key)
    }

    /// The call to make for a wait. The call counts as under way until `finish`, like the wait
    /// itself.
    pub(crate) fn ask(&mut self, ticket: u64) -> Option<(LockKey, u64, LockSet)> {
        let wait = self.waits.get(&ticket)?;
        let (LockKey { ino, class, owner }, span, pid) = (wait.key, wait.span, wait.pid);
        let (mode, deadlock) = (Some(wait.mode), wait.deadlock);
        let queue = LockWait::Queue { request: ticket, deadlock };
        let call = LockSet { ino, class, owner, span, mode, pid, wait: queue };
        if let Some(owned) = self.owned.get_mut(&wait.key) {
            owned.busy += 1;
        }
        Some((wait.key, wait.generation, call))
    }

    /// Notes that a call or wait of the owner ended.
    pub fn finish(&mut self, key: LockKey) {
        let Some(owned) = self.owned.get_mut(&key) else { return };
        owned.busy -= 1;
        if owned.busy > 0 {
            return;
        }
        (owned.weakened, owned.told_weakened) = (false, false);
        owned.before.clear();
        let settled = |cell: Option<Cell>| cell.filter(|c| c.mode.is_some());
        for span in std::mem::take(&mut owned.changed) {
            owned.ranges.update(span, |c| settled(c).map(|c| Cell { number: 0, ..c }));
        }
        if !self.owners(key.ino).any(|(_, owned)| owned.is_busy()) {
            self.delegations.settled(key.ino);
        }
        self.drop_unused(key);
    }

    /// The owners that have locks of the file, or ask for some.
    pub(super) fn owners(&self, ino: Ino) -> impl Iterator<Item = (LockKey, &Owned)> {
        let keys = self.by_file.get(&ino).into_iter().flatten();
        keys.filter_map(|key| Some((*key, self.owned.get(key)?)))
    }

    fn drop_unused(&mut self, key: LockKey) {
        let unused =
            |o: &Owned| o.busy == 0 && o.ranges.is_empty() && !(o.doubt || o.stale || o.lost);
        if !self.owned.get(&key).is_some_and(unused) {
            return;
        }
        for fh in self.owned.remove(&key).into_iter().flat_map(|o| o.handles) {
            forget(&mut self.by_handle, fh, key);
        }
        forget(&mut self.by_file, key.ino, key);
    }

    /// Notes that a call got no answer that says how it ended.
    pub(crate) fn doubt(&mut self, key: LockKey) {
        if let Some(owned) = self.owned.get_mut(&key) {
            owned.doubt = true;
        }
    }

    /// Called when the owner closes the file. Returns whether the server must be told. An error
    /// reports a loss.
    pub fn close(&mut self, key: LockKey) -> Result<bool, Status> {
        let Some(owned) = self.owned.get_mut(&key) else { return Ok(false) };
        if std::mem::take(&mut owned.lost) {
            // What is left of it the server does not know to be closed.
            let is_left = !std::mem::take(&mut owned.ranges).is_empty();
            (owned.doubt, owned.stale) = (false, is_left);
            self.drop_unused(key);
            return Err(Status::IO);
        }
        owned.busy += 1;
        Ok(true)
    }

    /// Notes the end of a close that began in a session of that generation.
    pub fn closed(&mut self, key: LockKey, generation: u64, end: Closed) {
        let is_present = generation == self.generation;
        let is_gone = end == Closed::SessionGone && !broken!("closed_lock_lost");
        if let Some(owned) = self.owned.get_mut(&key) {
            if is_present {
                (owned.doubt, owned.stale) = (false, end == Closed::Untold);
                // Told in order, its answer gave up what is to go, and nothing that came later.
                if end == Closed::Untold || is_gone {
                    owned.ranges = RangeMap::default();
                }
            }
            // Nobody is left to hear that they were lost.
            owned.lost &= !is_gone;
        }
        self.finish(key);
    }

    /// Owners whose close the server does not know of.
    pub(crate) fn stale(&self) -> Vec<LockKey> {
        // What is being told may still name it.
        let is_due = |(key, o): &(&LockKey, &Owned)| o.stale && !self.is_telling(key.ino);
        self.owned.iter().filter(is_due).map(|(key, _)| *key).collect()
    }

    /// Notes that a stale owner's locks are gone.
    pub(crate) fn refreshed(&mut self, key: LockKey) {
        if let Some(owned) = self.owned.get_mut(&key) {
            owned.stale = false;
        }
        self.drop_unused(key);
    }

    /// The owner of a byte range that was asked for through an open file, where it is known.
    ///
    /// The kernel names owners by addresses. That of an open file (OFD locks) is used again for
    /// another one while the end of the first is still on its way here. So an owner that is known
    /// from other open files is either a process, or a new open file, which then goes by its own
    /// number.
    pub(crate) fn range_owner(&self, ino: Ino, fh: u64, named: u64) -> Option<u64> {
        if self.renamed.get(&fh) == Some(&named) {
            return Some(fh);
        }
        let known = self.owned.get(&LockKey { ino, class: LockClass::Range, owner: named });
        let is_clear = known.is_none_or(|owned| owned.handles.contains(&fh));
        is_clear.then_some(named)
    }

    /// Notes that the owner is the open file itself, and that its name belonged to another owner
    /// before.
    pub(crate) fn rename(&mut self, fh: u64, named: u64) {
        self.renamed.insert(fh, named);
    }

    /// Notes that a descriptor of the open file was closed.
    pub(crate) fn note_closing(&mut self, ino: Ino, fh: u64) {
        if self.by_handle.contains_key(&fh) {
            self.closing.insert(fh, ino);
        }
    }

    /// An open file with locks, other than `fh`, that may have been closed.
    pub(crate) fn closing_beside(&self, ino: Ino, fh: u64) -> Option<u64> {
        let beside = |(other, of): &(&u64, &Ino)| **of == ino && **other != fh;
        self.closing.iter().find(beside).map(|(other, _)| *other)
    }

    pub(crate) fn is_closing(&self, fh: u64) -> bool {
        self.closing.contains_key(&fh)
    }

    /// Notes that the open file is still open, or gone.
    pub(crate) fn not_closing(&mut self, fh: u64) {
        self.closing.remove(&fh);
    }

    /// The open file is gone: owners that asked through no other one. Those that did are processes.
    pub(crate) fn end_handle(&mut self, fh: u64) -> Vec<LockKey> {
        self.renamed.remove(&fh);
        let mut keys = self.by_handle.get(&fh).cloned().unwrap_or_default();
        keys.retain(|key| {
            let Some(owned) = self.owned.get_mut(key) else { return false };
            if owned.handles.len() > 1 {
                owned.handles.retain(|other| *other != fh);
                return false;
            }
            true
        });
        match keys.is_empty() {
            true => _ = self.by_handle.remove(&fh),
            false => _ = self.by_handle.insert(fh, keys.clone()),
        }
        keys
    }

    /// Whether a lock that was taken through the open file was lost.
    pub fn lost_through(&self, fh: u64) -> bool {
        let lost = |key: &LockKey| self.owned.get(key).is_some_and(|o| o.lost);
        self.by_handle.get(&fh).is_some_and(|keys| keys.iter().any(lost))
    }

    /// Called when the server restarted. Returns what it must be told, and which waits must be
    /// asked for again.
    pub fn restarted(&mut self, boot: u64) -> Vec<HeldLock> {
        self.boot = boot;
        self.delegations.clear();
        self.owned.values_mut().for_each(|owned| owned.told_weakened = owned.weakened);
        self.held()
    }

    /// Everything that is held.
    pub fn held(&self) -> Vec<HeldLock> {
        self.owned.iter().flat_map(|(key, owned)| owned.held(*key)).collect()
    }

    /// Notes that the restarted server has given the lock to another owner.
    pub(crate) fn lose(&mut self, lock: &HeldLock) {
        let key = LockKey { ino: lock.ino, class: lock.class, owner: lock.owner };
        if let Some(owned) = self.owned.get_mut(&key) {
            owned.lost = !broken!("lost_locks_believed");
        }
    }

    /// Called when the session ended, and all locks with it. Returns the waits, which end too, and
    /// whether a lock was lost.
    pub fn session_ended(&mut self) -> (Vec<Wait>, bool) {
        self.generation += 1;
        self.delegations.clear();
        let waits: Vec<_> = self.waits.drain().map(|(_, wait)| wait).collect();
        for owned in self.owned.values_mut() {
            let held = owned.ranges.iter().any(|(_, cell)| cell.mode.is_some());
            owned.lost |= held && !broken!("lost_locks_believed");
            (owned.doubt, owned.stale) = (false, false);
            (owned.weakened, owned.told_weakened) = (false, false);
            owned.before.clear();
            owned.ranges = RangeMap::default();
            owned.changed.clear();
        }
        waits.iter().for_each(|wait| self.finish(wait.key));
        for key in self.owned.keys().copied().collect::<Vec<_>>() {
            self.drop_unused(key);
        }
        let lost = self.owned.values().any(|o| o.lost);
        (waits, lost)
    }

    /// Whether the request was interrupted before it came.
    pub(crate) fn was_interrupted(&mut self, ticket: u64) -> bool {
        let at = self.early.iter().position(|early| *early == ticket);
        at.is_some_and(|at| self.early.remove(at).is_some())
    }

    pub(crate) fn add_wait(&mut self, ticket: u64, wait: Wait) {
        self.waits.insert(ticket, wait);
    }

    pub(crate) fn wait(&mut self, ticket: u64) -> Option<&mut Wait> {
        self.waits.get_mut(&ticket)
    }

    pub(crate) fn take_wait(&mut self, ticket: u64) -> Option<Wait> {
        self.waits.remove(&ticket)
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned
    }

    /// Waits that the server has or had queued.
    pub(crate) fn parked(&self) -> Vec<u64> {
        self.waits.iter().filter(|(_, w)| w.parked).map(|(ticket, _)| *ticket).collect()
    }

    pub(crate) fn abandon(&mut self) -> Vec<u64> {
        self.abandoned = true;
        self.waits.keys().copied().collect()
    }

    /// Notes a signal for the program that waits. Returns whether the server must be told.
    pub(crate) fn interrupt(&mut self, ticket: u64) -> bool {
        match self.waits.get_mut(&ticket) {
            Some(wait) => {
                let first = !std::mem::replace(&mut wait.interrupted, true);
                first && wait.parked
            }
            None => {
                // Of any request, or of a lock that is on its way from the kernel.
                if self.early.len() >= EARLY {
                    self.early.pop_front();
                }
                self.early.push_back(ticket);
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: LockKey = LockKey { ino: Ino(5), class: LockClass::Range, owner: 9 };
    const EXCLUSIVE: Option<LockMode> = Some(LockMode::Exclusive);

    fn number(n: u64) -> u64 {
        (3 << Grant::EPOCH_SHIFT) + n
    }

    fn record() -> LockRecord {
        let mut record = LockRecord::default();
        record.began(3);
        record
    }

    fn change(start: u64, end: u64, mode: Option<LockMode>, n: u64) -> Option<Change> {
        Some(Change { span: Span { start, end }, mode, number: number(n) })
    }

    #[test]
    fn answers_may_overtake_each_other() {
        let mut r = record();
        let one = r.begin(KEY, 1, 44).unwrap();
        let two = r.begin(KEY, 1, 44).unwrap();
        // A thread locked ten bytes, then another one gave two of them up; told in reverse.
        assert_eq!(r.apply(KEY, two, number(8), change(4, 5, None, 8)), Applied::Yes);
        r.finish(KEY);
        assert_eq!(r.apply(KEY, one, number(7), change(0, 9, EXCLUSIVE, 7)), Applied::Yes);
        r.finish(KEY);
        let held: Vec<_> = r.restarted(3).iter().map(|l| (l.span.start, l.span.end)).collect();
        assert_eq!(held, [(0, 3), (6, 9)]);
        let three = r.begin(KEY, 1, 44).unwrap();
        r.apply(KEY, three, number(9), change(0, 20, None, 9));
        r.finish(KEY);
        assert!(r.owned.is_empty() && r.by_handle.is_empty(), "nothing is left");
    }

    #[test]
    fn an_answer_of_the_server_before_does_not_count() {
        let mut r = record();
        let asked = r.begin(KEY, 1, 44).unwrap();
        assert!(r.restarted(4).is_empty());
        let late = change(0, 9, EXCLUSIVE, 7);
        assert_eq!(r.apply(KEY, asked, number(7), late), Applied::AskAgain);
        r.session_ended();
        assert_eq!(r.apply(KEY, asked, number(7), late), Applied::Ended);
    }

    /// Catches `broken!("lost_locks_believed")`.
    #[test]
    fn a_lost_lock_is_an_error_until_it_was_told() {
        let mut r = record();
        let asked = r.begin(KEY, 1, 44).unwrap();
        r.apply(KEY, asked, number(7), change(0, 9, EXCLUSIVE, 7));
        r.finish(KEY);
        assert!(r.session_ended().0.is_empty());
        r.began(3);
        assert!(r.lost_through(1) && !r.lost_through(2));
        assert_eq!(r.begin(KEY, 2, 44), Err(Status::IO));
        assert_eq!(r.close(KEY), Err(Status::IO), "told");
        assert!(!r.lost_through(1) && r.begin(KEY, 1, 44).is_ok());
    }

    /// Catches `broken!("closed_lock_lost")`.
    #[test]
    fn who_closed_as_the_session_ended_has_lost_nothing() {
        let mut r = record();
        let asked = r.begin(KEY, 1, 44).unwrap();
        r.apply(KEY, asked, number(7), change(0, 9, EXCLUSIVE, 7));
        r.finish(KEY);
        assert_eq!(r.end_handle(1), [KEY]);
        assert_eq!(r.close(KEY), Ok(true));
        // The server refuses, since it knows no such session; that is heard of a moment later.
        r.ask_for(KEY, Span::ALL, None);
        assert!(!r.changed_nothing(KEY));
        r.closed(KEY, asked, Closed::SessionGone);
        assert!(!r.session_ended().1 && r.begin(KEY, 2, 44).is_ok());
    }

    #[test]
    fn who_closed_a_moment_before_the_session_ended_has_lost_nothing() {
        for end in [Closed::SessionGone, Closed::Untold] {
            let mut r = record();
            let asked = r.begin(KEY, 1, 44).unwrap();
            r.apply(KEY, asked, number(7), change(0, 9, EXCLUSIVE, 7));
            r.finish(KEY);
            assert_eq!(r.close(KEY), Ok(true));
            r.ask_for(KEY, Span::ALL, None);
            let is_refused = end == Closed::SessionGone;
            if is_refused {
                r.changed_nothing(KEY);
            }
            assert_eq!(r.session_ended().1, is_refused);
            r.began(3);
            // Another thread of the process may lock again before this one goes on.
            if let Ok(again) = r.begin(KEY, 1, 44) {
                r.apply(KEY, again, number(8), change(0, 9, EXCLUSIVE, 8));
                r.finish(KEY);
            }
            r.closed(KEY, asked, end);
            assert_eq!((r.held().len(), r.lost_through(1)), (usize::from(!is_refused), false));
        }
    }

    /// Catches `broken!("lock_given_up_late")`.
    #[test]
    fn what_a_call_gives_up_is_not_reclaimed() {
        let mut r = record();
        let modes = |r: &mut LockRecord| {
            r.restarted(3).iter().map(|l| (l.span.start, l.span.end, l.mode)).collect::<Vec<_>>()
        };
        let (shared, exclusive) = (LockMode::Shared, LockMode::Exclusive);
        let asked = r.begin(KEY, 1, 44).unwrap();
        r.apply(KEY, asked, number(7), change(0, 9, EXCLUSIVE, 7));
        r.ask_for(KEY, Span { start: 8, end: 20 }, None);
        assert_eq!(modes(&mut r), [(0, 7, exclusive)]);
        r.ask_for(KEY, Span { start: 4, end: 20 }, Some(shared));
        assert_eq!(modes(&mut r), [(0, 3, exclusive), (4, 7, shared)]);
        r.ask_for(KEY, Span { start: 0, end: 5 }, EXCLUSIVE);
        assert_eq!(modes(&mut r).len(), 2, "raised once it was granted");
    }

    /// POSIX: what is refused or interrupted leaves the lock as it was.
    /// Catches `broken!("lock_lowered_by_a_refusal")`.
    #[test]
    fn what_was_refused_has_lowered_nothing() {
        let mut r = record();
        let asked = r.begin(KEY, 1, 44).unwrap();
        r.apply(KEY, asked, number(7), change(0, 9, EXCLUSIVE, 7));
        r.finish(KEY);
        let lower = |r: &mut LockRecord| {
            r.begin(KEY, 1, 44).unwrap();
            r.ask_for(KEY, Span { start: 5, end: 20 }, Some(LockMode::Shared));
            // Asked again.
            r.ask_for(KEY, Span { start: 5, end: 20 }, Some(LockMode::Shared));
        };
        lower(&mut r);
        assert!(!r.changed_nothing(KEY));
        r.finish(KEY);
        let held = |r: &LockRecord| {
            r.held().iter().map(|l| (l.span.start, l.span.end, l.mode)).collect::<Vec<_>>()
        };
        assert_eq!(held(&r), [(0, 9, LockMode::Exclusive)]);
        // Another thread may be giving it up.
        lower(&mut r);
        r.begin(KEY, 1, 44).unwrap();
        assert!(!r.changed_nothing(KEY) && r.owned[&KEY].is_unsure());
        r.finish(KEY);
        r.finish(KEY);
    }

    /// A restarted server was told the weaker lock, and has refused what would have made it so.
    #[test]
    fn what_was_lowered_for_a_restarted_server_and_refused_is_lost() {
        let mut r = record();
        let asked = r.begin(KEY, 1, 44).unwrap();
        r.apply(KEY, asked, number(7), change(0, 9, EXCLUSIVE, 7));
        r.finish(KEY);
        r.begin(KEY, 1, 44).unwrap();
        r.ask_for(KEY, Span { start: 5, end: 20 }, Some(LockMode::Shared));
        assert_eq!(r.restarted(4).len(), 2);
        assert!(r.changed_nothing(KEY) && r.lost_through(1));
        r.finish(KEY);
        assert_eq!(r.close(KEY), Err(Status::IO), "told");
        assert_eq!(r.stale(), [KEY], "the rest is given up at the server");
    }

    /// The end of a wait overtakes the answer that it is queued, which for `flock` takes what was.
    #[test]
    fn an_end_may_overtake_the_answer_that_it_waits() {
        let (mut r, key) = (record(), LockKey { class: LockClass::Flock, ..KEY });
        let generation = r.begin(key, 1, 44).unwrap();
        let (span, mode, done) = (Span::ALL, LockMode::Exclusive, Box::new(|_| {}));
        let (parked, interrupted, deadlock) = (false, false, Deadlock::Ignore);
        let wait =
            Wait { key, span, mode, pid: 4, deadlock, parked, interrupted, generation, done };
        r.add_wait(70, wait);
        r.ask(70).unwrap();
        let ended = r.take_wait(70).unwrap();
        let granted = Change { span, mode: EXCLUSIVE, number: number(9) };
        r.apply(key, ended.generation, number(9), Some(granted));
        r.finish(key);
        let queued = Change { span, mode: None, number: number(8) };
        r.apply(key, generation, number(8), Some(queued));
        r.finish(key);
        assert_eq!(r.restarted(3).len(), 1);
    }

    #[test]
    fn an_interruption_may_come_before_its_request() {
        let mut r = record();
        assert!(!r.interrupt(6));
        assert!(r.was_interrupted(6) && !r.was_interrupted(6));
        (0..5000).for_each(|ticket| assert!(!r.interrupt(ticket)));
        assert!(r.early.len() <= EARLY);
    }
}
