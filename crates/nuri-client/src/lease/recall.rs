//! Receives recalls, and handles a change of the server or of the session.
//!
//! Every recall has its own thread, which holds no lock. What a recall does is in `give_back.rs`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nuri_proto::Status;
use nuri_proto::id::Ino;
use nuri_proto::op::meta::{Event, LeaseMode, Recall, RecallDone, Reclaim};
use nuri_volume::Cluster;

use crate::inode::Inode;
use crate::inode::deferred_unlink::DeferredUnlinks;
use crate::inode::table::InodeTable;
use crate::inode::trim::Trim;
use crate::journal::{Journal, Loss};
use crate::lease::acquire::Leases;
use crate::lease::invalidate::KernelCaches;
use crate::lock::LockClient;
use crate::session::MetaSession;
use crate::thread_pool::ThreadPool;

const RECLAIM_BATCH: usize = 2048;
/// How long the emptying of the kernel's caches is waited for.
const INVALIDATION: Duration = Duration::from_secs(1);

/// Hears the server's events and obeys them.
pub(crate) struct Recalls {
    pub(crate) cluster: Cluster,
    pub(crate) session: Arc<MetaSession>,
    pub(crate) inodes: Arc<InodeTable>,
    pub(crate) journal: Arc<Journal>,
    pub(crate) leases: Arc<Leases>,
    pub(crate) locks: Arc<LockClient>,
    pub(crate) kernel: Arc<KernelCaches>,
    pub(crate) deferred: Arc<DeferredUnlinks>,
    pub(crate) trim: Arc<Trim>,
    pub(crate) threads: ThreadPool,
}

impl Recalls {
    /// Hears the server's events for as long as the client lives.
    pub(crate) fn run(self: &Arc<Self>) {
        let mut acknowledged = 0;
        while !self.session.stopping() {
            match self.session.events(acknowledged) {
                Ok(reply) => {
                    acknowledged = reply.upto;
                    let known = self.session.server_boot.swap(reply.server_boot, Ordering::SeqCst);
                    if known != reply.server_boot {
                        acknowledged = 0;
                        self.reclaim(reply.server_boot);
                    }
                    reply.events.into_iter().for_each(|event| self.hear(event));
                }
                Err(Status::SESSION_GONE) if self.session.stopping() => return,
                Err(Status::SESSION_GONE) => {
                    acknowledged = 0;
                    self.session_lost();
                }
                Err(_) => {
                    std::thread::sleep(Duration::from_millis(50));
                    let _ = self.cluster.refresh();
                }
            }
        }
    }

    fn hear(self: &Arc<Self>, event: Event) {
        match event {
            Event::Recall(recall) => {
                let recalls = self.clone();
                if self.threads.start(move || recalls.obey(recall)).is_err() {
                    self.obey(recall);
                }
            }
            Event::Unlinked(ino) => self.deferred.defer(ino),
            Event::Lock(end) => self.locks.ended(end),
            Event::LockRecall(recall) => self.locks.recalled(recall),
            Event::Crowded { inodes } => self.trim.ask(inodes),
        }
    }

    fn obey(&self, recall: Recall) {
        let Recall { ino, number, keep, part } = recall;
        let mut settled = false;
        let kept = match (self.find_recalled(ino, number), part) {
            (Some(node), None) => self.leases.give_back(&node, number, keep, &mut settled),
            (Some(node), Some(part)) => {
                self.leases.give_part_back(&node, part);
                None
            }
            (None, _) => None,
        };
        let done = RecallDone { ino, number, kept, part, settled };
        if let Err(status) = self.session.call(&done)
            && !self.session.stopping()
        {
            tracing::warn!("client: answer to the recall of inode {ino} did not arrive: {status}");
        }
    }

    /// The inode of a recall, where it is known. One that is not has the recall noted before the
    /// last look: the grant that it takes back may be on its way, and the inode be known meanwhile.
    fn find_recalled(&self, ino: Ino, number: u64) -> Option<Arc<Inode>> {
        self.inodes.find(ino).or_else(|| {
            self.session.note_recall(ino, number);
            self.inodes.find(ino)
        })
    }

