//! Parsing a request's bytes: bounded, never trusting lengths.

use nuri_proto::Status;
use zerocopy::FromBytes;

use crate::protocol::abi::InHeader;

/// A request: its header, the operation's structure where it came apart, and what follows.
pub(crate) struct Request<'a> {
    pub(crate) header: InHeader,
    /// Over io_uring the first structure lies apart from the rest; else empty.
    front: &'a [u8],
    body: &'a [u8],
}

impl<'a> Request<'a> {
    /// Splits the header off. `None` for bytes that are no request.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Request<'a>> {
        let (header, body) = InHeader::read_from_prefix(bytes).ok()?;
        (header.len as usize == bytes.len()).then_some(Request { header, front: &[], body })
    }

    /// A request whose parts arrived apart. `front` may be longer than the structure in it.
    pub(crate) fn of_parts(header: InHeader, front: &'a [u8], body: &'a [u8]) -> Request<'a> {
        Request { header, front, body }
    }

    /// Takes a structure off the front.
    pub(crate) fn take<T: FromBytes>(&mut self) -> Result<T, Status> {
        if !self.front.is_empty() {
            let (value, rest) = T::read_from_prefix(self.front).map_err(|_| Status::INVAL)?;
            self.front = rest;
            return Ok(value);
        }
        let (value, rest) = T::read_from_prefix(self.body).map_err(|_| Status::INVAL)?;
        self.body = rest;
        Ok(value)
    }

    /// Takes a zero-terminated name off the front.
    pub(crate) fn name(&mut self) -> Result<&'a [u8], Status> {
        let end = self.body.iter().position(|b| *b == 0).ok_or(Status::INVAL)?;
        let name = &self.body[..end];
        self.body = &self.body[end + 1..];
        Ok(name)
    }

    /// The next `len` bytes.
    pub(crate) fn bytes(&mut self, len: usize) -> Result<&'a [u8], Status> {
        let bytes = self.body.get(..len).ok_or(Status::INVAL)?;
        self.body = &self.body[len..];
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    #[test]
    fn short_bodies_are_refused() {
        let header = InHeader { len: 43, opcode: 1, ..InHeader::default() };
        let mut bytes = header.as_bytes().to_vec();
        bytes.extend_from_slice(b"ab\0");
        let mut request = Request::parse(&bytes).unwrap();
        assert!(request.take::<u64>().is_err());
        assert_eq!(request.name(), Ok(&b"ab"[..]));
        assert_eq!(request.name(), Err(Status::INVAL));
        assert!(Request::parse(&bytes[..42]).is_none());
    }

    #[test]
    fn parts_are_taken_from_their_own_places() {
        let front = [7u8; 12];
        let mut request = Request::of_parts(InHeader::default(), &front, b"name\0rest");
        assert_eq!(request.take::<u64>(), Ok(u64::from_ne_bytes([7; 8])));
        assert_eq!(request.name(), Ok(&b"name"[..]));
        assert!(request.take::<u64>().is_err(), "a structure is never taken from the data");
        assert_eq!(request.bytes(4), Ok(&b"rest"[..]));
    }
}
