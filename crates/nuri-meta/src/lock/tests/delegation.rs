//! Files whose locks a session decides about by itself.

use nuri_proto::limit::DELEGATED_LOCKS;
use nuri_proto::op::lock::{LockRecall, LockTell};

use super::*;

const THERE: SessionId = SessionId(2);

fn done(table: &mut LockTable, session: SessionId, call: &LockSet) -> u64 {
    let (number, outcome, _) = table.set(session, call).unwrap();
    assert_eq!(outcome, LockOutcome::Done);
    number
}

fn held(owner: u64, bytes: (u64, u64)) -> HeldLock {
    let span = Span { start: bytes.0, end: bytes.1 };
    let (class, mode) = (LockClass::Range, LockMode::Exclusive);
    HeldLock { ino: F, class, owner, span, mode, pid: 4 }
}

fn tell(number: u64, locks: Option<Vec<HeldLock>>) -> LockTell {
    LockTell { ino: F, number, locks }
}

/// Catches `broken!("locks_delegated_beside")`.
#[test]
fn a_file_is_handed_over_where_nobody_else_uses_its_locks() {
    let mut t = table();
    let beside = done(&mut t, THERE, &range(F, A, (90, 99), SHARED));
    let number = done(&mut t, HERE, &range(F, A, (0, 9), EXCLUSIVE));
    assert!(!t.delegate(F, HERE, number), "another holds a lock");
    done(&mut t, THERE, &range(F, A, (90, 99), None));
    assert_eq!(t.set(HERE, &queued(range(F, B, (0, 0), SHARED), 1)).unwrap().1, LockOutcome::Waits);
    assert!(!t.delegate(F, HERE, number), "the server looks after waits");
    assert!(t.cancel(HERE, 1).0 && t.delegate(F, HERE, number) && beside < number);
    assert!(!t.delegate(F, HERE, number), "once");
    assert_eq!((t.decided_elsewhere(F, THERE), t.decided_elsewhere(F, HERE)), (Some(HERE), None));
    assert_eq!(t.decided_elsewhere(G, THERE), None);
}

#[test]
fn what_is_told_replaces_what_was_known() {
    let mut t = table();
    let number = done(&mut t, HERE, &range(F, A, (0, 9), EXCLUSIVE));
    assert!(t.delegate(F, HERE, number));
    assert_eq!(t.recall(F), Some(LockRecall { ino: F, number }));
    assert_eq!(t.recall(F), None, "it was asked already");
    let other = Some(vec![held(B, (20, 29)), held(C, (40, 40))]);
    assert_eq!(t.tell(HERE, &tell(number + 1, other.clone())), Ok((false, vec![])), "another one");
    assert_eq!(t.tell(THERE, &tell(number, other.clone())), Ok((false, vec![])), "of another");
    assert_eq!(t.tell(HERE, &tell(number, other)), Ok((true, vec![])));
    assert_eq!(t.decided_elsewhere(F, THERE), None);
    done(&mut t, THERE, &range(F, A, (0, 19), EXCLUSIVE));
    let refused = t.set(THERE, &range(F, A, (40, 50), SHARED)).unwrap().1;
    assert_eq!((refused, t.counts()), (LockOutcome::Refused, (3, 0)));
}

#[test]
fn nothing_told_leaves_what_was_known() {
    let mut t = table();
    let number = done(&mut t, HERE, &range(F, A, (0, 9), EXCLUSIVE));
    assert!(t.delegate(F, HERE, number));
    assert_eq!(t.tell(HERE, &tell(number, None)), Ok((true, vec![])));
    assert_eq!(t.tell(HERE, &tell(number, Some(vec![]))), Ok((false, vec![])), "a late copy");
    let refused = t.set(THERE, &range(F, A, (9, 9), SHARED)).unwrap().1;
    assert_eq!(refused, LockOutcome::Refused);
}

/// Handing a file to and fro costs more than calls.
#[test]
fn a_file_that_was_asked_for_stays_here_for_a_while() {
    let mut t = table();
    let number = done(&mut t, HERE, &flock(A, EXCLUSIVE));
    assert!(t.delegate(F, HERE, number) && t.recall(F).is_some());
    t.tell(HERE, &tell(number, None)).unwrap();
    let handed: Vec<_> = (0..70).map(|_| t.delegate(F, HERE, number)).collect();
    assert_eq!(handed.iter().position(|handed| *handed), Some(64));
    // One that is given back unasked is handed over at the next lock.
    t.tell(HERE, &tell(number, None)).unwrap();
    assert!(t.delegate(F, HERE, number));
}

#[test]
fn locks_that_cannot_be_are_not_taken() {
    let mut t = table();
    let number = done(&mut t, HERE, &range(F, A, (0, 9), EXCLUSIVE));
    assert!(t.delegate(F, HERE, number));
    let part = HeldLock { class: LockClass::Flock, ..held(A, (0, 9)) };
    let elsewhere = HeldLock { ino: G, ..held(A, (0, 9)) };
    let many = vec![held(A, (0, 9)); DELEGATED_LOCKS + 1];
    for wrong in [vec![held(A, (9, 0))], vec![part], vec![elsewhere], many] {
        assert_eq!(t.tell(HERE, &tell(number, Some(wrong))), Err(Status::INVAL));
    }
    assert_eq!(t.decided_elsewhere(F, THERE), Some(HERE));
}

/// A lock that was told goes to a wait, and closes a circle with one that was there.
#[test]
fn waits_are_looked_at_when_locks_are_told() {
    let mut t = table();
    done(&mut t, THERE, &range(G, B, (0, 0), EXCLUSIVE));
    let number = done(&mut t, HERE, &range(F, A, (0, 9), EXCLUSIVE));
    assert!(t.delegate(F, HERE, number));
    // A waits for B; B asks for what A has by its own decision, and is answered once that is told.
    assert_eq!(t.set(HERE, &queued(range(G, A, (0, 0), SHARED), 1)).unwrap().1, LockOutcome::Waits);
    t.tell(HERE, &tell(number, Some(vec![held(A, (20, 29))]))).unwrap();
    let wait = queued(range(F, B, (25, 25), SHARED), 2);
    assert_eq!(t.set(THERE, &wait), Err(Status::DEADLK));
    done(&mut t, THERE, &range(F, B, (0, 9), EXCLUSIVE));
}

#[test]
fn a_session_that_ends_decides_nothing() {
    let mut t = table();
    let number = done(&mut t, HERE, &range(F, A, (0, 9), EXCLUSIVE));
    assert!(t.delegate(F, HERE, number));
    t.drop_session(HERE);
    assert_eq!(t.decided_elsewhere(F, THERE), None);
    done(&mut t, THERE, &range(F, A, (0, 9), EXCLUSIVE));
}
