//! The fixed header of 64 bytes before every message, little-endian, with a checksum of its own.
//!
//! A frame is header, arguments, payload. The header's checksum covers header and arguments. The
//! payload has its own checksum, and the receiver that uses the bytes verifies it.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::checksum::crc32c;
use crate::limit::{MAX_ARGS, MAX_PAYLOAD};

/// Length of the encoded header, bytes.
pub const HEADER: usize = 64;
/// First bytes of every frame.
pub const MAGIC: u32 = u32::from_le_bytes(*b"NURI");

/// Flag: the payload stays in the sender's memory; its address, 8 bytes, is in its place.
pub const REFERS: u8 = 1;
/// Flag of a request: the payload of its reply may stay in the replier's memory.
pub const TAKES: u8 = 2;

/// Flag of a reply: the replier copied the request's payload, or the reply's, to carry it.
pub const COPIED_REQUEST: u8 = 4;
pub const COPIED_REPLY: u8 = 8;

/// A request, or the reply to one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Request,
    Reply,
}

/// A verified header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    pub kind: Kind,
    /// [`REFERS`], [`TAKES`], [`COPIED_REQUEST`], [`COPIED_REPLY`]
    pub flags: u8,
    /// Which call: a value of [`crate::op::Op`].
    pub op: u16,
    pub request: u64,
    /// The session that asks, 0 for none.
    pub session: u64,
    /// Reply slot and sequence of a call that must not be done twice; sequence 0 for others.
    pub slot: u32,
    pub sequence: u64,
    /// Epoch known to the sender.
    pub epoch: u64,
    /// Outcome, in replies.
    pub status: u32,
    pub args_len: u32,
    pub payload_len: u32,
    pub payload_crc: u32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Raw {
    magic: U32,
    kind: u8,
    flags: u8,
    op: U16,
    request: U64,
    session: U64,
    sequence: U64,
    epoch: U64,
    slot: U32,
    status: U32,
    args_len: U32,
    payload_len: U32,
    payload_crc: U32,
    crc: U32,
}
const _: () = assert!(size_of::<Raw>() == HEADER);

/// Why bytes are not a frame. The connection cannot be used further.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FrameError {
    #[error("not a Nuri frame")]
    Magic,
    #[error("frame of an unknown kind")]
    Kind,
    #[error("frame longer than allowed")]
    TooLong,
    #[error("frame failed its checksum")]
    Checksum,
}

impl Header {
    /// Encodes the header; `args` is what follows it.
    pub fn encode(&self, args: &[u8]) -> [u8; HEADER] {
        let mut raw = Raw {
            magic: MAGIC.into(),
            kind: self.kind as u8,
            flags: self.flags,
            op: self.op.into(),
            request: self.request.into(),
            session: self.session.into(),
            sequence: self.sequence.into(),
            epoch: self.epoch.into(),
            slot: self.slot.into(),
            status: self.status.into(),
            args_len: self.args_len.into(),
            payload_len: self.payload_len.into(),
            payload_crc: self.payload_crc.into(),
            crc: 0.into(),
        };
        raw.crc = (crc32c(&raw.as_bytes()[..HEADER - 4]) ^ crc32c(args)).into();
        let mut out = [0; HEADER];
        out.copy_from_slice(raw.as_bytes());
        out
    }

    /// Bytes that follow the arguments.
    pub fn follows(&self) -> usize {
        if self.flags & REFERS == 0 { self.payload_len as usize } else { size_of::<u64>() }
    }

    /// Reads lengths and checks bounds; the checksum is verified by [`Header::verify`] once the
    /// arguments have arrived.
    pub fn decode(bytes: &[u8; HEADER]) -> Result<Header, FrameError> {
        let raw = Raw::read_from_bytes(bytes).map_err(|_| FrameError::Magic)?;
        if raw.magic.get() != MAGIC {
            return Err(FrameError::Magic);
        }
        let kind = match raw.kind {
            0 => Kind::Request,
            1 => Kind::Reply,
            _ => return Err(FrameError::Kind),
        };
        let (args_len, payload_len) = (raw.args_len.get(), raw.payload_len.get());
        if args_len as usize > MAX_ARGS || payload_len as usize > MAX_PAYLOAD {
            return Err(FrameError::TooLong);
        }
        Ok(Header {
            kind,
            flags: raw.flags,
            op: raw.op.get(),
            request: raw.request.get(),
            session: raw.session.get(),
            slot: raw.slot.get(),
            sequence: raw.sequence.get(),
            epoch: raw.epoch.get(),
            status: raw.status.get(),
            args_len,
            payload_len,
            payload_crc: raw.payload_crc.get(),
        })
    }

    /// Checks header and arguments against the header's checksum.
    pub fn verify(bytes: &[u8; HEADER], args: &[u8]) -> Result<(), FrameError> {
        let mut stored = [0; 4];
        stored.copy_from_slice(&bytes[HEADER - 4..]);
        let found = crc32c(&bytes[..HEADER - 4]) ^ crc32c(args);
        if found == u32::from_le_bytes(stored) { Ok(()) } else { Err(FrameError::Checksum) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Header {
        Header {
            kind: Kind::Request,
            flags: REFERS,
            op: 3,
            request: 9,
            session: 7,
            slot: 1,
            sequence: 5,
            epoch: 2,
            status: 0,
            args_len: 3,
            payload_len: 0,
            payload_crc: 0,
        }
    }

    #[test]
    fn round_trip() {
        let bytes = sample().encode(b"abc");
        assert_eq!(Header::decode(&bytes), Ok(sample()));
        assert_eq!(Header::verify(&bytes, b"abc"), Ok(()));
    }

    #[test]
    fn every_flipped_bit_is_caught() {
        let bytes = sample().encode(b"abc");
        for bit in 0..HEADER * 8 {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            let caught = Header::decode(&bad).is_err() || Header::verify(&bad, b"abc").is_err();
            assert!(caught, "bit {bit}");
        }
        assert_eq!(Header::verify(&bytes, b"abd"), Err(FrameError::Checksum));
    }

    #[test]
    fn long_lengths_are_refused_before_allocation() {
        let mut header = sample();
        header.payload_len = MAX_PAYLOAD as u32 + 1;
        assert_eq!(Header::decode(&header.encode(b"")), Err(FrameError::TooLong));
    }
}
