//! Files whose locks this client decides about by itself (LOCK-7). Pure.
//!
//! The server hands a file over with the answer to a call, if no other client uses the file's
//! locks. From then on [`LockRecord`] has all locks of the file, and the client makes no call about
//! them. The client tells the server what it holds before it calls again (for a wait, say), and
//! when the server asks. While calls for the file are under way, the server decides, even if the
//! file was handed over.

use std::collections::HashMap;

use nuri_proto::Status;
use nuri_proto::id::Ino;
use nuri_proto::limit::DELEGATED_LOCKS;
use nuri_proto::op::lock::{
    HeldLock, LockClass, LockHolder, LockMode, LockOutcome, LockRecall, LockTell,
};
use nuri_proto::range_map::Span;
use nuri_rules::broken;

use super::LockPlace;
use super::record::{Cell, LockKey, LockRecord, Owned};

/// Looks at files without locks before one is given back.
const IDLE_LOOKS: u32 = 10;

struct Delegated {
    number: u64,
    /// Something was decided here: the server knows less.
    changed: bool,
    /// It is being given back: nothing is decided here.
    telling: bool,
    /// Looks since it was used.
    idle: u32,
}

/// The files whose locks this client decides about; see the module's text.
#[derive(Default)]
pub(super) struct Delegations {
    files: HashMap<Ino, Delegated>,
    /// Recalls that came before the answers which hand the files over.
    overtaken: HashMap<Ino, u64>,
}

impl Delegations {
    /// Notes that no call for the file is under way.
    pub(super) fn settled(&mut self, ino: Ino) {
        self.overtaken.remove(&ino);
    }

    /// Drops all delegations, because the server restarted or the session ended.
    pub(super) fn clear(&mut self) {
        (self.files, self.overtaken) = Default::default();
    }
}

/// What happens to a lock that conflicts with a lock of another program of this client.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Conflict {
    Refuses,
    Waits,
}

impl LockRecord {
    /// Notes that an answer handed the file over.
    pub fn take_delegation(&mut self, ino: Ino, number: u64) {
        if self.delegations.overtaken.get(&ino).is_some_and(|recalled| *recalled >= number) {
            return;
        }
        let file = Delegated { number, changed: false, telling: false, idle: 0 };
        self.delegations.files.insert(ino, file);
    }

    /// Whether locks of the file are decided here now.
    fn decides(&self, ino: Ino) -> bool {
        let is_quiet = |owned: &Owned| {
            !(owned.is_busy() || owned.is_unsure()) || broken!("locks_decided_beside_calls")
        };
        self.delegations.files.get(&ino).is_some_and(|file| !file.telling)
            && self.owners(ino).all(|(_, owned)| is_quiet(owned))
    }

    fn count(&self, ino: Ino) -> usize {
        self.owners(ino).map(|(_, owned)| owned.ranges.len()).sum()
    }

    fn locks_of(&self, ino: Ino) -> Vec<HeldLock> {
        self.owners(ino).flat_map(|(key, owned)| owned.held(key)).collect()
    }

    /// Another owner's lock in the way: the first one.
    fn in_the_way(&self, key: LockKey, span: Span, mode: LockMode) -> Option<LockHolder> {
        let others = self
            .owners(key.ino)
            .filter(|(other, _)| other.class == key.class && other.owner != key.owner);
        let clashes = |held: &HeldLock| {
            let excludes = mode == LockMode::Exclusive || held.mode == LockMode::Exclusive;
            held.span.meets(span) && excludes
        };
        let held = others.flat_map(|(other, owned)| owned.held(other)).filter(clashes);
        let first = held.min_by_key(|held| (held.span.start, held.owner))?;
        Some(LockHolder { span: first.span, mode: first.mode, pid: first.pid })
    }

