//! What the kernel knows of a TCP connection.
// Fenced: the option has no safe wrapper in rustix or libc.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// Of the kernel's `struct tcp_info`, which only grows: `tcpi_last_ack_recv` and what is before it.
const LEN: usize = 60;
const LAST_HEARD: usize = 56;

/// How long ago anything came from the peer's machine; `None` where that is no TCP connection.
pub fn last_heard(socket: impl AsFd) -> Option<Duration> {
    let mut info = [0u8; LEN];
    let mut len = LEN as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, which `info` has, and both live through the
    // call.
    let failed = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    let millis = info[LAST_HEARD..].try_into().map(u32::from_ne_bytes).ok()?;
    (failed == 0 && len as usize == LEN).then(|| Duration::from_millis(u64::from(millis)))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn it_is_known_when_a_peer_was_heard() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut own, _) = listener.accept().unwrap();
        std::thread::sleep(Duration::from_millis(120));
        let before = last_heard(&own).unwrap();
        assert!(before >= Duration::from_millis(100), "{before:?}");
        peer.write_all(b"x").unwrap();
        own.read_exact(&mut [0]).unwrap();
        assert!(last_heard(&own).unwrap() < before);
        assert_eq!(last_heard(UnixStream::pair().unwrap().0), None);
    }
}
