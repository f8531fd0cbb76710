//! NFS-3: what was done for a client is remembered with the change, and not done again for another
//! session.

use nuri_proto::op::once::{CallDone, CallKey, CallsDone, ChangeOnce, ChangeOnceReply, Remember};

use super::*;

const ROOT: Ino = Ino::ROOT;
const KEY: CallKey = CallKey([7; 16]);

/// The file of an address.
fn place(c: &Client<'_>) -> Ino {
    c.file(Ino::VOLUMES, "%at-10.0.0.100")
}

fn remember(place: Ino, key: CallKey, number: u64) -> Remember {
    Remember { place, key, number, forget: Vec::new() }
}

fn once(done: Remember, change: impl Into<nuri_proto::op::once::NameChange>) -> ChangeOnce {
    ChangeOnce { done, change: change.into() }
}

fn known(c: &Client<'_>, place: Ino) -> Vec<CallDone> {
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let page = c.get(CallsDone { place, after, max: 2 }).unwrap().calls;
        let Some(last) = page.last() else { return all };
        after = Some(last.key);
        all.extend(page);
    }
}

fn directory() -> Make {
    make(ROOT, "d", MakeKind::Directory)
}

fn gone() -> Unlink {
    Unlink { parent: ROOT, name: b"d".to_vec(), kind: RemoveKind::Directory }
}

/// Catches `done_twice`.
#[test]
fn a_call_is_done_once_for_two_sessions_also_over_a_crash() {
    for seed in 0..8 {
        let world = World::new();
        let a = world.client();
        let place = place(&a);
        let ChangeOnceReply { reply } = a.put(once(remember(place, KEY, 1), directory())).unwrap();
        let made: MakeReply = nuri_proto::codec::decode(&reply).unwrap();
        let made = made.entry.inode.attr.ino;
        let world = world.crash(seed);
        let id = Client::known(&world, a_session(&world));
        id.reclaim(Reclaim::default()).unwrap();
        let b = world.client();
        assert_eq!(known(&b, place), [CallDone { key: KEY, number: 1, made: Some(made) }]);
        let again = b.put(once(remember(place, KEY, 2), directory()));
        assert_eq!(again.unwrap_err(), Status::DONE_BEFORE);
        // Removed by somebody else meanwhile: it must not come back.
        b.rmdir(ROOT, "d").unwrap();
        let again = b.put(once(remember(place, KEY, 3), directory()));
        assert_eq!(again.unwrap_err(), Status::DONE_BEFORE);
        assert_eq!(b.find(ROOT, "d"), None);
        world.fsck();
    }
}

fn a_session(world: &World) -> SessionId {
    world.server.sessions()[0].0
}

#[test]
fn what_failed_is_not_remembered_and_what_is_old_is_forgotten() {
    let world = World::new();
    let c = world.client();
    let place = place(&c);
    let failed = c.put(once(remember(place, KEY, 1), gone()));
    assert_eq!(failed.unwrap_err(), Status::NOENT);
    assert_eq!(known(&c, place), []);
    let key = |byte: u8| CallKey([byte; 16]);
    c.put(once(remember(place, key(1), 1), directory())).unwrap();
    c.put(once(remember(place, key(2), 2), gone())).unwrap();
    let again = c.put(once(remember(place, key(2), 2), gone()));
    assert_eq!(again.unwrap_err(), Status::DONE_BEFORE, "not that it is gone");
    let third = Remember { forget: vec![key(1)], ..remember(place, key(3), 3) };
    c.put(once(third, directory())).unwrap();
    let numbers: Vec<_> = known(&c, place).iter().map(|call| call.number).collect();
    assert_eq!(numbers, [2, 3]);
    world.fsck();
    // With the address goes what was remembered.
    c.unlink(Ino::VOLUMES, "%at-10.0.0.100").unwrap();
    c.let_go(place);
    assert_eq!(known(&c, place), []);
    world.fsck();
}

#[test]
fn only_an_address_remembers() {
    let world = World::new();
    let c = world.client();
    let file = c.file(ROOT, "f");
    let refused = c.put(once(remember(file, KEY, 1), directory()));
    assert_eq!(refused.unwrap_err(), Status::INVAL);
    let place = place(&c);
    let nowhere = Ino(place.0 + 1000);
    assert_eq!(c.put(once(remember(nowhere, KEY, 1), directory())).unwrap_err(), Status::STALE);
    assert_eq!(c.find(ROOT, "d"), None);
    let forgets = Remember { forget: vec![KEY; 3], ..remember(place, KEY, 1) };
    assert_eq!(c.put(once(forgets, directory())).unwrap_err(), Status::INVAL);
}
