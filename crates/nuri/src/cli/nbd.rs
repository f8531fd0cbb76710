//! The command-line arguments that all servers of block devices share.

use std::path::PathBuf;

use clap::Args;

/// The default address for TCP clients, with the port that is registered for NBD.
const DEFAULT_LISTEN: &str = "127.0.0.1:10809";

#[derive(Args)]
pub(crate) struct NbdServer {
    /// Address for TCP clients (default without --socket: 127.0.0.1:10809)
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,
    /// A Unix socket for clients on this machine
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Serve only clients that encrypt (TLS): a directory with server-cert.pem and server-key.pem.
    /// If it also has ca-cert.pem, serve only clients with a certificate of that authority
    #[arg(long, value_name = "DIR")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Connections to serve at once, at most
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) max_connections: u16,
}

impl NbdServer {
    /// The address for TCP clients, if the server has one.
    pub(crate) fn listen(&self) -> Option<&str> {
        let default = self.socket.is_none().then_some(DEFAULT_LISTEN);
        self.listen.as_deref().or(default)
    }
}
