//! Attacks by members that crash, stand still, forget, or come back as they once were.

use std::sync::Arc;
use std::time::Duration;

use nuri_io::mem::MemDisk;
use nuri_proto::clock::PROOF;
use nuri_proto::layout::Shape;
use nuri_proto::op::Op;
use nuri_volume::group::Guess;

use super::super::history::Span;
use super::super::net::{Fate, Host};
use super::super::script::{Script, row, small};
use super::{ALL, DOUBLE, THREE, each};
use crate::check::{Wrong, wrong};

const SOON: Duration = Duration::from_millis(20);
const SECOND: Duration = Duration::from_secs(1);

/// A member held an acknowledged write, loses its disk, and comes back empty before anybody was
/// told of the commit: it has no say in what becomes of the write.
pub(super) fn member_that_lost_its_log_votes() -> Result<(), Wrong> {
    each(&ALL, |shape| {
        let mut script = Script::new(shape)?;
        let places = script.places();
        script.write(row(places))?;
        let write = script.write(row(places))?;
        let node = script.stop(0)?;
        script.replace(0, node)?;
        script.expect_all(write)?;
        script.finish()
    })
}

/// As above, with a disk that holds what it held some time ago, under its own name.
pub(super) fn member_restored_from_an_old_snapshot() -> Result<(), Wrong> {
    each(&ALL, |shape| {
        let mut script = Script::new(shape)?;
        let places = script.places();
        script.write(row(places))?;
        let node = script.node(0)?;
        let snapshot = script.world.nodes[node].disk.fork();
        // Life goes on for a while: the node restarts, and the authority hears of it.
        script.stop(0)?;
        script.start(node)?;
        script.wait(SECOND)?;
        let write = script.write(row(places))?;
        script.stop(0)?;
        script.world.nodes[node].disk = Arc::new(snapshot);
        script.world.reached.retain(|(of, _), _| *of != node);
        script.start(node)?;
        script.wait(SECOND)?;
        script.expect_all(write)?;
        script.until_live(0)?;
        script.expect_all(write)?;
        script.finish()
    })
}

/// A node loses power, or all do, and what its disk kept is what it was before; then they start.
fn fall(script: &mut Script, (node, kept): (usize, MemDisk), all_fall: bool) -> Result<(), Wrong> {
    let all = 0..script.world.nodes.len();
    let falling: Vec<_> = all.filter(|n| *n == node || all_fall).collect();
    falling.iter().try_for_each(|n| script.world.stop(*n))?;
    falling.iter().for_each(|n| script.world.nodes[*n].power += 1);
    script.world.nodes[node].disk = Arc::new(kept);
    script.world.reached.retain(|(of, _), _| *of != node);
    falling.iter().try_for_each(|n| script.start(*n))
}

/// A member's disk lost what it had said was durable, with the power of its machine alone or of
/// all. It is back within its lease and shows a state that is whole in itself, but for the newest
/// write. Catches `broken!("trust_restarted")`.
pub(super) fn member_whose_disk_lied_votes() -> Result<(), Wrong> {
    for all_fall in [false, true] {
        each(&ALL, |shape| {
            let mut script = Script::new(shape)?;
            let places = script.places();
            script.write(row(places))?;
            let node = script.node(0)?;
            let kept = script.world.nodes[node].disk.fork();
            let write = script.write(row(places))?;
            fall(&mut script, (node, kept), all_fall)?;
            script.expect_all(write)?;
            script.until_live(0)?;
            script.expect_all(write)?;
            script.finish()
        })?;
    }
    Ok(())
}

/// All power fails: one disk lost an acknowledged write that it had said was durable, and holds one
/// that nobody else has, because its writer died. Each then holds what another one lacks; nobody is
/// taken for right as a whole. Catches `broken!("doubted_is_evidence")`.
pub(super) fn liar_against_a_write_under_way() -> Result<(), Wrong> {
    each(&ALL, |shape| (0..shape.members()).try_for_each(|liar| lies(shape, liar, None)))
}

/// As above, and a member tells nobody what it holds, for longer than members of whose data nobody
/// is in doubt are waited for. Catches `broken!("silent_is_left_out")`.
pub(super) fn liar_while_a_member_is_silent() -> Result<(), Wrong> {
    each(&ALL, |shape| {
        let places = 0..shape.members();
        let pairs = places.clone().flat_map(|liar| places.clone().map(move |other| (liar, other)));
        pairs
            .filter(|(liar, silent)| liar != silent)
            .try_for_each(|(liar, silent)| lies(shape, liar, Some(silent)))
    })
}

