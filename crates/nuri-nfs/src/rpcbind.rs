//! This machine's `rpcbind`, which tells clients at port 111 at which ports programs are
//! (RFC 1833). A server registers NFS and MOUNT there, so that clients need no ports in their
//! options, and takes that back when it ends.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::protocol::{MOUNT, MOUNT_VERSION, NFS, NFS_VERSION, PORT_MAPPER, PORT_MAPPER_VERSIONS};
use crate::rpc::message;
use crate::rpc::record::{self, Records, TooLong};
use crate::rpc::xdr::{Garbage, Reader, Writer};

/// Where it listens for programs of this machine.
pub const SOCKET: &str = "/run/rpcbind.sock";
/// For an answer, and for a connection to a server that is registered.
const PATIENCE: Duration = Duration::from_secs(2);
/// Bytes of an answer: some hundred programs.
const LONGEST: usize = 256 << 10;
/// Bytes of a text in it.
const LONGEST_TEXT: usize = 1024;
const PROGRAMS: [(u32, u32); 2] = [(NFS, NFS_VERSION), (MOUNT, MOUNT_VERSION)];

const SET: u32 = 1;
const UNSET: u32 = 2;
const DUMP: u32 = 4;

/// Why nothing is registered.
#[derive(Debug, thiserror::Error)]
pub enum RpcbindError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("its answer is none")]
    Garbage,
    #[error("it does not take registrations")]
    Refused,
    #[error("another server is registered, at {0}")]
    Taken(SocketAddr),
}

impl From<Garbage> for RpcbindError {
    fn from(_: Garbage) -> RpcbindError {
        RpcbindError::Garbage
    }
}

impl From<TooLong> for RpcbindError {
    fn from(_: TooLong) -> RpcbindError {
        RpcbindError::Garbage
    }
}

/// A program, and where it is.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Entry {
    program: u32,
    version: u32,
    /// `tcp` or `tcp6`, of those that matter here.
    network: String,
    /// As text: port 2049 of 192.0.2.1 is `192.0.2.1.8.1`.
    address: String,
}

impl Entry {
    fn new((program, version): (u32, u32), at: SocketAddr) -> Entry {
        let network = if at.is_ipv4() { "tcp" } else { "tcp6" };
        let address = format!("{}.{}.{}", at.ip(), at.port() >> 8, at.port() & 0xff);
        Entry { program, version, network: network.into(), address }
    }

    fn is_same_program(&self, other: &Entry) -> bool {
        let of = |e: &Entry| (e.program, e.version, e.network.clone());
        of(self) == of(other)
    }

