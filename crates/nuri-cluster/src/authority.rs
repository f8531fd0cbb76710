//! The authority: the one owner of the map. It answers joins, heartbeats and questions.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use nuri_io::clock::Clock;
use nuri_proto::Status;
use nuri_proto::clock::{DRIFT, FAILURE_DETECTION, HEARTBEAT, SERVICE};
use nuri_proto::id::{ClusterId, GroupId, NodeId, PoolId, TargetId};
use nuri_proto::layout::Shape;
use nuri_proto::map::{Map, Placement, ScrubPolicy, TargetState};
use nuri_proto::op::Op;
use nuri_proto::op::cluster::{
    Admitted, ClusterState, ClusterStatus, GroupRenew, Heartbeat, HeartbeatReply, Join, JoinReply,
    MapGet, MemberMove, MemberSynced, MountReport, Resync, ResyncSet, Scrub, ScrubChange, ScrubSet,
    SpaceSet, TargetProved, TargetRemove, TargetReplace, TargetRetire,
};
use nuri_rpc::{Reply, Request, reply_to};
use parking_lot::Mutex;

use crate::store::{MapStore, StoreError};
use crate::{choice, credible, scrub, sound, standing, transition};

/// A mount is listed this long after its last report.
const MOUNT_LISTED: Duration = Duration::from_secs(3);
/// After a restart, targets that were not heard of yet keep their places so long: after a power
/// cut nodes come back one by one.
const RESTART_GRACE: Duration = Duration::from_secs(5);

/// Heartbeats come much more often. Where the authority looked at nothing for longer, it was itself
/// that stood still: its disk or the copy of its map did not answer, or its process was stopped.
const DEAF: Duration = HEARTBEAT.saturating_mul(2);

/// Characters of what a node says of a failed target.
const LONGEST_REASON: usize = 300;

/// The authority of one space.
pub struct Authority {
    store: Box<dyn MapStore>,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

struct State {
    map: Map,
    heard: HashMap<NodeId, Duration>,
    /// The process that each node is.
    instances: HashMap<NodeId, u64>,
    /// When a target's node last said that it serves.
    served: HashMap<TargetId, Duration>,
    /// Before it nodes may have been served by an earlier authority.
    started: Duration,
    /// When silence was looked for last.
    looked: Duration,
    /// Sessions whose changes targets accept, and the version in force at each node.
    admitted: Option<Admitted>,
    in_force: HashMap<NodeId, u64>,
    mounts: HashMap<(String, String), (MountReport, Duration)>,
    /// As their nodes said last.
    resyncs: HashMap<NodeId, Vec<Resync>>,
    scrubs: BTreeMap<NodeId, Scrub>,
    /// Nodes that have the whole metadata, as its keeper said last.
    metadata: Vec<NodeId>,
    /// Why failed targets are failed.
    reasons: BTreeMap<TargetId, String>,
}

impl Authority {
    /// Opens the stored map, or begins one for `cluster`.
    ///
    /// # Errors
    /// As the store's.
    pub fn open(
        store: Box<dyn MapStore>,
        clock: Arc<dyn Clock>,
        cluster: ClusterId,
    ) -> Result<Authority, StoreError> {
        let mut map = store.load()?.unwrap_or_else(|| Map { cluster, ..Map::default() });
        if let Some(problem) = sound::check(&map).into_iter().next() {
            return Err(StoreError::Unsound(problem));
        }
        // Nobody is up before it says so.
        let nodes: Vec<_> = map.nodes.iter().map(|n| n.id).collect();
        transition::silence(&mut map, &nodes);
        store.save(&map)?;
        let state = State {
            map,
            heard: HashMap::new(),
            instances: HashMap::new(),
            served: HashMap::new(),
            started: clock.monotonic(),
            looked: clock.monotonic(),
            admitted: None,
            in_force: HashMap::new(),
            mounts: HashMap::new(),
            resyncs: HashMap::new(),
            scrubs: BTreeMap::new(),
            metadata: Vec::new(),
            reasons: BTreeMap::new(),
        };
        Ok(Authority { store, clock, state: Mutex::new(state) })
    }

