//! Crash images: both disks are cut at the same moment, anywhere. What was durable is there, what
//! is there is a prefix of the commits, and no batch is there in part.

use std::collections::BTreeMap;

use super::mem::apply;
use super::tap::Pair as Disks;
use super::*;
use crate::log::{BLOCK, RECORD_HEAD};

/// Number of commits that a store contains, kept in every batch.
const COUNT: &[u8] = b"~count";

#[derive(Default)]
pub struct Life {
    /// Content after each commit.
    states: Vec<BTreeMap<Vec<u8>, Vec<u8>>>,
    /// Step after which each commit was asked for.
    asked: Vec<usize>,
    /// (step, commits known durable then).
    durable: Vec<(usize, u64)>,
}

impl Life {
    pub fn commit(&mut self, engine: &Embedded, disks: &Disks, mut change: Batch) -> u64 {
        let number = self.states.len() as u64 + 1;
        change.put(COUNT.to_vec(), number.to_be_bytes().to_vec());
        let mut state = self.states.last().cloned().unwrap_or_default();
        apply(&mut state, &change);
        self.states.push(state);
        self.asked.push(disks.now());
        engine.commit(change).unwrap();
        number
    }

    pub fn told_durable(&mut self, disks: &Disks, number: u64) {
        self.durable.push((disks.now(), number));
    }

    pub fn verify(&self, engine: &Embedded, moment: usize, what: &str) {
        let found: BTreeMap<_, _> = all(engine).into_iter().collect();
        let count = found.get(COUNT).map_or(0, |v| u64::from_be_bytes(v[..].try_into().unwrap()));
        let durable = self.durable.iter().filter(|(at, _)| *at <= moment).map(|(_, n)| *n);
        let durable = durable.max().unwrap_or(0);
        let asked = self.asked.iter().filter(|at| **at <= moment).count() as u64;
        assert!(count >= durable, "{what}: commit {durable} was durable, {count} are there");
        assert!(count <= asked, "{what}: {count} are there of {asked}");
        let empty = BTreeMap::new();
        let wanted = count.checked_sub(1).map_or(&empty, |last| &self.states[last as usize]);
        assert!(&found == wanted, "{what}: the content is not that of the first {count} commits");
    }
}

fn torture(seed: u64, commits: usize, longest: u64, cuts: u64) {
    let (disks, mut rng) = (Disks::new(), Rng::new(seed));
    let mut life = Life::default();
    let mut engine = disks.open().unwrap();
    for _ in 0..commits {
        let mut change = random_batch(&mut rng, longest);
        if rng.one_in(4) {
            // Records of whole blocks lie where groups begin.
            change = Batch::new();
            let used = RECORD_HEAD + 8 + 5 + 8 + COUNT.len() + 8;
            change.put(b"exact".to_vec(), vec![seed as u8; BLOCK - used]);
        }
        let number = life.commit(&engine, &disks, change);
        match rng.below(24) {
            0 => engine.checkpoint().unwrap(),
            1 => engine.absorb_frozen().unwrap(),
            2 => {
                engine.wait_durable(engine.last_commit()).unwrap();
                drop(engine);
                engine = disks.open().unwrap();
            }
            3..10 => engine.wait_durable(engine.last_commit()).unwrap(),
            _ => continue,
        }
        if engine.last_commit().0 == number {
            // What was waited for above, except where only the tables moved.
            engine.wait_durable(engine.last_commit()).unwrap();
            life.told_durable(&disks, number);
        }
    }
    drop(engine);
    let steps = disks.now() as u64;
    for i in 0..cuts {
        let moment = if i == 0 { steps as usize } else { rng.below(steps + 1) as usize };
        let what = format!("seed {seed} cut {moment} of {steps}");
        let (log, tables) = disks.cut(moment, &mut rng);
        // The next opening may fail anywhere, and crash again.
        let (log, tables) = if rng.one_in(2) {
            [&log, &tables][rng.below(2) as usize].fail_after(rng.below(60));
            drop(open(&log, &tables));
            log.heal();
            tables.heal();
            (Arc::new(log.crash_image(&mut rng)), Arc::new(tables.crash_image(&mut rng)))
        } else {
            (log, tables)
        };
        let engine = open(&log, &tables).unwrap_or_else(|e| panic!("{what}: {e}"));
        life.verify(&engine, moment, &what);
        // It goes on from there, and that is durable too.
        let more = engine.commit(batch(&[(b"more", Some(b"1"))])).unwrap();
        engine.wait_durable(more).unwrap();
        let log = Arc::new(log.crash_image(&mut rng));
        let tables = Arc::new(tables.crash_image(&mut rng));
        let engine = open(&log, &tables).unwrap_or_else(|e| panic!("{what}, again: {e}"));
        assert_eq!(engine.get(b"more").unwrap().unwrap(), b"1", "{what}");
    }
}

/// Catches `kv_ack_before_sync`.
#[test]
fn what_was_durable_survives_every_crash() {
    for seed in 0..8 {
        torture(seed, 60, 300, 12);
    }
}

#[test]
fn crashes_while_segments_switch() {
    for seed in 100..108 {
        torture(seed, 80, 6000, 16);
    }
}

/// The new head is lost, part of the first group is kept: what is left of the older use of the
/// segment must not be taken for damage.
#[test]
fn a_lost_head_of_a_new_segment_is_no_damage() {
    let (disks, mut life) = (Disks::new(), Life::default());
    let engine = disks.open().unwrap();
    let mut switches = 0;
    let mut head = [vec![0; 24], vec![0; 24]];
    let mut places = Vec::new();
    while switches < 4 {
        let change = batch(&[(b"k", Some(&[switches; 2500]))]);
        let number = life.commit(&engine, &disks, change);
        let before = disks.now();
        engine.wait_durable(engine.last_commit()).unwrap();
        for (segment, known) in head.iter_mut().enumerate() {
            let mut now = vec![0; 24];
            disks.log.read_at((segment * CONFIG.segment_bytes) as u64, &mut now).unwrap();
            if now != *known {
                *known = now;
                switches += 1;
                places.push(before..disks.now());
            }
        }
        life.told_durable(&disks, number);
        engine.absorb_frozen().unwrap();
    }
    drop(engine);
    for moment in places.into_iter().flatten() {
        for seed in 0..12 {
            let (log, tables) = disks.cut(moment, &mut Rng::new(seed));
            let what = format!("moment {moment} seed {seed}");
            let engine = open(&log, &tables).unwrap_or_else(|e| panic!("{what}: {e}"));
            life.verify(&engine, moment, &what);
        }
    }
}
