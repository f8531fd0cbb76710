//! Serves the stores of one node: opens them, answers data calls, runs their checkpoints.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nuri_io::clock::{Clock, SystemClock};
use nuri_io::disk::Disk;
use nuri_io::file::OpenMode;
use nuri_io::lock::{ExclusiveLock, LockError};
use nuri_io::uring::open_disk;
use nuri_proto::Status;
use nuri_proto::id::{BootId, ChunkKey, ClusterId, Incarnation, SessionId, TargetId};
use nuri_proto::limit::{MAX_CHUNK, MAX_PAYLOAD};
use nuri_proto::map::{Map, TargetState};
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
use crate::store::{
    ChunkStore, FormatError, FormatOptions, OpenError, Payer, Proof, StoreConfig, StoreError,
    is_base,
};

/// Name of the store in a target's directory.
pub const STORE_FILE: &str = "store";
const IDLE: Duration = Duration::from_millis(500);
/// Most that a target gives back to the file system under it in one go, bytes.
const TRIM_BYTES: u64 = 64 << 20;

/// Why a target cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    #[error("target {0}: {1}")]
    Lock(String, LockError),
    #[error("target {0}: {1}")]
    Open(String, OpenError),
    #[error("target {0}: {1}")]
    Format(String, FormatError),
    #[error("target {0}: {1}")]
    Io(String, std::io::Error),
    #[error("target {0} is not empty and holds no store; choose an empty directory or device")]
    NotEmpty(String),
    #[error("target {0} belongs to another space ({1}); wipe it first if its data is not needed")]
    OtherSpace(String, ClusterId),
    #[error("the system gave no random bytes")]
    Random,
}

/// One store and where it lies.
pub struct Target {
    path: PathBuf,
    store: ChunkStore<Arc<dyn Disk>>,
    _lock: Option<ExclusiveLock>,
}

/// The store of a directory, or the device itself.
pub fn store_path(path: &Path) -> PathBuf {
    if path.is_dir() { path.join(STORE_FILE) } else { path.to_owned() }
}

fn random() -> Result<u64, TargetError> {
    getrandom::u64().map_err(|_| TargetError::Random)
}

impl Target {
    /// Opens the target at a directory or block device; an empty one is formatted first with
    /// `capacity` bytes (a device: at most its own length).
    ///
    /// # Errors
    /// A target in use, damaged, of another space, or not empty; nothing was changed then.
    pub fn open(path: &Path, cluster: ClusterId, capacity: u64) -> Result<Target, TargetError> {
        let name = || path.display().to_string();
        let lock = ExclusiveLock::acquire(path).map_err(|e| TargetError::Lock(name(), e))?;
        let file = store_path(path);
        let disk = open_disk(&file, OpenMode::Create).map_err(|e| TargetError::Io(name(), e))?;
        let length = disk.len().map_err(|e| TargetError::Io(name(), e))?;
        if is_blank(&*disk, length).map_err(|e| TargetError::Io(name(), e))? {
            if path.is_dir() && foreign_files(path) {
                let _ = std::fs::remove_file(&file);
                return Err(TargetError::NotEmpty(name()));
            }
            let capacity_bytes = if path.is_dir() { capacity } else { length };
            let options = FormatOptions {
                cluster,
                target: None,
                incarnation: Incarnation(random()?),
                capacity_bytes,
                log_bytes: FormatOptions::LOG_BYTES,
            };
            ChunkStore::format(&disk, options).map_err(|e| {
                if path.is_dir() {
                    let _ = std::fs::remove_file(&file);
                }
                TargetError::Format(name(), e)
            })?;
        }
        let boot = BootId(random()?);
        let store = ChunkStore::open(disk, boot, StoreConfig::default())
            .map_err(|e| TargetError::Open(name(), e))?;
        if store.cluster() != cluster {
            return Err(TargetError::OtherSpace(name(), store.cluster()));
        }
        Ok(Target { path: path.to_owned(), store, _lock: Some(lock) })
    }

    /// A store that is open already, on a disk of the caller's.
    pub fn over(store: ChunkStore<Arc<dyn Disk>>) -> Target {
        Target { path: PathBuf::new(), store, _lock: None }
    }

