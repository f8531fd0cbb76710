//! Write-behind: push dirty bytes to targets, flush, then publish size and times.
//!
//! 1 bytes are buffered                       crash of the client: lost, never synced
//! 2 pushed: a target holds them in memory    crash of the target: sent again (rule DATA-8)
//! 3 flushed: durable on the targets
//! 4 published: size, times (or inline data) durable at the metadata server
//!
//! A size is published only after the bytes below it are durable. Buffered bytes are bounded by
//! [`Budget`], which is taken before a write is accepted.

pub(crate) mod accept;
pub(crate) mod budget;
pub mod buffer;
pub(crate) mod found_rows;
mod loss;
pub mod machine;
mod part;
pub(crate) mod payload;
mod publish;
pub(crate) mod push_row;
mod range;
mod resize;
mod sync;
pub(crate) mod write_through;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nuri_proto::Status;
use nuri_proto::clock::{COMMIT_DELAY, WRITE_BEHIND};
use nuri_proto::id::{BootId, Ino, TargetId};
use nuri_proto::op::data::{Durability, Room};
use nuri_proto::op::meta::Extend;
use nuri_stripe::locate::short_pieces;
use nuri_stripe::unsynced::Unsynced;
use nuri_volume::DataPlane;
use nuri_volume::transfer::Way;
use parking_lot::{Condvar, Mutex};

use crate::inode::release::Releaser;
use crate::inode::table::InodeTable;
use crate::inode::{FileData, Inode};
use crate::journal::Journal;
use crate::lease::drain::Drain;
use crate::reservation::charge::{Reservations, TargetLives};
use crate::session::MetaSession;
use crate::writeback::budget::{Budget, Pressure};
use crate::writeback::buffer::{BLOCK, PushedBytes};
use crate::writeback::machine::SyncScope;
use crate::writeback::push_row::Rows;

/// Files that are synced side by side.
const SETTLED_AT_ONCE: usize = 16;

/// Names pushed bytes until a flush settles them.
pub(crate) struct Token {
    node: Arc<Inode>,
    bytes: PushedBytes,
}

/// The pipeline from buffers to targets, shared by all files of a client.
pub(crate) struct Writeback {
    data: DataPlane,
    session: Arc<MetaSession>,
    inodes: Arc<InodeTable>,
    releaser: Arc<Releaser>,
    journal: Arc<Journal>,
    reservations: Arc<Reservations>,
    budget: Arc<Budget>,
    queue: Mutex<Queue>,
    queued: Condvar,
    unsynced: Mutex<Unsynced<Token>>,
    /// Files with something unpublished or unpushed.
    dirty: Mutex<HashMap<Ino, Arc<Inode>>>,
    /// Files with bytes that could not be kept after their last close: nobody was told.
    untold: Arc<AtomicU64>,
    /// Numbers cuts of stored bytes.
    cuts: AtomicU64,
}

/// What [`Writeback`] works with.
pub(crate) struct WritebackParts {
    pub(crate) data: DataPlane,
    pub(crate) session: Arc<MetaSession>,
    pub(crate) inodes: Arc<InodeTable>,
    pub(crate) releaser: Arc<Releaser>,
    pub(crate) journal: Arc<Journal>,
    pub(crate) reservations: Arc<Reservations>,
    pub(crate) budget: Arc<Budget>,
    pub(crate) untold: Arc<AtomicU64>,
}

/// Blocks to push, and workers that push one.
#[derive(Default)]
struct Queue {
    jobs: VecDeque<(Arc<Inode>, u64, Rows)>,
    busy: usize,
}

impl TargetLives for Writeback {
    /// What the target held under another boot id is dirty again, and charged.
    fn target_lives(&self, target: TargetId, boot: BootId) {
        let lost = self.unsynced.lock().restarted(target, boot);
        self.send_again(lost);
    }
}

impl Drain for Writeback {
    fn drain(&self, inode: &Arc<Inode>) -> bool {
        self.settle_for_recall(inode);
        true
    }
}

impl Writeback {
    pub(crate) fn new(parts: WritebackParts) -> Writeback {
        let WritebackParts { data, session, inodes, releaser, journal, .. } = parts;
        let WritebackParts { reservations, budget, untold, .. } = parts;
        let (queue, queued, unsynced, dirty) = Default::default();
        Writeback {
            data,
            session,
            inodes,
            releaser,
            journal,
            reservations,
            budget,
            queue,
            queued,
            unsynced,
            dirty,
            untold,
            cuts: AtomicU64::new(0),
        }
    }

    /// Notes that the file has something to push or publish.
    pub(crate) fn mark_dirty(&self, node: &Arc<Inode>) {
        let mut dirty = self.dirty.lock();
        dirty.entry(node.ino).or_insert_with(|| node.clone());
    }

