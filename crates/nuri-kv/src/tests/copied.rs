//! A store whose disks have a copy: the copy is cut at any moment after it was whole, fails at any
//! step, and is begun under load.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use nuri_io::paired::{Life as Copy, PairedDisk, Sink};
use nuri_proto::op::copy::Change;
use nuri_proto::op::data::Durability;

use super::crash::Life;
use super::tap::Pair as Disks;
use super::*;

type Frame = (Vec<Change>, Vec<u8>, Durability);

/// A copy that does what it was sent as late as it may: when it is waited for.
struct Late {
    disk: Arc<dyn Disk>,
    sent: Option<Frame>,
    /// Steps of both disks until all fail.
    left: Arc<AtomicU64>,
}

impl Late {
    fn step(&self) -> io::Result<()> {
        let one_less = |left: u64| left.checked_sub(1);
        let left = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less);
        left.map(|_| ()).map_err(|_| io::ErrorKind::TimedOut.into())
    }
}

impl Sink for Late {
    fn send(&mut self, changes: &[Change], data: &[u8], durability: Durability) -> io::Result<()> {
        self.step()?;
        self.sent = Some((changes.to_vec(), data.to_vec(), durability));
        Ok(())
    }

    fn wait(&mut self) -> io::Result<()> {
        self.step()?;
        let Some((changes, data, durability)) = self.sent.take() else { return Ok(()) };
        let mut data = &data[..];
        for change in changes {
            match change {
                Change::SetLen(len) => self.disk.set_len(len)?,
                Change::Zero { at, len } => self.disk.write_at(at, &vec![0; len as usize])?,
                Change::Write { at, len } => {
                    let (now, later) = data.split_at(len as usize);
                    self.disk.write_at(at, now)?;
                    data = later;
                }
            }
        }
        if durability == Durability::Stable { self.disk.sync() } else { Ok(()) }
    }
}

/// A store with a copy, and what is known of it.
struct Copied {
    local: [Arc<MemDisk>; 2],
    paired: [Arc<PairedDisk>; 2],
    engine: Embedded,
    remote: Arc<Disks>,
    copy: Arc<Copy>,
    life: Life,
    rng: Rng,
    longest: u64,
}

impl Copied {
    fn new(seed: u64, longest: u64) -> Copied {
        let (log, tables) = disks();
        let local = [log, tables];
        let paired = local.clone().map(|disk| Arc::new(PairedDisk::new(disk)));
        let [log, tables] = paired.clone();
        let engine = Embedded::open(log, tables, CONFIG).unwrap();
        let (remote, copy, life) = (Disks::new(), Arc::new(Copy::default()), Life::default());
        Copied { local, paired, engine, remote, copy, life, rng: Rng::new(seed), longest }
    }

    /// One commit, after which anything may happen. What was durable counts for the copy while
    /// the copy lives.
    fn step(&mut self) {
        let change = random_batch(&mut self.rng, self.longest);
        let number = self.life.commit(&self.engine, &self.remote, change);
        match self.rng.below(12) {
            0 => self.engine.checkpoint().unwrap(),
            1 => self.engine.absorb_frozen().unwrap(),
            2..8 => {}
            _ => return,
        }
        self.engine.wait_durable(self.engine.last_commit()).unwrap();
        if !self.copy.ended() {
            self.life.told_durable(&self.remote, number);
        }
    }

    /// Makes the copy under load. Returns the moment when it was whole, if it came so far.
    fn make(&mut self, left: u64) -> Option<usize> {
        let left = Arc::new(AtomicU64::new(left));
        for (disk, to) in self.paired.iter().zip(self.remote.taps()) {
            let sink = Late { disk: to, sent: None, left: left.clone() };
            disk.attach(Box::new(sink), self.copy.clone()).unwrap();
        }
        for disk in self.paired.clone() {
            let mut from = Some(0);
            while let Some(at) = from {
                from = disk.copy_part(at).unwrap();
                self.step();
            }
        }
        if self.copy.ended() {
            return None;
        }
        self.remote.taps().iter().for_each(|disk| disk.sync().unwrap());
        Some(self.remote.now())
    }

    /// Opens what a crash of the copy leaves at `moment`.
    fn verify(&mut self, moment: usize, what: &str) {
        let (log, tables) = self.remote.cut(moment, &mut self.rng);
        let engine = open(&log, &tables).unwrap_or_else(|e| panic!("{what}: {e}"));
        self.life.verify(&engine, moment, what);
    }
}

/// Catches `copy_not_awaited`.
#[test]
fn what_was_durable_is_on_the_copy() {
    for (seed, longest) in (0..6).flat_map(|seed| [(seed, 300), (seed + 100, 6000)]) {
        let mut store = Copied::new(seed, longest);
        (0..30).for_each(|_| store.step());
        let whole = store.make(u64::MAX).unwrap();
        (0..60).for_each(|_| store.step());
        let end = store.remote.now();
        for i in 0..16 {
            let more = store.rng.below((end - whole) as u64 + 1) as usize;
            let moment = if i == 0 { end } else { whole + more };
            store.verify(moment, &format!("seed {seed} cut {moment} of {whole} to {end}"));
        }
    }
}

/// The store goes on alone and loses nothing; a copy that was whole stays one.
#[test]
fn a_copy_may_fail_at_any_step() {
    let mut whole = 0;
    for left in (0..60).chain((60..400).step_by(7)) {
        let mut store = Copied::new(left, 3000);
        (0..10).for_each(|_| store.step());
        let made = store.make(left);
        (0..40).for_each(|_| store.step());
        let last = store.engine.last_commit();
        store.engine.wait_durable(last).unwrap();
        let what = format!("the copy fails after {left} steps");
        let [log, tables] = &store.local;
        let crashed = [log, tables].map(|disk| Arc::new(disk.crash_image(&mut store.rng)));
        let alone = open(&crashed[0], &crashed[1]).unwrap();
        assert_eq!(all(&alone), all(&store.engine), "{what}");
        if made.is_some() {
            whole += 1;
            store.verify(store.remote.now(), &what);
        }
    }
    assert!(whole > 10, "{whole} were whole before they failed");
}
