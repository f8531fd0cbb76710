//! Locks through the server: events, repeated calls, eviction, grace.

use nuri_proto::clock::{RECALL, SESSION};

use super::*;

const F: Ino = Ino(77);
const SOON: Duration = Duration::from_millis(150);
const EXCLUSIVE: Option<LockMode> = Some(LockMode::Exclusive);

fn lock(owner: u64, mode: Option<LockMode>) -> LockSet {
    let (class, span, wait) = (LockClass::Range, Span { start: 0, end: 9 }, LockWait::No);
    LockSet { ino: F, class, owner, span, mode, pid: 5, wait }
}

fn queued(owner: u64, request: u64) -> LockSet {
    let wait = LockWait::Queue { request, deadlock: Deadlock::Detect };
    LockSet { wait, ..lock(owner, EXCLUSIVE) }
}

fn held(owner: u64) -> HeldLock {
    let LockSet { ino, class, span, pid, .. } = lock(owner, None);
    HeldLock { ino, class, owner, span, mode: LockMode::Exclusive, pid }
}

fn back(locks: Vec<HeldLock>) -> Reclaim {
    Reclaim { locks, ..Reclaim::default() }
}

fn outcome(reply: Result<LockReply, Status>) -> LockOutcome {
    reply.unwrap().outcome
}

impl Client<'_> {
    /// Leaves all decisions to the server.
    fn set(&self, call: LockSet) -> Result<LockReply, Status> {
        let ino = call.ino;
        let reply = self.put(call)?;
        if reply.delegated {
            self.get(LockTell { ino, number: reply.number, locks: None }).unwrap();
        }
        Ok(reply)
    }

    fn ended(&self, at: &mut u64) -> Vec<LockEnd> {
        let ends = self.told(at).into_iter();
        ends.filter_map(|event| if let Event::Lock(end) = event { Some(end) } else { None })
            .collect()
    }
}

#[test]
fn a_wait_holds_no_thread_and_its_end_is_told() {
    let world = World::new();
    let (a, b) = (world.client(), world.client());
    let first = a.set(lock(1, EXCLUSIVE)).unwrap();
    assert_eq!(first.outcome, LockOutcome::Done);
    assert_eq!(outcome(b.set(lock(1, EXCLUSIVE))), LockOutcome::Refused);
    assert_eq!(outcome(b.set(queued(1, 7))), LockOutcome::Waits);
    assert_eq!(outcome(b.set(queued(2, 8))), LockOutcome::Waits);
    let test = LockTest { ino: F, owner: 9, span: Span::ALL, mode: LockMode::Shared };
    assert_eq!(a.get(test.clone()).unwrap().unwrap().pid, 5);
    assert_eq!(b.get(test).unwrap().unwrap().pid, 0);
    let mut at = 0;
    std::thread::scope(|scope| {
        let told = scope.spawn(|| b.ended(&mut at));
        std::thread::sleep(SOON);
        assert!(!told.is_finished());
        a.set(lock(1, None)).unwrap();
        let ends = told.join().unwrap();
        assert!(ends[0].request == 7 && ends[0].granted == Granted::Yes);
        assert!(ends[0].number > first.number);
    });
    assert_eq!(b.get(LockCancel { requests: vec![7, 8, 9] }), Ok(vec![false, true, false]));
}

/// A late copy of a call must not bring back what was given up since.
#[test]
fn a_repeated_call_is_done_once() {
    let world = World::new();
    let (a, b) = (world.client(), world.client());
    let first = a.repeat(1, lock(1, EXCLUSIVE), &[]);
    let again = a.repeat(1, lock(1, EXCLUSIVE), &[]);
    assert_eq!(first, again);
    a.get(LockTell { ino: F, number: first.unwrap().number, locks: None }).unwrap();
    a.repeat(2, lock(1, None), &[]).unwrap();
    assert_eq!(a.repeat(1, lock(1, EXCLUSIVE), &[]), Err(Status::MALFORMED));
    assert_eq!(outcome(b.set(lock(1, EXCLUSIVE))), LockOutcome::Done);
}

