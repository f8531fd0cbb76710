//! Bytes that a writer brings: borrowed ones, or a whole block that it filled itself and that is
//! buffered as it is, without a copy.

use std::io;
use std::sync::Arc;

use nuri_proto::Status;
use nuri_proto::id::Ino;

use crate::buffer::{BLOCK, Bytes};
use crate::file::Position;
use crate::fs::Client;
use crate::xattr::Privileges;

/// See the module's text.
pub(crate) enum Brought<'a> {
    Bytes(&'a [u8]),
    Block(Arc<Bytes>),
}

impl<'a> From<&'a [u8]> for Brought<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Brought::Bytes(bytes)
    }
}

impl std::ops::Deref for Brought<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Brought::Bytes(bytes) => bytes,
            Brought::Block(block) => block,
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
        let mut bytes = Bytes::whole();
        while (bytes.len() as u64) < BLOCK {
            if bytes.append(&mut read)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        let fits = bytes.len() as u64 == BLOCK;
        if fits { Ok(OwnBlock(bytes)) } else { Err(io::ErrorKind::InvalidData.into()) }
    }
}

impl Client {
    /// As [`Client::write`], of a whole block at a multiple of [`OwnBlock::LEN`].
    ///
    /// # Errors
    /// As [`Client::write`].
    pub fn write_block(
        &self,
        file: (Ino, u64),
        offset: u64,
        block: OwnBlock,
        taken: Privileges,
    ) -> Result<u64, Status> {
        self.write_bytes(file, Position::At(offset), Brought::Block(Arc::new(block.0)), taken)
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
