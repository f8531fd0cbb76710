//! Leases between sessions, orphans, expiry, grace.

use nuri_proto::clock::{GRACE, RECALL, SESSION};

use super::*;
use crate::lease::LeaseTable;

const ROOT: Ino = Ino::ROOT;
const SOON: Duration = Duration::from_millis(150);

#[test]
fn a_writer_is_recalled_to_reading_before_others_see_attributes() {
    let world = World::new();
    let (a, b) = (world.client(), world.client());
    let f = a.file(ROOT, "f");
    let mut at = 0;
    std::thread::scope(|scope| {
        let stat = scope.spawn(|| b.attr(f).unwrap());
        let recall = a.recalled(&mut at);
        assert_eq!((recall.ino, recall.keep), (f, Some(LeaseMode::Read)));
        std::thread::sleep(SOON);
        assert!(!stat.is_finished(), "the writer has not answered");
        a.publish_inline(f, b"hello").unwrap();
        a.obey(recall);
        assert_eq!(stat.join().unwrap().size, 5, "what the writer published last");
    });
    assert_eq!(a.publish_inline(f, b"late"), Err(Status::STALE));
}

#[test]
fn a_mutation_recalls_every_cache() {
    let world = World::new();
    let (a, b) = (world.client(), world.client());
    let f = a.file(ROOT, "f");
    let mut at = 0;
    std::thread::scope(|scope| {
        let chmod = scope
            .spawn(|| b.put(SetAttr { ino: f, mode: Some(0o600), ..SetAttr::default() }).unwrap());
        let recall = a.recalled(&mut at);
        assert_eq!((recall.ino, recall.keep), (f, None));
        assert!(!chmod.is_finished());
        a.obey(recall);
        assert_eq!(chmod.join().unwrap().inode.attr.mode & 0o777, 0o600);
    });
    // Names are cached under the directory's lease.
    assert!(a.get(Lookup { parent: ROOT, name: b"g".to_vec() }).unwrap().dir_lease.is_some());
    std::thread::scope(|scope| {
        let made = scope.spawn(|| b.file(ROOT, "g"));
        let recall = a.recalled(&mut at);
        assert_eq!((recall.ino, recall.keep), (ROOT, None));
        a.obey(recall);
        made.join().unwrap();
    });
}

/// Readers that ask again and again would keep a writer waiting for ever.
#[test]
fn who_gave_its_lease_back_for_a_writer_reads_after_it() {
    let world = World::new();
    let (a, b, writer) = (world.client(), world.client(), world.client());
    let f = a.file(ROOT, "f");
    a.get(Release { leases: vec![(f, u64::MAX)] }).unwrap();
    a.acquire(f, LeaseMode::Read).unwrap();
    b.acquire(f, LeaseMode::Read).unwrap();
    std::thread::scope(|scope| {
        let write = scope.spawn(|| writer.acquire(f, LeaseMode::Write).unwrap());
        let (of_a, of_b) = (a.recalled(&mut 0), b.recalled(&mut 0));
        a.obey(of_a);
        let again = scope.spawn(|| a.acquire(f, LeaseMode::Read).unwrap());
        std::thread::sleep(SOON);
        assert!(!write.is_finished() && !again.is_finished());
        b.obey(of_b);
        assert!(write.join().unwrap().inode.lease.is_some());
        let of_writer = writer.recalled(&mut 0);
        assert_eq!(of_writer.keep, Some(LeaseMode::Read));
        writer.obey(of_writer);
        assert!(again.join().unwrap().inode.lease.is_some());
    });
}

