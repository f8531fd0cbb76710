//! Answers to requests: simple answers, and structured answers in pieces.

use super::{ALLOCATION_ID, Errno, SIMPLE_REPLY, STRUCTURED_REPLY, allocation, chunk};
use crate::export::Extent;
use crate::input::{End, Input};

/// The head of a simple reply; data of a read follows it.
pub(crate) fn simple(cookie: u64, error: Option<Errno>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(16);
    bytes.extend_from_slice(&SIMPLE_REPLY.to_be_bytes());
    bytes.extend_from_slice(&error.map_or(0, |errno| errno as u32).to_be_bytes());
    bytes.extend_from_slice(&cookie.to_be_bytes());
    bytes
}

/// The head of a piece of so many bytes.
fn head(cookie: u64, flags: u16, kind: u16, len: u32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(28);
    bytes.extend_from_slice(&STRUCTURED_REPLY.to_be_bytes());
    bytes.extend_from_slice(&flags.to_be_bytes());
    bytes.extend_from_slice(&kind.to_be_bytes());
    bytes.extend_from_slice(&cookie.to_be_bytes());
    bytes.extend_from_slice(&len.to_be_bytes());
    bytes
}

/// Nothing more comes, and all went well.
pub(crate) fn done(cookie: u64) -> Vec<u8> {
    head(cookie, chunk::DONE, chunk::NONE, 0)
}

/// The head of a read's bytes, some or the last of them; they follow.
pub(crate) fn data(cookie: u64, offset: u64, len: u32, is_last: bool) -> Vec<u8> {
    let flags = if is_last { chunk::DONE } else { 0 };
    let mut bytes = head(cookie, flags, chunk::OFFSET_DATA, len + 8);
    bytes.extend_from_slice(&offset.to_be_bytes());
    bytes
}

/// An error, with words for people.
pub(crate) fn error(cookie: u64, errno: Errno) -> Vec<u8> {
    let words = errno.words().as_bytes();
    let mut bytes = head(cookie, chunk::DONE, chunk::ERROR, 6 + words.len() as u32);
    bytes.extend_from_slice(&(errno as u32).to_be_bytes());
    bytes.extend_from_slice(&(words.len() as u16).to_be_bytes());
    bytes.extend_from_slice(words);
    bytes
}

/// What is data and what is a hole from the request's offset on.
pub(crate) fn block_status(cookie: u64, extents: &[Extent]) -> Vec<u8> {
    let mut bytes = head(cookie, chunk::DONE, chunk::BLOCK_STATUS, 4 + 8 * extents.len() as u32);
    bytes.extend_from_slice(&ALLOCATION_ID.to_be_bytes());
    for extent in extents {
        let hole = if extent.is_hole { allocation::HOLE | allocation::ZERO } else { 0 };
        bytes.extend_from_slice(&extent.len.to_be_bytes());
        bytes.extend_from_slice(&hole.to_be_bytes());
    }
    bytes
}

/// The head of an answer, as a client reads it.
pub(crate) struct Head {
    pub(crate) cookie: u64,
    pub(crate) piece: Piece,
    /// Bytes that follow.
    pub(crate) len: u32,
}

/// What an answer is. Each is a single piece here: nobody asks for more than one server sends at
/// once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Piece {
    /// With its errno, 0 for none.
    Simple(u32),
    Done,
    Data,
    BlockStatus,
    Error,
    Strange,
}

impl Head {
    /// # Errors
    /// As [`Input::exactly`].
    pub(crate) fn read(input: &mut Input) -> Result<Head, End> {
        let mut bytes = [0; 20];
        input.exactly(&mut bytes[..16])?;
        let u32_at = |bytes: &[u8; 20], at: usize| {
            bytes[at..at + 4].iter().fold(0, |word, byte| word << 8 | u32::from(*byte))
        };
        let cookie = bytes[8..16].iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
        if u32_at(&bytes, 0) == SIMPLE_REPLY {
            return Ok(Head { cookie, piece: Piece::Simple(u32_at(&bytes, 4)), len: 0 });
        }
        input.exactly(&mut bytes[16..])?;
        let (flags, kind) = ((u32_at(&bytes, 4) >> 16) as u16, u32_at(&bytes, 4) as u16);
        let piece = match kind {
            _ if u32_at(&bytes, 0) != STRUCTURED_REPLY || flags != chunk::DONE => Piece::Strange,
            chunk::NONE => Piece::Done,
            chunk::OFFSET_DATA => Piece::Data,
            chunk::BLOCK_STATUS => Piece::BlockStatus,
            chunk::ERROR => Piece::Error,
            _ => Piece::Strange,
        };
        Ok(Head { cookie, piece, len: u32_at(&bytes, 16) })
    }
}

/// What [`block_status`] said, behind its number.
pub(crate) fn extents(bytes: &[u8]) -> Vec<Extent> {
    let word = |bytes: &[u8]| bytes.iter().fold(0, |word, byte| word << 8 | u32::from(*byte));
    let extent = |bytes: &[u8]| Extent {
        len: word(&bytes[..4]),
        is_hole: word(&bytes[4..]) & allocation::HOLE != 0,
    };
    bytes.chunks_exact(8).map(extent).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_say_how_long_they_are() {
        let extents = [Extent { len: 10, is_hole: true }, Extent { len: 20, is_hole: false }];
        let pieces = [
            done(7),
            error(7, Errno::Io),
            block_status(7, &extents),
            [data(7, 512, 3, true), vec![1, 2, 3]].concat(),
        ];
        for piece in pieces {
            let len = u32::from_be_bytes(piece[16..20].try_into().unwrap());
            assert_eq!(len as usize, piece.len() - 20);
            assert_eq!(piece[..4], STRUCTURED_REPLY.to_be_bytes());
            assert_eq!(piece[8..16], 7u64.to_be_bytes());
        }
        assert_eq!(simple(7, Some(Errno::NoSpace)).len(), 16);
    }
}
