//! Sizes that the kernel would not take over from a reply.
//!
//! The kernel (Linux 6.18, `fuse_change_attributes`) drops the attributes of a reply in two cases.
//! After it sent the request, it was told to forget the attributes that it had, or it took over
//! others. It does not ask again: `lseek` and `read` then use the size that it knew before, however
//! old that is.
//!
//! Example: mount A and mount B wrote ranges of a file, and both look for its end. A's request is
//! on its way when B's look takes A's ranges back. A's kernel forgets its attributes, and will drop
//! the answer.
//!
//! A file's size is *unsure* from the moment that the kernel is about to be told to forget it. It
//! is also unsure where the kernel was told a size without a lease. A request for the attributes of
//! such a file is answered only when the mount has seen that the kernel knows the size. The mount
//! looks into its own kernel (`statx` with `AT_STATX_DONT_SYNC` sends no request). Where the kernel
//! knows another size, the mount lets it ask once more. Under a lease the size is sure from then
//! on, until the lease is recalled.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use nuri_proto::Status;
use nuri_proto::id::Ino;
use nuri_proto::op::meta::Attr;
use nuri_rules::broken;
use parking_lot::{Condvar, Mutex};
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};

use crate::transport::device::open_inode;
use crate::transport::load::Load;

/// Parts of the table, each with a lock of its own.
const SHARDS: usize = 64;
/// Each fails only where the file's size changed meanwhile, or was forgotten.
const TRIES: u32 = 5;
/// Who looks into the kernel sends a request for the root: so many at once, that others are left
/// to serve it.
const LOOKERS: usize = 4;
/// Those who wait for a permit keep what serves requests. After so long they answer unseen.
const PERMIT_WAIT: Duration = Duration::from_millis(200);

/// The files whose size the kernel may know wrongly, each with how often it became so. An entry
/// goes when the size was seen, and with the kernel's knowledge of the inode.
pub(crate) struct UnsureSizes {
    shards: Vec<Mutex<HashMap<Ino, u64>>>,
}

impl UnsureSizes {
    pub(crate) fn new() -> UnsureSizes {
        UnsureSizes { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }

    fn shard(&self, ino: Ino) -> &Mutex<HashMap<Ino, u64>> {
        &self.shards[ino.0 as usize % SHARDS]
    }

    /// The kernel is about to be told to forget the size, or of one that no lease covers.
    /// Says how often it became unsure.
    pub(crate) fn doubt(&self, ino: Ino) -> u64 {
        let mut shard = self.shard(ino).lock();
        let doubts = shard.entry(ino).or_default();
        *doubts += 1;
        *doubts
    }

    /// How often the size became unsure; none where it is sure.
    pub(crate) fn doubts(&self, ino: Ino) -> Option<u64> {
        self.shard(ino).lock().get(&ino).copied()
    }

    /// The kernel was seen to know the size under a lease, or not to know the inode, after there
    /// were so many doubts.
    pub(crate) fn settle(&self, ino: Ino, doubts: u64) {
        let mut shard = self.shard(ino).lock();
        if shard.get(&ino) == Some(&doubts) {
            shard.remove(&ino);
        }
    }
}

/// Looks into the own kernel.
pub(crate) struct KernelSizes {
    pub(crate) unsure: Arc<UnsureSizes>,
    load: Arc<Load>,
    point: PathBuf,
    /// Threads that let the kernel ask, as requests name them.
    asking: Mutex<Vec<u32>>,
    permits: Permits,
    /// The mount's root, shared by those who look now.
    root: Mutex<Weak<OwnedFd>>,
    /// That the kernel could not be looked into, once.
    is_told: AtomicBool,
}

impl KernelSizes {
    pub(crate) fn new(unsure: Arc<UnsureSizes>, load: Arc<Load>, point: PathBuf) -> KernelSizes {
        let (asking, permits, root, is_told) = Default::default();
        KernelSizes { unsure, load, point, asking, permits, root, is_told }
    }

