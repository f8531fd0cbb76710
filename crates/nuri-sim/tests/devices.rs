//! A volume with channels to several servers, under faults: a bounded number of fixed seeds. Long
//! runs: `cargo sim devices --minutes M`.

use nuri_sim::devices::{Report, run};

const SEEDS: u64 = 200;

/// Catches `broken!("nbd_overlap")`, `nbd_unheard` and `boots_forgotten`.
#[test]
fn what_channels_answered_is_kept_and_in_order() {
    let mut sum = Report::default();
    for seed in 0..SEEDS {
        let report = run(seed).unwrap_or_else(|wrong| panic!("seed {seed:#x}: {wrong}"));
        sum.add(&report);
    }
    let Report { answered, repeats, forwarded, late, takeovers, left, kills, .. } = sum;
    let Report { pauses, cuts, restarts, flushes, failed_flushes, doubts, .. } = sum;
    let seen = [repeats, forwarded, late, takeovers, left, kills];
    let seen = [&seen[..], &[pauses, cuts, restarts, flushes, failed_flushes, doubts]].concat();
    assert!(seen.iter().all(|n| *n > SEEDS / 10), "something hardly happened: {sum:?}");
    assert!(answered > 300 * SEEDS, "hardly anything was answered: {sum:?}");
}

#[test]
fn a_seed_plays_the_same_again() {
    for seed in [3, 7] {
        assert_eq!(run(seed), run(seed));
    }
}
