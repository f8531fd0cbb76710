//! The embedded engine's own: layers, segments, groups, threads, failures.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex};

use super::mem::MemEngine;
use super::*;
use crate::engine::CommitId;

/// Puts keys so that the tables, the frozen layer and the active layer all have a say.
#[test]
fn newer_layers_hide_older_ones() {
    let (log, tables) = disks();
    let engine = open(&log, &tables).unwrap();
    let put = |pairs: &[(&[u8], Option<&[u8]>)]| engine.commit(batch(pairs)).unwrap();
    put(&[(b"a", Some(b"t")), (b"b", Some(b"t")), (b"c", Some(b"t")), (b"d", Some(b"t"))]);
    engine.checkpoint().unwrap();
    put(&[(b"b", Some(b"f")), (b"c", None), (b"e", Some(b"f")), (b"f", Some(b"f"))]);
    // Fill the segment, until the active layer was frozen.
    let mut filler = 0u32;
    while !engine.has_frozen() {
        filler += 1;
        let id = put(&[(format!("z{filler}").as_bytes(), Some(&[1; 3000]))]);
        engine.wait_durable(id).unwrap();
    }
    put(&[(b"a", None), (b"c", Some(b"a")), (b"e", None), (b"g", Some(b"a"))]);
    let seen = |engine: &Embedded| -> Vec<String> {
        let pairs = engine.scan(b"", b"", 6).unwrap();
        let name = |(k, v): &Pair| format!("{}={}", k[0] as char, v[0] as char);
        pairs.iter().filter(|(k, _)| k.len() == 1).map(name).collect()
    };
    let wanted = ["b=f", "c=a", "d=t", "f=f", "g=a"];
    assert!(engine.has_frozen());
    assert_eq!(seen(&engine), wanted);
    assert_eq!(engine.get(b"a").unwrap(), None);
    assert_eq!(engine.get(b"e").unwrap(), None);
    engine.absorb_frozen().unwrap();
    assert_eq!(seen(&engine), wanted);
    engine.checkpoint().unwrap();
    assert_eq!(seen(&engine), wanted);
    drop(engine);
    assert_eq!(seen(&open(&log, &tables).unwrap()), wanted);
}

#[test]
fn scans_page_through_tables_larger_than_a_page() {
    let (log, tables) = disks();
    let engine = open(&log, &tables).unwrap();
    for i in 0..900u32 {
        engine.commit(batch(&[(&i.to_be_bytes(), Some(b"t"))])).unwrap();
    }
    engine.checkpoint().unwrap();
    for i in (0..900u32).step_by(3) {
        engine.commit(batch(&[(&i.to_be_bytes(), None)])).unwrap();
    }
    engine.commit(batch(&[(&[0xff, 1], Some(b"n"))])).unwrap();
    assert_eq!(all(&engine).len(), 601);
    let (mut after, mut found) = (Vec::new(), 0);
    loop {
        let page = engine.scan(b"", &after, 7).unwrap();
        let Some((last, _)) = page.last() else { break };
        assert!(page.is_sorted() && page[0].0 > after);
        after = last.clone();
        found += page.len();
    }
    assert_eq!(found, 601);
}

#[test]
fn random_changes_over_checkpoints_and_restarts() {
    for seed in 0..6 {
        let (log, tables) = disks();
        let (oracle, mut rng) = (MemEngine::default(), Rng::new(seed));
        let mut engine = open(&log, &tables).unwrap();
        for step in 0..300 {
            let change = random_batch(&mut rng, 4000);
            oracle.commit(change.clone()).unwrap();
            let id = engine.commit(change).unwrap();
            match rng.below(20) {
                0 => engine.checkpoint().unwrap(),
                1 => engine.absorb_frozen().unwrap(),
                2 => {
                    engine.wait_durable(id).unwrap();
                    drop(engine);
                    engine = open(&log, &tables).unwrap();
                    assert_eq!(engine.last_commit(), id);
                    assert_eq!(all(&engine), all(&oracle), "seed {seed} step {step}");
                }
                3..9 => engine.wait_durable(id).unwrap(),
                _ => {}
            }
            if rng.one_in(10) {
                let prefix = vec![b'a' + rng.below(4) as u8];
                let wanted = oracle.scan(&prefix, b"", 5).unwrap();
                assert_eq!(engine.scan(&prefix, b"", 5).unwrap(), wanted);
            }
        }
        assert_eq!(all(&engine), all(&oracle), "seed {seed}");
    }
}

