//! The ring transport: for each processor a queue of entries, for each entry a thread.
//!
//! The kernel gives a request to the queue of the processor that the program runs on. The
//! entries' threads are bound to that processor, so that no wake-up crosses to another one. A
//! handler may wait for servers and other clients; it keeps its entry meanwhile. All entries are
//! there from the start, because one that came later would not be given what already waits in the
//! queue: the kernel (6.18) looks there only when an entry commits. The kernel takes the entry
//! that became free last, so those that are never needed cost their threads alone.
//!
//! Waits for locks have no bound in time. An entry that holds one is replaced by a further entry
//! before the queue is short, up to `SPARE_ENTRIES`; then half of a queue's entries stay for other
//! requests, and locks that would have to wait are refused (`ENOLCK`).

use std::cell::RefCell;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::device::Device;
use crate::dispatch::Dispatcher;
use crate::reply::{Body, Later, Parking, Replier};
use crate::server::Serving;
use crate::transport::NoRings;
use crate::uring::RingEntry;
use crate::xattr::TRANSPORT_ATTRIBUTE;

/// Entries of all queues together, and the bounds of a queue's share of them.
const ENTRIES: usize = 1024;
const QUEUE_SHARE: std::ops::RangeInclusive<usize> = 8..=64;
/// Entries that all queues together may get in the place of those whose programs wait for locks.
const SPARE_ENTRIES: usize = 1024;
/// Entries of all queues together that keep the memory of a large request: 32 MiB. Others give it
/// back at once.
const WARM_ENTRIES: usize = 32;

/// All entries of a mount.
pub(crate) struct Rings {
    dispatcher: Arc<Dispatcher>,
    device: Device,
    load: Arc<Load>,
    serving: Serving,
    point: PathBuf,
    /// Entries that may keep their memory and do not yet.
    warmth: AtomicUsize,
}

/// How many entries of each queue have a request; none where requests come the classic way.
pub(crate) struct Load {
    queues: Vec<QueueLoad>,
    /// Entries of each queue at first, and what there may be beyond them in all queues together.
    share: usize,
    spare: AtomicUsize,
}

#[derive(Default)]
struct QueueLoad {
    busy: AtomicUsize,
    /// Of the busy ones, those whose program waits for a lock.
    parked: AtomicUsize,
    entries: AtomicUsize,
}

impl QueueLoad {
    /// Entries that can serve other requests, now or soon.
    fn serving(&self) -> usize {
        let entries = self.entries.load(Ordering::SeqCst);
        entries.saturating_sub(self.parked.load(Ordering::SeqCst))
    }
}

/// An entry whose program waits for a lock; ends with the value.
struct Parked<'l>(&'l QueueLoad);

