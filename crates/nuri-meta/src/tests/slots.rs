//! Retry is safe: the same (session, slot, sequence) is done once, also over a restart.

use super::*;
use nuri_kv::engine::Engine;

const ROOT: Ino = Ino::ROOT;

/// Catches `slots_forget`.
#[test]
fn a_repeated_call_answers_the_same_and_does_nothing_twice() {
    let world = World::new();
    let c = world.client();
    let first = c.repeat(1, make(ROOT, "f", MakeKind::File), &[]).unwrap();
    let commits = world.server.engine.last_commit();
    for _ in 0..3 {
        assert_eq!(c.repeat(1, make(ROOT, "f", MakeKind::File), &[]).unwrap(), first);
    }
    assert_eq!(world.server.engine.last_commit(), commits, "nothing was done again");
    let unlink = || Unlink { parent: ROOT, name: b"f".to_vec(), kind: RemoveKind::File };
    let gone = c.repeat(2, unlink(), &[]).unwrap();
    assert_eq!(c.repeat(2, unlink(), &[]).unwrap(), gone);
    let late = c.repeat(1, make(ROOT, "f", MakeKind::File), &[]);
    assert_eq!(late, Err(Status::MALFORMED), "a delayed packet of an older call");
    assert_eq!(c.find(ROOT, "f"), None);
    world.fsck();
}

/// Catches `slots_forget`.
#[test]
fn a_repeated_call_is_known_after_a_restart() {
    for seed in 0..8 {
        let world = World::new();
        let c = world.client();
        let first = c.repeat(1, make(ROOT, "f", MakeKind::File), &[]).unwrap();
        let id = c.id;
        let world = world.crash(seed);
        let c = Client::known(&world, id);
        c.reclaim(Reclaim::default()).unwrap();
        assert_eq!(c.repeat(1, make(ROOT, "f", MakeKind::File), &[]).unwrap(), first);
        assert_eq!(c.attr(ROOT).unwrap().size, 1);
        world.fsck();
    }
}

#[test]
fn slots_and_sessions_do_not_mix() {
    let world = World::new();
    let (a, b) = (world.client(), world.client());
    let context =
        |session: SessionId, slot| CallContext { session: session.0, slot, sequence: 1, epoch: 0 };
    for (i, c) in [context(a.id, 0), context(a.id, 1)].into_iter().enumerate() {
        let name = format!("f{i}");
        call(&world.server, c, &make(ROOT, &name, MakeKind::File), &[]).unwrap();
    }
    let (ino, mut at) = (ROOT, 0);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let c = context(b.id, 0);
            call(&world.server, c, &make(ino, "f2", MakeKind::File), &[]).unwrap()
        });
        a.obey(a.recalled(&mut at));
        other.join().unwrap();
    });
    assert_eq!(a.attr(ROOT).unwrap().size, 3);
}

#[test]
fn a_failed_call_left_nothing_and_may_be_tried_again() {
    let world = World::new();
    let c = world.client();
    let unlink = || Unlink { parent: ROOT, name: b"f".to_vec(), kind: RemoveKind::File };
    let before = world.server.engine.last_commit();
    assert_eq!(c.repeat(1, unlink(), &[]), Err(Status::NOENT));
    assert_eq!(world.server.engine.last_commit(), before);
    assert_eq!(c.repeat(1, unlink(), &[]), Err(Status::NOENT));
    c.repeat(2, make(ROOT, "f", MakeKind::File), &[]).unwrap();
    world.fsck();
}

/// What the log did not take must not be answered as done when it is asked again.
#[test]
fn a_call_that_the_store_refused_is_not_remembered_as_done() {
    let world = World::new();
    let c = world.client();
    c.file(ROOT, "f");
    world.log.fail_after(0);
    let failed = c.repeat(50, make(ROOT, "g", MakeKind::File), &[]);
    assert!(failed.is_err());
    for _ in 0..2 {
        assert!(c.repeat(51, make(ROOT, "h", MakeKind::File), &[]).is_err());
    }
    world.log.heal();
    assert!(c.repeat(51, make(ROOT, "h", MakeKind::File), &[]).is_err(), "until it is reopened");
}
