//! The client's API: its life, attributes and layouts. Names are in `names.rs`, file data in
//! `file.rs`.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use nuri_proto::Status;
use nuri_proto::clock::REQUEST;
use nuri_proto::id::{Ino, SessionId};
use nuri_proto::limit::MAX_INLINE;
use nuri_proto::op::meta::{
    Acquire, Attr, FileRecord, GetAttr, InodeReply, LeaseMode, RemoveReply, SetAttr, TruncateDone,
};
use nuri_proto::range_map::Span;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};

use crate::api::Accesses;
use crate::api::file::Handle;
use crate::inode::deferred_unlink::DeferredUnlinks;
use crate::inode::dentry_cache::DentryCache;
use crate::inode::release::{FlushedSteps, Releaser};
use crate::inode::table::InodeTable;
use crate::inode::trim::Trim;
use crate::inode::{FileData, Inode, InodeState, Looking};
use crate::journal::{Journal, JournalParts};
use crate::lease::invalidate::Awaiting;
use crate::lease::range::Wanted;
use crate::lease::recall::KernelCache;
use crate::lock::LockClient;
use crate::readahead::Fetcher;
use crate::reservation::ledger::ReservationLedger;
use crate::session::MetaSession;
use crate::thread_pool::ThreadPool;
use crate::writeback::Pipeline;
use nuri_volume::transfer::{Links, MOST_STREAMS, MOST_THREADS};
use nuri_volume::{Cluster, DataPlane};

/// Settings of a client.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Shown in status and logs: host and mount point.
    pub name: String,
    /// Inodes beyond which those that no program uses are forgotten.
    pub inodes: usize,
    /// Reads mark access times.
    pub marks_reads: bool,
}

/// A client of a space.
pub struct Client {
    pub(crate) shared: Arc<Shared>,
}

/// State shared with the client's workers.
pub(crate) struct Shared {
    pub(crate) cluster: Cluster,
    pub(crate) data: DataPlane,
    pub(crate) session: Arc<MetaSession>,
    pub(crate) inodes: Arc<InodeTable>,
    pub(crate) releaser: Arc<Releaser>,
    pub(crate) pipeline: Pipeline,
    pub(crate) reservations: ReservationLedger,
    pub(crate) fetcher: Fetcher,
    pub(crate) kernel: RwLock<Option<Arc<dyn KernelCache>>>,
    /// Replies that carry cache times hold it shared until the kernel has them.
    pub(crate) gate: RwLock<()>,
    pub(crate) handles: Mutex<HashMap<u64, Arc<Handle>>>,
    pub(crate) next_handle: AtomicU64,
    pub(crate) orphans: Mutex<Vec<Ino>>,
    pub(crate) deferred: Arc<DeferredUnlinks>,
    pub(crate) links: Links,
    pub(crate) accesses: Accesses,
    pub(crate) locks: LockClient,
    pub(crate) journal: Arc<Journal>,
    pub(crate) dentries: Arc<DentryCache>,
    pub(crate) trim: Trim,
    pub(crate) threads: ThreadPool,
    /// As in [`ClientConfig`].
    pub(crate) most_inodes: usize,
    pub(crate) marks_reads: bool,
}

/// A lease that was asked for.
pub(crate) struct Asked {
    pub(crate) mode: LeaseMode,
    /// Since when it was held before the call.
    pub(crate) before: Option<u64>,
    /// A capability may be set on the file.
    pub(crate) has_capability: bool,
}

/// Which bytes an operation reads or writes.
#[derive(Clone, Copy)]
enum Bytes {
    /// It is not known what the kernel keeps locked for it.
    None,
    Read(Span),
    Written(Wanted),
}

impl Bytes {
    /// Whether the operation must wait while a lease is given back: else the recall of a file that
    /// is written all the time comes to no end. It may, because the recall knows which page the
    /// kernel keeps locked for it. Reads of many programs would take all requests of the mount.
    fn waits_for_recall(self, state: &InodeState) -> bool {
        matches!(self, Bytes::Written(_)) && state.hold.revoking
    }
}

