//! Chooses which groups get new files.

use nuri_proto::id::{GroupId, PoolId, TargetId};
use nuri_proto::layout::Shape;
use nuri_proto::map::{Group, Map, Standing, Target, TargetState};

/// Groups of the pool for new files of the shape: those with a nearly full target, and those that
/// miss a member, only where there are no others.
///
/// Where all have a nearly full target, the groups with most room get the files, so that all
/// targets are full at about the same time. Three targets have 4, 10 and 20 MiB left, in pairs: the
/// pair of 10 and 20 gets the next file, for the pairs with the first one have less than half of
/// its room.
pub(crate) fn groups(map: &Map, pool: PoolId, shape: Shape) -> Vec<GroupId> {
    let all = map.pool_groups(pool, shape);
    let whole: Vec<&Group> = all.iter().copied().filter(|g| is_whole(map, g)).collect();
    let has_room = |group: &&Group| {
        let is_nearly_full = |t| map.target(t).is_some_and(Target::is_nearly_full);
        !group.members.iter().any(|m| is_nearly_full(m.target))
    };
    let roomy: Vec<&Group> = whole.iter().copied().filter(has_room).collect();
    let choices = [roomy, most_room(map, &whole), whole, all];
    let found = choices.into_iter().find(|groups| !groups.is_empty()).unwrap_or_default();
    found.into_iter().map(|group| group.id).collect()
}

/// Whether all members have all bytes, serve, and are to stay.
fn is_whole(map: &Map, group: &Group) -> bool {
    let serves = |t| map.target(t).is_some_and(|t| t.state == TargetState::Up);
    let stays = |t| map.target(t).is_some_and(|t| !t.retiring);
    let well = |target: TargetId| serves(target) && stays(target);
    group.members.iter().all(|m| m.standing == Standing::Live && well(m.target))
}

/// Those whose fullest member has half of the most room or more.
fn most_room<'a>(map: &Map, groups: &[&'a Group]) -> Vec<&'a Group> {
    let room = |group: &Group| group.members.iter().map(|m| map.room_on(m.target)).min();
    let most = groups.iter().filter_map(|group| room(group)).max().unwrap_or(0);
    groups.iter().copied().filter(|group| room(group) >= Some(most / 2)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::standing::fixture;
    use crate::transition::DEFAULT_POOL;

    const SHAPE: Shape = Shape::Mirror(2);
    const SIZE: u64 = 1000;

    fn map(rooms: [u64; 3]) -> Map {
        let mut map = fixture::map(3, SHAPE);
        for (target, room) in map.targets.iter_mut().zip(rooms) {
            (target.size, target.used) = (SIZE, SIZE - room);
        }
        map
    }

    fn chosen(map: &Map) -> Vec<Vec<u32>> {
        let members = |id: GroupId| {
            let mut ids: Vec<_> =
                map.group(id).unwrap().members.iter().map(|m| m.target.0).collect();
            ids.sort_unstable();
            ids
        };
        let mut chosen: Vec<_> =
            groups(map, DEFAULT_POOL, SHAPE).into_iter().map(members).collect();
        chosen.sort();
        chosen.dedup();
        chosen
    }

    #[test]
    fn a_nearly_full_target_is_avoided() {
        assert_eq!(chosen(&map([500, 500, 500])), [[1, 2], [1, 3], [2, 3]]);
        assert_eq!(chosen(&map([50, 500, 500])), [[2, 3]]);
    }

    #[test]
    fn nearly_full_ones_are_full_at_the_same_time() {
        assert_eq!(chosen(&map([4, 10, 20])), [[2, 3]]);
        assert_eq!(chosen(&map([9, 10, 40])), [[1, 2], [1, 3], [2, 3]]);
        assert_eq!(chosen(&map([10, 10, 10])), [[1, 2], [1, 3], [2, 3]]);
    }

    #[test]
    fn without_another_choice_a_full_or_silent_one_is_chosen() {
        assert_eq!(chosen(&map([0, 0, 0])).len(), 3);
        let mut map = map([500, 500, 500]);
        map.targets.iter_mut().for_each(|t| t.state = TargetState::Down);
        assert_eq!(chosen(&map).len(), 3);
    }
}