fn lies(shape: Shape, liar: usize, silent: Option<usize>) -> Result<(), Wrong> {
    let mut script = Script::with_stripes(shape, 2)?;
    let places = script.places();
    let other = || (0..places).map(|place| Span { stripe: 1, ..small(place) }).collect();
    script.write(row(places))?;
    script.write(other())?;
    let lost = (0..shape.members()).filter(|place| *place != liar);
    lost.clone().try_for_each(|p| script.rule(Op::MemberStage, p, Fate::Lost, 100))?;
    let spans = other();
    let writer = script.begin(move |p| Ok(p.write(&spans, Guess::Unknown)))?;
    script.wait(SOON)?;
    script.kill(&writer)?;
    script.no_rules();
    let node = script.node(liar)?;
    let kept = script.world.nodes[node].disk.fork();
    let write = script.write(row(places))?;
    if let Some(silent) = silent {
        script.rule(Op::MemberChanged, silent, Fate::Lost, u32::MAX)?;
        script.rule(Op::MemberHeld, silent, Fate::Lost, u32::MAX)?;
    }
    fall(&mut script, (node, kept), true)?;
    if silent.is_some() {
        script.wait(2 * PROOF)?;
        script.no_rules();
        script.wait(PROOF)?;
    }
    script.expect_all(write)?;
    (0..shape.members()).try_for_each(|place| script.until_live(place))?;
    script.expect_all(write)?;
    script.finish()
}

/// Every two different places, in all shapes.
fn all_pairs(scenario: impl Fn(Shape, usize, usize) -> Result<(), Wrong>) -> Result<(), Wrong> {
    each(&ALL, |shape| {
        let places = 0..shape.members();
        let pairs = places.clone().flat_map(|one| places.clone().map(move |other| (one, other)));
        pairs
            .filter(|(one, other)| one != other)
            .try_for_each(|(one, other)| scenario(shape, one, other))
    })
}

/// A write came to all members but one, then all power fails, and no disk lied. While the write is
/// brought to the one that lacks it, another one is lost with its disk, which the shape bears.
/// Catches `broken!("commit_before_content")`.
pub(super) fn disk_lost_before_a_write_is_whole() -> Result<(), Wrong> {
    all_pairs(|shape, lacks, lost| {
        let mut script = Script::new(shape)?;
        script.write(row(script.places()))?;
        let node = goes_before_content(&mut script, lacks, lost)?;
        script.replace(lost, node)?;
        let found = script.read(0)??;
        script.expect_all(found)?;
        script.finish()
    })
}

/// As above, and the other one only leaves its group, and comes back with what it held.
pub(super) fn member_leaves_before_a_write_is_whole() -> Result<(), Wrong> {
    all_pairs(|shape, lacks, leaves| {
        let mut script = Script::new(shape)?;
        script.write(row(script.places()))?;
        let node = goes_before_content(&mut script, lacks, leaves)?;
        script.start(node)?;
        (0..shape.members()).try_for_each(|place| script.until_live(place))?;
        let found = script.read(0)??;
        script.expect_all(found)?;
        script.finish()
    })
}

/// A write whose writer died is held by all members but one when all power fails. Another one goes
/// while no content reaches the one that lacks it. Returns the node of the one that went.
fn goes_before_content(script: &mut Script, lacks: usize, goes: usize) -> Result<usize, Wrong> {
    stage_without(script, lacks)?;
    power_off(script)?;
    script.rule(Op::MemberInstall, lacks, Fate::Lost, u32::MAX)?;
    script.wait(PROOF)?;
    let node = script.stop(goes)?;
    script.until_absent(goes)?;
    script.no_rules();
    Ok(node)
}

/// A write reached one member alone, and its writer died. A later one went past it: on parity it
/// takes part with others and is acknowledged, on mirrors it reached another copy alone. Then all
/// power fails. The group is whole again, with the later write. Catches `broken!("lowest_first")`.
pub(super) fn later_write_past_one_that_missed_a_member() -> Result<(), Wrong> {
    all_pairs(|shape, first, second| {
        let data = shape.data();
        let is_parity = matches!(shape, Shape::Parity { .. });
        if is_parity && (first >= data || second >= data) {
            return Ok(());
        }
        let mut script = Script::new(shape)?;
        let place = |of: usize| if is_parity { of } else { 0 };
        stage_only(&mut script, place(first), first)?;
        let later = match is_parity {
            true => script.run(move |p| Ok(p.write(&[small(second)], Guess::Fresh)))??,
            false => {
                stage_only(&mut script, 0, second)?;
                0
            }
        };
        power_off(&mut script)?;
        script.wait(PROOF)?;
        (0..shape.members()).try_for_each(|place| script.until_live(place))?;
        let found = script.read(place(second))??;
        if is_parity && found != later {
            return Err(wrong!("write {found}, not {later}"));
        }
        script.finish()
    })
}