/// Catches `grant_during_recall`.
#[test]
fn a_holder_under_recall_gets_no_new_lease() {
    let world = World::new();
    let (a, b) = (world.client(), world.client());
    let f = a.file(ROOT, "f");
    let mut at = 0;
    std::thread::scope(|scope| {
        let resize = scope.spawn(|| b.resize(f, 10).unwrap());
        let recall = a.recalled(&mut at);
        let offered: Vec<_> = (0..3).map(|_| a.get(GetAttr { ino: f }).unwrap().lease).collect();
        a.obey(recall);
        // Whatever was granted, the other side comes to its end, and so does this test.
        let after = a.get(Release { leases: vec![(f, u64::MAX)] });
        resize.join().unwrap();
        assert_eq!(offered, [None; 3], "under its own recall");
        after.unwrap();
    });
    b.get(Release { leases: vec![(f, u64::MAX)] }).unwrap();
    assert!(a.acquire(f, LeaseMode::Read).is_ok());
}

#[test]
fn who_changes_an_inode_is_offered_it_alone() {
    let world = World::new();
    let (a, b) = (world.client(), world.client());
    let f = a.file(ROOT, "f");
    a.get(Release { leases: vec![(f, u64::MAX)] }).unwrap();
    let chmod = |ino| SetAttr { ino, mode: Some(0o600), ..SetAttr::default() };
    let mode = |reply: SetAttrReply| reply.inode.lease.map(|grant| grant.mode);
    assert_eq!(mode(b.get(chmod(f)).unwrap()), Some(LeaseMode::Write));
    let dir = a.dir(ROOT, "d");
    a.get(Release { leases: vec![(dir, u64::MAX)] }).unwrap();
    assert_eq!(
        mode(b.get(chmod(dir)).unwrap()),
        Some(LeaseMode::Read),
        "it is taken with its names"
    );
}

#[test]
fn a_repeated_recall_answer_takes_no_lease() {
    let world = World::new();
    let (a, b) = (world.client(), world.client());
    let f = a.file(ROOT, "f");
    let mut at = 0;
    std::thread::scope(|scope| {
        let stat = scope.spawn(|| b.attr(f).unwrap());
        let recall = a.recalled(&mut at);
        a.obey(recall);
        stat.join().unwrap();
        a.obey(recall);
        // Both read now: the writer must ask both of them.
        let chmod = scope.spawn(|| b.resize(f, 3).unwrap());
        let again = a.recalled(&mut at);
        assert_eq!(again.keep, None);
        a.obey(again);
        chmod.join().unwrap();
    });
}

#[test]
fn a_holder_that_does_not_obey_is_evicted() {
    let world = World::new();
    let (a, b) = (world.client(), world.client());
    let f = a.file(ROOT, "f");
    std::thread::scope(|scope| {
        let stat = scope.spawn(|| b.attr(f).unwrap());
        let mut at = 0;
        a.recalled(&mut at);
        let mut passed = Duration::ZERO;
        while !stat.is_finished() {
            // Heard from all the time, but it does not answer the recall.
            let _ = a.get(StatFs {});
            world.clock.advance(Duration::from_secs(1));
            passed += Duration::from_secs(1);
            std::thread::sleep(Duration::from_millis(120));
            assert!(passed < 2 * RECALL, "evicted in time");
        }
        assert!(passed >= RECALL, "not before its time");
        stat.join().unwrap();
    });
    assert_eq!(a.attr(f), Err(Status::SESSION_GONE));
}

#[test]
fn silent_sessions_end_and_free_their_leases_and_orphans() {
    let world = World::new();
    let (a, b) = (world.client(), world.client());
    let f = a.file(ROOT, "f");
    a.publish(f, 4096).unwrap();
    assert!(a.unlink(ROOT, "f").unwrap().orphan);
    let g = a.file(ROOT, "g");
    world.pass(SESSION / 2);
    b.get(StatFs {}).unwrap();
    assert_eq!(world.server.sessions().len(), 2);
    world.pass(SESSION / 2 + Duration::from_secs(1));
    assert_eq!(world.server.sessions(), [(b.id, "test".to_string())]);
    assert_eq!(a.get(StatFs {}), Err(Status::SESSION_GONE));
    assert_eq!(b.attr(f), Err(Status::STALE), "the orphan went with its last session");
    assert_eq!(world.server.garbage(ObjectId(0), 10).unwrap().len(), 1);
    b.resize(g, 7).unwrap();
    world.fsck();
}