#[test]
fn every_opening_has_a_new_epoch_and_numbers_go_on() {
    let (log, tables) = disks();
    let mut last = (0, CommitId(0));
    for i in 0..5u8 {
        let engine = open(&log, &tables).unwrap();
        assert!(engine.epoch() > last.0 && engine.last_commit() == last.1);
        let id = engine.commit(batch(&[(&[i], Some(b"x"))])).unwrap();
        engine.wait_durable(id).unwrap();
        last = (engine.epoch(), id);
    }
    assert_eq!(all(&open(&log, &tables).unwrap()).len(), 5);
}

#[test]
fn threads_commit_in_groups_and_each_waits_for_its_own() {
    let (log, tables) = disks();
    let engine = open(&log, &tables).unwrap();
    let before = log.counters().syncs;
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let engine = &engine;
            scope.spawn(move || {
                let mut rng = Rng::new(u64::from(thread));
                for i in 0..100u8 {
                    let value = vec![thread; rng.below(2000) as usize];
                    let id = engine.commit(batch(&[(&[thread, i], Some(&value))])).unwrap();
                    assert_eq!(engine.get(&[thread, i]).unwrap().unwrap(), value);
                    engine.wait_durable(id).unwrap();
                }
            });
        }
    });
    let syncs = log.counters().syncs - before;
    assert!(syncs <= 400, "{syncs} syncs for 400 commits");
    drop(engine);
    let engine = open(&log, &tables).unwrap();
    assert_eq!((all(&engine).len(), engine.last_commit()), (400, CommitId(400)));
}

#[test]
fn a_backlog_longer_than_a_segment_is_written_in_parts() {
    let (log, tables) = disks();
    let engine = open(&log, &tables).unwrap();
    for i in 0..200u8 {
        engine.commit(batch(&[(&[i], Some(&[i; 2000]))])).unwrap();
    }
    engine.wait_durable(engine.last_commit()).unwrap();
    drop(engine);
    assert_eq!(all(&open(&log, &tables).unwrap()).len(), 200);
}

/// A record that no parser takes back would be the end of the log for replay.
#[test]
fn a_batch_longer_than_the_log_takes_is_refused_and_changes_nothing() {
    let (log, tables) = disks();
    let engine = open(&log, &tables).unwrap();
    let most = CONFIG.segment_bytes / 2;
    let error = engine.commit(batch(&[(b"k", Some(&vec![0; most]))])).unwrap_err();
    assert!(matches!(error, KvError::TooLarge { .. }), "{error}");
    assert_eq!(engine.get(b"k").unwrap(), None);
    // With as much before it as may be.
    for i in 0..10u8 {
        engine.commit(batch(&[(&[i], Some(&vec![i; most - 100]))])).unwrap();
    }
    engine.wait_durable(engine.last_commit()).unwrap();
    drop(engine);
    assert_eq!(all(&open(&log, &tables).unwrap()).len(), 10);
}

#[test]
fn a_failed_sync_stops_the_engine_until_it_is_opened_again() {
    let (log, tables) = disks();
    let engine = open(&log, &tables).unwrap();
    let first = engine.commit(batch(&[(b"a", Some(b"1"))])).unwrap();
    engine.wait_durable(first).unwrap();
    let lost = engine.commit(batch(&[(b"b", Some(b"2"))])).unwrap();
    log.fail_next_sync();
    assert!(engine.wait_durable(lost).is_err());
    for _ in 0..3 {
        assert_eq!(engine.wait_durable(lost), Err(KvError::Stopped));
        assert_eq!(engine.commit(batch(&[(b"c", Some(b"3"))])), Err(KvError::Stopped));
    }
    assert_eq!(engine.wait_durable(first), Ok(()));
    drop(engine);
    let engine = open(&log, &tables).unwrap();
    assert_eq!(engine.get(b"a").unwrap().unwrap(), b"1");
    assert_eq!(engine.get(b"c").unwrap(), None);
}

