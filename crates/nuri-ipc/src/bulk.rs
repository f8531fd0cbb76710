//! The bulk ring: a stream of bytes for long messages, large enough that both ends copy at once.
//!
//! The ring has no headers. A record in the record ring says that a message of so many bytes
//! follows here, from the next cache line on. The message's first [`CHUNK`] is there when the
//! record is. So a message of one chunk costs no look at the tail. The tail announces the rest,
//! chunk by chunk.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};

use crate::copy::Stores;
use crate::distance::Distance;
use crate::region::Region;
use crate::ring::Corrupt;
use crate::span::Gather;
use crate::trial::Trial;

const LINE: u64 = 64;
/// Messages up to this are written through the cache also where the peer's core is far: they are
/// read before they leave it.
const STREAM_FROM: usize = 32 << 10;

/// Where a bulk ring lies: its bytes in the producer's region, its tail there, its head in the
/// other.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) data: Arc<Region>,
    pub(crate) back: Arc<Region>,
    /// Offset of the bytes.
    pub(crate) at: usize,
    /// Bytes, a power of two.
    pub(crate) size: usize,
    /// Offset of the tail word in `data`.
    pub(crate) tail: usize,
    /// Offset of the head word in `back`.
    pub(crate) head: usize,
}

impl Place {
    /// Calls for each contiguous piece of a range of the stream: ring offset, distance, length.
    #[inline]
    fn pieces(&self, position: u64, len: usize, mut on: impl FnMut(usize, usize, usize)) {
        let from = (position & (self.size as u64 - 1)) as usize;
        let first = len.min(self.size - from);
        on(self.at + from, 0, first);
        if first < len {
            on(self.at, first, len - first);
        }
    }
}

/// The writing end.
#[derive(Debug)]
pub(crate) struct Producer {
    place: Place,
    tail: u64,
    head: u64,
    used: bool,
    trial: Trial,
}

impl Producer {
    pub(crate) fn new(place: Place) -> Self {
        Self { place, tail: 0, head: 0, used: false, trial: Trial::new() }
    }

    /// Begins a message: at the next cache line.
    pub(crate) fn begin(&mut self) {
        self.tail = self.tail.next_multiple_of(LINE);
        if !self.used {
            self.used = true;
            self.place.data.populate(self.place.at, self.place.size);
        }
    }

    /// Bytes that can be written now. The peer's head counts only between the last one and the
    /// tail.
    pub(crate) fn room(&mut self, wanted: usize) -> usize {
        let size = self.place.size as u64;
        let tail = self.tail.next_multiple_of(LINE);
        if tail + wanted as u64 > self.head + size {
            let head = self.place.back.word(self.place.head).load(Acquire);
            if head > self.head && head <= self.tail {
                self.head = head;
            }
        }
        ((self.head + size).saturating_sub(tail) as usize).min(wanted)
    }

    /// Writes a range of the message; there is room.
    pub(crate) fn write(&mut self, from: &Gather, offset: usize, len: usize, distance: &Distance) {
        let Self { place, tail, trial, .. } = self;
        let streams = from.len() > STREAM_FROM && distance.is_far();
        from.pieces(offset, len, |done, bytes| {
            place.pieces(*tail + done as u64, bytes.len(), |at, skip, len| {
                let bytes = &bytes[skip..skip + len];
                if streams {
                    place.data.write(at, bytes, Stores::Streaming);
                } else {
                    trial.run(len, |stores| place.data.write(at, bytes, stores));
                }
            });
        });
        self.tail += len as u64;
    }

    /// Tells the peer how far the stream is.
    pub(crate) fn publish(&self) {
        self.place.data.word(self.place.tail).store(self.tail, Release);
    }

    /// Memory taken, in bytes.
    pub(crate) fn memory(&self) -> usize {
        if self.used { self.place.size } else { 0 }
    }
}

/// The reading end.
#[derive(Debug)]
pub(crate) struct Consumer {
    place: Place,
    head: u64,
    told: u64,
    used: bool,
    trial: Trial,
}

impl Consumer {
    pub(crate) fn new(place: Place) -> Self {
        Self { place, head: 0, told: 0, used: false, trial: Trial::new() }
    }

    /// Begins a message: at the next cache line.
    pub(crate) fn begin(&mut self) {
        self.head = self.head.next_multiple_of(LINE);
        if !self.used {
            self.used = true;
            self.place.data.populate(self.place.at, self.place.size);
        }
    }

    /// Bytes announced by the tail.
    pub(crate) fn ready(&self) -> Result<usize, Corrupt> {
        let tail = self.place.data.word(self.place.tail).load(Acquire);
        // The tail stands still while messages of one chunk pass.
        let ready = tail.saturating_sub(self.head);
        if ready > self.place.size as u64 { Err(Corrupt) } else { Ok(ready as usize) }
    }

    /// Copies bytes out, from a distance behind the head on.
    pub(crate) fn read(&mut self, skip: usize, into: &mut [u8]) {
        let Self { place, head, trial, .. } = self;
        place.pieces(*head + skip as u64, into.len(), |at, done, len| {
            let into = &mut into[done..done + len];
            trial.run(len, |stores| place.data.read_by(at, into, stores));
        });
    }

    /// Leaves bytes behind; says whether the producer was told.
    pub(crate) fn advance(&mut self, len: usize) -> bool {
        self.head += len as u64;
        let tell = self.head - self.told >= self.place.size as u64 / 8;
        if tell {
            self.told = self.head;
            self.place.back.word(self.place.head).store(self.head, Release);
        }
        tell
    }
}