    /// How the node announces it.
    pub fn announce(&self) -> JoinTarget {
        let usage = self.store.usage();
        let superblock = self.store.superblock();
        JoinTarget {
            id: self.store.target(),
            incarnation: superblock.incarnation,
            sequence: superblock.sequence,
            boot: self.store.boot(),
            is_doubted: superblock.is_doubted(),
            map_epoch: superblock.map_epoch,
            path: self.path.display().to_string(),
            size: usage.size,
            used: usage.used,
        }
    }

    /// Writes the id that the authority gave into the superblock, once: it took the target as it
    /// is.
    ///
    /// # Errors
    /// Where the superblock cannot be written.
    pub fn assign(&self, cluster: ClusterId, id: TargetId) -> Result<(), StoreError> {
        if self.store.target() != Some(id) {
            self.store.assign(cluster, id)?;
        }
        self.store.doubt(false)
    }

    /// The authority refused the target as an older state of itself.
    ///
    /// # Errors
    /// Where the superblock cannot be written.
    pub fn doubt(&self) -> Result<(), StoreError> {
        self.store.doubt(true)
    }

    fn report(&self) -> Option<TargetReport> {
        let usage = self.store.usage();
        let state = match self.store.is_in_service() {
            true => TargetState::Up,
            false => TargetState::Failed,
        };
        let id = self.store.target()?;
        let sequence = self.store.superblock().sequence;
        Some(TargetReport { id, state, size: usage.size, used: usage.used, sequence })
    }
}

/// Nothing was ever written: an empty file, or a device whose first blocks are zeros.
fn is_blank(disk: &dyn Disk, length: u64) -> std::io::Result<bool> {
    let mut head = nuri_io::buf::AlignedBuf::zeroed(length.min(64 << 10) as usize & !4095);
    disk.read_at(0, &mut head)?;
    Ok(head.iter().all(|b| *b == 0))
}

fn foreign_files(dir: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(dir) else { return true };
    entries.flatten().any(|e| e.file_name() != STORE_FILE && e.file_name() != "lost+found")
}

/// All targets of a node.
pub struct TargetServer {
    /// Renewed by whoever sends the node's heartbeats.
    pub admission: Admission,
    /// Raised by whoever fetches the map.
    pub epochs: Epochs,
    targets: Vec<Arc<Target>>,
    stopping: Arc<AtomicBool>,
}

impl TargetServer {
    /// Serves; whoever calls looks after checkpoints. For the simulator.
    pub fn new(targets: Vec<Target>, clock: Arc<dyn Clock>) -> TargetServer {
        let targets: Vec<_> = targets.into_iter().map(Arc::new).collect();
        let admission = Admission::new(clock);
        let obeyed = targets.iter().map(|t| t.store.superblock().map_epoch).max();
        TargetServer { admission, epochs: Epochs::since(obeyed), targets, stopping: Arc::default() }
    }

    /// Starts the checkpoint threads.
    pub fn start(targets: Vec<Target>) -> TargetServer {
        let server = TargetServer::new(targets, SystemClock::shared());
        for target in &server.targets {
            let (target, stopping) = (target.clone(), server.stopping.clone());
            let body = move || {
                while !stopping.load(Ordering::Relaxed) {
                    if !target.store.wait_for_work(IDLE) {
                        target.store.trim(TRIM_BYTES);
                    } else if let Err(error) = target.store.checkpoint() {
                        eprintln!("target {}: {error}", target.path.display());
                        std::thread::sleep(IDLE);
                    }
                }
            };
            // Without the thread writers checkpoint by themselves.
            let _ = std::thread::Builder::new().name("checkpoint".into()).spawn(body);
        }
        server
    }

    /// How the node announces them.
    pub fn announce(&self) -> Vec<JoinTarget> {
        self.targets.iter().map(|t| t.announce()).collect()
    }

    /// Obeys the map from now on, once that is noted on every target.
    ///
    /// # Errors
    /// Where a target cannot note it.
    pub fn adopt(&self, map: &Map) -> Result<(), StoreError> {
        if map.epoch > self.epochs.adopted() {
            let in_service = self.targets.iter().filter(|t| t.store.is_in_service());
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
        self.targets.iter().filter_map(|t| t.report()).collect()
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
        target.map(|t| &t.store).ok_or(Status::RETRY)
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
                let extents = self.store(c.target)?.extents(c.key);
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
