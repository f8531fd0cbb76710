//! What a sound map must be like. The map is checked before a space starts, and by `nuri doctor`.
//! Pure.
//!
//! A node may have reported to an earlier program what nothing real would report, and a disk may
//! have kept the map wrongly. A map that is not sound is repaired while the space is stopped. Facts
//! that only nodes report (addresses, sizes, paths) are forgotten, because the nodes report them
//! again when they join. Only the map knows which targets a group has. A fault there is reported
//! and not repaired.

use std::collections::BTreeSet;

use nuri_proto::id::{Epoch, GroupId, NodeId, PoolId, TargetId};
use nuri_proto::map::{Group, Map, Node, Run, Standing};

use crate::credible::{LARGEST, LONGEST_PATH, is_address};

/// Of a node whose address is not known until it joins.
const NOWHERE: &str = "0.0.0.0:1";

/// One fault of a map.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MapProblem {
    #[error("node {0} has no address that can be one")]
    Address(NodeId),
    #[error("node {0} is there twice")]
    NodeTwice(NodeId),
    #[error("the last node that was numbered is {says}, and there is node {highest}")]
    LastNode { says: NodeId, highest: NodeId },
    #[error("the metadata is on node {0}, which is not there")]
    Meta(NodeId),
    #[error("target {0} is there twice")]
    TargetTwice(TargetId),
    #[error("target {target} is on node {node}, which is not there")]
    TargetOfNoNode { target: TargetId, node: NodeId },
    #[error("target {0} has a size or a path that no target has")]
    TargetSays(TargetId),
    #[error("group {group} was changed in epoch {epoch}, and the map's is {map}")]
    Epoch { group: GroupId, epoch: Epoch, map: Epoch },
    #[error("pool {0} is there twice")]
    PoolTwice(PoolId),
    #[error("pool {pool} lists group {group}, which is not there, or is listed already")]
    Listed { pool: PoolId, group: GroupId },

    #[error("group {0} is there twice")]
    GroupTwice(GroupId),
    #[error("group {group} has {members} members, its shape has {shape}")]
    Members { group: GroupId, members: usize, shape: usize },
    #[error("group {group} has target {target} twice")]
    MemberTwice { group: GroupId, target: TargetId },
    #[error("no file can have the shape of group {0}")]
    Shape(GroupId),
}

impl MapProblem {
    /// Nothing else tells how it was.
    pub fn is_lasting(&self) -> bool {
        use MapProblem::{GroupTwice, MemberTwice, Members, Shape};
        matches!(self, GroupTwice(_) | Members { .. } | MemberTwice { .. } | Shape(_))
    }
}

/// What is wrong with the map.
pub fn check(map: &Map) -> Vec<MapProblem> {
    let mut found = Vec::new();
    nodes(map, &mut found);
    targets(map, &mut found);
    groups(map, &mut found);
    pools(map, &mut found);
    found
}

/// Mends what can be. Returns what was found.
pub fn repair(map: &mut Map) -> Vec<MapProblem> {
    let found = check(map);
    found.iter().for_each(|problem| mend(map, problem));
    found
}

/// Those that come a second time.
fn twice<T: Ord + Copy>(ids: impl Iterator<Item = T>) -> Vec<T> {
    let mut seen = BTreeSet::new();
    ids.filter(|id| !seen.insert(*id)).collect()
}

fn nodes(map: &Map, found: &mut Vec<MapProblem>) {
    let lost = map.nodes.iter().filter(|node| !is_address(&node.address));
    found.extend(lost.map(|node| MapProblem::Address(node.id)));
    found.extend(twice(map.nodes.iter().map(|n| n.id)).into_iter().map(MapProblem::NodeTwice));
    // A map of an earlier program says none.
    let (says, highest) = (map.last_node, map.nodes.iter().map(|n| n.id).max().unwrap_or_default());
    if says < highest && says != NodeId::default() {
        found.push(MapProblem::LastNode { says, highest });
    }
    let meta = map.meta.filter(|node| map.node(*node).is_none());
    found.extend(meta.map(MapProblem::Meta));
}

fn targets(map: &Map, found: &mut Vec<MapProblem>) {
    found.extend(twice(map.targets.iter().map(|t| t.id)).into_iter().map(MapProblem::TargetTwice));
    for target in &map.targets {
        if map.node(target.node).is_none() {
            let (target, node) = (target.id, target.node);
            found.push(MapProblem::TargetOfNoNode { target, node });
        }
        if target.size > LARGEST || target.used > LARGEST || target.path.len() > LONGEST_PATH {
            found.push(MapProblem::TargetSays(target.id));
        }
    }
}