#[test]
fn an_orphan_lives_until_every_session_released_it() {
    let world = World::new();
    let (a, b) = (world.client(), world.client());
    let f = a.file(ROOT, "f");
    a.publish(f, 4096).unwrap();
    let mut at = 0;
    std::thread::scope(|scope| {
        let open = scope.spawn(|| b.acquire(f, LeaseMode::Read).unwrap());
        a.obey(a.recalled(&mut at));
        open.join().unwrap();
        let mut at_b = 0;
        let gone = scope.spawn(|| a.unlink(ROOT, "f").unwrap());
        b.obey(b.recalled(&mut at_b));
        assert!(gone.join().unwrap().orphan);
        assert_eq!(b.told(&mut at_b), [Event::Unlinked(f)]);
    });
    a.put(OrphanRelease { inos: vec![f] }).unwrap();
    assert_eq!(b.attr(f).unwrap().nlink, 0);
    assert_eq!(world.fsck().orphans, 1);
    // A living inode is not touched by it.
    let g = b.acquire(ROOT, LeaseMode::Read).unwrap();
    b.put(OrphanRelease { inos: vec![f, ROOT] }).unwrap();
    assert_eq!(b.attr(f), Err(Status::STALE));
    assert!(g.inode.lease.is_some() && world.server.garbage(ObjectId(0), 10).unwrap().len() == 1);
    assert_eq!(world.fsck().orphans, 0);
}

#[test]
fn an_orphan_outlives_a_restart_while_it_is_reclaimed() {
    for reclaimed in [true, false] {
        let world = World::new();
        let a = world.client();
        let f = a.file(ROOT, "f");
        a.unlink(ROOT, "f").unwrap();
        let id = a.id;
        let world = world.crash(3);
        let a = Client::known(&world, id);
        a.sequence.store(9, Ordering::SeqCst);
        let open = if reclaimed { vec![f] } else { Vec::new() };
        a.reclaim(Reclaim { open, ..Reclaim::default() }).unwrap();
        a.get(StatFs {}).unwrap();
        assert_eq!(world.fsck().orphans, u64::from(reclaimed));
        if reclaimed {
            assert_eq!(a.attr(f).unwrap().nlink, 0);
            a.put(OrphanRelease { inos: vec![f] }).unwrap();
        }
        assert_eq!(a.attr(f), Err(Status::STALE));
        world.fsck();
    }
}

/// The client was in the middle of it when the server restarted once more: the rest does not pass
/// for the whole, else what it does next without a lease that it relies on is refused.
#[test]
fn what_an_earlier_start_was_told_has_to_be_told_again() {
    let world = World::new();
    let a = world.client();
    let (f, id) = (a.file(ROOT, "f"), a.id);
    let world = world.crash(4);
    let a = Client::known(&world, id);
    let server_boot = world.server.engine.epoch();
    let leases = vec![(f, LeaseMode::Write)];
    a.get(Reclaim { server_boot, leases, more: true, ..Reclaim::default() }).unwrap();
    let world = world.crash(4);
    let a = Client::known(&world, id);
    let rest = Reclaim { server_boot, leases: vec![(ROOT, LeaseMode::Read)], ..Reclaim::default() };
    assert_eq!(a.get(rest).map(|_| ()), Err(Status::STALE));
    assert!(world.server.core.lock().grace.is_some(), "it is still waited for");
    let leases = vec![(f, LeaseMode::Write), (ROOT, LeaseMode::Read)];
    let reply = a.reclaim(Reclaim { leases, ..Reclaim::default() }).unwrap();
    assert!(reply.leases.iter().all(Option::is_some));
    assert_eq!(a.attr(f).unwrap().nlink, 1);
}

