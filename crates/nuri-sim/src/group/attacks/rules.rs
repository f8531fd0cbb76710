//! Attacks on single rules: the order of packets in which a build without that rule shows wrong
//! bytes. Seeds seldom come to these.

use std::time::Duration;

use nuri_client::group::{Guess, Port};
use nuri_proto::op::Op;

use super::super::actors::Program;
use super::super::baton::Want;
use super::super::history::Span;
use super::super::net::{Fate, Host, Rule};
use super::super::script::{Script, row, small};
use super::{ALL, DOUBLE, PARITY, each};
use crate::check::Wrong;

/// Longer than a packet is on its way, shorter than anybody's patience.
const SOON: Duration = Duration::from_millis(20);
/// Longer than it takes until groups go on without two members.
const LATER: Duration = Duration::from_secs(60);
const MANY: u32 = 1000;

/// Writes, and tells the members at once.
fn write_and_tell(p: &mut Program, spans: &[Span]) -> Result<u64, Wrong> {
    let done = p.write(spans, Guess::Unknown);
    p.groups.tell_commits();
    done.map_err(|s| s.to_string())
}

/// A reader finds a write that one member has not got, and asks that one never to take it. The
/// write comes there just before, and is acknowledged. Catches `nuri_break = "promise_drops"`.
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
        let write = script.end_of(&writer)?.map_err(|s| s.to_string())?;
        script.end_of(&reader)?.map_err(|s| s.to_string())?;
        script.expect_all(write)?;
        script.finish()
    })
}

/// A write of two data members is decided. All parity is lost, the first one is written again, and
/// the second one never heard that the write was decided. Catches
/// `nuri_break = "only_parity_tells"`.
pub(super) fn parity_lost_before_the_commit() -> Result<(), Wrong> {
    each(&[PARITY, DOUBLE], |shape| {
        let mut script = Script::new(shape)?;
        let places = script.places();
        script.run(move |p| write_and_tell(p, &row(places)))?;
        script.rule(Op::MemberCommit, 1, Fate::Lost, MANY)?;
        let writer = script.begin(|p| {
            let both = p.write(&[small(0), small(1)], Guess::Unknown).map_err(|s| s.to_string())?;
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
/// once more, late; then it is called live. Catches `nuri_break = "install_older"`.
pub(super) fn late_install_after_newer_bytes() -> Result<(), Wrong> {
    each(&ALL, |shape| {
        let mut script = Script::new(shape)?;
        let places = script.places();
        script.write(row(places))?;
        let node = script.stop(0)?;
        script.until_absent(0)?;
        script.write(row(places))?;
        script.rule(Op::MemberInstall, 0, Fate::Copied, 1)?;
        let (op, to) = (Op::MemberSynced, Host::Authority);
        script.world.net.rules.push(Rule { op, to, fate: Fate::Held, count: MANY });
        script.start(node)?;
        script.until("the member was brought what it missed", |w| {
            let ops: Vec<_> = w.net.held.iter().map(|held| held.packet.op).collect();
            ops.contains(&Op::MemberInstall) && ops.last() == Some(&Op::MemberSynced)
        })?;
        let new = script.run(move |p| write_and_tell(p, &row(places)))?;
        script.no_rules();
        script.release();
        script.until_live(0)?;
        script.expect_all(new)?;
        script.finish()
    })
}

/// A lost chunk is computed from others, and one of them shows a newer write than the rest.
/// Catches `nuri_break = "decode_any_state"`.
pub(super) fn degraded_read_across_a_write() -> Result<(), Wrong> {
    each(&[PARITY, DOUBLE], |shape| {
        let mut script = Script::new(shape)?;
        let old = script.write(row(script.places()))?;
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
            return Err(format!("{found:?} was read, not write {old}"));
        }
        script.expect(1, new)?;
        script.finish()
    })
}
