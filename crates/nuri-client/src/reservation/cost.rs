//! The most space that a write takes at each target that stores a part of it. Pure.

use nuri_proto::id::{ObjectId, TargetId};
use nuri_proto::layout::{Layout, Shape};
use nuri_proto::limit;
use nuri_proto::map::{Group, Map, Member};
use nuri_stripe::locate::{Piece, pieces};

use crate::writeback::buffer::BLOCK;

/// What a piece takes in a target's index, in two images of it: an extent, perhaps a chunk, and
/// what is held of its stripe.
const INDEX: u64 = 512;
/// Parity covers what is written together: at most twice as many bytes (`push_row.rs`).
const PARITY: u64 = 2;

/// Most that the dirty bytes of one block of a buffer can take at one target, however often they
/// are written before they are pushed.
pub(crate) const MOST: u64 = BLOCK + (64 << 10);

/// Bytes of a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Cost {
    pub(crate) target: TargetId,
    pub(crate) bytes: u64,
}

/// By the blocks of a write buffer.
pub(crate) type BlockCosts = Vec<(u64, Vec<Cost>)>;

/// What the bytes `at..at + len` of a file take, by the blocks of a write buffer that they lie in.
/// Nothing at members that are absent. And whether the map knows all of their groups: in others it
/// is nothing.
pub(crate) fn costs(
    map: &Map,
    layout: &Layout,
    object: ObjectId,
    (at, len): (u64, u64),
) -> (BlockCosts, bool) {
    let mut is_known = true;
    let end = at + len;
    let blocks = at / BLOCK..end.div_ceil(BLOCK);
    let of_block = |block: u64| {
        let from = at.max(block * BLOCK);
        let mut costs: Vec<Cost> = Vec::new();
        for piece in pieces(layout, object, from, end.min((block + 1) * BLOCK) - from) {
            match map.group(piece.group) {
                Some(group) => add(&mut costs, group, &piece),
                None => is_known = false,
            }
        }
        costs.iter_mut().for_each(|cost| cost.bytes = cost.bytes.min(MOST));
        (block, costs)
    };
    (blocks.map(of_block).collect(), is_known)
}

/// What bytes of the first block take at most at each target, of a file that has no place yet. It
/// will get one of some shape on some of them: as much as a mirror takes, or parity beside it
/// (RESERVE-5).
pub(crate) fn costs_anywhere(map: &Map, (at, len): (u64, u64)) -> BlockCosts {
    let bytes = ((at + len).next_multiple_of(limit::BLOCK) - at / limit::BLOCK * limit::BLOCK
        + INDEX)
        * PARITY;
    let parts = parts_of_targets(map);
    // One that has no group yet may get one before the file has its place.
    let takes_part = |target: &TargetId| parts.get(target.0 as usize) != Some(&Part::Absent);
    let targets = map.targets.iter().map(|target| target.id).filter(takes_part);
    vec![(0, targets.map(|target| Cost { target, bytes: bytes.min(MOST) }).collect())]
}

/// What targets do in their groups.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// There are none.
    No,
    Absent,
    /// In one at least.
    Writable,
}

/// By the targets' numbers. Looks at each group once: a map may have many.
fn parts_of_targets(map: &Map) -> Vec<Part> {
    let most = map.targets.iter().map(|target| target.id.0).max().unwrap_or(0);
    let mut parts = vec![Part::No; most as usize + 1];
    for group in &map.groups {
        let writable = group.writable();
        for (place, Member { target, .. }) in group.members.iter().enumerate() {
            match parts.get_mut(target.0 as usize) {
                Some(part) if writable.has(place) => *part = Part::Writable,
                Some(part) if *part == Part::No => *part = Part::Absent,
                _ => {}
            }
        }
    }
    parts
}

fn add(costs: &mut Vec<Cost>, group: &Group, piece: &Piece) {
    let unit = limit::BLOCK;
    let (start, end) = (u64::from(piece.offset), u64::from(piece.offset) + u64::from(piece.len));
    let own = end.next_multiple_of(unit) - start / unit * unit + INDEX;
    let writable = group.writable();
    for (place, member) in group.members.iter().enumerate().filter(|(i, _)| writable.has(*i)) {
        let bytes = match piece.shape {
            Shape::Stripe | Shape::Mirror(_) => own,
            Shape::Parity { k, .. } if place >= usize::from(k) => PARITY * own,
            Shape::Parity { .. } if place == piece.place => own,
            Shape::Parity { .. } => continue,
        };
        match costs.iter_mut().find(|cost| cost.target == member.target) {
            Some(cost) => cost.bytes += bytes,
            None => costs.push(Cost { target: member.target, bytes }),
        }
    }
}

#[cfg(test)]
mod tests {
    use nuri_proto::id::{BootId, Epoch, GroupId, Incarnation, NodeId};
    use nuri_proto::layout::{ChunkSize, LayoutPolicy};
    use nuri_proto::map::{Standing, Target, TargetState};

    use super::*;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;

    fn target(id: TargetId) -> Target {
        Target {
            id,
            node: NodeId(0),
            path: String::new(),
            state: TargetState::Up,
            size: 0,
            used: 0,
            incarnation: Incarnation(0),
            sequence: 0,
            boot: BootId(0),
            machine: BootId(0),
            retiring: false,
        }
    }

