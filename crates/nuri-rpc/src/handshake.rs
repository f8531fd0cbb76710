//! The handshake: both sides prove the space's secret by challenge and response, and agree on the
//! protocol version.
//!
//! 1 client -> server  hello: magic, versions, role, 32 random bytes
//! 2 server -> client  hello: magic, chosen version, 32 random bytes
//! 3 client -> server  HMAC-SHA256(secret, "nuri client" | hello 1 | hello 2 | where)
//! 4 server -> client  HMAC-SHA256(secret, "nuri server" | hello 1 | hello 2 | where)
//!
//! The secret is that of the role. "where" is the server's address, as each side's system reports
//! it. So a proof that a machine at another address passes on is worth nothing.
//!
//! All messages have fixed lengths. The server proves nothing to a client that proved nothing: it
//! answers with zeros, so that the client can tell a wrong secret from a broken connection. The
//! whole handshake has one deadline.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use hmac::{Hmac, Mac};
use nuri_proto::op::Role;
use nuri_proto::version::{PROTOCOL_MAX, PROTOCOL_MIN, agree};
use nuri_rules::broken;
use sha2::Sha256;

use crate::secret::Secret;
use crate::stream::Stream;

const MAGIC: &[u8; 8] = b"NURIHELO";
pub(crate) const HELLO: usize = 48;
/// Where the client's hello says its role.
const ROLE: usize = 12;
const PROOF: usize = 32;
pub(crate) const TIMEOUT: Duration = Duration::from_secs(2);

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

fn role_byte(role: Role) -> u8 {
    match role {
        Role::Node => 0,
        Role::Mount => 1,
    }
}

fn role_of(hello: &[u8; HELLO]) -> Option<Role> {
    [Role::Node, Role::Mount].into_iter().find(|role| role_byte(*role) == hello[ROLE])
}

/// The proof of one side.
fn proof(secret: &Secret, who: &[u8], hellos: [&[u8; HELLO]; 2], place: &str) -> Hmac<Sha256> {
    let place = if broken!("proof_anywhere") { "" } else { place };
    secret.mac(&[who, hellos[0], hellos[1], place.as_bytes()])
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

/// Runs the client's side, for at most so long and no longer than a handshake may take.
pub(crate) fn connect(
    stream: &mut Stream,
    secret: &Secret,
    timeout: Duration,
) -> Result<(), HandshakeError> {
    stream.set_nodelay()?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let deadline = Instant::now() + timeout.min(TIMEOUT);
    let place = stream.dialled()?;
    let mut mine = hello(PROTOCOL_MIN, PROTOCOL_MAX)?;
    mine[ROLE] = role_byte(secret.role());
    stream.write_all(&mine)?;
    let mut theirs = [0; HELLO];
    read_before(stream, deadline, &mut theirs)?;
    let (version, _) = versions(&theirs)?;
    if !(PROTOCOL_MIN..=PROTOCOL_MAX).contains(&version) {
        return Err(HandshakeError::Version);
    }
    let ours = proof(secret, b"nuri client", [&mine, &theirs], &place);
    stream.write_all(&ours.finalize().into_bytes())?;
    let mut answer = [0; PROOF];
    read_before(stream, deadline, &mut answer)?;
    let expected = proof(secret, b"nuri server", [&mine, &theirs], &place);
    expected.verify_slice(&answer).map_err(|_| HandshakeError::Secret)
}

/// What the server's side does next.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// The message is not whole yet.
    More,
    Answer(Vec<u8>),
    /// The client knows the secret of this role; this is our own proof.
    Proven(Role, Vec<u8>),
    /// It does not, or speaks something else.
    Refused(Vec<u8>),
}

/// The server's side: bytes in, bytes out.
pub(crate) struct Acceptance {
    /// Where the client reached us.
    place: String,
    theirs: [u8; HELLO],
    /// Once their hello is whole.
    mine: Option<[u8; HELLO]>,
    proof: [u8; PROOF],
    /// Bytes of the present message.
    have: usize,
}

impl Acceptance {
    pub(crate) fn new(place: String) -> Acceptance {
        Acceptance { place, theirs: [0; HELLO], mine: None, proof: [0; PROOF], have: 0 }
    }

    /// Bytes that the present message lacks.
    pub(crate) fn wants(&self) -> usize {
        let whole = if self.mine.is_none() { HELLO } else { PROOF };
        whole - self.have
    }

