//! Attacks by disks: full disks and rotten disks.

use nuri_proto::Status;
use nuri_volume::group::{Finding, Flaw, Guess, Verdict};

use super::super::history::Span;
use super::super::script::{Script, row};
use super::{ALL, each};
use crate::check::{Wrong, wrong};

/// All data places from the first cell to the last: too much for the log.
fn large(script: &Script) -> Vec<Span> {
    (0..script.places()).map(|place| script.world.ground.whole(0, place)).collect()
}

/// One member of several has no room: the write ends with that error, nothing of it stays, and the
/// member keeps its place.
pub(super) fn enospc_in_mid_stage() -> Result<(), Wrong> {
    each(&ALL, |shape| {
        for full in 0..shape.members() {
            let mut script = Script::new(shape)?;
            let places = script.places();
            let old = script.write(row(places))?;
            let (epoch, node) = (script.group()?.epoch, script.node(full)?);
            let disk = script.world.nodes[node].disk.clone();
            disk.limit_space(disk.resident());
            let all = large(&script);
            let outcome = script.try_write(all.clone())?;
            if outcome != Err(Status::NOSPC) {
                return Err(wrong!("a full member: {outcome:?}"));
            }
            script.expect_all(old)?;
            disk.heal();
            let new = script.write(all)?;
            script.expect_all(new)?;
            if script.group()?.epoch != epoch {
                return Err("a member lost its place".into());
            }
            script.finish()?;
        }
        Ok(())
    })
}

/// A bit of one member's chunk turns over. The scrub names that member, whatever the majority
/// holds, and repairs it; whoever reads meanwhile gets the right bytes.
pub(super) fn scrub_against_a_rotten_data_chunk() -> Result<(), Wrong> {
    each(&ALL, |shape| {
        for rotten in 0..shape.members() {
            let mut script = Script::new(shape)?;
            let all = large(&script);
            let write = script.run(move |p| {
                let done = p.write(&all, Guess::Unknown).map_err(Wrong::from);
                p.groups.tell_commits();
                done
            })?;
            let (stripe, node) = (script.stripe(), script.node(rotten)?);
            let target = script.world.nodes[node].target;
            if !script.world.rot(node, stripe.key) {
                return Err("nothing of the chunk is on the disk".into());
            }
            script.expect_all(write)?;
            let verdict = script.run(move |p| {
                let mut verdict = Verdict::default();
                let done = p.groups.scrub(&stripe, &mut verdict);
                done.map(|()| verdict).map_err(Wrong::from)
            })?;
            if verdict.findings != [Finding { target, flaw: Flaw::Damaged, repaired: true }] {
                return Err(wrong!("the scrub found {:?}", verdict.findings));
            }
            script.expect_all(write)?;
            script.finish()?;
        }
        Ok(())
    })
}
