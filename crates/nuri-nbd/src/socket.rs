//! A client's connection, by TCP or a Unix socket.

use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;

/// A peer that sends nothing is asked so often whether it lives, and given up after so many times.
const PROBE: Duration = Duration::from_secs(1);
const PROBES: u32 = 40;

/// How long half a request is waited for, and a client that does not take its answer.
pub(crate) const STUCK: Duration = Duration::from_secs(30);

/// A client's connection.
pub struct Socket {
    stream: Stream,
    /// Once TLS was agreed on.
    cipher: OnceLock<Box<dyn Cipher>>,
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Encrypts what goes over a connection, and decrypts what comes. Read and written at the same time
/// by one thread each.
pub trait Cipher: Send + Sync {
    /// Bytes that came; 0 at the end.
    fn receive(&self, socket: &Socket, out: &mut [u8]) -> io::Result<usize>;

    /// Sends both parts, one behind the other.
    fn send(&self, socket: &Socket, head: &[u8], data: &[u8]) -> io::Result<()>;

    /// Whether bytes that came are kept here.
    fn has_more(&self) -> bool;
}

impl From<TcpStream> for Socket {
    fn from(stream: TcpStream) -> Socket {
        Socket { stream: Stream::Tcp(stream), cipher: OnceLock::new() }
    }
}

impl From<UnixStream> for Socket {
    fn from(stream: UnixStream) -> Socket {
        Socket { stream: Stream::Unix(stream), cipher: OnceLock::new() }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.stream {
            Stream::Tcp(stream) => stream.as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
        }
    }
}

impl Socket {
    /// Small answers leave at once; a peer that is gone is noticed.
    pub(crate) fn tune(&self) -> io::Result<()> {
        if let Stream::Tcp(stream) = &self.stream {
            stream.set_nodelay(true)?;
            sockopt::set_socket_keepalive(stream, true)?;
            sockopt::set_tcp_keepidle(stream, PROBE)?;
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

    /// The kernel uses it from here on, for as long as what is sent is taken in that time.
    pub(crate) fn hand_over(&self, untaken: Duration) -> io::Result<()> {
        sockopt::set_socket_timeout(self, sockopt::Timeout::Recv, None)?;
        sockopt::set_socket_timeout(self, sockopt::Timeout::Send, None)?;
        if let Stream::Tcp(stream) = &self.stream {
            sockopt::set_tcp_user_timeout(stream, untaken.as_millis() as u32)?;
        }
        Ok(())
    }

    /// What the peer's machine does not take in that time is not sent again, and nothing is once
    /// this process is gone.
    pub(crate) fn forget_untaken(&self, patience: Duration) -> io::Result<()> {
        if let Stream::Tcp(stream) = &self.stream {
            sockopt::set_tcp_user_timeout(stream, patience.as_millis() as u32)?;
            sockopt::set_socket_linger(stream, Some(Duration::ZERO))?;
        }
        Ok(())
    }

    /// Ends a connection of which nothing may arrive any more: what the peer's machine did not take
    /// is not sent again.
    pub(crate) fn leave(&self) {
        if let Stream::Tcp(stream) = &self.stream {
            // The kernel looks before it sends something again.
            let _ = sockopt::set_tcp_user_timeout(stream, 1);
        }
        self.shut();
    }

    /// From here on all is encrypted.
    pub(crate) fn encrypt(&self, cipher: Box<dyn Cipher>) {
        // A client asks for it once.
        let _ = self.cipher.set(cipher);
    }

    /// Whether the peer sends nothing more, or is gone.
    pub(crate) fn is_left(&self) -> bool {
        let mut look = [PollFd::new(self, PollFlags::RDHUP)];
        let found = poll(&mut look, Some(&Timespec::default()));
        let left = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        found.is_ok() && look[0].revents().intersects(left)
    }

    /// Bytes that came and were not received; `None` where that is not known. Encrypted ones are
    /// somewhat more.
    pub(crate) fn waiting(&self) -> Option<u64> {
        let is_known = self.cipher.get().is_none_or(|cipher| !cipher.has_more());
        if is_known { rustix::io::ioctl_fionread(self).ok() } else { None }
    }

    /// When the peer's machine was heard last.
    pub(crate) fn heard(&self, now: Instant) -> Instant {
        let ago = nuri_io::tcp::last_heard(self).unwrap_or_default();
        now.checked_sub(ago).unwrap_or(now)
    }

    /// Who waits for it is woken.
    pub(crate) fn shut(&self) {
        // It may be shut already.
        let _ = match &self.stream {
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Stream::Unix(stream) => stream.shutdown(Shutdown::Both),
        };
    }

    pub(crate) fn receive(&self, out: &mut [u8]) -> io::Result<usize> {
        match self.cipher.get() {
            Some(cipher) => cipher.receive(self, out),
            None => self.receive_raw(out),
        }
    }

    /// Sends both parts, one behind the other.
    pub(crate) fn send(&self, head: &[u8], data: &[u8]) -> io::Result<()> {
        match self.cipher.get() {
            Some(cipher) => cipher.send(self, head, data),
            None => self.send_raw(head, data),
        }
    }

    /// As they came over the wire.
    pub(crate) fn receive_raw(&self, out: &mut [u8]) -> io::Result<usize> {
        match &self.stream {
            Stream::Tcp(stream) => (&mut &*stream).read(out),
            Stream::Unix(stream) => (&mut &*stream).read(out),
        }
    }

    fn send_some(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match &self.stream {
            Stream::Tcp(stream) => (&mut &*stream).write_vectored(parts),
            Stream::Unix(stream) => (&mut &*stream).write_vectored(parts),
        }
    }

    /// As they go over the wire.
    pub(crate) fn send_raw(&self, head: &[u8], data: &[u8]) -> io::Result<()> {
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
