//! Attacks on single rules. Each is the order of packets in which a build without that rule shows
//! wrong bytes. Seeds seldom reach these orders.

use std::time::Duration;

use nuri_proto::op::Op;
use nuri_volume::group::{Guess, Port};

use super::super::actors::Program;
use super::super::baton::Want;
use super::super::history::Span;
use super::super::net::{Fate, Host, Rule};
use super::super::script::{Script, row, small};
use super::{ALL, DOUBLE, PARITY, each};
use crate::check::{Wrong, wrong};

/// Longer than a packet is on its way, shorter than anybody's patience.
const SOON: Duration = Duration::from_millis(20);
const SECOND: Duration = Duration::from_secs(1);
/// Longer than it takes until groups go on without two members.
const LATER: Duration = Duration::from_secs(60);
const MANY: u32 = 1000;

/// Writes, and tells the members at once.
fn write_and_tell(p: &mut Program, spans: &[Span]) -> Result<u64, Wrong> {
    let done = p.write(spans, Guess::Unknown);
    p.groups.tell_commits();
    done.map_err(Wrong::from)
}

/// The node of place 0 starts. It has got what it missed, and what says so is on its way; so is a
/// copy of what it was brought.
fn until_brought(script: &mut Script, node: usize) -> Result<(), Wrong> {
    script.rule(Op::MemberInstall, 0, Fate::Copied, 1)?;
    let (op, to) = (Op::MemberSynced, Host::Authority);
    script.world.net.rules.push(Rule { op, to, fate: Fate::Held, count: MANY });
    script.start(node)?;
    script.until("the member was brought what it missed", |w| {
        let ops: Vec<_> = w.net.held.iter().map(|held| held.packet.op).collect();
        ops.contains(&Op::MemberInstall) && ops.last() == Some(&Op::MemberSynced)
    })
}

/// A reader finds a write that one member has not got, and asks that one never to take it. The
/// write comes there just before, and is acknowledged. Catches `broken!("promise_drops")`.
pub(super) fn promise_just_after_the_write() -> Result<(), Wrong> {
    each(&ALL, |shape| {
        let mut script = Script::new(shape)?;
        let (places, last) = (script.places(), shape.members() - 1);
        script.write(row(places))?;
        script.rule(Op::MemberStage, last, Fate::Held, 1)?;
        script.rule(Op::MemberAbort, last, Fate::Held, 1)?;
        let writer = script.begin(move |p| Ok(p.write(&row(places), Guess::Unknown)))?;
        script.until_held(1)?;
        let reader = script.begin(|p| p.read(&small(0)))?;
        script.until_held(2)?;
        script.release();
        let write = script.end_of(&writer)??;
        script.end_of(&reader)??;
        script.expect_all(write)?;
        script.finish()
    })
}

/// A write of two data members is decided. All parity is lost, the first one is written again, and
/// the second one never heard that the write was decided. Catches
/// `broken!("only_parity_tells")`.
pub(super) fn parity_lost_before_the_commit() -> Result<(), Wrong> {
    each(&[PARITY, DOUBLE], |shape| {
        let mut script = Script::new(shape)?;
        let places = script.places();
        script.run(move |p| write_and_tell(p, &row(places)))?;
        script.rule(Op::MemberCommit, 1, Fate::Lost, MANY)?;
        let writer = script.begin(|p| {
            let both = p.write(&[small(0), small(1)], Guess::Unknown)?;
            p.baton.want(Want::Pause(LATER));
            // It knows what the members hold, and asks nobody.
            p.groups.port().refresh();
            Ok((both, write_and_tell(p, &[small(0)])?))
        })?;
        script.wait(SOON)?;
        for parity in shape.data()..shape.members() {
            script.stop(parity)?;
            script.until_absent(parity)?;
        }
        let (both, first) = script.end_of(&writer)?;
        script.no_rules();
        script.expect(0, first)?;
        script.expect(1, both)?;
        script.finish()
    })
}

/// A member is brought up to date, and one more write comes to it. What it was brought first comes
/// once more, late; then it is called live. Catches `broken!("install_older")`.
pub(super) fn late_install_after_newer_bytes() -> Result<(), Wrong> {
    each(&ALL, |shape| {
        let mut script = Script::new(shape)?;
        let places = script.places();
        script.write(row(places))?;
        let node = script.stop(0)?;
        script.until_absent(0)?;
        script.write(row(places))?;
        until_brought(&mut script, node)?;
        let new = script.run(move |p| write_and_tell(p, &row(places)))?;
        script.no_rules();
        script.release();
        script.until_live(0)?;
        // It hears of that itself.
        script.wait(SECOND)?;
        script.expect_all(new)?;
        script.finish()
    })
}

