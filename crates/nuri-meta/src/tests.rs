//! The metadata server from outside: calls in, replies out, on memory disks.
//!
//! `slots` catches `broken!("slots_forget")`, `crash` catches `reply_before_durable`, `leases`
//! and `lease::tests` catch `grant_during_recall`, `locks` catches `lock_in_grace`, `reads` catches
//! `read_before_durable`.

#![allow(clippy::unwrap_used)] // Helpers outside `#[test]` functions are tests too.

mod apply;
mod attrs;
mod crash;
mod eviction;
mod leases;
mod locks;
mod model;
mod names;
mod once;
mod parts;
mod reads;
mod repair;
mod slots;
mod turns;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nuri_io::buf::BufPool;
use nuri_io::clock::ManualClock;
use nuri_io::disk::Disk;
use nuri_io::mem::MemDisk;
use nuri_io::rng::Rng;
use nuri_kv::embedded::{Embedded, KvConfig};
use nuri_proto::id::{GroupId, Ino, ObjectId, PoolId, SessionId};
use nuri_proto::layout::Shape;
use nuri_proto::op::Call;
use nuri_proto::op::lock::*;
use nuri_proto::op::meta::*;
use nuri_proto::range_map::Span;
use nuri_proto::{Status, codec};
use nuri_rpc::{CallContext, Request};

use crate::fsck;
use crate::namespace::txn::ClusterView;
use crate::server::MetaServer;

const KV: KvConfig = KvConfig { segment_bytes: 256 << 10, cache_bytes: 1 << 20, epoch_step: 1 };

struct Pools;

impl ClusterView for Pools {
    fn groups(&self, _: PoolId, _: Shape) -> Result<Vec<GroupId>, Status> {
        Ok((0..3).map(GroupId).collect())
    }
}

/// A server and the disks below it.
struct World {
    log: Arc<MemDisk>,
    tables: Arc<MemDisk>,
    clock: Arc<ManualClock>,
    server: MetaServer,
}

fn engine(log: &Arc<MemDisk>, tables: &Arc<MemDisk>) -> Arc<Embedded> {
    Arc::new(Embedded::open(log.clone(), tables.clone() as Arc<dyn Disk>, KV).unwrap())
}

impl World {
    fn new() -> World {
        let clock = Arc::new(ManualClock::default());
        clock.advance(Duration::from_secs(1000));
        World::on(Arc::new(MemDisk::new()), Arc::new(MemDisk::new()), clock)
    }

    fn on(log: Arc<MemDisk>, tables: Arc<MemDisk>, clock: Arc<ManualClock>) -> World {
        let engine = engine(&log, &tables);
        let server = MetaServer::open(engine, Arc::new(Pools), clock.clone()).unwrap();
        World { log, tables, clock, server }
    }

    /// The server dies now and starts again on what its disks kept.
    fn crash(self, seed: u64) -> World {
        let mut rng = Rng::new(seed);
        let log = Arc::new(self.log.crash_image(&mut rng));
        let tables = Arc::new(self.tables.crash_image(&mut rng));
        World::on(log, tables, self.clock.clone())
    }

    fn client(&self) -> Client<'_> {
        let open = SessionOpen { client: "test".into() };
        let reply = call(&self.server, CallContext::default(), &open, &[]).unwrap();
        Client::known(self, reply.session)
    }

    fn fsck(&self) -> fsck::FsckReport {
        let report = fsck::check(&*self.server.engine).unwrap();
        assert!(report.problems.is_empty(), "{:#?}", report.problems);
        report
    }

    /// Lets time pass, and the housekeeping that a node does then.
    fn pass(&self, time: Duration) {
        let mut left = time;
        loop {
            let step = left.min(Duration::from_secs(1));
            self.clock.advance(step);
            self.server.tick().unwrap();
            left -= step;
            if left.is_zero() {
                return;
            }
        }
    }
}

fn call<C: Call>(
    server: &MetaServer,
    context: CallContext,
    call: &C,
    payload: &[u8],
) -> Result<C::Reply, Status> {
    let buffers = BufPool::new(4096, 0);
    let args = codec::encode(call).unwrap();
    let request = Request { op: C::OP, context, args: &args, payload, buffers: &buffers };
    let reply = server.serve(&request);
    reply.status.into_result()?;
    Ok(codec::decode(&reply.args).unwrap())
}

/// A session with one reply slot in use.
struct Client<'a> {
    server: &'a MetaServer,
    id: SessionId,
    sequence: AtomicU64,
}

