//! Pure transitions of the map: a map and an observation go in, the next map comes out.

use nuri_proto::Status;
use nuri_proto::id::{BootId, Epoch, GroupId, NodeId, PoolId, TargetId};
use nuri_proto::layout::Shape;
use nuri_proto::limit::{MAX_NODES, MAX_TARGETS};
use nuri_proto::map::{Group, Map, Member, Node, Pool, Standing, Target, TargetState};
use nuri_proto::op::cluster::{Heartbeat, Join, JoinReply, JoinTarget, MetaRole};
use nuri_rules::broken;

use crate::standing;

/// The pool that every space has.
pub const DEFAULT_POOL: PoolId = PoolId(0);

/// A node comes, for the first time or again. Known targets keep their ids; new ones get an id and
/// a `stripe` group of their own in the default pool.
///
/// # Errors
/// [`Status::WRONG_PEER`] for a target with an id of this space that another node serves now, or
/// that is not the one that got the id; [`Status::STALE`] where the target obeyed a newer map than
/// this one, or is an older state of itself and the others do not hold its data;
/// [`Status::NOSPC`] beyond the bounds of a space.
pub fn join(map: &mut Map, request: &Join) -> Result<JoinReply, Status> {
    let named = request.node.or_else(|| number_not_heard(map, request));
    let known = named.filter(|id| map.node(*id).is_some());
    if known.is_none() && map.nodes.len() >= MAX_NODES {
        return Err(Status::NOSPC);
    }
    let highest = map.nodes.iter().map(|n| n.id).chain([map.last_node]).max();
    let id = known.unwrap_or(NodeId(highest.map_or(0, |id| id.0) + 1));
    let mut next = map.clone();
    next.last_node = id.max(map.last_node);
    next.nodes.retain(|n| n.id != id);
    let address = request.address.clone();
    next.nodes.push(Node { id, address, pid: request.pid, up: true, run: request.run.clone() });
    next.nodes.sort_by_key(|n| n.id);
    if request.serves_meta == MetaRole::Owner {
        next.meta = Some(id);
    }
    // What this node served before and no longer names is down until it comes back.
    next.targets.iter_mut().filter(|t| t.node == id).for_each(|t| t.state = TargetState::Down);
    let mut targets = Vec::new();
    for target in &request.targets {
        targets.push(join_target(&mut next, (id, request.machine), target)?);
    }
    if membership_changed(map, &next) {
        next.epoch = Epoch(map.epoch.0 + 1);
    }
    *map = next;
    Ok(JoinReply { node: id, targets, map: map.clone() })
}

/// The number of a node that got one and does not know it, as it ended before it could note it: a
/// target of it is served at its address.
fn number_not_heard(map: &Map, request: &Join) -> Option<NodeId> {
    let is_own = |t: &&Target| request.targets.iter().any(|r| r.incarnation == t.incarnation);
    let of_target = map.targets.iter().find(is_own)?.node;
    let node = map.node(of_target)?;
    (node.address == request.address).then_some(node.id)
}

/// Whether the target is an older state of itself than was heard of. Opening raises the sequence:
/// one that was opened again has a higher one. A lower one of the same opening is a call that comes
/// late.
pub fn is_older(known: &Target, request: &JoinTarget) -> bool {
    let is_opened = request.boot != known.boot;
    let is_past = request.is_doubted || is_opened && request.sequence <= known.sequence;
    is_past && !broken!("trust_snapshots")
}

fn join_target(
    map: &mut Map,
    (node, machine): (NodeId, BootId),
    request: &JoinTarget,
) -> Result<TargetId, Status> {
    if request.map_epoch > map.epoch {
        return Err(Status::STALE);
    }
    // One that got an id and does not know it: the answer to its first call was lost.
    let given = || map.targets.iter().find(|t| t.incarnation == request.incarnation).map(|t| t.id);
    if let Some(id) = request.id.or_else(given) {
        let known = map.targets.iter_mut().find(|t| t.id == id).ok_or(Status::WRONG_PEER)?;
        let elsewhere = known.node != node && known.state == TargetState::Up;
        if elsewhere || known.incarnation != request.incarnation {
            return Err(Status::WRONG_PEER);
        }
        let is_opened = request.boot != known.boot;
        let is_older = is_older(known, request);
        known.node = node;
        known.path.clone_from(&request.path);
        known.state = TargetState::Up;
        (known.size, known.used) = (request.size, request.used);
        let newest = known.sequence.max(request.sequence);
        known.sequence = if is_opened { request.sequence } else { newest };
        known.boot = request.boot;
        let is_anew = machine != known.machine && known.machine != BootId::default();
        known.machine = machine;
        if is_anew {
            standing::doubt(map, id);
        }
        // Whatever it missed since that state was taken is looked for in all its stripes.
        if is_older && !standing::distrust(map, id) {
            return Err(Status::STALE);
        }
        return Ok(id);
    }
    if map.targets.len() >= MAX_TARGETS {
        return Err(Status::NOSPC);
    }
    // Groups also remember targets that were removed.
    let members = map.groups.iter().flat_map(|g| &g.members).map(|m| m.target.0);
    let highest = map.targets.iter().map(|t| t.id.0).chain(members).max();
    let id = TargetId(highest.unwrap_or(0) + 1);
    let (path, size, used) = (request.path.clone(), request.size, request.used);
    map.targets.push(Target {
        id,
        node,
        path,
        state: TargetState::Up,
        size,
        used,
        incarnation: request.incarnation,
        sequence: request.sequence,
        boot: request.boot,
        machine,
        retiring: false,
    });
    let group = GroupId(map.groups.iter().map(|g| g.id.0).max().unwrap_or(0) + 1);
    let members = vec![Member::new(id, Standing::Live)];
    map.groups.push(Group { id: group, epoch: Epoch(1), shape: Shape::Stripe, members });
    match map.pools.iter_mut().find(|p| p.id == DEFAULT_POOL) {
        Some(pool) => pool.groups.push(group),
        None => {
            let name = "default".to_string();
            map.pools.push(Pool { id: DEFAULT_POOL, name, groups: vec![group] });
        }
    }
    Ok(id)
}