    /// The map as of now.
    pub fn map(&self) -> Map {
        let mut state = self.state.lock();
        self.notice_silence(&mut state);
        state.map.clone()
    }

    /// Answers the calls of `op::cluster`.
    pub fn serve(&self, request: &Request<'_>) -> Reply {
        match request.op {
            Op::MapGet => reply_to::<MapGet>(request.args, |_| Ok(self.map())),
            Op::Join => reply_to::<Join>(request.args, |join| self.join(&join)),
            Op::Heartbeat => reply_to::<Heartbeat>(request.args, |beat| self.heartbeat(&beat)),
            Op::MemberSynced => reply_to::<MemberSynced>(request.args, |c| {
                self.change(|map| standing::synced(map, c.group, c.target, c.epoch))
            }),
            Op::TargetReplace => reply_to::<TargetReplace>(request.args, |c| {
                self.change(|map| standing::replace(map, c.old, c.new))
            }),
            Op::TargetRetire => reply_to::<TargetRetire>(request.args, |c| {
                self.change(|map| standing::retire(map, c.target, c.retiring))
            }),
            Op::TargetProved => reply_to::<TargetProved>(request.args, |proof| {
                self.change(|map| standing::proved(map, &proof))
            }),
            Op::GroupRenew => reply_to::<GroupRenew>(request.args, |c| {
                self.change(|map| standing::renew(map, c.group, c.epoch))
            }),
            Op::TargetRemove => reply_to::<TargetRemove>(request.args, |c| {
                self.change(|map| standing::remove(map, c.target))
            }),
            Op::MemberMove => reply_to::<MemberMove>(request.args, |c| {
                self.change(|map| standing::move_member(map, &c))
            }),
            Op::ResyncSet => reply_to::<ResyncSet>(request.args, |c| self.set_resync(c)),
            Op::SpaceSet => reply_to::<SpaceSet>(request.args, |c| self.set_shape(c.shape)),
            Op::ScrubSet => reply_to::<ScrubSet>(request.args, |c| self.set_scrub(c)),
            Op::ClusterStatus => reply_to::<ClusterStatus>(request.args, |_| Ok(self.status())),
            Op::MountReport => reply_to::<MountReport>(request.args, |r| self.mount_report(r)),
            _ => Reply::failed(Status::NOTSUP),
        }
    }

    /// A node joins. The map is durable before the answer.
    ///
    /// # Errors
    /// See [`transition::join`]; [`Status::INVAL`] for what nothing real would say;
    /// [`Status::IO`] where the map cannot be kept; [`Status::BUSY`] where a node with this number
    /// lives at another address.
    pub fn join(&self, request: &Join) -> Result<JoinReply, Status> {
        credible::join(request)?;
        let mut state = self.state.lock();
        if self.is_copy(&state, request) {
            return Err(Status::BUSY);
        }
        let mut next = state.map.clone();
        let reply = transition::join(&mut next, request)?;
        self.keep(&mut state, next)?;
        let now = self.clock.monotonic();
        state.heard.insert(reply.node, now);
        state.instances.insert(reply.node, request.instance);
        state.served.extend(reply.targets.iter().map(|target| (*target, now)));
        state.in_force.remove(&reply.node);
        Ok(reply)
    }

    /// Whether another process is this node, and was heard of just now. One that was started anew
    /// at its own address cannot be a second one.
    fn is_copy(&self, state: &State, request: &Join) -> bool {
        let Some(known) = request.node.and_then(|id| state.map.node(id)) else { return false };
        let other = state.instances.get(&known.id).is_some_and(|id| *id != request.instance);
        let now = self.clock.monotonic();
        let lives = state.heard.get(&known.id).is_some_and(|at| now - *at <= FAILURE_DETECTION);
        known.up && other && lives && known.address != request.address
    }

    /// From now on targets accept changes of these sessions only, as soon as they hear of it.
    pub fn admit(&self, list: Admitted) {
        self.state.lock().admitted = Some(list);
    }

    /// These nodes have the whole metadata now; the status says so.
    pub fn metadata_at(&self, nodes: Vec<NodeId>) {
        self.state.lock().metadata = nodes;
    }