    /// Whether any file has something unpublished.
    pub(crate) fn has_dirty_files(&self) -> bool {
        !self.dirty.lock().is_empty()
    }

    /// Room for bytes about to be buffered.
    pub(crate) fn reserve(&self, bytes: u64) {
        self.budget.take(bytes);
    }

    /// Gives back room that a write did not use, or that settled.
    pub(crate) fn unreserve(&self, bytes: u64) {
        self.budget.give(bytes);
    }

    /// Counts bytes that were buffered without asking (few: an inline file's).
    pub(crate) fn overdraw(&self, bytes: u64) {
        self.budget.overdraw(bytes);
    }

    pub(crate) fn queue_push(&self, node: &Arc<Inode>, block: u64, rows: Rows) {
        let mut queue = self.queue.lock();
        queue.jobs.push_back((node.clone(), block, rows));
        // Else it is taken by who ends next.
        if queue.busy < self.data.flow().streams() {
            self.queued.notify_one();
        }
    }

    /// A worker: pushes queued blocks for as long as the client lives, as many at once as the
    /// mount has streams.
    pub(crate) fn push_worker(&self) {
        let mut queue = self.queue.lock();
        loop {
            let may = queue.busy < self.data.flow().streams();
            let Some((node, block, rows)) = queue.jobs.pop_front_if(|_| may) else {
                if self.session.stopping() && queue.jobs.is_empty() {
                    return;
                }
                self.queued.wait_for(&mut queue, Duration::from_millis(200));
                continue;
            };
            queue.busy += 1;
            drop(queue);
            self.push(&node, block, Durability::Memory, rows);
            queue = self.queue.lock();
            queue.busy -= 1;
        }
    }

    /// Pushes dirty bytes of the block, of a redundant file those of its row.
    /// Whether there was something to push that was not in flight.
    pub(super) fn push(
        &self,
        node: &Arc<Inode>,
        block: u64,
        durability: Durability,
        rows: Rows,
    ) -> bool {
        if self.place_before_push(node).is_err() {
            // They stay, and are pushed later.
            return false;
        }
        match is_redundant(node) {
            true => self.push_row(node, block, rows),
            false => self.push_block(node, block, durability),
        }
    }

    /// A file gets its place before its first bytes leave.
    pub(super) fn place_before_push(&self, node: &Arc<Inode>) -> Result<(), Status> {
        let waits = |file: &FileData| !file.is_placed() && !file.own.buffer.is_empty();
        let is_waiting = node.state.lock().file.as_deref().is_some_and(waits);
        if is_waiting { self.journal.ensure_placed_to_push(node.ino) } else { Ok(()) }
    }

    /// Pushes one block's dirty bytes, if no other push of it is in flight.
    fn push_block(&self, node: &Arc<Inode>, block: u64, durability: Durability) -> bool {
        let (push, session, object, layout) = {
            let mut state = node.state.lock();
            let Some(file) = &mut state.file else { return false };
            // It may have been cut to nothing and written again since its place was looked at.
            let shape = file.layout.components.first().map(|component| component.shape);
            if shape.is_none_or(|shape| shape.is_redundant()) {
                return false;
            }
            let Some(push) = file.own.buffer.begin_push(block) else {
                return false;
            };
            (push, file.session, file.object, file.layout.clone())
        };
        let announced = self.announce_growth(node, block);
        for (start, end) in push.ranges.iter().copied() {
            if let Err(status) = announced {
                self.push_ended(node, push.part((start, end)), Err(status));
                continue;
            }
            let at = block * BLOCK + u64::from(start);
            let range = (at, u64::from(end - start));
            for piece in short_pieces(&layout, object, range, self.data.flow().buffer(Way::Write)) {
                let from = (piece.file_offset - block * BLOCK) as u32;
                let range = (from, from + piece.len);
                let (data, bytes) = (push.bytes(range), push.part(range));
                let write = || self.data.write(session, &piece, data, (durability, Room::Promised));
                let outcome = self.data.flow().carry(Way::Write, u64::from(piece.len), write);
                let took = outcome.as_ref().map(|(_, reply)| reply.allocated).map_err(|s| *s);
                self.reservations.heard(piece.group, took);
                match outcome {
                    Ok((target, reply)) => {
                        // Held first, named second: a flush that settles the name must find it.
                        self.push_ended(node, bytes, Ok(reply.allocated));
                        if durability == Durability::Stable {
                            self.settle_one(node, bytes);
                        } else {
                            let token = Token { node: node.clone(), bytes };
                            self.unsynced.lock().acknowledged(target, reply.boot, token);
                        }
                    }
                    Err(status) => self.push_ended(node, bytes, Err(status)),
                }
            }
        }
        node.changed.notify_all();
        true
    }