fn membership_changed(old: &Map, new: &Map) -> bool {
    let facts_of = |t: &Target| (t.id, t.node, t.state);
    let facts = |map: &Map| {
        let nodes: Vec<_> = map.nodes.iter().map(|n| (n.id, n.address.clone(), n.up)).collect();
        let targets: Vec<_> = map.targets.iter().map(facts_of).collect();
        (nodes, targets, map.groups.clone(), map.meta)
    };
    facts(old) != facts(new)
}

/// A node lives. Returns whether the map is to be kept: membership changed (and with it the epoch),
/// or a target came further, which alone tells it from an older state of itself.
pub fn heartbeat(map: &mut Map, beat: &Heartbeat) -> bool {
    let old = map.clone();
    if let Some(node) = map.nodes.iter_mut().find(|n| n.id == beat.node) {
        node.up = true;
    }
    let mut came_further = false;
    for report in &beat.targets {
        let mine = |t: &&mut Target| t.id == report.id && t.node == beat.node;
        if let Some(target) = map.targets.iter_mut().find(mine) {
            target.state = report.state;
            came_further |= report.sequence > target.sequence;
            target.sequence = target.sequence.max(report.sequence);
            // One that is not there does not know how full it is.
            if report.state != TargetState::Failed {
                (target.size, target.used) = (report.size, report.used);
            }
        }
    }
    bump_if_changed(&old, map) || came_further
}

/// Nodes that were silent too long are down, and their targets with them.
pub fn silence(map: &mut Map, silent: &[NodeId]) -> bool {
    let old = map.clone();
    map.nodes.iter_mut().filter(|n| silent.contains(&n.id)).for_each(|n| n.up = false);
    for target in map.targets.iter_mut().filter(|t| silent.contains(&t.node)) {
        target.state = TargetState::Down;
    }
    bump_if_changed(&old, map)
}

fn bump_if_changed(old: &Map, map: &mut Map) -> bool {
    let changed = membership_changed(old, map);
    if changed {
        map.epoch = Epoch(old.epoch.0 + 1);
    }
    changed
}

#[cfg(test)]
mod tests {
    use nuri_proto::id::{BootId, Incarnation};

    use nuri_proto::map::Run;

    use super::*;

    fn request(node: Option<NodeId>, ids: &[Option<TargetId>]) -> Join {
        let target = |(place, id): (usize, &Option<TargetId>)| JoinTarget {
            id: *id,
            incarnation: Incarnation(place as u64 + 1),
            sequence: 5,
            boot: BootId(1),
            is_doubted: false,
            map_epoch: Epoch(0),
            path: "/t".into(),
            size: 100,
            used: 0,
        };
        Join {
            node,
            address: "127.0.0.1:1".into(),
            pid: 1,
            serves_meta: MetaRole::None,
            run: Run::default(),
            instance: 1,
            machine: BootId(1),
            targets: ids.iter().enumerate().map(target).collect(),
        }
    }

    #[test]
    fn ids_are_given_once_and_kept() {
        let mut map = Map::default();
        let first = join(&mut map, &request(None, &[None, None])).unwrap();
        assert_eq!(first.targets, [TargetId(1), TargetId(2)]);
        let lost = join(&mut map, &request(Some(first.node), &[None, None])).unwrap();
        assert_eq!(lost.targets, first.targets, "the first answer was lost");
        let again = join(
            &mut map,
            &request(Some(first.node), &[Some(TargetId(1)), Some(TargetId(2)), None]),
        );
        let again = again.unwrap();
        assert_eq!((again.node, again.targets[2]), (first.node, TargetId(3)));
        assert_eq!(map.pool_groups(DEFAULT_POOL, Shape::Stripe).len(), 3);
    }