    /// Groups of so many targets each, group i from target 10 i on.
    fn map(shape: Shape, groups: u32) -> Map {
        let members = |group: u32| {
            let target = |place| Member::new(TargetId(10 * group + place), Standing::Live);
            (0..shape.members() as u32).map(target).collect()
        };
        let group = |id| Group { id: GroupId(id), epoch: Epoch(1), shape, members: members(id) };
        let groups: Vec<Group> = (0..groups).map(group).collect();
        let members = groups.iter().flat_map(|group| &group.members);
        let targets = members.map(|m| target(m.target)).collect();
        Map { groups, targets, ..Map::default() }
    }

    fn layout(shape: Shape, chunk: u64, groups: u32) -> Layout {
        let chunk_size = ChunkSize::try_from(chunk as u32).unwrap();
        let groups: Vec<_> = (0..groups).map(GroupId).collect();
        LayoutPolicy { shape, chunk_size, ..LayoutPolicy::default() }.instantiate(&groups, 0)
    }

    fn all(map: &Map, layout: &Layout, at: u64, len: u64) -> Vec<(u64, u32, u64)> {
        let costs = costs(map, layout, ObjectId(1), (at, len)).0;
        let flat = |(block, costs): (u64, Vec<Cost>)| {
            costs.into_iter().map(move |cost| (block, cost.target.0, cost.bytes))
        };
        costs.into_iter().flat_map(flat).collect()
    }

    #[test]
    fn a_byte_takes_a_block_at_its_target() {
        let (map, layout) = (map(Shape::Stripe, 2), layout(Shape::Stripe, MIB, 2));
        assert_eq!(all(&map, &layout, MIB + 5, 1), [(1, 10, 4096 + INDEX)]);
        assert_eq!(all(&map, &layout, 4095, 2), [(0, 0, 8192 + INDEX)]);
        let across = [(0, 0, 4096 + INDEX), (1, 10, 4096 + INDEX)];
        assert_eq!(all(&map, &layout, MIB - 1, 2), across);
    }

    #[test]
    fn short_chunks_of_one_target_are_one_cost_of_a_block() {
        let (map, layout) = (map(Shape::Stripe, 2), layout(Shape::Stripe, 64 * KIB, 2));
        let half = MIB / 2 + 8 * INDEX;
        assert_eq!(all(&map, &layout, 0, MIB), [(0, 0, half), (0, 10, half)]);
    }

    #[test]
    fn mirrors_take_it_at_each_copy_that_takes_part() {
        let mut map = map(Shape::Mirror(2), 1);
        let layout = layout(Shape::Mirror(2), MIB, 1);
        let one = 4096 + INDEX;
        assert_eq!(all(&map, &layout, 0, 100), [(0, 0, one), (0, 1, one)]);
        map.groups[0].members[1].standing = Standing::Absent { since: Epoch(2) };
        assert_eq!(all(&map, &layout, 0, 100), [(0, 0, one)]);
    }

    #[test]
    fn parity_takes_up_to_twice_as_much_but_no_more_than_a_block() {
        let shape = Shape::Parity { k: 2, m: 1 };
        let (map, layout) = (map(shape, 1), layout(shape, MIB, 1));
        let one = 4096 + INDEX;
        assert_eq!(all(&map, &layout, MIB, 100), [(1, 1, one), (1, 2, 2 * one)]);
        assert_eq!(all(&map, &layout, 0, MIB), [(0, 0, MIB + INDEX), (0, 2, MOST)]);
    }

    #[test]
    fn what_has_no_place_yet_takes_as_much_as_it_may_anywhere() {
        for shape in [Shape::Stripe, Shape::Mirror(2), Shape::Parity { k: 2, m: 1 }] {
            let (map, layout) = (map(shape, 2), layout(shape, MIB, 2));
            for (at, len) in [(0, 1), (4095, 2), (5000, 60_000)] {
                let [(0, anywhere)] = &costs_anywhere(&map, (at, len))[..] else { panic!("one") };
                for (_, target, bytes) in all(&map, &layout, at, len) {
                    let most = anywhere.iter().find(|cost| cost.target.0 == target).unwrap();
                    assert!(bytes <= most.bytes, "{shape:?}: {bytes} of {most:?}");
                }
            }
        }
    }

    #[test]
    fn targets_without_groups_may_get_some_and_absent_ones_take_no_part() {
        let mut map = map(Shape::Mirror(2), 1);
        map.groups[0].members[1].standing = Standing::Absent { since: Epoch(2) };
        map.targets.push(target(TargetId(7)));
        let [(0, costs)] = &costs_anywhere(&map, (0, 1))[..] else { panic!("one block") };
        assert_eq!(costs.iter().map(|cost| cost.target.0).collect::<Vec<_>>(), [0, 7]);
    }

    #[test]
    fn what_the_map_does_not_know_has_no_cost() {
        let layout = layout(Shape::Stripe, MIB, 2);
        let costs = |at, len| costs(&map(Shape::Stripe, 1), &layout, ObjectId(1), (at, len));
        assert!(!costs(MIB - 1, 2).1);
        assert_eq!(costs(MIB, 1), (vec![(1, vec![])], false));
        assert!(costs(MIB - 1, 1).1);
    }
}
