//! Page-aligned buffers for direct I/O, and a bounded pool of them.

#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Alignment that direct I/O asks for, bytes.
pub const ALIGN: usize = 4096;
/// A huge page. Its memory is contiguous, so a device takes a megabyte of it in few segments:
/// direct reads ran 2.5 times as fast as from scattered pages (docs/notes/performance.md).
const HUGE: usize = 2 << 20;
/// Pooled buffers from this length on lie in huge pages.
const HUGE_FROM: usize = 64 << 10;

/// Memory of one buffer, or of several that share a huge page.
struct Memory {
    ptr: NonNull<u8>,
    layout: Layout,
}

// SAFETY: plain memory; nothing in it is tied to a thread. Who may touch which part is decided by
// the buffers, whose parts do not overlap.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    fn zeroed(size: usize, align: usize) -> Arc<Memory> {
        let layout = Layout::from_size_align(size, align).unwrap_or(Layout::new::<u8>());
        // SAFETY: the layout has a size above zero.
        let ptr = unsafe { alloc_zeroed(layout) };
        let Some(ptr) = NonNull::new(ptr) else { handle_alloc_error(layout) };
        Arc::new(Memory { ptr, layout })
    }

    /// Memory that the kernel is asked to back with one huge page; without one it works as well. A
    /// mapping of its own: an allocator keeps for later what once was a huge page.
    fn huge() -> Arc<Memory> {
        let layout = Layout::from_size_align(HUGE, HUGE).unwrap_or(Layout::new::<u8>());
        let ptr = map_aligned().unwrap_or_else(|| handle_alloc_error(layout));
        // SAFETY: the range is this mapping alone; the advice changes no content.
        let _ = unsafe { madvise(ptr.as_ptr().cast(), HUGE, Advice::LinuxHugepage) };
        // SAFETY: the range is this mapping. Zeroed only now, so that the first touch of it
        // brings in the huge page.
        unsafe { ptr.as_ptr().write_bytes(0, HUGE) };
        Arc::new(Memory { ptr, layout })
    }
}

/// A mapping of one huge page's length, at a place where a huge page may lie.
fn map_aligned() -> Option<NonNull<u8>> {
    // As much as holds such a place wherever it is.
    let (len, access) = (2 * HUGE, ProtFlags::READ | ProtFlags::WRITE);
    // SAFETY: a new mapping at a place that the kernel chooses.
    let mapped = unsafe { mmap_anonymous(std::ptr::null_mut(), len, access, MapFlags::PRIVATE) };
    let whole = NonNull::new(mapped.ok()?)?;
    let before = whole.as_ptr().align_offset(HUGE);
    // SAFETY: the place lies within the mapping, with a huge page's length behind it.
    let place = unsafe { whole.byte_add(before) };
    for (from, len) in [(0, before), (before + HUGE, HUGE - before)] {
        if len > 0 {
            // SAFETY: a part of the mapping that nothing refers to.
            let _ = unsafe { munmap(whole.as_ptr().byte_add(from), len) };
        }
    }
    Some(place.cast())
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.layout.align() == HUGE {
            // SAFETY: mapped with this length, and no buffer refers to it any more.
            let _ = unsafe { munmap(self.ptr.as_ptr().cast(), HUGE) };
            return;
        }
        // SAFETY: allocated with this very layout, and no buffer refers to it any more.
        unsafe { dealloc(self.ptr.as_ptr(), self.layout) }
    }
}

/// Bytes at a page boundary. The length may be set below the capacity.
pub struct AlignedBuf {
    memory: Arc<Memory>,
    offset: usize,
    capacity: usize,
    len: usize,
}

impl AlignedBuf {
    /// A zeroed buffer of `len` bytes.
    pub fn zeroed(len: usize) -> AlignedBuf {
        let capacity = len.max(1).next_multiple_of(ALIGN);
        AlignedBuf { memory: Memory::zeroed(capacity, ALIGN), offset: 0, capacity, len }
    }

    /// As many zeroed buffers of `len` bytes as a huge page holds, at least one.
    fn carve(len: usize) -> Vec<AlignedBuf> {
        let capacity = len.max(1).next_multiple_of(ALIGN);
        if !(HUGE_FROM..=HUGE).contains(&capacity) {
            return vec![AlignedBuf::zeroed(len)];
        }
        let memory = Memory::huge();
        let starts = (0..=HUGE - capacity).step_by(capacity);
        starts.map(|offset| AlignedBuf { memory: memory.clone(), offset, capacity, len }).collect()
    }