    /// Where a program of this machine reaches it.
    fn reached_at(&self) -> Option<SocketAddr> {
        let (rest, low) = self.address.rsplit_once('.')?;
        let (ip, high) = rest.rsplit_once('.')?;
        let (high, low): (u8, u8) = (high.parse().ok()?, low.parse().ok()?);
        let ip = match ip.parse().ok()? {
            IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        Some(SocketAddr::new(ip, u16::from_be_bytes([high, low])))
    }
}

/// What is registered; taken back when dropped.
#[derive(Debug)]
pub struct Registered {
    socket: PathBuf,
    entries: Vec<Entry>,
}

impl Drop for Registered {
    fn drop(&mut self) {
        let taken_back = Connection::new(&self.socket).and_then(|mut rpcbind| {
            self.entries.iter().try_for_each(|entry| rpcbind.change(UNSET, entry).map(drop))
        });
        if let Err(error) = taken_back {
            tracing::warn!("nfs: rpcbind still tells clients of this server: {error}");
        }
    }
}

/// Registers NFS and MOUNT at these addresses, one of each kind. Nothing where no `rpcbind` runs.
///
/// # Errors
/// Where it does not answer as it should, and where another server that lives is registered.
pub fn register(socket: &Path, at: &[SocketAddr]) -> Result<Option<Registered>, RpcbindError> {
    let mut rpcbind = match Connection::new(socket) {
        Err(RpcbindError::Io(error)) if is_absent(&error) => return Ok(None),
        rpcbind => rpcbind?,
    };
    // As another program reaches this one.
    let is_own = |reached: SocketAddr| {
        let is_here = |own: IpAddr| own == reached.ip() || own.is_unspecified();
        at.iter().any(|own| own.port() == reached.port() && is_here(own.ip()))
    };
    let mut registered = Registered { socket: socket.into(), entries: Vec::new() };
    for at in one_of_each_kind(at) {
        for program in PROGRAMS {
            let entry = Entry::new(program, at);
            rpcbind.register(&entry, is_own)?;
            registered.entries.push(entry);
        }
    }
    Ok(Some(registered))
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

/// `rpcbind` keeps one address of each kind: the one that most clients reach.
fn one_of_each_kind(at: &[SocketAddr]) -> impl Iterator<Item = SocketAddr> {
    let reach = |at: &SocketAddr| match at.ip() {
        ip if ip.is_unspecified() => 2,
        ip if !ip.is_loopback() => 1,
        _ => 0,
    };
    // Of equal ones the first.
    let best = |is_kind: fn(&SocketAddr) -> bool| {
        at.iter().copied().filter(is_kind).rev().max_by_key(reach)
    };
    [best(SocketAddr::is_ipv4), best(SocketAddr::is_ipv6)].into_iter().flatten()
}

/// To `rpcbind`.
struct Connection {
    stream: UnixStream,
    records: Records,
    xid: u32,
}

impl Connection {
    fn new(socket: &Path) -> Result<Connection, RpcbindError> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Connection { stream, records: Records::new(LONGEST), xid: 0 })
    }

    /// Takes the place of a server that is gone, as one that was killed.
    fn register(
        &mut self,
        entry: &Entry,
        is_own: impl Fn(SocketAddr) -> bool,
    ) -> Result<(), RpcbindError> {
        if self.change(SET, entry)? {
            return Ok(());
        }
        let all = self.dump()?;
        let other = all.iter().find(|other| other.is_same_program(entry));
        let Some(other) = other else { return Err(RpcbindError::Refused) };
        if let Some(at) = other.reached_at().filter(|at| !is_own(*at))
            && TcpStream::connect_timeout(&at, PATIENCE).is_ok()
        {
            return Err(RpcbindError::Taken(at));
        }
        self.change(UNSET, other)?;
        if self.change(SET, entry)? { Ok(()) } else { Err(RpcbindError::Refused) }
    }

    /// Whether it was done.
    fn change(&mut self, procedure: u32, entry: &Entry) -> Result<bool, RpcbindError> {
        let answer = self.call(procedure, |out| {
            out.number(entry.program);
            out.number(entry.version);
            out.bytes_of(entry.network.as_bytes());
            out.bytes_of(entry.address.as_bytes());
            // Whose it is: the kernel tells `rpcbind` who calls.
            out.bytes_of(b"");
        })?;
        Ok(self.results(&answer)?.boolean()?)
    }

    fn dump(&mut self) -> Result<Vec<Entry>, RpcbindError> {
        let answer = self.call(DUMP, |_| {})?;
        let mut results = self.results(&answer)?;
        let mut entries = Vec::new();
        while results.boolean()? {
            entries.push(entry(&mut results)?);
        }
        Ok(entries)
    }

    fn results<'a>(&self, answer: &'a [u8]) -> Result<Reader<'a>, RpcbindError> {
        message::results(answer, self.xid)?.ok_or(RpcbindError::Refused)
    }

    fn call(
        &mut self,
        procedure: u32,
        arguments: impl FnOnce(&mut Writer),
    ) -> Result<Vec<u8>, RpcbindError> {
        self.xid += 1;
        let version = *PORT_MAPPER_VERSIONS.end();
        let mut out = message::asked(self.xid, (PORT_MAPPER, version), procedure);
        arguments(&mut out);
        record::finish(&mut out);
        self.stream.write_all(out.bytes())?;
        loop {
            if let Some(answer) = self.records.take()? {
                return Ok(answer.bytes().to_vec());
            }
            let count = self.stream.read(self.records.room(Vec::new))?;
            if count == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            self.records.received(count);
        }
    }
}