    /// Tells the server, before the first bytes beyond the published size leave, that the file
    /// grows. So a later writer never lets the file grow over what this client leaves behind when
    /// it dies.
    pub(crate) fn announce_growth(&self, node: &Arc<Inode>, block: u64) -> Result<(), Status> {
        let cut = {
            let state = node.state.lock();
            let grows = |file: &&FileData| file.own.grows(block);
            let Some(file) = state.file.as_deref().filter(grows) else { return Ok(()) };
            file.own.untold_cut()
        };
        self.session.change(&Extend { ino: node.ino, is_cut_done: cut.is_some() }, &[])?;
        if let Some(file) = &mut node.state.lock().file {
            file.own.growth_is_known();
            file.own.cut_is_told(cut);
        }
        Ok(())
    }

    pub(crate) fn push_ended(
        &self,
        node: &Inode,
        bytes: PushedBytes,
        outcome: Result<u64, Status>,
    ) {
        let mut state = node.state.lock();
        let Some(file) = &mut state.file else { return };
        match outcome {
            Ok(allocated) => file.own.pushed(bytes, allocated),
            Err(status) => {
                let Some(freed) = file.own.push_failed(bytes) else { return };
                let (at, count) = (bytes.start(), bytes.len());
                let places = self.data.places(&file.layout, file.object, (at, u64::from(count)));
                tracing::error!(
                    "client: {count} bytes of inode {} lost: from {at} on, {places}: {status}",
                    node.ino
                );
                self.note_loss(&mut state, status);
                drop(state);
                self.unreserve(freed);
            }
        }
    }

    /// Makes the file clean for a recall; data that cannot be kept is lost.
    pub(crate) fn settle_for_recall(&self, node: &Arc<Inode>) {
        let dirty = node.state.lock().file.as_ref().is_some_and(|f| f.own.is_dirty());
        if dirty && let Err(status) = self.sync_node(node, SyncScope::All) {
            self.lose(node, status);
        }
    }

    /// Writes out and publishes all files. `false`: bytes of some files could not be kept, now or
    /// earlier with no program to tell.
    pub(crate) fn sync_files(&self) -> bool {
        let mut nodes = self.inodes.all();
        nodes.retain(|node| node.state.lock().file.as_ref().is_some_and(|f| f.own.is_dirty()));
        let is_kept = self.settle_nodes(&nodes, Occasion::Asked);
        self.untold.swap(0, Ordering::SeqCst) == 0 && is_kept
    }

    /// Syncs files, some at once, so that the metadata server groups their commits. The bytes of
    /// all leave first: then the flush of a target that one of them waits for is for all. Nobody
    /// waits for the end of that: a target that hangs must not cost all files.
    fn settle_nodes(&self, nodes: &[Arc<Inode>], occasion: Occasion) -> bool {
        let (pushed, settled, is_kept) =
            (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(true));
        let next = |count: &AtomicUsize| nodes.get(count.fetch_add(1, Ordering::SeqCst));
        let work = || {
            while let Some(node) = next(&pushed).filter(|_| nodes.len() > 1) {
                if occasion == Occasion::Asked || !is_redundant(node) {
                    self.push_once(node);
                }
            }
            while let Some(node) = next(&settled) {
                is_kept.fetch_and(self.settle_node(node, occasion), Ordering::SeqCst);
            }
        };
        std::thread::scope(|scope| {
            (1..nodes.len().min(SETTLED_AT_ONCE)).for_each(|_| _ = scope.spawn(work));
            work();
        });
        is_kept.into_inner()
    }

    /// Pushes what can be pushed now.
    fn push_once(&self, node: &Arc<Inode>) {
        let pushable = |file: &FileData| file.own.buffer.pushable_blocks();
        let blocks = node.state.lock().file.as_deref().map(pushable).unwrap_or_default();
        for block in blocks {
            self.push(node, block, Durability::Memory, Rows::All);
        }
    }

    pub(crate) fn settle_one(&self, node: &Inode, bytes: PushedBytes) {
        let mut state = node.state.lock();
        let freed = state.file.as_mut().map_or(0, |f| f.own.buffer.durable(bytes));
        drop(state);
        self.unreserve(freed);
    }

