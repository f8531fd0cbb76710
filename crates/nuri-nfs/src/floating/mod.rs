//! A floating address: one of several servers has it. When that server ends, is cut off or loses
//! its machine, another one takes the address, with its clients.
//!
//! A lock in the space says which server has the address ([`machine`]). [`interface`] puts it on
//! this machine and tells the network. Clients connect anew to the same address and go on, because
//! handles mean the same at every server. They write again what they had not committed, because the
//! verifier is another one.

mod done;
mod interface;
mod machine;

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use nuri_client::{Access, Client, LockPlace};
use nuri_proto::Status;
use nuri_proto::id::Ino;
use nuri_proto::op::lock::{LockClass, LockMode};
use nuri_proto::range_map::Span;
use parking_lot::Mutex;
use rustix::net::{AddressFamily, SocketType, bind, listen, socket, sockopt};

pub use done::Addresses;
pub(crate) use done::{Change, Standing};
pub use interface::{FloatingAddress, NoAddress};

use crate::export::{ExportError, Store};
use crate::server::Server;
use done::CallsDone;
use interface::Added;
use machine::{Holder, Move, Seen};

/// Between two looks at the lock.
const LOOK: Duration = Duration::from_millis(250);
/// Left to others after the address could not be taken.
const AFTER_FAILURE: Duration = Duration::from_secs(2);
const BACKLOG: i32 = 1024;

/// Why an address cannot move to this machine.
#[derive(Debug, thiserror::Error)]
pub enum FloatingError {
    #[error("{0}: to add addresses this machine's root is needed (CAP_NET_ADMIN)")]
    Rights(FloatingAddress),
    #[error("{0}: {1}")]
    Interface(FloatingAddress, io::Error),
    #[error(transparent)]
    Lock(#[from] ExportError),
    #[error("{0}: its lock cannot be opened: {1}")]
    Open(FloatingAddress, Status),
    #[error("{0}: what was done there cannot be read: {1}")]
    CallsDone(FloatingAddress, Status),
    #[error("{0}: its lock was lost again")]
    Lost(FloatingAddress),
}

/// See the module's text.
pub struct Floating {
    client: Arc<Client>,
    server: Arc<Server>,
    addresses: Arc<Addresses>,
    wanted: FloatingAddress,
    interface: String,
    lock: LockPlace,
    here: Mutex<Here>,
}

#[derive(Default)]
struct Here {
    holder: Holder,
    added: Option<Added>,
    /// The server ends: nothing is taken any more.
    is_over: bool,
}

impl Floating {
    /// Nobody has the address because of this yet.
    ///
    /// # Errors
    /// Why it cannot move here.
    pub fn new(
        client: Arc<Client>,
        server: Arc<Server>,
        addresses: Arc<Addresses>,
        wanted: FloatingAddress,
    ) -> Result<Floating, FloatingError> {
        if !interface::may_change() {
            return Err(FloatingError::Rights(wanted));
        }
        let interface =
            interface::prepare(wanted).map_err(|error| FloatingError::Interface(wanted, error))?;
        let ino = Store::new(client.clone()).address(wanted.address)?;
        let open = client.open(ino, Access::Both);
        let fh = open.map_err(|status| FloatingError::Open(wanted, status))?;
        let lock = place(ino, fh);
        addresses.leave(wanted.address.into());
        let here = Mutex::default();
        Ok(Floating { client, server, addresses, wanted, interface, lock, here })
    }

    /// Takes and leaves the address, for ever.
    pub fn run(&self) -> ! {
        loop {
            self.look();
            std::thread::sleep(LOOK);
        }
    }

    fn look(&self) {
        let is_heard = self.client.is_heard();
        let mut here = self.here.lock();
        if here.is_over {
            return;
        }
        let has_lock = match here.holder {
            Holder::Here => self.client.locks().check_locks(self.lock.fh).is_ok(),
            // Another one has it, or the space does not answer.
            Holder::Elsewhere => {
                is_heard && self.client.locks().lock(&self.lock, Some(LockMode::Exclusive)).is_ok()
            }
        };
        match here.holder.see(Seen { is_heard, has_lock }) {
            None => {}
            Some(Move::Leave) => {
                tracing::warn!("nfs: leaves {}: it may be another server's by now", self.wanted);
                here.added = None;
                self.server.end_at(self.wanted.address.into());
                self.addresses.leave(self.wanted.address.into());
                // A lock that was lost says so until it is let go.
                self.client.locks().release_locks(self.lock.fh);
            }
            Some(Move::Take) => match self.take() {
                Ok(added) => {
                    tracing::info!("nfs: has {} now, on {}", self.wanted, self.interface);
                    here.added = Some(added);
                }
                Err(error) => {
                    tracing::error!("nfs: {error}: another server may still take the address over");
                    self.addresses.leave(self.wanted.address.into());
                    here.holder = Holder::Elsewhere;
                    self.client.locks().release_locks(self.lock.fh);
                    std::thread::sleep(AFTER_FAILURE);
                }
            },
        }
    }

    /// First is read what other servers did at the address.
    fn take(&self) -> Result<Added, FloatingError> {
        let done = CallsDone::load(self.client.clone(), self.lock.ino)
            .map_err(|status| FloatingError::CallsDone(self.wanted, status))?;
        // Reading may have taken long.
        if !self.client.is_heard() || self.client.locks().check_locks(self.lock.fh).is_err() {
            return Err(FloatingError::Lost(self.wanted));
        }
        self.addresses.take(self.wanted.address.into(), done);
        Added::new(self.wanted, &self.interface)
            .map_err(|error| FloatingError::Interface(self.wanted, error))
    }

    /// Leaves the address to others, at the end.
    pub fn leave(&self) {
        *self.here.lock() = Here { is_over: true, ..Here::default() };
        self.addresses.leave(self.wanted.address.into());
        self.client.locks().release_locks(self.lock.fh);
    }
}

fn place(ino: Ino, fh: u64) -> LockPlace {
    let (class, owner, pid) = (LockClass::Range, fh, std::process::id());
    LockPlace { ino, fh, class, owner, span: Span::ALL, pid }
}

/// Listens at an address that may be on another machine for now.
///
/// # Errors
/// The port is taken here.
pub fn listen_anyway(address: Ipv4Addr, port: u16) -> io::Result<TcpListener> {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    sockopt::set_ip_freebind(&socket, true)?;
    bind(&socket, &SocketAddr::new(IpAddr::V4(address), port))?;
    listen(&socket, BACKLOG)?;
    Ok(socket.into())
}
