//! A node with one target: the real server over the real store, on a memory disk that crashes. The
//! node has a clock of its own, which runs a little too fast or too slow.

use std::sync::Arc;
use std::time::Duration;

use nuri_io::buf::BufPool;
use nuri_io::clock::ManualClock;
use nuri_io::disk::Disk;
use nuri_io::mem::MemDisk;
use nuri_io::rng::Rng;
use nuri_proto::id::{BootId, ChunkKey, ClusterId, Epoch, GroupId, Incarnation, NodeId, TargetId};
use nuri_proto::limit::MAX_PAYLOAD;
use nuri_proto::op::cluster::{Join, MetaRole};
use nuri_proto::op::member::Purpose;
use nuri_proto::stripe::{Covers, Version};
use nuri_rpc::{CallContext, Request};
use nuri_target::server::TargetServer;
use nuri_target::store::{ChunkStore, FormatOptions, MemberRead, StoreConfig, check};
use nuri_target::target::Target;

use super::baton::{Answer, Packet};
use crate::check::{Wrong, wrong};

pub(super) const CLUSTER: ClusterId = ClusterId([1; 16]);
const CONFIG: StoreConfig =
    StoreConfig { overlay_bytes: 64 * 4096, checksum_cache_bytes: 16 * 4096 };
/// Thousandths by which a clock may be wrong: what `DRIFT` allows for a service lease, about.
const MOST_DRIFT: u64 = 100;