    /// Flushes targets, all at once; bytes that a restarted target lost become dirty again.
    pub(crate) fn flush_targets(&self, targets: &[TargetId]) -> Result<(), Status> {
        match targets {
            [] => Ok(()),
            [one] => self.flush_target(*one),
            many => std::thread::scope(|scope| {
                let flush = |t: &TargetId| {
                    let target = *t;
                    scope.spawn(move || self.flush_target(target))
                };
                let running: Vec<_> = many.iter().map(flush).collect();
                let outcomes = running.into_iter().map(|r| r.join().unwrap_or(Err(Status::IO)));
                outcomes.fold(Ok(()), Result::and)
            }),
        }
    }

    fn flush_target(&self, target: TargetId) -> Result<(), Status> {
        let ticket = self.unsynced.lock().begin_flush(target);
        let boot = self.data.flush(target)?;
        let settled = self.unsynced.lock().end_flush(ticket, boot);
        for Token { node, bytes } in settled.durable {
            self.settle_one(&node, bytes);
        }
        self.send_again(settled.lost);
        Ok(())
    }

    /// A restarted target lost these.
    fn send_again(&self, lost: Vec<Token>) {
        for Token { node, bytes } in lost {
            let mut state = node.state.lock();
            let is_wanted = state.file.as_mut().is_some_and(|file| file.own.buffer.lost(bytes));
            drop(state);
            if is_wanted {
                let count = u64::from(bytes.len());
                self.reservations.charge_again(&node, bytes.start(), count);
                self.queue_push(&node, bytes.block, Rows::All);
            }
        }
    }

    /// The background: flush under pressure, publish what is old.
    pub(crate) fn flush_worker(&self) {
        while !self.session.stopping() {
            if self.budget.wait_wanted(WRITE_BEHIND / 4) == Pressure::High {
                let targets = self.unsynced.lock().targets();
                if targets.is_empty() {
                    // All bytes are dirty in partial blocks or in flight: push what there is.
                    self.push_some();
                    std::thread::sleep(Duration::from_millis(1));
                } else if let Err(status) = self.flush_targets(&targets) {
                    tracing::warn!("client: a target cannot flush: {status}");
                }
            }
            self.publish_old();
        }
    }

    /// Tells members of redundant groups what is decided, a little later than it was.
    pub(crate) fn commit_worker(&self) {
        while !self.session.stopping() {
            if self.data.groups().wait_commits(WRITE_BEHIND / 4) {
                std::thread::sleep(COMMIT_DELAY);
                self.data.groups().tell_commits();
            }
        }
    }

    /// Repairs redundant stripes where a read met a damaged block.
    pub(crate) fn repair_worker(&self) {
        while !self.session.stopping() {
            if !self.data.groups().wait_damaged(WRITE_BEHIND / 4) {
                continue;
            }
            for (stripe, verdict) in self.data.groups().repair_damaged() {
                for found in verdict.findings {
                    tracing::warn!("client: {}", found.sentence(stripe.key));
                }
            }
        }
    }

    fn push_some(&self) {
        let nodes: Vec<_> = self.dirty.lock().values().cloned().collect();
        // Rows of redundant files go when they are full; parts of them cost reading.
        let spared = |n: &&Arc<Inode>| is_redundant(n) && !self.budget.is_tight();
        nodes.iter().filter(|n| !spared(n)).for_each(|node| self.push_all(node));
    }

    fn publish_old(&self) {
        let (nodes, now): (Vec<_>, _) =
            (self.dirty.lock().values().cloned().collect(), Instant::now());
        let old = |n: &&Arc<Inode>| {
            let state = n.state.lock();
            state.file.as_ref().is_none_or(|file| file.own.is_due(now, WRITE_BEHIND))
        };
        let old: Vec<_> = nodes.iter().filter(old).cloned().collect();
        self.settle_nodes(&old, Occasion::Age);
    }

    /// Syncs one file in the background and takes it off the list once it is clean. False: what
    /// somebody may miss could not be kept.
    fn settle_node(&self, node: &Arc<Inode>, occasion: Occasion) -> bool {
        let outcome = match occasion {
            Occasion::Asked => self.sync_node(node, SyncScope::All),
            Occasion::Age => self.sync_old(node),
        };
        let is_missed = match outcome {
            Ok(()) => false,
            Err(status) => self.forget_unkept(node, status),
        };
        let mut dirty = self.dirty.lock();
        let state = node.state.lock();
        if !state.file.as_ref().is_some_and(|f| f.own.is_dirty()) {
            dirty.remove(&node.ino);
        }
        drop((state, dirty));
        self.releaser.drop_if_unused(node);
        !is_missed
    }
}

fn is_redundant(node: &Inode) -> bool {
    node.state.lock().file.as_ref().is_some_and(|file| file.is_redundant())
}

/// Why files are synced.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Occasion {
    /// Somebody waits for all that was written.
    Asked,
    /// Something is unpublished for long.
    Age,
}
