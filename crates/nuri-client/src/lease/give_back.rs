//! Gives a lease back: the ordered list of what has to leave the inode first.
//!
//! A recall has these steps. Stop caching anew. Let replies in flight reach the kernel. Invalidate
//! the kernel's caches. Flush and publish. If no operation overlapped these steps, give the lease
//! up and tell the server. Until then the client's own operations run under the old lease, because
//! the kernel's invalidation may wait for them.

use std::sync::Arc;
use std::time::Instant;

use nuri_proto::Status;
use nuri_proto::id::Ino;
use nuri_proto::op::meta::LeaseMode;
use parking_lot::MutexGuard;

use crate::inode::{Inode, InodeState};
use crate::lease::acquire::Leases;
use crate::lease::drain::drain_all;
use crate::lease::revocation::{Revocation, Step};
use crate::lease::state::Recalled;

/// Does what a revocation asks for until the lease may leave. The lease leaves under the returned
/// lock. `None`: the revocation takes too long.
pub(super) fn obey<'n>(
    node: &'n Inode,
    mut revocation: Revocation,
    mut drain: impl FnMut() -> bool,
) -> Option<MutexGuard<'n, InodeState>> {
    let mut state = node.state.lock();
    loop {
        match revocation.next(state.activity(), Instant::now()) {
            Step::Drain => {
                drop(state);
                revocation.drained(drain());
                state = node.state.lock();
            }
            Step::Wait(pause) => _ = node.changed.wait_for(&mut state, pause),
            Step::GiveBack => return Some(state),
            Step::GiveUp => return None,
        }
    }
}

impl InodeState {
    /// Takes the lease away, but for what may be kept. What is left of it, and whether a writer
    /// leaves nothing beyond the size.
    fn give_back(&mut self, keep: Option<LeaseMode>) -> (Option<LeaseMode>, bool) {
        let wrote = self.hold.mode == Some(LeaseMode::Write);
        let is_settled = wrote && self.file.as_ref().is_some_and(|f| f.left_nothing());
        let kept = self.hold.give_back(keep);
        self.recalled_since = self.recalled_since.filter(|_| self.hold.revoking);
        if let Some(file) = &mut self.file {
            file.keep_writable(kept == Some(LeaseMode::Write));
        }
        if kept.is_none() {
            self.forget_leased();
            self.has_part_pages = false;
        }
        (kept, is_settled)
    }
}

impl Leases {
    /// Obeys a recall of the lease. Returns what is kept of the lease; `settled`: a writer left
    /// nothing beyond the file's size.
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
        let drain = || {
            let is_drained = match keep {
                None => drain_all(&[&*self.kernel, &*self.writeback, &*self.journal], node),
                // A lease to read stays: the kernel may keep what it has.
                Some(_) => drain_all(&[&*self.writeback, &*self.journal], node),
            };
            if is_drained {
                self.downgrade_children(std::mem::take(&mut files));
            }
            is_drained
        };
        if let Some(mut state) = obey(node, Revocation::of_lease(keep, Instant::now()), drain) {
            let (kept, is_settled) = state.give_back(keep);
            *settled = is_settled;
            node.changed.notify_all();
            return kept;
        }
        let lost = self.give_up(node, "busy during a recall");
        let mut state = node.state.lock();
        state.hold.give_back(None);
        state.recalled_since = state.recalled_since.filter(|_| state.hold.revoking);
        lost
    }

    /// Gives up a lease together with data that could not be kept; programs are told once per open
    /// file.
    pub(crate) fn give_up(&self, node: &Arc<Inode>, why: &str) -> Option<LeaseMode> {
        tracing::warn!("client: lease on inode {} given up: {why}", node.ino);
        self.writeback.lose(node, Status::IO);
        let mut state = node.state.lock();
        state.hold.lose();
        state.forget_leased();
        node.changed.notify_all();
        None
    }

    /// Notes that the inode lost its last name: it is released now or at the last close.
    pub(crate) fn note_orphan(&self, ino: Ino) {
        if self.inodes.find(ino).is_some_and(|node| node.state.lock().is_awaited()) {
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

    /// Keeps orphans of which the server could not be told yet.
    pub(crate) fn keep_orphans(&self, orphans: Vec<Ino>) {
        self.orphans.lock().extend(orphans);
    }
}
