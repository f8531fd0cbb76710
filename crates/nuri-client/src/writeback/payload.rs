//! The payload of a write: borrowed bytes, or a whole block. The writer fills a whole block itself,
//! and the client buffers it as it is, without a copy.

use std::io;
use std::sync::Arc;

use crate::writeback::buffer::{BLOCK, Bytes, whole};

/// Where a write goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Position {
    At(u64),
    /// The end of the file, as the lease's holder knows it.
    End,
    /// As `End`, of bytes that the kernel has in its pages from there on, one of them locked.
    EndInPages(u64),
}

impl Position {
    /// Where that is in a file of this size.
    pub(crate) fn within(self, size: u64) -> u64 {
        match self {
            Position::At(offset) => offset,
            Position::End | Position::EndInPages(_) => size,
        }
    }
}

/// Where the bytes of a write went, and for how many there was space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WriteResult {
    pub at: u64,
    pub len: u64,
}

/// Bytes of a write.
pub struct WritePayload<'a> {
    kind: Kind<'a>,
    /// Told where the file ended, when the write is about to make it longer.
    grows: Option<&'a dyn Fn(u64)>,
}

enum Kind<'a> {
    Bytes(&'a [u8]),
    Block(Arc<Bytes>),
}

impl<'a> WritePayload<'a> {
    fn new(kind: Kind<'a>) -> WritePayload<'a> {
        WritePayload { kind, grows: None }
    }

    /// Calls `grows` with the old end of the file, before others can see that the write made the
    /// file longer. `grows` must not wait.
    #[must_use]
    pub fn telling(self, grows: &'a dyn Fn(u64)) -> WritePayload<'a> {
        WritePayload { grows: Some(grows), ..self }
    }

    /// The file, which ends at `end`, is about to reach `reach`.
    pub(crate) fn note_reach(&self, end: u64, reach: u64) {
        if let Some(grows) = self.grows.filter(|_| reach > end) {
            grows(end);
        }
    }

    /// A block that can be kept.
    pub(crate) fn block(&self) -> Option<&Arc<Bytes>> {
        if let Kind::Block(block) = &self.kind { Some(block) } else { None }
    }
}

impl<'a> From<&'a [u8]> for WritePayload<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        WritePayload::new(Kind::Bytes(bytes))
    }
}

impl From<OwnBlock> for WritePayload<'_> {
    fn from(block: OwnBlock) -> Self {
        WritePayload::new(Kind::Block(Arc::new(block.0)))
    }
}

impl std::ops::Deref for WritePayload<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match &self.kind {
            Kind::Bytes(bytes) => bytes,
            Kind::Block(block) => block,
        }
    }
}

/// A block of a file on its way to the buffer.
pub struct OwnBlock(Bytes);

impl OwnBlock {
    /// Bytes of a block; blocks begin at multiples of it.
    pub const LEN: u64 = BLOCK;

    /// Fills a block by calls that append some bytes each, or none at the end.
    ///
    /// # Errors
    /// What a call says; `UnexpectedEof` where there were fewer bytes, `InvalidData` where more.
    pub fn fill(mut read: impl FnMut(&mut Vec<u8>) -> io::Result<usize>) -> io::Result<OwnBlock> {
        let mut bytes = whole();
        while (bytes.len() as u64) < BLOCK {
            if read(&mut bytes)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        let fits = bytes.len() as u64 == BLOCK;
        if fits {
            Ok(OwnBlock(Bytes::Packed(bytes)))
        } else {
            Err(io::ErrorKind::InvalidData.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_whole_or_none() {
        let fill = |parts: &[usize]| {
            let mut parts = parts.iter();
            OwnBlock::fill(|bytes| {
                let len = *parts.next().unwrap_or(&0);
                bytes.resize(bytes.len() + len, 7);
                Ok(len)
            })
            .map(|block| block.0.len())
            .map_err(|e| e.kind())
        };
        let whole = BLOCK as usize;
        assert_eq!(fill(&[whole - 1, 1]), Ok(whole));
        assert_eq!(fill(&[whole - 1]), Err(io::ErrorKind::UnexpectedEof));
        assert_eq!(fill(&[whole + 1]), Err(io::ErrorKind::InvalidData));
    }
}