#[test]
fn locks_of_an_evicted_session_are_free_once_it_is_fenced() {
    let world = World::new();
    let (a, b) = (world.client(), world.client());
    a.set(lock(1, EXCLUSIVE)).unwrap();
    assert_eq!(outcome(b.set(queued(1, 7))), LockOutcome::Waits);
    let mut at = 0;
    world.pass(SESSION / 2);
    b.get(StatFs {}).unwrap();
    world.pass(SESSION / 2 + Duration::from_millis(1));
    assert_eq!(b.ended(&mut at)[0].request, 7);
    assert_eq!(a.set(lock(1, EXCLUSIVE)), Err(Status::SESSION_GONE));
}

/// Catches `broken!("lock_in_grace")`.
#[test]
fn a_restarted_server_waits_for_what_was_held() {
    let world = World::new();
    let (a, b) = (world.client(), world.client());
    a.set(lock(1, EXCLUSIVE)).unwrap();
    let (a, b) = (a.id, b.id);
    let world = world.crash(3);
    let (a, b) = (Client::known(&world, a), Client::known(&world, b));
    a.sequence.store(9, Ordering::SeqCst);
    assert_eq!(b.reclaim(back(vec![])).unwrap().locks, [true; 0]);
    std::thread::scope(|scope| {
        let taken = scope.spawn(|| b.set(lock(1, EXCLUSIVE)).unwrap().outcome);
        std::thread::sleep(SOON);
        let waited = !taken.is_finished();
        let reclaimed = a.reclaim(back(vec![held(1), held(1)])).unwrap();
        assert_eq!(taken.join().unwrap(), LockOutcome::Refused);
        assert!(waited, "a holder may still come back");
        assert_eq!(reclaimed.locks, [true, true]);
    });
    // The grace is over: what was given up does not come back.
    a.set(lock(1, None)).unwrap();
    assert_eq!(a.reclaim(back(vec![held(1)])).unwrap().locks, [false]);
    assert_eq!(outcome(b.set(lock(1, EXCLUSIVE))), LockOutcome::Done);
}

/// Catches `broken!("decisions_not_awaited")`.
#[test]
fn who_decides_about_a_file_is_asked_before_others_are_answered() {
    let world = World::new();
    let (a, b) = (world.client(), world.client());
    let handed = a.put(lock(1, EXCLUSIVE)).unwrap();
    assert!(handed.delegated);
    std::thread::scope(|scope| {
        let test = LockTest { ino: F, owner: 9, span: Span::ALL, mode: LockMode::Shared };
        let tested = scope.spawn(|| b.get(test).unwrap());
        let locked = scope.spawn(|| b.put(lock(1, EXCLUSIVE)).unwrap());
        let told = a.told(&mut 0);
        let recall = LockRecall { ino: F, number: handed.number };
        assert_eq!(told, [Event::LockRecall(recall)]);
        std::thread::sleep(SOON);
        let waited = !tested.is_finished() && !locked.is_finished();
        // Its program has locked other bytes since.
        let span = Span { start: 20, end: 29 };
        let locks = Some(vec![HeldLock { span, ..held(4) }]);
        a.get(LockTell { ino: F, number: handed.number, locks }).unwrap();
        // Or the other way round.
        let (holder, locked) = (tested.join().unwrap().unwrap(), locked.join().unwrap());
        assert!(waited && [0, 20].contains(&holder.span.start), "{waited} {holder:?}");
        assert!(locked.outcome == LockOutcome::Done && !locked.delegated);
    });
}

#[test]
fn who_decides_and_does_not_answer_is_evicted() {
    let world = World::new();
    let (a, b) = (world.client(), world.client());
    assert!(a.put(lock(1, EXCLUSIVE)).unwrap().delegated);
    std::thread::scope(|scope| {
        let locked = scope.spawn(|| b.put(lock(1, EXCLUSIVE)).unwrap());
        assert_eq!(a.told(&mut 0).len(), 1);
        // It goes on, and obeys nothing.
        for _ in 0..10 {
            world.pass(RECALL / 9);
            let _ = a.get(StatFs {});
            b.get(StatFs {}).unwrap();
        }
        world.pass(SESSION / 2);
        b.get(StatFs {}).unwrap();
        world.pass(SESSION / 2 + Duration::from_millis(1));
        b.get(StatFs {}).unwrap();
        assert_eq!(locked.join().unwrap().outcome, LockOutcome::Done);
    });
    assert_eq!(a.put(lock(1, None)), Err(Status::SESSION_GONE));
}
