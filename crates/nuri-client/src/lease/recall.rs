//! Giving leases back, and what happens when the server or the session changes.
//!
//! Order of a recall: stop caching anew, let replies in flight reach the kernel, invalidate the
//! kernel's caches, flush and publish, and only when no operation overlapped that, give the lease
//! up and say so. Until then the client's own operations run under the old lease, because the
//! kernel's invalidation may wait for them. Every recall has its own thread, holding no lock.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use nuri_proto::Status;
use nuri_proto::clock::RECALL;
use nuri_proto::id::Ino;
use nuri_proto::op::meta::{Event, LeaseMode, OrphanRelease, Recall, RecallDone, Reclaim, Release};
use nuri_rules::broken;

use parking_lot::Mutex;

use crate::client::Shared;
use crate::inode::Inode;
use crate::lease::invalidate::await_inode;
use crate::lease::state::Recalled;
use crate::writeback::SyncScope;

/// What the door's kernel caches, and how to empty it. Calls may block on the kernel.
pub trait KernelCache: Send + Sync + 'static {
    /// Attributes of an inode, which waits for no page. False: the kernel does not know the inode.
    fn invalidate_attributes(&self, ino: Ino) -> bool;
    /// Pages of an inode, from `offset` on, `len` bytes or (0) all; and its attributes. False: the
    /// kernel does not know the inode.
    fn invalidate_pages(&self, ino: Ino, offset: u64, len: u64) -> bool;
    /// Names in a directory.
    fn invalidate_entries(&self, dir: Ino);
    /// Drops those of the inodes that no program uses, with their names. False where the kernel
    /// cannot be told to.
    fn drop_unused(&self, inos: &[Ino]) -> bool;
}

/// An operation that is under way is waited for in steps of so long; its end is told.
const STEP: Duration = Duration::from_millis(20);
const RECLAIM_BATCH: usize = 2048;
/// Threads that empty the kernel's caches after a loss, and how long they are waited for.
const INVALIDATORS: usize = 8;
const INVALIDATION: Duration = Duration::from_secs(1);
const TICK: Duration = Duration::from_millis(50);