impl Drop for Parked<'_> {
    fn drop(&mut self) {
        self.0.parked.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Load {
    pub(crate) fn of_machine() -> Load {
        let queues = processors("possible").len().max(1);
        let spare = AtomicUsize::new(SPARE_ENTRIES);
        let share = queue_share(queues);
        Load { queues: (0..queues).map(|_| QueueLoad::default()).collect(), share, spare }
    }

    fn full(&self, qid: usize) -> bool {
        let full = |q: &QueueLoad| {
            q.busy.load(Ordering::Relaxed) >= self.share.max(q.entries.load(Ordering::Relaxed))
        };
        self.queues.get(qid).is_some_and(full)
    }

    /// Whether one more request of the queue may wait for long: half a share stays for others.
    fn has_room(&self, qid: usize) -> bool {
        self.spare.load(Ordering::SeqCst) > 0 || self.queues[qid].serving() > self.share / 2
    }

    /// Counts an entry that waits. Says whether the queue shall get another one in its place.
    fn park(&self, qid: usize) -> (Parked<'_>, bool) {
        let queue = &self.queues[qid];
        queue.parked.fetch_add(1, Ordering::SeqCst);
        let take = |left: usize| left.checked_sub(1);
        let more = queue.serving() < self.share
            && self.spare.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok();
        (Parked(queue), more)
    }

    /// Runs `f`, during which the kernel may send requests for this thread and wait for them. If
    /// a queue is full of waiting requests, that is done on the processor of another one.
    pub(crate) fn apart<T>(&self, f: impl FnOnce() -> T) -> T {
        let queues = 0..self.queues.len();
        if !queues.clone().any(|qid| self.full(qid)) {
            return f();
        }
        let before = sched_getaffinity(None);
        let bound = queues.into_iter().any(|qid| !self.full(qid) && bind(qid).is_ok());
        let result = f();
        if let (true, Ok(set)) = (bound, before) {
            let _ = sched_setaffinity(None, &set);
        }
        result
    }
}

type Told = Sender<io::Result<()>>;

/// Proof that entries can be made, and the means to tell the kernel that there will be none.
pub(crate) struct Probe(RingEntry);

impl Probe {
    /// # Errors
    /// Where the kernel or a security policy refuses io_uring.
    pub(crate) fn new(device: &Device) -> io::Result<Probe> {
        // No machine has that many processors: registering it would be refused.
        RingEntry::new(device.raw(), u16::MAX).map(Probe)
    }

    /// Makes the kernel go on without rings: it does when a registration fails, and until all
    /// queues are there or one failed it holds all requests back.
    fn call_off(mut self) {
        let _ = self.0.register();
    }
}

impl Rings {
    /// Registers entries for all queues, after INIT was answered with the flag.
    ///
    /// # Errors
    /// Where that failed; the kernel was told to go on without.
    pub(crate) fn start(
        dispatcher: &Arc<Dispatcher>,
        device: &Device,
        mount: (&Serving, &Path),
        means: (Arc<Load>, Probe),
    ) -> Result<(), NoRings> {
        let (load, probe) = means;
        let outcome = Rings::start_all(dispatcher, device, mount, load);
        if outcome.is_err() {
            probe.call_off();
        }
        outcome.map_err(NoRings::Refused)
    }

    fn start_all(
        dispatcher: &Arc<Dispatcher>,
        device: &Device,
        (serving, point): (&Serving, &Path),
        load: Arc<Load>,
    ) -> io::Result<()> {
        let rings = Arc::new(Rings {
            dispatcher: dispatcher.clone(),
            device: device.duplicate()?,
            load,
            serving: serving.clone(),
            point: point.to_owned(),
            warmth: AtomicUsize::new(WARM_ENTRIES),
        });
        let (told, outcomes) = channel();
        for qid in 0..rings.load.queues.len() {
            for _ in 0..rings.load.share {
                rings.spawn(qid, told.clone())?;
            }
        }
        drop(told);
        outcomes.into_iter().collect()
    }

    fn spawn(self: &Arc<Self>, qid: usize, told: Told) -> io::Result<()> {
        let (rings, part) = (self.clone(), self.serving.enter());
        let body = move || {
            rings.run(qid, told);
            drop(part);
        };
        std::thread::Builder::new().name(format!("ring{qid}")).spawn(body).map(|_| ())
    }

    /// One entry's life.
    fn run(self: &Arc<Self>, qid: usize, told: Told) {
        let mut entry = match self.offer(qid) {
            Ok(entry) => entry,
            Err(error) => {
                let _ = told.send(Err(error));
                return;
            }
        };
        self.dispatcher.ring_entries.fetch_add(1, Ordering::Relaxed);
        let queue = &self.load.queues[qid];
        queue.entries.fetch_add(1, Ordering::SeqCst);
        let _ = told.send(Ok(()));
        drop(told);
        let mut warm = false;
        let error = loop {
            if let Err(error) = entry.wait() {
                break error;
            }
            queue.busy.fetch_add(1, Ordering::Relaxed);
            let outcome = self.answer(qid, &mut entry, &mut warm);
            queue.busy.fetch_sub(1, Ordering::Relaxed);
            if let Err(error) = outcome {
                break error;
            }
        };
        let ended = [libc::ENOTCONN, libc::ECONNABORTED, libc::ENODEV, libc::ENOENT];
        if !error.raw_os_error().is_some_and(|e| ended.contains(&e)) {
            tracing::warn!("fuse: a ring entry of processor {qid} ended: {error}");
        }
    }

    /// Makes an entry that belongs to this thread, bound to the queue's processor.
    fn offer(&self, qid: usize) -> io::Result<RingEntry> {
        bind(qid)?;
        let mut entry = RingEntry::new(self.device.raw(), qid as u16)?;
        entry.register()?;
        Ok(entry)
    }

    /// Answers the request in the entry. The reply leaves now if a gate waits for that, else
    /// together with the wait for the next request.
    fn answer(
        self: &Arc<Self>,
        qid: usize,
        entry: &mut RingEntry,
        warm: &mut bool,
    ) -> io::Result<()> {
        let mut scratch = Vec::new();
        let Some((request, room)) = entry.request() else {
            return entry.answer(-libc::EIO, &Body::Empty, &[]);
        };
        let seat = Seat { load: &self.load, qid, answer: RefCell::new(None) };
        let pool = &self.dispatcher.buffers;
        let mut replier = Replier::new(pool, room, &mut scratch, &seat);
        self.dispatcher.answer(request, &mut replier);
        let mut reply = replier.finish();
        if matches!(reply.body, Body::Parked) {
            reply.error = self.wait_parked(qid, seat.answer.take());
        }
        entry.answer(reply.error, &reply.body, &scratch)?;
        let cools = entry.used_much() && !self.may_keep(warm);
        if reply.gate.is_some() || reply.read.is_some() || cools {
            entry.commit()?;
        }
        if cools {
            entry.release();
        }
        Ok(())
    }

    /// Waits for the answer to a parked request. The entry is the kernel's place for it until
    /// then; the queue gets another one for what comes next.
    fn wait_parked(self: &Arc<Self>, qid: usize, answer: Option<Receiver<i32>>) -> i32 {
        let Some(answer) = answer else { return -libc::EIO };
        if let Ok(error) = answer.try_recv() {
            return error;
        }
        let (_parked, more) = self.load.park(qid);
        if more && self.spawn_spare(qid).is_err() {
            self.load.spare.fetch_add(1, Ordering::SeqCst);
        }
        answer.recv().unwrap_or(-libc::EIO)
    }

    /// One more entry for a queue, also if all others have requests: those that the kernel has
    /// queued meanwhile are given out when an entry commits. So a request of our own, that any
    /// entry answers at once, is sent to it.
    fn spawn_spare(self: &Arc<Self>, qid: usize) -> io::Result<()> {
        let (tell, told) = channel();
        self.spawn(qid, tell)?;
        let point = self.point.clone();
        let body = move || {
            if told.recv().is_ok_and(|outcome| outcome.is_ok()) && bind(qid).is_ok() {
                let _ = rustix::fs::getxattr(&point, TRANSPORT_ATTRIBUTE, &mut [0; 256][..]);
            }
        };
        // Without it they wait for the next commit.
        let _ = std::thread::Builder::new().name("nudge".into()).spawn(body);
        Ok(())
    }

    /// Whether an entry may keep the memory of large requests; those that were first may.
    fn may_keep(&self, warm: &mut bool) -> bool {
        let take = |left: usize| left.checked_sub(1);
        if !*warm {
            *warm = self.warmth.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok();
        }
        *warm
    }
}

/// An entry's place for a request that waits.
struct Seat<'l> {
    load: &'l Load,
    qid: usize,
    answer: RefCell<Option<Receiver<i32>>>,
}

