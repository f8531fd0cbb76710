//! The caller's buffers, one or many, for as long as a request needs them.

#![allow(unsafe_code)]

/// Bytes somewhere in this process.
#[derive(Clone, Copy, Debug)]
struct Part {
    at: *mut u8,
    len: usize,
}

/// Buffers in order. The common single one needs no memory of its own.
#[derive(Clone, Debug)]
struct Parts {
    first: Part,
    rest: Vec<Part>,
    total: usize,
}

// SAFETY: the constructors' contract holds for all threads.
unsafe impl Send for Parts {}

impl Parts {
    fn new(mut parts: impl Iterator<Item = (*mut u8, usize)>) -> Self {
        let part = |(at, len)| Part { at, len };
        let none = Part { at: std::ptr::NonNull::dangling().as_ptr(), len: 0 };
        let first = parts.next().map_or(none, part);
        let rest: Vec<Part> = parts.map(part).collect();
        let total = first.len + rest.iter().map(|p| p.len).sum::<usize>();
        Self { first, rest, total }
    }

    /// Calls for each piece of a range, with its distance from the range's start.
    #[inline]
    fn pieces(&self, offset: usize, len: usize, mut on: impl FnMut(usize, *mut u8, usize)) {
        assert!(offset + len <= self.total, "the range lies in the buffers");
        let (mut skip, mut done) = (offset, 0);
        for part in std::iter::once(&self.first).chain(&self.rest) {
            if done == len {
                break;
            }
            let here = part.len.saturating_sub(skip).min(len - done);
            if here > 0 {
                on(done, part.at.wrapping_add(skip), here);
            }
            done += here;
            skip = skip.saturating_sub(part.len);
        }
    }
}

/// Buffers to send from.
#[derive(Clone, Debug)]
pub(crate) struct Gather(Parts);

impl Gather {
    /// No bytes.
    pub(crate) fn none() -> Self {
        Self(Parts::new(std::iter::empty()))
    }

    /// # Safety
    /// Each part stays readable and unchanged until the gather is dropped.
    pub(crate) unsafe fn new(parts: impl Iterator<Item = (*const u8, usize)>) -> Self {
        Self(Parts::new(parts.map(|(at, len)| (at.cast_mut(), len))))
    }

    /// Bytes in all.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.0.total
    }

    /// Calls for each piece of a range, with its distance from the range's start.
    #[inline]
    pub(crate) fn pieces(&self, offset: usize, len: usize, mut on: impl FnMut(usize, &[u8])) {
        self.0.pieces(offset, len, |done, at, len| {
            // SAFETY: by the contract of `new`; `Parts` keeps within each part.
            on(done, unsafe { std::slice::from_raw_parts(at, len) });
        });
    }

    /// A copy of all bytes.
    pub(crate) fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len());
        self.pieces(0, self.len(), |_, part| bytes.extend_from_slice(part));
        bytes
    }

    /// Where the parts lie, for a peer that copies them itself.
    pub(crate) fn places(&self) -> impl Iterator<Item = (u64, u64)> {
        let all = std::iter::once(&self.0.first).chain(&self.0.rest);
        all.filter(|p| p.len > 0).map(|p| (p.at as u64, p.len as u64))
    }
}

/// Buffers to receive into.
#[derive(Clone, Debug)]
pub(crate) struct Scatter(Parts);

impl Scatter {
    /// No room at all.
    pub(crate) fn none() -> Self {
        Self(Parts::new(std::iter::empty()))
    }

    /// A vector's bytes; whoever keeps the scatter keeps the vector, at its length, beside it.
    pub(crate) fn of(bytes: &mut Vec<u8>) -> Self {
        Self(Parts::new(std::iter::once((bytes.as_mut_ptr(), bytes.len()))))
    }

    /// # Safety
    /// Each part stays writable, and used by nobody else, until the scatter is dropped.
    pub(crate) unsafe fn new(parts: impl Iterator<Item = (*mut u8, usize)>) -> Self {
        Self(Parts::new(parts))
    }

    /// Bytes in all.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.0.total
    }

    /// Calls for each piece of a range, with its distance from the range's start.
    #[inline]
    pub(crate) fn pieces(&self, offset: usize, len: usize, mut on: impl FnMut(usize, &mut [u8])) {
        self.0.pieces(offset, len, |done, at, len| {
            // SAFETY: by the contract of `new`; `Parts` keeps within each part.
            on(done, unsafe { std::slice::from_raw_parts_mut(at, len) });
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_cross_parts() {
        let (a, b, c) = (*b"abc", *b"", *b"defgh");
        let parts = [(a.as_ptr(), 3), (b.as_ptr(), 0), (c.as_ptr(), 5)];
        // SAFETY: the arrays outlive the gather.
        let gather = unsafe { Gather::new(parts.into_iter()) };
        assert_eq!(gather.len(), 8);
        for from in 0..=8 {
            for len in 0..=8 - from {
                let mut seen = vec![0; len];
                gather.pieces(from, len, |at, b| seen[at..][..b.len()].copy_from_slice(b));
                assert_eq!(seen, &b"abcdefgh"[from..][..len]);
            }
        }
    }
}