    /// It ended before it noted its number.
    #[test]
    fn a_node_that_does_not_know_its_number_gets_it_again() {
        let mut map = Map::default();
        let first = join(&mut map, &request(None, &[None])).unwrap();
        for ids in [None, Some(TargetId(1))] {
            let again = join(&mut map, &request(None, &[ids])).unwrap();
            assert_eq!((again.node, again.targets), (first.node, first.targets.clone()));
        }
        let mut moved = request(None, &[None]);
        moved.address = "127.0.0.1:2".into();
        let refused = join(&mut map, &moved).map(|reply| reply.node);
        assert_eq!(refused, Err(Status::WRONG_PEER), "its target is served at the first address");
        assert_eq!(map.nodes.len(), 1);
    }

    #[test]
    fn the_number_of_a_removed_target_is_not_given_again() {
        let mut map = Map::default();
        let node = join(&mut map, &request(None, &[None, None])).unwrap().node;
        let left = request(Some(node), &[Some(TargetId(1))]);
        join(&mut map, &left).unwrap();
        standing::remove(&mut map, TargetId(2)).unwrap();
        assert_eq!(map.pool_groups(DEFAULT_POOL, Shape::Stripe).len(), 1);
        let back = request(Some(node), &[Some(TargetId(1)), Some(TargetId(2))]);
        assert_eq!(join(&mut map, &back).unwrap_err(), Status::WRONG_PEER);
        let new = join(&mut map, &request(Some(node), &[Some(TargetId(1)), None])).unwrap();
        assert_eq!(new.targets, [TargetId(1), TargetId(3)]);
    }

    #[test]
    fn a_target_of_another_space_is_refused_and_nothing_changes() {
        let mut map = Map::default();
        join(&mut map, &request(None, &[None])).unwrap();
        let before = map.clone();
        let refused = join(&mut map, &request(None, &[Some(TargetId(9))]));
        assert_eq!((refused.unwrap_err(), map), (Status::WRONG_PEER, before));
    }

    /// Catches `broken!("trust_snapshots")`.
    #[test]
    fn an_older_state_of_a_target_is_noticed() {
        let mut map = Map::default();
        let node = join(&mut map, &request(None, &[None, None])).unwrap().node;
        standing::make_groups(&mut map, DEFAULT_POOL, Shape::Mirror(2)).unwrap();
        let mut again = request(Some(node), &[Some(TargetId(1)), Some(TargetId(2))]);
        assert!(join(&mut map, &again).is_ok(), "the same once more");
        assert!(map.groups.iter().all(|g| g.live().iter().count() == g.members.len()));
        again.targets[0].boot = BootId(2);
        again.targets[0].sequence = 6;
        assert!(join(&mut map, &again).is_ok(), "opened again");
        assert!(map.groups.iter().all(|g| g.live().iter().count() == g.members.len()));
        again.targets[0].boot = BootId(3);
        join(&mut map, &again).unwrap();
        let mirror = map.groups.iter().find(|g| g.shape == Shape::Mirror(2)).unwrap();
        assert_eq!(mirror.live().iter().count(), 1);
        again.targets[1].sequence = 4;
        assert!(join(&mut map, &again).is_ok(), "a late call of the same opening");
        again.targets[1].boot = BootId(2);
        assert_eq!(join(&mut map, &again).unwrap_err(), Status::STALE);
        again.targets[1].sequence = 6;
        again.targets[1].is_doubted = true;
        assert_eq!(join(&mut map, &again).unwrap_err(), Status::STALE, "opened some times more");
        again.targets[1].is_doubted = false;
        again.targets[1].map_epoch = Epoch(map.epoch.0 + 1);
        assert_eq!(join(&mut map, &again).unwrap_err(), Status::STALE, "an older map");
        again.targets[1].map_epoch = map.epoch;
        again.targets[1].incarnation = Incarnation(9);
        assert_eq!(join(&mut map, &again).unwrap_err(), Status::WRONG_PEER);
    }

    #[test]
    fn silence_takes_targets_down_and_a_beat_brings_them_back() {
        let mut map = Map::default();
        let node = join(&mut map, &request(None, &[None])).unwrap().node;
        let epoch = map.epoch;
        assert!(silence(&mut map, &[node]) && !silence(&mut map, &[node]));
        assert_eq!((map.targets[0].state, map.epoch.0), (TargetState::Down, epoch.0 + 1));
        let report = nuri_proto::op::cluster::TargetReport {
            id: TargetId(1),
            state: TargetState::Up,
            size: 100,
            used: 7,
            sequence: 6,
            why: String::new(),
        };
        assert!(heartbeat(
            &mut map,
            &Heartbeat {
                node,
                instance: 1,
                targets: vec![report],
                admitted: 0,
                resyncs: Vec::new(),
                scrub: Default::default()
            }
        ));
        assert_eq!((map.targets[0].state, map.targets[0].used), (TargetState::Up, 7));
    }
}
