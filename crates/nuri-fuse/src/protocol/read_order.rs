//! Keeps reads beyond the end of a file in their order.
//!
//! A short answer tells the kernel where the file ends (Linux 6.18, `fuse_read_update_size`). Of
//! the answers to reads that the kernel sent together, only the first counts. The kernel may
//! believe that the file is longer than it is, because another mount truncated it. If the answer
//! for later bytes came first, the kernel would believe that the file ends there, and show zeros
//! before that place. So an answer without any byte waits for the answers to reads before it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nuri_proto::id::Ino;
use parking_lot::{Condvar, Mutex};

/// Inodes are spread over so many tables.
const TABLES: usize = 64;
/// The kernel sends reads in their order; some time passes before a thread has taken one.
const TAKEN: Duration = Duration::from_micros(200);
/// Longer waits are worse than what they prevent.
const LONGEST: Duration = Duration::from_secs(1);

/// Where reads begin that are not answered yet.
pub(crate) struct Reads(Vec<Table>);

#[derive(Default)]
struct Table {
    begins: Mutex<HashMap<Ino, Vec<u64>>>,
    answered: Condvar,
}

/// A read that is not answered yet; ends when dropped.
pub(crate) struct ReadUnderWay {
    reads: Arc<Reads>,
    ino: Ino,
    begin: u64,
}

impl Reads {
    pub(crate) fn new() -> Reads {
        Reads((0..TABLES).map(|_| Table::default()).collect())
    }

    fn table(&self, ino: Ino) -> &Table {
        &self.0[ino.0 as usize % TABLES]
    }

    pub(crate) fn enter(self: &Arc<Self>, ino: Ino, begin: u64) -> ReadUnderWay {
        self.table(ino).begins.lock().entry(ino).or_default().push(begin);
        ReadUnderWay { reads: self.clone(), ino, begin }
    }
}

impl ReadUnderWay {
    /// Until no read of earlier bytes is under way.
    pub(crate) fn wait_for_those_before(&self) {
        std::thread::sleep(TAKEN);
        let (table, start) = (self.reads.table(self.ino), Instant::now());
        let mut begins = table.begins.lock();
        let is_first = |begins: &HashMap<Ino, Vec<u64>>| {
            begins.get(&self.ino).is_none_or(|of| of.iter().all(|begin| *begin >= self.begin))
        };
        while !is_first(&begins) && start.elapsed() < LONGEST {
            table.answered.wait_for(&mut begins, LONGEST);
        }
    }
}

impl Drop for ReadUnderWay {
    fn drop(&mut self) {
        let table = self.reads.table(self.ino);
        let mut begins = table.begins.lock();
        if let Some(of) = begins.get_mut(&self.ino) {
            if let Some(at) = of.iter().position(|begin| *begin == self.begin) {
                of.swap_remove(at);
            }
            if of.is_empty() {
                begins.remove(&self.ino);
            }
        }
        table.answered.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_waits_for_those_of_earlier_bytes() {
        let reads = Arc::new(Reads::new());
        let (first, second) = (reads.enter(Ino(7), 0), reads.enter(Ino(7), 4096));
        let other = reads.enter(Ino(8), 0);
        first.wait_for_those_before();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| second.wait_for_those_before());
            std::thread::sleep(Duration::from_millis(20));
            assert!(!waits.is_finished());
            drop(first);
            waits.join().unwrap();
        });
        drop((second, other));
        assert!(reads.0.iter().all(|table| table.begins.lock().is_empty()));
    }
}