/// An operation that runs under a lease; ends when dropped.
pub(crate) struct Entered(pub(crate) Arc<Inode>);

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl Shared {
    /// Opens the session, and builds each part with what it works with.
    fn new(cluster: &Cluster, config: &ClientConfig) -> Result<Shared, Status> {
        let session = Arc::new(MetaSession::open(cluster, &config.name)?);
        let data = DataPlane::new(cluster);
        let pipeline = Pipeline::default();
        let inodes = Arc::new(InodeTable::new(session.clone()));
        let dentries = Arc::new(DentryCache::new(inodes.clone(), session.clone()));
        let flushed = Arc::new(FlushedSteps::default());
        let releaser = Releaser::new(inodes.clone(), dentries.clone(), flushed.clone());
        let (releaser, deferred) =
            (Arc::new(releaser), Arc::new(DeferredUnlinks::new(inodes.clone())));
        let journal = Arc::new(Journal::new(JournalParts {
            inodes: inodes.clone(),
            session: session.clone(),
            data: data.clone(),
            budget: pipeline.budget.clone(),
            releaser: releaser.clone(),
            deferred: deferred.clone(),
            flushed,
        }));
        let locks = LockClient::new(session.clone(), journal.clone());
        Ok(Shared {
            cluster: cluster.clone(),
            data,
            session,
            inodes,
            releaser,
            pipeline,
            reservations: ReservationLedger::default(),
            fetcher: Fetcher::default(),
            kernel: RwLock::new(None),
            gate: RwLock::new(()),
            handles: Mutex::default(),
            next_handle: AtomicU64::new(1),
            orphans: Mutex::default(),
            deferred,
            links: Links::default(),
            accesses: Accesses::default(),
            locks,
            journal,
            dentries,
            trim: Trim::default(),
            threads: ThreadPool::default(),
            most_inodes: config.inodes,
            marks_reads: config.marks_reads,
        })
    }

    /// Enters an operation on data under at least `need`; asks the server where necessary.
    pub(crate) fn enter(&self, ino: Ino, need: LeaseMode) -> Result<Entered, Status> {
        self.enter_with(ino, need, Bytes::None)
    }

    /// Enters a read of some bytes.
    pub(crate) fn enter_read(&self, ino: Ino, bytes: Span) -> Result<Entered, Status> {
        self.enter_with(ino, LeaseMode::Read, Bytes::Read(bytes))
    }

    /// Enters a write of some bytes.
    pub(crate) fn enter_write(&self, ino: Ino, wanted: Wanted) -> Result<Entered, Status> {
        self.enter_with(ino, LeaseMode::Write, Bytes::Written(wanted))
    }

    fn enter_with(&self, ino: Ino, need: LeaseMode, bytes: Bytes) -> Result<Entered, Status> {
        let start = Instant::now();
        if let (Bytes::None, Some(node)) = (bytes, self.inodes.find(ino)) {
            node.yield_to_recall();
        }
        loop {
            let entered = self.inodes.with(ino, |node, state| {
                let in_part = || match bytes {
                    Bytes::Written(wanted) => state.writes_part(wanted.span),
                    _ => false,
                };
                let have = state.file.is_some() && (state.hold.mode >= Some(need) || in_part());
                let enters = have && !bytes.waits_for_recall(state);
                enters.then(|| {
                    state.active += 1;
                    state.reads += u64::from(need == LeaseMode::Read);
                    Entered(node.clone())
                })
            });
            match entered {
                Some(entered) if self.session.trusts_leases() => return Ok(entered),
                Some(_) => self.wait_for_server(),
                None => self.wait_or_acquire(ino, need, bytes)?,
            }
            if start.elapsed() > REQUEST {
                return Err(Status::IO);
            }
        }
    }

    /// Waits for the end of an own recall, else asks for the lease. The kernel keeps pages of the
    /// operation locked meanwhile.
    fn wait_or_acquire(&self, ino: Ino, need: LeaseMode, bytes: Bytes) -> Result<(), Status> {
        let node = self.inodes.with(ino, |node, _| node.clone());
        let _awaiting = match bytes {
            Bytes::None => None,
            Bytes::Read(span) => Some(Awaiting::read(node.clone(), span)),
            Bytes::Written(wanted) => Some(Awaiting::write(node.clone(), wanted.span)),
        };
        if node.wait_for_recall(|state| bytes.waits_for_recall(state)) {
            return Ok(());
        }
        match bytes {
            Bytes::Written(wanted) => self.acquire_part(ino, wanted),
            _ => self.acquire(ino, need),
        }
    }

    /// Enters an operation that an own recall waits for, under whatever lease is being recalled.
    pub(crate) fn enter_recalled(&self, ino: Ino, bytes: Span) -> Option<Entered> {
        let node = self.inodes.find(ino)?;
        let mut state = node.state.lock();
        let all = state.hold.revoking && (state.hold.mode.is_some() || state.parts.is_some());
        let under_recall = all || state.leaving.iter().any(|leaving| leaving.meets(bytes));
        if !under_recall || state.file.is_none() || !self.session.trusts_leases() {
            return None;
        }
        state.active += 1;
        drop(state);
        Some(Entered(node))
    }

    pub(crate) fn acquire(&self, ino: Ino, mode: LeaseMode) -> Result<(), Status> {
        self.journal.flush_of(ino)?;
        let _asking = self.ask_whole(ino)?;
        let session = self.session.id();
        let before = self.inodes.with(ino, |_, state| state.held_since(mode));
        let reply = self.session.call(&Acquire { ino, mode })?;
        let asked = Asked { mode, before, has_capability: true };
        self.granted(session, &reply.inode, reply.file, asked)
    }

    /// Takes over what was asked for; where it was not granted the caller asks again.
    pub(crate) fn granted(
        &self,
        session: SessionId,
        inode: &InodeReply,
        record: Option<FileRecord>,
        Asked { mode, before, has_capability }: Asked,
    ) -> Result<(), Status> {
        let Some(record) = record else {
            return Err(if inode.attr.is_dir() { Status::ISDIR } else { Status::INVAL });
        };
        self.session.saw(&inode.attr);
        let entered = self.inodes.with(inode.attr.ino, |node, state| {
            let (lease, standing) = (inode.lease, self.session.standing());
            state.apply(&inode.attr, lease, standing);
            // Another grant may count where this one does not: its answer told of something newer.
            let counts = match lease {
                Some(grant) => state.hold.counts(grant, standing),
                // Our own recall is under way, and may wait for us: the old lease is good for
                // what was answered while it was held.
                None => before.is_some() && before == state.held_since(mode),
            };
            // Counted from here on: a recall waits until the data is taken over.
            let granted = counts && state.hold.mode >= Some(mode);
            state.active += u32::from(granted);
            if granted && !has_capability {
                state.absent.note_no_capability();
            }
            granted.then(|| Entered(node.clone()))
        });
        let Some(entered) = entered else {
            // The end of our own recall comes first.
            std::thread::sleep(Duration::from_millis(1));
            return Ok(());
        };
        let lies_inline = record.inline.is_some() && inode.attr.size > MAX_INLINE;
        if lies_inline && mode == LeaseMode::Read {
            // Its bytes have to be moved, which a reader may not.
            drop(entered);
            return self.acquire(inode.attr.ino, LeaseMode::Write);
        }
        self.take_over(session, &entered, &inode.attr, record, mode)
    }

    /// Takes over a file's data record under the lease that came with it, one at a time. What
    /// another thread took over meanwhile stays: it may have written since.
    fn take_over(
        &self,
        session: SessionId,
        entered: &Entered,
        attr: &Attr,
        record: FileRecord,
        mode: LeaseMode,
    ) -> Result<(), Status> {
        let node = &entered.0;
        let _one_at_a_time = node.taking_over.lock();
        // What was taken over for parts knows too little, unless it still has to be kept.
        let serves = |f: &FileData| {
            (mode == LeaseMode::Read || f.is_writable) && (f.beside.is_none() || f.is_dirty())
        };
        if node.state.lock().file.as_ref().is_some_and(|f| serves(f)) {
            return Ok(());
        }
        self.data.groups().forget_object(record.object);
        if let (Some(from), LeaseMode::Write) = (record.punch_from, mode) {
            self.finish_truncation(session, node.ino, &record, from)?;
        }
        let mut state = node.state.lock();
        let is_writable = mode == LeaseMode::Write;
        match &mut state.file {
            Some(file) if file.is_dirty() => file.is_writable |= is_writable,
            file => {
                let data = FileData::new(session, record, attr);
                *file = Some(Box::new(FileData { is_writable, ..data }));
            }
        }
        Ok(())
    }

    /// A truncation that its client did not finish: under the write lease, before any growth.
    fn finish_truncation(
        &self,
        session: SessionId,
        ino: Ino,
        record: &FileRecord,
        from: u64,
    ) -> Result<(), Status> {
        self.data.truncate(session, &record.layout, record.object, from)?;
        self.session.change(&TruncateDone { ino }, &[])
    }

    pub(crate) fn removed(&self, reply: RemoveReply) {
        if reply.orphan {
            self.note_orphan(reply.ino);
        }
        // Link count and change time are others now.
        self.forget_attr(reply.ino);
    }

    pub(crate) fn forget_attr(&self, ino: Ino) {
        if let Some(node) = self.inodes.find(ino) {
            // What is buffered stays and covers what is fetched anew.
            let mut state = node.state.lock();
            (state.attr, state.forgotten) = (None, state.forgotten + 1);
        }
    }
}

