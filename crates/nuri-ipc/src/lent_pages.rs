//! Bytes that another process takes out of a pipe with one copy, straight from the pages of this
//! process.
//!
//! The reader of the pipe may keep the pages (`tee`) and see what is written to them later. So
//! pages that were lent once hold only bytes that this reader may see. They go back to the kernel,
//! never to the allocator.

#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::os::fd::AsFd;
use std::ptr::NonNull;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::pipe::{IoSliceRaw, SpliceFlags};

use crate::error::{Error, Result, system};

/// Private memory for one reader.
#[derive(Debug)]
pub struct LentPages {
    base: NonNull<u8>,
    len: usize,
    owns: PhantomData<[u8]>,
}

// SAFETY: the mapping belongs to the process, and is borrowed as its owner is.
unsafe impl Send for LentPages {}
// SAFETY: as above.
unsafe impl Sync for LentPages {}

impl LentPages {
    /// Memory of `len` bytes, zeros.
    ///
    /// # Errors
    /// There is none.
    pub fn new(len: usize) -> Result<LentPages> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
        let base = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, access, flags) };
        let base = NonNull::new(base.map_err(system("mmap"))?.cast());
        let base = base.ok_or(Error::OutOfRange("mapped at zero"))?;
        Ok(LentPages { base, len, owns: PhantomData })
    }

    /// Puts the first `len` bytes into a pipe that has room for them. They must stay as they are
    /// until its reader has them.
    ///
    /// # Errors
    /// The pipe is full, or has no reader.
    pub fn lend(&self, pipe: impl AsFd, len: usize) -> Result<()> {
        let mut done = 0;
        while done < len {
            let rest = [IoSliceRaw::from_slice(&self[done..len])];
            // SAFETY: the pages outlive the pipe's references to them: unmapping leaves these be.
            let moved = unsafe { rustix::pipe::vmsplice(&pipe, &rest, SpliceFlags::NONBLOCK) };
            match moved.map_err(system("vmsplice"))? {
                0 => return Err(system("vmsplice")(Errno::AGAIN)),
                moved => done += moved,
            }
        }
        Ok(())
    }
}

impl Deref for LentPages {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: mapped, so long, and written through `deref_mut` alone.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl DerefMut for LentPages {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: mapped, so long, and borrowed by nobody else.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }
}

impl Drop for LentPages {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nothing borrows from it any more.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

    use super::*;

    #[test]
    fn a_reader_takes_the_bytes_and_a_full_pipe_is_an_error() {
        let (out, into) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        fcntl_setpipe_size(&into, 16 * 4096).unwrap();
        let mut pages = LentPages::new(16 * 4096).unwrap();
        pages[..5].copy_from_slice(b"hello");
        pages.lend(&into, 5).unwrap();
        let mut bytes = [0; 8];
        assert_eq!(rustix::io::read(&out, &mut bytes), Ok(5));
        assert_eq!(&bytes[..5], b"hello");
        pages.lend(&into, 16 * 4096).unwrap();
        assert!(pages.lend(&into, 4096).is_err(), "nobody read");
        drop(out);
    }
}
