//! Serves the stores of one node: answers data calls, runs checkpoints, and watches that each
//! store's disk is still at its place.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nuri_io::clock::{Clock, SystemClock};
use nuri_io::disk::Disk;
use nuri_proto::Status;
use nuri_proto::id::{ChunkKey, SessionId, TargetId};
use nuri_proto::limit::{MAX_CHUNK, MAX_PAYLOAD};
use nuri_proto::map::Map;
use nuri_proto::op::cluster::{Admitted, JoinTarget, TargetReport};
use nuri_proto::op::data::{
    DataDelete, DataExtents, DataFlush, DataPunch, DataRead, DataRoom, DataTrim, DataTruncate,
    DataWrite, FlushReply, PunchReply, Room, RoomReply, WriteReply,
};
use nuri_proto::op::member::{
    MemberAbort, MemberChanged, MemberCommit, MemberForget, MemberHeld, MemberInstall, MemberStage,
};
use nuri_proto::op::{Call, Op};
use nuri_rpc::{Reply, Request, reply_to};

use crate::admission::Admission;
use crate::epochs::Epochs;
use crate::store::{ChunkStore, Payer, Proof, StoreError, is_base};
use crate::target::{Lost, Target};

const IDLE: Duration = Duration::from_millis(500);
/// Most that a target gives back to the file system under it in one go, bytes.
const TRIM_BYTES: u64 = 64 << 20;

/// All targets of a node.
pub struct TargetServer {
    /// Renewed by whoever sends the node's heartbeats.
    pub admission: Admission,
    /// Raised by whoever fetches the map.
    pub epochs: Epochs,
    targets: Vec<Arc<Target>>,
    /// Known ones that are not there: reported, never served.
    lost: Vec<Lost>,
    stopping: Arc<AtomicBool>,
}

impl TargetServer {
    /// Serves; whoever calls looks after checkpoints. For the simulator.
    pub fn new(targets: Vec<Target>, clock: Arc<dyn Clock>) -> TargetServer {
        let targets: Vec<_> = targets.into_iter().map(Arc::new).collect();
        let admission = Admission::new(clock);
        let obeyed = targets.iter().map(|t| t.store.superblock().map_epoch).max();
        let (epochs, lost) = (Epochs::since(obeyed), Vec::new());
        TargetServer { admission, epochs, targets, lost, stopping: Arc::default() }
    }

    /// Starts the checkpoint threads, and the one that looks whether targets are still in their
    /// places.
    pub fn start(targets: Vec<Target>, lost: Vec<Lost>) -> TargetServer {
        let mut server = TargetServer::new(targets, SystemClock::shared());
        server.lost = lost;
        server.watch_places();
        for target in &server.targets {
            let (target, stopping) = (target.clone(), server.stopping.clone());
            let body = move || {
                while !stopping.load(Ordering::Relaxed) {
                    if !target.store.wait_for_work(IDLE) {
                        target.store.trim(TRIM_BYTES);
                    } else if let Err(error) = target.store.checkpoint() {
                        tracing::warn!("target {}: {error}", target.path().display());
                        std::thread::sleep(IDLE);
                    }
                }
            };
            // Without the thread writers checkpoint by themselves.
            let _ = std::thread::Builder::new().name("checkpoint".into()).spawn(body);
        }
        server
    }

    fn watch_places(&self) {
        let (targets, stopping) = (self.targets.clone(), self.stopping.clone());
        let body = move || {
            while !stopping.load(Ordering::Relaxed) {
                std::thread::sleep(IDLE);
                targets.iter().for_each(|target| target.look_at_place());
            }
        };
        let _ = std::thread::Builder::new().name("places".into()).spawn(body);
    }

    /// How the node announces them.
    pub fn announce(&self) -> Vec<JoinTarget> {
        self.targets.iter().filter(|t| t.is_in_place()).map(|t| t.announce()).collect()
    }

