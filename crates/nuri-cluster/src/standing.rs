//! Pure transitions of stripe groups: which member is live, and which is being brought up to date.
//!
//! GROUP-1 A group's live set changes only here, one map record per event. Each change takes the
//!    map's next epoch: nothing is written in that epoch before the record is durable.
//! GROUP-2 A member leaves only while enough others are live to hold the whole data. Where they are
//!    not, the group waits as it is: nothing is guessed.
//! GROUP-3 A member that left comes back as `Syncing`, never straight as `Live`. It missed the
//!    stripes written in epochs from `since` on.
//! GROUP-4 `Syncing` ends by compare-and-swap: only if the group is still at the epoch in which the
//!    member was found up to date.

use nuri_proto::Status;
use nuri_proto::id::{Epoch, GroupId, PoolId, TargetId};
use nuri_proto::layout::Shape;
use nuri_proto::limit::MAX_TARGETS;
use nuri_proto::map::{Group, Map, Member, Standing, Target, TargetState};
use nuri_proto::op::cluster::{MemberMove, TargetProved};
use nuri_rules::broken;

use crate::placement::{Candidate, Rooms, place};

/// Groups of all pools and generations together, at most.
const MAX_GROUPS: usize = 2 * MAX_TARGETS;

/// These targets serve no more, for certain. Returns whether a group changed.
pub fn exclude(map: &mut Map, lost: &[TargetId]) -> bool {
    change_groups(map, |group, epoch| {
        let mut changed = false;
        for place in 0..group.members.len() {
            if !lost.contains(&group.members[place].target) {
                continue;
            }
            let enough = !is_needed(group, place) || broken!("live_set_too_small");
            let before = group.members[place].standing;
            let after = match before {
                Standing::Live if enough => Standing::Absent { since: epoch },
                Standing::Syncing { since } => Standing::Absent { since },
                other => other,
            };
            if after != before {
                group.members[place] = Member::new(group.members[place].target, after);
                changed = true;
            }
        }
        changed
    })
}

/// Members that are absent though their target serves take part in writes again (GROUP-3).
pub fn readmit(map: &mut Map) -> bool {
    let up: Vec<_> =
        map.targets.iter().filter(|t| t.state == TargetState::Up).map(|t| t.id).collect();
    change_groups(map, |group, _| {
        let mut changed = false;
        for member in &mut group.members {
            if let Standing::Absent { since } = member.standing
                && up.contains(&member.target)
            {
                member.standing = if broken!("return_unsynced") {
                    Standing::Live
                } else {
                    Standing::Syncing { since }
                };
                changed = true;
            }
        }
        changed
    })
}

/// The target came back in an older state than it had: it may lack anything. Returns whether the
/// others of each of its groups hold the data without it.
pub fn distrust(map: &mut Map, target: TargetId) -> bool {
    let mut enough = true;
    change_groups(map, |group, _| {
        let Some(place) = group.place(target) else { return false };
        enough &= !is_needed(group, place);
        group.members[place] = Member::new(target, Standing::Absent { since: Epoch(0) });
        true
    });
    enough
}

/// The target's machine was started anew: what it holds as a live member is to be compared with the
/// others. A new epoch begins: whoever was compared with it before is compared again, and what it
/// lost of what was being brought to it counts as missed.
pub fn doubt(map: &mut Map, target: TargetId) {
    change_groups(map, |group, _| {
        let mut members = group.members.iter_mut();
        let Some(member) = members.find(|m| m.target == target) else { return false };
        member.unproven = member.standing == Standing::Live;
        !matches!(member.standing, Standing::Absent { .. })
    });
}

