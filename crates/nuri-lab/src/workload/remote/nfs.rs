//! A file at a server of NFS version 3 (RFC 1813), in the directory that is exported.

use std::io::{Error, ErrorKind, Read, Result as IoResult, Write};
use std::net::{Shutdown, TcpStream};

use nfs3_types::mount::{dirpath, mountres3};
use nfs3_types::nfs3::{
    COMMIT3args, COMMIT3res, CREATE3args, CREATE3res, LOOKUP3args, LOOKUP3res, Nfs3Option,
    Nfs3Result, READ3args, READ3res, REMOVE3args, REMOVE3res, WRITE3args, WRITE3res, createhow3,
    diropargs3, nfs_fh3, nfsstat3, sattr3, stable_how,
};
use nfs3_types::rpc::{auth_unix, call_body, msg_body, opaque_auth, rpc_msg};
use nfs3_types::xdr_codec::{Opaque, Pack, Unpack};
use rustix::process::{getegid, geteuid};

use super::stream::{Answer, Ask, Hear, Heard, NUMBERS, Request, Stream};
use super::{Opened, Share, connect, unanswered};
use crate::server::Server;

const NFS: u32 = 100_003;
const MOUNT: u32 = 100_005;
const MNT: u32 = 1;
const LOOKUP: u32 = 3;
const READ: u32 = 6;
const WRITE: u32 = 7;
const CREATE: u32 = 8;
const REMOVE: u32 = 12;
const COMMIT: u32 = 21;
const MODE: u32 = 0o600;
/// Of one request, as every server takes it.
const MOST: usize = 1 << 20;
const LONGEST_ANSWER: u32 = 2 << 20;
/// A record's last fragment: our servers send no others.
const LAST: u32 = 1 << 31;
/// Where the answer's results begin: number, reply, accepted, no verifier (two words), success.
const ACCEPTED: [u32; 5] = [1, 0, 0, 0, 0];
/// The highest bits of a call's number, above [`NUMBERS`], say what its answer is.
const KIND: u32 = NUMBERS.trailing_zeros();

pub(super) fn create(server: &Server, share: Share) -> IoResult<Box<dyn Opened>> {
    let mut session = Session::open(server)?;
    let size = Nfs3Option::Some(0);
    let how = sattr3 { mode: Nfs3Option::Some(MODE), size, ..sattr3::default() };
    let name = name(share);
    let args = CREATE3args { where_: session.place(&name), how: createhow3::UNCHECKED(how) };
    let made: CREATE3res = session.call((NFS, CREATE), &args)?;
    let made = ok(made)?.obj;
    match made {
        Nfs3Option::Some(file) => session.stream(file, share),
        Nfs3Option::None => open(server, share),
    }
}

pub(super) fn open(server: &Server, share: Share) -> IoResult<Box<dyn Opened>> {
    let mut session = Session::open(server)?;
    let name = name(share);
    let args = LOOKUP3args { what: session.place(&name) };
    let found: LOOKUP3res = session.call((NFS, LOOKUP), &args)?;
    session.stream(ok(found)?.object, share)
}

pub(super) fn remove(server: &Server, share: Share) -> IoResult<()> {
    let mut session = Session::open(server)?;
    let name = name(share);
    let args = REMOVE3args { object: session.place(&name) };
    let gone: REMOVE3res = session.call((NFS, REMOVE), &args)?;
    ok(gone).map(drop)
}

/// Of the rank's file.
fn name(share: Share) -> String {
    let (host, pid) = (rustix::system::uname(), rustix::process::getppid());
    let pid = pid.map_or(0, |pid| pid.as_raw_nonzero().get());
    let host = host.nodename().to_string_lossy();
    format!(".nuri-lab-{pid}-{host}.{}", share.rank)
}

/// The results of a call that went well.
fn ok<T, E>(result: Nfs3Result<T, E>) -> IoResult<T> {
    match result {
        Nfs3Result::Ok(value) => Ok(value),
        Nfs3Result::Err((status, _)) => Err(told(status)),
    }
}

fn told(status: nfsstat3) -> Error {
    Error::other(format!("{status:?}"))
}

fn odd(text: &str) -> Error {
    Error::new(ErrorKind::InvalidData, text)
}

/// A connection, and the exported directory.
struct Session {
    stream: TcpStream,
    root: nfs_fh3,
}

impl Session {
    fn open(server: &Server) -> IoResult<Session> {
        let mut session = Session { stream: connect(server)?, root: nfs_fh3::default() };
        let path = dirpath(Opaque::borrowed(server.export.as_bytes()));
        match session.call((MOUNT, MNT), &path)? {
            mountres3::Ok(ok) => session.root = nfs_fh3 { data: ok.fhandle.0 },
            mountres3::Err(status) => {
                return Err(Error::other(format!("the server does not give it: {status:?}")));
            }
        }
        Ok(session)
    }