    /// Obeys the map from now on, once that is noted on every target.
    ///
    /// # Errors
    /// Where a target cannot note it.
    pub fn adopt(&self, map: &Map) -> Result<(), StoreError> {
        if map.epoch > self.epochs.adopted() {
            let in_service = self.targets.iter().filter(|t| t.is_served());
            in_service.map(|t| t.store.obey(map.epoch)).collect::<Result<Vec<()>, _>>()?;
        }
        self.epochs.adopt(map);
        Ok(())
    }

    /// As [`Admission::renew`]; sessions that a new list does not admit are promised nothing any
    /// more.
    pub fn renew(&self, sent: Duration, list: Option<Admitted>) {
        let admitted = list.clone();
        self.admission.renew(sent, list);
        if let Some(list) = admitted {
            self.targets.iter().for_each(|t| t.store.keep_promises(|s| list.admits(s)));
        }
    }

    /// What the node's heartbeat says.
    pub fn reports(&self) -> Vec<TargetReport> {
        let lost = self.lost.iter().map(Lost::report);
        self.targets.iter().filter_map(|t| t.report()).chain(lost).collect()
    }

    /// Chunks of these targets that belong to no redundant group.
    pub fn plain_chunks(&self) -> Vec<(TargetId, ChunkKey)> {
        let named = self.targets.iter().filter_map(|t| Some((t.store.target()?, &t.store)));
        let all =
            named.flat_map(|(id, store)| store.plain_chunks().into_iter().map(move |k| (id, k)));
        all.collect()
    }

    /// Reads a whole chunk through its checksums.
    ///
    /// # Errors
    /// The target is out of service.
    pub fn prove(&self, target: TargetId, key: ChunkKey) -> Result<Proof, Status> {
        Ok(self.store(target)?.prove(key)?)
    }

    /// The store of the first target, served or not.
    pub fn first_store(&self) -> Option<&ChunkStore<Arc<dyn Disk>>> {
        self.targets.first().map(|t| &t.store)
    }

    pub(crate) fn store(&self, id: TargetId) -> Result<&ChunkStore<Arc<dyn Disk>>, Status> {
        let target = self.targets.iter().find(|t| t.store.target() == Some(id));
        match target.ok_or(Status::RETRY)? {
            target if target.is_in_place() => Ok(&target.store),
            _ => Err(Status::OUT_OF_SERVICE),
        }
    }

    /// Answers the calls of `op::data` and `op::member`.
    pub fn serve(&self, request: &Request<'_>) -> Reply {
        match request.op {
            Op::DataWrite => self.change::<DataWrite>(request, |c| self.write(&c, request)),
            Op::DataRead => self.read(request),
            Op::DataFlush => reply_to::<DataFlush>(request.args, |c| self.flush(&c)),
            Op::DataRoom => self.change::<DataRoom>(request, |c| self.room(&c, request)),
            Op::DataPunch => self.change::<DataPunch>(request, |c| self.punch(&c)),
            Op::DataTrim => self.change::<DataTrim>(request, |c| self.trim(&c)),
            Op::DataTruncate => self.change::<DataTruncate>(request, |c| self.truncate(&c)),
            Op::DataDelete => reply_to::<DataDelete>(request.args, |c| {
                Ok(self.store(c.target)?.delete(&c.objects)?)
            }),
            Op::DataExtents => reply_to::<DataExtents>(request.args, |c| {
                let extents = self.store(c.target)?.extents_with_staged(c.key);
                self.admission.check_lease().map(|()| extents)
            }),
            Op::MemberStage => {
                self.change::<MemberStage>(request, |c| self.member_stage(&c, request))
            }
            Op::MemberCommit => reply_to::<MemberCommit>(request.args, |c| self.member_commit(&c)),
            Op::MemberAbort => reply_to::<MemberAbort>(request.args, |c| self.member_abort(&c)),
            Op::MemberHeld => reply_to::<MemberHeld>(request.args, |c| self.member_held(&c)),
            Op::MemberRead => self.member_read(request),
            Op::MemberInstall => {
                reply_to::<MemberInstall>(request.args, |c| self.member_install(&c, request))
            }
            Op::MemberForget => reply_to::<MemberForget>(request.args, |c| self.member_forget(&c)),
            Op::MemberChanged => {
                reply_to::<MemberChanged>(request.args, |c| self.member_changed(&c))
            }
            _ => Reply::failed(Status::NOTSUP),
        }
    }

