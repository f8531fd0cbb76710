//! Encrypted connections: TLS 1.2 and 1.3, with certificates from a directory that the operator
//! names.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection};

use crate::server::StartTls;
use crate::socket::{Cipher, Socket};

/// As qemu, nbdkit and libnbd name them.
const AUTHORITY: &str = "ca-cert.pem";
const CERTIFICATE: &str = "server-cert.pem";
const KEY: &str = "server-key.pem";
/// Bytes that are received at once.
const PIECE: usize = 64 << 10;

/// Why the certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("{path}: {error}")]
    File { path: PathBuf, error: pem::Error },
    #[error("{0} holds no certificate")]
    Empty(PathBuf),
    #[error("{path}: {error}")]
    Use { path: PathBuf, error: String },
}

/// What the server shows, and whom it lets in.
pub struct Tls {
    config: Arc<ServerConfig>,
    asks_clients: bool,
}

impl Tls {
    /// Of a directory with `server-cert.pem` and `server-key.pem`. With a `ca-cert.pem` there, only
    /// clients are let in that show a certificate of that authority.
    ///
    /// # Errors
    /// What is wrong with the files.
    pub fn load(dir: &Path) -> Result<Tls, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let wrong = |path: &Path, error: &dyn std::fmt::Display| TlsError::Use {
            path: path.to_owned(),
            error: error.to_string(),
        };
        let (own, key) = (dir.join(CERTIFICATE), dir.join(KEY));
        let chain = certificates(&own)?;
        let secret = PrivateKeyDer::from_pem_file(&key)
            .map_err(|error| TlsError::File { path: key.clone(), error })?;
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| wrong(dir, &error))?;
        let authority = dir.join(AUTHORITY);
        // A link that leads nowhere is an error, and not a server that lets everybody in.
        let asks_clients = authority.symlink_metadata().is_ok();
        let builder = match asks_clients {
            false => builder.with_no_client_auth(),
            true => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(&authority)? {
                    roots.add(certificate).map_err(|error| wrong(&authority, &error))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider);
                let verifier = verifier.build().map_err(|error| wrong(&authority, &error))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let config = builder.with_single_cert(chain, secret);
        let config = Arc::new(config.map_err(|error| wrong(&own, &error))?);
        Ok(Tls { config, asks_clients })
    }

    /// Whether clients must show who they are.
    pub fn asks_clients(&self) -> bool {
        self.asks_clients
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let failed = |error| TlsError::File { path: path.to_owned(), error };
    let found = CertificateDer::pem_file_iter(path).map_err(failed)?;
    let found: Vec<_> = found.collect::<Result<_, _>>().map_err(failed)?;
    if found.is_empty() { Err(TlsError::Empty(path.to_owned())) } else { Ok(found) }
}

impl StartTls for Tls {
    fn start(&self, socket: &Socket, until: Instant) -> io::Result<Box<dyn Cipher>> {
        let tls = ServerConnection::new(self.config.clone()).map_err(io::Error::other)?;
        let mut tls = Box::new(tls);
        let mut raw = Until { socket, until };
        while tls.is_handshaking() {
            tls.complete_io(&mut raw)?;
        }
        let state = Mutex::new(State { tls, came: Vec::new() });
        let receiving = Mutex::new(vec![0; PIECE]);
        Ok(Box::new(TlsCipher { state, receiving, sending: Mutex::new(()) }))
    }
}

/// A connection as it is, for so long.
struct Until<'s> {
    socket: &'s Socket,
    until: Instant,
}

impl Until<'_> {
    fn wait(&self) -> io::Result<()> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left < Duration::from_millis(1) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.socket.set_timeouts(left, left)
    }
}

impl Read for Until<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.wait()?;
        self.socket.receive_raw(out)
    }
}

impl Write for Until<'_> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.wait()?;
        self.socket.send_raw(data, &[]).map(|()| data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Encrypts one connection. The state is held for computing only: who waits for the peer does not
/// keep the other direction waiting.
struct TlsCipher {
    state: Mutex<State>,
    /// Where bytes come to; held by who waits for them.
    receiving: Mutex<Vec<u8>>,
    /// Held while something is sent: what was encrypted first goes first.
    sending: Mutex<()>,
}

struct State {
    tls: Box<ServerConnection>,
    /// What came and is not decrypted yet.
    came: Vec<u8>,
}

impl State {
    /// Decrypted bytes; `None` where more must come for that.
    fn read(&mut self, out: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match self.tls.reader().read(out) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // It went away without a word.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(Some(0)),
                found => return found.map(Some),
            }
            if self.came.is_empty() {
                return Ok(None);
            }
            let mut rest = &self.came[..];
            let count = self.tls.read_tls(&mut rest)?;
            self.came.drain(..count);
            let processed = self.tls.process_new_packets();
            processed.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            if count == 0 {
                return Ok(None);
            }
        }
    }

    /// What is to be sent.
    fn take_encrypted(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        while self.tls.wants_write() {
            self.tls.write_tls(&mut bytes)?;
        }
        Ok(bytes)
    }
}

impl TlsCipher {
    fn decrypted(&self, socket: &Socket, out: &mut [u8]) -> io::Result<Option<usize>> {
        let (found, has_to_say) = {
            let mut state = self.state.lock();
            (state.read(out)?, state.tls.wants_write())
        };
        if has_to_say {
            self.answer(socket)?;
        }
        Ok(found)
    }

    /// Sends what the protocol itself has to say.
    fn answer(&self, socket: &Socket) -> io::Result<()> {
        let _sending = self.sending.lock();
        let bytes = self.state.lock().take_encrypted()?;
        socket.send_raw(&bytes, &[])
    }
}

impl Cipher for TlsCipher {
    fn receive(&self, socket: &Socket, out: &mut [u8]) -> io::Result<usize> {
        let mut piece = self.receiving.lock();
        if let Some(count) = self.decrypted(socket, out)? {
            return Ok(count);
        }
        match socket.receive_raw(&mut piece)? {
            0 => return Ok(0),
            count => self.state.lock().came.extend_from_slice(&piece[..count]),
        }
        // Of half a record nothing is known: whoever asks counts the time.
        self.decrypted(socket, out)?.ok_or_else(|| io::ErrorKind::WouldBlock.into())
    }

    fn send(&self, socket: &Socket, head: &[u8], data: &[u8]) -> io::Result<()> {
        let _sending = self.sending.lock();
        for mut part in [head, data] {
            while !part.is_empty() {
                let bytes = {
                    let mut state = self.state.lock();
                    let count = state.tls.writer().write(part)?;
                    part = &part[count..];
                    state.take_encrypted()?
                };
                socket.send_raw(&bytes, &[])?;
            }
        }
        Ok(())
    }

    fn has_more(&self) -> bool {
        let mut state = self.state.lock();
        !state.came.is_empty()
            || state.tls.process_new_packets().is_ok_and(|io| io.plaintext_bytes_to_read() > 0)
    }
}
