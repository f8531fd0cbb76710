//! A bounded number of fixed seeds in `cargo test`. Long runs: `cargo sim --minutes M`.

use nuri_sim::world::{Report, Scale, run};

/// Seeds that every run plays. Each break flag in `docs/testing.md` that names the simulator is
/// caught within them.
const SEEDS: u64 = 60;

#[test]
fn writes_are_kept_through_crashes() {
    let mut sum = Report::default();
    for seed in 0..SEEDS {
        let report = run(seed, Scale::default());
        let report = report.unwrap_or_else(|wrong| panic!("seed {seed:#x}: {wrong}"));
        sum.lost += report.lost;
        sum.target_crashes += report.target_crashes;
        sum.meta_crashes += report.meta_crashes;
        sum.refused += report.refused;
    }
    let seen = [sum.lost, sum.target_crashes, sum.meta_crashes, sum.refused];
    assert!(seen.iter().all(|n| *n > 0), "a kind of fault never happened: {sum:?}");
}

#[test]
fn a_seed_plays_the_same_again() {
    for seed in [3, 7] {
        assert_eq!(run(seed, Scale::default()), run(seed, Scale::default()));
    }
}