    /// Takes bytes, at most as many as wanted.
    pub(crate) fn take(&mut self, secret: &Secret, bytes: &[u8]) -> Step {
        let message = if self.mine.is_none() { &mut self.theirs[..] } else { &mut self.proof[..] };
        message[self.have..][..bytes.len()].copy_from_slice(bytes);
        self.have += bytes.len();
        if self.wants() > 0 {
            return Step::More;
        }
        self.have = 0;
        match self.mine {
            None => self.answer(),
            Some(mine) => self.judge(secret, &mine),
        }
    }

    fn answer(&mut self) -> Step {
        let Ok((min, max)) = versions(&self.theirs) else { return Step::Refused(Vec::new()) };
        let version = agree(min, max);
        let Ok(mine) = hello(version.unwrap_or(0), 0) else { return Step::Refused(Vec::new()) };
        if version.is_none() {
            return Step::Refused(mine.to_vec());
        }
        self.mine = Some(mine);
        Step::Answer(mine.to_vec())
    }

    fn judge(&self, secret: &Secret, mine: &[u8; HELLO]) -> Step {
        let role = role_of(&self.theirs);
        let Some((role, secret)) = role.and_then(|role| Some((role, secret.of(role)?))) else {
            return Step::Refused(vec![0; PROOF]);
        };
        let proof = |who: &[u8]| proof(&secret, who, [&self.theirs, mine], &self.place);
        if proof(b"nuri client").verify_slice(&self.proof).is_err() {
            return Step::Refused(vec![0; PROOF]);
        }
        Step::Proven(role, proof(b"nuri server").finalize().into_bytes().to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(byte: u8) -> Secret {
        Secret::from_bytes([byte; 32])
    }

    /// Goes through it in pieces of this length, as a client with another secret perhaps, or one
    /// that dialled another address.
    fn play(client: &Secret, dialled: &str, piece: usize) -> Step {
        let (server, mut mine) = (secret(1), hello(PROTOCOL_MIN, PROTOCOL_MAX).unwrap());
        mine[ROLE] = role_byte(client.role());
        let mut acceptance = Acceptance::new("here".into());
        let mut all = |bytes: &[u8]| {
            let steps = bytes.chunks(piece).map(|part| acceptance.take(&server, part));
            let steps: Vec<Step> = steps.collect();
            assert!(steps.iter().rev().skip(1).all(|step| *step == Step::More));
            steps.into_iter().next_back().unwrap()
        };
        let Step::Answer(theirs) = all(&mine) else { panic!("no answer") };
        let theirs: [u8; HELLO] = theirs.try_into().unwrap();
        let ours = proof(client, b"nuri client", [&mine, &theirs], dialled);
        let step = all(&ours.finalize().into_bytes());
        if let Step::Proven(_, shown) = &step {
            let expected = proof(client, b"nuri server", [&mine, &theirs], dialled);
            assert!(expected.verify_slice(shown).is_ok());
        }
        step
    }

    #[test]
    fn who_knows_the_secret_is_believed_however_it_comes_in_pieces() {
        for piece in [1, 5, 31, 48] {
            let role = |client: &Secret| match play(client, "here", piece) {
                Step::Proven(role, _) => Some(role),
                _ => None,
            };
            assert_eq!(role(&secret(1)), Some(Role::Node), "{piece}");
            assert_eq!(role(&secret(1).for_mounts()), Some(Role::Mount), "{piece}");
            assert_eq!(role(&secret(2)), None);
            assert_eq!(role(&secret(2).for_mounts()), None);
        }
    }

    /// Catches `broken!("proof_anywhere")`: somebody has a node's address while it is down, and
    /// passes what it hears on to another node.
    #[test]
    fn a_proof_for_another_address_is_worth_nothing() {
        assert_eq!(play(&secret(1), "there", 48), Step::Refused(vec![0; PROOF]));
    }

    #[test]
    fn what_is_no_hello_is_refused() {
        let mut garbage = Acceptance::new("here".into());
        assert_eq!(garbage.take(&secret(1), &[7; HELLO]), Step::Refused(Vec::new()));
        let mut old = Acceptance::new("here".into());
        let Step::Refused(answer) = old.take(&secret(1), &hello(0, 0).unwrap()) else {
            panic!("no such version");
        };
        assert_eq!(answer.len(), HELLO, "says which it would take");
    }
}