/// A target was compared with the other members of groups (`nuri-volume/src/group/prove.rs`). It
/// leaves those in which it lacks something, where it is not needed (GROUP-2), and is as good as
/// any other in those where it is proven; no epoch of these is over by that, since others compare
/// themselves meanwhile. What was found in an epoch that is over counts for nothing.
///
/// # Errors
/// [`Status::NOENT`]; [`Status::EPOCH`] where it was opened again meanwhile.
pub fn proved(map: &mut Map, proof: &TargetProved) -> Result<(), Status> {
    let target = map.target(proof.target).ok_or(Status::NOENT)?;
    if target.boot != proof.boot {
        return Err(Status::EPOCH);
    }
    let mut is_any = false;
    for group in map.groups.iter_mut().filter(|g| proof.proven.contains(&(g.id, g.epoch))) {
        let mut members = group.members.iter_mut();
        let own = members.find(|m| m.target == proof.target && m.unproven);
        is_any |= own.map(|member| member.unproven = false).is_some();
    }
    let changed = change_groups(map, |group, epoch| {
        proof.behind.contains(&(group.id, group.epoch)) && leave(group, proof.target, epoch)
    });
    if is_any && !changed {
        map.epoch = Epoch(map.epoch.0 + 1);
    }
    readmit(map);
    Ok(())
}

/// A live member in doubt leaves its group, where the others hold the data without it. Returns
/// whether it did. One that was proven meanwhile stays. Its proof began no new epoch, so a report
/// from before the proof, or by an older map, comes under the same one.
fn leave(group: &mut Group, target: TargetId, epoch: Epoch) -> bool {
    let in_doubt = if broken!("leave_proven") { group.live() } else { group.unproven() };
    let may_leave = |place: &usize| in_doubt.has(*place) && !is_needed(group, *place);
    let place = group.place(target).filter(may_leave);
    if let Some(place) = place {
        group.members[place] = Member::new(target, Standing::Absent { since: epoch });
    }
    place.is_some()
}

/// Whether the other live members are too few to hold the data (GROUP-2).
fn is_needed(group: &Group, place: usize) -> bool {
    group.live().iter().filter(|p| *p != place).count() < group.shape.data()
}

/// The group takes the next epoch, with the members that it has.
///
/// # Errors
/// [`Status::EPOCH`] where it did already; [`Status::NOENT`].
pub fn renew(map: &mut Map, id: GroupId, epoch: Epoch) -> Result<(), Status> {
    let group = map.group(id).ok_or(Status::NOENT)?;
    if group.epoch != epoch {
        return Err(Status::EPOCH);
    }
    change_groups(map, |group, _| group.id == id);
    Ok(())
}

/// A member was found to hold everything, while the group was at `epoch` (GROUP-4).
///
/// # Errors
/// [`Status::EPOCH`] where the group moved on; [`Status::NOENT`] where there is no such member.
pub fn synced(map: &mut Map, id: GroupId, target: TargetId, epoch: Epoch) -> Result<(), Status> {
    let group = map.group(id).ok_or(Status::NOENT)?;
    let place = group.place(target).ok_or(Status::NOENT)?;
    match group.members[place].standing {
        Standing::Live => return Ok(()),
        Standing::Syncing { .. } if group.epoch == epoch => {}
        Standing::Syncing { .. } | Standing::Absent { .. } => return Err(Status::EPOCH),
    }
    change_groups(map, |group, _| {
        let is_it = group.id == id;
        if is_it {
            group.members[place].standing = Standing::Live;
        }
        is_it
    });
    Ok(())
}

/// Puts `new` in the place of `old` in all groups that do not need `old`; it has missed everything
/// so far. A group in which too few others are live keeps `old`, and must not keep the rest
/// degraded.
///
/// # Errors
/// [`Status::NOENT`] for unknown targets; [`Status::BUSY`] where every group needs `old`;
/// [`Status::EXIST`] where both are in one group.
pub fn replace(map: &mut Map, old: TargetId, new: TargetId) -> Result<(), Status> {
    map.target(old).and(map.target(new)).ok_or(Status::NOENT)?;
    let mut groups = map.groups.iter().filter(|g| g.shape.is_redundant());
    let mine: Vec<_> = groups.by_ref().filter_map(|g| Some((g, g.place(old)?))).collect();
    if mine.iter().any(|(group, _)| group.place(new).is_some()) {
        return Err(Status::EXIST);
    }
    if !mine.is_empty() && mine.iter().all(|(group, place)| is_needed(group, *place)) {
        return Err(Status::BUSY);
    }
    change_groups(map, |group, _| {
        let place = group.place(old).filter(|_| group.shape.is_redundant());
        let Some(place) = place.filter(|place| !is_needed(group, *place)) else { return false };
        group.members[place] = Member::new(new, Standing::Absent { since: Epoch(0) });
        true
    });
    readmit(map);
    Ok(())
}