impl Shared {
    /// Hears the server's events for as long as the client lives.
    pub(crate) fn event_worker(self: &Arc<Self>) {
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
                let shared = self.clone();
                if self.threads.start(move || shared.obey(recall)).is_err() {
                    self.obey(recall);
                }
            }
            Event::Unlinked(ino) => self.deferred.defer(ino),
            Event::Lock(end) => self.locks.ended(end),
            Event::Crowded { inodes } => self.trim.ask(inodes),
        }
    }

    fn obey(&self, recall: Recall) {
        let Recall { ino, number, keep, part } = recall;
        let mut settled = false;
        let kept = match (self.inodes.find(ino), part) {
            (Some(node), None) => self.give_back(&node, number, keep, &mut settled),
            (Some(node), Some(part)) => {
                self.give_part_back(&node, part);
                None
            }
            (None, _) => {
                self.session.note_recall(ino, number);
                None
            }
        };
        let done = RecallDone { ino, number, kept, part, settled };
        if let Err(status) = self.session.call(&done)
            && !self.session.stopping()
        {
            tracing::warn!("client: answer to the recall of inode {ino} did not arrive: {status}");
        }
    }

    pub(crate) fn give_back(
        &self,
        node: &Arc<Inode>,
        number: u64,
        keep: Option<LeaseMode>,
        settled: &mut bool,
    ) -> Option<LeaseMode> {
        {
            let mut state = node.state.lock();
            let has_more = state.parts.is_some() || state.has_part_pages;
            let last = state.last_grant();
            // Nothing held: the recall overtook its grant, which does not count any more. Nothing
            // is cached, and a read that asks for another one may keep a page that would be waited
            // for.
            if let Recalled::Kept(mode) = state.hold.recall(number, last, has_more) {
                return mode;
            }
        }
        let mut files = self.journal.leave_directory(node);
        // Operations under way may wait for a target. Well before the server ends the session.
        let start = Instant::now();
        while start.elapsed() < RECALL / 2 {
            let reads = node.state.lock().reads;
            if keep.is_none() {
                self.empty_kernel_for_recall(node);
            }
            self.settle_node_for_recall(node);
            let told = broken!("recall_keeps_log") || self.journal.flush().is_ok();
            if told {
                self.downgrade_children(std::mem::take(&mut files));
            }
            let mut state = node.state.lock();
            let dirty = state.file.as_ref().is_some_and(|f| f.is_dirty());
            let overlapped = keep.is_none() && state.reads != reads;
            if told && !dirty && !overlapped && state.active == 0 {
                let wrote = state.hold.mode == Some(LeaseMode::Write);
                *settled = wrote && state.file.as_ref().is_some_and(|f| f.left_nothing());
                let kept = state.hold.give_back(keep);
                let may_write = kept == Some(LeaseMode::Write);
                if let Some(file) = &mut state.file {
                    file.is_writable &= may_write;
                }
                if kept.is_none() {
                    state.forget_leased();
                    state.has_part_pages = false;
                }
                node.changed.notify_all();
                return kept;
            }
            let pause = if state.active > 0 { STEP } else { STEP / 10 };
            node.changed.wait_for(&mut state, pause);
        }
        self.give_up(node, "busy during a recall")
    }

    /// Lets replies in flight reach the kernel, then empties its caches of the inode.
    fn empty_kernel(&self, node: &Inode) {
        drop(self.gate.write());
        let names = node.state.lock().names;
        let kernel = self.kernel.read().clone();
        if let Some(kernel) = kernel {
            if names {
                kernel.invalidate_entries(node.ino);
            }
            if !kernel.invalidate_pages(node.ino, 0, 0) {
                await_inode(&*kernel, node);
            }
        }
    }

    /// As `empty_kernel`, for many inodes, on threads of their own: the kernel blocks on pages
    /// that are being read, and such a read may wait for what the caller does next. The receiver
    /// gets a word when all are done.
    pub(crate) fn empty_kernel_apart(self: &Arc<Self>, nodes: Vec<Arc<Inode>>) -> Receiver<()> {
        let (done, when_done) = channel();
        let queue = Arc::new(Mutex::new(nodes));
        for _ in 0..INVALIDATORS {
            let (shared, queue, done) = (self.clone(), queue.clone(), done.clone());
            let work = move || {
                loop {
                    let next = queue.lock().pop();
                    let Some(node) = next else { break };
                    shared.empty_kernel(&node);
                }
                drop(done);
            };
            // With fewer threads it takes longer.
            let _ = std::thread::Builder::new().name("invalidate".into()).spawn(work);
        }
        when_done
    }

    fn settle_node_for_recall(&self, node: &Arc<Inode>) {
        let dirty = node.state.lock().file.as_ref().is_some_and(|f| f.is_dirty());
        if dirty && let Err(status) = self.sync_node(node, SyncScope::All) {
            self.lose(node, status);
        }
    }

    /// Gives up a lease with whatever is not kept; programs are told once per open file.
    pub(crate) fn give_up(&self, node: &Arc<Inode>, why: &str) -> Option<LeaseMode> {
        tracing::warn!("client: lease on inode {} given up: {why}", node.ino);
        self.lose(node, Status::IO);
        let mut state = node.state.lock();
        state.hold.give_back(None);
        state.forget_leased();
        node.changed.notify_all();
        None
    }

    fn lose(&self, node: &Inode, status: Status) {
        let mut state = node.state.lock();
        let mut freed = 0;
        if let Some(file) = &mut state.file
            && file.is_dirty()
        {
            freed = file.buffer.clear();
            file.unpublished = None;
            self.note_loss(&mut state, status);
        }
        drop(state);
        self.unreserve(freed);
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
        self.reclaim_parts(&nodes, boot);
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
        lost.iter().for_each(|node| {
            self.give_up(node, "the restarted server has another holder");
        });
        let _ = self.empty_kernel_apart(lost).recv_timeout(INVALIDATION);
    }

    /// The server ended the session: nothing cached is valid, nothing unsynced can be kept.
    fn session_lost(self: &Arc<Self>) {
        tracing::warn!("client: the session ended; cached data is dropped, a new session begins");
        self.session.void_grants();
        self.journal.lose();
        self.locks.session_ended();
        let nodes = self.inodes.all();
        for node in &nodes {
            let held = {
                let state = node.state.lock();
                state.hold.mode.is_some() || state.parts.is_some()
            };
            if held {
                self.give_up(node, "the session ended");
            }
        }
        // And what was logged under a lease that was not given up yet.
        self.journal.lose();
        // What still blocks then is a page whose read waits for the new session.
        let _ = self.empty_kernel_apart(nodes).recv_timeout(INVALIDATION);
        while !self.session.stopping() && self.session.renew().is_err() {
            std::thread::sleep(Duration::from_millis(200));
        }
        self.locks.began(self.session.standing().server_boot);
    }

    /// The inode lost its last name: release it now or at the last close.
    pub(crate) fn note_orphan(&self, ino: Ino) {
        if self.inodes.find(ino).is_some_and(|node| node.state.lock().is_being_opened()) {
            return self.deferred.defer(ino);
        }
        let open = self.inodes.find(ino).is_some_and(|node| {
            let mut state = node.state.lock();
            state.orphan = true;
            state.dropped |= state.opens == 0;
            let (is_open, is_private) = (state.opens > 0, state.hold.is_private);
            drop(state);
            if !is_open {
                self.leave_orphan(&node, is_private);
            }
            is_open
        });
        if !open {
            self.orphans.lock().push(ino);
        }
    }

    /// Nobody has it open here any more.
    fn leave_orphan(&self, node: &Arc<Inode>, is_private: bool) {
        if !is_private {
            // Others may have it open.
            return self.settle_node_for_recall(node);
        }
        // Nobody can read it again: do not write it out.
        let mut freed = 0;
        if let Some(file) = &mut node.state.lock().file {
            file.unpublished = None;
            freed = file.buffer.clear();
        }
        self.unreserve(freed);
    }

    /// Tells the server in batches what was forgotten and released.
    pub(crate) fn housekeeper(&self) {
        while !self.session.stopping() {
            std::thread::sleep(TICK);
            self.drop_idle_windows();
            self.tell_accesses();
            self.deferred.take_due().into_iter().for_each(|ino| self.note_orphan(ino));
            self.downgrade_children(self.journal.take_files_of_ended_turns());
            let orphans = std::mem::take(&mut *self.orphans.lock());
            // After their removal, which may be logged.
            if !orphans.is_empty() && self.journal.flush().is_err() {
                self.orphans.lock().extend(orphans);
                continue;
            }
            for inos in orphans.chunks(1024) {
                let _ = self.session.change(&OrphanRelease { inos: inos.to_vec() }, &[]);
            }
            let releases = self.releaser.take_leases();
            for leases in releases.chunks(4096) {
                let _ = self.session.change(&Release { leases: leases.to_vec() }, &[]);
            }
        }
    }
}
