//! The header of a request: 28 bytes.

use super::{MAX_PAYLOAD, REQUEST, command, command_flag};

pub(crate) const HEADER: usize = 28;

/// A request as it came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Request {
    pub(crate) flags: u16,
    pub(crate) command: u16,
    /// The client's number of it.
    pub(crate) cookie: u64,
    pub(crate) offset: u64,
    pub(crate) len: u32,
}

/// Why no further request can be made out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum OutOfStep {
    #[error("a request begins with {0:#x}")]
    Magic(u32),
    #[error("a write of {0} bytes, which is more than was agreed")]
    Payload(u32),
}

impl Request {
    /// # Errors
    /// Where the stream is out of step: it cannot be known where the next request begins, or it
    /// would cost too much to get there.
    pub(crate) fn parse(header: &[u8; HEADER]) -> Result<Request, OutOfStep> {
        let (u16_at, u32_at) = (|at| u16::from_be_bytes(take(header, at)), |at| u32_of(header, at));
        let u64_at = |at| u64::from_be_bytes(take(header, at));
        if u32_at(0) != REQUEST {
            return Err(OutOfStep::Magic(u32_at(0)));
        }
        let (flags, command) = (u16_at(4), u16_at(6));
        let request =
            Request { flags, command, cookie: u64_at(8), offset: u64_at(16), len: u32_at(24) };
        if command == command::WRITE && request.len > MAX_PAYLOAD {
            return Err(OutOfStep::Payload(request.len));
        }
        Ok(request)
    }

    /// As it is sent.
    pub(crate) fn bytes(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..4].copy_from_slice(&REQUEST.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.flags.to_be_bytes());
        bytes[6..8].copy_from_slice(&self.command.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_be_bytes());
        bytes[24..].copy_from_slice(&self.len.to_be_bytes());
        bytes
    }

    pub(crate) fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    pub(crate) fn end(&self) -> Option<u64> {
        self.offset.checked_add(u64::from(self.len))
    }

    /// Bytes that follow the header.
    pub(crate) fn payload(&self) -> u32 {
        if self.command == command::WRITE { self.len } else { 0 }
    }

    /// Whether all its flags are known for the command. FUA is harmless everywhere.
    pub(crate) fn has_known_flags(&self) -> bool {
        let own = match self.command {
            command::READ => command_flag::DF,
            command::WRITE_ZEROES => command_flag::NO_HOLE | command_flag::FAST_ZERO,
            command::BLOCK_STATUS => command_flag::REQ_ONE,
            _ => 0,
        };
        self.flags & !(own | command_flag::FUA) == 0
    }
}

fn take<const N: usize>(bytes: &[u8; HEADER], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

fn u32_of(bytes: &[u8; HEADER], at: usize) -> u32 {
    u32::from_be_bytes(take(bytes, at))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(command: u16, flags: u16, len: u32) -> [u8; HEADER] {
        Request { flags, command, cookie: 7, offset: 4096, len }.bytes()
    }

    #[test]
    fn a_header_is_read_as_it_was_written() {
        let request = Request::parse(&header(command::WRITE, command_flag::FUA, 512)).unwrap();
        assert_eq!((request.cookie, request.end(), request.payload()), (7, Some(4608), 512));
        assert!(request.has(command_flag::FUA) && request.has_known_flags());
        assert!(!Request::parse(&header(command::WRITE, 2, 1)).unwrap().has_known_flags());
        assert_eq!(Request::parse(&header(command::READ, 0, u32::MAX)).unwrap().payload(), 0);
    }

    #[test]
    fn a_stream_out_of_step_is_noticed() {
        let mut wrong = header(command::READ, 0, 1);
        wrong[0] = 1;
        assert!(matches!(Request::parse(&wrong), Err(OutOfStep::Magic(_))));
        let huge = header(command::WRITE, 0, MAX_PAYLOAD + 1);
        assert_eq!(Request::parse(&huge), Err(OutOfStep::Payload(MAX_PAYLOAD + 1)));
    }
}
