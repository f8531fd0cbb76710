//! How busy the queues of the ring transport are. Also, the processor on which a call to the kernel
//! is safe while the queues are full.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Entries of all queues together, and the bounds of a queue's share of them.
const ENTRIES: usize = 1024;
const QUEUE_SHARE: std::ops::RangeInclusive<usize> = 8..=64;
/// Entries that all queues together may get in the place of those whose programs wait for locks.
const SPARE_ENTRIES: usize = 1024;
/// How many entries of each queue have a request; none where requests come the classic way.
pub(crate) struct Load {
    pub(crate) queues: Vec<QueueLoad>,
    /// Entries of each queue at first, and what there may be beyond them in all queues together.
    pub(crate) share: usize,
    pub(crate) spare: AtomicUsize,
}

#[derive(Default)]
pub(crate) struct QueueLoad {
    pub(crate) busy: AtomicUsize,
    /// Of the busy ones, those whose program waits for a lock.
    pub(crate) parked: AtomicUsize,
    pub(crate) entries: AtomicUsize,
}

impl QueueLoad {
    /// Entries that can serve other requests, now or soon.
    pub(crate) fn serving(&self) -> usize {
        let entries = self.entries.load(Ordering::SeqCst);
        entries.saturating_sub(self.parked.load(Ordering::SeqCst))
    }
}

/// An entry whose program waits for a lock; ends with the value.
pub(crate) struct Parked<'l>(&'l QueueLoad);

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
    pub(crate) fn has_room(&self, qid: usize) -> bool {
        self.spare.load(Ordering::SeqCst) > 0 || self.queues[qid].serving() > self.share / 2
    }

    /// Counts an entry that waits. Says whether the queue shall get another one in its place.
    pub(crate) fn park(&self, qid: usize) -> (Parked<'_>, bool) {
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

/// How many entries each of so many queues gets.
fn queue_share(queues: usize) -> usize {
    (ENTRIES / queues).clamp(*QUEUE_SHARE.start(), *QUEUE_SHARE.end())
}

/// Binds this thread to a processor. One that is off has a queue too, but no programs.
pub(crate) fn bind(processor: usize) -> io::Result<()> {
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