impl<'a> Client<'a> {
    fn known(world: &'a World, id: SessionId) -> Client<'a> {
        Client { server: &world.server, id, sequence: AtomicU64::new(0) }
    }

    /// A call that reads.
    fn get<C: Call>(&self, c: C) -> Result<C::Reply, Status> {
        let context = CallContext { session: self.id.0, ..CallContext::default() };
        call(self.server, context, &c, &[])
    }

    /// A call that changes, under the next sequence.
    fn put<C: Call>(&self, c: C) -> Result<C::Reply, Status> {
        self.put_with(c, &[])
    }

    fn put_with<C: Call>(&self, c: C, payload: &[u8]) -> Result<C::Reply, Status> {
        let sequence = self.sequence.fetch_add(1, Ordering::SeqCst) + 1;
        self.repeat(sequence, c, payload)
    }

    fn repeat<C: Call>(&self, sequence: u64, c: C, payload: &[u8]) -> Result<C::Reply, Status> {
        let context = CallContext { session: self.id.0, slot: 3, sequence, epoch: 0 };
        call(self.server, context, &c, payload)
    }

    fn make(&self, parent: Ino, name: &str, kind: MakeKind) -> Result<Ino, Status> {
        Ok(self.put(make(parent, name, kind))?.entry.inode.attr.ino)
    }

    fn file(&self, parent: Ino, name: &str) -> Ino {
        self.make(parent, name, MakeKind::File).unwrap()
    }

    fn dir(&self, parent: Ino, name: &str) -> Ino {
        self.make(parent, name, MakeKind::Directory).unwrap()
    }

    fn find(&self, parent: Ino, name: &str) -> Option<Attr> {
        let reply = self.get(Lookup { parent, name: name.into() }).unwrap();
        reply.inode.map(|inode| inode.attr)
    }

    fn attr(&self, ino: Ino) -> Result<Attr, Status> {
        Ok(self.get(GetAttr { ino })?.attr)
    }

    fn unlink(&self, parent: Ino, name: &str) -> Result<RemoveReply, Status> {
        let call = Unlink { parent, name: name.into(), kind: RemoveKind::File };
        self.put(call).map(|reply| reply.removed)
    }

    fn rmdir(&self, parent: Ino, name: &str) -> Result<RemoveReply, Status> {
        let call = Unlink { parent, name: name.into(), kind: RemoveKind::Directory };
        self.put(call).map(|reply| reply.removed)
    }

    fn rename(
        &self,
        from: (Ino, &str),
        to: (Ino, &str),
        mode: RenameMode,
    ) -> Result<RenameReply, Status> {
        let (name, new_name) = (from.1.into(), to.1.into());
        self.put(Rename { parent: from.0, name, new_parent: to.0, new_name, mode })
    }

    fn resize(&self, ino: Ino, size: u64) -> Result<SetAttrReply, Status> {
        self.put(SetAttr { ino, size: Some(size), ..SetAttr::default() })
    }

    fn publish(&self, ino: Ino, size: u64) -> Result<InodeReply, Status> {
        let data = PublishData::OnTargets;
        self.put(Publish { ino, size, allocated: size.next_multiple_of(4096), mtime: None, data })
    }

    fn publish_inline(&self, ino: Ino, bytes: &[u8]) -> Result<InodeReply, Status> {
        let (size, data) = (bytes.len() as u64, PublishData::Inline);
        self.put_with(Publish { ino, size, allocated: 0, mtime: None, data }, bytes)
    }

    /// Gives back what it holds of the inode.
    fn let_go(&self, ino: Ino) {
        let number = self.acquire(ino, LeaseMode::Write).unwrap().inode.lease.unwrap().number;
        self.get(Release { leases: vec![(ino, number)] }).unwrap();
    }

    fn acquire(&self, ino: Ino, mode: LeaseMode) -> Result<AcquireReply, Status> {
        self.get(Acquire { ino, mode })
    }

    /// Tells this start of the server.
    fn reclaim(&self, call: Reclaim) -> Result<ReclaimReply, Status> {
        self.get(Reclaim { server_boot: self.server.engine.epoch(), ..call })
    }

    /// Waits for something to be told, and acknowledges it.
    fn told(&self, acknowledged: &mut u64) -> Vec<Event> {
        let server_boot = self.server.engine.epoch();
        let reply = self.get(Events { acknowledged: *acknowledged, server_boot }).unwrap();
        *acknowledged = reply.upto;
        reply.events
    }

    /// Waits for the next recall.
    fn recalled(&self, acknowledged: &mut u64) -> Recall {
        let start = std::time::Instant::now();
        loop {
            assert!(start.elapsed().as_secs() < 20, "nothing is recalled");
            for event in self.told(acknowledged) {
                if let Event::Recall(recall) = event {
                    return recall;
                }
            }
        }
    }

    fn obey(&self, recall: Recall) {
        let Recall { ino, number, keep, part } = recall;
        self.get(RecallDone { ino, number, kept: keep, part, settled: true }).unwrap();
    }
}

fn make(parent: Ino, name: &str, kind: MakeKind) -> Make {
    let mode = if kind == MakeKind::Directory { 0o755 } else { 0o644 };
    let (name, exclusive) = (name.into(), Exclusive::Yes);
    Make { parent, name, kind, mode, umask: 0, uid: 10, gid: 20, exclusive }
}