/// Turns a packet into a request and the reply into an answer.
pub(super) fn call(
    packet: &Packet,
    buffers: &BufPool,
    serve: impl FnOnce(&Request<'_>) -> nuri_rpc::Reply,
) -> Answer {
    let context = CallContext {
        session: packet.session.0,
        sequence: packet.attempt,
        ..CallContext::default()
    };
    let (args, payload) = (&packet.args[..], &packet.payload[..]);
    let reply = serve(&Request { op: packet.op, context, args, payload, buffers });
    reply.status.into_result()?;
    Ok((reply.args, reply.payload.map(|p| p.to_vec()).unwrap_or_default()))
}

/// A disk with an empty store that belongs to nobody.
fn blank(incarnation: u64, capacity_bytes: u64) -> Result<Arc<MemDisk>, Wrong> {
    let disk = Arc::new(MemDisk::new());
    let options = FormatOptions {
        cluster: CLUSTER,
        target: None,
        incarnation: Incarnation(incarnation),
        capacity_bytes,
        log_bytes: FormatOptions::LOG_BYTES,
    };
    ChunkStore::format(&disk, options).map_err(|e| wrong!("format: {e}"))?;
    Ok(disk)
}

pub(super) struct Node {
    pub(super) id: NodeId,
    pub(super) target: TargetId,
    pub(super) disk: Arc<MemDisk>,
    pub(super) server: Option<TargetServer>,
    /// Whether the authority answered since the start.
    pub(super) joined: bool,
    /// The disk fails soon, in the middle of something.
    pub(super) dying: bool,
    clock: Arc<ManualClock>,
    /// Thousandths of the true time.
    rate: u64,
    /// True time up to which the clock ran, microseconds.
    ran: u64,
    pub(super) boots: u64,
    /// Starts of its machine: a process that was killed starts again on the same one.
    pub(super) power: u64,
    incarnation: u64,
    number: u32,
    capacity_bytes: u64,
    buffers: BufPool,
}

impl Node {
    /// An empty node that nobody knows yet, running.
    ///
    /// # Errors
    /// Where the store cannot be made.
    pub(super) fn new(number: u32, capacity_bytes: u64, rng: &mut Rng) -> Result<Node, Wrong> {
        let incarnation = u64::from(number) + 1;
        let disk = blank(incarnation, capacity_bytes)?;
        let mut node = Node {
            id: NodeId(0),
            target: TargetId(0),
            disk,
            server: None,
            joined: false,
            dying: false,
            clock: Arc::new(ManualClock::default()),
            rate: 1000 - MOST_DRIFT + rng.below(2 * MOST_DRIFT),
            ran: 0,
            boots: 0,
            power: 1,
            incarnation,
            number,
            capacity_bytes,
            buffers: BufPool::new(MAX_PAYLOAD, 1),
        };
        node.start()?;
        Ok(node)
    }

    /// Lets the clock run up to the true time `now`.
    pub(super) fn run_clock(&mut self, now: u64) {
        let passed = (now - self.ran) * self.rate / 1000;
        self.ran = now;
        self.clock.advance(Duration::from_micros(passed));
    }

    /// Opens the store under a new boot id. Serves nothing before the first heartbeat.
    ///
    /// # Errors
    /// A store that a crash left must open.
    pub(super) fn start(&mut self) -> Result<(), Wrong> {
        self.boots += 1;
        let boot = BootId(self.incarnation << 32 | self.boots);
        let disk: Arc<dyn Disk> = self.disk.clone();
        let store = ChunkStore::open(disk, boot, CONFIG);
        let store = store.map_err(|e| wrong!("target {}: open: {e}", self.target))?;
        self.server = Some(TargetServer::new(vec![Target::over(store)], self.clock.clone()));
        self.joined = false;
        Ok(())
    }

    pub(super) fn join_call(&self) -> Join {
        let targets = self.server.as_ref().map(TargetServer::announce).unwrap_or_default();
        Join {
            node: Some(self.id).filter(|id| id.0 != 0),
            address: format!("n{}:1", self.number),
            pid: 1,
            serves_meta: MetaRole::None,
            run: nuri_proto::map::Run::default(),
            instance: self.boots,
            machine: BootId(self.power),
            targets,
        }
    }

    /// The authority knows it under these ids.
    ///
    /// # Errors
    /// Where the store refuses.
    pub(super) fn adopt(&mut self, id: NodeId, target: TargetId) -> Result<(), Wrong> {
        (self.id, self.joined) = (id, true);
        if self.target != target {
            let store = self.store().ok_or("a node that is down joined")?;
            store.assign(CLUSTER, target).map_err(|e| wrong!("assign: {e}"))?;
            self.target = target;
        }
        Ok(())
    }

    pub(super) fn store(&self) -> Option<&ChunkStore<Arc<dyn Disk>>> {
        self.server.as_ref()?.first_store()
    }

    /// Power is lost now: of what was not synced the seed decides.
    pub(super) fn crash(&mut self, rng: &mut Rng) {
        (self.server, self.dying) = (None, false);
        self.disk = Arc::new(self.disk.crash_image(rng));
    }

    /// The node, which is down, has an empty disk in the place of its own: another target. Returns
    /// the one that it was.
    ///
    /// # Errors
    /// Where the store cannot be made.
    pub(super) fn wipe(&mut self) -> Result<TargetId, Wrong> {
        self.incarnation += 1 << 16;
        self.disk = blank(self.incarnation, self.capacity_bytes)?;
        Ok(std::mem::replace(&mut self.target, TargetId(0)))
    }

    /// The disk fails after a few more transfers.
    pub(super) fn crash_soon(&mut self, rng: &mut Rng) {
        self.dying = true;
        self.disk.fail_after(rng.below(8));
    }

    /// `None`: it fell over while it worked, or is down.
    pub(super) fn serve(&self, packet: &Packet) -> Option<Answer> {
        let server = self.server.as_ref()?;
        let answer = call(packet, &self.buffers, |request| server.serve(request));
        let fails = self.dying && (answer.is_err() || !self.is_in_service());
        if fails { None } else { Some(answer) }
    }

    pub(super) fn is_in_service(&self) -> bool {
        self.store().is_some_and(ChunkStore::is_in_service)
    }

    /// Moves small writes to their places, as the server's thread does. False: it fell over.
    pub(super) fn checkpoint(&self) -> bool {
        self.store().is_none_or(|store| store.checkpoint().is_ok())
    }

    /// Committed stripes of a group.
    pub(super) fn committed(&self, group: GroupId) -> Vec<(ChunkKey, Covers)> {
        // The list tells also what is staged. A read of the base tells what is committed, and
        // makes nothing durable.
        let base = |s: &ChunkStore<_>, key| {
            let read = s.read_member(key, 0, &mut [], Version::NONE, Purpose::Base).ok()?;
            let MemberRead::Read(covers) = read else { return None };
            (covers != Covers::default()).then_some((key, covers))
        };
        let all = |s: &ChunkStore<_>| {
            let listed = s.changed(group, Epoch(0), None, usize::MAX);
            listed.into_iter().filter_map(|(key, _)| base(s, key)).collect::<Vec<_>>()
        };
        self.store().map(all).unwrap_or_default()
    }

    /// # Errors
    /// What the check of the stopped store found.
    pub(super) fn check_disk(&self) -> Result<(), Wrong> {
        let report = check::check(&self.disk);
        if report.is_clean() {
            Ok(())
        } else {
            Err(wrong!("target {}: check: {:?}", self.target, report.problems))
        }
    }
}