#[test]
fn grace_blocks_others_until_all_have_reclaimed() {
    let world = World::new();
    let (a, b) = (world.client(), world.client());
    let f = a.file(ROOT, "f");
    let old = a.acquire(f, LeaseMode::Write).unwrap().inode.lease.unwrap();
    let (a, b) = (a.id, b.id);
    let world = world.crash(4);
    let (a, b) = (Client::known(&world, a), Client::known(&world, b));
    b.reclaim(Reclaim::default()).unwrap();
    let mut at = 0;
    std::thread::scope(|scope| {
        let stat = scope.spawn(|| b.attr(f).unwrap());
        std::thread::sleep(SOON);
        assert!(!stat.is_finished(), "the writer may still come back");
        let more = Reclaim { open: vec![f], more: true, ..Reclaim::default() };
        a.reclaim(more).unwrap();
        std::thread::sleep(SOON);
        assert!(!stat.is_finished(), "it said that more follows");
        let mine = vec![(f, LeaseMode::Write)];
        let grants =
            a.reclaim(Reclaim { leases: mine, open: vec![f], ..Reclaim::default() }).unwrap();
        let grant = grants.leases[0].unwrap();
        assert!(grant.mode == LeaseMode::Write && grant.number > old.number);
        let recall = a.recalled(&mut at);
        assert_eq!(recall.number, grant.number);
        a.sequence.store(9, Ordering::SeqCst);
        a.publish_inline(f, b"kept").unwrap();
        a.obey(recall);
        assert_eq!(stat.join().unwrap().size, 4);
    });
}

/// Events are numbered anew by every boot: an old number must not acknowledge new ones.
#[test]
fn recalls_after_a_restart_reach_a_session_that_acknowledged_many_before() {
    let world = World::new();
    let (a, b) = (world.client(), world.client());
    let f = a.file(ROOT, "f");
    let mut at = 0;
    for _ in 0..4 {
        a.acquire(f, LeaseMode::Read).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| b.resize(f, 0).unwrap());
            a.obey(a.recalled(&mut at));
        });
        b.get(OrphanRelease { inos: vec![] }).unwrap();
        b.get(Release { leases: vec![(f, u64::MAX)] }).unwrap();
    }
    assert!(at >= 4);
    let (a, b, boot) = (a.id, b.id, world.server.engine.epoch());
    let world = world.crash(8);
    let (a, b) = (Client::known(&world, a), Client::known(&world, b));
    b.sequence.store(99, Ordering::SeqCst);
    b.reclaim(Reclaim::default()).unwrap();
    let mine = vec![(f, LeaseMode::Read)];
    a.reclaim(Reclaim { leases: mine, ..Reclaim::default() }).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| b.resize(f, 0).unwrap());
        // The last call to the old boot comes late.
        std::thread::sleep(SOON);
        let reply = a.get(Events { acknowledged: at, server_boot: boot }).unwrap();
        assert!(reply.server_boot != boot);
        let mut at = 0;
        a.obey(a.recalled(&mut at));
    });
}

#[test]
fn grace_ends_for_those_that_do_not_come_back() {
    let world = World::new();
    let (a, b) = (world.client(), world.client());
    let f = a.file(ROOT, "f");
    let (a, b) = (a.id, b.id);
    let world = world.crash(5);
    let (a, b) = (Client::known(&world, a), Client::known(&world, b));
    b.reclaim(Reclaim::default()).unwrap();
    std::thread::scope(|scope| {
        let stat = scope.spawn(|| b.attr(f));
        std::thread::sleep(SOON);
        assert!(!stat.is_finished());
        world.pass(GRACE);
        assert_eq!(stat.join().unwrap().unwrap().size, 0);
    });
    assert_eq!(a.attr(f), Err(Status::SESSION_GONE));
    let late = a.reclaim(Reclaim { leases: vec![(f, LeaseMode::Write)], ..Reclaim::default() });
    assert_eq!(late, Err(Status::SESSION_GONE), "others may have been there meanwhile");
}

