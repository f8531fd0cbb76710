//! Copies between private and shared memory, with stores that suit the distance of the cores.
//!
//! Cached stores leave the bytes in the writer's cache. That is best when the reader's core shares
//! a cache. Streaming stores push the bytes to memory at once. That is best when it does not,
//! because reading lines that are dirty in a distant cache is several times slower than reading
//! memory. The loops are explicit, because the C library switches to streaming stores by its own
//! thresholds, which do not know that.

#![allow(unsafe_code)]

/// Bytes copied between two looks at the other end.
pub(crate) const CHUNK: usize = 16 << 10;

/// How bytes are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stores {
    /// Through the writer's cache.
    Cached,
    /// Through it, by the processor's string instruction. (A plain copy where there is none.)
    Strings,
    /// Around it; ordered by a fence before this module returns.
    Streaming,
}

/// Below this the plain copy is as good as any.
const LOOP_FROM: usize = 512;

/// Copies `len` bytes.
///
/// # Safety
/// `from` is readable and `to` writable for `len` bytes, and they do not overlap. Another process
/// may write to `from` meanwhile: the bytes are then any bytes.
#[inline]
pub(crate) unsafe fn copy(to: *mut u8, from: *const u8, len: usize, stores: Stores) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if len >= LOOP_FROM && std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the caller's contract, and the processor has the instructions.
        return unsafe { wide::copy(to, from, len, stores) };
    }
    let _ = (stores, LOOP_FROM);
    // SAFETY: the caller's contract.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod wide {
    //! Loops of two 32-byte vectors: one cache line per round.

    use std::arch::x86_64::{
        __m256i, _mm_sfence, _mm256_loadu_si256, _mm256_store_si256, _mm256_stream_si256,
    };

    use super::Stores;

    const LINE: usize = 64;

    /// # Safety
    /// As [`super::copy`]; the processor has AVX2.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn copy(to: *mut u8, from: *const u8, len: usize, stores: Stores) {
        let head = to.align_offset(LINE).min(len);
        let lines = (len - head) / LINE;
        let tail = head + lines * LINE;
        // SAFETY: head, lines and tail together are `len` bytes; after the head `to` is aligned.
        unsafe {
            std::ptr::copy_nonoverlapping(from, to, head);
            match stores {
                Stores::Cached => cached(to.add(head), from.add(head), lines),
                Stores::Strings => strings(to.add(head), from.add(head), lines * LINE),
                Stores::Streaming => streaming(to.add(head), from.add(head), lines),
            }
            std::ptr::copy_nonoverlapping(from.add(tail), to.add(tail), len - tail);
        }
    }

    /// # Safety
    /// `to` is aligned to a line; both sides hold `lines` lines.
    #[target_feature(enable = "avx2")]
    unsafe fn cached(to: *mut u8, from: *const u8, lines: usize) {
        for i in 0..lines {
            let (to, from) = (to.wrapping_add(i * LINE), from.wrapping_add(i * LINE));
            // SAFETY: the line lies within both sides.
            unsafe {
                let a = _mm256_loadu_si256(from.cast::<__m256i>());
                let b = _mm256_loadu_si256(from.add(32).cast::<__m256i>());
                _mm256_store_si256(to.cast::<__m256i>(), a);
                _mm256_store_si256(to.add(32).cast::<__m256i>(), b);
            }
        }
    }

    /// Where `to` is not aligned to a line this takes a multiple on some processors.
    ///
    /// # Safety
    /// `from` is readable and `to` writable for `len` bytes.
    unsafe fn strings(to: *mut u8, from: *const u8, len: usize) {
        // SAFETY: the caller's contract; the direction flag is clear wherever Rust code runs.
        unsafe {
            std::arch::asm!(
                "rep movsb",
                inout("rcx") len => _,
                inout("rdi") to => _,
                inout("rsi") from => _,
                options(nostack, preserves_flags)
            );
        }
    }

    /// # Safety
    /// As [`cached`].
    #[target_feature(enable = "avx2")]
    unsafe fn streaming(to: *mut u8, from: *const u8, lines: usize) {
        for i in 0..lines {
            let (to, from) = (to.wrapping_add(i * LINE), from.wrapping_add(i * LINE));
            // SAFETY: the line lies within both sides.
            unsafe {
                let a = _mm256_loadu_si256(from.cast::<__m256i>());
                let b = _mm256_loadu_si256(from.add(32).cast::<__m256i>());
                _mm256_stream_si256(to.cast::<__m256i>(), a);
                _mm256_stream_si256(to.add(32).cast::<__m256i>(), b);
            }
        }
        _mm_sfence();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_and_alignment() {
        let source: Vec<u8> = (0..4096u32).map(|i| (i * 7) as u8).collect();
        for stores in [Stores::Cached, Stores::Strings, Stores::Streaming] {
            for len in [0, 1, 63, 511, 512, 513, 600, 1024, 3000] {
                for shift in [0, 1, 31, 33, 63] {
                    let mut into = vec![0u8; 4096];
                    // SAFETY: shift + len is within both vectors.
                    unsafe {
                        let from = source.as_ptr().add(shift);
                        copy(into.as_mut_ptr().add(shift * 2), from, len, stores);
                    }
                    assert_eq!(into[shift * 2..][..len], source[shift..][..len]);
                    assert!(into[shift * 2 + len..].iter().all(|b| *b == 0));
                }
            }
        }
    }
}
