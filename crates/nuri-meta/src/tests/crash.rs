//! Crashes of the metadata server: every operation that was replied to is there, nothing is there
//! in part, and the check is clean.

use std::io;

use parking_lot::Mutex;

use super::model::{Picture, Tree, picture};
use super::*;

/// Two recording disks that share one order of events.
struct Disks {
    log: Arc<MemDisk>,
    tables: Arc<MemDisk>,
    moments: Mutex<Vec<(usize, usize)>>,
}

struct Tap(Arc<MemDisk>, Arc<Disks>);

impl Tap {
    fn stepped<T>(&self, outcome: io::Result<T>) -> io::Result<T> {
        let disks = &self.1;
        disks.moments.lock().push((disks.log.events(), disks.tables.events()));
        outcome
    }
}

impl Disk for Tap {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.stepped(self.0.set_len(len))
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.0.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.stepped(self.0.write_at(offset, data))
    }
    fn sync(&self) -> io::Result<()> {
        self.stepped(self.0.sync())
    }
}

/// What the namespace looked like, when the operation was asked and when it was answered.
struct Step {
    asked: usize,
    answered: usize,
    picture: Picture,
}

fn torture(seed: u64, ops: usize, cuts: u64) {
    let disks = Arc::new(Disks {
        log: Arc::new(MemDisk::recording()),
        tables: Arc::new(MemDisk::recording()),
        moments: Mutex::default(),
    });
    let tap = |disk: &Arc<MemDisk>| -> Arc<dyn Disk> { Arc::new(Tap(disk.clone(), disks.clone())) };
    let kv = KvConfig { segment_bytes: 64 << 10, ..KV };
    let engine = Arc::new(Embedded::open(tap(&disks.log), tap(&disks.tables), kv).unwrap());
    let clock = Arc::new(ManualClock::default());
    let server = MetaServer::open(engine.clone(), Arc::new(Pools), clock.clone()).unwrap();
    let (log, tables) = (disks.log.clone(), disks.tables.clone());
    let world = World { log, tables, clock, server };
    let c = world.client();
    let now = || disks.moments.lock().len();
    let (mut tree, mut rng) = (Tree::new(), Rng::new(seed));
    let born = now();
    let mut steps = vec![Step { asked: 0, answered: born, picture: tree.picture() }];
    for _ in 0..ops {
        let asked = now();
        tree.step(&c, &mut rng);
        steps.push(Step { asked, answered: now(), picture: tree.picture() });
        if rng.one_in(30) {
            engine.checkpoint().unwrap();
        }
    }
    let end = now();
    for i in 0..cuts {
        let cut = if i == 0 { end } else { born + rng.below((end - born) as u64 + 1) as usize };
        let at = disks.moments.lock()[cut - 1];
        let log = Arc::new(disks.log.image_at_event(at.0, &mut rng));
        let tables = Arc::new(disks.tables.image_at_event(at.1, &mut rng));
        let what = format!("seed {seed} cut {cut} of {born}..{end}");
        let world = World::on(log, tables, Arc::new(ManualClock::default()));
        world.fsck();
        let found = picture(&*world.server.engine);
        let replied = steps.iter().rposition(|s| s.answered <= cut).unwrap();
        let possible = steps.iter().skip(replied).take_while(|s| s.asked <= cut);
        let matches = possible.into_iter().any(|s| s.picture == found);
        assert!(matches, "{what}: not what {replied} replied operations made");
        // Nobody comes back: orphans go, and the rest is as clean as before.
        world.pass(nuri_proto::clock::GRACE);
        assert_eq!(world.fsck().orphans, 0, "{what}");
        assert_eq!(picture(&*world.server.engine), found, "{what}");
    }
}

/// Catches `reply_before_durable`.
#[test]
fn what_was_replied_survives_every_crash() {
    for seed in 0..8 {
        torture(seed, 60, 12);
    }
}