/// A write of a place reaches this member alone, and its writer dies.
fn stage_only(script: &mut Script, place: usize, reached: usize) -> Result<(), Wrong> {
    let all = 0..script.stripe().shape.members();
    let mut lost = all.filter(|member| *member != reached);
    lost.try_for_each(|member| script.rule(Op::MemberStage, member, Fate::Lost, 100))?;
    let writer = script.begin(move |p| Ok(p.write(&[small(place)], Guess::Fresh)))?;
    script.wait(SOON)?;
    script.kill(&writer)?;
    script.no_rules();
    Ok(())
}

/// All members but this one hold a write whose writer died.
fn stage_without(script: &mut Script, lacks: usize) -> Result<(), Wrong> {
    let spans = row(script.places());
    script.rule(Op::MemberStage, lacks, Fate::Lost, 100)?;
    let writer = script.begin(move |p| Ok(p.write(&spans, Guess::Unknown)))?;
    script.wait(SOON)?;
    script.kill(&writer)?;
    script.no_rules();
    Ok(())
}

/// All power fails and is back; the disks kept what they had said was durable.
fn power_off(script: &mut Script) -> Result<(), Wrong> {
    let all = 0..script.world.nodes.len();
    all.clone().try_for_each(|node| script.world.stop(node))?;
    all.clone().for_each(|node| script.world.nodes[node].power += 1);
    all.clone().try_for_each(|node| script.start(node))
}

/// A disk lost that the stripe was cut off, and what was written after that, though it had said
/// that both were durable; with the power of its machine alone or of all. What was cut off does not
/// come back. Catches `broken!("cut_off_comes_back")`.
pub(super) fn member_whose_disk_lost_a_truncation() -> Result<(), Wrong> {
    each(&ALL, |shape| {
        for case in 0..4 * shape.members() {
            let (liar, all_fall, rewrites) = (case / 4, case & 1 == 1, case & 2 == 2);
            let mut script = Script::new(shape)?;
            let places = script.places();
            script.write(row(places))?;
            script.write(row(places))?;
            let node = script.node(liar)?;
            let kept = script.world.nodes[node].disk.fork();
            script.run(|p| p.cut(0).map_err(Wrong::from))?;
            let first = if rewrites { script.write(vec![small(0)])? } else { 0 };
            fall(&mut script, (node, kept), all_fall)?;
            for _ in 0..2 {
                script.expect(0, first)?;
                (1..places).try_for_each(|place| script.expect(place, 0))?;
                script.until_live(liar)?;
            }
            script.finish()?;
        }
        Ok(())
    })
}

/// A write came to all but the first data member, and its writer died. Two members are out when the
/// machine of a third is started anew: the only one to compare it with took no part in what that
/// write is staged on. Catches `broken!("base_unasked")`.
pub(super) fn restarted_beside_one_that_took_no_part() -> Result<(), Wrong> {
    let mut script = Script::new(DOUBLE)?;
    let places = script.places();
    let base = script.write(vec![small(1)])?;
    script.rule(Op::MemberStage, 0, Fate::Lost, 100)?;
    let writer = script.begin(move |p| Ok(p.write(&row(places), Guess::Unknown)))?;
    script.wait(SOON)?;
    script.kill(&writer)?;
    script.no_rules();
    for place in [1, 3] {
        script.stop(place)?;
        script.until_absent(place)?;
    }
    let node = script.node(2)?;
    let kept = script.world.nodes[node].disk.fork();
    fall(&mut script, (node, kept), false)?;
    script.wait(PROOF)?;
    let down: Vec<_> =
        [1, 3].into_iter().map(|place| script.node(place)).collect::<Result<_, _>>()?;
    down.into_iter().try_for_each(|node| script.start(node))?;
    (0..DOUBLE.members()).try_for_each(|place| script.until_live(place))?;
    script.expect(1, base)?;
    script.finish()
}

