//! The client log: what a client does in directories that it has to itself.
//!
//! Who holds the write lease of a directory, knows all its names and has numbers for new inodes,
//! answers creates, removes, renames and changes of attributes by itself, and tells the server in
//! batches: at `fsync`, when a lease is recalled, before whatever the server has to be asked to
//! change, and soon anyway.
//!
//! L3 The log is told in the order in which it was written, by one teller at a time.
//! L4 A lease is given back only after everything that was logged under it is told.
//! L5 A change that goes to the server directly follows everything logged before it, a question
//!    what was logged of the inode: a directory that is being given back is asked for already.
//! L6 What is logged and not told keeps its inodes and leases here.
//!
//! A crash of the client loses what was not told, and nothing in between. The rules of the server's
//! side are in `nuri-meta/src/op/apply.rs`.

mod answer;
mod direct;
mod directory;
pub mod queue;
mod tell;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nuri_proto::id::Ino;
use parking_lot::{Condvar, Mutex};

pub(crate) use directory::DirUsage;

use directory::{Names, Parted};
use queue::{Logged, Queue};
use tell::Sent;

/// The log of one client.
#[derive(Default)]
pub(crate) struct Journal {
    state: Mutex<JournalState>,
    /// Held by who tells the server (L3).
    telling: Mutex<()>,
    /// Somebody may have to tell.
    due: Condvar,
    /// Steps up to this one are told, durably, or lost: as in the queue, without its lock.
    told: AtomicU64,
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
    /// Whether the step is told.
    pub(crate) fn is_flushed(&self, step: u64) -> bool {
        step <= self.told.load(Ordering::SeqCst)
    }

    /// Tells everybody what the queue says.
    fn note_settled(&self, state: &JournalState) {
        self.told.fetch_max(state.queue.settled(), Ordering::SeqCst);
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

    fn take_number(&mut self) -> Option<Ino> {
        self.numbers.next().map(Ino)
    }
}