    /// Runs a change on behalf of the request's session, if that is not fenced.
    fn change<C: Call>(
        &self,
        request: &Request<'_>,
        f: impl FnOnce(C) -> Result<C::Reply, Status>,
    ) -> Reply {
        match self.admission.admit(SessionId(request.context.session), request.context.sequence) {
            Ok(_admitted) => reply_to::<C>(request.args, f),
            Err(status) => Reply::failed(status),
        }
    }

    fn write(&self, call: &DataWrite, request: &Request<'_>) -> Result<WriteReply, Status> {
        check_range(call.key, call.offset, request.payload.len())?;
        let store = self.store(call.target)?;
        let (payer, data) = (payer_of(request, call.room), request.payload);
        let done = store.write_for(payer, call.key, call.offset, data, call.durability)?;
        Ok(WriteReply { boot: store.boot(), allocated: done.allocated_bytes })
    }

    fn read(&self, request: &Request<'_>) -> Reply {
        let mut buf = request.buffers.take();
        let mut reply = reply_to::<DataRead>(request.args, |call| {
            check_range(call.key, call.offset, call.len as usize)?;
            buf.set_len(call.len as usize);
            self.store(call.target)?.read(call.key, call.offset, &mut buf)?;
            self.admission.check_lease()
        });
        if reply.status == Status::OK {
            reply.payload = Some(buf);
        }
        reply
    }

    fn room(&self, call: &DataRoom, request: &Request<'_>) -> Result<RoomReply, Status> {
        let (store, session) = (self.store(call.target)?, SessionId(request.context.session));
        let (promised, left) = store.promise_room(session, call.needed, call.wanted);
        Ok(RoomReply { boot: store.boot(), promised, left })
    }

    fn flush(&self, call: &DataFlush) -> Result<FlushReply, Status> {
        let store = self.store(call.target)?;
        store.flush()?;
        Ok(FlushReply { boot: store.boot() })
    }

    fn punch(&self, call: &DataPunch) -> Result<PunchReply, Status> {
        check_range(call.key, call.offset, 0)?;
        let store = self.store(call.target)?;
        let freed = store.punch(call.key, call.offset, call.len)?;
        Ok(PunchReply { boot: store.boot(), freed })
    }

    fn trim(&self, call: &DataTrim) -> Result<PunchReply, Status> {
        check_range(call.key, call.offset, 0)?;
        let store = self.store(call.target)?;
        let freed = store.trim_zeros(call.key, call.offset, call.len)?;
        Ok(PunchReply { boot: store.boot(), freed })
    }

    fn truncate(&self, call: &DataTruncate) -> Result<PunchReply, Status> {
        let entered = call.within.map(|(group, epoch)| self.epochs.enter(group, epoch));
        let _entered = entered.transpose()?;
        let store = self.store(call.target)?;
        let freed = store.truncate(call.object, call.from)?;
        store.flush()?;
        Ok(PunchReply { boot: store.boot(), freed })
    }
}

/// Whose programs' bytes a request carries.
pub(crate) fn payer_of(request: &Request<'_>, room: Room) -> Payer {
    match room {
        Room::Promised => Payer::Session(SessionId(request.context.session)),
        Room::Unpromised => Payer::Nobody,
    }
}

/// A range must lie within the longest chunk and one frame, in a chunk that callers may name.
pub(crate) fn check_range(key: ChunkKey, offset: u32, len: usize) -> Result<(), Status> {
    let end = offset as u64 + len as u64;
    let within = len <= MAX_PAYLOAD && end <= u64::from(MAX_CHUNK);
    if within && is_base(key) { Ok(()) } else { Err(Status::INVAL) }
}

impl Drop for TargetServer {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Relaxed);
    }
}
