//! Writes past the kernel's pages that make a file longer.
//!
//! In the kernel's cache, the page in which a file ended holds zeros from there on. A direct write
//! behind that end drops the page only when the bytes are accepted (`op/kernel_cached.rs`). By then
//! any caller that asks is told the new size. A reader that asks in between would read zeros in
//! place of the new bytes. So an answer that has the size waits until the pages of the writes that
//! made it are dropped.
//!
//! Example: a log of 5000 bytes has zeros from byte 904 on in its second page. A program appends
//! 100 bytes, the mount accepts them, and another program asks for the size. The mount answers 5100
//! once the second page is dropped.

use std::cell::Cell;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use nuri_proto::id::Ino;
use nuri_rules::broken;
use parking_lot::{Condvar, Mutex};

/// Inodes are spread over so many tables.
const TABLES: usize = 64;
/// A page goes as soon as its reader is served. After so long the size is told all the same.
const LONGEST: Duration = Duration::from_secs(1);

/// Where files ended when writes began that have pages to drop.
type Ends = HashMap<Ino, Vec<u64>>;

pub(crate) struct Growing(Vec<(Mutex<Ends>, Condvar)>);

/// A write, which ends when dropped.
pub(crate) struct Growth<'g> {
    growing: &'g Growing,
    ino: Ino,
    /// Where the file ended, if it makes the file longer.
    end: Cell<Option<u64>>,
}

impl Growth<'_> {
    /// Its bytes are accepted, in a file that ended there. Called before anybody sees the new size.
    pub(crate) fn begin(&self, end: u64) {
        if self.end.get().is_none() {
            self.end.set(Some(end));
            self.growing.table(self.ino).0.lock().entry(self.ino).or_default().push(end);
        }
    }
}

impl Growing {
    pub(crate) fn new() -> Growing {
        Growing((0..TABLES).map(|_| Default::default()).collect())
    }

    fn table(&self, ino: Ino) -> &(Mutex<Ends>, Condvar) {
        &self.0[ino.0 as usize % TABLES]
    }

    /// Before a direct write.
    pub(crate) fn watch(&self, ino: Ino) -> Growth<'_> {
        Growth { growing: self, ino, end: Cell::new(None) }
    }

    /// Whether a write that may have made the file so long has pages to drop.
    pub(crate) fn has_reached(&self, ino: Ino, size: u64) -> bool {
        has_reached(&self.table(ino).0.lock(), ino, size)
    }

    /// Waits until the pages of all writes that made the file so long are dropped.
    pub(crate) fn wait(&self, ino: Ino, size: u64) {
        let (ends, changed) = self.table(ino);
        let mut ends = ends.lock();
        let until = Instant::now() + LONGEST;
        while has_reached(&ends, ino, size) && !broken!("zeros_at_the_end") {
            if changed.wait_until(&mut ends, until).timed_out() {
                return;
            }
        }
    }
}

fn has_reached(ends: &Ends, ino: Ino, size: u64) -> bool {
    ends.get(&ino).is_some_and(|ends| ends.iter().any(|end| *end < size))
}

impl Drop for Growth<'_> {
    fn drop(&mut self) {
        let Some(end) = self.end.get() else { return };
        let (ends, changed) = self.growing.table(self.ino);
        let mut ends = ends.lock();
        if let Some(own) = ends.get_mut(&self.ino) {
            if let Some(at) = own.iter().position(|other| *other == end) {
                own.swap_remove(at);
            }
            if own.is_empty() {
                ends.remove(&self.ino);
            }
        }
        changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_told_when_the_pages_of_its_writes_are_gone() {
        let (growing, ino) = (Growing::new(), Ino(7));
        let (first, second) = (growing.watch(ino), growing.watch(ino));
        assert!(!growing.has_reached(ino, 101), "its bytes are not accepted");
        first.begin(100);
        second.begin(300);
        assert!(!growing.has_reached(ino, 100) && growing.has_reached(ino, 101));
        assert!(!growing.has_reached(Ino(8), 500));
        growing.wait(ino, 100);
        drop(first);
        growing.wait(ino, 300);
        assert!(growing.has_reached(ino, 301));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| growing.wait(ino, 400));
            std::thread::sleep(Duration::from_millis(20));
            assert!(!waits.is_finished());
            drop(second);
        });
        assert!(growing.0.iter().all(|(ends, _)| ends.lock().is_empty()));
    }

    #[test]
    fn a_page_that_stays_keeps_nobody_for_ever() {
        let growing = Growing::new();
        let stays = growing.watch(Ino(7));
        stays.begin(1);
        let start = Instant::now();
        growing.wait(Ino(7), 2);
        assert!(start.elapsed() >= LONGEST);
    }
}
