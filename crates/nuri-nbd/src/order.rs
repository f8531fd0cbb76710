//! What all connections of an export share: the order of its requests, and how many flushes failed.
//!
//! Requests that overlap run in the order in which they came (NBD-1).
//!
//! A client may send a write before the answer to another one of the same bytes, on the same
//! connection or another. The later one must win, so it waits for the earlier one. Reads wait for
//! writes, and writes for reads; reads do not wait for each other.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use nuri_rules::broken;
use parking_lot::{Condvar, Mutex};

/// What a request does with its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    Reads,
    Changes,
}

#[derive(Clone, Copy, Debug)]
struct Range {
    start: u64,
    end: u64,
    how: Use,
}

impl Range {
    fn is_in_the_way_of(&self, other: &Range) -> bool {
        let changes = self.how == Use::Changes || other.how == Use::Changes;
        changes && self.start < other.end && other.start < self.end
    }
}

/// The requests of an export that came and are not done, by when they came. Pure.
#[derive(Default, Debug)]
pub struct Arrivals {
    last: u64,
    ranges: BTreeMap<u64, Range>,
}

impl Arrivals {
    /// A request of these bytes; its number, to be told when it ends.
    pub fn arrive(&mut self, start: u64, end: u64, how: Use) -> u64 {
        self.last += 1;
        self.ranges.insert(self.last, Range { start, end, how });
        self.last
    }

    /// Whether nothing that came before is in its way.
    pub fn may_run(&self, number: u64) -> bool {
        let Some(own) = self.ranges.get(&number) else { return true };
        let mut earlier = self.ranges.range(..number);
        broken!("nbd_overlap") || !earlier.any(|(_, range)| range.is_in_the_way_of(own))
    }

    /// True where somebody may wait for it.
    pub fn end(&mut self, number: u64) -> bool {
        self.ranges.remove(&number);
        !self.ranges.is_empty()
    }
}

/// Of an export, for all its connections.
#[derive(Default)]
pub struct Order {
    arrivals: Mutex<Arrivals>,
    ended: Condvar,
    /// Bytes of any connection may be lost: each is told at its next flush.
    failures: AtomicU64,
}

/// A request that came; done when dropped.
pub(crate) struct Arrived<'o> {
    order: &'o Order,
    number: u64,
}

impl Order {
    /// Flushes that failed, of all connections.
    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Ordering::SeqCst)
    }

    pub(crate) fn note_failure(&self) {
        self.failures.fetch_add(1, Ordering::SeqCst);
    }

    /// A request came. To be called in the order in which they come.
    pub(crate) fn arrive(&self, start: u64, end: u64, how: Use) -> Arrived<'_> {
        let number = self.arrivals.lock().arrive(start, end, how);
        Arrived { order: self, number }
    }
}

impl Arrived<'_> {
    /// Waits for those that came before.
    pub(crate) fn wait(&self) {
        let mut arrivals = self.order.arrivals.lock();
        while !arrivals.may_run(self.number) {
            self.order.ended.wait(&mut arrivals);
        }
    }
}

impl Drop for Arrived<'_> {
    fn drop(&mut self) {
        if self.order.arrivals.lock().end(self.number) {
            self.order.ended.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches `broken!("nbd_overlap")`.
    #[test]
    fn who_overlaps_waits_for_who_came_before() {
        let mut arrivals = Arrivals::default();
        let mut arrive = |start, end, how| {
            let number = arrivals.arrive(start, end, how);
            (number, arrivals.may_run(number))
        };
        let (first, runs) = arrive(0, 10, Use::Changes);
        assert!(runs);
        let (read, runs) = arrive(5, 6, Use::Reads);
        assert!(!runs, "a read of what is being written");
        let (_, runs) = arrive(10, 20, Use::Changes);
        assert!(runs, "beside it");
        let (last, runs) = arrive(0, 30, Use::Changes);
        assert!(!runs);
        arrivals.end(first);
        assert!(arrivals.may_run(read) && !arrivals.may_run(last));
        let also = arrivals.arrive(5, 7, Use::Reads);
        assert!(!arrivals.may_run(also), "it came after a write that waits");
        arrivals.end(read);
        arrivals.end(3);
        assert!(arrivals.may_run(last));
        arrivals.end(last);
        assert!(arrivals.may_run(also));
    }

    #[test]
    fn the_last_of_many_writes_to_the_same_bytes_stays() {
        let (order, written) = (Order::default(), Mutex::new(0));
        std::thread::scope(|scope| {
            for value in 1..=100 {
                let arrived = order.arrive(0, 1, Use::Changes);
                let written = &written;
                scope.spawn(move || {
                    arrived.wait();
                    *written.lock() = value;
                });
            }
        });
        assert_eq!(*written.lock(), 100);
    }
}