/// A disk whose sync number `fail_at` waits at a gate and then fails; later ones succeed.
struct Gated {
    inner: Arc<MemDisk>,
    fail_at: AtomicU64,
    gate: Mutex<bool>,
    opened: Condvar,
}

impl Disk for Gated {
    fn len(&self) -> std::io::Result<u64> {
        self.inner.len()
    }
    fn set_len(&self, len: u64) -> std::io::Result<()> {
        self.inner.set_len(len)
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        self.inner.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, data: &[u8]) -> std::io::Result<()> {
        self.inner.write_at(offset, data)
    }
    fn sync(&self) -> std::io::Result<()> {
        if self.fail_at.fetch_sub(1, Ordering::SeqCst) != 1 {
            return self.inner.sync();
        }
        let mut gate = self.gate.lock();
        while !*gate {
            self.opened.wait(&mut gate);
        }
        Err(std::io::Error::other("gate"))
    }
}

/// Whoever waits in `commit` for room must not write a group after one that failed: then the
/// failed one would count as durable.
#[test]
fn a_committer_that_waited_for_room_does_not_write_after_a_failure() {
    let inner = Arc::new(MemDisk::new());
    let gated = Arc::new(Gated {
        inner,
        fail_at: AtomicU64::new(u64::MAX / 2),
        gate: Mutex::new(false),
        opened: Condvar::new(),
    });
    let tables = Arc::new(MemDisk::new());
    let engine = Embedded::open(gated.clone(), tables, CONFIG).unwrap();
    let id = engine.commit(batch(&[(b"lost", Some(b"1"))])).unwrap();
    gated.fail_at.store(1, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let engine = &engine;
        let waiter = scope.spawn(move || engine.wait_durable(id));
        while gated.fail_at.load(Ordering::SeqCst) == 1 {
            std::thread::yield_now();
        }
        // The group is under way: fill the backlog behind it.
        let filler = scope.spawn(move || {
            (0..20u8).find_map(|i| engine.commit(batch(&[(&[i], Some(&[0; 3000]))])).err())
        });
        std::thread::sleep(std::time::Duration::from_millis(50));
        *gated.gate.lock() = true;
        gated.opened.notify_all();
        assert!(waiter.join().unwrap().is_err());
        assert_eq!(filler.join().unwrap(), Some(KvError::Stopped));
    });
    assert_eq!(engine.wait_durable(id), Err(KvError::Stopped), "the group was lost");
}

#[test]
fn a_full_disk_refuses_and_goes_on_when_there_is_room() {
    let (log, tables) = disks();
    let engine = open(&log, &tables).unwrap();
    let mut durable = 0u32;
    let mut add = |engine: &Embedded| {
        let key = durable.to_be_bytes();
        let id = engine.commit(batch(&[(&key, Some(&[3; 3000]))]))?;
        durable += 1;
        engine.wait_durable(id)
    };
    tables.limit_space(tables.resident());
    let full = (0..10_000).find_map(|_| add(&engine).err());
    assert_eq!(full, Some(KvError::NoSpace), "the tables' disk is full");
    assert_eq!(add(&engine), Err(KvError::NoSpace), "and stays so");
    assert_eq!(engine.absorb_frozen(), Err(KvError::NoSpace));
    assert!(engine.get(&0u32.to_be_bytes()).unwrap().is_some(), "it is read meanwhile");
    // A crash meanwhile loses nothing of what was durable.
    let crashed = open(&Arc::new(log.fork()), &Arc::new(tables.fork())).unwrap();
    assert_eq!(all(&crashed).len() as u64, engine.durable().0);
    tables.heal();
    engine.absorb_frozen().unwrap();
    (0..50).for_each(|_| add(&engine).unwrap());
    assert_eq!(all(&engine).len() as u32, durable);
    drop(engine);
    assert_eq!(all(&open(&log, &tables).unwrap()).len() as u32, durable);
}
