//! Forgets inodes that nothing refers to, and gives their leases back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nuri_proto::id::Ino;
use nuri_rules::broken;
use parking_lot::Mutex;

use super::dentry_cache::DentryCache;
use super::table::InodeTable;
use super::{Inode, InodeState};

/// Closed files whose data records are kept for the next open. Beyond it only leases and
/// attributes stay.
const KEEP_CLOSED: usize = 50_000;

/// Steps of the journal up to this one are flushed, durably, or lost. It is the number of the
/// journal's queue, readable without its lock. Only the journal raises it.
#[derive(Default)]
pub(crate) struct FlushedSteps(AtomicU64);

impl FlushedSteps {
    /// Whether the step is flushed.
    pub(crate) fn has(&self, step: u64) -> bool {
        step <= self.0.load(Ordering::SeqCst)
    }

    pub(crate) fn raise(&self, step: u64) {
        self.0.fetch_max(step, Ordering::SeqCst);
    }
}

/// Removes inodes from the table, and collects their leases for the server.
pub(crate) struct Releaser {
    inodes: Arc<InodeTable>,
    dentries: Arc<DentryCache>,
    flushed: Arc<FlushedSteps>,
    leases: Mutex<Vec<(Ino, u64)>>,
}

impl Releaser {
    pub(crate) fn new(
        inodes: Arc<InodeTable>,
        dentries: Arc<DentryCache>,
        flushed: Arc<FlushedSteps>,
    ) -> Releaser {
        Releaser { inodes, dentries, flushed, leases: Mutex::default() }
    }

    /// Removes the inode from the table if nothing refers to it, and gives its lease back.
    pub(crate) fn drop_if_unused(&self, inode: &Arc<Inode>) {
        // The kernel knows the root without ever asking for it, and keeps names there.
        let is_root = inode.ino == Ino::ROOT && !broken!("root_forgotten");
        let may_go = |state: &mut InodeState, count: usize| {
            let busy = is_root
                || state.opens > 0
                || state.active > 0
                || state.hold.revoking
                || state.asking_whole > 0
                || !self.flushed.has(state.logged)
                || state.file.as_ref().is_some_and(|f| f.own.is_dirty());
            if !busy && count > KEEP_CLOSED {
                state.file = None;
            }
            !busy && state.lookups == 0
        };
        self.inodes.remove_if(inode, may_go, |state| {
            if let Some(found) = state.found.take() {
                let is_dir = state.names || state.attr.is_some_and(|attr| attr.is_dir());
                self.dentries.forget(*found, inode.ino, is_dir);
            }
            let number = state.last_grant();
            if number > 0 && !state.orphan {
                self.give_back(inode.ino, number);
            }
        });
    }

    /// Notes that the lease under this number is not needed any more.
    pub(crate) fn give_back(&self, ino: Ino, number: u64) {
        self.leases.lock().push((ino, number));
    }

    /// Takes the leases to give back to the server.
    pub(crate) fn take_leases(&self) -> Vec<(Ino, u64)> {
        std::mem::take(&mut *self.leases.lock())
    }
}
