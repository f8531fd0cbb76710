//! Mutual proof of the space's secret by challenge and response, and the protocol version.
//!
//! 1 client -> server  hello: magic, versions, 32 random bytes
//! 2 server -> client  hello: magic, chosen version, 32 random bytes
//! 3 client -> server  HMAC-SHA256(secret, "nuri client" | hello 1 | hello 2)
//! 4 server -> client  HMAC-SHA256(secret, "nuri server" | hello 1 | hello 2)
//!
//! All messages have fixed lengths. The server proves nothing to a client that did not: it answers
//! with zeros, so that a wrong secret is told from a connection that broke. All of it has one
//! deadline.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use hmac::Mac;
use nuri_proto::version::{PROTOCOL_MAX, PROTOCOL_MIN, agree};

use crate::secret::Secret;
use crate::stream::Stream;

const MAGIC: &[u8; 8] = b"NURIHELO";
const HELLO: usize = 48;
const PROOF: usize = 32;
const TIMEOUT: Duration = Duration::from_secs(2);

/// Why a connection was not made.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    #[error("connection: {0}")]
    Io(#[from] std::io::Error),
    #[error("the other side does not speak Nuri's protocol")]
    NotNuri,
    #[error("no common protocol version: upgrade the older node")]
    Version,
    #[error("the secret does not fit: wrong token file, or an address of another space")]
    Secret,
    #[error("the system gave no random bytes")]
    Random,
}

fn hello(a: u16, b: u16) -> Result<[u8; HELLO], HandshakeError> {
    let mut out = [0; HELLO];
    out[..8].copy_from_slice(MAGIC);
    out[8..10].copy_from_slice(&a.to_le_bytes());
    out[10..12].copy_from_slice(&b.to_le_bytes());
    getrandom::fill(&mut out[16..]).map_err(|_| HandshakeError::Random)?;
    Ok(out)
}

fn versions(hello: &[u8; HELLO]) -> Result<(u16, u16), HandshakeError> {
    if &hello[..8] != MAGIC {
        return Err(HandshakeError::NotNuri);
    }
    Ok((u16::from_le_bytes([hello[8], hello[9]]), u16::from_le_bytes([hello[10], hello[11]])))
}

/// Reads a whole message before the deadline, also from a peer that sends it byte by byte.
fn read_before(stream: &mut Stream, deadline: Instant, mut buf: &mut [u8]) -> std::io::Result<()> {
    while !buf.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(buf) {
            Ok(0) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => buf = &mut buf[n..],
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn begin(stream: &Stream) -> std::io::Result<Instant> {
    stream.set_nodelay()?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    Ok(Instant::now() + TIMEOUT)
}

/// Runs the client's side.
pub(crate) fn connect(stream: &mut Stream, secret: &Secret) -> Result<(), HandshakeError> {
    let deadline = begin(stream)?;
    let mine = hello(PROTOCOL_MIN, PROTOCOL_MAX)?;
    stream.write_all(&mine)?;
    let mut theirs = [0; HELLO];
    read_before(stream, deadline, &mut theirs)?;
    let (version, _) = versions(&theirs)?;
    if !(PROTOCOL_MIN..=PROTOCOL_MAX).contains(&version) {
        return Err(HandshakeError::Version);
    }
    stream.write_all(&secret.mac(&[b"nuri client", &mine, &theirs]).finalize().into_bytes())?;
    let mut proof = [0; PROOF];
    read_before(stream, deadline, &mut proof)?;
    secret
        .mac(&[b"nuri server", &mine, &theirs])
        .verify_slice(&proof)
        .map_err(|_| HandshakeError::Secret)
}

/// Runs the server's side.
pub(crate) fn accept(stream: &mut Stream, secret: &Secret) -> Result<(), HandshakeError> {
    let deadline = begin(stream)?;
    let mut theirs = [0; HELLO];
    read_before(stream, deadline, &mut theirs)?;
    let (min, max) = versions(&theirs)?;
    let version = agree(min, max);
    let mine = hello(version.unwrap_or(0), 0)?;
    stream.write_all(&mine)?;
    if version.is_none() {
        return Err(HandshakeError::Version);
    }
    let mut proof = [0; PROOF];
    read_before(stream, deadline, &mut proof)?;
    if secret.mac(&[b"nuri client", &theirs, &mine]).verify_slice(&proof).is_err() {
        stream.write_all(&[0; PROOF])?;
        return Err(HandshakeError::Secret);
    }
    stream.write_all(&secret.mac(&[b"nuri server", &theirs, &mine]).finalize().into_bytes())?;
    stream.set_read_timeout(None)?;
    Ok(())
}
