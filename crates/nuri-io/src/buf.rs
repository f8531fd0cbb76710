//! Page-aligned buffers for direct I/O, and a bounded pool of them.

#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use parking_lot::Mutex;

/// Alignment that direct I/O asks for, bytes.
pub const ALIGN: usize = 4096;

/// Bytes at a page boundary. The length may be set below the capacity.
pub struct AlignedBuf {
    ptr: NonNull<u8>,
    capacity: usize,
    len: usize,
}

// SAFETY: the buffer owns its memory alone; nothing in it is tied to a thread.
unsafe impl Send for AlignedBuf {}
// SAFETY: shared access only reads.
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    /// A zeroed buffer of `len` bytes.
    pub fn zeroed(len: usize) -> AlignedBuf {
        let capacity = len.max(1).next_multiple_of(ALIGN);
        let layout = Self::layout(capacity);
        // SAFETY: the layout has a size above zero.
        let ptr = unsafe { alloc_zeroed(layout) };
        let Some(ptr) = NonNull::new(ptr) else { handle_alloc_error(layout) };
        AlignedBuf { ptr, capacity, len }
    }

    fn layout(capacity: usize) -> Layout {
        Layout::from_size_align(capacity, ALIGN).unwrap_or(Layout::new::<u8>())
    }

    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Changes the visible length; bytes keep what they held.
    ///
    /// # Panics
    /// Where `len` exceeds the capacity.
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity, "length beyond the buffer");
        self.len = len;
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `len <= capacity` bytes were allocated and zeroed at the start.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` is the only access.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this very layout.
        unsafe { dealloc(self.ptr.as_ptr(), Self::layout(self.capacity)) }
    }
}

/// Keeps up to a number of equal buffers for reuse; beyond it buffers are freed when dropped.
#[derive(Clone)]
pub struct BufPool {
    free: Arc<Mutex<Vec<AlignedBuf>>>,
    buf_len: usize,
    keep: usize,
}

impl BufPool {
    /// A pool of buffers of `buf_len` bytes that keeps at most `keep` idle ones.
    pub fn new(buf_len: usize, keep: usize) -> BufPool {
        BufPool { free: Arc::default(), buf_len, keep }
    }

    /// A buffer of the pool's length; its content is whatever was there before.
    pub fn take(&self) -> PooledBuf {
        let mut buf = self.free.lock().pop().unwrap_or_else(|| AlignedBuf::zeroed(self.buf_len));
        buf.set_len(self.buf_len);
        PooledBuf { buf: Some(buf), pool: self.clone() }
    }
}

/// A buffer that goes back to its pool when dropped.
pub struct PooledBuf {
    buf: Option<AlignedBuf>,
    pool: BufPool,
}

impl PooledBuf {
    /// Changes the visible length, up to the pool's buffer length.
    pub fn set_len(&mut self, len: usize) {
        if let Some(buf) = &mut self.buf {
            buf.set_len(len);
        }
    }
}

impl Deref for PooledBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.buf.as_deref().unwrap_or_default()
    }
}

impl DerefMut for PooledBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.buf.as_deref_mut().unwrap_or_default()
    }
}

impl Drop for PooledBuf {
    fn drop(&mut self) {
        if let Some(buf) = self.buf.take() {
            let mut free = self.pool.free.lock();
            if free.len() < self.pool.keep {
                free.push(buf);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_come_back() {
        let pool = BufPool::new(8192, 1);
        let mut a = pool.take();
        assert_eq!(a.as_ptr() as usize % ALIGN, 0);
        a[0] = 7;
        a.set_len(10);
        assert_eq!(a.len(), 10);
        drop(a);
        assert_eq!((pool.take().len(), pool.take()[0]), (8192, 0));
    }
}
