//! Connects to another server and agrees with it on an export, as its client.

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::input::{End, Input, LOOK};
use crate::protocol::{ALLOCATION, GREETING, OPTION, OPTION_REPLY, handshake_flag, option};
use crate::protocol::{info, option_reply};
use crate::socket::{STUCK, Socket};

/// How long a connection may take, and each answer in the handshake.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest answer to an option.
const MAX_ANSWER: u32 = 64 << 10;

/// Why there is no link.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Ended(String),
    /// In the server's words.
    #[error("it says: {0}")]
    Refused(String),
    #[error("it does not answer as a server of this project")]
    Strange,
}

impl From<End> for DialError {
    fn from(end: End) -> DialError {
        DialError::Ended(end.to_string())
    }
}

/// What a client understands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Speaks {
    /// Structured replies and `base:allocation`.
    AsForwarder,
    /// What Linux's client does: no more than the oldest protocol.
    AsKernels,
}

/// A connection on which requests may be sent.
pub struct Dialed {
    pub(crate) socket: Arc<Socket>,
    pub(crate) input: Input,
    pub(crate) size: u64,
    /// What can be done with the export.
    pub(crate) flags: u16,
}

/// Takes the export of the name.
///
/// # Errors
/// Why it cannot be had.
pub fn dial(address: &str, export: &str, speaks: Speaks) -> Result<Dialed, DialError> {
    let strange = || io::Error::from(io::ErrorKind::InvalidInput);
    let place = address.to_socket_addrs()?.next().ok_or_else(strange)?;
    let socket = Arc::new(Socket::from(TcpStream::connect_timeout(&place, PATIENCE)?));
    socket.tune()?;
    socket.set_timeouts(LOOK, STUCK)?;
    let input = Input::new(socket.clone(), (Vec::new(), Instant::now()), PATIENCE);
    let mut caller = Caller { socket, input };
    let (size, flags) = caller.agree(export, speaks)?;
    Ok(Dialed { socket: caller.socket, input: caller.input, size, flags })
}

struct Caller {
    socket: Arc<Socket>,
    input: Input,
}

impl Caller {
    /// Size and flags.
    fn agree(&mut self, export: &str, speaks: Speaks) -> Result<(u64, u16), DialError> {
        let greeting = self.bytes(18)?;
        if greeting[..8] != GREETING.to_be_bytes() || greeting[8..16] != OPTION.to_be_bytes() {
            return Err(DialError::Strange);
        }
        let flags = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
        self.socket.send(&u32::from(flags).to_be_bytes(), &[])?;
        let name = with_length(export);
        if speaks == Speaks::AsForwarder {
            self.ask(option::STRUCTURED_REPLY, &[])?;
            let contexts = [&name[..], &1u32.to_be_bytes(), &with_length(ALLOCATION)].concat();
            self.ask(option::SET_META_CONTEXT, &contexts)?;
        }
        let told = self.ask(option::GO, &[&name[..], &0u16.to_be_bytes()].concat())?;
        let is_export = |data: &&Vec<u8>| data.starts_with(&info::EXPORT.to_be_bytes());
        let about = told.iter().find(is_export).ok_or(DialError::Strange)?;
        let (size, flags) = about.get(2..12).ok_or(DialError::Strange)?.split_at(8);
        let number = |bytes: &[u8]| bytes.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
        Ok((number(size), number(flags) as u16))
    }

    fn bytes(&mut self, count: usize) -> Result<Vec<u8>, DialError> {
        let mut bytes = vec![0; count];
        self.input.exactly(&mut bytes)?;
        Ok(bytes)
    }

    /// Asks for an option; what was told before it was granted.
    fn ask(&mut self, number: u32, data: &[u8]) -> Result<Vec<Vec<u8>>, DialError> {
        let (magic, len) = (OPTION.to_be_bytes(), (data.len() as u32).to_be_bytes());
        let head = [&magic[..], &number.to_be_bytes(), &len].concat();
        self.socket.send(&head, data)?;
        let mut told = Vec::new();
        loop {
            let head = self.bytes(20)?;
            let word = |at: usize| head[at..at + 4].iter().fold(0, |w, b| w << 8 | u32::from(*b));
            let is_answer = head[..8] == OPTION_REPLY.to_be_bytes() && word(8) == number;
            if !is_answer || word(16) > MAX_ANSWER || told.len() > 8 {
                return Err(DialError::Strange);
            }
            let data = self.bytes(word(16) as usize)?;
            match word(12) {
                option_reply::ACK => return Ok(told),
                kind if option_reply::is_error(kind) => {
                    return Err(DialError::Refused(String::from_utf8_lossy(&data).into_owned()));
                }
                _ => told.push(data),
            }
        }
    }
}

fn with_length(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat()
}
