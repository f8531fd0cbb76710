//! A client's connection: the bytes that come, the bytes that go, and the bounds of both.
//!
//! No thread waits for a client. Bytes that came are kept until they are a whole message. Bytes
//! that the client does not take are kept until it takes them, and meanwhile nothing more is read
//! from it.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;

use super::buffers::Buffers;
use crate::rpc::record::{Record, Records};

/// A peer that sends nothing is asked whether it lives after so long, and so often.
const KEEP_ALIVE: Duration = Duration::from_secs(60);
const PROBE: Duration = Duration::from_secs(15);
const PROBES: u32 = 4;
/// How long half a message is waited for, and a client that does not take its answers.
const STUCK: Duration = Duration::from_secs(30);
/// Calls of one connection that are carried out at once.
const IN_FLIGHT: usize = 16;

/// Whether somebody is at the other end still.
pub trait Life: Send + Sync {
    fn is_over(&self) -> bool;
}

/// The socket of a connection.
struct Line(TcpStream);

impl Life for Line {
    fn is_over(&self) -> bool {
        let mut look = [PollFd::new(&self.0, PollFlags::RDHUP)];
        let found = poll(&mut look, Some(&Timespec::default()));
        let over = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        found.is_ok() && look[0].revents().intersects(over)
    }
}

/// Who is at the other end.
#[derive(Clone)]
pub struct Peer {
    pub address: IpAddr,
    pub port: u16,
    /// Which of this machine's addresses it connected to.
    pub local: IpAddr,
    /// As long as the connection lives somebody has it.
    pub life: Arc<dyn Life>,
}

/// What a connection wants to hear of next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Interest {
    Nothing,
    /// Bytes that come.
    Input,
    /// Room for bytes that go.
    Output,
    /// To be looked at at once: a message is there already.
    Look,
}

/// What was found by looking.
pub(super) enum Found {
    Message(Record),
    Nothing,
    /// It ended, or sends what is no message.
    End,
}

/// What became of an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sent {
    Whole,
    /// The client does not take the rest yet.
    Part,
    Failed,
}

/// See the module's text.
pub(super) struct Connection {
    socket: Arc<Line>,
    pub(super) peer: Peer,
    input: Mutex<Input>,
    output: Mutex<Output>,
    /// Held from looking at what to wait for until the kernel knows it.
    pub(super) arming: Mutex<()>,
    /// Nobody waits for anything of it: who has carried a call out looks again.
    pub(super) is_paused: AtomicBool,
}

struct Input {
    records: Records,
    in_flight: usize,
    /// Since a message is half here.
    half: Option<Instant>,
    is_ended: bool,
}

#[derive(Default)]
struct Output {
    /// Not taken yet, behind what was.
    left: Vec<u8>,
    taken: usize,
    since: Option<Instant>,
}

impl Connection {
    pub(super) fn new(socket: TcpStream, most: usize) -> io::Result<Connection> {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        sockopt::set_socket_keepalive(&socket, true)?;
        sockopt::set_tcp_keepidle(&socket, KEEP_ALIVE)?;
        sockopt::set_tcp_keepintvl(&socket, PROBE)?;
        sockopt::set_tcp_keepcnt(&socket, PROBES)?;
        let peer = socket.peer_addr()?;
        let (address, port) = (peer.ip().to_canonical(), peer.port());
        let records = Records::new(most);
        let input = Input { records, in_flight: 0, half: None, is_ended: false };
        let local = socket.local_addr()?.ip().to_canonical();
        let socket = Arc::new(Line(socket));
        let peer = Peer { address, port, local, life: socket.clone() };
        let (input, (output, arming, is_paused)) = (Mutex::new(input), Default::default());
        Ok(Connection { socket, peer, input, output, arming, is_paused })
    }

    pub(super) fn socket(&self) -> &TcpStream {
        &self.socket.0
    }

    /// Takes what came, until a message is whole. It counts as in flight then.
    pub(super) fn look(&self, buffers: &Buffers) -> Found {
        let mut input = self.input.lock();
        if input.in_flight >= IN_FLIGHT || input.is_ended {
            return Found::Nothing;
        }
        loop {
            match input.records.take() {
                Ok(Some(record)) => {
                    input.in_flight += 1;
                    input.half = None;
                    return Found::Message(record);
                }
                Ok(None) => {}
                Err(_) => return Found::End,
            }
            match (&self.socket.0).read(input.records.room(|| buffers.take())) {
                Ok(0) => {
                    input.is_ended = true;
                    return Found::End;
                }
                Ok(len) => input.records.received(len),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let is_half = input.records.held() > 0;
                    input.half = is_half.then(|| input.half.unwrap_or_else(Instant::now));
                    if let Some(buffer) = input.records.idle() {
                        buffers.give(buffer);
                    }
                    return Found::Nothing;
                }
                Err(_) => return Found::End,
            }
        }
    }

    /// What to wait for.
    pub(super) fn interest(&self) -> Interest {
        if !self.output.lock().left.is_empty() {
            return Interest::Output;
        }
        let input = self.input.lock();
        match input.in_flight >= IN_FLIGHT || input.is_ended {
            true => Interest::Nothing,
            false if input.records.has_one() => Interest::Look,
            false => Interest::Input,
        }
    }

    /// A call was carried out.
    pub(super) fn done(&self) {
        self.input.lock().in_flight -= 1;
    }

    /// Bytes that are held because the client did not send the rest, or does not take them.
    pub(super) fn held(&self) -> usize {
        let half = self.input.lock().records.held();
        half + self.output.lock().left.len()
    }

    /// Sends an answer, as much of it as the client takes.
    pub(super) fn send(&self, message: &[u8]) -> io::Result<Sent> {
        let mut output = self.output.lock();
        if output.left.is_empty() {
            let sent = self.send_some(message)?;
            if sent < message.len() {
                output.left = message[sent..].to_vec();
                output.since = Some(Instant::now());
            }
        } else {
            output.left.extend_from_slice(message);
        }
        Ok(if output.left.is_empty() { Sent::Whole } else { Sent::Part })
    }

    /// Sends what is left, as much as the client takes.
    pub(super) fn send_rest(&self) -> io::Result<Sent> {
        let mut output = self.output.lock();
        let sent = self.send_some(&output.left[output.taken..])?;
        output.taken += sent;
        if output.taken == output.left.len() {
            *output = Output::default();
            return Ok(Sent::Whole);
        }
        if sent > 0 {
            output.since = Some(Instant::now());
        }
        Ok(Sent::Part)
    }

    fn send_some(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut sent = 0;
        while sent < bytes.len() {
            match (&self.socket.0).write(&bytes[sent..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(len) => sent += len,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(sent)
    }

    /// Whether the other end stands still in the middle of something.
    pub(super) fn is_stuck(&self) -> bool {
        let half = self.input.lock().half;
        let untaken = self.output.lock().since;
        [half, untaken].into_iter().flatten().any(|since| since.elapsed() > STUCK)
    }

    /// Ends it. Who waits for it is woken.
    pub(super) fn shut(&self) {
        self.input.lock().is_ended = true;
        // It may be shut already.
        let _ = self.socket.0.shutdown(Shutdown::Both);
    }
}