    /// Sets or gives up a lock. `None` where the server has to be asked.
    pub fn set_here(
        &mut self,
        place: &LockPlace,
        mode: Option<LockMode>,
        conflict: Conflict,
    ) -> Option<Result<LockOutcome, Status>> {
        let (key, span) = (place.key(), place.span);
        if !self.decides(place.ino) || self.count(place.ino) + 2 > DELEGATED_LOCKS {
            return None;
        }
        let is_refused = mode.is_some_and(|mode| self.in_the_way(key, span, mode).is_some());
        if is_refused && conflict == Conflict::Waits {
            return None;
        }
        if let Err(status) = self.begin(key, place.fh, place.pid) {
            return Some(Err(status));
        }
        // A conversion of `flock` that does not succeed has taken the old lock.
        if !is_refused || key.class == LockClass::Flock {
            let held = mode.filter(|_| !is_refused);
            self.decide(key, span, held);
        }
        self.finish(key);
        Some(Ok(if is_refused { LockOutcome::Refused } else { LockOutcome::Done }))
    }

    fn decide(&mut self, key: LockKey, span: Span, mode: Option<LockMode>) {
        if let Some(owned) = self.owned.get_mut(&key) {
            owned.ranges.assign(span, mode.map(|mode| Cell { mode: Some(mode), number: 0 }));
        }
        if let Some(file) = self.delegations.files.get_mut(&key.ino) {
            (file.changed, file.idle) = (true, 0);
        }
    }

    /// Gives up all that the owner has. `None` where the server has to be asked.
    pub fn close_here(&mut self, key: LockKey) -> Option<Result<(), Status>> {
        // More than can be told were taken by calls.
        if !self.decides(key.ino) || self.count(key.ino) > DELEGATED_LOCKS {
            return None;
        }
        match self.close(key) {
            Ok(false) => Some(Ok(())),
            Ok(true) => {
                self.decide(key, Span::ALL, None);
                self.finish(key);
                Some(Ok(()))
            }
            Err(status) => Some(Err(status)),
        }
    }

    /// The owner that would be in the way of a byte-range lock. `None` where the server has to be
    /// asked.
    pub fn test_here(&self, place: &LockPlace, mode: LockMode) -> Option<Option<LockHolder>> {
        let key = LockKey { class: LockClass::Range, ..place.key() };
        self.decides(place.ino).then(|| self.in_the_way(key, place.span, mode))
    }

    pub fn is_telling(&self, ino: Ino) -> bool {
        self.delegations.files.get(&ino).is_some_and(|file| file.telling)
    }

    /// Called before a call to the server: what the server must be told first, if anything.
    pub fn begin_tell(&mut self, ino: Ino) -> Option<LockTell> {
        let locks = self.locks_of(ino);
        let file = self.delegations.files.get_mut(&ino).filter(|file| file.changed)?;
        file.telling = true;
        Some(LockTell { ino, number: file.number, locks: Some(locks) })
    }

    /// Called when the server asks for the file: what to answer, unless an answer is already on its
    /// way.
    pub fn recalled(&mut self, recall: LockRecall) -> Option<LockTell> {
        let LockRecall { ino, number } = recall;
        let known = self.delegations.files.get(&ino).map(|file| (file.number, file.telling));
        match known {
            Some((held, _)) if held > number => None,
            Some((held, true)) if held == number => None,
            Some((held, false)) if held == number => Some(self.give_back(ino, number)),
            _ => {
                if self.owners(ino).any(|(_, owned)| owned.is_busy()) {
                    self.delegations.overtaken.insert(ino, number);
                }
                Some(LockTell { ino, number, locks: None })
            }
        }
    }

    fn give_back(&mut self, ino: Ino, number: u64) -> LockTell {
        let told = self.begin_tell(ino).filter(|_| !broken!("locks_untold"));
        told.unwrap_or_else(|| {
            self.delegations.files.remove(&ino);
            LockTell { ino, number, locks: None }
        })
    }

    /// Notes that the server was told.
    pub fn told(&mut self, ino: Ino, number: u64) {
        if self.delegations.files.get(&ino).is_some_and(|file| file.number == number) {
            self.delegations.files.remove(&ino);
        }
    }

    /// Called every second: files that no program has had locks of for some time are given back.
    pub fn give_idle_back(&mut self) -> Vec<LockTell> {
        let mut idle = Vec::new();
        for (ino, file) in &mut self.delegations.files {
            file.idle += 1;
            let is_used = file.telling || self.by_file.contains_key(ino);
            if !is_used && file.idle > IDLE_LOOKS {
                idle.push((*ino, file.number));
            }
        }
        idle.into_iter().map(|(ino, number)| self.give_back(ino, number)).collect()
    }
}

