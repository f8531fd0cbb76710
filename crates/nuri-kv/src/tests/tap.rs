//! Two disks that share one order of events, so that both can be cut at the same moment.

use std::io;
use std::sync::Arc;

use nuri_io::disk::Disk;
use nuri_io::mem::MemDisk;
use nuri_io::rng::Rng;
use parking_lot::Mutex;

use super::CONFIG;
use crate::embedded::Embedded;
use crate::engine::KvError;

/// A pair of recording disks.
pub struct Pair {
    pub log: Arc<MemDisk>,
    pub tables: Arc<MemDisk>,
    /// Events of both disks after each step.
    moments: Mutex<Vec<(usize, usize)>>,
}

struct Tap {
    disk: Arc<MemDisk>,
    pair: Arc<Pair>,
}

impl Pair {
    pub fn new() -> Arc<Pair> {
        Arc::new(Pair {
            log: Arc::new(MemDisk::recording()),
            tables: Arc::new(MemDisk::recording()),
            moments: Mutex::default(),
        })
    }

    pub fn open(self: &Arc<Pair>) -> Result<Embedded, KvError> {
        let [log, tables] = self.taps();
        Embedded::open(log, tables, CONFIG)
    }

    /// Log and tables, each step of which is noted.
    pub fn taps(self: &Arc<Pair>) -> [Arc<dyn Disk>; 2] {
        [&self.log, &self.tables].map(|disk| -> Arc<dyn Disk> {
            Arc::new(Tap { disk: disk.clone(), pair: self.clone() })
        })
    }

    /// Steps so far.
    pub fn now(&self) -> usize {
        self.moments.lock().len()
    }

    /// Both disks after a crash behind step `moment`.
    pub fn cut(&self, moment: usize, rng: &mut Rng) -> (Arc<MemDisk>, Arc<MemDisk>) {
        let (log, tables) = moment.checked_sub(1).map_or((0, 0), |last| self.moments.lock()[last]);
        let log = self.log.image_at_event(log, rng);
        (Arc::new(log), Arc::new(self.tables.image_at_event(tables, rng)))
    }
}

impl Tap {
    fn stepped<T>(&self, outcome: io::Result<T>) -> io::Result<T> {
        let now = (self.pair.log.events(), self.pair.tables.events());
        self.pair.moments.lock().push(now);
        outcome
    }
}

impl Disk for Tap {
    fn len(&self) -> io::Result<u64> {
        self.disk.len()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.stepped(self.disk.set_len(len))
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.disk.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.stepped(self.disk.write_at(offset, data))
    }
    fn sync(&self) -> io::Result<()> {
        self.stepped(self.disk.sync())
    }
}