    /// Whether the list of this version, or a newer one, binds every target: it is in force at its
    /// node, or the node's service lease ran out.
    pub fn is_in_force(&self, version: u64) -> bool {
        let now = self.clock.monotonic();
        let state = self.state.lock();
        state.map.nodes.iter().all(|node| {
            let heard = state.heard.get(&node.id).copied().unwrap_or(state.started);
            let bound = state.in_force.get(&node.id).is_some_and(|v| *v >= version);
            bound || now.saturating_sub(heard) > SERVICE + DRIFT
        })
    }

    fn heartbeat(&self, beat: &Heartbeat) -> Result<HeartbeatReply, Status> {
        credible::heartbeat(beat)?;
        let mut state = self.state.lock();
        if state.map.node(beat.node).is_none() {
            return Err(Status::WRONG_PEER);
        }
        // One of two with this number has joined: the other one may ask to.
        if *state.instances.entry(beat.node).or_insert(beat.instance) != beat.instance {
            return Err(Status::WRONG_PEER);
        }
        let now = self.clock.monotonic();
        state.heard.insert(beat.node, now);
        state.resyncs.insert(beat.node, beat.resyncs.clone());
        state.scrubs.insert(beat.node, beat.scrub.clone());
        state.in_force.insert(beat.node, beat.admitted);
        for report in beat.targets.iter().filter(|r| r.state == TargetState::Up) {
            state.served.insert(report.id, now);
        }
        let own = |id| state.map.target(id).is_some_and(|t| t.node == beat.node);
        let (own, _): (Vec<_>, Vec<_>) = beat.targets.iter().partition(|r| own(r.id));
        for report in own {
            match report.state {
                TargetState::Failed => {
                    let why = report.why.chars().take(LONGEST_REASON).collect();
                    state.reasons.insert(report.id, why)
                }
                _ => state.reasons.remove(&report.id),
            };
        }
        let mut next = state.map.clone();
        match transition::heartbeat(&mut next, beat) {
            true => self.keep(&mut state, next)?,
            // How full targets are is heard again after a restart.
            false => state.map = next,
        }
        self.notice_silence(&mut state);
        self.notice_schedule(&mut state);
        let newer = state.admitted.as_ref().filter(|list| list.version > beat.admitted);
        Ok(HeartbeatReply { map_epoch: state.map.epoch, admitted: newer.cloned() })
    }

    /// Groups of the pool for new files of the shape ([`choice::groups`]), made where there are
    /// none over all targets.
    ///
    /// # Errors
    /// As [`standing::make_groups`]; [`Status::IO`] where the map cannot be kept.
    pub fn groups(&self, pool: PoolId, shape: Shape) -> Result<Vec<GroupId>, Status> {
        let mut state = self.state.lock();
        self.notice_silence(&mut state);
        if shape.is_redundant() && !standing::reaches_all(&state.map, pool, shape) {
            let mut next = state.map.clone();
            standing::make_groups(&mut next, pool, shape)?;
            self.keep(&mut state, next)?;
        }
        Ok(choice::groups(&state.map, pool, shape))
    }

    /// Shape of new files where no directory says another.
    pub fn default_shape(&self) -> Shape {
        self.state.lock().map.shape_now()
    }

    /// Sets what was said of them, durably.
    ///
    /// # Errors
    /// [`Status::IO`] where the map cannot be kept.
    pub fn set_defaults(
        &self,
        shape: Option<Shape>,
        placement: Option<Placement>,
    ) -> Result<(), Status> {
        self.change(|map| {
            map.shape = shape.unwrap_or(map.shape);
            map.placement = placement.unwrap_or(map.placement);
            Ok(())
        })
    }

    /// Sets the shape of files where no directory says another. It may wait for more targets.
    fn set_shape(&self, shape: Shape) -> Result<(), Status> {
        let shape = shape.check().map_err(|_| Status::INVAL)?;
        self.change(|map| {
            map.shape = shape;
            Ok(())
        })
    }