fn entry(input: &mut Reader<'_>) -> Result<Entry, Garbage> {
    let (program, version) = (input.number()?, input.number()?);
    let mut text = || {
        let bytes = input.bytes(LONGEST_TEXT)?;
        std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| Garbage)
    };
    let (network, address, _owner) = (text()?, text()?, text()?);
    Ok(Entry { program, version, network, address })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;
    use crate::rpc::message::Call;

    type Table = Arc<Mutex<Vec<Entry>>>;

    /// Carries a call out as `rpcbind` does.
    fn answer(table: &Table, message: &[u8]) -> Writer {
        let mut input = Reader::new(message);
        let call = Call::read(&mut input).unwrap();
        assert_eq!((call.program, call.version), (PORT_MAPPER, 4));
        let mut out = message::accepted(call.xid, Vec::new());
        let mut table = table.lock();
        if call.procedure == DUMP {
            for Entry { program, version, network, address } in &*table {
                out.boolean(true);
                out.number(*program);
                out.number(*version);
                [network, address, "superuser"]
                    .iter()
                    .for_each(|text| out.bytes_of(text.as_bytes()));
            }
            out.boolean(false);
            return out;
        }
        let entry = entry(&mut input).unwrap();
        let place = table.iter().position(|other| other.is_same_program(&entry));
        out.boolean(match (call.procedure, place) {
            (SET, None) => {
                table.push(entry);
                true
            }
            (UNSET, Some(place)) => {
                table.remove(place);
                true
            }
            _ => false,
        });
        out
    }

    fn serve(socket: &Path) -> Table {
        let table = Table::default();
        let (listener, served) = (UnixListener::bind(socket).unwrap(), table.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, mut records) = (stream.unwrap(), Records::new(LONGEST));
                loop {
                    while let Some(record) = records.take().unwrap() {
                        let mut out = answer(&served, record.bytes());
                        record::finish(&mut out);
                        stream.write_all(out.bytes()).unwrap();
                    }
                    match stream.read(records.room(Vec::new)).unwrap() {
                        0 => break,
                        count => records.received(count),
                    }
                }
            }
        });
        table
    }

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn programs_are_registered_and_taken_back() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("rpcbind.sock");
        assert!(register(&socket, &[at("127.0.0.1:2049")]).unwrap().is_none(), "none runs");
        let table = serve(&socket);
        // One address of each kind, that of most clients.
        let all = ["127.0.0.1:2049", "192.0.2.1:2049", "192.0.2.2:2050", "[::1]:2049"].map(at);
        let registered = register(&socket, &all).unwrap().unwrap();
        let told: Vec<_> = table.lock().iter().map(|e| (e.program, e.address.clone())).collect();
        let of = |address: &str| [(NFS, address.to_owned()), (MOUNT, address.to_owned())];
        assert_eq!(told, [of("192.0.2.1.8.1"), of("::1.8.1")].concat());
        drop(registered);
        assert!(table.lock().is_empty());
    }

    #[test]
    fn a_server_that_lives_stays_and_one_that_is_gone_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("rpcbind.sock");
        let table = serve(&socket);
        let lives = TcpListener::bind("127.0.0.1:0").unwrap();
        let other = Entry::new((NFS, NFS_VERSION), lives.local_addr().unwrap());
        table.lock().push(other.clone());
        let own = at("127.0.0.1:2049");
        let error = register(&socket, &[own]).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("another server is registered, at {}", lives.local_addr().unwrap())
        );
        assert_eq!(*table.lock(), [other]);
        drop(lives);
        let registered = register(&socket, &[own]).unwrap().unwrap();
        assert_eq!(table.lock().len(), 2);
        // Killed, and started anew at the same port.
        std::mem::forget(registered);
        let registered = register(&socket, &[own]).unwrap().unwrap();
        assert_eq!(table.lock().len(), 2);
        drop(registered);
        assert!(table.lock().is_empty());
    }
}
