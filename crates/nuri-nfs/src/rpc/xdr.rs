//! XDR (RFC 4506): numbers of four or eight bytes, and bytes with their length, in multiples of
//! four. Reading allocates nothing: a length beyond the message is refused.

/// What came is not what it says it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Garbage;

/// Reads values one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader(bytes)
    }

    /// What was not read yet.
    pub fn rest(&self) -> &'a [u8] {
        self.0
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], Garbage> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(Garbage)?;
        self.0 = rest;
        Ok(taken)
    }

    pub(crate) fn fixed<const N: usize>(&mut self) -> Result<[u8; N], Garbage> {
        let taken = self.take(N.next_multiple_of(4))?;
        taken[..N].try_into().map_err(|_| Garbage)
    }

    pub(crate) fn number(&mut self) -> Result<u32, Garbage> {
        self.fixed().map(u32::from_be_bytes)
    }

    pub(crate) fn long(&mut self) -> Result<u64, Garbage> {
        self.fixed().map(u64::from_be_bytes)
    }

    pub(crate) fn boolean(&mut self) -> Result<bool, Garbage> {
        match self.number()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Garbage),
        }
    }

    /// Bytes with their length, which is at most `most`.
    pub(crate) fn bytes(&mut self, most: usize) -> Result<&'a [u8], Garbage> {
        let len = self.number()? as usize;
        if len > most {
            return Err(Garbage);
        }
        let padded = self.take(len.next_multiple_of(4))?;
        Ok(&padded[..len])
    }

    /// A value that may be left out.
    pub(crate) fn option<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, Garbage>,
    ) -> Result<Option<T>, Garbage> {
        if self.boolean()? { read(self).map(Some) } else { Ok(None) }
    }
}

/// Writes values one after the other, into a buffer that may hold anything.
#[derive(Debug, Default)]
pub struct Writer {
    buffer: Vec<u8>,
    /// Written of it.
    len: usize,
}

impl Writer {
    /// From the buffer's begin on.
    pub fn over(buffer: Vec<u8>) -> Writer {
        Writer { buffer, len: 0 }
    }

    /// What was written.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[..self.len]
    }

    /// The buffer, for what is written next.
    pub fn into_inner(self) -> Vec<u8> {
        self.buffer
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Takes back what was written beyond `len` bytes.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Room for so many bytes more, which count as written.
    fn extend(&mut self, more: usize) -> &mut [u8] {
        let (at, end) = (self.len, self.len + more);
        if self.buffer.len() < end {
            self.buffer.resize(end, 0);
        }
        self.len = end;
        &mut self.buffer[at..end]
    }

    pub(crate) fn number(&mut self, value: u32) {
        self.extend(4).copy_from_slice(&value.to_be_bytes());
    }

    pub(crate) fn long(&mut self, value: u64) {
        self.extend(8).copy_from_slice(&value.to_be_bytes());
    }

    pub(crate) fn boolean(&mut self, value: bool) {
        self.number(u32::from(value));
    }

    /// Bytes whose length is known to both.
    pub(crate) fn fixed(&mut self, bytes: &[u8]) {
        self.extend(bytes.len()).copy_from_slice(bytes);
        self.pad();
    }

    pub(crate) fn bytes_of(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u32);
        self.fixed(bytes);
    }

    /// Bytes that `fill` writes into a room of `most`; it returns how many there are.
    pub(crate) fn filled<E>(
        &mut self,
        most: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        let at = self.len;
        self.number(0);
        let len = fill(self.extend(most))?;
        self.truncate(at + 4 + len);
        self.put(at, len as u32);
        self.pad();
        Ok(len)
    }

    /// Another number in place of one that was written at `at`.
    pub(crate) fn put(&mut self, at: usize, value: u32) {
        self.buffer[..self.len][at..at + 4].copy_from_slice(&value.to_be_bytes());
    }

    fn pad(&mut self) {
        let more = self.len.next_multiple_of(4) - self.len;
        self.extend(more).fill(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut out = Writer::over(vec![0xff; 1000]);
        out.number(7);
        out.long(1 << 40);
        out.boolean(true);
        out.bytes_of(b"hello");
        out.fixed(&[1, 2, 3]);
        out.filled(8, |room| {
            room[..2].copy_from_slice(b"ab");
            Ok::<_, Garbage>(2)
        })
        .unwrap();
        let bytes = out.bytes().to_vec();
        assert_eq!(bytes.len() % 4, 0);
        let mut input = Reader::new(&bytes);
        assert_eq!((input.number(), input.long()), (Ok(7), Ok(1 << 40)));
        assert_eq!((input.boolean(), input.bytes(5)), (Ok(true), Ok(&b"hello"[..])));
        assert_eq!((input.fixed(), input.bytes(8)), (Ok([1, 2, 3]), Ok(&b"ab"[..])));
        assert!(input.rest().is_empty());
    }

    #[test]
    fn lengths_that_are_not_there_are_refused() {
        let long = [0xff; 8];
        assert_eq!(Reader::new(&long).bytes(usize::MAX), Err(Garbage));
        assert_eq!(Reader::new(&[0, 0, 0, 9, 1, 2, 3, 4]).bytes(8), Err(Garbage));
        assert_eq!(Reader::new(&[0, 0, 0, 2]).boolean(), Err(Garbage));
        assert_eq!(Reader::new(&[0, 0, 0]).number(), Err(Garbage));
    }
}