#[cfg(test)]
mod tests {
    use nuri_proto::op::meta::Grant;

    use super::super::record::{Applied, Change, Closed};
    use super::*;

    const F: Ino = Ino(5);
    const EXCLUSIVE: Option<LockMode> = Some(LockMode::Exclusive);
    const DONE: Option<Result<LockOutcome, Status>> = Some(Ok(LockOutcome::Done));
    const REFUSED: Option<Result<LockOutcome, Status>> = Some(Ok(LockOutcome::Refused));
    const NUMBER: u64 = (3 << Grant::EPOCH_SHIFT) + 7;

    fn place(owner: u64, bytes: (u64, u64)) -> LockPlace {
        let span = Span { start: bytes.0, end: bytes.1 };
        LockPlace { ino: F, fh: owner, class: LockClass::Range, owner, span, pid: 44 }
    }

    fn flock(owner: u64) -> LockPlace {
        LockPlace { class: LockClass::Flock, span: Span::ALL, ..place(owner, (0, 0)) }
    }

    /// A client that was handed the file with a lock of owner 1.
    fn record() -> LockRecord {
        let mut r = LockRecord::default();
        r.began(3);
        let first = place(1, (0, 9));
        let generation = r.begin(first.key(), first.fh, first.pid).unwrap();
        let change = Change { span: first.span, mode: EXCLUSIVE, number: NUMBER };
        assert_eq!(r.apply(first.key(), generation, NUMBER, Some(change)), Applied::Yes);
        r.take_delegation(F, NUMBER);
        r.finish(first.key());
        r
    }

    impl LockRecord {
        fn set(
            &mut self,
            place: LockPlace,
            mode: Option<LockMode>,
        ) -> Option<Result<LockOutcome, Status>> {
            self.set_here(&place, mode, Conflict::Refuses)
        }
    }

    #[test]
    fn locks_of_a_file_that_was_handed_over_are_decided_here() {
        let mut r = record();
        assert_eq!(r.set(place(2, (5, 14)), EXCLUSIVE), REFUSED);
        assert_eq!(r.set(place(2, (10, 14)), EXCLUSIVE), DONE);
        let holder = r.test_here(&place(3, (0, 99)), LockMode::Shared).unwrap().unwrap();
        assert_eq!((holder.span, holder.pid), (Span { start: 0, end: 9 }, 44));
        assert_eq!(r.set(place(1, (0, 4)), None), DONE);
        assert_eq!(r.set(place(2, (0, 4)), Some(LockMode::Shared)), DONE);
        assert_eq!(r.close_here(place(2, (0, 0)).key()), Some(Ok(())));
        assert_eq!(r.set(place(3, (5, 20)), Some(LockMode::Shared)), REFUSED);
        // What must wait, the server looks after; it is told before.
        let waits = r.set_here(&place(3, (5, 20)), EXCLUSIVE, Conflict::Waits);
        assert_eq!(waits, None);
        let tell = r.begin_tell(F).unwrap();
        let held: Vec<_> = tell.locks.unwrap().iter().map(|l| (l.owner, l.span.start)).collect();
        assert_eq!((held, tell.number), (vec![(1, 5)], NUMBER));
        assert!(r.is_telling(F) && r.set(place(1, (0, 0)), EXCLUSIVE).is_none());
        r.told(F, NUMBER);
        assert!(!r.is_telling(F) && r.set(place(1, (0, 0)), EXCLUSIVE).is_none());
        assert!(r.begin_tell(F).is_none());
    }

    #[test]
    fn a_conversion_of_flock_that_is_refused_has_taken_the_old_lock() {
        let mut r = record();
        assert_eq!(r.set(flock(1), Some(LockMode::Shared)), DONE);
        assert_eq!(r.set(flock(2), Some(LockMode::Shared)), DONE);
        assert_eq!(r.set(flock(1), EXCLUSIVE), REFUSED);
        assert_eq!(r.set(flock(2), EXCLUSIVE), DONE);
    }

