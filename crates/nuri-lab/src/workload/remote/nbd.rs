//! A block device at a server of NBD (doc/proto.md of the project NetworkBlockDevice/nbd).

use std::io::{Error, ErrorKind, Read, Result as IoResult, Write};
use std::net::{Shutdown, TcpStream};

use super::stream::{Answer, Ask, Hear, Heard, Request, Stream};
use super::{Opened, Share, connect, unanswered};
use crate::server::Server;

const GREETING: u64 = u64::from_be_bytes(*b"NBDMAGIC");
const OPTION: u64 = u64::from_be_bytes(*b"IHAVEOPT");
const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
const REQUEST: u32 = 0x2560_9513;
const REPLY: u32 = 0x6744_6698;
/// Fixed newstyle, and no zeroes after the old way to choose an export.
const SAID: u32 = 3;
const GO: u32 = 7;
const ACK: u32 = 1;
const INFO: u32 = 3;
const INFO_EXPORT: u16 = 0;
const ERRORS: u32 = 1 << 31;
const READ: u16 = 0;
const WRITE: u16 = 1;
const DISCONNECT: u16 = 2;
const FLUSH: u16 = 3;
const WRITE_ZEROES: u16 = 6;
/// Of one request, as every server takes it.
const MOST: usize = 1 << 20;
/// Zeros of one request.
const MOST_ZEROES: u64 = 64 << 20;
const LONGEST_ANSWER: u32 = 64 << 10;

/// A connection whose export is chosen.
struct Export {
    stream: TcpStream,
    size: u64,
}

/// Refuses a device that is too small, and one where anything is that would be lost.
pub(super) fn check(server: &Server, share: Share) -> IoResult<()> {
    let file = open(server, share)?;
    let mut piece = vec![0; MOST];
    let mut at = 0;
    while at < share.len && !share.overwrites {
        let len = (share.len - at).min(MOST as u64);
        file.read_exact_at(&mut piece[..len as usize], at)?;
        if piece[..len as usize].iter().any(|byte| *byte != 0) {
            let text = "it is not empty: with --overwrite all that it holds is lost";
            return Err(Error::new(ErrorKind::AlreadyExists, text));
        }
        at += len;
    }
    Ok(())
}

/// The rank's part of the device.
pub(super) fn open(server: &Server, share: Share) -> IoResult<Box<dyn Opened>> {
    let (export, range) = part(server, share)?;
    export.stream(range)
}

/// Leaves zeros, where the server may keep nothing.
pub(super) fn clear(server: &Server, share: Share) -> IoResult<()> {
    let (mut export, (base, end)) = part(server, share)?;
    let mut at = base;
    while at < end {
        let len = (end - at).min(MOST_ZEROES);
        let head = head(WRITE_ZEROES, 0, at, len as u32);
        export.stream.write_all(&head).map_err(unanswered)?;
        let (_, outcome) = export.stream.hear()?;
        outcome?;
        at += len;
    }
    Ok(())
}

/// The export, and which bytes of it are the rank's.
fn part(server: &Server, Share { rank, len, .. }: Share) -> IoResult<(Export, (u64, u64))> {
    let export = choose(connect(server)?, &server.export).map_err(unanswered)?;
    let base = len.saturating_mul(rank as u64);
    let end = base.saturating_add(len);
    if end > export.size {
        let size = export.size;
        let text = format!("it has {size} bytes, and rank {rank} needs those before {end}");
        return Err(Error::new(ErrorKind::StorageFull, text));
    }
    Ok((export, (base, end)))
}

impl Export {
    fn stream(self, range: (u64, u64)) -> IoResult<Box<dyn Opened>> {
        let hear = self.stream.try_clone()?;
        Ok(Box::new(Stream::new(self.stream, hear, range)))
    }
}

