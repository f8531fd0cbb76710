//! Tells the server from time to time, in batches, about access times, orphans, and leases that the
//! client no longer needs.

use std::sync::Arc;
use std::time::Duration;

use nuri_proto::op::meta::{OrphanRelease, Release};

use crate::inode::accesses::Accesses;
use crate::inode::deferred_unlink::DeferredUnlinks;
use crate::inode::release::Releaser;
use crate::journal::Journal;
use crate::lease::acquire::Leases;
use crate::readahead::Readahead;
use crate::session::MetaSession;

const TICK: Duration = Duration::from_millis(50);

/// The worker that tells the server; it runs for as long as the client lives.
pub(crate) struct Housekeeping {
    pub(crate) session: Arc<MetaSession>,
    pub(crate) journal: Arc<Journal>,
    pub(crate) leases: Arc<Leases>,
    pub(crate) releaser: Arc<Releaser>,
    pub(crate) deferred: Arc<DeferredUnlinks>,
    pub(crate) accesses: Arc<Accesses>,
    pub(crate) readahead: Arc<Readahead>,
}

impl Housekeeping {
    /// Tells the server in batches what was forgotten and released.
    pub(crate) fn run(&self) {
        while !self.session.stopping() {
            std::thread::sleep(TICK);
            self.readahead.drop_idle_windows();
            self.accesses.tell();
            self.deferred.take_due().into_iter().for_each(|ino| self.leases.note_orphan(ino));
            self.leases.downgrade_children(self.journal.take_files_of_ended_turns());
            let orphans = self.leases.take_orphans();
            // After their removal, which may be logged.
            if !orphans.is_empty() && self.journal.flush().is_err() {
                self.leases.keep_orphans(orphans);
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