fn groups(map: &Map, found: &mut Vec<MapProblem>) {
    found.extend(twice(map.groups.iter().map(|g| g.id)).into_iter().map(MapProblem::GroupTwice));
    for Group { id, epoch, shape, members } in &map.groups {
        let group = *id;
        if shape.check().is_err() {
            found.push(MapProblem::Shape(group));
        } else if members.len() != shape.members() {
            let (members, shape) = (members.len(), shape.members());
            found.push(MapProblem::Members { group, members, shape });
        }
        let again = twice(members.iter().map(|m| m.target));
        found.extend(again.into_iter().map(|target| MapProblem::MemberTwice { group, target }));
        let since = members.iter().map(|m| match m.standing {
            Standing::Live => Epoch(0),
            Standing::Absent { since } | Standing::Syncing { since } => since,
        });
        let (epoch, map) = (since.fold(*epoch, Epoch::max), map.epoch);
        if epoch > map {
            found.push(MapProblem::Epoch { group, epoch, map });
        }
    }
}

fn pools(map: &Map, found: &mut Vec<MapProblem>) {
    found.extend(twice(map.pools.iter().map(|p| p.id)).into_iter().map(MapProblem::PoolTwice));
    for pool in &map.pools {
        let unknown = pool.groups.iter().filter(|id| map.group(**id).is_none()).copied();
        let wrong: BTreeSet<_> = unknown.chain(twice(pool.groups.iter().copied())).collect();
        found.extend(wrong.into_iter().map(|group| MapProblem::Listed { pool: pool.id, group }));
    }
}

/// Keeps the first of those with one number.
fn keep_first<T, I: Ord>(list: &mut Vec<T>, id: impl Fn(&T) -> I) {
    let mut seen = BTreeSet::new();
    list.retain(|entry| seen.insert(id(entry)));
}

