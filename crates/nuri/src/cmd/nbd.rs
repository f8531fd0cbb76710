//! The door of a process that serves block devices: where it listens, and how it ends.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nuri_nbd::export::Exports;
use nuri_nbd::server::{Limits, Listener, Server, StartTls};
use nuri_nbd::tls::Tls;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::signals::wait_for_end;
use crate::cli::NbdServer;
use crate::{Failure, at};

/// It listens, and nobody is served yet.
pub(super) struct NbdDoor {
    signals: Signals,
    /// With what clients write to reach each.
    listeners: Vec<(Listener, String)>,
    socket: Option<PathBuf>,
    limits: Limits,
    tls: Option<Arc<dyn StartTls>>,
}

impl NbdDoor {
    pub(super) fn open(args: &NbdServer) -> Result<NbdDoor, Failure> {
        // From here on a signal is waited for.
        let signals = Signals::new([SIGTERM, SIGINT]).map_err(at("no signals"))?;
        let connections = usize::from(args.max_connections);
        let limits = Limits { connections, ..Limits::default() };
        let tls = args.tls_cert.as_deref().map(Tls::load).transpose().map_err(Failure::new)?;
        let socket = args.socket.clone();
        let listeners = listeners(args, tls.as_ref())?;
        let tls = tls.map(|tls| Arc::new(tls) as Arc<dyn StartTls>);
        Ok(NbdDoor { signals, listeners, socket, limits, tls })
    }

    /// Its addresses.
    pub(super) fn place(&self) -> String {
        let addresses: Vec<_> = self.listeners.iter().map(|(_, at)| at.as_str()).collect();
        addresses.join(" ")
    }

    /// Serves until a signal comes, and ends when what clients had begun is done.
    pub(super) fn serve(self, what: &str, exports: Arc<dyn Exports>) -> Result<(), Failure> {
        let server = Server::with_tls(exports, self.limits, self.tls.clone());
        for (listener, address) in self.listeners {
            server.listen(listener).map_err(at("no thread"))?;
            tracing::info!("nbd: serves {what} at {address}");
        }
        wait_for_end(self.signals, "nbd");
        server.stop();
        if let Some(path) = &self.socket {
            // Whoever connects meanwhile finds nobody.
            let _ = fs::remove_file(path);
        }
        Ok(())
    }
}

fn listeners(args: &NbdServer, tls: Option<&Tls>) -> Result<Vec<(Listener, String)>, Failure> {
    let mut listeners = Vec::new();
    let scheme = if tls.is_some() { "nbds" } else { "nbd" };
    if let Some(address) = args.listen() {
        let listener = TcpListener::bind(address).map_err(at(address))?;
        let bound = listener.local_addr().map_err(at(address))?;
        if !bound.ip().is_loopback() {
            warn_of_strangers(bound, tls);
        }
        listeners.push((Listener::Tcp(listener), format!("{scheme}://{bound}")));
    }
    if let Some(path) = &args.socket {
        let listener = local(path).map_err(at(path.display()))?;
        let address = format!("{scheme}+unix:///?socket={}", path.display());
        listeners.push((Listener::Unix(listener), address));
    }
    Ok(listeners)
}

/// At an address that other machines reach.
fn warn_of_strangers(bound: SocketAddr, tls: Option<&Tls>) {
    match tls.map(Tls::asks_clients) {
        None => tracing::warn!(
            "nbd: whoever reaches {bound} reads and writes what is served: nothing is encrypted \
             and nobody is asked who they are"
        ),
        Some(false) => tracing::warn!(
            "nbd: whoever reaches {bound} reads and writes what is served: there is no \
             ca-cert.pem, so clients are not asked who they are"
        ),
        Some(true) => {}
    }
}

/// A socket of this machine. One that a server left behind is replaced.
fn local(path: &Path) -> io::Result<UnixListener> {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
    if is_socket {
        if UnixStream::connect(path).is_ok() {
            return Err(io::Error::other("another server listens there"));
        }
        fs::remove_file(path)?;
    }
    UnixListener::bind(path)
}
