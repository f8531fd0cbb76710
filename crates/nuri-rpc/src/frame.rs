//! Frames on a stream: header, arguments, payload, with as few system calls as possible.

use std::io::{self, IoSlice, Read, Write};

use nuri_ipc::single_copy::{PeerMemory, address_of};
use nuri_proto::Status;
use nuri_proto::checksum::crc32c;
use nuri_proto::header::{HEADER, Header, REFERS};

use crate::stream::Stream;

/// Holds a frame with a payload of 4 KiB whole: one system call takes it.
const AHEAD: usize = 8192;

/// Reads frames. A connection carries one call at a time, so bytes read ahead always belong to
/// the frame at hand.
pub(crate) struct FrameReader {
    buf: Vec<u8>,
    filled: usize,
}

/// Why no frame came.
#[derive(Debug)]
pub(crate) enum RecvError {
    /// The peer closed between frames.
    Closed,
    Io,
    /// The bytes are not a valid frame; the connection is of no further use.
    Malformed,
}

impl From<io::Error> for RecvError {
    fn from(_: io::Error) -> Self {
        RecvError::Io
    }
}

impl FrameReader {
    pub(crate) fn new() -> FrameReader {
        FrameReader { buf: vec![0; AHEAD], filled: 0 }
    }

    fn fill(&mut self, stream: &mut Stream, want: usize) -> Result<(), RecvError> {
        while self.filled < want {
            match stream.read(&mut self.buf[self.filled..]) {
                Ok(0) if self.filled == 0 => return Err(RecvError::Closed),
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(n) => self.filled += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// Reads header and arguments; the payload must be taken next by [`FrameReader::payload`].
    pub(crate) fn head(&mut self, stream: &mut Stream) -> Result<(Header, Vec<u8>), RecvError> {
        self.fill(stream, HEADER)?;
        let mut raw = [0; HEADER];
        raw.copy_from_slice(&self.buf[..HEADER]);
        let header = Header::decode(&raw).map_err(|_| RecvError::Malformed)?;
        let end = HEADER + header.args_len as usize;
        if self.buf.len() < end {
            self.buf.resize(end, 0);
        }
        self.fill(stream, end)?;
        let args = self.buf[HEADER..end].to_vec();
        Header::verify(&raw, &args).map_err(|_| RecvError::Malformed)?;
        let ahead = self.filled - end;
        if ahead > header.follows() {
            return Err(RecvError::Malformed);
        }
        self.buf.copy_within(end..self.filled, 0);
        self.filled = ahead;
        Ok((header, args))
    }

    /// Reads what follows the arguments.
    fn rest(&mut self, stream: &mut Stream, into: &mut [u8]) -> Result<(), RecvError> {
        let ahead = self.filled;
        into[..ahead].copy_from_slice(&self.buf[..ahead]);
        self.filled = 0;
        self.buf.truncate(AHEAD.max(HEADER));
        stream.read_exact(&mut into[ahead..])?;
        Ok(())
    }

    /// Takes the payload into `into`, whose length is the header's, and checks it: what a sender
    /// changed before it was taken from its memory is no payload. Returns the bytes copied here.
    pub(crate) fn payload(
        &mut self,
        stream: &mut Stream,
        header: &Header,
        into: &mut [u8],
        peer: Option<&PeerMemory>,
    ) -> Result<u64, RecvError> {
        if header.flags & REFERS == 0 {
            self.rest(stream, into)?;
        } else {
            let mut address = [0; size_of::<u64>()];
            self.rest(stream, &mut address)?;
            let peer = peer.ok_or(RecvError::Malformed)?;
            peer.read(u64::from_le_bytes(address), into).map_err(|_| RecvError::Io)?;
        }
        match crc32c(into) == header.payload_crc {
            true => Ok(into.len() as u64),
            // Its sender gave it up meanwhile, as if the connection had broken.
            false if header.flags & REFERS != 0 => Err(RecvError::Io),
            false => Err(RecvError::Malformed),
        }
    }
}

/// How a payload goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Carry {
    Stream,
    /// It stays where it is until the peer has answered, or sends its next request.
    Address,
}

/// Sends one frame. Fills in the lengths and checksums of `header`. Returns the bytes of the
/// payload that were copied.
pub(crate) fn send(
    stream: &mut Stream,
    mut header: Header,
    args: &[u8],
    payload: &[u8],
    carry: Carry,
) -> io::Result<u64> {
    header.args_len = args.len() as u32;
    header.payload_len = payload.len() as u32;
    header.payload_crc = if payload.is_empty() { 0 } else { crc32c(payload) };
    let address = address_of(payload).to_le_bytes();
    header.flags &= !REFERS;
    let follows = match carry {
        Carry::Stream => payload,
        Carry::Address => {
            header.flags |= REFERS;
            &address
        }
    };
    let head = header.encode(args);
    let mut parts = [IoSlice::new(&head), IoSlice::new(args), IoSlice::new(follows)];
    let mut rest = &mut parts[..];
    while rest.iter().any(|part| !part.is_empty()) {
        match stream.write_vectored(rest) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => IoSlice::advance_slices(&mut rest, n),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(if carry == Carry::Stream { payload.len() as u64 } else { 0 })
}

/// What a caller is told of a broken stream.
pub(crate) fn to_status(error: &RecvError) -> Status {
    match error {
        RecvError::Malformed => Status::MALFORMED,
        RecvError::Closed | RecvError::Io => Status::UNREACHABLE,
    }
}
