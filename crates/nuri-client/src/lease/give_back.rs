//! Giving a lease back: the ordered list of what has to leave first.
//!
//! Order of a recall: stop caching anew, let replies in flight reach the kernel, invalidate the
//! kernel's caches, flush and publish, and only when no operation overlapped that, give the lease
//! up and say so. Until then the client's own operations run under the old lease, because the
//! kernel's invalidation may wait for them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nuri_proto::Status;
use nuri_proto::clock::RECALL;
use nuri_proto::id::Ino;
use nuri_proto::op::meta::LeaseMode;

use crate::inode::Inode;
use crate::lease::acquire::Leases;
use crate::lease::drain::drain_all;
use crate::lease::state::Recalled;

/// An operation that is under way is waited for in steps of so long; its end is told.
const STEP: Duration = Duration::from_millis(20);

impl Leases {
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
            state.recalled_since.get_or_insert_with(Instant::now);
        }
        let mut files = self.journal.leave_directory(node);
        // Operations under way may wait for a target. Well before the server ends the session.
        let start = Instant::now();
        while start.elapsed() < RECALL / 2 {
            let reads = node.state.lock().reads;
            let told = match keep {
                None => drain_all(&[&*self.kernel, &*self.writeback, &*self.journal], node),
                // A lease to read stays: the kernel may keep what it has.
                Some(_) => drain_all(&[&*self.writeback, &*self.journal], node),
            };
            if told {
                self.downgrade_children(std::mem::take(&mut files));
            }
            let mut state = node.state.lock();
            let dirty = state.file.as_ref().is_some_and(|f| f.own.is_dirty());
            let overlapped = keep.is_none() && state.reads != reads;
            if told && !dirty && !overlapped && state.active == 0 {
                let wrote = state.hold.mode == Some(LeaseMode::Write);
                *settled = wrote && state.file.as_ref().is_some_and(|f| f.left_nothing());
                let kept = state.hold.give_back(keep);
                state.recalled_since = state.recalled_since.filter(|_| state.hold.revoking);
                let may_write = kept == Some(LeaseMode::Write);
                if let Some(file) = &mut state.file {
                    file.keep_writable(may_write);
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
        let lost = self.give_up(node, "busy during a recall");
        let mut state = node.state.lock();
        state.hold.give_back(None);
        state.recalled_since = state.recalled_since.filter(|_| state.hold.revoking);
        lost
    }

    /// Gives up a lease with whatever is not kept; programs are told once per open file.
    pub(crate) fn give_up(&self, node: &Arc<Inode>, why: &str) -> Option<LeaseMode> {
        tracing::warn!("client: lease on inode {} given up: {why}", node.ino);
        self.writeback.lose(node, Status::IO);
        let mut state = node.state.lock();
        state.hold.lose();
        state.forget_leased();
        node.changed.notify_all();
        None
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
            return self.writeback.settle_for_recall(node);
        }
        // Nobody can read it again: do not write it out.
        let mut freed = 0;
        if let Some(file) = &mut node.state.lock().file {
            freed = file.own.forget();
        }
        self.writeback.unreserve(freed);
    }

    /// Orphans that the server is to be told of.
    pub(crate) fn take_orphans(&self) -> Vec<Ino> {
        std::mem::take(&mut *self.orphans.lock())
    }

    /// They could not be told yet.
    pub(crate) fn keep_orphans(&self, orphans: Vec<Ino>) {
        self.orphans.lock().extend(orphans);
    }
}