impl Parking for Seat<'_> {
    fn later(&self) -> Option<Later> {
        if !self.load.has_room(self.qid) {
            return None;
        }
        let (tell, told) = channel();
        *self.answer.borrow_mut() = Some(told);
        Some(Later::new(move |error| {
            let _ = tell.send(error);
        }))
    }
}

/// How many entries each of so many queues gets.
fn queue_share(queues: usize) -> usize {
    (ENTRIES / queues).clamp(*QUEUE_SHARE.start(), *QUEUE_SHARE.end())
}

/// Binds this thread to a processor. One that is off has a queue too, but no programs.
fn bind(processor: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    if processor < CpuSet::MAX_CPU {
        set.set(processor);
        if let Err(error) = sched_setaffinity(None, &set)
            && processors("online").contains(&processor)
        {
            return Err(error.into());
        }
    }
    Ok(())
}

/// Numbers of the `possible` processors, for which the kernel has queues, or the `online` ones.
fn processors(which: &str) -> Vec<usize> {
    let path = format!("/sys/devices/system/cpu/{which}");
    listed(&std::fs::read_to_string(path).unwrap_or_default())
}

/// The numbers that a list such as `0-3,8` names.
fn listed(list: &str) -> Vec<usize> {
    let number = |text: &str| text.trim().parse::<usize>().ok();
    let part = |part: &str| match part.split_once('-') {
        Some((from, to)) => Some(number(from)?..number(to)? + 1),
        None => number(part).map(|n| n..n + 1),
    };
    list.split(',').filter_map(part).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_read_from_a_list() {
        assert_eq!(listed("0-1\n"), [0, 1]);
        assert_eq!(listed("0\n"), [0]);
        assert_eq!(listed("0-3,8,10-11\n"), [0, 1, 2, 3, 8, 10, 11]);
        assert_eq!(listed(""), [0; 0]);
    }

    #[test]
    fn requests_of_a_recall_go_to_a_queue_with_free_entries() {
        let load = Load::of_machine();
        if load.queues.len() < 2 {
            return;
        }
        let all = sched_getaffinity(None).unwrap();
        for full in [0, 1] {
            load.queues[full].busy.store(load.share, Ordering::Relaxed);
            load.apart(|| assert_ne!(rustix::thread::sched_getcpu(), full));
            load.queues[full].busy.store(0, Ordering::Relaxed);
            assert_eq!(sched_getaffinity(None).unwrap(), all);
        }
    }

    #[test]
    fn waits_for_locks_leave_entries_to_others() {
        let load = Load::of_machine();
        load.spare.store(5, Ordering::SeqCst);
        let queue = &load.queues[0];
        queue.entries.store(load.share, Ordering::SeqCst);
        let mut parked = Vec::new();
        while load.has_room(0) {
            let (one, more) = load.park(0);
            queue.entries.fetch_add(usize::from(more), Ordering::SeqCst);
            parked.push(one);
            assert!(queue.serving() >= load.share / 2);
        }
        assert_eq!(parked.len(), 5 + load.share / 2);
        drop(parked);
        assert!(load.has_room(0));
        let (_one, more) = load.park(0);
        assert!(!more, "those that were added stay");
    }

    #[test]
    fn every_queue_has_entries_on_machines_of_any_size() {
        assert_eq!([1, 2, 16, 64, 128, 1024].map(queue_share), [64, 64, 64, 16, 8, 8]);
    }
}
