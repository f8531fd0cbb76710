//! Parsing a request's bytes: bounded, never trusting lengths.

use nuri_proto::Status;
use zerocopy::FromBytes;

use crate::abi::InHeader;

/// A request: its header and what follows.
pub(crate) struct Request<'a> {
    pub(crate) header: InHeader,
    body: &'a [u8],
}

impl<'a> Request<'a> {
    /// Splits the header off. `None` for bytes that are no request.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Request<'a>> {
        let (header, body) = InHeader::read_from_prefix(bytes).ok()?;
        (header.len as usize == bytes.len()).then_some(Request { header, body })
    }

    /// Takes a structure off the front.
    pub(crate) fn take<T: FromBytes>(&mut self) -> Result<T, Status> {
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
}
