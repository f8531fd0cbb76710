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
mod tell;

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nuri_proto::id::Ino;
use nuri_proto::op::log::{Change, Step};
use nuri_proto::op::meta::MakeKind;
use parking_lot::{Condvar, Mutex};

pub(crate) use directory::Use;

use directory::{Names, Parted};
use tell::Batch;

/// Steps beyond which the server is asked directly, which tells them all.
const MOST_STEPS: usize = 8192;

/// The log of one client.
#[derive(Default)]
pub(crate) struct Log {
    state: Mutex<LogState>,
    /// Held by who tells the server (L3).
    telling: Mutex<()>,
    /// Somebody may have to tell.
    due: Condvar,
    /// Steps up to this one are told, durably, or lost.
    told: AtomicU64,
}

#[derive(Default)]
struct LogState {
    steps: VecDeque<Logged>,
    /// Number of the last step.
    last: u64,
    /// Since when the oldest waits.
    since: Option<Instant>,
    /// What is told again, in the same words, because its outcome is not known.
    unsure: Option<Batch>,
    /// Numbers for new inodes.
    numbers: Range<u64>,
    directories: HashMap<Ino, Names>,
    /// Directories that others have for now.
    parted: Parted,
}

struct Logged {
    step: Step,
    /// Of a publication.
    inline: Vec<u8>,
    /// Inodes that it concerns.
    touched: Vec<Ino>,
}

impl Log {
    /// Whether the step is told.
    pub(crate) fn is_told(&self, step: u64) -> bool {
        step <= self.told.load(Ordering::SeqCst)
    }

    /// Waits until something is logged, at most so long.
    fn wait_logged(&self, at_most: Duration) {
        let mut state = self.state.lock();
        if state.since.is_none() {
            self.due.wait_for(&mut state, at_most);
        }
    }
}

impl LogState {
    /// Appends a step; returns its number.
    fn append(&mut self, step: Logged) -> u64 {
        self.steps.push_back(step);
        self.since.get_or_insert_with(Instant::now);
        self.last += 1;
        self.last
    }

    fn has_room(&self) -> bool {
        self.steps.len() < MOST_STEPS
    }

    fn take_number(&mut self) -> Option<Ino> {
        self.numbers.next().map(Ino)
    }
}

impl Logged {
    fn new(step: Step, touched: &[Ino]) -> Logged {
        Logged { step, inline: Vec::new(), touched: touched.to_vec() }
    }

    /// Bytes that it takes in a call, at most.
    fn len(&self) -> usize {
        let names = match &self.step.change {
            Change::Make(_, call) => match &call.kind {
                MakeKind::Symlink(to) => call.name.len() + to.len(),
                _ => call.name.len(),
            },
            Change::Unlink(call, _) => call.name.len(),
            Change::Rename(call, _) => call.name.len() + call.new_name.len(),
            Change::SetAttr(_) | Change::Publish(_) => 0,
        };
        names + 128
    }
}

#[cfg(test)]
mod tests {
    use nuri_proto::codec;
    use nuri_proto::limit::MAX_SYMLINK;
    use nuri_proto::op::meta::{Exclusive, Make, SetAttr, SetTime, Time};

    use super::*;

    #[test]
    fn no_step_takes_more_of_a_call_than_was_reckoned() {
        let far = Time { sec: i64::MIN, nsec: u32::MAX };
        let time = Some(SetTime::At(far));
        let (ino, most) = (Ino(u64::MAX), Some(u32::MAX));
        let set =
            SetAttr { ino, mode: most, uid: most, gid: most, size: None, atime: time, mtime: time };
        let make = |kind| Make {
            parent: ino,
            name: vec![255; 255],
            kind,
            mode: u32::MAX,
            umask: u32::MAX,
            uid: u32::MAX,
            gid: u32::MAX,
            exclusive: Exclusive::Yes,
        };
        for change in [
            Change::SetAttr(set),
            Change::Make(ino, make(MakeKind::File)),
            Change::Make(ino, make(MakeKind::Symlink(vec![255; MAX_SYMLINK]))),
        ] {
            let logged = Logged::new(Step { at: far, change }, &[]);
            assert!(codec::encode(&logged.step).unwrap().len() <= logged.len());
        }
    }
}
