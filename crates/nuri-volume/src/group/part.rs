//! Ranges of chunks, with data to write or without.

/// A range of one data member's chunk. The parts of one write lie within one frame of the chunk.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    pub place: usize,
    /// Within the chunk.
    pub offset: u32,
    pub data: &'a [u8],
}

impl Part<'_> {
    pub(super) fn end(&self) -> u32 {
        self.offset + self.data.len() as u32
    }
}

/// A range of the chunk of one place.
#[derive(Clone, Copy)]
pub(super) struct Range {
    pub(super) place: usize,
    pub(super) offset: u32,
    pub(super) len: usize,
}