    fn place<'a>(&self, name: &'a str) -> diropargs3<'a> {
        diropargs3 { dir: self.root.clone(), name: name.as_bytes().into() }
    }

    fn call<R: Unpack>(&mut self, of: (u32, u32), args: &impl Pack) -> IoResult<R> {
        send(&mut self.stream, (1, of), args)?;
        let (_, results) = receive(&mut self.stream)?;
        read(&results)
    }

    fn stream(self, file: nfs_fh3, share: Share) -> IoResult<Box<dyn Opened>> {
        let hear = Answers(self.stream.try_clone()?);
        let ask = File { stream: self.stream, file };
        Ok(Box::new(Stream::new(ask, hear, (0, share.len))))
    }
}

fn send(stream: &mut TcpStream, (xid, of): (u32, (u32, u32)), args: &impl Pack) -> IoResult<()> {
    let user = auth_unix { uid: geteuid().as_raw(), gid: getegid().as_raw(), ..Default::default() };
    let cred = opaque_auth::auth_unix(&user);
    let verf = opaque_auth::default();
    let call = call_body { rpcvers: 2, prog: of.0, vers: 3, proc: of.1, cred, verf };
    let mut message = vec![0; 4];
    let not_packed = |error| odd(&format!("{error}"));
    rpc_msg { xid, body: msg_body::CALL(call) }.pack(&mut message).map_err(not_packed)?;
    args.pack(&mut message).map_err(not_packed)?;
    let mark = (message.len() as u32 - 4) | LAST;
    message[..4].copy_from_slice(&mark.to_be_bytes());
    stream.write_all(&message).map_err(unanswered)
}

/// The number and the results of a call that was accepted.
fn receive(stream: &mut TcpStream) -> IoResult<(u32, Vec<u8>)> {
    let mut word = [0; 4];
    stream.read_exact(&mut word).map_err(unanswered)?;
    let mark = u32::from_be_bytes(word);
    if mark & LAST == 0 || mark & !LAST > LONGEST_ANSWER {
        return Err(odd("the server's answer is not understood"));
    }
    let mut answer = vec![0; (mark & !LAST) as usize];
    stream.read_exact(&mut answer).map_err(unanswered)?;
    let accepted = ACCEPTED.map(u32::to_be_bytes).concat();
    match answer.split_at_checked(4 + accepted.len()) {
        Some((head, results)) if head[4..] == accepted => {
            let xid = [head[0], head[1], head[2], head[3]];
            Ok((u32::from_be_bytes(xid), results.to_vec()))
        }
        _ => Err(odd("the server refuses a call")),
    }
}

fn read<R: Unpack>(mut results: &[u8]) -> IoResult<R> {
    R::unpack(&mut results).map(|(value, _)| value).map_err(|error| odd(&format!("{error}")))
}

/// What is asked of a file.
struct File {
    stream: TcpStream,
    file: nfs_fh3,
}

impl Ask for File {
    fn ask(&mut self, number: u32, request: &Request) -> IoResult<()> {
        let file = self.file.clone();
        let call = |kind: u32, procedure| (kind << KIND | number, (NFS, procedure));
        match request {
            Request::Read { at, len } => {
                let args = READ3args { file, offset: *at, count: *len };
                send(&mut self.stream, call(1, READ), &args)
            }
            Request::Write { at, data } => {
                let (count, stable) = (data.len() as u32, stable_how::UNSTABLE);
                let data = Opaque::borrowed(data);
                let args = WRITE3args { file, offset: *at, count, stable, data };
                send(&mut self.stream, call(2, WRITE), &args)
            }
            Request::Sync => {
                let args = COMMIT3args { file, offset: 0, count: 0 };
                send(&mut self.stream, call(3, COMMIT), &args)
            }
        }
    }

    fn most(&self) -> usize {
        MOST
    }

    fn end(&mut self) {
        // It has gone already where that fails.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

struct Answers(TcpStream);

impl Hear for Answers {
    fn hear(&mut self) -> Heard {
        let (xid, results) = receive(&mut self.0)?;
        let outcome = match xid >> KIND {
            1 => ok(read::<READ3res>(&results)?).map(|ok| Answer::Read(ok.data.to_vec())),
            2 => ok(read::<WRITE3res>(&results)?).map(|ok| Answer::Wrote(Some(ok.count.into()))),
            _ => ok(read::<COMMIT3res>(&results)?).map(|_| Answer::Wrote(None)),
        };
        Ok((xid % NUMBERS, outcome))
    }
}