    /// A new map counts once it is durable. One that is not sound is none: the space would not
    /// start with it.
    fn keep(&self, state: &mut State, next: Map) -> Result<(), Status> {
        if let Some(problem) = sound::check(&next).first() {
            tracing::error!("the map stays as it is, a change would damage it: {problem}");
            return Err(Status::INVAL);
        }
        self.store.save(&next).map_err(|_| Status::IO)?;
        state.map = next;
        Ok(())
    }

    /// A change of the map counts once it is durable.
    fn change(&self, change: impl FnOnce(&mut Map) -> Result<(), Status>) -> Result<(), Status> {
        let mut state = self.state.lock();
        let mut next = state.map.clone();
        change(&mut next)?;
        self.keep(&mut state, next)
    }

    fn set_resync(&self, call: ResyncSet) -> Result<(), Status> {
        let mut state = self.state.lock();
        let next = Map { resync: call.pace, ..state.map.clone() };
        self.keep(&mut state, next)
    }

    fn set_scrub(&self, call: ScrubSet) -> Result<ScrubPolicy, Status> {
        if matches!(call.change, ScrubChange::Start { rate: 0 }) {
            return Err(Status::INVAL);
        }
        let mut state = self.state.lock();
        let mut next = state.map.clone();
        scrub::change(&mut next.scrub, call.change, self.clock.wall().as_secs());
        let policy = next.scrub;
        self.keep(&mut state, next).map(|()| policy)
    }

    fn notice_schedule(&self, state: &mut State) {
        let mut next = state.map.scrub;
        if scrub::tick(&mut next, self.clock.wall().as_secs()) {
            // What could not be saved is due again with the next heartbeat.
            let _ = self.keep(state, Map { scrub: next, ..state.map.clone() });
        }
    }

    /// Takes targets that serve no more, for certain, out of their groups, and others back in.
    /// A failed target said so itself; a silent one has outlived its service lease.
    fn regroup(&self, state: &mut State) {
        let now = self.clock.monotonic();
        let settled = now.saturating_sub(state.started) > RESTART_GRACE;
        let gone = |t: &nuri_proto::map::Target| {
            let heard = state.served.get(&t.id);
            let silent = match heard {
                Some(at) => now.saturating_sub(*at) > SERVICE + DRIFT,
                None => settled,
            };
            t.state == TargetState::Failed || t.state == TargetState::Down && silent
        };
        let lost: Vec<_> = state.map.targets.iter().filter(|t| gone(t)).map(|t| t.id).collect();
        if lost.is_empty() && !standing::has_absent(&state.map) {
            return;
        }
        let mut next = state.map.clone();
        let excluded = standing::exclude(&mut next, &lost);
        if standing::readmit(&mut next) || excluded {
            // What could not be saved did not happen, and is tried again.
            let _ = self.keep(state, next);
        }
    }

    fn notice_silence(&self, state: &mut State) {
        self.forgive_own_silence(state);
        self.notice_silent_nodes(state);
        self.regroup(state);
    }

    /// What nodes sent while nobody listened counts as heard. Leases that they were given only end
    /// earlier than is believed then.
    fn forgive_own_silence(&self, state: &mut State) {
        let now = self.clock.monotonic();
        let gap = now.saturating_sub(std::mem::replace(&mut state.looked, now));
        if gap > DEAF {
            let heard = state.heard.values_mut().chain(state.served.values_mut());
            heard.chain([&mut state.started]).for_each(|at| *at = (*at + gap).min(now));
        }
    }

    fn notice_silent_nodes(&self, state: &mut State) {
        let now = self.clock.monotonic();
        let silent = |n: &nuri_proto::map::Node| {
            n.up && state.heard.get(&n.id).is_none_or(|at| now - *at > FAILURE_DETECTION)
        };
        let silent: Vec<_> = state.map.nodes.iter().filter(|n| silent(n)).map(|n| n.id).collect();
        // What could not be saved did not happen, and is noticed again.
        let mut next = state.map.clone();
        if !silent.is_empty() && transition::silence(&mut next, &silent) {
            let _ = self.keep(state, next);
        }
    }