impl Client {
    /// Opens a session and starts the workers.
    ///
    /// # Errors
    /// Where the metadata server does not answer within the request time.
    pub fn start(cluster: &Cluster, config: &ClientConfig) -> Result<Client, Status> {
        let shared = Arc::new(Shared::new(cluster, config)?);
        let spawn = |name: &str, f: fn(&Arc<Shared>)| {
            let shared = shared.clone();
            let body = move || f(&shared);
            std::thread::Builder::new().name(name.into()).spawn(body).map_err(|_| Status::NOMEM)
        };
        for _ in 0..MOST_STREAMS {
            spawn("push", |s| s.push_worker())?;
        }
        for _ in 0..MOST_THREADS {
            spawn("fetch", |s| s.fetch_worker())?;
        }
        spawn("commit", |s| s.commit_worker())?;
        spawn("repair", |s| s.repair_worker())?;
        spawn("room", |s| s.room_worker())?;
        spawn("flush", |s| s.flush_worker())?;
        spawn("journal", |s| s.journal.run())?;
        spawn("locks", |s| s.locks.run())?;
        spawn("events", |s| s.event_worker())?;
        spawn("housekeeper", |s| s.housekeeper())?;
        spawn("trim", |s| s.trim_worker())?;
        spawn("lease-watch", |s| s.lease_watch())?;
        Ok(Client { shared })
    }

