//! The log as it grows: records gather in memory, and a batch is written by one write and one sync.
//!
//! Positions are those of `log.rs`. The journal lives under the store's lock and does no I/O. The
//! thread that flushes takes a batch out, writes it without the lock, and reports back.

use nuri_io::buf::AlignedBuf;
use nuri_io::disk::{Disk, DiskOp};

use super::BLOCK;
use super::log::{Body, Place};
use super::superblock::{LogStart, Regions};

/// First size of the gathering buffer, bytes.
const FIRST_BUF: usize = 256 << 10;
/// Records gather up to this before somebody must flush, bytes.
const MAX_BUF: usize = 4 << 20;

/// Records that go to the disk together.
pub struct Batch {
    buf: AlignedBuf,
    position: u64,
    pub last_seq: u64,
    /// Data blocks were written that must be durable before these records are.
    pub needs_data: bool,
}

/// See the module's text.
pub struct Journal {
    len: u64,
    pub generation: u64,
    /// Replay starts here; nothing from here on may be overwritten.
    tail: u64,
    /// Position of the first byte of `buf`.
    base: u64,
    buf: AlignedBuf,
    spare: Option<AlignedBuf>,
    next_seq: u64,
    durable_seq: u64,
    needs_data: bool,
    /// Somebody is writing a batch.
    pub flushing: bool,
}

impl Journal {
    /// An empty journal whose next record goes to `start`.
    pub fn new(regions: &Regions, start: LogStart) -> Journal {
        let mut buf = AlignedBuf::zeroed(FIRST_BUF);
        buf.set_len(0);
        Journal {
            len: regions.log_len,
            generation: start.generation,
            tail: start.position,
            base: start.position,
            buf,
            spare: None,
            next_seq: start.seq,
            durable_seq: start.seq - 1,
            needs_data: false,
            flushing: false,
        }
    }

    /// Whether a record of `bytes` fits before the tail.
    pub fn has_room(&self, bytes: usize) -> bool {
        self.end(bytes) - self.tail <= self.len
    }

    /// Whether the gathering buffer takes `bytes` more without being flushed.
    pub fn buffer_has_room(&self, bytes: usize) -> bool {
        self.buf.is_empty() || self.buf.len() + bytes <= self.max_buf()
    }

    fn max_buf(&self) -> usize {
        MAX_BUF.min(self.len as usize / 4)
    }

    fn end(&self, bytes: usize) -> u64 {
        self.base + (self.buf.len() + bytes).next_multiple_of(BLOCK) as u64
    }

    /// More than `num`/`den` of the log is in use.
    pub fn beyond(&self, num: u64, den: u64) -> bool {
        (self.end(0) - self.tail) * den > self.len * num
    }

    /// Sequence number of the newest record, durable or not.
    pub fn last_seq(&self) -> u64 {
        self.next_seq - 1
    }

    /// The number that the next record will have.
    pub fn next_seq(&self) -> u64 {
        self.next_seq
    }

    pub fn durable_seq(&self) -> u64 {
        self.durable_seq
    }

    /// Where a record appended now would start a batch of its own: a point to replay from, given
    /// that what is gathered is flushed on its own.
    pub fn mark(&self) -> LogStart {
        debug_assert!(self.buf.is_empty());
        LogStart { generation: self.generation, position: self.base, seq: self.next_seq }
    }

    /// Nothing gathered, nothing being written.
    pub fn is_quiet(&self) -> bool {
        self.buf.is_empty() && !self.flushing
    }

    /// Nothing before this is needed any more.
    pub fn advance_tail(&mut self, to: u64) {
        self.tail = self.tail.max(to);
    }

    /// Adds a record and returns its sequence number. There must be room.
    pub fn append(&mut self, body: &Body<'_>) -> u64 {
        let seq = self.next_seq;
        self.next_seq += 1;
        let place = Place {
            generation: self.generation,
            position: self.base + self.buf.len() as u64,
            seq,
            batch: self.base,
        };
        self.grow(body.log_len());
        let buf = &mut self.buf;
        body.finish(place, |part| {
            let at = buf.len();
            buf.set_len(at + part.len());
            buf[at..].copy_from_slice(part);
        });
        seq
    }

    /// The next batch must not be made durable before data written so far is.
    pub fn require_data(&mut self) {
        self.needs_data = true;
    }

    fn grow(&mut self, bytes: usize) {
        let need = (self.buf.len() + bytes).next_multiple_of(BLOCK);
        if need > self.buf.capacity() {
            let mut bigger = AlignedBuf::zeroed(need.next_power_of_two());
            bigger.set_len(self.buf.len());
            bigger.copy_from_slice(&self.buf);
            self.buf = bigger;
        }
    }

    /// Takes what is gathered, padded to whole blocks.
    pub fn take_batch(&mut self) -> Batch {
        let mut next = self.spare.take().unwrap_or_else(|| AlignedBuf::zeroed(FIRST_BUF));
        next.set_len(0);
        let mut buf = std::mem::replace(&mut self.buf, next);
        let used = buf.len();
        let padded = used.next_multiple_of(BLOCK);
        buf.set_len(padded);
        buf[used..].fill(0);
        let position = self.base;
        self.base += padded as u64;
        self.flushing = true;
        let needs_data = std::mem::take(&mut self.needs_data);
        Batch { buf, position, last_seq: self.next_seq - 1, needs_data }
    }

    /// The batch is durable.
    pub fn written(&mut self, batch: Batch) {
        self.durable_seq = batch.last_seq;
        self.flushing = false;
        // A buffer that grew for one burst is kept while batches fill it: fresh memory is zeroed.
        let (used, capacity) = (batch.buf.len(), batch.buf.capacity());
        if capacity <= 2 * FIRST_BUF || used >= capacity / 4 {
            self.spare = Some(batch.buf);
        }
    }
}

impl Batch {
    /// Writes the batch into the log region, in two parts where the region ends.
    pub fn write(&self, disk: &impl Disk, regions: &Regions) -> std::io::Result<()> {
        let offset = self.position % regions.log_len;
        let first = (regions.log_len - offset).min(self.buf.len() as u64) as usize;
        let (head, wrapped) = self.buf.split_at(first);
        if wrapped.is_empty() {
            return disk.write_at(regions.log_at + offset, head);
        }
        disk.submit(&mut [
            DiskOp::Write { offset: regions.log_at + offset, data: head },
            DiskOp::Write { offset: regions.log_at, data: wrapped },
        ])
    }
}
