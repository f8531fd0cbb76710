//! Unix sockets for the set-up of links: whole packets with descriptors, between processes of one
//! user.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use rustix::process::Pid;

use crate::error::{Error, Result, system};

/// Words of every packet.
pub(crate) const WORDS: usize = 8;
/// Most descriptors with one packet.
pub(crate) const FDS: usize = 4;

/// How long a peer's set-up thread may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Listens at a path that does not exist.
pub(crate) fn listen(path: &Path) -> Result<OwnedFd> {
    let socket = new(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    rustix::net::bind(&socket, &address(path)?).map_err(system("bind"))?;
    rustix::net::listen(&socket, 128).map_err(system("listen"))?;
    Ok(socket)
}

/// Connects to a path, if somebody of this user listens there.
pub(crate) fn connect(path: &Path) -> Result<Option<OwnedFd>> {
    let socket = new(SocketFlags::CLOEXEC)?;
    sockopt::set_socket_timeout(&socket, Timeout::Send, Some(PATIENCE))
        .map_err(system("socket"))?;
    sockopt::set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))
        .map_err(system("socket"))?;
    match rustix::net::connect(&socket, &address(path)?) {
        Ok(()) if peer(&socket).is_some() => Ok(Some(socket)),
        Ok(()) | Err(Errno::NOENT | Errno::CONNREFUSED | Errno::AGAIN) => Ok(None),
        Err(e) => Err(system("connect")(e)),
    }
}

/// The next connection of this user; others are turned away.
pub(crate) fn accept(listener: impl AsFd) -> Option<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::accept_with(listener, flags).ok()?;
    peer(&socket).is_some().then_some(socket)
}

/// The process at the other end, if it runs as the same user.
pub(crate) fn peer(socket: impl AsFd) -> Option<Pid> {
    let who = sockopt::socket_peercred(socket).ok()?;
    (who.uid == rustix::process::geteuid()).then_some(who.pid)
}

/// Sends one packet.
pub(crate) fn send(socket: impl AsFd, words: [u64; WORDS], fds: &[BorrowedFd<'_>]) -> Result<()> {
    let mut bytes = [0; WORDS * 8];
    for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Error::OutOfRange("too many descriptors"));
    }
    let sent =
        rustix::net::sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL);
    sent.map(|_| ()).map_err(system("sendmsg"))
}

/// Receives one packet; nothing when the peer is gone or sends what is none.
pub(crate) fn receive(socket: impl AsFd) -> Option<([u64; WORDS], Vec<OwnedFd>)> {
    let mut bytes = [0; WORDS * 8 + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let got = rustix::net::recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC);
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            fds.extend(passed);
        }
    }
    if got.ok()?.bytes != WORDS * 8 {
        return None;
    }
    let mut words = [0; WORDS];
    for (word, from) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = from.try_into().map(u64::from_le_bytes).ok()?;
    }
    Some((words, fds))
}

fn new(flags: SocketFlags) -> Result<OwnedFd> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    socket.map_err(system("socket"))
}

fn address(path: &Path) -> Result<SocketAddrUnix> {
    SocketAddrUnix::new(path).map_err(system("the session's path is too long for a socket"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_carry_words_and_descriptors() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("s");
        assert!(connect(&path).unwrap().is_none());
        let listener = listen(&path).unwrap();
        let ours = connect(&path).unwrap().unwrap();
        let theirs = accept(&listener).unwrap();
        send(&ours, [3; WORDS], &[listener.as_fd(), ours.as_fd()]).unwrap();
        let (words, fds) = receive(&theirs).unwrap();
        assert_eq!((words, fds.len()), ([3; WORDS], 2));
        drop((ours, fds));
        assert!(receive(&theirs).is_none());
        drop(listener);
        assert!(connect(&path).unwrap().is_none());
    }
}