fn mend(map: &mut Map, problem: &MapProblem) {
    match *problem {
        MapProblem::Address(id) => {
            let lost = map.nodes.iter_mut().filter(|node| node.id == id);
            lost.filter(|n| !is_address(&n.address)).for_each(|n| n.address = NOWHERE.into());
        }
        MapProblem::NodeTwice(_) => keep_first(&mut map.nodes, |node| node.id),
        MapProblem::LastNode { highest, .. } => map.last_node = highest,
        MapProblem::Meta(_) => map.meta = map.nodes.iter().map(|n| n.id).min(),
        MapProblem::TargetTwice(_) => keep_first(&mut map.targets, |target| target.id),
        MapProblem::TargetOfNoNode { node, .. } => {
            if map.node(node).is_none() {
                let (address, run) = (NOWHERE.into(), Run::default());
                map.nodes.push(Node { id: node, address, pid: 0, up: false, run });
                map.nodes.sort_by_key(|n| n.id);
                map.last_node = map.last_node.max(node);
            }
        }
        MapProblem::TargetSays(id) => {
            for target in map.targets.iter_mut().filter(|t| t.id == id) {
                (target.size, target.used) = (0, 0);
                target.path.clear();
            }
        }
        MapProblem::Epoch { epoch, .. } => map.epoch = map.epoch.max(epoch),
        MapProblem::PoolTwice(_) => keep_first(&mut map.pools, |pool| pool.id),
        MapProblem::Listed { pool, .. } => {
            let known: BTreeSet<_> = map.groups.iter().map(|g| g.id).collect();
            for pool in map.pools.iter_mut().filter(|p| p.id == pool) {
                pool.groups.retain(|id| known.contains(id));
                keep_first(&mut pool.groups, |id| *id);
            }
        }
        MapProblem::GroupTwice(_)
        | MapProblem::Members { .. }
        | MapProblem::MemberTwice { .. }
        | MapProblem::Shape(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use nuri_io::rng::Rng;
    use nuri_proto::id::{BootId, Incarnation};
    use nuri_proto::layout::Shape;
    use nuri_proto::op::cluster::{Join, JoinTarget, MetaRole};

    use super::*;
    use crate::{standing, transition};

    /// Three nodes with two targets each, and groups of two shapes.
    fn map() -> Map {
        let mut map = Map::default();
        for node in 1..=3u64 {
            let target = |place: u64| JoinTarget {
                id: None,
                incarnation: Incarnation(node * 10 + place),
                sequence: 1,
                boot: BootId(1),
                is_doubted: false,
                map_epoch: Epoch(0),
                path: "/t".into(),
                size: 1 << 30,
                used: 0,
            };
            let join = Join {
                node: None,
                address: format!("10.0.0.{node}:7000"),
                pid: 1,
                serves_meta: if node == 1 { MetaRole::Owner } else { MetaRole::None },
                run: Run::default(),
                instance: node,
                machine: BootId(1),
                targets: (0..2).map(target).collect(),
            };
            transition::join(&mut map, &join).unwrap();
        }
        standing::make_groups(&mut map, transition::DEFAULT_POOL, Shape::Mirror(2)).unwrap();
        map
    }

    fn any<'a, T>(list: &'a mut [T], rng: &mut Rng) -> Option<&'a mut T> {
        let len = list.len() as u64;
        (len > 0).then(|| &mut list[rng.below(len.max(1)) as usize])
    }

    /// Something that a map should not say.
    fn damage(map: &mut Map, rng: &mut Rng) {
        match rng.below(10) {
            0 => any(&mut map.nodes, rng).into_iter().for_each(|n| n.address = "x".repeat(150_000)),
            1 => map.nodes.extend_from_within(..1),
            2 => map.last_node = NodeId(1),
            3 => map.meta = Some(NodeId(60)),
            4 => map.targets.extend_from_within(1..2),
            5 => any(&mut map.targets, rng).into_iter().for_each(|t| t.node = NodeId(9)),
            6 => any(&mut map.targets, rng).into_iter().for_each(|t| t.size = u64::MAX),
            7 => any(&mut map.groups, rng).into_iter().for_each(|g| g.epoch = Epoch(1000)),
            8 => map.pools.iter_mut().for_each(|p| p.groups.extend([GroupId(99), GroupId(1)])),
            _ => map.pools.extend_from_within(..),
        }
    }

    #[test]
    fn what_can_be_mended_is() {
        assert_eq!(check(&map()), []);
        for seed in 0..500 {
            let (mut rng, mut damaged) = (Rng::new(seed), map());
            for _ in 0..=rng.below(5) {
                damage(&mut damaged, &mut rng);
            }
            let found = repair(&mut damaged);
            assert!(!found.is_empty(), "seed {seed}");
            assert_eq!(check(&damaged), [], "seed {seed}, after {found:?}");
            assert_eq!(damaged.groups.len(), map().groups.len());
            assert_eq!(damaged.targets.len(), map().targets.len());
        }
    }

    #[test]
    fn what_groups_are_is_not_guessed() {
        let spoils: [fn(&mut Map); 4] = [
            |map| map.groups.extend_from_within(..1),
            |map| map.groups[7].members.truncate(1),
            |map| map.groups[7].members[1] = map.groups[7].members[0],
            |map| map.groups[7].shape = Shape::Parity { k: 200, m: 9 },
        ];
        for spoil in spoils {
            let mut map = map();
            spoil(&mut map);
            let found = repair(&mut map);
            assert!(found.iter().any(MapProblem::is_lasting), "{found:?}");
            assert_eq!(check(&map), found);
        }
    }

    #[test]
    fn a_node_without_an_address_joins_again_with_its_targets() {
        let mut damaged = map();
        damaged.nodes[1].address = "no address".into();
        damaged.targets[2].node = NodeId(9);
        repair(&mut damaged);
        let own = map().targets[2].clone();
        let target = JoinTarget {
            id: Some(own.id),
            incarnation: own.incarnation,
            sequence: own.sequence,
            boot: own.boot,
            is_doubted: false,
            map_epoch: Epoch(0),
            path: own.path,
            size: own.size,
            used: 0,
        };
        damaged.targets.iter_mut().for_each(|t| t.state = nuri_proto::map::TargetState::Down);
        let address = "10.0.0.2:7000".to_string();
        let join = Join {
            node: Some(NodeId(2)),
            address: address.clone(),
            pid: 1,
            serves_meta: MetaRole::None,
            run: Run::default(),
            instance: 5,
            machine: BootId(1),
            targets: vec![target],
        };
        transition::join(&mut damaged, &join).unwrap();
        assert_eq!(damaged.target_address(own.id), Some(&*address));
    }
}
