//! Redundant groups under faults: a bounded number of fixed seeds. Long runs:
//! `cargo sim groups --minutes M`.

use nuri_sim::group::{Report, run};

const SEEDS: u64 = 40;

#[test]
fn fixed_seeds_keep_every_promise() {
    let mut sum = Report::default();
    for seed in 0..SEEDS {
        let report = run(seed).unwrap_or_else(|wrong| panic!("seed {seed:#x}: {wrong}"));
        sum.add(&report);
    }
    let faults = [sum.lost, sum.doubled, sum.crashes, sum.cuts, sum.freezes, sum.deaths];
    assert!(faults.iter().all(|n| *n > 0), "a kind of fault never happened: {sum:?}");
    // Where machines fall every few seconds and packets are lost, comparing a target with the
    // others takes as long as a request may: more fails than while nobody compared.
    assert!(sum.failed_writes * 3 < sum.writes, "hardly anything was written: {sum:?}");
}

#[test]
fn a_seed_plays_the_same_again() {
    for seed in [3, 7] {
        assert_eq!(run(seed), run(seed));
    }
}
