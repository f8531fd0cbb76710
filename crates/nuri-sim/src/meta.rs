//! The real metadata server on memory disks that lose power.

use std::sync::Arc;
use std::time::Duration;

use nuri_io::buf::BufPool;
use nuri_io::clock::{Clock, ManualClock};
use nuri_io::mem::MemDisk;
use nuri_io::rng::Rng;
use nuri_kv::embedded::{Embedded, KvConfig};
use nuri_meta::fsck;
use nuri_meta::namespace::txn::ClusterView;
use nuri_meta::server::MetaServer;
use nuri_proto::op::{Call, Op};
use nuri_proto::{Status, codec};
use nuri_rpc::{CallContext, Reply, Request};

use crate::check::{Wrong, wrong};

/// A server and the disks below it.
pub struct Meta {
    log: Arc<MemDisk>,
    tables: Arc<MemDisk>,
    config: KvConfig,
    view: Arc<dyn ClusterView>,
    clock: Arc<ManualClock>,
    server: Option<MetaServer>,
    /// Of the present start.
    pub boot: u64,
    pub crashes: u64,
    pub calls: u64,
}

/// A call had no answer: the server is down, or the network lost it.
pub enum NoAnswer {
    Lost,
    Failed(Status),
}

impl Meta {
    /// An empty namespace. Short segments of the store's log are full soon; the largest change has
    /// to fit into one.
    ///
    /// # Errors
    /// Where the server does not start.
    pub fn new(view: Arc<dyn ClusterView>, segment_bytes: usize) -> Result<Meta, Wrong> {
        let clock = Arc::new(ManualClock::default());
        clock.advance(Duration::from_secs(1_000_000));
        let (log, tables) = Default::default();
        let (server, boot, crashes, calls) = Default::default();
        let config = KvConfig { segment_bytes, cache_bytes: 1 << 20, epoch_step: 1 };
        let mut meta = Meta { log, tables, config, view, clock, server, boot, crashes, calls };
        meta.start()?;
        Ok(meta)
    }

    fn start(&mut self) -> Result<(), Wrong> {
        let engine = Embedded::open(self.log.clone(), self.tables.clone(), self.config)
            .map_err(|e| wrong!("metadata store after a crash: {e}"))?;
        let report = fsck::check(&engine).map_err(|e| wrong!("fsck: {e}"))?;
        if !report.problems.is_empty() && self.crashes > 0 {
            return Err(wrong!("fsck after a crash: {:?}", report.problems));
        }
        self.boot = engine.epoch();
        let server = MetaServer::open(Arc::new(engine), self.view.clone(), self.clock.clone())
            .map_err(|e| wrong!("metadata server after a crash: {e}"))?;
        self.server = Some(server);
        Ok(())
    }

    /// Power is lost and comes back.
    ///
    /// # Errors
    /// Where what is left does not open or is not clean.
    pub fn crash(&mut self, rng: &mut Rng) -> Result<(), Wrong> {
        let (log, tables) = (self.log.crash_image(rng), self.tables.crash_image(rng));
        self.server = None;
        (self.log, self.tables) = (Arc::new(log), Arc::new(tables));
        self.crashes += 1;
        self.start()
    }

    /// A disk dies after a few more transfers, in the middle of some call.
    pub fn fail_soon(&self, rng: &mut Rng) {
        [&self.log, &self.tables][rng.below(2) as usize].fail_after(rng.below(6));
    }

    /// The server, while it is up.
    pub fn server(&self) -> Option<&MetaServer> {
        self.server.as_ref()
    }

    pub fn clock(&self) -> &ManualClock {
        &self.clock
    }

    /// Now, on the clock that never steps.
    pub fn now(&self) -> Duration {
        self.clock.monotonic()
    }

    /// Calls the server.
    ///
    /// # Errors
    /// As [`NoAnswer`] says.
    pub fn call<C: Call>(
        &mut self,
        context: CallContext,
        call: &C,
        payload: &[u8],
    ) -> Result<C::Reply, NoAnswer> {
        let args = codec::encode(call).map_err(NoAnswer::Failed)?;
        let reply = self.serve(C::OP, context, &args, payload).ok_or(NoAnswer::Lost)?;
        match reply.status {
            Status::OK => codec::decode(&reply.args).map_err(NoAnswer::Failed),
            status => Err(NoAnswer::Failed(status)),
        }
    }

    /// A call as it comes from the network. `None` where the server is down, or its store stopped
    /// in the middle.
    pub fn serve(
        &mut self,
        op: Op,
        context: CallContext,
        args: &[u8],
        payload: &[u8],
    ) -> Option<Reply> {
        let buffers = BufPool::new(4096, 0);
        self.calls += 1;
        let request = Request { op, context, args, payload, buffers: &buffers };
        let reply = self.server.as_ref()?.serve(&request);
        let is_down = matches!(reply.status, Status::OUT_OF_SERVICE | Status::IO);
        (!is_down).then_some(reply)
    }
}
