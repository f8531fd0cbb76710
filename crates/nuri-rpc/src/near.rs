//! Bulk data between processes of one machine: the receiver copies it from the sender's memory.
//!
//! MEMORY-1 A process reads a peer's memory only after the peer showed there what it had just been
//!    given. The peer is the process that the kernel names at the other end of a Unix socket. So a
//!    peer cannot have another process read, neither by its number nor by passing on what others
//!    say.
//! MEMORY-2 A payload stays as it is until its receiver has it: a request's until the reply, a
//!    reply's until the next request. A sender that gives up earlier drops the connection. What is
//!    then taken half changed fails the payload's checksum.
//! MEMORY-3 Where reading is not allowed, or the peers are not one machine for the network, bytes
//!    go through the connection as between machines.

use std::time::Duration;

use nuri_ipc::single_copy::{PROOF, PeerMemory, address_of};
use nuri_proto::Status;
use nuri_proto::header::{Header, TAKES};
use nuri_proto::op::Op;
use nuri_proto::op::cluster::Path;
use nuri_proto::op::near::{PeerMemoryAsk, PeerMemoryAsked, PeerMemoryProof, PeerMemoryProved};
use nuri_rules::broken;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::conn::{CallContext, Conn};
use crate::frame::Carry;
use crate::handshake::HandshakeError;
use crate::server::{Reply, reply_to};
use crate::stream::Stream;

/// Shorter payloads go through the connection: two short copies cost less than a call.
const REFER_FROM: usize = 32 << 10;
/// How long a reply's payload waits for the next request: longer than any call. Who asks several
/// servers takes the reply of one after it waited for all before.
const KEEP_REPLY: Duration = Duration::from_secs(60);
const TIMEOUT: Duration = Duration::from_secs(2);

/// What a client knows of its server's memory.
#[derive(Default)]
pub(crate) struct Near {
    memory: Option<PeerMemory>,
    /// The server reads ours.
    is_read: bool,
}

impl Near {
    pub(crate) fn memory(&self) -> Option<&PeerMemory> {
        self.memory.as_ref()
    }

    pub(crate) fn flags(&self) -> u8 {
        if self.memory.is_some() { TAKES } else { 0 }
    }

    pub(crate) fn path(&self, stream: &Stream) -> Path {
        match stream {
            Stream::Tcp(_) => Path::Tcp,
            Stream::Unix(_) if self.is_read && self.memory.is_some() => Path::SingleCopy,
            Stream::Unix(_) => Path::Unix,
        }
    }

    pub(crate) fn carry(&self, payload: &[u8]) -> Carry {
        carry(self.is_read, payload)
    }
}

fn carry(may_refer: bool, payload: &[u8]) -> Carry {
    if may_refer && payload.len() >= REFER_FROM { Carry::Address } else { Carry::Stream }
}

/// How the reply to a request goes.
pub(crate) fn carry_reply(request: &Header, payload: &[u8]) -> Carry {
    carry(request.flags & TAKES != 0, payload)
}

/// The client's side: asks over a Unix socket.
///
/// # Errors
/// The connection broke. That memory cannot be read is none.
pub(crate) fn agree(conn: &mut Conn) -> Result<Near, HandshakeError> {
    let Some(server) = conn.stream().process() else { return Ok(Near::default()) };
    let Ok(PeerMemoryAsked { proof: shown }) = call(conn, &PeerMemoryAsk {})? else {
        return Ok(Near::default());
    };
    let mut proof = [0; PROOF];
    getrandom::fill(&mut proof).map_err(|_| HandshakeError::Random)?;
    let ours = PeerMemoryProof { address: address_of(&shown), proof };
    let Ok(PeerMemoryProved { reads, address }) = call(conn, &ours)? else {
        return Ok(Near::default());
    };
    // It was read there until now.
    std::hint::black_box(&shown);
    let memory = PeerMemory::prove(server, address, &proof).ok();
    Ok(Near { memory, is_read: reads })
}

/// The outer error: the connection broke.
fn call<C: nuri_proto::op::Call>(
    conn: &mut Conn,
    call: &C,
) -> Result<Result<C::Reply, Status>, HandshakeError> {
    let broken = |_| HandshakeError::Io(std::io::ErrorKind::ConnectionReset.into());
    let pending = conn.send(CallContext::default(), call, &[], TIMEOUT).map_err(broken)?;
    let answer = conn.receive::<C>(pending, &mut []).map_err(broken)?;
    Ok(answer.map(|(reply, _)| reply))
}

/// What a server knows of the client of a connection.
pub(crate) struct Guest {
    /// Of this machine.
    process: Option<u32>,
    /// What it was given to show.
    given: Option<[u8; PROOF]>,
    /// What is shown to it.
    shown: Option<Box<[u8; PROOF]>>,
    memory: Option<PeerMemory>,
}

impl Guest {
    pub(crate) fn of(stream: &Stream) -> Guest {
        Guest { process: stream.process(), given: None, shown: None, memory: None }
    }

    pub(crate) fn memory(&self) -> Option<&PeerMemory> {
        self.memory.as_ref()
    }

    /// Answers what concerns the connection itself.
    pub(crate) fn answer(&mut self, header: &Header, args: &[u8]) -> Option<Reply> {
        match Op::from_wire(header.op)? {
            Op::PeerMemoryAsk => Some(reply_to::<PeerMemoryAsk>(args, |_| self.ask())),
            Op::PeerMemoryProof => {
                Some(reply_to::<PeerMemoryProof>(args, |call| Ok(self.prove(&call))))
            }
            _ => None,
        }
    }

    fn ask(&mut self) -> Result<PeerMemoryAsked, Status> {
        if self.process.is_none() {
            return Err(Status::NOTSUP);
        }
        let mut proof = [0; PROOF];
        getrandom::fill(&mut proof).map_err(|_| Status::IO)?;
        self.given = Some(proof);
        Ok(PeerMemoryAsked { proof })
    }

    fn prove(&mut self, call: &PeerMemoryProof) -> PeerMemoryProved {
        // Each proof is good for one try (MEMORY-1).
        let client = self.process;
        let prove = |given| PeerMemory::prove(client?, call.address, &given).ok();
        let given = match broken!("proof_used_twice") {
            true => self.given,
            false => self.given.take(),
        };
        self.memory = given.and_then(prove);
        let shown = self.shown.insert(Box::new(call.proof));
        let address = address_of(&shown[..]);
        PeerMemoryProved { reads: self.memory.is_some(), address }
    }
}

/// Whether the next request comes before a reply's payload is let go.
pub(crate) fn wait_next(stream: &Stream) -> bool {
    let timeout = Timespec { tv_sec: KEEP_REPLY.as_secs() as i64, tv_nsec: 0 };
    let mut ready = [PollFd::new(stream, PollFlags::IN)];
    !matches!(poll(&mut ready, Some(&timeout)), Ok(0))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    use super::*;

    /// Over TCP somebody may stand between: what is proved there may be another process's.
    #[test]
    fn memory_is_proved_over_unix_sockets_only() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let tcp = Stream::Tcp(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        let mut guest = Guest::of(&tcp);
        assert_eq!(guest.ask().err(), Some(Status::NOTSUP));
        let shown = [0; PROOF];
        let prove = PeerMemoryProof { address: address_of(&shown), proof: [0; PROOF] };
        assert!(!guest.prove(&prove).reads);
        let (unix, _peer) = UnixStream::pair().unwrap();
        let unix = Stream::Unix(unix);
        assert_eq!(unix.process(), Some(std::process::id()), "as the kernel says");
        assert!(Guest::of(&unix).ask().is_ok());
    }
}