    /// Whether the answer to the request of `thread` must wait until the kernel knows the size.
    pub(crate) fn must_see(&self, thread: u32, ino: Ino) -> bool {
        !broken!("old_size_stays")
            && self.unsure.doubts(ino).is_some()
            && !self.asking.lock().contains(&thread)
    }

    /// Sees to it that the kernel knows the size of a file. `now` gives its attributes, and whether
    /// a lease covers them. Where the kernel cannot be asked, it knows what it knew.
    pub(crate) fn see(
        &self,
        ino: Ino,
        now: impl Fn() -> Result<(Attr, bool), Status>,
    ) -> Result<Attr, Status> {
        let permit = self.permits.take();
        for _ in 0..TRIES {
            let doubts = self.unsure.doubts(ino);
            let (attr, is_leased) = now()?;
            let known =
                permit.as_ref().and_then(|_| self.known_size(&attr, AtFlags::STATX_DONT_SYNC));
            if known == Some(attr.size) {
                if let (true, Some(doubts)) = (is_leased, doubts) {
                    self.unsure.settle(ino, doubts);
                }
                return Ok(attr);
            }
            if known.is_none() || self.known_size(&attr, AtFlags::STATX_FORCE_SYNC).is_none() {
                break;
            }
        }
        if !self.is_told.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "fuse: a file's size is answered that the kernel may not have taken over"
            );
        }
        Ok(now()?.0)
    }

    /// The size that the kernel knows.
    fn known_size(&self, attr: &Attr, how: AtFlags) -> Option<u64> {
        let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let look = || {
            let root = self.root()?;
            let inode = open_inode(&root, attr.ino.0, attr.generation, OFlags::PATH).ok()?;
            let how = AtFlags::EMPTY_PATH | how;
            rustix::fs::statx(inode, c"", how, StatxFlags::SIZE).ok().map(|found| found.stx_size)
        };
        self.asking.lock().push(thread);
        let size = self.load.apart(look);
        self.asking.lock().retain(|other| *other != thread);
        size
    }

    fn root(&self) -> Option<Arc<OwnedFd>> {
        if let Some(root) = self.root.lock().upgrade() {
            return Some(root);
        }
        // The kernel takes no `O_PATH` here.
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = Arc::new(rustix::fs::open(&self.point, flags, Mode::empty()).ok()?);
        *self.root.lock() = Arc::downgrade(&root);
        Some(root)
    }
}

/// How many look now.
#[derive(Default)]
struct Permits {
    taken: Mutex<usize>,
    freed: Condvar,
}

/// Ends when dropped.
struct Permit<'p>(&'p Permits);

impl Permits {
    /// None where others look for too long.
    fn take(&self) -> Option<Permit<'_>> {
        let mut taken = self.taken.lock();
        let is_full = |taken: &mut usize| *taken >= LOOKERS;
        if self.freed.wait_while_for(&mut taken, is_full, PERMIT_WAIT).timed_out() {
            return None;
        }
        *taken += 1;
        Some(Permit(self))
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        *self.0.taken.lock() -= 1;
        self.0.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_sure_when_it_was_seen_after_the_last_doubt() {
        let (unsure, ino) = (UnsureSizes::new(), Ino(7));
        assert_eq!(unsure.doubts(ino), None, "never told");
        let first = unsure.doubt(ino);
        unsure.doubt(ino);
        unsure.settle(ino, first);
        assert_eq!(unsure.doubts(ino), Some(2), "doubted again while the kernel was looked into");
        assert_eq!(unsure.doubts(Ino(8)), None);
        unsure.settle(ino, 2);
        assert_eq!(unsure.doubts(ino), None);
    }

    #[test]
    fn who_gets_no_permit_does_not_wait_for_ever() {
        let permits = Permits::default();
        let mut taken: Vec<_> = (0..LOOKERS).map(|_| permits.take().unwrap()).collect();
        assert!(permits.take().is_none());
        taken.pop();
        assert!(permits.take().is_some());
    }
}