    /// Catches `broken!("locks_untold")`.
    #[test]
    fn who_asks_for_the_file_is_told_what_is_held() {
        let mut r = record();
        let recall = LockRecall { ino: F, number: NUMBER };
        assert_eq!(r.set(place(2, (20, 20)), EXCLUSIVE), DONE);
        let tell = r.recalled(recall).unwrap();
        assert_eq!(tell.locks.map(|locks| locks.len()), Some(2));
        assert!(r.recalled(recall).is_none(), "it is being told");
        r.told(F, NUMBER);
        // A copy of the question that comes late is answered, and takes nothing newer.
        assert!(r.recalled(recall).is_some_and(|tell| tell.locks.is_none()));
        r.take_delegation(F, NUMBER + 9);
        assert!(r.recalled(recall).is_none() && r.set(place(2, (20, 20)), None) == DONE);
    }

    #[test]
    fn a_recall_may_overtake_the_answer_that_hands_the_file_over() {
        let (mut r, first) = (record(), place(1, (0, 9)));
        r.told(F, NUMBER);
        r.begin(first.key(), first.fh, first.pid).unwrap();
        let tell = r.recalled(LockRecall { ino: F, number: NUMBER + 1 }).unwrap();
        assert!(tell.number == NUMBER + 1 && tell.locks.is_none());
        r.take_delegation(F, NUMBER + 1);
        r.finish(first.key());
        assert_eq!(r.set(first, None), None, "the server decides");
    }

    /// Catches `broken!("locks_decided_beside_calls")`.
    #[test]
    fn nothing_is_decided_beside_a_call_under_way() {
        let (mut r, second) = (record(), place(2, (20, 29)));
        r.begin(second.key(), second.fh, second.pid).unwrap();
        assert_eq!(r.set(place(3, (20, 29)), EXCLUSIVE), None);
        r.doubt(second.key());
        r.finish(second.key());
        assert_eq!(r.set(place(3, (20, 29)), EXCLUSIVE), None, "nor where its end is not known");
        r.close(second.key()).unwrap();
        r.closed(second.key(), r.generation(), Closed::Told);
        assert_eq!(r.set(place(3, (20, 29)), EXCLUSIVE), DONE);
    }

    /// They were taken while another program waited for a lock.
    #[test]
    fn a_file_with_more_locks_than_can_be_told_is_closed_at_the_server() {
        let (mut r, many) = (record(), place(2, (20, 20)));
        let generation = r.begin(many.key(), many.fh, many.pid).unwrap();
        for at in 10..10 + DELEGATED_LOCKS as u64 {
            let span = Span { start: 2 * at, end: 2 * at };
            let change = Change { span, mode: EXCLUSIVE, number: NUMBER + at };
            r.apply(many.key(), generation, NUMBER + at, Some(change));
        }
        r.finish(many.key());
        assert_eq!(r.close_here(place(1, (0, 0)).key()), None);
        assert!(r.begin_tell(F).is_none(), "nothing was decided here");
    }

    #[test]
    fn a_restart_leaves_the_locks_and_takes_the_decisions() {
        let mut r = record();
        assert_eq!(r.set(place(2, (20, 20)), EXCLUSIVE), DONE);
        assert_eq!(r.restarted(4).len(), 2);
        assert!(r.begin_tell(F).is_none() && r.set(place(2, (20, 20)), None).is_none());
    }

    #[test]
    fn a_file_without_locks_is_given_back_after_a_while() {
        let mut r = record();
        (0..2 * IDLE_LOOKS).for_each(|_| assert!(r.give_idle_back().is_empty(), "it is used"));
        assert_eq!(r.set(place(1, (0, 9)), None), DONE);
        let looks = (0..).take_while(|_| r.give_idle_back().is_empty()).count();
        assert_eq!(looks as u32, IDLE_LOOKS);
        assert!(r.give_idle_back().is_empty() && r.is_telling(F));
    }

    #[test]
    fn more_locks_than_can_be_told_are_for_the_server() {
        let mut r = record();
        let set =
            (0..).take_while(|i| r.set(place(2, (20 + 2 * i, 20 + 2 * i)), EXCLUSIVE) == DONE);
        assert_eq!(set.count(), DELEGATED_LOCKS - 2);
        assert_eq!(
            r.begin_tell(F).and_then(|tell| tell.locks).map(|l| l.len()),
            Some(DELEGATED_LOCKS - 1)
        );
    }
}
