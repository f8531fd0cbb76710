//! A disk whose changes also go to a copy elsewhere.
//!
//! What is synced is durable in both places (rule META-9): the local sync and the remote one run at
//! the same time. A copy that fails, or does not answer, is given up. Then the local disk goes on
//! alone, and its writers notice nothing. At any moment, what a copy was sent is what a crash could
//! have left of the local disk. So a copy that was whole once stays a disk that can be opened.
//!
//! Several disks that belong together share one [`Life`]. Once one of them gave up its copy, no
//! other goes on to its own. So no copy has data that depends on data that another copy lacks.
//!
//! Memory: one frame per disk. This file knows no network: the way to the copy is a [`Sink`].

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nuri_proto::limit::MAX_PAYLOAD;
use nuri_proto::op::copy::Change;
use nuri_proto::op::data::Durability;
use nuri_rules::broken;
use parking_lot::{Mutex, MutexGuard};

use crate::buf::AlignedBuf;
use crate::disk::Disk;

/// Most changes of one frame.
const MAX_CHANGES: usize = 4096;

/// The way to the copy of one disk. Both calls end within a bounded time.
pub trait Sink: Send {
    /// Sends changes, in order; the bytes of all writes are in `data`, one after the other.
    fn send(&mut self, changes: &[Change], data: &[u8], durability: Durability) -> io::Result<()>;

    /// Waits for the answer to the last [`Sink::send`]: a stable one is durable then, with
    /// everything sent before.
    fn wait(&mut self) -> io::Result<()>;
}

/// Whether a copy is still followed.
#[derive(Default)]
pub struct Life {
    ended: AtomicBool,
}

impl Life {
    /// Nothing more is sent to the copy.
    pub fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
    }

    pub fn ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }
}

/// See the module's text.
pub struct PairedDisk {
    disk: Arc<dyn Disk>,
    /// Held over every change, so that the copy gets all of them in their order.
    link: Mutex<Option<Link>>,
}

struct Link {
    sink: Box<dyn Sink>,
    life: Arc<Life>,
    /// Not sent yet: at most a frame.
    changes: Vec<Change>,
    data: Vec<u8>,
    /// The last frame was not answered yet.
    waiting: bool,
}

impl Link {
    fn record(&mut self, mut at: u64, mut data: &[u8]) -> io::Result<()> {
        while !data.is_empty() {
            if self.data.len() == MAX_PAYLOAD {
                self.send(Durability::Memory)?;
            }
            let (now, later) = data.split_at(data.len().min(MAX_PAYLOAD - self.data.len()));
            self.push(Change::Write { at, len: now.len() as u32 })?;
            self.data.extend_from_slice(now);
            at += now.len() as u64;
            data = later;
        }
        Ok(())
    }

    fn push(&mut self, change: Change) -> io::Result<()> {
        if self.changes.len() == MAX_CHANGES {
            self.send(Durability::Memory)?;
        }
        self.changes.push(change);
        Ok(())
    }

    fn send(&mut self, durability: Durability) -> io::Result<()> {
        self.settle()?;
        self.sink.send(&self.changes, &self.data, durability)?;
        self.waiting = true;
        self.changes.clear();
        self.data.clear();
        Ok(())
    }

    fn settle(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.waiting) { self.sink.wait() } else { Ok(()) }
    }
}

/// A step towards the copy, if there is one. A step that fails ends it.
fn follow(link: &mut MutexGuard<'_, Option<Link>>, step: impl FnOnce(&mut Link) -> io::Result<()>) {
    if let Some(to) = &mut **link
        && (to.life.ended() || step(to).is_err())
    {
        // Before the caller goes on: what depends on this step must not reach the copy.
        to.life.end();
        **link = None;
    }
}

impl PairedDisk {
    /// A disk without a copy.
    pub fn new(disk: Arc<dyn Disk>) -> PairedDisk {
        PairedDisk { disk, link: Mutex::new(None) }
    }

    /// From now on the sink gets every change. What is there already comes with
    /// [`PairedDisk::copy_part`].
    ///
    /// # Errors
    /// As the local disk's.
    pub fn attach(&self, sink: Box<dyn Sink>, life: Arc<Life>) -> io::Result<()> {
        let mut link = self.link.lock();
        let changes = vec![Change::SetLen(self.disk.len()?)];
        *link = Some(Link { sink, life, changes, data: Vec::new(), waiting: false });
        Ok(())
    }

