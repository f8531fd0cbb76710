//! The lock table alone, and against a model with one cell per byte.
//!
//! Catches `broken!("lock_unchecked")`, `broken!("lock_no_deadlock")`, `broken!("lock_passes")`.

#![allow(clippy::unwrap_used)]

use super::*;

mod delegation;
mod model;

const A: u64 = 1;
const B: u64 = 2;
const C: u64 = 3;
const F: Ino = Ino(7);
const G: Ino = Ino(8);
const HERE: SessionId = SessionId(1);
const SHARED: Option<LockMode> = Some(LockMode::Shared);
const EXCLUSIVE: Option<LockMode> = Some(LockMode::Exclusive);
const GRANTED: Granted = Granted::Yes;

fn table() -> LockTable {
    LockTable::new(1, Limits::default())
}

fn range(ino: Ino, owner: u64, bytes: (u64, u64), mode: Option<LockMode>) -> LockSet {
    let span = Span { start: bytes.0, end: bytes.1 };
    let (class, pid, wait) = (LockClass::Range, owner as u32, LockWait::No);
    LockSet { ino, class, owner, span, mode, pid, wait }
}

fn flock(owner: u64, mode: Option<LockMode>) -> LockSet {
    LockSet { class: LockClass::Flock, span: Span::ALL, ..range(F, owner, (0, 0), mode) }
}

fn queued(call: LockSet, request: u64) -> LockSet {
    LockSet { wait: LockWait::Queue { request, deadlock: Deadlock::Detect }, ..call }
}

impl LockTable {
    fn run(&mut self, call: &LockSet) -> Result<LockOutcome, Status> {
        self.set(HERE, call).map(|(_, outcome, told)| {
            assert!(told.is_empty(), "{told:?}");
            outcome
        })
    }

    /// Runs a call; returns which waits it ended.
    fn ends(&mut self, call: &LockSet) -> Vec<(u64, Granted)> {
        ends(self.set(HERE, call).unwrap().2)
    }
}

fn ends(told: Vec<Told>) -> Vec<(u64, Granted)> {
    told.into_iter().map(|t| (t.end.request, t.end.granted)).collect()
}

#[test]
fn two_owners_never_hold_the_same_byte_unless_they_share_it() {
    let mut t = table();
    assert_eq!(t.run(&range(F, A, (0, 9), SHARED)), Ok(LockOutcome::Done));
    assert_eq!(t.run(&range(F, B, (5, 14), SHARED)), Ok(LockOutcome::Done));
    assert_eq!(t.run(&range(F, B, (9, 9), EXCLUSIVE)), Ok(LockOutcome::Refused));
    assert_eq!(t.run(&range(F, B, (10, 14), EXCLUSIVE)), Ok(LockOutcome::Done));
    assert_eq!(t.run(&range(F, A, (14, 14), SHARED)), Ok(LockOutcome::Refused));
    assert_eq!(t.run(&range(G, A, (14, 14), EXCLUSIVE)), Ok(LockOutcome::Done));
    let call = LockTest { ino: F, owner: A, span: Span::ALL, mode: LockMode::Exclusive };
    let holder = t.test(HERE, &call).unwrap();
    assert_eq!((holder.span, holder.pid), (Span { start: 5, end: 9 }, 2));
    assert_eq!(t.test(SessionId(2), &call).unwrap().pid, 0, "a process of another mount");
    // Raised, lowered, split, given up.
    assert_eq!(t.run(&range(F, B, (0, Span::LAST), None)), Ok(LockOutcome::Done));
    assert_eq!(t.run(&range(F, A, (0, Span::LAST), EXCLUSIVE)), Ok(LockOutcome::Done));
    assert_eq!(t.run(&range(F, A, (4, 4), None)), Ok(LockOutcome::Done));
    assert_eq!(t.counts(), (3, 0));
    assert_eq!(t.run(&range(F, B, (4, 4), EXCLUSIVE)), Ok(LockOutcome::Done));
    assert_eq!(t.run(&range(F, B, (4, 5), EXCLUSIVE)), Ok(LockOutcome::Refused));
}

