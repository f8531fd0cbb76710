//! Which places of groups move where: to empty a target, or to spread the load. Pure.

use std::collections::HashMap;

use nuri_proto::id::{GroupId, TargetId};
use nuri_proto::map::{Group, Map, Target, TargetState};

/// A place of a group goes from one target to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    pub group: GroupId,
    pub from: TargetId,
    pub to: TargetId,
}

/// Places of each target, as they will be.
type Places = HashMap<TargetId, usize>;

/// Empties a target. `Err` names a group for which no other target can take the place.
///
/// # Errors
/// The first group without a choice.
pub fn empty(map: &Map, from: TargetId) -> Result<Vec<Step>, GroupId> {
    let mut places = count(map);
    let mut steps = Vec::new();
    for group in redundant(map).filter(|g| g.place(from).is_some()) {
        let to = best(map, group, from, &places).ok_or(group.id)?;
        *places.entry(to).or_default() += 1;
        steps.push(Step { group: group.id, from, to });
    }
    Ok(steps)
}

/// Moves places from the targets that have most to those that have fewest, until none has two more
/// than another that could take one.
pub fn spread(map: &Map) -> Vec<Step> {
    let mut map = map.clone();
    let mut steps = Vec::new();
    while let Some(step) = next_spread(&map) {
        let mut groups = map.groups.iter_mut();
        if let Some(group) = groups.find(|g| g.id == step.group)
            && let Some(place) = group.place(step.from)
        {
            group.members[place].target = step.to;
        }
        steps.push(step);
    }
    steps
}

fn next_spread(map: &Map) -> Option<Step> {
    let places = count(map);
    let of = |t: TargetId| places.get(&t).copied().unwrap_or(0);
    let mut by_load: Vec<TargetId> = places.keys().copied().collect();
    by_load.sort_by_key(|t| (std::cmp::Reverse(of(*t)), *t));
    for from in by_load {
        for group in redundant(map).filter(|g| g.place(from).is_some()) {
            let to = best(map, group, from, &places);
            if let Some(to) = to.filter(|to| of(*to) + 1 < of(from)) {
                return Some(Step { group: group.id, from, to });
            }
        }
    }
    None
}

fn redundant(map: &Map) -> impl Iterator<Item = &Group> {
    map.groups.iter().filter(|g| g.shape.is_redundant())
}

fn count(map: &Map) -> Places {
    let mut places: Places = map.targets.iter().map(|t| (t.id, 0)).collect();
    for member in redundant(map).flat_map(|g| &g.members) {
        *places.entry(member.target).or_default() += 1;
    }
    places
}

/// The target with the fewest places that may take this one: of a node that has no other member of
/// the group, where there is one.
fn best(map: &Map, group: &Group, from: TargetId, places: &Places) -> Option<TargetId> {
    let node_of = |t: TargetId| map.target(t).map(|t| t.node);
    let others = || group.members.iter().map(|m| m.target).filter(|t| *t != from);
    let takes =
        |t: &&Target| t.state == TargetState::Up && !t.retiring && group.place(t.id).is_none();
    let shares = |t: &Target| others().any(|other| node_of(other) == Some(t.node));
    let load = |t: &&Target| (shares(t), places.get(&t.id).copied().unwrap_or(0), t.id);
    let chosen = map.targets.iter().filter(takes).min_by_key(load)?;
    // A move never makes two members share a node that did not.
    let shared = || others().any(|other| node_of(other) == node_of(from));
    (!shares(chosen) || shared()).then_some(chosen.id)
}

#[cfg(test)]
mod tests {
    use nuri_proto::layout::Shape;

    use super::*;
    use crate::standing::fixture::{self, target};

    fn map(targets: u32) -> Map {
        fixture::map(targets, Shape::Parity { k: 2, m: 1 })
    }

    #[test]
    fn an_emptied_target_has_no_place_left_and_the_others_share() {
        let map = map(6);
        let steps = empty(&map, TargetId(2)).unwrap();
        let mine = map.groups.iter().filter(|g| g.place(TargetId(2)).is_some());
        assert_eq!(steps.len(), mine.count());
        for step in &steps {
            assert!(map.group(step.group).unwrap().place(step.to).is_none());
        }
        let most = |t| steps.iter().filter(|s| s.to == TargetId(t)).count();
        assert!((1..=6).all(|t| most(t) <= steps.len().div_ceil(5) + 1));
    }

    #[test]
    fn without_a_spare_target_nothing_moves() {
        let map = map(3);
        assert_eq!(empty(&map, TargetId(1)), Err(map.groups[0].id));
        assert!(spread(&map).is_empty());
    }

    #[test]
    fn a_new_target_gets_its_share() {
        let mut map = map(5);
        map.targets.push(target(6));
        let steps = spread(&map);
        let gets = steps.iter().filter(|s| s.to == TargetId(6)).count();
        assert_eq!(gets, map.groups.len() * 3 / 6, "{steps:?}");
        assert!(steps.iter().all(|s| s.to == TargetId(6)));
    }
}
