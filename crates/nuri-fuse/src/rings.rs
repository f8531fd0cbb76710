//! The ring transport: for each processor a queue of entries, for each entry a thread.
//!
//! The kernel gives a request to the queue of the processor that the program runs on. The
//! entries' threads are bound to that processor, so that no wake-up crosses to another one. A
//! handler may wait for servers and other clients; it keeps its entry meanwhile. All entries are
//! there from the start, because one that came later would not be given what already waits in the
//! queue: the kernel (6.18) looks there only when an entry commits. The kernel takes the entry
//! that became free last, so those that are never needed cost their threads alone.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::device::Device;
use crate::dispatch::Dispatcher;
use crate::reply::{Body, Replier};
use crate::server::Serving;
use crate::transport::NoRings;
use crate::uring::RingEntry;

/// Entries of all queues together, and the bounds of a queue's share of them.
const ENTRIES: usize = 1024;
const QUEUE_SHARE: std::ops::RangeInclusive<usize> = 8..=64;
/// Entries of all queues together that keep the memory of a large request: 32 MiB. Others give it
/// back at once.
const WARM_ENTRIES: usize = 32;

/// All entries of a mount.
pub(crate) struct Rings {
    dispatcher: Arc<Dispatcher>,
    device: Device,
    load: Arc<Load>,
    /// Entries that may keep their memory and do not yet.
    warmth: AtomicUsize,
}

/// How many entries of each queue have a request; none where requests come the classic way.
pub(crate) struct Load {
    busy: Vec<AtomicUsize>,
    share: usize,
}

impl Load {
    pub(crate) fn of_machine() -> Load {
        let queues = processors("possible").len().max(1);
        let busy = (0..queues).map(|_| AtomicUsize::new(0)).collect();
        Load { busy, share: queue_share(queues) }
    }

    fn full(&self, qid: usize) -> bool {
        self.busy.get(qid).is_some_and(|busy| busy.load(Ordering::Relaxed) >= self.share)
    }

    /// Runs `f`, during which the kernel may send requests for this thread and wait for them. If
    /// a queue is full of waiting requests, that is done on the processor of another one.
    pub(crate) fn apart(&self, f: impl FnOnce()) {
        let queues = 0..self.busy.len();
        if !queues.clone().any(|qid| self.full(qid)) {
            return f();
        }
        let before = sched_getaffinity(None);
        let bound = queues.into_iter().any(|qid| !self.full(qid) && bind(qid).is_ok());
        f();
        if let (true, Ok(set)) = (bound, before) {
            let _ = sched_setaffinity(None, &set);
        }
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
        serving: &Serving,
        means: (Arc<Load>, Probe),
    ) -> Result<(), NoRings> {
        let (load, probe) = means;
        let outcome = Rings::start_all(dispatcher, device, serving, load);
        if outcome.is_err() {
            probe.call_off();
        }
        outcome.map_err(NoRings::Refused)
    }

    fn start_all(
        dispatcher: &Arc<Dispatcher>,
        device: &Device,
        serving: &Serving,
        load: Arc<Load>,
    ) -> io::Result<()> {
        let rings = Arc::new(Rings {
            dispatcher: dispatcher.clone(),
            device: device.duplicate()?,
            load,
            warmth: AtomicUsize::new(WARM_ENTRIES),
        });
        let (told, outcomes) = channel();
        for qid in 0..rings.load.busy.len() {
            for _ in 0..rings.load.share {
                rings.spawn(qid, serving, told.clone())?;
            }
        }
        drop(told);
        outcomes.into_iter().collect()
    }

    fn spawn(self: &Arc<Self>, qid: usize, serving: &Serving, told: Told) -> io::Result<()> {
        let (rings, part) = (self.clone(), serving.enter());
        let body = move || {
            rings.run(qid, told);
            drop(part);
        };
        std::thread::Builder::new().name(format!("ring{qid}")).spawn(body).map(|_| ())
    }

    /// One entry's life.
    fn run(&self, qid: usize, told: Told) {
        let mut entry = match self.offer(qid) {
            Ok(entry) => entry,
            Err(error) => {
                let _ = told.send(Err(error));
                return;
            }
        };
        self.dispatcher.ring_entries.fetch_add(1, Ordering::Relaxed);
        let _ = told.send(Ok(()));
        drop(told);
        let mut warm = false;
        let error = loop {
            if let Err(error) = entry.wait() {
                break error;
            }
            self.load.busy[qid].fetch_add(1, Ordering::Relaxed);
            let outcome = self.answer(&mut entry, &mut warm);
            self.load.busy[qid].fetch_sub(1, Ordering::Relaxed);
            if let Err(error) = outcome {
                break error;
            }
        };
        let ended = [libc::ENOTCONN, libc::ECONNABORTED, libc::ENODEV, libc::ENOENT];
        if !error.raw_os_error().is_some_and(|e| ended.contains(&e)) {
            eprintln!("fuse: a ring entry of processor {qid} ended: {error}");
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
    fn answer(&self, entry: &mut RingEntry, warm: &mut bool) -> io::Result<()> {
        let mut scratch = Vec::new();
        let Some((request, room)) = entry.request() else {
            return entry.answer(-libc::EIO, &Body::Empty, &[]);
        };
        let mut replier = Replier::new(&self.dispatcher.buffers, room, &mut scratch);
        self.dispatcher.answer(request, &mut replier);
        let reply = replier.finish();
        entry.answer(reply.error, &reply.body, &scratch)?;
        let cools = entry.used_much() && !self.may_keep(warm);
        if reply.gate.is_some() || cools {
            entry.commit()?;
        }
        if cools {
            entry.release();
        }
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
        if load.busy.len() < 2 {
            return;
        }
        let all = sched_getaffinity(None).unwrap();
        for full in [0, 1] {
            load.busy[full].store(load.share, Ordering::Relaxed);
            load.apart(|| assert_ne!(rustix::thread::sched_getcpu(), full));
            load.busy[full].store(0, Ordering::Relaxed);
            assert_eq!(sched_getaffinity(None).unwrap(), all);
        }
    }

    #[test]
    fn every_queue_has_entries_on_machines_of_any_size() {
        assert_eq!([1, 2, 16, 64, 128, 1024].map(queue_share), [64, 64, 64, 16, 8, 8]);
    }
}