    fn mount_report(&self, report: MountReport) -> Result<(), Status> {
        credible::mount(&report)?;
        let now = self.clock.monotonic();
        let mut state = self.state.lock();
        let key = (report.host.clone(), report.mountpoint.clone());
        state.mounts.retain(|_, (_, at)| now.saturating_sub(*at) <= MOUNT_LISTED);
        if state.mounts.len() >= credible::MOST_MOUNTS && !state.mounts.contains_key(&key) {
            return Err(Status::BUSY);
        }
        state.mounts.insert(key, (report, now));
        Ok(())
    }

    fn status(&self) -> ClusterState {
        let now = self.clock.monotonic();
        let map = self.map();
        let mut state = self.state.lock();
        state.mounts.retain(|_, (_, at)| now.saturating_sub(*at) <= MOUNT_LISTED);
        let mut mounts: Vec<_> = state.mounts.values().map(|(r, _)| r.clone()).collect();
        mounts.sort_by(|a, b| (&a.host, &a.mountpoint).cmp(&(&b.host, &b.mountpoint)));
        let mounts = credible::listed(mounts);
        let resyncs = state.resyncs.values().flatten().copied().collect();
        let scrubs = state.scrubs.iter().map(|(node, scrub)| (*node, scrub.clone())).collect();
        let failed =
            |id: TargetId| map.target(id).is_some_and(|target| target.state == TargetState::Failed);
        state.reasons.retain(|id, _| failed(*id));
        let reasons = state.reasons.iter().map(|(id, why)| (*id, why.clone())).collect();
        let (usable, metadata) =
            (standing::usable(&map, transition::DEFAULT_POOL), state.metadata.clone());
        ClusterState { map, mounts, resyncs, scrubs, reasons, metadata, usable }
    }
}

#[cfg(test)]
mod tests {
    use nuri_io::clock::ManualClock;
    use nuri_proto::id::{BootId, Epoch, Incarnation, SessionId};
    use nuri_proto::map::Run;
    use nuri_proto::op::cluster::{JoinTarget, MetaRole, TargetReport};

    use super::*;

    struct Nowhere;

    /// What outlives the authority.
    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Option<Map>>>);

    impl MapStore for Kept {
        fn load(&self) -> Result<Option<Map>, StoreError> {
            Ok(self.0.lock().clone())
        }
        fn save(&self, map: &Map) -> Result<(), StoreError> {
            *self.0.lock() = Some(map.clone());
            Ok(())
        }
    }

    impl MapStore for Nowhere {
        fn load(&self) -> Result<Option<Map>, StoreError> {
            Ok(None)
        }
        fn save(&self, _: &Map) -> Result<(), StoreError> {
            Ok(())
        }
    }

    fn join(port: u32) -> Join {
        Join {
            node: None,
            address: format!("127.0.0.1:{port}"),
            pid: 1,
            serves_meta: MetaRole::None,
            run: Run::default(),
            instance: 1,
            machine: BootId(1),
            targets: Vec::new(),
        }
    }

    fn beat(authority: &Authority, node: NodeId, admitted: u64) -> Option<Admitted> {
        authority.heartbeat(&quiet(node, admitted)).unwrap().admitted
    }

    fn quiet(node: NodeId, admitted: u64) -> Heartbeat {
        Heartbeat {
            node,
            instance: 1,
            targets: Vec::new(),
            admitted,
            resyncs: Vec::new(),
            scrub: Scrub::default(),
        }
    }

    #[test]
    fn an_authority_that_stood_still_blames_nobody() {
        let clock = Arc::new(ManualClock::default());
        let id = ClusterId([1; 16]);
        let authority = Authority::open(Box::new(Nowhere), clock.clone(), id).unwrap();
        let (a, b) =
            (authority.join(&join(1)).unwrap().node, authority.join(&join(2)).unwrap().node);
        let is_up = |node| authority.map().node(node).unwrap().up;
        beat(&authority, a, 0);
        clock.advance(FAILURE_DETECTION * 3);
        beat(&authority, a, 0);
        assert!(is_up(b), "nobody listened");
        let mut silent = Duration::ZERO;
        while is_up(b) {
            clock.advance(HEARTBEAT);
            silent += HEARTBEAT;
            beat(&authority, a, 0);
        }
        assert!(silent > FAILURE_DETECTION && silent <= FAILURE_DETECTION + HEARTBEAT);
        assert!(is_up(a));
    }

