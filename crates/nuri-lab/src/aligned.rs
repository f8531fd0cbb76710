//! Memory that O_DIRECT accepts.

use std::ops::{Deref, DerefMut};

/// Enough for every disk: the page size.
const ALIGNMENT: usize = 4096;

/// Bytes whose first lies at the start of a page.
pub(crate) struct Aligned {
    bytes: Vec<u8>,
    from: usize,
    len: usize,
}

impl Aligned {
    /// Filled with bytes that do not compress well enough to flatter a disk that tries.
    pub(crate) fn new(len: usize) -> Aligned {
        let bytes: Vec<u8> = (0..len + ALIGNMENT).map(|i| (i * 31 + i / 251 * 17) as u8).collect();
        let from = bytes.as_ptr().align_offset(ALIGNMENT);
        Aligned { bytes, from, len }
    }
}

impl Deref for Aligned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.from..self.from + self.len]
    }
}

impl DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.from..self.from + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_byte_starts_a_page() {
        let aligned = Aligned::new(10_000);
        assert_eq!((aligned.as_ptr() as usize % ALIGNMENT, aligned.len()), (0, 10_000));
    }
}
