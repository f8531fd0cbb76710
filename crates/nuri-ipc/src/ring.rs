//! The record ring: one producer, one consumer, short messages inline.
//!
//! A record is a header of three words and its payload, contiguous, in granules of a cache line.
//! The first word is the record's stamp: a secret of this ring plus the record's position. The
//! stamp is written last, with release, and the consumer waits for exactly that value at exactly
//! that place. So no index is shared on the way forward, and a message of 40 bytes costs one cache
//! line. Old payload cannot pass for a record by its bytes, because no other process knows the
//! secret.
//!
//! The consumer cannot write here. It returns room through a head word in a page of its own, an
//! eighth of the ring at a time. The consumer copies what it reads once, and checks it before use.
//! A producer that writes nonsense loses its link and harms no one else.

/// Bytes that a record's place and length are multiples of: a cache line.
pub(crate) const GRANULE: u64 = 64;
/// Bytes of a header.
pub(crate) const HEADER: usize = 24;
/// Most bytes of payload in a record.
pub(crate) const INLINE: usize = 1024;

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Fills the ring to its end.
    Pad = 1,
    /// A whole message.
    Inline = 2,
    /// A message whose bytes are in the bulk ring; the payload is its length.
    Bulk = 3,
    /// The sender measures the distance of the cores.
    Probe = 4,
    /// A message in the sender's own memory; the payload says where.
    Remote = 5,
    /// A message in the sender's heap; the payload says where.
    Loan = 6,
}

impl Kind {
    pub(crate) fn from_byte(byte: u8) -> Option<Self> {
        use Kind::{Bulk, Inline, Loan, Pad, Probe, Remote};
        [Pad, Inline, Bulk, Probe, Remote, Loan].into_iter().find(|k| *k as u8 == byte)
    }
}

/// The memory of a ring and the consumer's head beside it. Offsets are below [`Memory::size`].
pub(crate) trait Memory {
    /// Bytes, a power of two.
    fn size(&self) -> u64;
    /// The word at an offset, with acquire.
    fn load(&self, at: u64) -> u64;
    /// Writes that word, with release.
    fn publish(&self, at: u64, word: u64);
    /// Copies bytes in.
    fn write(&self, at: u64, bytes: &[u8]);
    /// Copies bytes out.
    fn read(&self, at: u64, into: &mut [u8]);
    /// Where the consumer is, with acquire.
    fn head(&self) -> u64;
    /// Says so, with release.
    fn set_head(&self, head: u64);
}

/// The producer wrote what no producer writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Corrupt;

/// A record's header in private memory, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) kind: Kind,
    pub(crate) tag: u64,
    /// Bytes of payload.
    pub(crate) len: usize,
    at: u64,
    span: u64,
}

/// Where a record's payload is written.
pub(crate) struct Slot<'a, M> {
    memory: &'a M,
    at: u64,
}

impl<M: Memory> Slot<'_, M> {
    /// Writes bytes at an offset of the payload.
    #[inline]
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        self.memory.write(self.at + offset as u64, bytes);
    }
}

/// The writing end.
#[derive(Debug)]
pub(crate) struct Producer<M> {
    memory: M,
    key: u64,
    tail: u64,
    head: u64,
}

impl<M: Memory> Producer<M> {
    /// On fresh memory; `key` is the ring's secret.
    pub(crate) fn new(memory: M, key: u64) -> Self {
        Self { memory, key, tail: 0, head: 0 }
    }

    /// The memory under it.
    pub(crate) fn memory(&self) -> &M {
        &self.memory
    }

    /// Whether a record of this payload would find room.
    pub(crate) fn fits(&mut self, len: usize) -> bool {
        let (span, left) = (span(len), self.memory.size() - self.offset());
        self.room(if span > left { left + span } else { span })
    }

