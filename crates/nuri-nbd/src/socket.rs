//! A client's connection, by TCP or a Unix socket.

use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;

/// A peer that sends nothing is asked whether it lives after so long, and so often.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
const PROBE: Duration = Duration::from_secs(10);
const PROBES: u32 = 3;

/// How long half a request is waited for, and a client that does not take its answer.
pub(crate) const STUCK: Duration = Duration::from_secs(30);

pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Tcp(stream) => stream.as_fd(),
            Socket::Unix(stream) => stream.as_fd(),
        }
    }
}

impl Socket {
    /// Small answers leave at once; a peer that is gone is noticed.
    pub(crate) fn tune(&self) -> io::Result<()> {
        if let Socket::Tcp(stream) = self {
            stream.set_nodelay(true)?;
            sockopt::set_socket_keepalive(stream, true)?;
            sockopt::set_tcp_keepidle(stream, KEEP_ALIVE)?;
            sockopt::set_tcp_keepintvl(stream, PROBE)?;
            sockopt::set_tcp_keepcnt(stream, PROBES)?;
        }
        Ok(())
    }

    /// How long a read and a write may wait.
    pub(crate) fn set_timeouts(&self, read: Duration, write: Duration) -> io::Result<()> {
        sockopt::set_socket_timeout(self, sockopt::Timeout::Recv, Some(read))?;
        Ok(sockopt::set_socket_timeout(self, sockopt::Timeout::Send, Some(write))?)
    }

    /// Whether the peer sends nothing more, or is gone.
    pub(crate) fn is_left(&self) -> bool {
        let mut look = [PollFd::new(self, PollFlags::RDHUP)];
        let found = poll(&mut look, Some(&Timespec::default()));
        let left = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        found.is_ok() && look[0].revents().intersects(left)
    }

    /// Who waits for it is woken.
    pub(crate) fn shut(&self) {
        // It may be shut already.
        let _ = match self {
            Socket::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Socket::Unix(stream) => stream.shutdown(Shutdown::Both),
        };
    }

    pub(crate) fn receive(&self, out: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => (&mut &*stream).read(out),
            Socket::Unix(stream) => (&mut &*stream).read(out),
        }
    }

    fn send_some(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => (&mut &*stream).write_vectored(parts),
            Socket::Unix(stream) => (&mut &*stream).write_vectored(parts),
        }
    }

    /// Sends both parts, one behind the other.
    pub(crate) fn send(&self, head: &[u8], data: &[u8]) -> io::Result<()> {
        let (mut head, mut data) = (head, data);
        while !head.is_empty() || !data.is_empty() {
            let sent = match self.send_some(&[IoSlice::new(head), IoSlice::new(data)]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => sent,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            let of_head = sent.min(head.len());
            head = &head[of_head..];
            data = &data[sent - of_head..];
        }
        Ok(())
    }
}

/// Whether a read or a write took longer than the socket's timeout.
pub(crate) fn has_timed_out(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}
