//! Which places of groups move to which targets, to empty a target or to spread the load. Pure.

use std::collections::HashMap;

use nuri_proto::id::{GroupId, TargetId};
use nuri_proto::map::{Group, Map, Target, TargetState};

use crate::placement::Rooms;

/// A place of a group goes from one target to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    pub group: GroupId,
    pub from: TargetId,
    pub to: TargetId,
}

/// Places of each target, as they will be, beside the room that it has.
struct Places {
    counts: HashMap<TargetId, usize>,
    rooms: Rooms,
}

impl Places {
    fn of(map: &Map) -> Places {
        let mut counts: HashMap<_, _> = map.targets.iter().map(|t| (t.id, 0)).collect();
        for member in redundant(map).flat_map(|g| &g.members) {
            *counts.entry(member.target).or_default() += 1;
        }
        let sizes: Vec<_> = map.targets.iter().map(|t| (t.id, t.size)).collect();
        Places { counts, rooms: Rooms::of(&sizes) }
    }

    /// How full the target is for its room, with so many places more.
    fn load(&self, target: TargetId, more: usize) -> u64 {
        let places = self.counts.get(&target).copied().unwrap_or(0);
        self.rooms.load(target, places + more)
    }
}

/// Empties a target. `Err` names a group for which no other target can take the place.
///
/// # Errors
/// The first group without a choice.
pub fn empty(map: &Map, from: TargetId) -> Result<Vec<Step>, GroupId> {
    let mut places = Places::of(map);
    let mut steps = Vec::new();
    for group in redundant(map).filter(|g| g.place(from).is_some()) {
        let to = best(map, group, from, &places).ok_or(group.id)?;
        *places.counts.entry(to).or_default() += 1;
        steps.push(Step { group: group.id, from, to });
    }
    Ok(steps)
}

/// Moves places from the targets that are fullest for their room to those that are least so, until
/// no move is left that makes the fuller of its two targets less full. A target of half the room
/// ends with half the places.
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
    let places = Places::of(map);
    let mut by_load: Vec<TargetId> = places.counts.keys().copied().collect();
    by_load.sort_by_key(|t| (std::cmp::Reverse(places.load(*t, 0)), *t));
    for from in by_load {
        for group in redundant(map).filter(|g| g.place(from).is_some()) {
            let to = best(map, group, from, &places);
            if let Some(to) = to.filter(|to| places.load(*to, 1) < places.load(from, 0)) {
                return Some(Step { group: group.id, from, to });
            }
        }
    }
    None
}

fn redundant(map: &Map) -> impl Iterator<Item = &Group> {
    map.groups.iter().filter(|g| g.shape.is_redundant())
}

/// The target that would be least full for its room, of those that may take this place: of a node
/// that has no other member of the group, where there is one.
fn best(map: &Map, group: &Group, from: TargetId, places: &Places) -> Option<TargetId> {
    let node_of = |t: TargetId| map.target(t).map(|t| t.node);
    let others = || group.members.iter().map(|m| m.target).filter(|t| *t != from);
    let takes =
        |t: &&Target| t.state == TargetState::Up && !t.retiring && group.place(t.id).is_none();
    let shares = |t: &Target| others().any(|other| node_of(other) == Some(t.node));
    let load = |t: &&Target| (shares(t), places.load(t.id, 1), t.id);
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

    #[test]
    fn places_follow_the_room_of_targets() {
        let mut map = map(6);
        for target in &mut map.targets {
            // Two of a third of the others' size.
            target.size = if target.id.0 <= 2 { 100 << 30 } else { 300 << 30 };
        }
        let before = places_of(&map, 1) + places_of(&map, 2);
        for step in spread(&map) {
            let group = map.groups.iter_mut().find(|g| g.id == step.group).unwrap();
            let place = group.place(step.from).unwrap();
            assert!(group.place(step.to).is_none());
            group.members[place].target = step.to;
        }
        let all = map.groups.len() * 3;
        let small = places_of(&map, 1) + places_of(&map, 2);
        // 2 parts of 2 + 4 x 3.
        let share = all * 2 / 14;
        assert!(before > share + 1 && small.abs_diff(share) <= 2, "{before} {small} {share}");
        assert!(spread(&map).is_empty());
    }

    fn places_of(map: &Map, target: u32) -> usize {
        map.groups.iter().filter(|g| g.place(TargetId(target)).is_some()).count()
    }
}