/// Shakes hands.
fn choose(mut stream: TcpStream, name: &str) -> IoResult<Export> {
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting)?;
    if greeting[..8] != GREETING.to_be_bytes() || greeting[8..16] != OPTION.to_be_bytes() {
        return Err(odd("what is there is no server of NBD as it is today"));
    }
    let len = name.len() as u32;
    let mut words = SAID.to_be_bytes().to_vec();
    words.extend(OPTION.to_be_bytes());
    for number in [GO, 4 + len + 2, len] {
        words.extend(number.to_be_bytes());
    }
    words.extend(name.as_bytes());
    words.extend(0u16.to_be_bytes());
    stream.write_all(&words)?;
    let mut size = 0;
    loop {
        let (kind, said) = option_answer(&mut stream)?;
        match kind {
            ACK => return Ok(Export { stream, size }),
            INFO if said.len() >= 10 && said[..2] == INFO_EXPORT.to_be_bytes() => {
                size = number(&said[2..10]);
            }
            kind if kind & ERRORS != 0 => {
                let why = String::from_utf8_lossy(&said).into_owned();
                let code = kind - ERRORS;
                return Err(odd(&format!("the server does not give it: {why} (error {code})")));
            }
            _ => {}
        }
    }
}

fn option_answer(stream: &mut TcpStream) -> IoResult<(u32, Vec<u8>)> {
    let mut head = [0; 20];
    stream.read_exact(&mut head)?;
    let len = number(&head[16..]) as u32;
    if head[..8] != OPTION_REPLY.to_be_bytes() || len > LONGEST_ANSWER {
        return Err(odd("the server's answer is not understood"));
    }
    let mut said = vec![0; len as usize];
    stream.read_exact(&mut said)?;
    Ok((number(&head[12..16]) as u32, said))
}

/// Big-endian.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn odd(text: &str) -> Error {
    Error::new(ErrorKind::InvalidData, text)
}

fn head(command: u16, cookie: u64, at: u64, len: u32) -> [u8; 28] {
    let mut head = [0; 28];
    head[..4].copy_from_slice(&REQUEST.to_be_bytes());
    head[6..8].copy_from_slice(&command.to_be_bytes());
    head[8..16].copy_from_slice(&cookie.to_be_bytes());
    head[16..24].copy_from_slice(&at.to_be_bytes());
    head[24..].copy_from_slice(&len.to_be_bytes());
    head
}

impl Ask for TcpStream {
    fn ask(&mut self, number: u32, request: &Request) -> IoResult<()> {
        // A server gives the cookie back: it says how many bytes follow the answer.
        let cookie = |len: u32| u64::from(len) << 32 | u64::from(number);
        match request {
            Request::Read { at, len } => self.write_all(&head(READ, cookie(*len), *at, *len)),
            Request::Write { at, data } => {
                self.write_all(&head(WRITE, cookie(0), *at, data.len() as u32))?;
                self.write_all(data)
            }
            Request::Sync => self.write_all(&head(FLUSH, cookie(0), 0, 0)),
        }
    }

    fn most(&self) -> usize {
        MOST
    }

    fn end(&mut self) {
        // Whether the server hears it matters to nobody.
        let _ = self.write_all(&head(DISCONNECT, 0, 0, 0));
        let _ = self.shutdown(Shutdown::Both);
    }
}

impl Hear for TcpStream {
    fn hear(&mut self) -> Heard {
        let mut reply = [0; 16];
        self.read_exact(&mut reply).map_err(unanswered)?;
        if reply[..4] != REPLY.to_be_bytes() {
            return Err(odd("the server's answer is not understood"));
        }
        let (number, len) = (number(&reply[12..]) as u32, number(&reply[8..12]) as usize);
        match self::number(&reply[4..8]) {
            0 if len > 0 => {
                let mut data = vec![0; len.min(MOST)];
                self.read_exact(&mut data).map_err(unanswered)?;
                Ok((number, Ok(Answer::Read(data))))
            }
            0 => Ok((number, Ok(Answer::Wrote(None)))),
            errno => Ok((number, Err(Error::from_raw_os_error(errno as i32)))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::server::Protocol;

    #[test]
    fn a_server_that_goes_away_in_the_handshake_is_said_to_have_done_so() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (host, port, export) = (address.ip().to_string(), address.port(), "v".into());
        let server = Server { protocol: Protocol::Nbd, host, port, export };
        let goes = std::thread::spawn(move || drop(listener.accept()));
        let share = Share { rank: 0, len: 1, overwrites: false };
        let error = part(&server, share).err().unwrap();
        assert_eq!(error.to_string(), "the server ended the connection");
        goes.join().unwrap();
    }
}
