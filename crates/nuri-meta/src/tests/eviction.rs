//! A session that is thrown out keeps what it held until it cannot use it any more.

use std::sync::atomic::AtomicBool;

use nuri_proto::clock::{GRACE, RECALL, SESSION};
use nuri_proto::op::cluster::Admitted;
use parking_lot::Mutex;

use super::*;
use crate::namespace::txn::ClusterView;

const SOON: Duration = Duration::from_millis(150);

/// Targets that hear of a new list only when the test lets them.
#[derive(Default)]
struct Targets {
    heard: AtomicBool,
    lists: Mutex<Vec<Admitted>>,
}

impl ClusterView for Targets {
    fn groups(&self, _: PoolId, _: Shape) -> Result<Vec<GroupId>, Status> {
        Ok((0..3).map(GroupId).collect())
    }
    fn admit(&self, list: Admitted) {
        self.lists.lock().push(list);
    }
    fn is_in_force(&self, _: u64) -> bool {
        self.heard.load(Ordering::SeqCst)
    }
}

fn world() -> (World, Arc<Targets>) {
    let targets = Arc::<Targets>::default();
    let clock = Arc::new(ManualClock::default());
    clock.advance(Duration::from_secs(1000));
    (on(Arc::default(), Arc::default(), clock, &targets), targets)
}

fn on(
    log: Arc<MemDisk>,
    tables: Arc<MemDisk>,
    clock: Arc<ManualClock>,
    targets: &Arc<Targets>,
) -> World {
    let engine = engine(&log, &tables);
    let server = MetaServer::open(engine, targets.clone(), clock.clone()).unwrap();
    World { log, tables, clock, server }
}

fn live(targets: &Targets, id: SessionId) -> bool {
    targets.lists.lock().last().unwrap().admits(id)
}

/// Catches `broken!("evict_unfenced")`.
/// Catches `broken!("own_standstill_is_silence")`.
#[test]
fn a_server_that_stood_still_itself_gives_nobody_up() {
    let world = World::new();
    let (a, b) = (world.client(), world.client());
    let f = a.file(Ino::ROOT, "f");
    world.pass(Duration::from_secs(1));
    world.clock.advance(Duration::from_secs(3600));
    world.server.tick().unwrap();
    a.publish(f, 5000).unwrap();
    assert!(b.attr(Ino::ROOT).is_ok());
    // Who says nothing from then on is.
    for _ in 0..SESSION.as_secs() {
        world.pass(Duration::from_secs(1));
        b.attr(Ino::ROOT).unwrap();
    }
    world.pass(Duration::from_secs(1));
    assert_eq!(a.attr(Ino::ROOT), Err(Status::SESSION_GONE));
    assert!(b.attr(Ino::ROOT).is_ok());
}

#[test]
fn a_silent_holder_is_fenced_before_its_lease_is_given_away() {
    let (world, targets) = world();
    let (a, b) = (world.client(), world.client());
    let f = a.file(Ino::ROOT, "f");
    a.get(Release { leases: vec![(Ino::ROOT, u64::MAX)] }).unwrap();
    world.pass(SESSION / 2);
    b.find(Ino::ROOT, "none");
    world.pass(SESSION / 2 + Duration::from_millis(1));
    assert_eq!(a.attr(f), Err(Status::SESSION_GONE), "unknown at once");
    assert!(!live(&targets, a.id) && live(&targets, b.id));
    std::thread::scope(|scope| {
        let write = scope.spawn(|| b.acquire(f, LeaseMode::Write));
        std::thread::sleep(SOON);
        assert!(!write.is_finished(), "a target may still take what the holder sends");
        targets.heard.store(true, Ordering::SeqCst);
        world.pass(Duration::ZERO);
        assert!(write.join().unwrap().unwrap().inode.lease.is_some());
    });
}

/// Its machine may be well and its kernel full of pages: they end with its own clock.
#[test]
fn a_stubborn_holder_is_waited_for_until_its_own_clock_ran_out() {
    let (world, targets) = world();
    targets.heard.store(true, Ordering::SeqCst);
    let (a, b) = (world.client(), world.client());
    let f = a.file(Ino::ROOT, "f");
    let mut at = 0;
    std::thread::scope(|scope| {
        let stat = scope.spawn(|| b.attr(f));
        a.recalled(&mut at);
        for _ in 0..4 {
            world.pass(RECALL / 4);
            a.find(Ino::ROOT, "alive");
            b.find(Ino::ROOT, "alive");
        }
        world.pass(Duration::from_secs(1));
        assert_eq!(a.attr(f), Err(Status::SESSION_GONE));
        std::thread::sleep(SOON);
        assert!(!stat.is_finished(), "heard a second ago");
        world.pass(SESSION);
        stat.join().unwrap().unwrap();
    });
}

#[test]
fn after_a_restart_a_lost_session_is_fenced_before_anybody_is_served() {
    let (world, targets) = world();
    let (a, b) = (world.client(), world.client());
    a.file(Ino::ROOT, "f");
    let (lost, back) = (a.id, b.id);
    let mut rng = Rng::new(1);
    let log = Arc::new(world.log.crash_image(&mut rng));
    let tables = Arc::new(world.tables.crash_image(&mut rng));
    let world = on(log, tables, world.clock.clone(), &targets);
    assert!(live(&targets, lost), "it has its grace period");
    let b = Client::known(&world, back);
    b.reclaim(Reclaim::default()).unwrap();
    std::thread::scope(|scope| {
        let find = scope.spawn(|| b.find(Ino::ROOT, "f").unwrap());
        world.pass(GRACE);
        assert!(!live(&targets, lost));
        std::thread::sleep(SOON);
        assert!(!find.is_finished());
        targets.heard.store(true, Ordering::SeqCst);
        world.pass(Duration::ZERO);
        find.join().unwrap();
    });
    let versions: Vec<_> = targets.lists.lock().iter().map(|l| l.version).collect();
    assert!(versions.is_sorted(), "also across restarts: {versions:?}");
}
