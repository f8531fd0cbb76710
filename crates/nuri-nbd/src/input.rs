//! Reads a client's bytes in large pieces, so that a batch of small requests costs one system call.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::age::Age;
use crate::protocol::request::{HEADER, OutOfStep, Request};
use crate::socket::{Socket, has_timed_out};

const BUFFER: usize = 64 << 10;
/// How long one read of the socket waits: so often it is seen that nothing comes.
pub(crate) const LOOK: Duration = Duration::from_secs(1);

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
    /// What was received and not taken yet lies between.
    start: usize,
    end: usize,
    age: Age,
    /// How long the rest of something that began is waited for.
    patience: Duration,
}

impl Input {
    /// Of a socket whose reads wait for [`LOOK`]. `rest` came with the handshake.
    /// Nothing came before `start`.
    pub(crate) fn new(
        socket: Arc<Socket>,
        (rest, start): (Vec<u8>, Instant),
        patience: Duration,
    ) -> Input {
        let (end, mut buffer) = (rest.len(), rest);
        buffer.resize(end.max(BUFFER), 0);
        Input { socket, buffer, start: 0, end, age: Age::new(start), patience }
    }

    /// The next request, however long it takes until it begins.
    pub(crate) fn request(&mut self) -> Result<Request, End> {
        let mut header = [0; HEADER];
        while !self.has_begun()? {}
        self.exactly(&mut header)?;
        Ok(Request::parse(&header)?)
    }

    /// Waits for [`LOOK`] at most until something comes.
    pub(crate) fn has_begun(&mut self) -> Result<bool, End> {
        if self.start < self.end {
            return Ok(true);
        }
        match self.fill() {
            Ok(()) => Ok(true),
            Err(End::Stuck) => Ok(false),
            Err(end) => Err(end),
        }
    }

    /// What was read last did not come before this.
    pub(crate) fn since(&self) -> Instant {
        self.age.since()
    }

    /// Bytes that belong to a request.
    pub(crate) fn exactly(&mut self, out: &mut [u8]) -> Result<(), End> {
        let (mut done, start) = (0, Instant::now());
        while done < out.len() {
            let rest = &mut out[done..];
            if self.start < self.end {
                done += self.take(rest);
                continue;
            }
            let more = match rest.len() >= BUFFER {
                true => self.receive_into(rest),
                false => self.fill().map(|()| 0),
            };
            match more {
                Err(End::Stuck) if start.elapsed() < self.patience => {}
                more => done += more?,
            }
        }
        Ok(())
    }

    /// Bytes that are in the buffer.
    fn take(&mut self, out: &mut [u8]) -> usize {
        let count = out.len().min(self.end - self.start);
        out[..count].copy_from_slice(&self.buffer[self.start..self.start + count]);
        self.start += count;
        self.age.took(count);
        count
    }

    /// Waits for some bytes. All that there were are taken.
    fn fill(&mut self) -> Result<(), End> {
        self.look();
        (self.start, self.end) = (0, 0);
        self.end = receive(&self.socket, &mut self.buffer)?;
        Ok(())
    }

    /// As [`Input::fill`], past the buffer.
    fn receive_into(&mut self, out: &mut [u8]) -> Result<usize, End> {
        self.look();
        let count = receive(&self.socket, out)?;
        self.age.took(count);
        Ok(count)
    }

    /// To be called where all that was taken from the socket was used.
    fn look(&mut self) {
        let now = Instant::now();
        if self.age.is_stale(now)
            && let Some(waiting) = self.socket.waiting()
        {
            self.age.look(waiting, now, self.socket.heard(now));
        }
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
