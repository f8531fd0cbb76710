//! Composition of a client: builds the parts, gives each part what it works with, and starts the
//! workers.
//!
//! The calls of a front end are in `api/`. This file has only the calls about attributes and the
//! kernel's caches.

use std::sync::Arc;
use std::time::Duration;

use nuri_proto::Status;
use nuri_proto::id::Ino;
use nuri_proto::op::meta::{Attr, GetAttr, SetAttr};
use nuri_volume::transfer::{Links, MOST_STREAMS, MOST_THREADS};
use nuri_volume::{Cluster, DataPlane};
use parking_lot::{Mutex, RwLockReadGuard};

use crate::api::file::{Handles, ReadErrors};
use crate::housekeeping::Housekeeping;
use crate::inode::Looking;
use crate::inode::accesses::Accesses;
use crate::inode::deferred_unlink::DeferredUnlinks;
use crate::inode::dentry_cache::DentryCache;
use crate::inode::release::{FlushedSteps, Releaser};
use crate::inode::table::InodeTable;
use crate::inode::trim::Trim;
use crate::journal::{Journal, JournalParts};
use crate::lease::acquire::{LeaseParts, Leases};
use crate::lease::invalidate::{KernelCache, KernelCaches};
use crate::lease::recall::Recalls;
use crate::lock::LockClient;
use crate::readahead::Readahead;
use crate::reservation::charge::Reservations;
use crate::session::MetaSession;
use crate::thread_pool::ThreadPool;
use crate::writeback::budget::Budget;
use crate::writeback::{Writeback, WritebackParts};

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
///
/// The client only puts its parts together. Each part owns its state, and was given what it works
/// with.
pub struct Client {
    pub(crate) cluster: Cluster,
    pub(crate) data: DataPlane,
    pub(crate) session: Arc<MetaSession>,
    pub(crate) inodes: Arc<InodeTable>,
    pub(crate) dentries: Arc<DentryCache>,
    pub(crate) releaser: Arc<Releaser>,
    pub(crate) deferred: Arc<DeferredUnlinks>,
    pub(crate) journal: Arc<Journal>,
    pub(crate) reservations: Arc<Reservations>,
    pub(crate) writeback: Arc<Writeback>,
    pub(crate) budget: Arc<Budget>,
    pub(crate) leases: Arc<Leases>,
    pub(crate) kernel: Arc<KernelCaches>,
    pub(crate) locks: Arc<LockClient>,
    pub(crate) readahead: Arc<Readahead>,
    pub(crate) accesses: Arc<Accesses>,
    pub(crate) handles: Handles,
    pub(crate) read_errors: ReadErrors,
    /// What the servers said last of the space's size, use and files.
    pub(crate) counted: Mutex<Option<(u64, u64, u64)>>,
    pub(crate) links: Arc<Links>,
    pub(crate) threads: ThreadPool,
}

impl Client {
    /// Opens a session and starts the workers.
    ///
    /// # Errors
    /// Where the metadata server does not answer within the request time.
    pub fn start(cluster: &Cluster, config: &ClientConfig) -> Result<Client, Status> {
        let session = Arc::new(MetaSession::open(cluster, &config.name)?);
        let data = DataPlane::new(cluster);
        let (budget, flushed): (Arc<Budget>, Arc<FlushedSteps>) = Default::default();
        let inodes = Arc::new(InodeTable::new(session.clone()));
        let dentries = Arc::new(DentryCache::new(inodes.clone(), session.clone()));
        let releaser = Arc::new(Releaser::new(inodes.clone(), dentries.clone(), flushed.clone()));
        let deferred = Arc::new(DeferredUnlinks::new(inodes.clone()));
        let journal = Arc::new(Journal::new(JournalParts {
            inodes: inodes.clone(),
            session: session.clone(),
            cluster: cluster.clone(),
            data: data.clone(),
            budget: budget.clone(),
            releaser: releaser.clone(),
            deferred: deferred.clone(),
            flushed,
        }));
        let reservations =
            Arc::new(Reservations::new(cluster, &data, session.clone(), journal.clone()));
        let writeback = Arc::new(Writeback::new(WritebackParts {
            data: data.clone(),
            session: session.clone(),
            inodes: inodes.clone(),
            releaser: releaser.clone(),
            journal: journal.clone(),
            reservations: reservations.clone(),
            budget: budget.clone(),
            untold: journal.untold(),
        }));
        let threads = ThreadPool::default();
        let kernel = Arc::new(KernelCaches::new(threads.clone()));
        let leases = Arc::new(Leases::new(LeaseParts {
            session: session.clone(),
            inodes: inodes.clone(),
            journal: journal.clone(),
            data: data.clone(),
            writeback: writeback.clone(),
            kernel: kernel.clone(),
            deferred: deferred.clone(),
        }));
        let locks = Arc::new(LockClient::new(session.clone(), journal.clone()));
        let readahead = Arc::new(Readahead::new(&data, session.clone()));
        let accesses = Accesses::new(inodes.clone(), session.clone(), config.marks_reads);
        let client = Client {
            cluster: cluster.clone(),
            data,
            session,
            inodes,
            dentries,
            releaser,
            deferred,
            journal,
            reservations,
            writeback,
            budget,
            leases,
            kernel,
            locks,
            readahead,
            accesses: Arc::new(accesses),
            handles: Handles::default(),
            read_errors: ReadErrors::default(),
            counted: Mutex::default(),
            links: Arc::default(),
            threads,
        };
        client.start_workers(config.inodes)?;
        Ok(client)
    }