    /// Locks of programs.
    pub fn locks(&self) -> &LockClient {
        &self.shared.locks
    }

    /// Whom to tell when leases are recalled.
    pub fn set_kernel_cache(&self, kernel: Arc<dyn KernelCache>) {
        *self.shared.kernel.write() = Some(kernel);
    }

    /// Inodes that are remembered.
    pub fn inodes(&self) -> usize {
        self.shared.inodes.count()
    }

    /// The session's number.
    pub fn session(&self) -> u64 {
        self.shared.session.id().0
    }

    /// Where the node that answers for the cluster listens.
    pub fn authority(&self) -> String {
        self.shared.cluster.authority().to_owned()
    }

    /// Writes out everything that is buffered and publishes it.
    ///
    /// # Errors
    /// `IO` where bytes could not be kept, now or since the last time with nobody to tell.
    pub fn sync_all(&self) -> Result<(), Status> {
        // What cannot be told now is told later.
        let told = self.shared.journal.flush();
        let is_kept = self.shared.sync_files();
        told.and(if is_kept { Ok(()) } else { Err(Status::IO) })
    }

    /// Syncs everything and ends the session.
    ///
    /// # Errors
    /// As [`Client::sync_all`].
    pub fn close(&self) -> Result<(), Status> {
        let synced = self.sync_all();
        self.shared.session.stop();
        self.shared.session.close();
        synced
    }