    /// Sends a frame of what lies at `at` now. Returns where to go on, and nothing at the end of
    /// the disk, once the copy has everything that was sent.
    ///
    /// # Errors
    /// As the local disk's. What the copy fails in only ends its life.
    pub fn copy_part(&self, at: u64) -> io::Result<Option<u64>> {
        let mut link = self.link.lock();
        // The disk may have become shorter than what was copied of it.
        let take = self.disk.len()?.saturating_sub(at).min(MAX_PAYLOAD as u64);
        let mut part = AlignedBuf::zeroed(take as usize);
        if take > 0 {
            self.disk.read_at(at, &mut part)?;
        }
        follow(&mut link, |to| {
            // What was recorded is older than what was just read.
            to.send(Durability::Memory)?;
            // A store that was just made is nearly all zeros, and the way may be slow.
            if take > 0 && part.iter().all(|byte| *byte == 0) {
                to.push(Change::Zero { at, len: take as u32 })?;
            } else {
                to.record(at, &part)?;
            }
            to.send(Durability::Memory)?;
            if take == 0 { to.settle() } else { Ok(()) }
        });
        Ok((take > 0).then_some(at + take))
    }
}

impl Disk for PairedDisk {
    fn len(&self) -> io::Result<u64> {
        self.disk.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut link = self.link.lock();
        self.disk.set_len(len)?;
        follow(&mut link, |to| to.push(Change::SetLen(len)));
        Ok(())
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.disk.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut link = self.link.lock();
        self.disk.write_at(offset, data)?;
        follow(&mut link, |to| to.record(offset, data));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut link = self.link.lock();
        follow(&mut link, |to| to.send(Durability::Stable));
        let local = self.disk.sync();
        if !broken!("copy_not_awaited") {
            follow(&mut link, Link::settle);
        }
        local
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.disk.allocate(offset, len)
    }

