//! Shared memory: sealed anonymous files and their mappings.
//!
//! One side creates a file, seals its size, and passes it by descriptor; the file has no name. The
//! seal matters because a peer that shrinks a mapped file kills the process that reads it. Memory
//! that only its creator writes is sealed against new writable mappings too. Everything here is
//! checked against the mapping's bounds, so the rest of the crate needs no unsafe code to use it.
//! What another process may write is only ever read as atomic words or copied out, never borrowed.

#![allow(unsafe_code)]

use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::copy::{self, Stores};
use crate::error::{Error, Result, system};

/// Bytes of a page; sizes of regions are multiples.
pub(crate) const PAGE: usize = 4096;

/// Who may write a region that is passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Share {
    /// Only its creator.
    ReadOnly,
    /// Everybody who gets the descriptor.
    Writable,
}

/// A mapping, gone when dropped.
#[derive(Debug)]
pub(crate) struct Region {
    base: NonNull<u8>,
    len: usize,
    writable: bool,
}

// SAFETY: the mapping belongs to the process, not to a thread; all access is atomic or by copy.
unsafe impl Send for Region {}
// SAFETY: as above; who may write which bytes is the protocol's matter between processes anyway.
unsafe impl Sync for Region {}

impl Region {
    /// New shared memory of `len` bytes and the descriptor to pass on.
    pub(crate) fn create(len: usize, share: Share) -> Result<(OwnedFd, Self)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create(c"nuri-ipc", flags).map_err(system("memfd_create"))?;
        rustix::fs::ftruncate(&fd, len as u64).map_err(system("ftruncate"))?;
        let region = Self::map(&fd, len, true)?;
        rustix::fs::fcntl_add_seals(&fd, seals(share)).map_err(system("F_ADD_SEALS"))?;
        Ok((fd, region))
    }

    /// Maps what a peer passed, once its size and seals are what they must be.
    pub(crate) fn open(fd: impl AsFd, len: usize, share: Share) -> Result<Self> {
        let size = rustix::fs::fstat(&fd).map_err(system("fstat"))?.st_size;
        let have = rustix::fs::fcntl_get_seals(&fd).map_err(system("F_GET_SEALS"))?;
        if u64::try_from(size) != Ok(len as u64) || !have.contains(seals(share)) {
            return Err(Error::OutOfRange("a shared region has the wrong size or seals"));
        }
        Self::map(&fd, len, share == Share::Writable)
    }

    fn map(fd: impl AsFd, len: usize, writable: bool) -> Result<Self> {
        if len == 0 || !len.is_multiple_of(PAGE) {
            return Err(Error::OutOfRange("a shared region is whole pages"));
        }
        let access = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
        let base = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, &fd, 0)
        };
        let base = NonNull::new(base.map_err(system("mmap"))?.cast());
        Ok(Self { base: base.ok_or(Error::OutOfRange("mapped at zero"))?, len, writable })
    }

    /// Bytes mapped.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Takes the pages of a range now, cheaper than one fault for each later. Best effort.
    pub(crate) fn populate(&self, at: usize, len: usize) {
        self.check(at, len);
        let advice =
            if self.writable { Advice::LinuxPopulateWrite } else { Advice::LinuxPopulateRead };
        // SAFETY: the range is ours, and populating does not change what it holds.
        let _ = unsafe { rustix::mm::madvise(self.at(at).cast(), len, advice) };
    }

    /// The atomic word at a byte offset.
    #[inline]
    pub(crate) fn word(&self, at: usize) -> &AtomicU64 {
        self.check(at, 8);
        assert!(at.is_multiple_of(8), "words are aligned");
        // SAFETY: in bounds, aligned, and any bits are a word.
        unsafe { AtomicU64::from_ptr(self.at(at).cast()) }
    }

    /// The atomic half word at a byte offset.
    #[inline]
    pub(crate) fn half(&self, at: usize) -> &AtomicU32 {
        self.check(at, 4);
        assert!(at.is_multiple_of(4), "half words are aligned");
        // SAFETY: in bounds, aligned, and any bits are a half word.
        unsafe { AtomicU32::from_ptr(self.at(at).cast()) }
    }

    /// Copies bytes in.
    #[inline]
    pub(crate) fn write(&self, at: usize, bytes: &[u8], stores: Stores) {
        self.check(at, bytes.len());
        assert!(self.writable, "the region is read only here");
        // SAFETY: both ranges are in bounds; a private slice does not overlap shared memory.
        unsafe { copy::copy(self.at(at), bytes.as_ptr(), bytes.len(), stores) }
    }

    /// Copies bytes out.
    #[inline]
    pub(crate) fn read(&self, at: usize, into: &mut [u8]) {
        self.read_by(at, into, Stores::Cached);
    }

    /// As [`Region::read`]; the stores are those to private memory.
    #[inline]
    pub(crate) fn read_by(&self, at: usize, into: &mut [u8], stores: Stores) {
        self.check(at, into.len());
        // SAFETY: as in `write`.
        unsafe { copy::copy(into.as_mut_ptr(), self.at(at), into.len(), stores) }
    }

    /// The address of a range, once it has been checked.
    pub(crate) fn range(&self, at: usize, len: usize) -> *mut u8 {
        self.check(at, len);
        self.at(at)
    }

    #[inline]
    fn at(&self, at: usize) -> *mut u8 {
        self.base.as_ptr().wrapping_add(at)
    }

    #[inline]
    fn check(&self, at: usize, len: usize) {
        let inside = at.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(inside, "{len} bytes at {at} of a region of {}", self.len);
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nothing borrows from it any more.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

fn seals(share: Share) -> SealFlags {
    let size = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    match share {
        Share::ReadOnly => size | SealFlags::FUTURE_WRITE,
        Share::Writable => size,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    #[test]
    fn the_consumer_cannot_write_nor_resize() {
        let (fd, ours) = Region::create(2 * PAGE, Share::ReadOnly).unwrap();
        let theirs = Region::open(&fd, 2 * PAGE, Share::ReadOnly).unwrap();
        ours.write(PAGE - 2, b"over", Stores::Cached);
        let mut bytes = [0; 4];
        theirs.read(PAGE - 2, &mut bytes);
        assert_eq!(&bytes, b"over");
        assert!(Region::map(&fd, 2 * PAGE, true).is_err());
        assert!(rustix::fs::ftruncate(&fd, 0).is_err());
    }

    #[test]
    fn wrong_size_or_seals_are_refused() {
        let (fd, region) = Region::create(PAGE, Share::Writable).unwrap();
        region.word(8).store(7, Relaxed);
        assert!(Region::open(&fd, 2 * PAGE, Share::Writable).is_err());
        assert!(Region::open(&fd, PAGE, Share::ReadOnly).is_err());
        assert_eq!(Region::open(&fd, PAGE, Share::Writable).unwrap().word(8).load(Relaxed), 7);
        let file = tempfile::tempfile().unwrap();
        file.set_len(PAGE as u64).unwrap();
        assert!(Region::open(&file, PAGE, Share::Writable).is_err());
    }

    #[test]
    #[should_panic(expected = "9 bytes at 4088")]
    fn bounds_hold() {
        let (_fd, region) = Region::create(PAGE, Share::Writable).unwrap();
        region.read(PAGE - 8, &mut [0; 9]);
    }
}