#[test]
fn fcntl_and_flock_are_apart() {
    let mut t = table();
    t.run(&range(F, A, (0, Span::LAST), EXCLUSIVE)).unwrap();
    assert_eq!(t.run(&flock(B, EXCLUSIVE)), Ok(LockOutcome::Done));
    assert_eq!(t.run(&flock(A, SHARED)), Ok(LockOutcome::Refused));
    let part = LockSet { span: Span { start: 0, end: 5 }, ..flock(C, SHARED) };
    assert_eq!(t.run(&part), Err(Status::INVAL));
}

#[test]
fn a_conversion_of_flock_gives_the_old_lock_up() {
    let mut t = table();
    t.run(&flock(A, SHARED)).unwrap();
    t.run(&flock(B, SHARED)).unwrap();
    assert_eq!(t.run(&queued(flock(A, EXCLUSIVE), 1)), Ok(LockOutcome::Waits));
    // Both want it alone: nobody waits for ever, because A has nothing any more.
    assert_eq!(t.run(&queued(flock(B, EXCLUSIVE), 2)), Ok(LockOutcome::Done));
    assert_eq!(t.ends(&flock(B, None)), [(1, GRANTED)]);
    t.run(&flock(A, SHARED)).unwrap();
    t.run(&flock(B, SHARED)).unwrap();
    assert_eq!(t.run(&flock(A, EXCLUSIVE)), Ok(LockOutcome::Refused));
    assert_eq!(t.run(&flock(B, EXCLUSIVE)), Ok(LockOutcome::Done), "what A had is gone");
}

#[test]
fn waits_are_granted_in_their_order() {
    let mut t = table();
    t.run(&range(F, A, (0, 9), EXCLUSIVE)).unwrap();
    for (owner, request) in [(B, 1), (C, 2), (4, 3)] {
        let call = queued(range(F, owner, (0, 0), EXCLUSIVE), request);
        assert_eq!(t.run(&call), Ok(LockOutcome::Waits));
        assert_eq!(t.run(&call), Ok(LockOutcome::Waits), "a repeated call queues once");
    }
    assert_eq!(t.counts().1, 3);
    assert_eq!(t.ends(&range(F, A, (0, 9), None)), [(1, GRANTED)]);
    assert_eq!(t.cancel(HERE, 2), (true, vec![]));
    assert_eq!(t.cancel(HERE, 2), (false, vec![]));
    assert_eq!(t.ends(&range(F, B, (0, 9), None)), [(3, GRANTED)]);
}

/// Catches `broken!("lock_no_deadlock")`.
#[test]
fn a_circle_of_waits_is_refused() {
    let mut t = table();
    t.run(&range(F, A, (0, 0), EXCLUSIVE)).unwrap();
    t.run(&range(F, B, (1, 1), EXCLUSIVE)).unwrap();
    t.run(&range(G, C, (2, 2), EXCLUSIVE)).unwrap();
    assert_eq!(t.run(&queued(range(F, A, (1, 1), SHARED), 1)), Ok(LockOutcome::Waits));
    assert_eq!(t.run(&queued(range(G, B, (2, 2), SHARED), 2)), Ok(LockOutcome::Waits));
    assert_eq!(t.run(&queued(range(F, C, (0, 0), SHARED), 3)), Err(Status::DEADLK));
    // Open files may be shared by threads: their circles may end.
    let wait = LockWait::Queue { request: 4, deadlock: Deadlock::Ignore };
    let call = LockSet { wait, ..range(F, C, (0, 0), SHARED) };
    assert_eq!(t.run(&call), Ok(LockOutcome::Waits));
    assert_eq!(t.ends(&range(G, C, (2, 2), None)), [(2, GRANTED)]);
}

/// The circle closes when a lock goes to somebody who waits elsewhere.
#[test]
fn a_circle_that_a_grant_closes_is_ended() {
    let mut t = table();
    t.run(&range(F, A, (0, 0), EXCLUSIVE)).unwrap();
    t.run(&range(G, B, (0, 0), EXCLUSIVE)).unwrap();
    // One thread of C waits for B's lock, another one gets what B waits for.
    t.run(&queued(range(G, C, (0, 0), EXCLUSIVE), 1)).unwrap();
    t.run(&queued(range(F, C, (0, 0), EXCLUSIVE), 2)).unwrap();
    t.run(&queued(range(F, B, (0, 0), EXCLUSIVE), 3)).unwrap();
    let ended = t.ends(&range(F, A, (0, 0), None));
    assert_eq!(ended, [(2, GRANTED), (3, Granted::Deadlock)]);
}

