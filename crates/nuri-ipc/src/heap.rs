//! Buffers of the library that are lent to peers instead of being copied.
//!
//! Each endpoint has one heap: shared memory that only the endpoint writes, and that every peer
//! with a link from it may read. A lent message is a record that says where its bytes lie. The
//! receiver gives it back by a word in the page that it writes anyway. So giving back needs no link
//! in the other direction, no room in a ring, and no attention of the owner. The owner takes back
//! what a dead peer held, together with the link.

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::bell::Bell;
use crate::error::{Error, Result};
use crate::region::{PAGE, Region, Share};

/// Most loans under way to one peer.
pub(crate) const SLOTS: usize = 256;
/// Offset of the words by which they are given back, in the receiver's page.
const SLOTS_AT: usize = 1024;
const _: () = assert!(SLOTS_AT + SLOTS * 8 <= PAGE);

/// The owner's heap.
#[derive(Debug)]
pub(crate) struct Heap {
    region: Region,
    fd: OwnedFd,
    /// Free ranges, by offset; neighbours are always joined.
    free: Mutex<BTreeMap<usize, usize>>,
}

impl Heap {
    /// Takes address space; memory comes with the first write.
    pub(crate) fn create(len: usize) -> Result<Arc<Self>> {
        let (fd, region) = Region::create(len, Share::ReadOnly)?;
        Ok(Arc::new(Self { region, fd, free: Mutex::new(BTreeMap::from([(0, len)])) }))
    }

    /// Its descriptor, for peers.
    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Bytes in all.
    pub(crate) fn len(&self) -> usize {
        self.region.len()
    }

    /// Bytes not free.
    pub(crate) fn used(&self) -> usize {
        self.len() - self.ranges().values().sum::<usize>()
    }

    /// A buffer from the first range that is long enough.
    pub(crate) fn alloc(self: &Arc<Self>, len: usize) -> Result<Loan> {
        let span = len.max(1).checked_next_multiple_of(PAGE).ok_or(Error::HeapFull)?;
        let mut free = self.ranges();
        let found = free.iter().find(|(_, room)| **room >= span).map(|(at, room)| (*at, *room));
        let (at, room) = found.ok_or(Error::HeapFull)?;
        free.remove(&at);
        if room > span {
            free.insert(at + span, room - span);
        }
        drop(free);
        Ok(Loan { heap: Arc::clone(self), at, len, span })
    }

    fn give_back(&self, mut at: usize, mut span: usize) {
        let mut free = self.ranges();
        if let Some(after) = free.remove(&(at + span)) {
            span += after;
        }
        if let Some((before, room)) = free.range(..at).next_back().map(|(b, r)| (*b, *r))
            && before + room == at
        {
            free.remove(&before);
            (at, span) = (before, span + room);
        }
        free.insert(at, span);
    }

    fn ranges(&self) -> MutexGuard<'_, BTreeMap<usize, usize>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A buffer of the endpoint's heap, page aligned, to be filled and sent without a copy.
#[derive(Debug)]
pub struct Loan {
    heap: Arc<Heap>,
    at: usize,
    len: usize,
    span: usize,
}

impl Loan {
    pub(crate) fn place(&self) -> (u64, u64) {
        (self.at as u64, self.len as u64)
    }
}

impl Deref for Loan {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the range is this loan's alone and no other process can write it.
        unsafe { std::slice::from_raw_parts(self.heap.region.range(self.at, self.len), self.len) }
    }
}

impl DerefMut for Loan {
    fn deref_mut(&mut self) -> &mut [u8] {
        let at = self.heap.region.range(self.at, self.len);
        // SAFETY: as above; peers may read it, which is theirs to bear.
        unsafe { std::slice::from_raw_parts_mut(at, self.len) }
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.heap.give_back(self.at, self.span);
    }
}

/// What a sender has lent over one link.
#[derive(Debug, Default)]
pub(crate) struct Lending {
    slots: Vec<Option<(u64, Loan)>>,
    number: u64,
}

impl Lending {
    /// A slot for one more loan.
    pub(crate) fn free_slot(&mut self, back: &Region) -> Option<usize> {
        self.reclaim(back);
        match self.slots.iter().position(Option::is_none) {
            None if self.slots.len() < SLOTS => {
                self.slots.push(None);
                Some(self.slots.len() - 1)
            }
            found => found,
        }
    }

    /// The number under which the next loan will be given back.
    pub(crate) fn next_number(&self) -> u64 {
        self.number + 1
    }

    /// Remembers that a loan is away.
    pub(crate) fn lend(&mut self, slot: usize, loan: Loan) {
        self.number += 1;
        self.slots[slot] = Some((self.number, loan));
    }

    /// Takes what was given back.
    pub(crate) fn reclaim(&mut self, back: &Region) {
        for (slot, lent) in self.slots.iter_mut().enumerate() {
            let word = || back.word(SLOTS_AT + slot * 8).load(Acquire);
            lent.take_if(|(number, _)| *number == word());
        }
    }
}

/// A message that lies in its sender's heap. Dropping it gives it back.
#[derive(Debug)]
pub struct Lent {
    pub(crate) heap: Arc<Region>,
    pub(crate) back: Arc<Region>,
    pub(crate) bell: Bell,
    pub(crate) at: usize,
    pub(crate) len: usize,
    pub(crate) slot: usize,
    /// From one on; zero when nothing is to be given back.
    pub(crate) number: u64,
}

impl Lent {
    /// Bytes of the message.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies bytes out, from an offset on, as many as fit; returns how many.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> usize {
        let len = self.len.saturating_sub(offset).min(into.len());
        self.heap.read(self.at + offset.min(self.len), &mut into[..len]);
        len
    }

    /// Drops the description and gives nothing back: the message is still in its ring.
    pub(crate) fn forget(mut self) {
        self.number = 0;
    }

    /// The bytes where they lie.
    ///
    /// # Safety
    /// The sender is trusted not to write to them before they are given back, and its endpoint and
    /// this one stay open meanwhile.
    pub unsafe fn as_slice(&self) -> &[u8] {
        // SAFETY: the range was checked when the message came; the rest is the caller's contract.
        unsafe { std::slice::from_raw_parts(self.heap.range(self.at, self.len), self.len) }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if self.number == 0 {
            return;
        }
        self.back.word(SLOTS_AT + self.slot * 8).store(self.number, Release);
        self.bell.ring();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_found_given_back_and_joined() {
        let heap = Heap::create(8 * PAGE).unwrap();
        let mut a = heap.alloc(1).unwrap();
        let b = heap.alloc(2 * PAGE).unwrap();
        let c = heap.alloc(5 * PAGE).unwrap();
        a[0] = 7;
        assert_eq!((a.len(), a[0], b.len(), heap.used()), (1, 7, 2 * PAGE, 8 * PAGE));
        assert_eq!(heap.alloc(1).unwrap_err(), Error::HeapFull);
        assert_eq!(heap.alloc(usize::MAX).unwrap_err(), Error::HeapFull);
        drop(a);
        drop(c);
        drop(b);
        assert_eq!(heap.used(), 0);
        assert_eq!(heap.alloc(8 * PAGE).unwrap().len(), 8 * PAGE);
    }
}
