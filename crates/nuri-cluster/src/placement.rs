//! Which targets form the groups of a shape. Pure.
//!
//! A placement gives ordered lists of targets: data places first, then parity. Reads prefer the
//! first copy. No list has two targets of one node where there is a choice.

use std::collections::HashMap;

use nuri_proto::id::{NodeId, TargetId};
use nuri_proto::layout::Shape;
use nuri_proto::map::Placement;

/// Groups per target of a declustered placement: with more the pieces of a lost target lie on
/// more of the others, with fewer a file's layout is shorter.
const GROUPS_PER_TARGET: usize = 4;
/// Most groups made at once.
const MAX_GROUPS: usize = 256;

/// The largest target's room in parts; what differs by less is the same.
const PARTS: u64 = 16;
/// Can be divided by each number of parts.
const WHOLE: u64 = 720_720;

/// A target and the node that it must not share a group with.
pub type Candidate = (TargetId, NodeId);

/// How much room targets have, each compared with the largest.
#[derive(Default)]
pub struct Rooms(HashMap<TargetId, u64>);

impl Rooms {
    /// Of targets of these sizes.
    pub fn of(sizes: &[(TargetId, u64)]) -> Rooms {
        let most = sizes.iter().map(|(_, size)| *size).max().unwrap_or(0).max(1);
        let parts = |size: u64| {
            let rounded = u128::from(size) * u128::from(PARTS) + u128::from(most / 2);
            ((rounded / u128::from(most)) as u64).max(1)
        };
        Rooms(sizes.iter().map(|(target, size)| (*target, parts(*size))).collect())
    }

    /// How full so many places make a target, compared with others.
    pub fn load(&self, target: TargetId, places: usize) -> u64 {
        places as u64 * WHOLE / self.parts(target)
    }

    /// From 1 to [`PARTS`].
    fn parts(&self, target: TargetId) -> u64 {
        self.0.get(&target).copied().unwrap_or(PARTS)
    }
}

/// Makes the groups of a shape. Empty where there are fewer targets than members. Targets with more
/// room have more places, where the placement leaves a choice.
pub fn place(
    kind: Placement,
    shape: Shape,
    targets: &[Candidate],
    rooms: &Rooms,
) -> Vec<Vec<TargetId>> {
    let members = shape.members();
    if targets.len() < members || targets.is_empty() {
        return Vec::new();
    }
    let ring = interleave(targets);
    if members == 1 {
        return alone(targets, rooms);
    }
    match kind {
        Placement::Rotated | Placement::Chained => rotate(&ring, shape),
        Placement::Orthogonal if matches!(shape, Shape::Mirror(2)) => orthogonal(&ring),
        _ if targets.len() == members => rotate(&ring, shape),
        _ => in_turn(decluster(&ring, members, rooms), shape.data()),
    }
}

