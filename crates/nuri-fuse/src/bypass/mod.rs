//! Programs whose large reads and writes bypass the kernel's page cache, by `libnuri_preload`
//! (`preload/`).
//!
//! BYPASS-1 A program that holds an open file gets the file's ticket from the kernel (an ioctl).
//!    The ticket is good for what the file was opened for, and ends with the open file. A request
//!    that fails because its ticket ended is asked again: the program's number is another open file
//!    by then.
//! BYPASS-2 The mount does not touch the memory of programs. Bytes go through pipes that hold
//!    references to pages: the program's own, or pages that this connection alone reads into.
//! BYPASS-3 The mount holds nothing while it waits for a program.
//! BYPASS-4 The kernel's pages of written bytes are dropped before the write is answered. The
//!    program writes out the pages that a mapping changed, before it asks. Kernels before 6.16 do
//!    not wait for that, so on them the mount gives no tickets. The kernel's lock of an inode keeps
//!    writes and changes of the size apart; here the client does.
//! BYPASS-5 Connections are bounded, for each user too. A program that finds no room goes through
//!    the kernel.

mod guest;
mod passed;
mod ticket;
mod wire;

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use nuri_client::{Client, KernelCache};
use nuri_proto::Status;
use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType};

use crate::growing::Growing;
use guest::{Guest, PATIENCE};
pub use passed::Passed;
use ticket::Tickets;
pub(crate) use wire::TICKET;
use wire::{LARGEST, Ticket};

/// Connections of all users, and of one.
const MOST: usize = 64;
const MOST_OF_ONE: usize = 16;
/// The last of them are for users who have fewer than so many.
const KEPT: usize = 16;
const FEW: usize = 2;

/// See the module's text.
pub(crate) struct Bypass {
    client: Arc<Client>,
    kernel: Arc<dyn KernelCache>,
    growing: Arc<Growing>,
    /// Access times are not to be changed.
    read_only: bool,
    /// Of the socket, which has no file.
    name: [u8; 32],
    listener: OwnedFd,
    tickets: Mutex<Tickets>,
    /// Connections by user.
    guests: Mutex<HashMap<u32, usize>>,
    passed: Arc<Passed>,
}

impl Bypass {
    /// Listens, in a thread of its own.
    ///
    /// # Errors
    /// No socket or no thread: programs go through the kernel.
    pub(crate) fn start(
        client: Arc<Client>,
        kernel: Arc<dyn KernelCache>,
        read_only: bool,
        growing: Arc<Growing>,
        passed: Arc<Passed>,
    ) -> io::Result<Arc<Bypass>> {
        let random = ticket::random().map_err(|status| io::Error::other(status.to_string()))?;
        let mut name = [0; 32];
        name[..11].copy_from_slice(b"nuri/mount/");
        for (to, byte) in name[11..31].chunks_exact_mut(2).zip(random) {
            to.copy_from_slice(format!("{byte:02x}").as_bytes());
        }
        let flags = SocketFlags::CLOEXEC;
        let (unix, packets) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let listener = rustix::net::socket_with(unix, packets, flags, None)?;
        rustix::net::bind(&listener, &SocketAddrUnix::new_abstract_name(&name[..31])?)?;
        rustix::net::listen(&listener, MOST as i32)?;
        let (tickets, guests) = Default::default();
        let bypass = Arc::new(Bypass {
            client,
            kernel,
            growing,
            read_only,
            name,
            listener,
            tickets,
            guests,
            passed,
        });
        let own = bypass.clone();
        std::thread::Builder::new().name("bypass".into()).spawn(move || own.listen())?;
        Ok(bypass)
    }

    /// No more programs are let in, and those that are get no answer: the mount is gone.
    pub(crate) fn stop(&self) {
        let _ = rustix::net::shutdown(&self.listener, Shutdown::Both);
        *self.tickets.lock() = Tickets::default();
    }

    /// The ticket of an open file.
    ///
    /// # Errors
    /// `BADF`; `IO` where there are no random numbers.
    pub(crate) fn ticket(&self, fh: u64) -> Result<Ticket, Status> {
        self.client.opened(fh)?;
        let ticket = self.tickets.lock().of(fh)?;
        let (version, largest) = (wire::VERSION, LARGEST as u32);
        Ok(Ticket { version, largest, ticket, name: self.name, ..Ticket::default() })
    }

    /// The open file is closed.
    pub(crate) fn revoke(&self, fh: u64) {
        self.tickets.lock().revoke(fh);
    }

    fn listen(self: &Arc<Bypass>) {
        loop {
            match rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC) {
                Ok(socket) => self.admit(socket),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                // Out of descriptors, for now.
                Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => {
                    std::thread::sleep(PATIENCE / 100);
                }
                Err(_) => return,
            }
        }
    }

    /// Serves a connection in a thread of its own, if there is room (BYPASS-5).
    fn admit(self: &Arc<Bypass>, socket: OwnedFd) {
        let Ok(who) = sockopt::socket_peercred(&socket) else { return };
        let uid = who.uid.as_raw();
        {
            let mut guests = self.guests.lock();
            let (all, own) = (guests.values().sum::<usize>(), guests.entry(uid).or_default());
            if !has_place(all, *own, uid == 0) {
                return;
            }
            *own += 1;
        }
        self.passed.connected();
        let place = Place { bypass: self.clone(), uid };
        let body = move || {
            let bypass = &place.bypass;
            // A program that does not keep to the protocol, or is gone.
            let _ = sockopt::set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))
                .and_then(|()| sockopt::set_socket_timeout(&socket, Timeout::Send, Some(PATIENCE)))
                .map_err(io::Error::from)
                .and_then(|()| Guest::welcome(bypass, socket)?.serve());
        };
        let _ = std::thread::Builder::new().name("bypass".into()).spawn(body);
    }
}

/// Whether one more connection finds a place, of all and of its user.
fn has_place(all: usize, own: usize, is_root: bool) -> bool {
    let most_of_one = match all {
        _ if is_root => MOST,
        all if all >= MOST - KEPT => FEW,
        _ => MOST_OF_ONE,
    };
    all < MOST && own < most_of_one
}

/// One connection's place; free again when dropped.
struct Place {
    bypass: Arc<Bypass>,
    uid: u32,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.bypass.passed.ended();
        let mut guests = self.bypass.guests.lock();
        if let Some(count) = guests.get_mut(&self.uid) {
            *count -= 1;
            if *count == 0 {
                guests.remove(&self.uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Users who open as many as they can, one after the other: places that each gets.
    fn taken(users: usize) -> Vec<usize> {
        let mut all = 0;
        let take = |_| {
            let mut own = 0;
            while has_place(all, own, false) {
                (all, own) = (all + 1, own + 1);
            }
            own
        };
        (0..users).map(take).collect()
    }

    #[test]
    fn a_few_users_leave_places_for_others() {
        assert_eq!(taken(5), [16, 16, 16, 2, 2]);
        assert_eq!(taken(12)[11], 0, "all are taken");
        assert!(taken(11).iter().all(|own| *own >= FEW));
        assert!(has_place(MOST - 1, 40, true) && !has_place(MOST, 0, true));
    }
}