    /// The server restarted: tell it what is held here, before anybody else is served. One that
    /// restarts once more meanwhile is told everything again; one that could not be told all of it
    /// ends the session.
    fn reclaim(self: &Arc<Self>, boot: u64) {
        let held_locks = self.locks.restarted(boot);
        let nodes = self.inodes.all();
        let held = |n: &Arc<Inode>| {
            let state = n.state.lock();
            state.hold.mode.map(|mode| (n.ino, mode))
        };
        let open = |n: &&Arc<Inode>| n.state.lock().opens > 0;
        let mut open: Vec<_> = nodes.iter().filter(open).map(|n| n.ino).collect();
        let leases: Vec<_> = nodes.iter().filter_map(held).collect();
        self.leases.reclaim_parts(&nodes, boot);
        let (mut rest, mut rest_locks) = (leases.as_slice(), held_locks.as_slice());
        loop {
            let (batch, tail) = rest.split_at(rest.len().min(RECLAIM_BATCH));
            rest = tail;
            let now_open: Vec<_> = open.drain(..open.len().min(RECLAIM_BATCH)).collect();
            let (locks, tail) = rest_locks.split_at(rest_locks.len().min(RECLAIM_BATCH));
            rest_locks = tail;
            let more = !rest.is_empty() || !open.is_empty() || !rest_locks.is_empty();
            let (leases, held) = (batch.to_vec(), locks.to_vec());
            let parts = Vec::new();
            let server_boot = boot;
            let call = Reclaim { server_boot, leases, parts, open: now_open, locks: held, more };
            match self.session.call(&call) {
                Ok(reply) => {
                    self.reclaimed(batch, &reply.leases);
                    self.locks.reclaimed(locks, &reply.locks);
                }
                Err(Status::SESSION_GONE) => return self.session_lost(),
                Err(Status::STALE) => return,
                Err(status) => {
                    return tracing::warn!("client: leases could not be reclaimed: {status}");
                }
            }
            if !more {
                return self.locks.ask_again();
            }
        }
    }

    fn reclaimed(
        self: &Arc<Self>,
        asked: &[(Ino, LeaseMode)],
        grants: &[Option<nuri_proto::op::meta::Grant>],
    ) {
        let mut lost = Vec::new();
        for ((ino, _), grant) in asked.iter().zip(grants) {
            let Some(node) = self.inodes.find(*ino) else {
                continue;
            };
            match grant {
                Some(grant) => {
                    let mut state = node.state.lock();
                    state.hold.reclaimed(*grant);
                }
                None => lost.push(node),
            }
        }
        self.kernel.doubt(&lost);
        lost.iter().for_each(|node| {
            self.leases.give_up(node, "the restarted server has another holder");
        });
        let _ = self.kernel.empty_kernel_apart(lost).recv_timeout(INVALIDATION);
    }

    /// The server ended the session: nothing cached is valid, nothing unsynced can be kept.
    fn session_lost(self: &Arc<Self>) {
        tracing::warn!("client: the session ended; cached data is dropped, a new session begins");
        self.session.void_grants();
        self.journal.lose(Loss::OfSession);
        self.locks.session_ended();
        let nodes = self.inodes.all();
        self.kernel.doubt(&nodes);
        for node in &nodes {
            let held = {
                let state = node.state.lock();
                state.hold.mode.is_some() || state.parts.is_some()
            };
            if held {
                self.leases.give_up(node, "the session ended");
            }
        }
        // And what was logged under a lease that was not given up yet.
        self.journal.lose(Loss::OfSession);
        // What still blocks then is a page whose read waits for the new session.
        let _ = self.kernel.empty_kernel_apart(nodes).recv_timeout(INVALIDATION);
        while !self.session.stopping() && self.session.renew().is_err() {
            std::thread::sleep(Duration::from_millis(200));
        }
        self.locks.began(self.session.standing().server_boot);
    }
}
