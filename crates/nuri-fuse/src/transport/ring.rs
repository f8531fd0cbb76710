//! The ring transport: a queue of entries for each processor, and a thread for each entry.
//!
//! The kernel gives a request to the queue of the processor that the program runs on. The entries'
//! threads are bound to that processor, so no wake-up crosses to another one. A handler may wait
//! for servers and other clients; it keeps its entry meanwhile. All entries are there from the
//! start. An entry that came later would not get the requests that already wait in the queue: the
//! kernel (6.18) looks there only when an entry commits. The kernel takes the entry that became
//! free last. So entries that are never needed cost only their threads.
//!
//! Waits for locks have no bound in time. An entry that holds one is replaced by a further entry
//! before the queue is short, up to `SPARE_ENTRIES`. Beyond that, half of a queue's entries stay
//! for other requests, and locks that would have to wait are refused (`ENOLCK`).

use std::cell::RefCell;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use crate::op::Dispatcher;
use crate::protocol::reply::{Body, Later, Parking, Replier};
use crate::transport::device::Device;
use crate::transport::load::{Load, bind};
use crate::transport::probe::Probe;
use crate::transport::ring_entry::RingEntry;
use crate::transport::serving::Serving;
use crate::transport::{NoRings, TRANSPORT_ATTRIBUTE};

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

type Told = Sender<io::Result<()>>;

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