/// New files avoid the target, or no longer.
///
/// # Errors
/// [`Status::NOENT`].
pub fn retire(map: &mut Map, target: TargetId, retiring: bool) -> Result<(), Status> {
    let target = map.targets.iter_mut().find(|t| t.id == target).ok_or(Status::NOENT)?;
    target.retiring = retiring;
    map.epoch = Epoch(map.epoch.0 + 1);
    Ok(())
}

/// A target that is gone for ever leaves the map, and its node with it where that has nothing else.
/// The record of what lay on it alone stays: its number must never mean something else.
///
/// # Errors
/// [`Status::NOENT`]; [`Status::BUSY`] where it serves; [`Status::NOTEMPTY`] where it has places in
/// redundant groups.
pub fn remove(map: &mut Map, target: TargetId) -> Result<(), Status> {
    let known = map.target(target).ok_or(Status::NOENT)?;
    if known.state == TargetState::Up {
        return Err(Status::BUSY);
    }
    if map.groups.iter().any(|g| g.shape.is_redundant() && g.place(target).is_some()) {
        return Err(Status::NOTEMPTY);
    }
    let node = known.node;
    map.targets.retain(|t| t.id != target);
    let alone = |g: &Group| g.place(target).is_some();
    let lost: Vec<_> = map.groups.iter().filter(|g| alone(g)).map(|g| g.id).collect();
    map.pools.iter_mut().for_each(|pool| pool.groups.retain(|id| !lost.contains(id)));
    let has_others = map.targets.iter().any(|t| t.node == node) || map.meta == Some(node);
    map.nodes.retain(|n| n.id != node || n.up || has_others);
    map.epoch = Epoch(map.epoch.0 + 1);
    Ok(())
}

/// A target that has a copy takes another one's place (`nuri-volume/src/group/hand_over.rs`).
///
/// # Errors
/// [`Status::NOENT`] where there is no such place or target; [`Status::EXIST`] where the target is
/// a member already; [`Status::BUSY`] where the group needs every member that it has;
/// [`Status::INVAL`] for an epoch that is still to come.
pub fn move_member(map: &mut Map, step: &MemberMove) -> Result<(), Status> {
    map.target(step.to).filter(|t| t.state == TargetState::Up).ok_or(Status::NOENT)?;
    let group = map.group(step.group).ok_or(Status::NOENT)?;
    // A copy that misses nothing before an epoch to come would be believed for ever.
    if step.since > map.epoch {
        return Err(Status::INVAL);
    }
    let place = group.place(step.from).ok_or(Status::NOENT)?;
    if group.place(step.to).is_some() {
        return Err(Status::EXIST);
    }
    if is_needed(group, place) {
        return Err(Status::BUSY);
    }
    // What the old one had not got yet, the copy does not have either.
    let since = match group.members[place].standing {
        Standing::Live => step.since,
        Standing::Absent { since } | Standing::Syncing { since } => since.min(step.since),
    };
    change_groups(map, |group, _| {
        let is_it = group.id == step.group;
        if is_it {
            let standing = Standing::Syncing { since };
            group.members[place] = Member::new(step.to, standing);
        }
        is_it
    });
    Ok(())
}

/// Whether some member is out of its group.
pub fn has_absent(map: &Map) -> bool {
    let mut members = map.groups.iter().flat_map(|g| &g.members);
    members.any(|m| matches!(m.standing, Standing::Absent { .. }))
}

/// Whether the groups that new files of the shape lie on have places on every target that takes
/// some.
pub fn reaches_all(map: &Map, pool: PoolId, shape: Shape) -> bool {
    let groups = map.pool_groups(pool, shape);
    let reached = |t: TargetId| groups.iter().any(|g| g.members.iter().any(|m| m.target == t));
    !groups.is_empty() && takers(map).all(|t| reached(t.id))
}

