//! What every engine must do. Each check gets a fresh empty engine.

use nuri_io::rng::Rng;

use super::{all, batch, mem::MemEngine, random_batch};
use crate::engine::{Batch, CommitId, Engine};

pub fn suite<E: Engine>(open: impl Fn() -> E) {
    changes_are_seen_at_once(&open());
    the_last_change_of_a_batch_counts(&open());
    scans_are_bounded_by_prefix_after_and_limit(&open());
    numbers_rise_and_can_be_waited_for(&open());
    for seed in 0..4 {
        random_against_the_oracle(&open(), seed);
    }
}

fn changes_are_seen_at_once(engine: &impl Engine) {
    assert_eq!(engine.get(b"k").unwrap(), None);
    engine.commit(batch(&[(b"k", Some(b"1"))])).unwrap();
    assert_eq!(engine.get(b"k").unwrap().unwrap(), b"1");
    engine.commit(batch(&[(b"k", Some(b"")), (b"l", Some(b"2"))])).unwrap();
    assert_eq!(engine.get(b"k").unwrap().unwrap(), b"");
    engine.commit(batch(&[(b"k", None)])).unwrap();
    assert_eq!(engine.get(b"k").unwrap(), None);
    assert_eq!(all(engine), [(b"l".to_vec(), b"2".to_vec())]);
}

fn the_last_change_of_a_batch_counts(engine: &impl Engine) {
    let both = batch(&[(b"a", Some(b"1")), (b"a", None), (b"b", None), (b"b", Some(b"2"))]);
    assert_eq!((both.get(b"a"), both.get(b"c")), (Some(None), None));
    engine.commit(both).unwrap();
    assert_eq!(all(engine), [(b"b".to_vec(), b"2".to_vec())]);
}

fn scans_are_bounded_by_prefix_after_and_limit(engine: &impl Engine) {
    for key in ["a", "b", "b\0", "b1", "b2", "b3", "c", "\u{7f}"] {
        engine.commit(batch(&[(key.as_bytes(), Some(b"v"))])).unwrap();
    }
    let keys = |prefix: &[u8], after: &[u8], limit| -> Vec<String> {
        let pairs = engine.scan(prefix, after, limit).unwrap();
        pairs.into_iter().map(|(key, _)| String::from_utf8(key).unwrap()).collect()
    };
    assert_eq!(keys(b"b", b"", 100), ["b", "b\0", "b1", "b2", "b3"]);
    assert_eq!(keys(b"b", b"a", 2), ["b", "b\0"]);
    assert_eq!(keys(b"b", b"b", 2), ["b\0", "b1"], "`after` itself is not above itself");
    assert_eq!(keys(b"b", b"b2", 100), ["b3"]);
    assert_eq!(keys(b"b", b"b3", 100), [""; 0]);
    assert_eq!(keys(b"b", b"c", 100), [""; 0]);
    assert_eq!(keys(b"b", b"", 0), [""; 0]);
    assert_eq!(keys(b"x", b"", 9), [""; 0]);
    assert_eq!(keys(b"", b"c", 9), ["\u{7f}"]);
}

fn numbers_rise_and_can_be_waited_for(engine: &impl Engine) {
    let before = engine.last_commit();
    assert_eq!(engine.commit(Batch::new()).unwrap(), before, "nothing to commit is no commit");
    let mut last = before;
    for i in 0..20u8 {
        let id = engine.commit(batch(&[(&[i], Some(&[i; 100]))])).unwrap();
        assert!(id > last && engine.last_commit() == id);
        last = id;
        if i % 3 == 0 {
            engine.wait_durable(id).unwrap();
            assert!(engine.durable() >= id, "what was waited for is durable");
        }
        assert!(engine.durable() <= last, "nothing is durable before it is committed");
    }
    engine.wait_durable(last).unwrap();
    engine.wait_durable(before).unwrap();
    // Never given: answered, not waited for.
    engine.wait_durable(CommitId(last.0 + 1000)).unwrap();
}

fn random_against_the_oracle(engine: &impl Engine, seed: u64) {
    let (oracle, mut rng) = (MemEngine::default(), Rng::new(seed));
    for step in 0..400 {
        let change = random_batch(&mut rng, 600);
        oracle.commit(change.clone()).unwrap();
        let id = engine.commit(change).unwrap();
        if rng.one_in(7) {
            engine.wait_durable(id).unwrap();
        }
        let prefix = vec![b'a' + rng.below(4) as u8; rng.below(3) as usize];
        let after = vec![b'a' + rng.below(5) as u8; rng.below(4) as usize];
        let limit = rng.below(12) as usize;
        let what = format!("seed {seed} step {step}: scan({prefix:?}, {after:?}, {limit})");
        let wanted = oracle.scan(&prefix, &after, limit).unwrap();
        assert_eq!(engine.scan(&prefix, &after, limit).unwrap(), wanted, "{what}");
        let key = [vec![b'b'; 1 + rng.below(3) as usize], vec![b'0']].concat();
        assert_eq!(engine.get(&key).unwrap(), oracle.get(&key).unwrap(), "{what}");
    }
    assert_eq!(all(engine), all(&oracle), "seed {seed}");
}