    fn start_workers(&self, most_inodes: usize) -> Result<(), Status> {
        let trim = Arc::new(Trim::new(
            self.session.clone(),
            self.inodes.clone(),
            self.releaser.clone(),
            (self.leases.clone(), self.kernel.clone()),
            most_inodes,
        ));
        let recalls = Recalls {
            cluster: self.cluster.clone(),
            session: self.session.clone(),
            inodes: self.inodes.clone(),
            journal: self.journal.clone(),
            leases: self.leases.clone(),
            locks: self.locks.clone(),
            kernel: self.kernel.clone(),
            deferred: self.deferred.clone(),
            trim: trim.clone(),
            threads: self.threads.clone(),
        };
        let housekeeping = Housekeeping {
            session: self.session.clone(),
            journal: self.journal.clone(),
            leases: self.leases.clone(),
            releaser: self.releaser.clone(),
            deferred: self.deferred.clone(),
            accesses: self.accesses.clone(),
            readahead: self.readahead.clone(),
        };
        for _ in 0..MOST_STREAMS {
            spawn("push", &self.writeback, |writeback| writeback.push_worker())?;
        }
        for _ in 0..MOST_THREADS {
            spawn("fetch", &self.readahead, |readahead| readahead.run())?;
        }
        spawn("commit", &self.writeback, |writeback| writeback.commit_worker())?;
        spawn("repair", &self.writeback, |writeback| writeback.repair_worker())?;
        let writeback = self.writeback.clone();
        spawn("room", &self.reservations, move |reservations| reservations.run(&*writeback))?;
        spawn("flush", &self.writeback, |writeback| writeback.flush_worker())?;
        spawn("journal", &self.journal, |journal| journal.run())?;
        spawn("locks", &self.locks, |locks| locks.run())?;
        spawn("lock-tells", &self.locks, |locks| locks.run_tells())?;
        spawn("events", &Arc::new(recalls), |recalls| recalls.run())?;
        spawn("housekeeper", &Arc::new(housekeeping), |housekeeping| housekeeping.run())?;
        spawn("trim", &trim, |trim| trim.run())?;
        spawn("lease-watch", &self.leases, |leases| leases.watch())
    }

    /// The locks of programs.
    pub fn locks(&self) -> &LockClient {
        &self.locks
    }

    /// Sets the kernel cache that is emptied when leases are recalled.
    pub fn set_kernel_cache(&self, kernel: Arc<dyn KernelCache>) {
        self.kernel.set(kernel);
    }

    /// Number of inodes that the client remembers.
    pub fn inodes(&self) -> usize {
        self.inodes.count()
    }

    /// Whether the metadata server was heard from lately. Otherwise another client may have the
    /// leases and locks by now, and this client could not be told.
    pub fn is_heard(&self) -> bool {
        self.session.trusts_leases()
    }

    /// The session's number.
    pub fn session(&self) -> u64 {
        self.session.id().0
    }

    /// The address of the node that answers for the cluster.
    pub fn authority(&self) -> String {
        self.cluster.authority().to_owned()
    }

    /// Writes out everything that is buffered and publishes it.
    ///
    /// # Errors
    /// `IO` where bytes could not be kept, now or since the last time with nobody to tell.
    pub fn sync_all(&self) -> Result<(), Status> {
        // What cannot be told now is told later.
        let told = self.journal.flush();
        let is_kept = self.writeback.sync_files();
        told.and(if is_kept { Ok(()) } else { Err(Status::IO) })
    }

    /// Syncs everything and ends the session.
    ///
    /// # Errors
    /// As [`Client::sync_all`].
    pub fn close(&self) -> Result<(), Status> {
        let synced = self.sync_all();
        self.session.stop();
        self.session.close();
        synced
    }

