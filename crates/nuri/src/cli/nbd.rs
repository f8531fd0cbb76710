//! What every server of block devices can be told.

use std::path::PathBuf;

use clap::Args;

/// Where clients are served unless another address is said: the port that NBD has.
const DEFAULT_LISTEN: &str = "127.0.0.1:10809";

#[derive(Args)]
pub(crate) struct NbdServer {
    /// Where TCP clients connect; without this and --socket: 127.0.0.1:10809
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,
    /// A Unix socket for clients on this machine
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Only serve clients that encrypt (TLS): a directory with server-cert.pem and server-key.pem.
    /// With a ca-cert.pem there, only clients that show a certificate of that authority
    #[arg(long, value_name = "DIR")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Connections served at once
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) max_connections: u16,
}

impl NbdServer {
    /// The address for TCP clients, if they are served.
    pub(crate) fn listen(&self) -> Option<&str> {
        let default = self.socket.is_none().then_some(DEFAULT_LISTEN);
        self.listen.as_deref().or(default)
    }
}