/// Targets that take places in new groups: those that serve, and those that others wait for. One
/// that is down and has no place was replaced, or never came.
fn takers(map: &Map) -> impl Iterator<Item = &Target> {
    let waited_for =
        |t: &Target| map.groups.iter().any(|g| g.shape.is_redundant() && g.place(t.id).is_some());
    let staying = map.targets.iter().filter(|t| !t.retiring);
    staying.filter(move |t| t.state == TargetState::Up || waited_for(t))
}

/// Makes groups of the shape over all targets of the pool, for new files.
///
/// # Errors
/// [`Status::INVAL`] where the shape needs more targets than there are; [`Status::NOSPC`] beyond
/// the bounds of a space.
pub fn make_groups(map: &mut Map, pool: PoolId, shape: Shape) -> Result<(), Status> {
    let mut candidates: Vec<Candidate> = takers(map).map(|t| (t.id, t.node)).collect();
    if candidates.len() < shape.members() {
        // Better with some that are down than not at all.
        let staying = map.targets.iter().filter(|t| !t.retiring);
        candidates = staying.map(|t| (t.id, t.node)).collect();
    }
    let sizes: Vec<_> = map.targets.iter().map(|t| (t.id, t.size)).collect();
    let placed = place(map.placement, shape, &candidates, &Rooms::of(&sizes));
    if placed.is_empty() {
        return Err(Status::INVAL);
    }
    if map.groups.len() + placed.len() > MAX_GROUPS {
        return Err(Status::NOSPC);
    }
    let epoch = Epoch(map.epoch.0 + 1);
    let first = map.groups.iter().map(|g| g.id.0).max().unwrap_or(0) + 1;
    let mut ids = Vec::new();
    for (id, targets) in (first..).map(GroupId).zip(placed) {
        let live = |target| Member::new(target, Standing::Live);
        let members = targets.into_iter().map(live).collect();
        map.groups.push(Group { id, epoch, shape, members });
        ids.push(id);
    }
    let old: Vec<_> = map.pool_groups(pool, shape).iter().map(|g| g.id).collect();
    let pool = map.pools.iter_mut().find(|p| p.id == pool).ok_or(Status::INVAL)?;
    pool.groups.retain(|id| !old.contains(id));
    pool.groups.extend(ids);
    map.epoch = epoch;
    Ok(())
}

/// (size, used) in bytes of files, as [`Map::usable`]; where the groups that new files will get are
/// not made yet, of those.
pub fn usable(map: &Map, pool: PoolId) -> (u64, u64) {
    let shape = map.shape_now();
    if !shape.is_redundant() || reaches_all(map, pool, shape) {
        return map.usable();
    }
    let mut next = map.clone();
    let made = make_groups(&mut next, pool, shape);
    if made.is_ok() { next.usable() } else { map.usable() }
}

/// Runs a change over the redundant groups; those that it says it changed get the next epoch.
fn change_groups(map: &mut Map, mut change: impl FnMut(&mut Group, Epoch) -> bool) -> bool {
    let epoch = Epoch(map.epoch.0 + 1);
    let mut changed = false;
    for group in map.groups.iter_mut().filter(|g| g.shape.is_redundant()) {
        if change(group, epoch) {
            group.epoch = epoch;
            changed = true;
        }
    }
    if changed {
        map.epoch = epoch;
    }
    changed
}

/// Maps for tests.
#[cfg(test)]
pub(crate) mod fixture {
    use nuri_proto::id::{BootId, Incarnation, NodeId};
    use nuri_proto::map::Pool;

    use super::*;
    use crate::transition::DEFAULT_POOL;

    /// One that is up, alone on its node.
    pub(crate) fn target(id: u32) -> Target {
        Target {
            id: TargetId(id),
            node: NodeId(id),
            path: String::new(),
            state: TargetState::Up,
            size: 1,
            used: 0,
            incarnation: Incarnation(1),
            sequence: 1,
            boot: BootId(1),
            machine: BootId(1),
            retiring: false,
        }
    }

