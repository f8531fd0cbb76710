//! The authority: the one owner of the map. Answers joins, heartbeats and questions.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use nuri_io::clock::Clock;
use nuri_proto::Status;
use nuri_proto::clock::FAILURE_DETECTION;
use nuri_proto::id::{ClusterId, Epoch, NodeId};
use nuri_proto::map::Map;
use nuri_proto::op::Op;
use nuri_proto::op::cluster::{
    ClusterState, ClusterStatus, Heartbeat, Join, JoinReply, MapGet, MountReport,
};
use nuri_rpc::{Reply, Request, reply_to};
use parking_lot::Mutex;

use crate::store::{MapStore, StoreError};
use crate::transition;

/// A mount is listed this long after its last report.
const MOUNT_LISTED: Duration = Duration::from_secs(3);

/// The authority of one space.
pub struct Authority {
    store: Box<dyn MapStore>,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

struct State {
    map: Map,
    heard: HashMap<NodeId, Duration>,
    mounts: HashMap<(String, String), (MountReport, Duration)>,
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
        // Nobody is up before it says so.
        let nodes: Vec<_> = map.nodes.iter().map(|n| n.id).collect();
        transition::silence(&mut map, &nodes);
        store.save(&map)?;
        let state = State { map, heard: HashMap::new(), mounts: HashMap::new() };
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
            Op::ClusterStatus => reply_to::<ClusterStatus>(request.args, |_| Ok(self.status())),
            Op::MountReport => reply_to::<MountReport>(request.args, |r| self.mount_report(r)),
            _ => Reply::failed(Status::NOTSUP),
        }
    }

    /// A node joins. The map is durable before the answer.
    ///
    /// # Errors
    /// See [`transition::join`]; [`Status::IO`] where the map cannot be kept.
    pub fn join(&self, request: &Join) -> Result<JoinReply, Status> {
        let mut state = self.state.lock();
        let mut next = state.map.clone();
        let reply = transition::join(&mut next, request)?;
        self.store.save(&next).map_err(|_| Status::IO)?;
        state.map = next;
        state.heard.insert(reply.node, self.clock.monotonic());
        Ok(reply)
    }

    fn heartbeat(&self, beat: &Heartbeat) -> Result<Epoch, Status> {
        let mut state = self.state.lock();
        if state.map.node(beat.node).is_none() {
            return Err(Status::WRONG_PEER);
        }
        state.heard.insert(beat.node, self.clock.monotonic());
        if transition::heartbeat(&mut state.map, beat) {
            self.store.save(&state.map).map_err(|_| Status::IO)?;
        }
        self.notice_silence(&mut state);
        Ok(state.map.epoch)
    }

    fn notice_silence(&self, state: &mut State) {
        let now = self.clock.monotonic();
        let silent = |n: &nuri_proto::map::Node| {
            n.up && state.heard.get(&n.id).is_none_or(|at| now - *at > FAILURE_DETECTION)
        };
        let silent: Vec<_> = state.map.nodes.iter().filter(|n| silent(n)).map(|n| n.id).collect();
        // What could not be saved is noticed again after a restart.
        if !silent.is_empty() && transition::silence(&mut state.map, &silent) {
            let _ = self.store.save(&state.map);
        }
    }

    fn mount_report(&self, report: MountReport) -> Result<(), Status> {
        let now = self.clock.monotonic();
        let mut state = self.state.lock();
        let key = (report.host.clone(), report.mountpoint.clone());
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
        ClusterState { map, mounts }
    }
}