    fn start(&self) -> *mut u8 {
        // SAFETY: the offset lies within the memory.
        unsafe { self.memory.ptr.as_ptr().add(self.offset) }
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
        // SAFETY: `len <= capacity` bytes from the start are ours and were zeroed at first.
        unsafe { std::slice::from_raw_parts(self.start(), self.len) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` is the only access.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.len) }
    }
}

/// Zeros that take memory only page by page, where they are written. A mapping of its own: what an
/// allocator uses again it zeroes as a whole.
pub struct SparseBuf {
    ptr: NonNull<u8>,
    len: usize,
}

// SAFETY: plain memory of one owner; nothing in it is tied to a thread.
unsafe impl Send for SparseBuf {}
// SAFETY: as above; `&SparseBuf` only reads.
unsafe impl Sync for SparseBuf {}

impl SparseBuf {
    /// `len` zeros, at least one.
    pub fn zeroed(len: usize) -> SparseBuf {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping at a place that the kernel chooses.
        let mapped = unsafe { mmap_anonymous(std::ptr::null_mut(), len, access, flags) };
        let ptr = mapped.ok().and_then(|ptr| NonNull::new(ptr.cast()));
        let layout = Layout::array::<u8>(len).unwrap_or(Layout::new::<u8>());
        SparseBuf { ptr: ptr.unwrap_or_else(|| handle_alloc_error(layout)), len }
    }
}

impl Clone for SparseBuf {
    /// Pages of zeros take no memory in the copy either.
    fn clone(&self) -> SparseBuf {
        let mut copy = SparseBuf::zeroed(self.len);
        for (to, from) in copy.chunks_mut(ALIGN).zip(self.chunks(ALIGN)) {
            if from.iter().any(|byte| *byte != 0) {
                to.copy_from_slice(from);
            }
        }
        copy
    }
}

impl Drop for SparseBuf {
    fn drop(&mut self) {
        // SAFETY: mapped with this very length, and nothing refers to it any more.
        let _ = unsafe { munmap(self.ptr.as_ptr().cast(), self.len) };
    }
}

impl Deref for SparseBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `len` bytes are mapped, and the kernel gives them as zeros.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl DerefMut for SparseBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` is the only access.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
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
        let mut free = self.free.lock();
        let mut buf = free.pop().unwrap_or_else(|| {
            let mut carved = AlignedBuf::carve(self.buf_len);
            let first = carved.swap_remove(0);
            free.append(&mut carved);
            first
        });
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

    #[test]
    fn sparse_buffers_are_zeros_until_they_are_written() {
        let mut buf = SparseBuf::zeroed(1 << 20);
        buf[700_000] = 7;
        let copy = buf.clone();
        drop(buf);
        assert_eq!((copy.len(), copy[700_000]), (1 << 20, 7));
        assert_eq!(copy.iter().filter(|byte| **byte != 0).count(), 1);
    }

    /// Pages from this address on that have memory.
    fn present_at(address: usize, len: usize) -> usize {
        use std::os::unix::fs::FileExt;
        let mut entries = vec![0; len / ALIGN * 8];
        let pagemap = std::fs::File::open("/proc/self/pagemap").unwrap();
        pagemap.read_exact_at(&mut entries, (address / ALIGN * 8) as u64).unwrap();
        // Bit 63: in memory.
        entries.chunks(8).filter(|entry| entry[7] >> 7 == 1).count()
    }

    fn present(buf: &SparseBuf) -> usize {
        present_at(buf.as_ptr() as usize, buf.len())
    }

    #[test]
    fn memory_of_many_buffers_goes_back() {
        let pool = BufPool::new(HUGE, 1);
        let many: Vec<_> = (0..32).map(|_| pool.take()).collect();
        let addresses: Vec<_> = many.iter().map(|buf| buf.as_ptr() as usize).collect();
        let held = || addresses.iter().map(|address| present_at(*address, HUGE)).sum::<usize>();
        assert_eq!(held(), 32 * HUGE / ALIGN);
        drop(many);
        // The pool keeps one, and other tests may have taken some of it since.
        assert!(held() <= 4 * HUGE / ALIGN, "{} pages", held());
    }

    #[test]
    fn sparse_buffers_take_the_pages_that_are_written() {
        // A second round, in which an allocator would give back what it had, zeroed as a whole.
        for _ in 0..2 {
            let mut buf = SparseBuf::zeroed(1 << 20);
            assert_eq!(present(&buf), 0);
            buf[700_000] = 1;
            assert_eq!(present(&buf), 1);
            assert_eq!(present(&buf.clone()), 1);
        }
    }

    #[test]
    fn buffers_of_one_huge_page_do_not_overlap() {
        let pool = BufPool::new(HUGE / 2, 2);
        let (mut a, mut b) = (pool.take(), pool.take());
        assert_eq!((a.as_ptr() as usize).abs_diff(b.as_ptr() as usize), HUGE / 2);
        a.fill(1);
        b.fill(2);
        drop(b);
        assert!(a.iter().all(|byte| *byte == 1), "and one outlives the other");
    }
}