    /// Writes a record whose payload `fill` writes; says whether there was room.
    #[inline]
    pub(crate) fn push(
        &mut self,
        kind: Kind,
        tag: u64,
        len: usize,
        fill: impl FnOnce(Slot<'_, M>),
    ) -> bool {
        debug_assert!(len <= INLINE);
        let span = span(len);
        let left = self.memory.size() - self.offset();
        let pad = if span > left { left } else { 0 };
        if !self.room(pad + span) {
            return false;
        }
        if pad > 0 {
            self.publish(Kind::Pad, 0, 0, pad);
        }
        fill(Slot { memory: &self.memory, at: self.offset() + HEADER as u64 });
        self.publish(kind, tag, len, span);
        true
    }

    #[inline]
    fn publish(&mut self, kind: Kind, tag: u64, len: usize, span: u64) {
        let mut rest = [0; HEADER - 8];
        rest[..8].copy_from_slice(&(len as u64 | (kind as u64) << 32).to_le_bytes());
        rest[8..].copy_from_slice(&tag.to_le_bytes());
        let at = self.offset();
        self.memory.write(at + 8, &rest);
        self.memory.publish(at, self.key.wrapping_add(self.tail));
        self.tail += span;
    }

    #[inline]
    fn offset(&self) -> u64 {
        self.tail & (self.memory.size() - 1)
    }

    /// The peer's head counts only while it is between the last one and the tail.
    #[inline]
    fn room(&mut self, need: u64) -> bool {
        if self.tail + need - self.head <= self.memory.size() {
            return true;
        }
        let head = self.memory.head();
        if head > self.head && head <= self.tail {
            self.head = head;
        }
        self.tail + need - self.head <= self.memory.size()
    }
}

/// The reading end.
#[derive(Debug)]
pub(crate) struct Consumer<M> {
    memory: M,
    key: u64,
    head: u64,
    told: u64,
}

impl<M: Memory> Consumer<M> {
    /// On memory as [`Producer::new`] has it.
    pub(crate) fn new(memory: M, key: u64) -> Self {
        Self { memory, key, head: 0, told: 0 }
    }

    /// The memory under it.
    pub(crate) fn memory(&self) -> &M {
        &self.memory
    }

    /// The next record, if it is there.
    #[inline]
    pub(crate) fn peek(&mut self) -> Result<Option<Record>, Corrupt> {
        loop {
            let at = self.head & (self.memory.size() - 1);
            if self.memory.load(at) != self.key.wrapping_add(self.head) {
                return Ok(None);
            }
            let record = self.check(at)?;
            if record.kind != Kind::Pad {
                return Ok(Some(record));
            }
            self.advance(&record);
        }
    }

    /// Copies the header, then judges the copy.
    #[inline]
    fn check(&self, at: u64) -> Result<Record, Corrupt> {
        let (mut meta, mut tag) = ([0; 8], [0; 8]);
        self.memory.read(at + 8, &mut meta);
        self.memory.read(at + 16, &mut tag);
        let meta = u64::from_le_bytes(meta);
        let len = (meta & u64::from(u32::MAX)) as usize;
        let kind = u8::try_from(meta >> 32).ok().and_then(Kind::from_byte).ok_or(Corrupt)?;
        let left = self.memory.size() - at;
        let span = if kind == Kind::Pad { left } else { span(len) };
        if len > INLINE || span > left {
            return Err(Corrupt);
        }
        Ok(Record { kind, tag: u64::from_le_bytes(tag), len, at, span })
    }

    /// Copies payload from an offset on. The range lies within the record.
    #[inline]
    pub(crate) fn payload(&self, record: &Record, offset: usize, into: &mut [u8]) {
        debug_assert!(offset + into.len() <= record.len);
        self.memory.read(record.at + (HEADER + offset) as u64, into);
    }

    /// Leaves a record behind; says whether the producer was told about room.
    #[inline]
    pub(crate) fn advance(&mut self, record: &Record) -> bool {
        self.head += record.span;
        let tell = self.head - self.told >= self.memory.size() / 8;
        if tell {
            self.told = self.head;
            self.memory.set_head(self.head);
        }
        tell
    }
}

#[inline]
fn span(len: usize) -> u64 {
    ((HEADER + len) as u64).next_multiple_of(GRANULE)
}

#[cfg(test)]
mod tests;