/// Catches `broken!("lock_passes")`.
#[test]
fn a_writer_is_not_passed_for_ever() {
    let mut t = table();
    t.run(&flock(A, SHARED)).unwrap();
    t.run(&queued(flock(B, EXCLUSIVE), 1)).unwrap();
    let reader = |n: u64| queued(flock(100 + n, SHARED), 100 + n);
    let passed = (0..1000).take_while(|n| t.run(&reader(*n)) == Ok(LockOutcome::Done)).count();
    assert_eq!(passed, PASSES as usize);
    assert_eq!(t.run(&flock(C, SHARED)), Ok(LockOutcome::Done), "who will not wait is not held up");
    t.run(&flock(C, None)).unwrap();
    t.run(&flock(A, None)).unwrap();
    for n in 0..passed as u64 - 1 {
        t.run(&flock(100 + n, None)).unwrap();
    }
    assert_eq!(t.ends(&flock(100 + passed as u64 - 1, None)), [(1, GRANTED)]);
    assert_eq!(t.ends(&flock(B, None)), [(100 + passed as u64, GRANTED)]);
}

/// A holder may wait, unseen, for one that waits behind a writer that waits for the holder.
#[test]
fn who_waits_behind_a_writer_goes_on_after_a_while() {
    let mut t = table();
    t.run(&flock(A, SHARED)).unwrap();
    t.run(&queued(flock(B, EXCLUSIVE), 1)).unwrap();
    for n in 0..u64::from(PASSES) {
        t.run(&queued(flock(100 + n, SHARED), 100 + n)).unwrap();
        t.run(&flock(100 + n, None)).unwrap();
    }
    t.set(HERE, &queued(flock(C, SHARED), 2)).unwrap();
    assert_eq!(t.relax(), []);
    assert_eq!(ends(t.relax()), [(2, GRANTED)]);
}

#[test]
fn a_session_that_ends_leaves_nothing() {
    let mut t = table();
    let there = SessionId(2);
    t.set(there, &range(F, A, (0, 9), EXCLUSIVE)).unwrap();
    t.set(there, &flock(A, EXCLUSIVE)).unwrap();
    t.run(&queued(range(F, A, (0, 0), EXCLUSIVE), 5)).unwrap();
    t.set(there, &queued(range(F, B, (9, 9), SHARED), 6)).unwrap();
    assert_eq!(t.drop_waits(there), []);
    assert_eq!(t.run(&flock(A, SHARED)), Ok(LockOutcome::Refused), "it still holds what it had");
    assert_eq!(ends(t.drop_session(there)), [(5, GRANTED)]);
    assert_eq!(t.run(&flock(A, SHARED)), Ok(LockOutcome::Done));
    t.drop_session(HERE);
    assert_eq!(t.counts(), (0, 0));
    assert!(t.files.is_empty() && t.waiting.is_empty() && t.sessions.is_empty());
}

#[test]
fn there_are_no_more_than_the_limits_say() {
    let limits = Limits { session_locks: 4, locks: 6, session_waits: 1, waits: 2 };
    let mut t = LockTable::new(1, limits);
    t.run(&range(F, A, (0, 9), EXCLUSIVE)).unwrap();
    t.run(&range(F, A, (20, 29), EXCLUSIVE)).unwrap();
    t.run(&range(F, A, (40, 49), EXCLUSIVE)).unwrap();
    assert_eq!(t.run(&range(F, A, (60, 69), EXCLUSIVE)), Err(Status::NOLCK));
    assert_eq!(t.run(&range(F, A, (44, 44), None)), Ok(LockOutcome::Done));
    assert_eq!(t.run(&range(F, A, (4, 4), None)), Err(Status::NOLCK), "would split");
    let there = SessionId(2);
    t.set(there, &queued(range(F, B, (0, 0), SHARED), 1)).unwrap();
    let one_more = t.set(there, &queued(range(F, C, (0, 0), SHARED), 2));
    assert_eq!(one_more.unwrap_err(), Status::NOLCK);
    assert_eq!(t.ends(&range(F, A, (0, Span::LAST), None)), [(1, GRANTED)]);
    let bad = LockSet { span: Span { start: 5, end: 4 }, ..range(F, A, (0, 0), SHARED) };
    assert_eq!(t.run(&bad), Err(Status::INVAL));
}
