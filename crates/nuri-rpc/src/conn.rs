//! One client connection: sends a call, then takes its reply.

use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use nuri_proto::Status;
use nuri_proto::codec;
use nuri_proto::header::{COPIED_REPLY, COPIED_REQUEST, Header, Kind};
use nuri_proto::op::Call;

use crate::frame::{self, Carry, FrameReader};
use crate::handshake::{self, HandshakeError, TIMEOUT};
use crate::near::{self, Near};
use crate::secret::Secret;
use crate::stream::Stream;
use crate::traffic::Traffic;

/// Set to `tcp` where servers of this machine shall be reached as others are, to compare.
const SETTING: &str = "NURI_SAME_NODE";
const CONNECT_TIMEOUT: Duration = Duration::from_millis(1500);
/// Less than any connection takes is no time to wait.
const LEAST: Duration = Duration::from_millis(50);

/// On whose behalf a call is made. A sequence above 0 makes a repeated call return the first
/// outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallContext {
    pub session: u64,
    pub slot: u32,
    pub sequence: u64,
    pub epoch: u64,
}

/// An authenticated connection. After an error it must be dropped.
pub struct Conn {
    stream: Stream,
    reader: FrameReader,
    next_request: u64,
    read_timeout: Duration,
    near: Near,
    traffic: Arc<Traffic>,
}

/// A call that was sent and whose reply is still to be taken.
#[must_use = "the reply must be received before the connection is used again"]
pub struct Pending {
    request: u64,
    payload: usize,
    /// Bytes of the payload that were copied to send it.
    copied: u64,
}

impl Conn {
    /// Connects and proves the secret, both ways.
    ///
    /// # Errors
    /// Network trouble, another protocol version, or a secret that does not fit.
    pub fn connect(address: &str, secret: &Secret) -> Result<Conn, HandshakeError> {
        Conn::connect_counted(address, secret, Arc::default(), TIMEOUT)
    }

    pub(crate) fn connect_counted(
        address: &str,
        secret: &Secret,
        traffic: Arc<Traffic>,
        timeout: Duration,
    ) -> Result<Conn, HandshakeError> {
        let wait = CONNECT_TIMEOUT.min(timeout).max(LEAST);
        let mut last = std::io::Error::from(std::io::ErrorKind::AddrNotAvailable);
        for addr in address.to_socket_addrs()? {
            match TcpStream::connect_timeout(&addr, wait) {
                Ok(stream) => return Conn::over(stream, secret, traffic, timeout),
                Err(error) => last = error,
            }
        }
        Err(last.into())
    }