    /// So many targets, and groups of the shape over them.
    pub(crate) fn map(targets: u32, shape: Shape) -> Map {
        let pool = Pool { id: DEFAULT_POOL, name: "default".into(), groups: Vec::new() };
        let targets = (1..=targets).map(target).collect();
        let mut map = Map { targets, pools: vec![pool], ..Map::default() };
        assert!(!reaches_all(&map, DEFAULT_POOL, shape));
        make_groups(&mut map, DEFAULT_POOL, shape).unwrap();
        map
    }
}

#[cfg(test)]
mod tests {
    use nuri_proto::id::{BootId, NodeId};

    use super::fixture::{map, target};
    use super::*;
    use crate::transition::DEFAULT_POOL;

    const PARITY: Shape = Shape::Parity { k: 3, m: 1 };

    #[test]
    fn a_group_is_renewed_once() {
        let mut map = map(4, PARITY);
        let (id, epoch) = (map.groups[0].id, map.groups[0].epoch);
        renew(&mut map, id, epoch).unwrap();
        assert!(map.groups[0].epoch > epoch && map.groups[1].epoch == epoch);
        assert_eq!(map.groups[0].live().iter().count(), 4);
        assert_eq!(renew(&mut map, id, epoch), Err(Status::EPOCH), "of another asker");
    }

    /// Catches `broken!("leave_proven")`.
    #[test]
    fn who_lacks_something_after_a_start_of_its_machine_leaves() {
        let mut map = map(4, PARITY);
        let before = map.groups[0].epoch;
        (1..=4).for_each(|id| doubt(&mut map, TargetId(id)));
        let all: Vec<_> = map.groups.iter().map(|g| (g.id, g.epoch)).collect();
        assert!(all.iter().all(|(_, epoch)| *epoch > before), "who was compared is so again");
        let unproven = |map: &Map, target| {
            let mine = |g: &&Group| g.unproven().has(g.place(TargetId(target)).unwrap());
            map.groups.iter().filter(mine).count()
        };
        let proof = |target, boot, proven: &[_], behind: &[_]| TargetProved {
            target: TargetId(target),
            boot: BootId(boot),
            proven: proven.to_vec(),
            behind: behind.to_vec(),
        };
        assert_eq!(proved(&mut map, &proof(1, 9, &all, &[])), Err(Status::EPOCH), "another life");
        let of_before: Vec<_> = map.groups.iter().map(|g| (g.id, before)).collect();
        proved(&mut map, &proof(1, 1, &of_before, &of_before)).unwrap();
        assert_eq!(unproven(&map, 1), all.len(), "of an epoch that is over");
        let before = map.epoch;
        proved(&mut map, &proof(1, 1, &all, &[])).unwrap();
        assert!(map.epoch > before, "its node hears of it");
        assert!(map.groups.iter().all(|g| g.live().iter().count() == 4));
        let before = map.epoch;
        proved(&mut map, &proof(1, 1, &[], &all)).unwrap();
        assert_eq!(map.epoch, before, "found before it was proven, and told late");
        assert!(map.groups.iter().all(|g| g.live().iter().count() == 4));
        proved(&mut map, &proof(2, 1, &all[1..], &all[..1])).unwrap();
        let out = |g: &Group| !g.live().has(g.place(TargetId(2)).unwrap());
        let left: Vec<_> = map.groups.iter().filter(|g| out(g)).map(|g| g.id).collect();
        assert_eq!(left, [all[0].0]);
        let first = (map.groups[0].id, map.groups[0].epoch);
        proved(&mut map, &proof(3, 1, &[], &[first])).unwrap();
        assert_eq!(unproven(&map, 3), all.len(), "it is needed, and stays in doubt");
        proved(&mut map, &proof(3, 1, &[first], &[])).unwrap();
        assert_eq!([1, 2, 3, 4].map(|t| unproven(&map, t)), [0, 0, all.len() - 1, all.len()]);
    }

    /// Catches `broken!("live_set_too_small")`.
    #[test]
    fn a_group_never_shrinks_below_its_data() {
        let mut map = map(4, PARITY);
        let before = map.epoch;
        assert!(exclude(&mut map, &[TargetId(1)]));
        assert!(map.groups.iter().all(|g| g.epoch.0 == before.0 + 1 && g.is_available()));
        assert!(!exclude(&mut map, &[TargetId(2)]), "the group waits for it");
        assert!(map.groups.iter().all(|g| g.live().iter().count() == 3));
    }