/// There is no primary: the client leads, and members are asked. A member restarts within its
/// lease between staging and answering; then the client that leads dies and another one follows.
/// All in one epoch.
pub(super) fn primary_restarted_inside_an_epoch() -> Result<(), Wrong> {
    each(&ALL, |shape| {
        let mut script = Script::new(shape)?;
        let places = script.places();
        script.write(row(places))?;
        let epoch = script.group()?.epoch;
        for place in 0..shape.members() {
            script.rule(Op::MemberStage, place, Fate::AnswerLost, 1)?;
            let writer = script.begin(move |p| Ok(p.write(&row(places), Guess::Unknown)))?;
            script.wait(SOON)?;
            let node = script.stop(place)?;
            script.start(node)?;
            let write = script.end_of(&writer)??;
            script.expect_all(write)?;
            script.rule(Op::MemberStage, place, Fate::AnswerLost, 1)?;
            let leader = script.begin(move |p| Ok(p.write(&row(places), Guess::Unknown)))?;
            script.wait(SOON)?;
            script.kill(&leader)?;
            let found = script.read(0)??;
            script.expect_all(found)?;
        }
        if script.group()?.epoch != epoch {
            return Err("the epoch changed".into());
        }
        script.finish()
    })
}

/// A node stands still until its group has gone on without it. Who asks it right when it goes on
/// gets nothing old.
pub(super) fn pause_longer_than_the_lease() -> Result<(), Wrong> {
    each(&ALL, |shape| {
        let mut script = Script::new(shape)?;
        let places = script.places();
        script.write(row(places))?;
        let node = script.node(0)?;
        let pause = 8 * SECOND;
        let until = script.world.now + pause.as_micros() as u64;
        script.world.frozen.insert(Host::Node(node), until);
        // It has the map of before.
        let late = script.begin(move |p| {
            p.baton.want(super::super::baton::Want::Pause(pause));
            p.read(&small(0))
        })?;
        let write = script.write(row(places))?;
        if script.world.now >= until {
            return Err("the group waited for it".into());
        }
        script.expect_all(write)?;
        match script.end_of(&late)? {
            Ok(found) if found == write => {}
            other => return Err(wrong!("{other:?}, not write {write}")),
        }
        script.until_live(0)?;
        script.finish()
    })
}

/// There is no log to fold. What stands in its place: small writes that all hold and nobody was
/// told to commit, when one data disk is lost, and another.
pub(super) fn another_data_disk_lost_with_fold_debt() -> Result<(), Wrong> {
    each(&[DOUBLE], |shape| {
        let mut script = Script::new(shape)?;
        let places = script.places();
        script.write(row(places))?;
        let (first, second) = (script.write(vec![small(0)])?, script.write(vec![small(1)])?);
        let node = script.stop(0)?;
        script.until_absent(0)?;
        let other = script.stop(1)?;
        script.until_absent(1)?;
        script.expect(0, first)?;
        script.expect(1, second)?;
        script.replace(0, node)?;
        script.replace(1, other)?;
        script.expect(0, first)?;
        script.expect(1, second)?;
        script.finish()
    })
}

/// Power fails everywhere right after an acknowledgement, and one disk does not come back.
pub(super) fn all_power_off_and_one_disk_lost() -> Result<(), Wrong> {
    each(&ALL, |shape| {
        for lost in 0..shape.members() {
            let mut script = Script::new(shape)?;
            let places = script.places();
            script.write(row(places))?;
            let write = script.write(row(places))?;
            let gone = script.node(lost)?;
            let all = 0..script.world.nodes.len();
            all.clone().try_for_each(|node| script.world.stop(node))?;
            all.filter(|node| *node != gone).try_for_each(|node| script.start(node))?;
            script.expect_all(write)?;
            script.replace(lost, gone)?;
            script.expect_all(write)?;
            script.finish()?;
        }
        Ok(())
    })
}

/// One member more is lost than the shape bears: an error, nothing else, until it is back.
pub(super) fn a_further_loss_at_exactly_k_live() -> Result<(), Wrong> {
    each(&[THREE, DOUBLE], |shape| {
        let mut script = Script::new(shape)?;
        let places = script.places();
        let write = script.write(row(places))?;
        let most = shape.members() - shape.data();
        for place in 0..most {
            script.stop(place)?;
            script.until_absent(place)?;
        }
        let last = script.stop(most)?;
        let found = [script.read(0)?, script.try_write(row(places))?];
        if found.iter().any(Result::is_ok) {
            return Err(wrong!("too few are left, and yet: {found:?}"));
        }
        script.start(last)?;
        let found = [script.read(0)?, script.try_write(row(places))?];
        if found.iter().any(Result::is_err) {
            return Err(wrong!("it is back, and yet {found:?} after write {write}"));
        }
        script.finish()
    })
}
