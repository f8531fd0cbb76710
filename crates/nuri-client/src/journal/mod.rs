//! The journal: operations that the client answers by itself, in directories that it holds
//! exclusively.
//!
//! The client holds the write lease of such a directory, knows all its names, and has numbers for
//! new inodes. Then it answers creates, links, removes, renames and changes of attributes without
//! the server. It flushes the journal to the server in batches: at `fsync`, when a lease is
//! recalled, and before any change for which it has to ask the server. Otherwise it flushes the
//! journal soon.
//!
//! JOURNAL-3 The journal is flushed in the order in which it was written, by one thread at a time.
//! JOURNAL-4 A lease is given back only after every operation journalled under it is flushed.
//! JOURNAL-5 A change that goes to the server directly follows everything journalled before it. A
//!    question to the server follows what was journalled of the inode. The reason: while a
//!    directory is being given back, the client already asks the server about it.
//! JOURNAL-6 A journalled operation that is not flushed keeps its inodes and leases at the client.
//! JOURNAL-8 The answer to a step may come after the file was truncated to 0. Then it says nothing
//!    about the place and the size that the file has since.
//!
//! A crash of the client loses the operations that were not flushed, and nothing in between. The
//! rules of the server's side are in `nuri-meta/src/namespace/op/apply.rs`.

mod answer;
mod direct;
mod directory;
mod links;
pub mod queue;
mod tell;
pub(crate) mod usage;
mod xattrs;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use directory::{Names, Parted};
use nuri_proto::id::Ino;
use nuri_volume::{Cluster, DataPlane};
use parking_lot::{Condvar, Mutex};
use queue::{Logged, Queue};
pub(crate) use tell::Loss;
use tell::Sent;

use crate::inode::deferred_unlink::DeferredUnlinks;
use crate::inode::release::{FlushedSteps, Releaser};
use crate::inode::table::InodeTable;
use crate::session::MetaSession;
use crate::writeback::budget::Budget;

/// The journal of one client.
pub(crate) struct Journal {
    inodes: Arc<InodeTable>,
    session: Arc<MetaSession>,
    cluster: Cluster,
    data: DataPlane,
    budget: Arc<Budget>,
    releaser: Arc<Releaser>,
    deferred: Arc<DeferredUnlinks>,
    flushed: Arc<FlushedSteps>,
    untold: Arc<AtomicU64>,
    state: Mutex<JournalState>,
    /// Held by who tells the server (JOURNAL-3).
    telling: Mutex<()>,
    /// Somebody may have to tell.
    due: Condvar,
}

/// What a journal works with.
pub(crate) struct JournalParts {
    pub(crate) inodes: Arc<InodeTable>,
    pub(crate) session: Arc<MetaSession>,
    pub(crate) cluster: Cluster,
    pub(crate) data: DataPlane,
    pub(crate) budget: Arc<Budget>,
    pub(crate) releaser: Arc<Releaser>,
    pub(crate) deferred: Arc<DeferredUnlinks>,
    pub(crate) flushed: Arc<FlushedSteps>,
}

#[derive(Default)]
struct JournalState {
    queue: Queue<Sent>,
    /// Numbers for new inodes.
    numbers: Range<u64>,
    directories: HashMap<Ino, Names>,
    /// Directories that others have for now.
    parted: Parted,
    /// How often steps were lost: names from before may have been theirs.
    losses: u64,
}

impl Journal {
    pub(crate) fn new(parts: JournalParts) -> Journal {
        let JournalParts { inodes, session, cluster, data, .. } = parts;
        let JournalParts { budget, releaser, deferred, flushed, .. } = parts;
        let (untold, state, telling, due) = Default::default();
        Journal {
            inodes,
            session,
            cluster,
            data,
            budget,
            releaser,
            deferred,
            flushed,
            untold,
            state,
            telling,
            due,
        }
    }

    /// Number of files with bytes that could not be kept after their last close, so that no program
    /// was told.
    pub(crate) fn untold(&self) -> Arc<AtomicU64> {
        self.untold.clone()
    }

    /// Whether the step is flushed.
    pub(crate) fn is_flushed(&self, step: u64) -> bool {
        self.flushed.has(step)
    }

    /// Tells everybody what the queue says.
    fn note_settled(&self, state: &JournalState) {
        self.flushed.raise(state.queue.settled());
    }

    /// Waits until something is logged, at most so long.
    fn wait_logged(&self, at_most: Duration) {
        let mut state = self.state.lock();
        if !state.queue.is_waiting() {
            self.due.wait_for(&mut state, at_most);
        }
    }
}

impl JournalState {
    /// Appends a step; returns its number.
    fn append(&mut self, step: Logged) -> u64 {
        self.queue.append(step, Instant::now())
    }

    /// Whether something may be logged that takes room in the server's store. Each takes a number,
    /// and who has none left asks for room by asking for numbers (ADR 0021).
    fn may_grow(&self) -> bool {
        !self.numbers.is_empty()
    }

    fn take_number(&mut self) -> Option<Ino> {
        self.numbers.next().map(Ino)
    }
}
