//! Client logs under faults: a bounded number of fixed seeds. Long runs:
//! `cargo sim logged --minutes M`.

use nuri_sim::logged::{Report, run};

const SEEDS: u64 = 100;

/// Catches `broken!("log_overtakes")` and the broken rules of locks that are decided by a client.
#[test]
fn logs_are_told_in_order_and_once() {
    let mut sum = Report::default();
    for seed in 0..SEEDS {
        let report = run(seed).unwrap_or_else(|wrong| panic!("seed {seed:#x}: {wrong}"));
        sum.add(&report);
    }
    let Report { repeats, lost, late, crashes, reclaims, handovers, looks, .. } = sum;
    let Report { deaths, evictions, kept, gone, turns, told, .. } = sum;
    let seen = [repeats, lost, late, crashes, reclaims, handovers, looks, turns, told];
    let Report { delegated, decided, locks_told, .. } = sum;
    let seen = [&seen[..], &[deaths, evictions, kept, gone]].concat();
    let seen = [&seen[..], &[delegated, decided, locks_told]].concat();
    assert!(seen.iter().all(|n| *n > 0), "a kind of fault never happened: {sum:?}");
    assert!(sum.steps > 4 * sum.gone, "hardly anything was kept: {sum:?}");
}

#[test]
fn a_seed_plays_the_same_again() {
    for seed in [3, 7] {
        assert_eq!(run(seed), run(seed));
    }
}

/// A client removed what it had alone and did not hear that this was done. The lease ended with the
/// name, so another client was given the inode, which has no name left.
#[test]
fn what_was_removed_unheard_is_given_to_others() {
    run(0x18ec_d08b_dfd0_0384).unwrap();
}