    /// Held while a reply with cache times is built and sent.
    pub fn reply_gate(&self) -> RwLockReadGuard<'_, ()> {
        self.kernel.gate()
    }

    /// What the kernel may cache of an inode, and for how long. That is the inode's attributes as
    /// they are now, where its lease covers them. The attributes of an answer may be older than the
    /// lease, because a lease can leave and come back at any time before the gate.
    pub fn cacheable(&self, ino: Ino) -> Option<(Attr, Duration)> {
        let node = self.inodes.find(ino)?;
        let state = node.state.lock();
        let attr = state.view().filter(|_| state.hold.is_cacheable())?;
        Some((attr, self.session.kernel_time()))
    }

    /// A program read the inode.
    pub fn note_access(&self, ino: Ino) {
        self.accesses.note(ino);
    }

    /// Whether ranges of the file were written here while other clients wrote other ranges. The
    /// ranges are recalled as soon as any client looks at the file, so an answer about the file may
    /// cross the recall.
    pub(crate) fn is_in_parts(&self, ino: Ino) -> bool {
        self.inodes.find(ino).is_some_and(|node| {
            let state = node.state.lock();
            state.parts.is_some() || state.has_part_pages
        })
    }

    /// Whether names of a directory may be cached, because the client holds its lease. The number
    /// counts the leases lost before.
    pub fn names_held(&self, dir: Ino) -> Option<u64> {
        self.inodes.find(dir)?.state.lock().names_held()
    }

    /// How long the kernel may cache the result of a look-up. `before` is what `names_held`
    /// returned before the look-up. A lease that was granted or came back meanwhile says nothing of
    /// the result.
    pub fn names_time(&self, dir: Ino, before: Option<u64>) -> Duration {
        let Some(node) = self.inodes.find(dir) else { return Duration::ZERO };
        let mut state = node.state.lock();
        if before.is_none() || state.names_held() != before {
            return Duration::ZERO;
        }
        // The next recall ends them: whoever found the name, the kernel has it now.
        state.names = true;
        self.session.kernel_time()
    }

    /// Notes that the kernel dropped references. Returns whether these were the last.
    pub fn forget(&self, ino: Ino, count: u64) -> bool {
        let node = self.inodes.with(ino, |node, state| {
            state.lookups = state.lookups.saturating_sub(count);
            (state.lookups == 0).then(|| node.clone())
        });
        if let Some(node) = &node {
            self.releaser.drop_if_unused(node);
        }
        node.is_some()
    }

    /// Reads attributes.
    ///
    /// # Errors
    /// The server's.
    pub fn getattr(&self, ino: Ino) -> Result<Attr, Status> {
        let cached = self.inodes.find(ino).and_then(|node| {
            let state = node.state.lock();
            if state.hold.mode.is_some() { state.view() } else { None }
        });
        match cached.filter(|_| self.session.trusts_leases()) {
            Some(attr) => Ok(attr),
            None => {
                self.journal.flush_of(ino)?;
                let (in_parts, _looking) = self
                    .inodes
                    .with(ino, |node, state| (state.parts.is_some(), Looking::begin(node, state)));
                let _asking = in_parts.then(|| self.leases.ask_whole(ino)).transpose()?;
                Ok(self.inodes.learn(&self.session.call(&GetAttr { ino })?))
            }
        }
    }

    /// Changes attributes, truncation included.
    ///
    /// # Errors
    /// The server's, or a target's for a truncation.
    pub fn setattr(&self, change: &SetAttr) -> Result<Attr, Status> {
        let changed = if change.size.is_some() {
            self.truncate(change)
        } else {
            // An earlier read must not overwrite an access time that is set here.
            let _no_access = change.atime.map(|_| self.accesses.withdraw(change.ino));
            if let Some(attr) = self.journal.setattr_journalled(change) {
                return Ok(attr);
            }
            self.set_directly(change)
        };
        if change.mode.is_some() {
            self.inodes.with(change.ino, |_, state| state.xattrs.doubt_list());
        }
        changed
    }

    /// By the server, without the size.
    fn set_directly(&self, change: &SetAttr) -> Result<Attr, Status> {
        self.journal.flush()?;
        let node = self.inodes.find(change.ino);
        // A publication on its way must not overwrite the times that are set here.
        let _publishing = node.as_ref().map(|n| n.sync.lock());
        let reply = self.session.change(change, &[])?;
        self.session.saw(&reply.inode.attr);
        Ok(self.inodes.with(change.ino, |_, state| {
            if change.mtime.is_some()
                && let Some(file) = &mut state.file
            {
                file.own.mtime_is_set();
            }
            if change.atime.is_some() {
                state.accessed = None;
            }
            state.forget_mode();
            state.apply(&reply.inode.attr, reply.inode.lease, self.session.standing());
            state.shown(reply.inode.attr)
        }))
    }
}

/// Starts a worker of a part.
fn spawn<P: Send + Sync + 'static>(
    name: &str,
    part: &Arc<P>,
    work: impl FnOnce(&Arc<P>) + Send + 'static,
) -> Result<(), Status> {
    let part = part.clone();
    let body = move || work(&part);
    let started = std::thread::Builder::new().name(name.into()).spawn(body);
    started.map(drop).map_err(|_| Status::NOMEM)
}
