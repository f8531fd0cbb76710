//! What a client sends, read in large pieces: a batch of small requests costs one system call.

use std::io;
use std::sync::Arc;

use crate::protocol::request::{HEADER, OutOfStep, Request};
use crate::socket::{Socket, has_timed_out};

const BUFFER: usize = 64 << 10;

/// Why nothing more is read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum End {
    #[error("it went away")]
    Gone,
    #[error("it sent half a request and no more")]
    Stuck,
    #[error("{0}")]
    OutOfStep(#[from] OutOfStep),
    #[error("{0}")]
    Io(io::Error),
}

/// The receiving side of a connection.
pub(crate) struct Input {
    socket: Arc<Socket>,
    buffer: Vec<u8>,
    start: usize,
}

impl Input {
    /// `rest` came with the handshake.
    pub(crate) fn new(socket: Arc<Socket>, rest: Vec<u8>) -> Input {
        Input { socket, buffer: rest, start: 0 }
    }

    /// The next request, however long it takes until it begins.
    pub(crate) fn request(&mut self) -> Result<Request, End> {
        let mut header = [0; HEADER];
        while self.start == self.buffer.len() {
            match self.fill() {
                Ok(()) => {}
                Err(End::Stuck) => continue,
                Err(end) => return Err(end),
            }
        }
        self.exactly(&mut header)?;
        Ok(Request::parse(&header)?)
    }

    /// Bytes that belong to a request.
    pub(crate) fn exactly(&mut self, out: &mut [u8]) -> Result<(), End> {
        let mut rest = out;
        while !rest.is_empty() {
            if self.start == self.buffer.len() && rest.len() >= BUFFER {
                let count = receive(&self.socket, rest)?;
                rest = &mut rest[count..];
                continue;
            }
            if self.start == self.buffer.len() {
                self.fill()?;
            }
            let count = rest.len().min(self.buffer.len() - self.start);
            let (first, later) = rest.split_at_mut(count);
            first.copy_from_slice(&self.buffer[self.start..self.start + count]);
            self.start += count;
            rest = later;
        }
        Ok(())
    }

    /// Waits for some bytes. All that there were are taken.
    fn fill(&mut self) -> Result<(), End> {
        self.buffer.resize(BUFFER, 0);
        self.start = 0;
        let received = receive(&self.socket, &mut self.buffer);
        self.buffer.truncate(*received.as_ref().unwrap_or(&0));
        received.map(|_| ())
    }
}

fn receive(socket: &Socket, out: &mut [u8]) -> Result<usize, End> {
    loop {
        match socket.receive(out) {
            Ok(0) => return Err(End::Gone),
            Ok(count) => return Ok(count),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if has_timed_out(&error) => return Err(End::Stuck),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Err(End::Gone),
            Err(error) => return Err(End::Io(error)),
        }
    }
}
