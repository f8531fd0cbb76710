//! Attacks by writers, and by what the network does to them.

use std::rc::Rc;
use std::time::Duration;

use nuri_proto::layout::Shape;
use nuri_proto::op::Op;
use nuri_volume::group::Guess;

use super::super::actors::BOUND;
use super::super::net::Fate;
use super::super::script::{Script, row, small};
use super::{ALL, DOUBLE, MIRROR, PARITY, THREE, each};
use crate::check::{Wrong, wrong};

/// Longer than a packet is on its way, shorter than anybody's patience.
const SOON: Duration = Duration::from_millis(20);

/// The writer says nothing after its acknowledgement; readers go straight to the members.
pub(super) fn direct_read_between_ack_and_commit() -> Result<(), Wrong> {
    each(&ALL, |shape| {
        let mut script = Script::new(shape)?;
        let places = script.places();
        let all = script.write(row(places))?;
        script.expect_all(all)?;
        let one = script.write(vec![small(0)])?;
        (1..places).try_for_each(|place| script.expect(place, all))?;
        script.expect(0, one)?;
        // Now one member alone is told.
        let lost = shape.members() - 1;
        script.rule(Op::MemberCommit, lost, Fate::Lost, 1)?;
        let told = script.run(move |p| {
            let done = p.write(&row(places), Guess::Unknown);
            p.groups.tell_commits();
            done.map_err(Wrong::from)
        })?;
        script.expect_all(told)?;
        script.finish()
    })
}

/// A write that one member never got is settled as aborted and the old bytes are shown. Then the
/// very member that proves the abort is lost, and what it did not get arrives elsewhere again.
pub(super) fn abort_exposed_then_a_second_failure() -> Result<(), Wrong> {
    each(&[MIRROR, THREE, PARITY, DOUBLE], |shape| {
        let mut script = Script::new(shape)?;
        let (places, last) = (script.places(), shape.members() - 1);
        let old = script.write(row(places))?;
        script.rule(Op::MemberStage, last, Fate::Held, 1)?;
        script.rule(Op::MemberStage, 0, Fate::Copied, 1)?;
        let writer = script.begin(move |p| Ok(p.write(&row(places), Guess::Unknown)))?;
        script.until_held(2)?;
        script.wait(SOON)?;
        script.kill(&writer)?;
        script.expect_all(old)?;
        let node = script.stop(last)?;
        script.until_absent(last)?;
        script.release();
        script.wait(SOON)?;
        script.expect_all(old)?;
        script.start(node)?;
        script.until_live(last)?;
        script.expect_all(old)?;
        script.finish()
    })
}

/// A member holds the write, its answer is lost, and it falls: the write is done again in the epoch
/// without it, others follow, and what it held is not taken up again when it returns.
pub(super) fn retry_after_failover() -> Result<(), Wrong> {
    each(&ALL, |shape| {
        let mut script = Script::new(shape)?;
        let (places, last) = (script.places(), shape.members() - 1);
        script.write(row(places))?;
        script.rule(Op::MemberStage, last, Fate::AnswerLost, 1)?;
        let writer = script.begin(move |p| Ok(p.write(&row(places), Guess::Unknown)))?;
        script.wait(SOON)?;
        let node = script.stop(last)?;
        let retried = script.end_of(&writer)??;
        script.expect_all(retried)?;
        let next = script.write(vec![small(0)])?;
        script.start(node)?;
        script.until_live(last)?;
        script.expect(0, next)?;
        (1..places).try_for_each(|place| script.expect(place, retried))?;
        script.finish()
    })
}

/// Both at once, without a lease: one order of both is seen by all who come later.
pub(super) fn two_clients_one_stripe() -> Result<(), Wrong> {
    each(&ALL, |shape| {
        let mut script = Script::new(shape)?;
        let places = script.places();
        script.write(row(places))?;
        for _ in 0..4 {
            let first = script.begin(move |p| Ok(p.write(&row(places), Guess::Unknown)))?;
            let second = script.begin(|p| Ok(p.write(&[small(0)], Guess::Unknown)))?;
            let first = script.end_of(&first)??;
            let second = script.end_of(&second)??;
            let found = script.read(0)??;
            if ![first, second].contains(&found) {
                return Err(wrong!("{found} was read after {first} and {second}"));
            }
            script.expect(0, found)?;
            (1..places).try_for_each(|place| script.expect(place, first))?;
        }
        script.finish()
    })
}

/// A write of one data member that parity never got; then one of another data member; then the
/// first data member is lost, and its bytes come from parity.
pub(super) fn partial_write_then_a_write_touching_other_members() -> Result<(), Wrong> {
    each(&[PARITY, DOUBLE], |shape| {
        let mut script = Script::new(shape)?;
        let (places, parity) = (script.places(), shape.data());
        let old = script.write(row(places))?;
        script.rule(Op::MemberStage, parity, Fate::Lost, 1)?;
        let writer = script.begin(|p| Ok(p.write(&[small(0)], Guess::Unknown)))?;
        script.wait(SOON)?;
        script.kill(&writer)?;
        let other = script.write(vec![small(1)])?;
        script.stop(0)?;
        script.until_absent(0)?;
        script.expect(0, old)?;
        script.expect(1, other)?;
        script.finish()
    })
}