/// A lost chunk is computed from others, and one of them shows a newer write than the rest.
/// Catches `broken!("decode_any_state")`.
pub(super) fn degraded_read_across_a_write() -> Result<(), Wrong> {
    each(&[PARITY, DOUBLE], |shape| {
        let mut script = Script::new(shape)?;
        let places = script.places();
        let old = script.run(move |p| write_and_tell(p, &row(places)))?;
        script.stop(0)?;
        script.until_absent(0)?;
        script.rule(Op::MemberRead, 1, Fate::Held, 1)?;
        let reader = script.begin(|p| p.read(&small(0)))?;
        script.until_held(1)?;
        script.wait(SOON)?;
        let new = script.run(|p| write_and_tell(p, &[small(1)]))?;
        script.release();
        let found = script.end_of(&reader)?;
        if found != Ok(old) {
            return Err(wrong!("{found:?} was read, not write {old}"));
        }
        script.expect(1, new)?;
        script.finish()
    })
}

/// A client whose map is old reads from a member that is back and was not brought anything yet.
/// Catches `broken!("read_while_syncing")`.
pub(super) fn old_map_and_a_member_that_missed_writes() -> Result<(), Wrong> {
    each(&ALL, |shape| {
        let mut script = Script::new(shape)?;
        let places = script.places();
        script.run(move |p| write_and_tell(p, &row(places)))?;
        let reader = script.begin(|p| {
            p.baton.want(Want::Pause(LATER));
            p.read(&small(0))
        })?;
        script.wait(SOON)?;
        let node = script.stop(0)?;
        script.until_absent(0)?;
        let new = script.run(move |p| write_and_tell(p, &row(places)))?;
        script.rule(Op::MemberInstall, 0, Fate::Lost, MANY)?;
        script.start(node)?;
        let found = script.end_of(&reader)?;
        if found != Ok(new) {
            return Err(wrong!("{found:?} was read, not write {new}"));
        }
        script.no_rules();
        script.until_live(0)?;
        script.expect_all(new)?;
        script.finish()
    })
}

/// A member has got all that it missed. A write does not come to it, and its writer dies; somebody
/// reads; then the member is called live. Catches `broken!("syncing_never_counts")`.
pub(super) fn write_that_a_returning_member_lacks() -> Result<(), Wrong> {
    each(&ALL, |shape| {
        let mut script = Script::new(shape)?;
        let places = script.places();
        script.write(row(places))?;
        let node = script.stop(0)?;
        script.until_absent(0)?;
        let old = script.write(row(places))?;
        until_brought(&mut script, node)?;
        script.rule(Op::MemberStage, 0, Fate::Lost, MANY)?;
        let writer = script.begin(move |p| Ok(p.write(&row(places), Guess::Unknown)))?;
        script.wait(SOON)?;
        script.kill(&writer)?;
        script.no_rules();
        script.expect(places - 1, old)?;
        script.release();
        script.until_live(0)?;
        script.wait(SECOND)?;
        script.expect_all(old)?;
        script.finish()
    })
}

/// A scrub repairs a rotten chunk. What it computed comes when the file was cut off. Catches
/// `broken!("repair_anything")`.
pub(super) fn repair_after_a_truncation() -> Result<(), Wrong> {
    each(&ALL, |shape| {
        let mut script = Script::new(shape)?;
        let all: Vec<Span> =
            (0..script.places()).map(|p| script.world.ground.whole(0, p)).collect();
        script.run(move |p| write_and_tell(p, &all))?;
        let (stripe, node) = (script.stripe(), script.node(0)?);
        script.rule(Op::MemberInstall, 0, Fate::Held, 1)?;
        if !script.world.rot(node, stripe.key) {
            return Err("nothing of the chunk is on the disk".into());
        }
        let target = script.world.nodes[node].target;
        script.world.ground.rotten.lock().insert(target);
        script.until_held(1)?;
        script.run(|p| p.cut(0).map_err(Wrong::from))?;
        script.release();
        script.wait(SOON)?;
        script.expect_all(0)?;
        script.finish()
    })
}