#[test]
fn closing_a_session_gives_everything_back() {
    let world = World::new();
    let (a, b) = (world.client(), world.client());
    let f = a.file(ROOT, "f");
    a.unlink(ROOT, "f").unwrap();
    a.get(SessionClose {}).unwrap();
    assert_eq!(a.get(StatFs {}), Err(Status::SESSION_GONE));
    assert_eq!(b.attr(f), Err(Status::STALE));
    b.file(ROOT, "f");
    let world = world.crash(6);
    assert_eq!(world.server.sessions().len(), 1, "its record is gone too");
    world.fsck();
}

/// Many more than one batch of the log takes.
#[test]
fn a_session_that_dies_with_thousands_of_orphans_is_cleaned_up() {
    let world = World::new();
    let a = world.client();
    for i in 0..1500 {
        let name = format!("f{i}");
        let f = a.file(ROOT, &name);
        a.publish(f, 4096).unwrap();
        a.unlink(ROOT, &name).unwrap();
    }
    assert_eq!(world.fsck().orphans, 1500);
    a.get(SessionClose {}).unwrap();
    assert_eq!(
        (world.fsck().orphans, world.server.garbage(ObjectId(0), 9999).unwrap().len()),
        (0, 1500)
    );
    let world = world.crash(7);
    assert_eq!(world.fsck().inodes, 1);
}

#[test]
fn who_holds_most_is_asked_to_give_back_while_there_is_hardly_room() {
    let world = World::new();
    let (a, b) = (world.client(), world.client());
    let grant = |inos: std::ops::Range<u64>, to: &Client<'_>| {
        let leases = &mut world.server.core.lock().leases;
        inos.for_each(|i| assert!(leases.grant(Ino(i), to.id, LeaseMode::Read).is_some()));
    };
    let asked = || {
        [&a, &b].iter().for_each(|client| assert!(client.get(StatFs {}).is_ok()));
        world.pass(Duration::from_secs(3));
        let mut core = world.server.core.lock();
        [a.id, b.id].map(|id| {
            let session = core.sessions.get_mut(&id).unwrap();
            let (upto, events) = session.pending(0);
            session.pending(upto);
            let crowded = |event| match event {
                Event::Crowded { inodes } => Some(inodes),
                _ => None,
            };
            events.into_iter().find_map(crowded)
        })
    };
    world.server.core.lock().leases = LeaseTable::new(1, 50);
    grant(100..130, &a);
    grant(200..214, &b);
    assert_eq!(asked(), [None, None], "there is room");
    grant(130..131, &a);
    assert_eq!(asked(), [Some(10), None]);
    let leases = (100..110).map(|i| (Ino(i), u64::MAX)).collect();
    a.put(Release { leases }).unwrap();
    assert_eq!(asked(), [None, None]);
}

/// Catches `broken!("gone_at_once")`.
#[test]
fn what_was_told_without_a_lease_stays_for_who_opens_it() {
    let world = World::new();
    let a = world.client();
    let [opened, left] = ["opened", "left"].map(|name| {
        let ino = a.file(ROOT, name);
        let lease = a.acquire(ino, LeaseMode::Write).unwrap().inode.lease.unwrap();
        a.put(Release { leases: vec![(ino, lease.number)] }).unwrap();
        world.server.core.lock().deferred.note_told(ino);
        assert_eq!(a.unlink(ROOT, name), Ok(RemoveReply { ino, orphan: false }));
        ino
    });
    assert_eq!(world.fsck().orphans, 2);
    assert_eq!(a.acquire(opened, LeaseMode::Read).unwrap().inode.attr.nlink, 0);
    world.pass(Duration::from_secs(1));
    assert_eq!(a.attr(left), Err(Status::STALE));
    assert_eq!(a.attr(opened).unwrap().nlink, 0);
    assert_eq!(world.fsck().orphans, 1);
}