    #[test]
    fn of_two_with_one_number_the_second_is_refused() {
        let clock = Arc::new(ManualClock::default());
        let authority =
            Authority::open(Box::new(Nowhere), clock.clone(), ClusterId([1; 16])).unwrap();
        let node = authority.join(&join(1)).unwrap().node;
        let own = |port, instance| Join { node: Some(node), instance, ..join(port) };
        let beats =
            |instance| authority.heartbeat(&Heartbeat { instance, ..quiet(node, 0) }).map(|_| ());
        assert_eq!(authority.join(&own(2, 7)).unwrap_err(), Status::BUSY);
        assert_eq!((beats(1), beats(7)), (Ok(()), Err(Status::WRONG_PEER)));
        assert!(authority.join(&own(1, 8)).is_ok(), "started anew at its own address");
        assert_eq!((beats(8), beats(1)), (Ok(()), Err(Status::WRONG_PEER)));
        clock.advance(FAILURE_DETECTION * 2);
        assert!(authority.join(&own(2, 7)).is_ok(), "the first one is silent: it was moved");
        assert_eq!(authority.join(&own(1, 8)).unwrap_err(), Status::BUSY, "and comes back");
    }

    #[test]
    fn a_list_is_in_force_once_every_node_has_it_or_lost_its_lease() {
        let clock = Arc::new(ManualClock::default());
        let id = ClusterId([1; 16]);
        let authority = Authority::open(Box::new(Nowhere), clock.clone(), id).unwrap();
        let (a, b) =
            (authority.join(&join(1)).unwrap().node, authority.join(&join(2)).unwrap().node);
        let list = Admitted { version: 9, horizon: SessionId(4), live: vec![SessionId(2)] };
        authority.admit(list.clone());
        assert_eq!(beat(&authority, a, 0), Some(list));
        assert!(!authority.is_in_force(9));
        assert_eq!(beat(&authority, a, 9), None, "it has it");
        assert!(!authority.is_in_force(9), "the other one may still serve");
        for _ in 0..SERVICE.as_millis() / HEARTBEAT.as_millis() {
            clock.advance(HEARTBEAT);
            beat(&authority, a, 9);
        }
        assert!(!authority.is_in_force(9), "clocks differ a little");
        clock.advance(DRIFT * 2);
        assert!(authority.is_in_force(9));
        beat(&authority, b, 0);
        assert!(!authority.is_in_force(9), "back, without the list");
        beat(&authority, b, 9);
        assert!(authority.is_in_force(9));
    }

    /// A target that came further, an authority that starts anew, and then the target as it was
    /// before.
    #[test]
    fn how_far_targets_came_outlives_the_authority() {
        let (clock, kept) = (Arc::new(ManualClock::default()), Kept::default());
        let open =
            || Authority::open(Box::new(kept.clone()), clock.clone(), ClusterId([1; 16])).unwrap();
        let target = |boot, sequence| JoinTarget {
            id: None,
            incarnation: Incarnation(7),
            path: String::new(),
            size: 1,
            used: 0,
            boot: BootId(boot),
            map_epoch: Epoch(0),
            sequence,
            is_doubted: false,
        };
        let authority = open();
        let node = authority.join(&join(1)).unwrap().node;
        let targets = |all| Join { node: Some(node), targets: all, ..join(1) };
        let id = authority.join(&targets(vec![target(1, 1)])).unwrap().targets[0];
        let state = TargetState::Up;
        let report = TargetReport { id, state, size: 1, used: 0, sequence: 5, why: String::new() };
        authority.heartbeat(&Heartbeat { targets: vec![report], ..quiet(node, 0) }).unwrap();
        let heard = open().map().target(id).map(|target| target.sequence);
        assert_eq!(heard, Some(5), "a state before it would pass for the newest");
    }
}