    /// Over the stream, or a Unix socket to the same server.
    fn over(
        tcp: TcpStream,
        secret: &Secret,
        traffic: Arc<Traffic>,
        timeout: Duration,
    ) -> Result<Conn, HandshakeError> {
        let is_wanted = std::env::var_os(SETTING).is_none_or(|value| value != "tcp");
        let here = if is_wanted { Stream::connect_here(&tcp) } else { None };
        let mut stream = here.unwrap_or(Stream::Tcp(tcp));
        handshake::connect(&mut stream, secret, timeout.max(LEAST))?;
        let reader = FrameReader::new();
        let (read_timeout, near) = (Duration::ZERO, Near::default());
        let mut conn = Conn { stream, reader, next_request: 1, read_timeout, near, traffic };
        conn.near = near::agree(&mut conn)?;
        conn.traffic.connected(conn.near.path(&conn.stream));
        Ok(conn)
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Sends a call; `timeout` bounds the wait for its reply. The payload's memory may be used
    /// again at once.
    ///
    /// # Errors
    /// [`Status::UNREACHABLE`] where the connection broke.
    pub fn send<C: Call>(
        &mut self,
        context: CallContext,
        call: &C,
        payload: &[u8],
        timeout: Duration,
    ) -> Result<Pending, Status> {
        self.send_by(Carry::Stream, context, call, payload, timeout)
    }

    /// As [`Conn::send`]. The payload must stay as it is until the reply is received or the
    /// connection dropped: a server on this machine may take it from here, and refuses one that
    /// changed (MEMORY-2).
    pub(crate) fn lend<C: Call>(
        &mut self,
        context: CallContext,
        call: &C,
        payload: &[u8],
        timeout: Duration,
    ) -> Result<Pending, Status> {
        self.send_by(self.near.carry(payload), context, call, payload, timeout)
    }

    fn send_by<C: Call>(
        &mut self,
        carry: Carry,
        context: CallContext,
        call: &C,
        payload: &[u8],
        timeout: Duration,
    ) -> Result<Pending, Status> {
        let args = codec::encode(call)?;
        let timeout = rounded(timeout);
        if timeout != self.read_timeout {
            let set = |s: &Stream| {
                s.set_read_timeout(Some(timeout))?;
                s.set_write_timeout(Some(timeout))
            };
            set(&self.stream).map_err(|_| Status::UNREACHABLE)?;
            self.read_timeout = timeout;
        }
        let request = self.next_request;
        self.next_request += 1;
        let header = Header {
            kind: Kind::Request,
            flags: self.near.flags(),
            op: C::OP as u16,
            request,
            session: context.session,
            slot: context.slot,
            sequence: context.sequence,
            epoch: context.epoch,
            status: 0,
            args_len: 0,
            payload_len: 0,
            payload_crc: 0,
        };
        let sent = frame::send(&mut self.stream, header, &args, payload, carry);
        let copied = sent.map_err(|_| Status::UNREACHABLE)?;
        Ok(Pending { request, payload: payload.len(), copied })
    }

    /// Takes the reply; its payload goes to the front of `into`, its length is returned. The
    /// outer error means that the connection must be dropped.
    ///
    /// # Errors
    /// [`Status::UNREACHABLE`] or [`Status::MALFORMED`].
    #[allow(clippy::type_complexity)]
    pub fn receive<C: Call>(
        &mut self,
        pending: Pending,
        into: &mut [u8],
    ) -> Result<Result<(C::Reply, usize), Status>, Status> {
        let (header, args) =
            self.reader.head(&mut self.stream).map_err(|e| frame::to_status(&e))?;
        let len = header.payload_len as usize;
        let expected = header.kind == Kind::Reply
            && header.request == pending.request
            && header.op == C::OP as u16
            && len <= into.len();
        if !expected {
            return Err(Status::MALFORMED);
        }
        let taken = self
            .reader
            .payload(&mut self.stream, &header, &mut into[..len], self.near.memory())
            .map_err(|e| frame::to_status(&e))?;
        let theirs = |flag, bytes| if header.flags & flag == 0 { 0 } else { bytes as u64 };
        let sent = pending.copied + theirs(COPIED_REQUEST, pending.payload);
        self.traffic.count(pending.payload, sent);
        self.traffic.count(len, taken + theirs(COPIED_REPLY, len));
        if header.status != 0 {
            return Ok(Err(Status(header.status)));
        }
        Ok(codec::decode::<C::Reply>(&args).map(|reply| (reply, len)))
    }
}

/// A timeout that is at most a sixteenth longer. Callers deduct what connecting took, so nearly
/// every call has a timeout of its own, and each other value costs two system calls.
fn rounded(timeout: Duration) -> Duration {
    let millis = timeout.as_micros().div_ceil(1000).clamp(1, u128::from(u32::MAX)) as u64;
    let step = 1 << (millis / 16).checked_ilog2().unwrap_or(0);
    Duration::from_millis(millis.next_multiple_of(step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_rounded_up_by_a_sixteenth_at_most() {
        let micros = Duration::from_micros;
        assert_eq!(rounded(Duration::ZERO), Duration::from_millis(1));
        assert_eq!(rounded(micros(1)), rounded(micros(1000)));
        assert_eq!(rounded(micros(1_999_996)), rounded(micros(1_999_903)));
        assert!(rounded(Duration::MAX) > Duration::from_secs(3600));
        for exact in (1..200_000).step_by(7).map(Duration::from_millis) {
            let rounded = rounded(exact);
            assert!(exact <= rounded && rounded <= exact + exact / 16, "{exact:?}: {rounded:?}");
        }
    }
}