    fn next_written(&self, from: u64) -> io::Result<Option<Range<u64>>> {
        self.disk.next_written(from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::MemDisk;

    /// A copy in memory that answers so many calls.
    struct Mirror {
        disk: Arc<MemDisk>,
        calls: usize,
        largest: Arc<Mutex<usize>>,
        sent: Arc<Mutex<usize>>,
    }

    impl Mirror {
        fn step(&mut self) -> io::Result<()> {
            self.calls = self.calls.checked_sub(1).ok_or(io::ErrorKind::TimedOut)?;
            Ok(())
        }
    }

    impl Sink for Mirror {
        fn send(&mut self, changes: &[Change], mut data: &[u8], to: Durability) -> io::Result<()> {
            self.step()?;
            let mut largest = self.largest.lock();
            *largest = data.len().max(*largest);
            *self.sent.lock() += data.len();
            for change in changes {
                match *change {
                    Change::SetLen(len) => self.disk.set_len(len)?,
                    Change::Zero { at, len } => {
                        self.disk.write_at(at, &vec![0; len as usize])?;
                    }
                    Change::Write { at, len } => {
                        let (now, later) = data.split_at(len as usize);
                        self.disk.write_at(at, now)?;
                        data = later;
                    }
                }
            }
            if to == Durability::Stable { self.disk.sync() } else { Ok(()) }
        }

        fn wait(&mut self) -> io::Result<()> {
            self.step()
        }
    }

    struct World {
        disk: PairedDisk,
        copy: Arc<MemDisk>,
        life: Arc<Life>,
        largest: Arc<Mutex<usize>>,
        sent: Arc<Mutex<usize>>,
    }

    fn attached(local: &Arc<MemDisk>, calls: usize) -> World {
        let disk = PairedDisk::new(local.clone());
        let (copy, life) = (Arc::new(MemDisk::new()), Arc::new(Life::default()));
        let (largest, sent) = (Arc::new(Mutex::new(0)), Arc::new(Mutex::new(0)));
        let disk_there = copy.clone();
        let mirror =
            Mirror { disk: disk_there, calls, largest: largest.clone(), sent: sent.clone() };
        disk.attach(Box::new(mirror), life.clone()).unwrap();
        World { disk, copy, life, largest, sent }
    }

    fn content(disk: &dyn Disk) -> Vec<u8> {
        let mut out = vec![0; disk.len().unwrap() as usize];
        disk.read_at(0, &mut out).unwrap();
        out
    }

    #[test]
    fn conforms_with_and_without_a_copy() {
        crate::disk_suite::suite(|| PairedDisk::new(Arc::new(MemDisk::new())));
        crate::disk_suite::suite(|| attached(&Arc::new(MemDisk::new()), usize::MAX).disk);
    }

    #[test]
    fn a_copy_made_while_it_changes_is_the_same() {
        let local = Arc::new(MemDisk::new());
        local.write_at(0, &vec![1; 3 << 20]).unwrap();
        let world = attached(&local, usize::MAX);
        let mut from = Some(0u64);
        let mut round = 2u8;
        while let Some(at) = from {
            // Across where the copy is, in front of it, and at the end, which moves.
            let (here, end) = (at.min(3 << 20), (3 << 20) + (at / 2).min(1 << 20));
            for place in [here.saturating_sub(5000), here + 100, end] {
                world.disk.write_at(place, &vec![round; 9000]).unwrap();
                round = round.wrapping_add(1);
            }
            from = world.disk.copy_part(at).unwrap();
        }
        world.disk.write_at(77, &vec![round; (2 << 20) + 5]).unwrap();
        world.disk.set_len(4 << 20).unwrap();
        world.disk.sync().unwrap();
        assert!(content(&*world.copy) == content(&*local));
        assert!(*world.largest.lock() <= MAX_PAYLOAD && !world.life.ended());
    }

    #[test]
    fn zeros_are_not_sent_and_are_written() {
        let local = Arc::new(MemDisk::new());
        local.set_len(64 << 20).unwrap();
        local.write_at(9 << 20, &[7; 100]).unwrap();
        let world = attached(&local, usize::MAX);
        // What lay there before a copy came that far.
        world.disk.write_at(30 << 20, &[8; 100]).unwrap();
        local.write_at(30 << 20, &[0; 100]).unwrap();
        let mut from = Some(0);
        while let Some(at) = from {
            from = world.disk.copy_part(at).unwrap();
        }
        assert!(content(&*world.copy) == content(&*local));
        assert_eq!(*world.sent.lock(), MAX_PAYLOAD + 100, "one part, and what was written");
    }

    #[test]
    fn a_copy_that_fails_is_given_up_and_nobody_is_told() {
        for calls in 0..24 {
            let local = Arc::new(MemDisk::new());
            let world = attached(&local, calls);
            for i in 0..8u8 {
                world.disk.write_at(u64::from(i) << 19, &vec![i + 1; 700_000]).unwrap();
                world.disk.sync().unwrap();
                if !world.life.ended() {
                    let synced = world.copy.crash_image(&mut crate::rng::Rng::new(1));
                    assert!(content(&synced) == content(&*local), "write {i}, {calls} calls");
                }
            }
            assert!(world.life.ended() || calls >= 16);
            // Given up for good: nothing more comes, whatever works again.
            let before = world.copy.counters().writes;
            if world.life.ended() {
                world.disk.write_at(0, &[9]).unwrap();
                assert_eq!(world.copy.counters().writes, before);
            }
        }
    }

    #[test]
    fn disks_of_one_life_end_together() {
        let (a, b) = (Arc::new(MemDisk::new()), Arc::new(MemDisk::new()));
        let (first, second) = (attached(&a, 1), PairedDisk::new(b.clone()));
        let copy = Arc::new(MemDisk::new());
        let (disk, calls) = (copy.clone(), usize::MAX);
        let mirror = Mirror { disk, calls, largest: Arc::default(), sent: Arc::default() };
        second.attach(Box::new(mirror), first.life.clone()).unwrap();
        second.write_at(0, &[1; 10]).unwrap();
        first.disk.sync().unwrap();
        assert!(first.life.ended());
        second.sync().unwrap();
        assert_eq!(copy.counters().writes, 0, "what depends on the other disk stays away");
    }
}