    /// Catches `broken!("return_unsynced")`.
    #[test]
    fn who_returns_is_synced_first() {
        let mut map = map(4, PARITY);
        exclude(&mut map, &[TargetId(1)]);
        let since = map.epoch;
        assert!(readmit(&mut map));
        let group = map.groups[0].clone();
        let place = group.place(TargetId(1)).unwrap();
        assert_eq!(group.members[place].standing, Standing::Syncing { since });
        assert!(group.writable().has(place) && !group.live().has(place));
        assert_eq!(synced(&mut map, group.id, TargetId(1), since), Err(Status::EPOCH));
        assert_eq!(synced(&mut map, group.id, TargetId(1), group.epoch), Ok(()));
        assert!(map.groups[0].live().has(place));
    }

    #[test]
    fn a_second_absence_keeps_what_the_first_missed() {
        let mut map = map(4, PARITY);
        exclude(&mut map, &[TargetId(1)]);
        let since = map.epoch;
        readmit(&mut map);
        let (id, syncing) = (map.groups[0].id, map.epoch);
        assert!(exclude(&mut map, &[TargetId(1)]), "it is no writer any more");
        let place = map.groups[0].place(TargetId(1)).unwrap();
        assert_eq!(map.groups[0].members[place].standing, Standing::Absent { since });
        assert_eq!(map.groups[0].epoch.0, syncing.0 + 1, "writes that name it end");
        assert!(!map.groups[0].writable().has(place));
        assert!(!exclude(&mut map, &[TargetId(1)]), "once");
        for late in [syncing, map.epoch] {
            assert_eq!(synced(&mut map, id, TargetId(1), late), Err(Status::EPOCH));
        }
    }

    #[test]
    fn an_older_state_of_a_target_is_believed_nothing() {
        let mut map = map(4, PARITY);
        assert!(distrust(&mut map, TargetId(2)));
        readmit(&mut map);
        let own = |g: &Group| g.members[g.place(TargetId(2)).unwrap()].standing;
        let from_start = Standing::Syncing { since: Epoch(0) };
        assert!(map.groups.iter().all(|g| own(g) == from_start));
        assert!(!distrust(&mut map, TargetId(3)), "two of them are too many");
    }

    #[test]
    fn a_replacement_has_missed_everything() {
        let mut map = map(4, Shape::Mirror(2));
        map.targets.push(target(9));
        replace(&mut map, TargetId(1), TargetId(9)).unwrap();
        assert!(map.groups.iter().all(|g| g.place(TargetId(1)).is_none()));
        let is_new = |m: &&Member| m.target == TargetId(9);
        let new: Vec<_> = map.groups.iter().flat_map(|g| &g.members).filter(is_new).collect();
        let from_start = Standing::Syncing { since: Epoch(0) };
        assert!(!new.is_empty() && new.iter().all(|m| m.standing == from_start));
        assert_eq!(replace(&mut map, TargetId(9), TargetId(77)), Err(Status::NOENT));
    }

    #[test]
    fn a_group_that_needs_the_old_target_keeps_no_other_from_its_replacement() {
        let mut map = map(4, Shape::Mirror(2));
        map.targets.push(target(9));
        let of = |map: &Map, id| {
            let own = map.groups.iter().filter(|g| g.place(TargetId(id)).is_some());
            own.map(|g| g.id).collect::<Vec<_>>()
        };
        let all = of(&map, 1);
        let waits = map.groups.iter_mut().find(|g| g.id == all[0]).unwrap();
        let partner = 1 - waits.place(TargetId(1)).unwrap();
        waits.members[partner].standing = Standing::Syncing { since: Epoch(0) };
        replace(&mut map, TargetId(1), TargetId(9)).unwrap();
        assert_eq!((of(&map, 1), of(&map, 9)), (vec![all[0]], all[1..].to_vec()));
        assert!(!of(&map, 9).is_empty());
        assert_eq!(replace(&mut map, TargetId(1), TargetId(9)), Err(Status::BUSY));
        let waits = map.groups.iter_mut().find(|g| g.id == all[0]).unwrap();
        waits.members[partner].standing = Standing::Live;
        replace(&mut map, TargetId(1), TargetId(9)).unwrap();
        assert_eq!((of(&map, 1), of(&map, 9).len()), (Vec::new(), all.len()));
    }