/// The first write of a stripe, and a later one, that one member alone got before the writer died:
/// for every member.
pub(super) fn client_dies_between_its_pushes() -> Result<(), Wrong> {
    each(&ALL, |shape| {
        for got in 0..shape.members() {
            let mut script = Script::new(shape)?;
            only_one_gets_it(&mut script, shape, got, 0)?;
            let places = script.places();
            let old = script.write(row(places))?;
            only_one_gets_it(&mut script, shape, got, old)?;
            script.finish()?;
        }
        Ok(())
    })
}

fn only_one_gets_it(script: &mut Script, shape: Shape, got: usize, old: u64) -> Result<(), Wrong> {
    let places = script.places();
    for place in (0..shape.members()).filter(|place| *place != got) {
        script.rule(Op::MemberStage, place, Fate::Lost, 1)?;
    }
    let writer = script.begin(move |p| Ok(p.write(&row(places), Guess::Unknown)))?;
    script.wait(SOON)?;
    script.kill(&writer)?;
    script.no_rules();
    (0..places).try_for_each(|place| script.expect(place, old))
}

/// The same write comes to a member once more with other bytes: while it is staged, and when it is
/// committed. (A writer's bytes are lent for the time of the call, so its own buffer cannot change:
/// the type says so.)
pub(super) fn buffer_changed_in_flight() -> Result<(), Wrong> {
    each(&ALL, |shape| {
        let mut script = Script::new(shape)?;
        let places = script.places();
        script.write(row(places))?;
        for tells in [false, true] {
            script.rule(Op::MemberStage, 0, Fate::Copied, 1)?;
            let write = script.run(move |p| {
                let done = p.write(&row(places), Guess::Unknown);
                if tells {
                    p.groups.tell_commits();
                }
                done.map_err(Wrong::from)
            })?;
            for held in &mut script.world.net.held {
                Rc::make_mut(&mut held.packet).payload.fill(0x5a);
            }
            script.release();
            script.wait(SOON)?;
            script.expect_all(write)?;
        }
        script.finish()
    })
}

/// In place of credits: each of two writers has staged at a member that the other one needs.
/// Neither waits for the other.
pub(super) fn crossed_credits() -> Result<(), Wrong> {
    each(&ALL, |shape| {
        let mut script = Script::new(shape)?;
        let (places, last) = (script.places(), shape.members() - 1);
        script.write(row(places))?;
        script.rule(Op::MemberStage, 0, Fate::Held, 1)?;
        let first = script.begin(move |p| Ok(p.write(&row(places), Guess::Unknown)))?;
        script.until_held(1)?;
        script.rule(Op::MemberStage, last, Fate::Held, 1)?;
        let began = script.world.now;
        let second = script.begin(move |p| Ok(p.write(&row(places), Guess::Unknown)))?;
        script.wait(SOON)?;
        script.release();
        let ends = [script.end_of(&first)?, script.end_of(&second)?];
        if script.world.now - began > BOUND {
            return Err("they waited for each other".into());
        }
        let found = script.read(0)?;
        if !ends.contains(&found) {
            return Err(wrong!("{found:?} was read after {ends:?}"));
        }
        script.finish()
    })
}

/// A packet of a write of long ago arrives when the group has a new epoch and newer bytes.
pub(super) fn delayed_packet_of_an_old_epoch() -> Result<(), Wrong> {
    each(&ALL, |shape| {
        let mut script = Script::new(shape)?;
        let (places, last) = (script.places(), shape.members() - 1);
        script.write(row(places))?;
        script.rule(Op::MemberStage, 0, Fate::Copied, 1)?;
        script.write(row(places))?;
        let epoch = script.group()?.epoch;
        let node = script.stop(last)?;
        script.until_absent(last)?;
        if script.group()?.epoch <= epoch {
            return Err("the epoch did not change".into());
        }
        let new = script.write(row(places))?;
        script.release();
        script.wait(SOON)?;
        script.expect_all(new)?;
        script.start(node)?;
        script.until_live(last)?;
        script.finish()
    })
}

/// A write that some members hold, and its writer is dead and fenced; the file is cut off, also
/// while a member is away; then what is left of the write arrives, and the member comes back.
pub(super) fn truncate_against_a_partial_write() -> Result<(), Wrong> {
    each(&ALL, |shape| {
        let mut script = Script::new(shape)?;
        let (places, last) = (script.places(), shape.members() - 1);
        script.write(row(places))?;
        script.rule(Op::MemberStage, last, Fate::Held, 1)?;
        script.rule(Op::MemberStage, 0, Fate::Copied, 1)?;
        let writer = script.begin(move |p| Ok(p.write(&row(places), Guess::Unknown)))?;
        script.until_held(2)?;
        script.wait(SOON)?;
        script.kill(&writer)?;
        let node = script.stop(last)?;
        script.until_absent(last)?;
        script.wait(Duration::from_secs(1))?;
        script.run(|p| p.cut(0).map_err(Wrong::from))?;
        script.expect_all(0)?;
        script.release();
        script.wait(SOON)?;
        script.expect_all(0)?;
        script.start(node)?;
        script.until_live(last)?;
        script.expect_all(0)?;
        // Once more, while a member is away that holds a write and nobody told it to commit.
        script.write(row(places))?;
        let new = script.write(vec![small(0)])?;
        script.expect(0, new)?;
        script.write(row(places))?;
        let node = script.stop(last)?;
        script.until_absent(last)?;
        script.run(|p| p.cut(0).map_err(Wrong::from))?;
        script.start(node)?;
        script.until_live(last)?;
        script.expect_all(0)?;
        script.finish()
    })
}
