//! Byte streams between two processes: TCP, and Unix sockets on one machine.
//!
//! A server listens at both. The name of its Unix socket is made of its TCP address. Such names
//! have no owner, so a client checks which user answers. It believes only its own user and root to
//! be the server.

use std::io::{self, IoSlice, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener, UnixStream};
use std::time::Duration;

use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use rustix::process::{Uid, geteuid};

use crate::handshake::TIMEOUT;
use crate::progress_timeout::{ProgressTimeout, unacknowledged};

pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Where a connection comes from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Source {
    Address(IpAddr),
    /// Somebody else on this machine.
    User(u32),
    /// This process's user, or root.
    Own,
}

impl Stream {
    /// Connects to a server on this machine by its Unix name; `None` where there is none.
    pub(crate) fn connect_here(tcp: &TcpStream) -> Option<Stream> {
        let (own, peer) = tcp.local_addr().ok().zip(tcp.peer_addr().ok())?;
        if own.ip() != peer.ip() {
            return None;
        }
        let any = match peer {
            SocketAddr::V4(_) => SocketAddr::from(([0; 4], peer.port())),
            SocketAddr::V6(_) => SocketAddr::from(([0; 16], peer.port())),
        };
        let stream = connect(peer).or_else(|_| connect(any)).ok()?;
        let who = socket_peercred(&stream).ok()?.uid;
        (who == geteuid() || who == Uid::ROOT).then_some(Stream::Unix(stream))
    }

    /// The server's address, as the client's system says it.
    ///
    /// # Errors
    /// It has ended already.
    pub(crate) fn dialled(&self) -> io::Result<String> {
        match self {
            Stream::Tcp(stream) => stream.peer_addr().map(place),
            Stream::Unix(stream) => stream.peer_addr().map(|name| place_here(&name)),
        }
    }

    /// The server's address, as the server's system says it.
    ///
    /// # Errors
    /// It has ended already.
    pub(crate) fn reached(&self) -> io::Result<String> {
        match self {
            Stream::Tcp(stream) => stream.local_addr().map(place),
            Stream::Unix(stream) => stream.local_addr().map(|name| place_here(&name)),
        }
    }

    /// Where it comes from; none where it has ended already.
    pub(crate) fn source(&self) -> Option<Source> {
        match self {
            Stream::Tcp(stream) => stream.peer_addr().ok().map(|peer| Source::Address(peer.ip())),
            Stream::Unix(stream) => {
                let who = socket_peercred(stream).ok()?.uid;
                let is_own = who == geteuid() || who == Uid::ROOT;
                Some(if is_own { Source::Own } else { Source::User(who.as_raw()) })
            }
        }
    }

    pub(crate) fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.set_nonblocking(nonblocking),
            Stream::Unix(stream) => stream.set_nonblocking(nonblocking),
        }
    }

    /// Reads what is there.
    pub(crate) fn read_now(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(buf),
            Stream::Unix(stream) => stream.read(buf),
        }
    }

    /// Writes a few bytes, if all of them can be written now.
    pub(crate) fn write_now(&mut self, bytes: &[u8]) -> bool {
        let wrote = match self {
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Unix(stream) => stream.write(bytes),
        };
        wrote.is_ok_and(|wrote| wrote == bytes.len())
    }

    /// A connection whose peer has proved itself: calls wait on it.
    pub(crate) fn becomes_known(self) -> io::Result<Stream> {
        self.set_nonblocking(false)?;
        self.set_nodelay()?;
        self.set_write_timeout(Some(TIMEOUT))?;
        Ok(self)
    }

    /// The process at the other end, as the kernel says; none where it may be on another machine.
    pub(crate) fn process(&self) -> Option<u32> {
        let Stream::Unix(stream) = self else { return None };
        let peer = socket_peercred(stream).ok()?;
        u32::try_from(peer.pid.as_raw_nonzero().get()).ok()
    }

    /// Gives up a read after so long; for TCP, of a peer that takes nothing either.
    pub(crate) fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.set_read_timeout(timeout.map(ProgressTimeout::slice)),
            Stream::Unix(stream) => stream.set_read_timeout(timeout),
        }
    }

    /// As [`Stream::set_read_timeout`], for writes.
    pub(crate) fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.set_write_timeout(timeout.map(ProgressTimeout::slice)),
            Stream::Unix(stream) => stream.set_write_timeout(timeout),
        }
    }

    /// Sends what is written at once.
    pub(crate) fn set_nodelay(&self) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.set_nodelay(true),
            Stream::Unix(_) => Ok(()),
        }
    }

    pub(crate) fn try_clone(&self) -> io::Result<Stream> {
        match self {
            Stream::Tcp(stream) => stream.try_clone().map(Stream::Tcp),
            Stream::Unix(stream) => stream.try_clone().map(Stream::Unix),
        }
    }

    pub(crate) fn shutdown(&self) {
        let _ = match self {
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Stream::Unix(stream) => stream.shutdown(Shutdown::Both),
        };
    }
}

/// Repeats what timed out while the peer takes what it was sent.
fn patiently(
    stream: &TcpStream,
    mut tried: impl FnMut(&TcpStream) -> io::Result<usize>,
) -> io::Result<usize> {
    let mut timeout = ProgressTimeout::default();
    loop {
        match tried(stream) {
            Err(e)
                if e.kind() == io::ErrorKind::WouldBlock
                    && timeout.lasts(unacknowledged(stream)) => {}
            outcome => return outcome,
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => patiently(stream, |mut stream| stream.read(buf)),
            Stream::Unix(stream) => stream.read(buf),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => patiently(stream, |mut stream| stream.write(buf)),
            Stream::Unix(stream) => stream.write(buf),
        }
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => patiently(stream, |mut stream| stream.write_vectored(parts)),
            Stream::Unix(stream) => stream.write_vectored(parts),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Tcp(stream) => stream.as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
        }
    }
}

/// Where connections come from.
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// The Unix name beside a TCP address.
    ///
    /// # Errors
    /// Somebody has the name.
    pub(crate) fn beside(address: SocketAddr) -> io::Result<Listener> {
        let name = UnixAddr::from_abstract_name(name(address))?;
        UnixListener::bind_addr(&name).map(Listener::Unix)
    }

    /// `accept` waits for nobody from now on.
    pub(crate) fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Listener::Tcp(listener) => listener.set_nonblocking(true),
            Listener::Unix(listener) => listener.set_nonblocking(true),
        }
    }

    pub(crate) fn accept(&self) -> io::Result<Stream> {
        match self {
            Listener::Tcp(listener) => listener.accept().map(|(stream, _)| Stream::Tcp(stream)),
            Listener::Unix(listener) => listener.accept().map(|(stream, _)| Stream::Unix(stream)),
        }
    }

    /// Makes a thread that waits for connections look up.
    pub(crate) fn wake(address: SocketAddr) {
        let _ = TcpStream::connect(address);
        let _ = connect(address);
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp(listener) => listener.as_fd(),
            Listener::Unix(listener) => listener.as_fd(),
        }
    }
}

/// A TCP address, the same for both kinds of sockets.
fn place(address: SocketAddr) -> String {
    format!("tcp {} {}", address.ip().to_canonical(), address.port())
}

fn place_here(name: &UnixAddr) -> String {
    format!("unix {}", String::from_utf8_lossy(name.as_abstract_name().unwrap_or_default()))
}

/// Without a file, and seen in this network namespace only, as the address is.
fn name(address: SocketAddr) -> String {
    format!("nuri/{address}")
}

/// Does not wait where the server takes no connections.
fn connect(address: SocketAddr) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(name(address).as_bytes())?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}