    #[test]
    fn new_groups_leave_out_who_was_replaced_and_wait_for_who_is_away() {
        let mut map = map(4, PARITY);
        map.targets[3].state = TargetState::Down;
        assert!(reaches_all(&map, DEFAULT_POOL, PARITY));
        make_groups(&mut map, DEFAULT_POOL, Shape::Mirror(2)).unwrap();
        let has = |map: &Map, shape, target| {
            map.pool_groups(DEFAULT_POOL, shape).iter().any(|g| g.place(target).is_some())
        };
        let (away, new) = (TargetId(4), TargetId(5));
        assert!(has(&map, Shape::Mirror(2), away), "it has places: it is waited for");
        let target =
            Target { id: new, node: NodeId(4), state: TargetState::Up, ..map.targets[0].clone() };
        map.targets.push(target);
        replace(&mut map, away, new).unwrap();
        assert!(reaches_all(&map, DEFAULT_POOL, PARITY), "nobody misses the old one");
        make_groups(&mut map, DEFAULT_POOL, PARITY).unwrap();
        assert!(!has(&map, PARITY, away) && has(&map, PARITY, new));
        let wide = Shape::Parity { k: 4, m: 1 };
        make_groups(&mut map, DEFAULT_POOL, wide).unwrap();
        assert!(has(&map, wide, away), "without it there were too few");
    }

    #[test]
    fn only_what_nobody_needs_is_removed_and_its_number_is_not_given_again() {
        let mut map = map(5, Shape::Mirror(2));
        let gone = TargetId(5);
        assert_eq!(remove(&mut map, TargetId(77)), Err(Status::NOENT));
        assert_eq!(remove(&mut map, gone), Err(Status::BUSY));
        map.targets[4].state = TargetState::Down;
        assert_eq!(remove(&mut map, gone), Err(Status::NOTEMPTY));
        map.targets.push(target(6));
        replace(&mut map, gone, TargetId(6)).unwrap();
        remove(&mut map, gone).unwrap();
        assert!(map.target(gone).is_none());
    }

    #[test]
    fn a_copy_takes_a_place_and_is_synced_from_when_it_began() {
        let mut map = map(4, Shape::Mirror(2));
        let began = map.epoch;
        map.targets.push(target(9));
        let id = map.groups[0].id;
        let from = map.groups[0].members[0].target;
        let step = MemberMove { group: id, from, to: TargetId(9), since: began };
        let to_come = MemberMove { since: Epoch(map.epoch.0 + 1), ..step };
        assert_eq!(move_member(&mut map, &to_come), Err(Status::INVAL));
        move_member(&mut map, &step).unwrap();
        let standing = Standing::Syncing { since: began };
        assert_eq!(map.groups[0].members[0], Member::new(TargetId(9), standing));
        assert_eq!(move_member(&mut map, &step), Err(Status::NOENT), "once");
        let other = map.groups[0].members[1].target;
        let needed = MemberMove { from: other, to: from, ..step };
        assert_eq!(move_member(&mut map, &needed), Err(Status::BUSY), "the only live one");
    }

    #[test]
    fn more_targets_make_new_groups_for_new_files() {
        let mut map = map(4, PARITY);
        let old = map.groups.len();
        assert!(reaches_all(&map, DEFAULT_POOL, PARITY));
        map.targets.push(target(5));
        assert!(!reaches_all(&map, DEFAULT_POOL, PARITY));
        make_groups(&mut map, DEFAULT_POOL, PARITY).unwrap();
        let current = map.pool_groups(DEFAULT_POOL, PARITY);
        assert!(map.groups.len() > old && current.iter().all(|g| g.id.0 > old as u32));
        let wide = Shape::Parity { k: 8, m: 1 };
        assert_eq!(make_groups(&mut map, DEFAULT_POOL, wide), Err(Status::INVAL));
    }
}
