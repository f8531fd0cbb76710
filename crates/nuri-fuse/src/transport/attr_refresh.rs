//! Sizes that the kernel would not take over.
//!
//! The kernel (Linux 6.18, `fuse_change_attributes`) drops the attributes of a reply where it was
//! told, after it sent the request, to forget those that it had. It does not ask again: `lseek`
//! and `read` then go by the size that it knew before, however old that is. Such a reply waits
//! here until the mount has asked its own kernel for the attributes, which asks the mount once
//! more; that answer counts.
//!
//! Example: mount A and mount B wrote parts of a file, both look at its end. A's request is on its
//! way to the server when B's look takes A's parts back. A's kernel forgets its attributes, and
//! would drop the answer.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nuri_proto::id::Ino;
use nuri_proto::op::meta::Attr;
use nuri_rules::broken;
use parking_lot::Mutex;
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};

use crate::transport::device::open_inode;
use crate::transport::load::Load;

/// Inodes share counters: a wrong guess costs a request.
const COUNTERS: usize = 4096;
/// Longer than a request waits for a thread that has nothing else to do.
const ON_THE_WAY: Duration = Duration::from_micros(100);
/// Each fails only where a further recall came meanwhile.
const TRIES: u32 = 5;

/// Counts how often the kernel was told to forget attributes.
pub(crate) struct Forgotten {
    counters: Vec<Counter>,
    start: Instant,
}

#[derive(Default)]
struct Counter {
    count: AtomicU64,
    /// Of the last one, in microseconds since the start.
    at: AtomicU64,
}

/// What the kernel was told to forget when a request came.
#[derive(Clone, Copy)]
pub(crate) struct Seen {
    count: u64,
    /// Maybe after the kernel had sent the request, or it will be before it has the reply.
    pub(crate) is_doubtful: bool,
}

impl Forgotten {
    pub(crate) fn new() -> Forgotten {
        let counters = (0..COUNTERS).map(|_| Counter::default()).collect();
        Forgotten { counters, start: Instant::now() }
    }

    fn of(&self, ino: Ino) -> &Counter {
        &self.counters[ino.0 as usize % COUNTERS]
    }

    fn micros(&self) -> u64 {
        self.start.elapsed().as_micros() as u64 + ON_THE_WAY.as_micros() as u64
    }

    /// The kernel is about to be told.
    pub(crate) fn note(&self, ino: Ino) {
        let counter = self.of(ino);
        counter.count.fetch_add(1, Ordering::SeqCst);
        counter.at.store(self.micros(), Ordering::SeqCst);
    }

    pub(crate) fn seen(&self, ino: Ino) -> Seen {
        let counter = self.of(ino);
        let count = counter.count.load(Ordering::SeqCst);
        let since = self.micros().saturating_sub(counter.at.load(Ordering::SeqCst));
        Seen { count, is_doubtful: since < ON_THE_WAY.as_micros() as u64 }
    }
}

/// Asks the own kernel.
pub(crate) struct Refresher {
    forgotten: Arc<Forgotten>,
    load: Arc<Load>,
    point: PathBuf,
    /// Threads that ask, as requests name them.
    asking: Mutex<Vec<u32>>,
}

impl Refresher {
    pub(crate) fn new(forgotten: Arc<Forgotten>, load: Arc<Load>, point: PathBuf) -> Refresher {
        Refresher { forgotten, load, point, asking: Mutex::default() }
    }

    pub(crate) fn seen(&self, ino: Ino) -> Seen {
        self.forgotten.seen(ino)
    }

    /// Sees to it that the kernel knows a size that is not older than the request from `thread`.
    /// True where it had to be asked.
    pub(crate) fn catch_up(&self, thread: u32, seen: Seen, attr: &Attr) -> bool {
        let mut is_crossed = seen.is_doubtful || self.seen(attr.ino).count != seen.count;
        if !is_crossed || broken!("old_size_stays") || self.asking.lock().contains(&thread) {
            return false;
        }
        for _ in 0..TRIES {
            let before = self.seen(attr.ino).count;
            // Where it cannot be asked, it knows what it knew.
            let is_asked = self.ask(attr);
            is_crossed = is_asked && self.seen(attr.ino).count != before;
            if !is_crossed {
                break;
            }
        }
        true
    }

    fn ask(&self, attr: &Attr) -> bool {
        let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let ask = || {
            // The kernel takes no `O_PATH` here.
            let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
            let root = rustix::fs::open(&self.point, flags, Mode::empty());
            let inode = root
                .ok()
                .and_then(|root| open_inode(&root, attr.ino.0, attr.generation, OFlags::PATH).ok());
            let (flags, size) = (AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC, StatxFlags::SIZE);
            inode.is_some_and(|inode| rustix::fs::statx(inode, c"", flags, size).is_ok())
        };
        self.asking.lock().push(thread);
        let is_asked = self.load.apart(ask);
        self.asking.lock().retain(|other| *other != thread);
        is_asked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_forgotten_meanwhile_is_noticed() {
        let forgotten = Forgotten::new();
        let before = forgotten.seen(Ino(7));
        assert!(!before.is_doubtful, "nothing was forgotten yet");
        forgotten.note(Ino(8));
        assert_eq!(forgotten.seen(Ino(7)).count, before.count);
        forgotten.note(Ino(7));
        let after = forgotten.seen(Ino(7));
        assert!(after.count != before.count);
        std::thread::sleep(2 * ON_THE_WAY);
        assert!(!forgotten.seen(Ino(7)).is_doubtful, "long ago");
    }
}
