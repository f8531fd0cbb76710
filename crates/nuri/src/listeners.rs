//! The listening sockets of a space's nodes. The supervisor keeps them while it restarts a node, so
//! that no other program of the machine can take the port of a crashed node.
//!
//! A node gets its socket when it is started. While the node does not run, the supervisor turns
//! each connection away at once instead of letting it wait.

use std::collections::HashMap;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Command;

use nuri_io::daemon::LISTENER;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{FdFlags, fcntl_setfd};

/// Connections that are turned away in one look.
const AT_ONCE: usize = 64;

/// The sockets by the number of their node in the space.
#[derive(Default)]
pub(crate) struct Listeners(HashMap<usize, TcpListener>);

impl Listeners {
    /// Where the node is to listen: at `wanted`, or at the free port that was found for it.
    /// None where that cannot be: the node tries it itself, and says why.
    pub(crate) fn address(&mut self, node: usize, wanted: &str) -> Option<String> {
        let is_there = |socket: &TcpListener| {
            socket.local_addr().is_ok_and(|address| address.to_string() == wanted)
        };
        if !self.0.get(&node).is_some_and(is_there) {
            // The address may have changed: the old socket must not stay.
            self.0.remove(&node);
            self.0.insert(node, TcpListener::bind(wanted).ok()?);
        }
        self.0.get(&node)?.local_addr().ok().map(|address| address.to_string())
    }

    /// Gives the node's process its socket. The answer must live until the process is started.
    pub(crate) fn give(&self, node: usize, command: &mut Command) -> Option<OwnedFd> {
        let copy = OwnedFd::from(self.0.get(&node)?.try_clone().ok()?);
        fcntl_setfd(&copy, FdFlags::empty()).ok()?;
        command.env(LISTENER, copy.as_raw_fd().to_string());
        Some(copy)
    }

    /// Turns away those who want a node that does not run.
    pub(crate) fn turn_away(&self, node: usize) {
        let Some(socket) = self.0.get(&node) else { return };
        for _ in 0..AT_ONCE {
            let mut waits = [PollFd::new(socket, PollFlags::IN)];
            match poll(&mut waits, Some(&Timespec::default())) {
                Ok(1) => drop(socket.accept()),
                _ => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpStream;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_port_stays_taken_and_who_connects_is_turned_away() {
        let mut listeners = Listeners::default();
        let address = listeners.address(3, "127.0.0.1:0").unwrap();
        assert_eq!(listeners.address(3, &address).as_ref(), Some(&address));
        assert!(TcpListener::bind(&address).is_err());
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        listeners.turn_away(3);
        assert_eq!(stream.read(&mut [0; 1]).ok(), Some(0), "closed at once");
        listeners.turn_away(3);
        let other = listeners.address(3, "127.0.0.1:0").unwrap();
        assert_ne!(other, address);
        drop(stream);
        // A process that another test is just starting has it until it runs its program.
        let mut tries = 0..500;
        while TcpListener::bind(&address).is_err() {
            assert!(tries.next().is_some(), "the old one is given up");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(listeners.address(4, "192.0.2.1:1"), None);
    }

    #[test]
    fn a_process_is_given_the_socket_of_its_node() {
        let mut listeners = Listeners::default();
        let mut command = Command::new("sh");
        assert!(listeners.give(0, &mut command).is_none());
        listeners.address(0, "127.0.0.1:0").unwrap();
        let socket = listeners.give(0, &mut command).unwrap();
        let script = format!("test -S /proc/self/fd/${LISTENER}");
        assert!(command.args(["-c", &script]).status().unwrap().success());
        drop(socket);
        assert!(!command.status().unwrap().success(), "it is not passed on by accident");
    }
}
