//! The ring transport: for each processor a queue of entries, for each entry a thread.
//!
//! The kernel gives a request to the queue of the processor that the program runs on. The
//! entries' threads are bound to that processor, so that no wake-up crosses to another one. A
//! handler may wait for servers and other clients; each has a thread and an entry of its own, and
//! when the last free entry of a queue takes a request a further one is registered.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};

use rustix::thread::{CpuSet, sched_setaffinity};

use crate::device::Device;
use crate::dispatch::Dispatcher;
use crate::reply::{Body, Replier};
use crate::server::{MAX_WRITE, Serving};
use crate::transport::NoRings;
use crate::uring::RingEntry;

/// Entries in all queues together that keep the memory of large requests: 32 MiB.
const WARM_ENTRIES: usize = 32;
/// Entries of a queue at first.
const FIRST_ENTRIES: usize = 2;
/// Threads of all queues together, and the bounds of one queue's share.
const MAX_ENTRIES: usize = 1024;
const QUEUE_SHARE: std::ops::RangeInclusive<usize> = 16..=256;

/// All entries of a mount.
pub(crate) struct Rings {
    dispatcher: Arc<Dispatcher>,
    device: Device,
    serving: Serving,
    queues: Vec<Queue>,
}

#[derive(Default)]
struct Queue {
    /// Entries that wait for a request now, and all of them.
    idle: AtomicUsize,
    count: AtomicUsize,
}

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
        probe: Probe,
    ) -> Result<(), NoRings> {
        let outcome = Rings::start_all(dispatcher, device, serving);
        if outcome.is_err() {
            probe.call_off();
        }
        outcome.map_err(NoRings::Refused)
    }

    fn start_all(
        dispatcher: &Arc<Dispatcher>,
        device: &Device,
        serving: &Serving,
    ) -> io::Result<()> {
        let queues = (0..possible_processors()).map(|_| Queue::default()).collect();
        let (dispatcher, serving) = (dispatcher.clone(), serving.clone());
        let rings = Arc::new(Rings { dispatcher, device: device.duplicate()?, serving, queues });
        let (told, outcomes) = channel();
        for qid in 0..rings.queues.len() {
            for _ in 0..FIRST_ENTRIES {
                rings.spawn(qid, Some(told.clone()))?;
            }
        }
        drop(told);
        outcomes.into_iter().collect()
    }

    fn most(&self) -> usize {
        (MAX_ENTRIES / self.queues.len()).clamp(*QUEUE_SHARE.start(), *QUEUE_SHARE.end())
    }

    fn spawn(self: &Arc<Self>, qid: usize, told: Option<Sender<io::Result<()>>>) -> io::Result<()> {
        let queue = &self.queues[qid];
        let index = queue.count.fetch_add(1, Ordering::SeqCst);
        let (rings, part) = (self.clone(), self.serving.enter());
        let body = move || {
            rings.run(qid, index, told);
            rings.queues[qid].count.fetch_sub(1, Ordering::SeqCst);
            drop(part);
        };
        let spawned = std::thread::Builder::new().name(format!("ring{qid}")).spawn(body);
        if spawned.is_err() {
            queue.count.fetch_sub(1, Ordering::SeqCst);
        }
        spawned.map(|_| ())
    }

    /// One entry's life.
    fn run(self: &Arc<Self>, qid: usize, index: usize, told: Option<Sender<io::Result<()>>>) {
        bind(qid);
        let made = RingEntry::new(self.device.raw(), qid as u16);
        let entry = made.and_then(|mut entry| entry.register().map(|()| entry));
        let (entry, outcome) = match entry {
            Ok(entry) => (Some(entry), Ok(())),
            Err(error) => (None, Err(error)),
        };
        if let Some(told) = told {
            let _ = told.send(outcome);
        }
        let Some(mut entry) = entry else {
            return;
        };
        let keeps = index * self.queues.len() < WARM_ENTRIES;
        let error = loop {
            if let Err(error) = self.next(qid, &mut entry) {
                break error;
            }
            if let Err(error) = self.answer(&mut entry, keeps) {
                break error;
            }
        };
        let ended = [libc::ENOTCONN, libc::ECONNABORTED, libc::ENODEV, libc::ENOENT];
        if !error.raw_os_error().is_some_and(|e| ended.contains(&e)) {
            eprintln!("fuse: a ring entry of processor {qid} ended: {error}");
        }
    }

    /// Waits for the next request; adds an entry where no other one waits.
    fn next(self: &Arc<Self>, qid: usize, entry: &mut RingEntry) -> io::Result<()> {
        let queue = &self.queues[qid];
        queue.idle.fetch_add(1, Ordering::SeqCst);
        let outcome = entry.wait();
        let idle = queue.idle.fetch_sub(1, Ordering::SeqCst) - 1;
        outcome?;
        if idle == 0 && queue.count.load(Ordering::SeqCst) < self.most() {
            let _ = self.spawn(qid, None);
        }
        Ok(())
    }

    fn answer(&self, entry: &mut RingEntry, keeps: bool) -> io::Result<()> {
        let mut scratch = Vec::new();
        let Some((request, room)) = entry.request() else {
            return entry.answer(-libc::EIO, &Body::Empty, &[]);
        };
        let mut replier = Replier::new(&self.dispatcher.buffers, room, &mut scratch);
        self.dispatcher.answer(request, &mut replier);
        let reply = replier.finish();
        entry.answer(reply.error, &reply.body, &scratch)?;
        if reply.gate.is_some() || !keeps {
            // The gate ends when the kernel has the reply, not when the next request comes.
            entry.commit()?;
        }
        if !keeps {
            entry.release(MAX_WRITE as usize);
        }
        Ok(())
    }
}

/// Binds this thread to a processor. One that is off, or that we may not use, still has a queue.
fn bind(processor: usize) {
    let mut set = CpuSet::new();
    if processor < CpuSet::MAX_CPU {
        set.set(processor);
        let _ = sched_setaffinity(None, &set);
    }
}

/// How many processors the kernel has queues for.
fn possible_processors() -> usize {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    count_listed(&text).max(1)
}

/// How many numbers a list such as `0-3,8` names.
fn count_listed(list: &str) -> usize {
    let number = |text: &str| text.trim().parse::<usize>().ok();
    let part = |part: &str| match part.split_once('-') {
        Some((from, to)) => Some(number(to)?.checked_sub(number(from)?)? + 1),
        None => number(part).map(|_| 1),
    };
    list.split(',').filter_map(part).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_counted_from_a_list() {
        assert_eq!(count_listed("0-1\n"), 2);
        assert_eq!(count_listed("0\n"), 1);
        assert_eq!(count_listed("0-3,8,10-11\n"), 7);
        assert_eq!(count_listed(""), 0);
    }
}