/// Groups of one target: one of each, or several of those with several times the room.
fn alone(targets: &[Candidate], rooms: &Rooms) -> Vec<Vec<TargetId>> {
    // Quarters of the largest are near enough.
    let quarters = |(target, _): &Candidate| ((rooms.parts(*target) + 2) / 4).max(1);
    let common = targets.iter().map(quarters).fold(0, gcd).max(1);
    let turns = targets.iter().map(quarters).max().unwrap_or(0) / common;
    let of_turn = |turn| targets.iter().filter(move |t| turn < quarters(t) / common);
    (0..turns).flat_map(of_turn).map(|(target, _)| vec![*target]).collect()
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Targets in an order in which neighbours lie on different nodes as far as possible.
fn interleave(targets: &[Candidate]) -> Vec<Candidate> {
    let mut by_node: Vec<(NodeId, Vec<Candidate>)> = Vec::new();
    for target in targets {
        match by_node.iter_mut().find(|(node, _)| *node == target.1) {
            Some((_, list)) => list.push(*target),
            None => by_node.push((target.1, vec![*target])),
        }
    }
    by_node.sort_by_key(|(node, list)| (std::cmp::Reverse(list.len()), *node));
    let most = by_node.first().map_or(0, |(_, list)| list.len());
    (0..most).flat_map(|i| by_node.iter().filter_map(move |(_, l)| l.get(i))).copied().collect()
}

/// One group from each target on. Each begins where the data of the one before ends, so that a
/// stream meets all targets in turn (RAID-5's left-symmetric order).
fn rotate(ring: &[Candidate], shape: Shape) -> Vec<Vec<TargetId>> {
    let mut firsts: Vec<usize> = Vec::new();
    let mut next = 0;
    while firsts.len() < ring.len() {
        // Around the ring it may come back early, to one that is taken.
        while firsts.contains(&next) {
            next = (next + 1) % ring.len();
        }
        firsts.push(next);
        next = (next + shape.data()) % ring.len();
    }
    firsts.into_iter().map(|first| pick(ring, first, shape.members())).collect()
}

/// `members` targets from `first` on around the ring, of different nodes while there are any.
fn pick(ring: &[Candidate], first: usize, members: usize) -> Vec<TargetId> {
    let mut group: Vec<Candidate> = Vec::new();
    let turn = || (0..ring.len()).map(|i| ring[(first + i) % ring.len()]);
    for fresh_node in [true, false] {
        for candidate in turn() {
            let taken = group.contains(&candidate);
            let shares = group.iter().any(|(_, node)| *node == candidate.1);
            if group.len() < members && !taken && !(fresh_node && shares) {
                group.push(candidate);
            }
        }
    }
    group.into_iter().map(|(target, _)| target).collect()
}

/// Row r: targets of other nodes than r's, all while there are not too many, each have a group
/// whose second copy lies on r.
fn orthogonal(ring: &[Candidate]) -> Vec<Vec<TargetId>> {
    let mut groups = Vec::new();
    let most = (MAX_GROUPS / ring.len()).max(1);
    for (row, (target, node)) in ring.iter().enumerate() {
        let turn = || (1..ring.len()).map(|i| ring[(row + i) % ring.len()]);
        let mut firsts: Vec<_> = turn().filter(|c| c.1 != *node).collect();
        if firsts.is_empty() {
            firsts = turn().collect();
        }
        firsts.truncate(most);
        groups.extend(firsts.iter().map(|first| vec![first.0, *target]));
    }
    groups
}

/// Fills groups one by one with the target that has the fewest places for its room so far and
/// shares the fewest groups with those chosen already.
fn decluster(ring: &[Candidate], members: usize, rooms: &Rooms) -> Vec<Vec<TargetId>> {
    let count = (ring.len() * GROUPS_PER_TARGET).min(MAX_GROUPS.max(ring.len()));
    let mut load: HashMap<TargetId, usize> = HashMap::new();
    let mut pairs: HashMap<(TargetId, TargetId), usize> = HashMap::new();
    let mut at_place: HashMap<(TargetId, usize), usize> = HashMap::new();
    let mut groups = Vec::new();
    for number in 0..count {
        let mut group: Vec<Candidate> = Vec::new();
        for place in 0..members {
            let spread = ring.iter().filter(|c| group.iter().all(|g| g.1 != c.1)).count();
            let allowed = |c: &&Candidate| {
                !group.contains(c) && (spread == 0 || group.iter().all(|g| g.1 != c.1))
            };
            let cost = |c: &&Candidate| {
                let shared: usize =
                    group.iter().map(|g| pairs.get(&pair(g.0, c.0)).copied().unwrap_or(0)).sum();
                let filled = rooms.load(c.0, load.get(&c.0).copied().unwrap_or(0) + 1);
                let here = at_place.get(&(c.0, place)).copied().unwrap_or(0);
                (filled, shared, here, scatter(number, c.0))
            };
            if let Some(best) = ring.iter().filter(allowed).min_by_key(cost) {
                group.iter().for_each(|g| *pairs.entry(pair(g.0, best.0)).or_default() += 1);
                *load.entry(best.0).or_default() += 1;
                *at_place.entry((best.0, place)).or_default() += 1;
                group.push(*best);
            }
        }
        groups.push(group.into_iter().map(|(target, _)| target).collect());
    }
    groups
}

/// Puts groups in an order in which a stream comes back to a target as late as possible.
fn in_turn(mut groups: Vec<Vec<TargetId>>, data: usize) -> Vec<Vec<TargetId>> {
    let mut last: HashMap<TargetId, usize> = HashMap::new();
    let mut ordered = Vec::new();
    while !groups.is_empty() {
        let met = |t: &TargetId| last.get(t).copied().unwrap_or(0);
        let latest = |(at, group): &(usize, &Vec<TargetId>)| {
            let latest = group[..data].iter().map(met).max();
            (latest, group[..data].iter().map(met).sum::<usize>(), *at)
        };
        let next = groups.iter().enumerate().min_by_key(latest).map_or(0, |(at, _)| at);
        let group = groups.remove(next);
        ordered.push(group);
        let turn = ordered.len();
        ordered[turn - 1][..data].iter().for_each(|t| {
            last.insert(*t, turn);
        });
    }
    ordered
}

fn pair(a: TargetId, b: TargetId) -> (TargetId, TargetId) {
    (a.min(b), a.max(b))
}

/// Breaks ties differently from group to group.
fn scatter(group: usize, target: TargetId) -> u64 {
    nuri_proto::checksum::mix(&[group as u64, u64::from(target.0)])
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const ALL: [Placement; 4] =
        [Placement::Rotated, Placement::Chained, Placement::Orthogonal, Placement::Declustered];

    fn targets(nodes: u32, each: u32) -> Vec<Candidate> {
        let one = |n, i| (TargetId(n * each + i + 1), NodeId(n + 1));
        (0..nodes).flat_map(|n| (0..each).map(move |i| one(n, i))).collect()
    }

    fn shapes() -> Vec<Shape> {
        let parity = |k, m| Shape::Parity { k, m };
        vec![Shape::Mirror(2), Shape::Mirror(3), parity(3, 1), parity(4, 2), parity(2, 2)]
    }

    fn for_all(check: impl Fn(Placement, Shape, &[Candidate], &[Vec<TargetId>])) {
        for (nodes, each) in [(1, 6), (2, 3), (4, 1), (4, 2), (8, 1), (6, 4), (13, 1), (64, 1)] {
            let targets = targets(nodes, each);
            for kind in ALL {
                for shape in shapes().into_iter().filter(|s| s.members() <= targets.len()) {
                    check(kind, shape, &targets, &place(kind, shape, &targets, &Rooms::default()));
                }
            }
        }
    }

    #[test]
    fn a_stream_meets_all_targets_in_turn() {
        let shape = Shape::Parity { k: 3, m: 1 };
        let groups = place(Placement::Declustered, shape, &targets(4, 1), &Rooms::default());
        let chunks: Vec<_> = groups.iter().flat_map(|g| &g[..3]).collect();
        let turns: Vec<HashSet<_>> = chunks.chunks(4).map(|c| c.iter().collect()).collect();
        assert!(turns.len() == 3 && turns.iter().all(|turn| turn.len() == 4), "{chunks:?}");
        let groups =
            place(Placement::Declustered, Shape::Mirror(2), &targets(4, 1), &Rooms::default());
        let firsts: Vec<_> = groups.iter().map(|g| g[0]).collect();
        let turns: Vec<HashSet<_>> = firsts.chunks(4).map(|c| c.iter().collect()).collect();
        assert!(turns.iter().all(|turn| turn.len() == 4), "{firsts:?}");
    }

    #[test]
    fn members_differ_and_so_do_their_nodes_where_there_is_a_choice() {
        for_all(|kind, shape, targets, groups| {
            let node: HashMap<_, _> = targets.iter().copied().collect();
            let nodes: HashSet<_> = node.values().collect();
            for group in groups {
                assert_eq!(group.len(), shape.members());
                let distinct: HashSet<_> = group.iter().collect();
                assert_eq!(distinct.len(), group.len());
                let apart: HashSet<_> = group.iter().map(|t| node[t]).collect();
                let possible = nodes.len().min(shape.members());
                assert_eq!(apart.len(), possible, "{kind:?} {shape}: {group:?}");
            }
        });
    }

    #[test]
    fn every_target_has_its_share_of_places() {
        for_all(|kind, shape, targets, groups| {
            let count = |t: TargetId| groups.iter().filter(|g| g.contains(&t)).count();
            let counts: Vec<_> = targets.iter().map(|(t, _)| count(*t)).collect();
            let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
            assert!(*least > 0 && *most <= least * 2, "{kind:?} {shape} {counts:?}");
            if kind == Placement::Declustered {
                assert!(most - least <= 1, "{shape} {counts:?}");
            }
        });
    }

    #[test]
    fn a_rebuild_reads_from_all_others() {
        let targets = targets(8, 1);
        for shape in shapes() {
            let groups = place(Placement::Declustered, shape, &targets, &Rooms::default());
            for (lost, _) in &targets {
                let mut share: HashMap<TargetId, usize> = HashMap::new();
                for group in groups.iter().filter(|g| g.contains(lost)) {
                    group
                        .iter()
                        .filter(|t| *t != lost)
                        .for_each(|t| *share.entry(*t).or_default() += 1);
                }
                let most = share.values().max().unwrap();
                let least = share.values().min().unwrap();
                assert_eq!(share.len(), 7, "{shape}");
                assert!(*most <= 3 * least, "{shape}: {share:?}");
            }
        }
    }

    #[test]
    fn the_copies_of_a_row_lie_together() {
        let groups =
            place(Placement::Orthogonal, Shape::Mirror(2), &targets(4, 1), &Rooms::default());
        assert_eq!(groups.len(), 12);
        for row in groups.chunks(3) {
            assert!(row.iter().all(|g| g[1] == row[0][1]));
        }
    }

    #[test]
    fn too_few_targets_make_no_group() {
        let (shape, rooms) = (Shape::Mirror(3), Rooms::default());
        assert!(place(Placement::Declustered, shape, &targets(2, 1), &rooms).is_empty());
    }

    fn places(groups: &[Vec<TargetId>], targets: &[Candidate]) -> Vec<usize> {
        let count = |t: TargetId| groups.iter().filter(|g| g.contains(&t)).count();
        targets.iter().map(|(t, _)| count(*t)).collect()
    }

    #[test]
    fn places_follow_the_room_of_targets() {
        let targets = targets(6, 1);
        let sizes = [100, 100, 100, 100, 50, 25];
        let sizes: Vec<_> = targets.iter().zip(sizes).map(|((t, _), size)| (*t, size)).collect();
        let rooms = Rooms::of(&sizes);
        for shape in [Shape::Mirror(2), Shape::Parity { k: 2, m: 1 }] {
            let groups = place(Placement::Declustered, shape, &targets, &rooms);
            let places = places(&groups, &targets);
            let (all, room) = (places.iter().sum::<usize>() as f64, 475.0);
            for (places, (target, size)) in places.iter().zip(&sizes) {
                let share = all * *size as f64 / room;
                assert!((*places as f64 - share).abs() < 1.2, "{shape} {target}: {places} {share}");
            }
        }
        let groups = place(Placement::Declustered, Shape::Stripe, &targets, &rooms);
        assert_eq!(places(&groups, &targets), [4, 4, 4, 4, 2, 1]);
    }

    #[test]
    fn small_differences_of_room_make_none_of_places() {
        let targets = targets(4, 1);
        let sizes: Vec<_> = targets.iter().map(|(t, _)| (*t, 1000 - u64::from(t.0) * 5)).collect();
        for shape in [Shape::Stripe, Shape::Mirror(2), Shape::Parity { k: 2, m: 1 }] {
            let unequal = place(Placement::Declustered, shape, &targets, &Rooms::of(&sizes));
            let equal = place(Placement::Declustered, shape, &targets, &Rooms::default());
            assert_eq!(unequal, equal, "{shape}");
        }
    }
}
