//! Records on a TCP connection (RFC 5531, 11). A record comes in fragments; each fragment says how
//! long it is and whether another one follows.
//!
//! Bytes are received into one buffer, in which nearly every record is one piece. Such a record
//! leaves as it lies there, without a copy. At most the record that is coming is held, and no more
//! than the part of it that came.

use super::xdr::Writer;

/// A record that is too long, or has no end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooLong;

/// Received at once where nothing is known of what comes.
const CHUNK: usize = 16 << 10;
/// Fragments of one record.
const FRAGMENTS: usize = 64;
const MARK: usize = 4;
const LAST: u32 = 1 << 31;

/// Where the fragments of a record lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Look {
    /// So many more bytes are needed, if that is known.
    More(usize),
    /// One record: the first so many bytes, in so many fragments.
    Whole { bytes: usize, fragments: usize },
}

/// Takes bytes in, and gives records.
#[derive(Debug)]
pub struct Records {
    buffer: Vec<u8>,
    /// Received of it.
    filled: usize,
    most: usize,
}

impl Records {
    /// Of records of at most so many bytes.
    pub fn new(most: usize) -> Records {
        Records { buffer: Vec::new(), filled: 0, most }
    }

    /// Bytes that are held.
    pub fn held(&self) -> usize {
        self.filled
    }

    /// Room for what comes next; [`Records::received`] says how much came. Where nothing is held
    /// it is in `spare`'s buffer.
    pub fn room(&mut self, spare: impl FnOnce() -> Vec<u8>) -> &mut [u8] {
        if self.filled == 0 && self.buffer.is_empty() {
            self.buffer = spare();
        }
        let more = match self.look() {
            // Half of what is there at most: what is only announced costs nothing.
            Ok(Look::More(more)) => more.min(CHUNK.max(self.filled)),
            _ => CHUNK,
        };
        let end = self.filled + more;
        if self.buffer.len() < end {
            self.buffer.resize(end, 0);
        }
        &mut self.buffer[self.filled..end]
    }

    pub fn received(&mut self, len: usize) {
        self.filled += len;
    }

    fn look(&self) -> Result<Look, TooLong> {
        let (mut at, mut fragments, mut len) = (0, 0, 0);
        loop {
            let Some(mark) = self.buffer[..self.filled].get(at..at + MARK) else {
                return Ok(Look::More(CHUNK));
            };
            let mark = mark.try_into().map_or(0, u32::from_be_bytes);
            let fragment = (mark & !LAST) as usize;
            len += fragment;
            fragments += 1;
            if len > self.most || fragments > FRAGMENTS {
                return Err(TooLong);
            }
            at += MARK + fragment;
            if at > self.filled {
                return Ok(Look::More(at - self.filled));
            }
            if mark & LAST != 0 {
                return Ok(Look::Whole { bytes: at, fragments });
            }
        }
    }

    /// Whether [`Records::take`] would give one, or an error.
    pub fn has_one(&self) -> bool {
        !matches!(self.look(), Ok(Look::More(_)))
    }

    /// The next record that came whole, with its first mark before it.
    ///
    /// # Errors
    /// Nothing more can be made of what comes.
    pub fn take(&mut self) -> Result<Option<Record>, TooLong> {
        let Look::Whole { bytes, fragments } = self.look()? else { return Ok(None) };
        let rest = self.buffer[bytes..self.filled].to_vec();
        let mut buffer = std::mem::replace(&mut self.buffer, rest);
        self.filled -= bytes;
        if fragments > 1 {
            buffer = joined(&buffer[..bytes]);
        }
        let end = if fragments > 1 { buffer.len() } else { bytes };
        Ok(Some(Record { buffer, end }))
    }

    /// The buffer, where nothing is held.
    pub fn idle(&mut self) -> Option<Vec<u8>> {
        (self.filled == 0).then(|| std::mem::take(&mut self.buffer))
    }
}

/// Without the marks, all but the first.
fn joined(record: &[u8]) -> Vec<u8> {
    let mut joined = record[..MARK].to_vec();
    let mut left = record;
    while let Some((mark, rest)) = left.split_at_checked(MARK) {
        let len = (mark.try_into().map_or(0, u32::from_be_bytes) & !LAST) as usize;
        joined.extend_from_slice(&rest[..len]);
        left = &rest[len..];
    }
    joined
}

/// A message that came.
#[derive(Debug)]
pub struct Record {
    buffer: Vec<u8>,
    end: usize,
}

impl Record {
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[MARK..self.end]
    }

    /// Its buffer, for another one.
    pub fn into_inner(self) -> Vec<u8> {
        self.buffer
    }
}

/// A message to be sent, in this buffer: its mark goes before it.
pub(crate) fn begun(buffer: Vec<u8>) -> Writer {
    let mut out = Writer::over(buffer);
    out.number(0);
    out
}

/// Writes the mark of what was begun by [`begun`].
pub(crate) fn finish(message: &mut Writer) {
    let len = (message.len() - MARK) as u32;
    message.put(0, len | LAST);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fragment(bytes: &[u8], is_last: bool) -> Vec<u8> {
        let mark = bytes.len() as u32 | if is_last { LAST } else { 0 };
        [&mark.to_be_bytes()[..], bytes].concat()
    }

    /// Gives `bytes` in pieces, and collects what comes out.
    fn all(bytes: &[u8], piece: usize, most: usize) -> Result<Vec<Vec<u8>>, TooLong> {
        let (mut records, mut found, mut left) = (Records::new(most), Vec::new(), bytes);
        while !left.is_empty() {
            let room = records.room(|| vec![0xff; 100]);
            let len = room.len().min(piece).min(left.len());
            room[..len].copy_from_slice(&left[..len]);
            records.received(len);
            left = &left[len..];
            while let Some(record) = records.take()? {
                found.push(record.bytes().to_vec());
            }
        }
        Ok(found)
    }

    #[test]
    fn records_come_whole_in_whatever_pieces() {
        let long = vec![7; 100_000];
        let sent = [
            fragment(b"one", true),
            fragment(b"", true),
            fragment(b"tw", false),
            fragment(b"", false),
            fragment(b"o", true),
            fragment(&long, true),
            fragment(b"three", true),
        ]
        .concat();
        let expected = [&b"one"[..], b"", b"two", &long, b"three"];
        for piece in [1, 3, 4, 7, 4096, 1 << 20] {
            assert_eq!(all(&sent, piece, 100_000).unwrap(), expected, "{piece}");
        }
    }

    #[test]
    fn a_length_alone_costs_nothing_and_too_much_is_refused() {
        let mut records = Records::new(1 << 20);
        let head = (1u32 << 20 | LAST).to_be_bytes();
        records.room(Vec::new)[..4].copy_from_slice(&head);
        records.received(4);
        assert!(records.take().unwrap().is_none() && records.room(Vec::new).len() <= CHUNK);
        assert!(records.idle().is_none());
        assert_eq!(all(&u32::MAX.to_be_bytes(), 4, 1 << 20), Err(TooLong));
        let endless: Vec<u8> = fragment(b"", false).repeat(FRAGMENTS + 1);
        assert_eq!(all(&endless, 4096, 1 << 20), Err(TooLong));
    }

    #[test]
    fn what_is_sent_is_received() {
        let mut message = begun(vec![0xff; 100]);
        message.fixed(b"answer88");
        finish(&mut message);
        assert_eq!(all(message.bytes(), 5, 10).unwrap(), [b"answer88"]);
    }
}
