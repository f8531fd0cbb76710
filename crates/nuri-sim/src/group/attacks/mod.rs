//! Named attacks on the write protocol, each a scenario of its own ([`super::script`]).
//!
//! The names are those of the protocol's design. Where the choice of ADR 0017 (the client leads, no
//! raw log) has nothing of that name, the doc comment says what stands in its place. The attacks in
//! `rules` have names of their own.

mod disks;
mod members;
mod rules;
mod writers;

use nuri_proto::layout::Shape;

use crate::check::{Wrong, wrong};

/// A scenario, and its name.
pub type Attack = (&'static str, fn() -> Result<(), Wrong>);

const MIRROR: Shape = Shape::Mirror(2);
const THREE: Shape = Shape::Mirror(3);
const PARITY: Shape = Shape::Parity { k: 3, m: 1 };
const DOUBLE: Shape = Shape::Parity { k: 2, m: 2 };
const ALL: [Shape; 4] = [MIRROR, THREE, PARITY, DOUBLE];

macro_rules! attacks {
    ($($module:ident: $($name:ident),+;)+) => {
        /// All of them.
        pub const ATTACKS: &[Attack] = &[$($((stringify!($name), $module::$name)),+),+];
    };
}

attacks! {
    writers:
        direct_read_between_ack_and_commit,
        abort_exposed_then_a_second_failure,
        retry_after_failover,
        two_clients_one_stripe,
        partial_write_then_a_write_touching_other_members,
        client_dies_between_its_pushes,
        buffer_changed_in_flight,
        crossed_credits,
        delayed_packet_of_an_old_epoch,
        truncate_against_a_partial_write;
    members:
        member_that_lost_its_log_votes,
        member_restored_from_an_old_snapshot,
        member_whose_disk_lied_votes,
        liar_against_a_write_under_way,
        liar_while_a_member_is_silent,
        disk_lost_before_a_write_is_whole,
        member_leaves_before_a_write_is_whole,
        later_write_past_one_that_missed_a_member,
        member_whose_disk_lost_a_truncation,
        restarted_beside_one_that_took_no_part,
        primary_restarted_inside_an_epoch,
        pause_longer_than_the_lease,
        another_data_disk_lost_with_fold_debt,
        all_power_off_and_one_disk_lost,
        a_further_loss_at_exactly_k_live;
    disks:
        enospc_in_mid_stage,
        scrub_against_a_rotten_data_chunk;
    rules:
        promise_just_after_the_write,
        parity_lost_before_the_commit,
        late_install_after_newer_bytes,
        degraded_read_across_a_write,
        old_map_and_a_member_that_missed_writes,
        write_that_a_returning_member_lacks,
        repair_after_a_truncation;
}

/// Runs a scenario for each of these shapes.
fn each(shapes: &[Shape], scenario: impl Fn(Shape) -> Result<(), Wrong>) -> Result<(), Wrong> {
    let one = |shape: &Shape| scenario(*shape).map_err(|wrong| wrong!("{shape}: {wrong}"));
    shapes.iter().try_for_each(one)
}
