//! The named attacks on the write protocol, each as a test with its name.

use nuri_sim::group::attacks::ATTACKS;

macro_rules! attacks {
    ($($name:ident)+) => {
        $(
            #[test]
            fn $name() {
                let mut all = ATTACKS.iter();
                let (_, play) = all.find(|(name, _)| *name == stringify!($name)).unwrap();
                play().unwrap();
            }
        )+

        const NAMES: &[&str] = &[$(stringify!($name)),+];
    };
}

attacks! {
    direct_read_between_ack_and_commit
    abort_exposed_then_a_second_failure
    retry_after_failover
    two_clients_one_stripe
    partial_write_then_a_write_touching_other_members
    client_dies_between_its_pushes
    buffer_changed_in_flight
    crossed_credits
    delayed_packet_of_an_old_epoch
    truncate_against_a_partial_write
    member_that_lost_its_log_votes
    member_restored_from_an_old_snapshot
    member_whose_disk_lied_votes
    liar_against_a_write_under_way
    liar_while_a_member_is_silent
    disk_lost_before_a_write_is_whole
    member_leaves_before_a_write_is_whole
    later_write_past_one_that_missed_a_member
    member_whose_disk_lost_a_truncation
    restarted_beside_one_that_took_no_part
    primary_restarted_inside_an_epoch
    pause_longer_than_the_lease
    another_data_disk_lost_with_fold_debt
    all_power_off_and_one_disk_lost
    a_further_loss_at_exactly_k_live
    enospc_in_mid_stage
    scrub_against_a_rotten_data_chunk
    promise_just_after_the_write
    parity_lost_before_the_commit
    late_install_after_newer_bytes
    degraded_read_across_a_write
    old_map_and_a_member_that_missed_writes
    write_that_a_returning_member_lacks
    repair_after_a_truncation
}

#[test]
fn every_attack_has_a_test() {
    let listed: Vec<_> = ATTACKS.iter().map(|(name, _)| *name).collect();
    assert_eq!(listed, NAMES);
}