    /// Held while a reply with cache times is built and sent.
    pub fn reply_gate(&self) -> RwLockReadGuard<'_, ()> {
        self.shared.gate.read()
    }

    /// What the kernel may cache of an inode, and for how long: its attributes as they are now,
    /// where its lease covers them. Those of an answer may be older than the lease, which goes and
    /// comes back at any time before the gate.
    pub fn cacheable(&self, ino: Ino) -> Option<(Attr, Duration)> {
        let node = self.shared.inodes.find(ino)?;
        let state = node.state.lock();
        let attr = state.view().filter(|_| state.hold.is_cacheable())?;
        Some((attr, self.shared.session.kernel_time()))
    }

    /// Whether parts of the file were written here while others wrote elsewhere in it: they are
    /// taken back as soon as anybody looks, so an answer about the file may cross that.
    pub fn is_in_parts(&self, ino: Ino) -> bool {
        self.shared.inodes.find(ino).is_some_and(|node| {
            let state = node.state.lock();
            state.parts.is_some() || state.has_part_pages
        })
    }

    /// Whether names of a directory may be cached: its lease is held, since so many were lost.
    pub fn names_held(&self, dir: Ino) -> Option<u64> {
        self.shared.inodes.find(dir)?.state.lock().names_held()
    }

    /// How long the kernel may cache what was found out of a name, where `before` is what
    /// `names_held` said before. A lease that was granted or came back meanwhile says nothing of
    /// it.
    pub fn names_time(&self, dir: Ino, before: Option<u64>) -> Duration {
        let Some(node) = self.shared.inodes.find(dir) else { return Duration::ZERO };
        let mut state = node.state.lock();
        if before.is_none() || state.names_held() != before {
            return Duration::ZERO;
        }
        // The next recall ends them: whoever found the name, the kernel has it now.
        state.names = true;
        self.shared.session.kernel_time()
    }

    /// The kernel dropped references.
    pub fn forget(&self, ino: Ino, count: u64) {
        let node = self.shared.inodes.with(ino, |node, state| {
            state.lookups = state.lookups.saturating_sub(count);
            (state.lookups == 0).then(|| node.clone())
        });
        if let Some(node) = node {
            self.shared.releaser.drop_if_unused(&node);
        }
    }

    /// Attributes.
    ///
    /// # Errors
    /// The server's.
    pub fn getattr(&self, ino: Ino) -> Result<Attr, Status> {
        let cached = self.shared.inodes.find(ino).and_then(|node| {
            let state = node.state.lock();
            if state.hold.mode.is_some() { state.view() } else { None }
        });
        match cached.filter(|_| self.shared.session.trusts_leases()) {
            Some(attr) => Ok(attr),
            None => {
                self.shared.journal.flush_of(ino)?;
                let (in_parts, _looking) = self
                    .shared
                    .inodes
                    .with(ino, |node, state| (state.parts.is_some(), Looking::begin(node, state)));
                let _asking = in_parts.then(|| self.shared.ask_whole(ino)).transpose()?;
                Ok(self.shared.inodes.learn(&self.shared.session.call(&GetAttr { ino })?))
            }
        }
    }

    /// Changes attributes, truncation included.
    ///
    /// # Errors
    /// The server's, or a target's for a truncation.
    pub fn setattr(&self, change: &SetAttr) -> Result<Attr, Status> {
        if change.size.is_some() {
            return self.truncate(change);
        }
        // An earlier read must not overwrite an access time that is set here.
        let _no_access = change.atime.map(|_| self.shared.accesses.withdraw(change.ino));
        if let Some(attr) = self.shared.journal.setattr_journalled(change) {
            return Ok(attr);
        }
        self.shared.journal.flush()?;
        let node = self.shared.inodes.find(change.ino);
        // A publication on its way must not overwrite the times that are set here.
        let _publishing = node.as_ref().map(|n| n.sync.lock());
        let reply = self.shared.session.change(change, &[])?;
        self.shared.session.saw(&reply.inode.attr);
        Ok(self.shared.inodes.with(change.ino, |_, state| {
            if change.mtime.is_some()
                && let Some(file) = &mut state.file
            {
                file.mtime = None;
            }
            if change.atime.is_some() {
                state.accessed = None;
            }
            state.forget_mode();
            state.apply(&reply.inode.attr, reply.inode.lease, self.shared.session.standing());
            state.shown(reply.inode.attr)
        }))
    }
}
