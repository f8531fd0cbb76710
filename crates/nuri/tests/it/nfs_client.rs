//! A server of NFS as a person starts it, and a client that says each call by itself, by another
//! implementation of the protocol's layout.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nfs3_types::mount::{dirpath, mountres3, mountstat3};
use nfs3_types::nfs3::{
    self, CREATE3args, GETATTR3args, LOOKUP3args, Nfs3Result, READ3args, WRITE3args, createhow3,
    diropargs3, fattr3, nfs_fh3, nfsstat3, sattr3, stable_how, writeverf3,
};
use nfs3_types::rpc::{auth_unix, call_body, msg_body, opaque_auth, rpc_msg};
use nfs3_types::xdr_codec::{Opaque, Pack, Unpack};

use crate::support::{NURI, Space, nuri, text, wait};

pub const NFS: u32 = 100_003;
pub const MOUNT: u32 = 100_005;

/// A server of NFS, as a person starts it.
pub struct Server {
    child: Child,
    pub port: u16,
    log: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    pub fn start(space: &Space, name: &str) -> Server {
        let log = space.str(&format!("{name}.log"));
        let mut serve = Command::new(NURI);
        serve.args(["nfs", "serve", "--listen", "127.0.0.1:0", "--dir", &space.dir()]);
        let child = serve.stdout(Stdio::null()).stderr(File::create(&log).unwrap());
        let child = child.spawn().unwrap();
        let mut port = 0;
        wait("NFS is served", Duration::from_secs(10), || {
            let said = fs::read_to_string(&log).unwrap();
            let at = said.lines().find_map(|line| line.split_once("serves at 127.0.0.1:"));
            match at.and_then(|(_, number)| number.trim().parse().ok()) {
                Some(number) => port = number,
                None => return Err(said),
            }
            Ok(())
        });
        Server { child, port, log }
    }

    pub fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// As `kill -9` ends it.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// As a person ends it; fails where it does not end well.
    pub fn end(mut self) {
        let pid = rustix::process::Pid::from_raw(self.pid()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(self.child.wait().unwrap().success(), "{}", self.said());
    }
}

/// `nuri nfs export ...` of the space.
pub fn export(space: &Space, args: &[&str]) -> String {
    let dir = space.dir();
    let out = nuri(&[&["nfs", "export"], args, &["--dir", &dir]].concat());
    assert!(out.status.success(), "{args:?}: {}", text(&out.stderr));
    text(&out.stdout)
}

/// A connection to a server, and whose name it uses.
pub struct Client {
    stream: TcpStream,
    pub xid: u32,
    pub user: auth_unix,
}

pub fn packed(value: &impl Pack) -> Vec<u8> {
    let mut bytes = Vec::new();
    value.pack(&mut bytes).unwrap();
    bytes
}

pub fn place<'a>(dir: &nfs_fh3, name: &'a str) -> diropargs3<'a> {
    diropargs3 { dir: dir.clone(), name: name.as_bytes().into() }
}

/// Of a result, what it failed with.
pub fn failed<T, E>(result: Nfs3Result<T, E>) -> nfsstat3 {
    match result {
        Nfs3Result::Ok(_) => nfsstat3::NFS3_OK,
        Nfs3Result::Err((status, _)) => status,
    }
}

impl Client {
    pub fn connect(server: &Server) -> Client {
        let stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Client::over(stream)
    }

    /// From another address of this machine.
    pub fn connect_from(server: &Server, own: [u8; 4]) -> Client {
        use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&socket, &SocketAddr::from((own, 0))).unwrap();
        connect(&socket, &SocketAddr::from(([127, 0, 0, 1], server.port))).unwrap();
        Client::over(socket.into())
    }

    pub fn over(stream: TcpStream) -> Client {
        Client { stream, xid: std::process::id() << 12, user: auth_unix::default() }
    }

    /// The same connection, in the name of another user.
    pub fn be(&mut self, uid: u32, gid: u32) {
        self.user = auth_unix { uid, gid, ..auth_unix::default() };
    }

    pub fn send(&mut self, (program, procedure): (u32, u32), args: &[u8]) {
        let cred = opaque_auth::auth_unix(&self.user);
        let verf = opaque_auth::default();
        let call = call_body { rpcvers: 2, prog: program, vers: 3, proc: procedure, cred, verf };
        let head = packed(&rpc_msg { xid: self.xid, body: msg_body::CALL(call) });
        self.send_raw(&[&head, args].concat());
    }

    /// A message as it is.
    pub fn send_raw(&mut self, message: &[u8]) {
        let mark = message.len() as u32 | 1 << 31;
        self.stream.write_all(&[&mark.to_be_bytes()[..], message].concat()).unwrap();
    }

    /// The whole of the next answer, without its mark.
    pub fn receive(&mut self) -> Vec<u8> {
        let mut mark = [0; 4];
        self.stream.read_exact(&mut mark).unwrap();
        let mut answer = vec![0; (u32::from_be_bytes(mark) & !(1 << 31)) as usize];
        self.stream.read_exact(&mut answer).unwrap();
        answer
    }

    /// The results of a call that is accepted.
    pub fn call<R: Unpack>(&mut self, of: (u32, u32), args: &impl Pack) -> R {
        self.xid += 1;
        self.send(of, &packed(args));
        let answer = self.receive();
        let accepted = [self.xid, 1, 0, 0, 0, 0].map(u32::to_be_bytes).concat();
        assert_eq!(answer[..24], accepted, "{of:?}: {answer:?}");
        let mut results = &answer[24..];
        let (result, _) = R::unpack(&mut results).unwrap();
        assert!(results.is_empty(), "{of:?}: {} bytes more", results.len());
        result
    }

    /// As [`Client::nfs`], where the server may go away; the call's number stays the same then.
    pub fn try_nfs<R: Unpack>(&mut self, procedure: u32, args: &impl Pack) -> Option<R> {
        let results = self.try_results(procedure, &packed(args))?;
        self.xid += 1;
        R::unpack(&mut &results[..]).ok().map(|(result, _)| result)
    }

    /// The results of a call with the number that is due, which stays due.
    pub fn try_results(&mut self, procedure: u32, args: &[u8]) -> Option<Vec<u8>> {
        let cred = opaque_auth::auth_unix(&self.user);
        let verf = opaque_auth::default();
        let call = call_body { rpcvers: 2, prog: NFS, vers: 3, proc: procedure, cred, verf };
        let head = packed(&rpc_msg { xid: self.xid, body: msg_body::CALL(call) });
        let message = [&head, args].concat();
        let mark = message.len() as u32 | 1 << 31;
        self.stream.write_all(&[&mark.to_be_bytes()[..], &message].concat()).ok()?;
        let mut mark = [0; 4];
        self.stream.read_exact(&mut mark).ok()?;
        let mut answer = vec![0; (u32::from_be_bytes(mark) & !(1 << 31)) as usize];
        self.stream.read_exact(&mut answer).ok()?;
        Some(answer.split_off(24))
    }

    /// NFS version 3.
    pub fn nfs<R: Unpack>(&mut self, procedure: u32, args: &impl Pack) -> R {
        self.call((NFS, procedure), args)
    }

    pub fn mount(&mut self, path: &str) -> Result<nfs_fh3, mountstat3> {
        let (root, flavors) = self.mount_at_any(path)?;
        assert_eq!(flavors, [1]);
        Ok(root)
    }

    /// With the kinds of proof that the server takes.
    pub fn mount_at_any(&mut self, path: &str) -> Result<(nfs_fh3, Vec<u32>), mountstat3> {
        match self.call((MOUNT, 1), &dirpath(Opaque::owned(path.into()))) {
            mountres3::Ok(ok) => Ok((nfs_fh3 { data: ok.fhandle.0 }, ok.auth_flavors)),
            mountres3::Err(status) => Err(status),
        }
    }

    pub fn attributes(&mut self, object: &nfs_fh3) -> Result<fattr3, nfsstat3> {
        match self.nfs(1, &GETATTR3args { object: object.clone() }) {
            nfs3::GETATTR3res::Ok(ok) => Ok(ok.obj_attributes),
            nfs3::GETATTR3res::Err((status, _)) => Err(status),
        }
    }

    pub fn find(&mut self, dir: &nfs_fh3, name: &str) -> Result<nfs_fh3, nfsstat3> {
        match self.nfs(3, &LOOKUP3args { what: place(dir, name) }) {
            nfs3::LOOKUP3res::Ok(ok) => Ok(ok.object),
            nfs3::LOOKUP3res::Err((status, _)) => Err(status),
        }
    }

    pub fn make(
        &mut self,
        dir: &nfs_fh3,
        name: &str,
        how: createhow3,
    ) -> Result<nfs_fh3, nfsstat3> {
        match self.nfs(8, &CREATE3args { where_: place(dir, name), how }) {
            nfs3::CREATE3res::Ok(ok) => Ok(ok.obj.unwrap()),
            nfs3::CREATE3res::Err((status, _)) => Err(status),
        }
    }

    /// A file that is not there yet.
    pub fn make_new(&mut self, dir: &nfs_fh3, name: &str) -> Result<nfs_fh3, nfsstat3> {
        let mode = nfs3::Nfs3Option::Some(0o644);
        self.make(dir, name, createhow3::GUARDED(sattr3 { mode, ..sattr3::default() }))
    }

    pub fn write(
        &mut self,
        file: &nfs_fh3,
        (offset, data): (u64, &[u8]),
        stable: stable_how,
    ) -> Result<writeverf3, nfsstat3> {
        let (len, verifier) = self.write_some(file, (offset, data), stable)?;
        assert_eq!(len as usize, data.len());
        Ok(verifier)
    }

    /// Also where only a part of the bytes finds room: how many do.
    pub fn write_some(
        &mut self,
        file: &nfs_fh3,
        (offset, data): (u64, &[u8]),
        stable: stable_how,
    ) -> Result<(u32, writeverf3), nfsstat3> {
        let (file, count, data) = (file.clone(), data.len() as u32, Opaque::borrowed(data));
        match self.nfs(7, &WRITE3args { file, offset, count, stable, data }) {
            nfs3::WRITE3res::Ok(ok) => {
                assert_eq!(ok.committed, stable);
                Ok((ok.count, ok.verf))
            }
            nfs3::WRITE3res::Err((status, _)) => Err(status),
        }
    }

    pub fn commit(&mut self, file: &nfs_fh3) -> Result<writeverf3, nfsstat3> {
        let args = nfs3::COMMIT3args { file: file.clone(), offset: 0, count: 0 };
        match self.nfs(21, &args) {
            nfs3::COMMIT3res::Ok(ok) => Ok(ok.verf),
            nfs3::COMMIT3res::Err((status, _)) => Err(status),
        }
    }

    /// Bytes, and whether they are the last ones.
    pub fn read(
        &mut self,
        file: &nfs_fh3,
        offset: u64,
        count: u32,
    ) -> Result<(Vec<u8>, bool), nfsstat3> {
        match self.nfs(6, &READ3args { file: file.clone(), offset, count }) {
            nfs3::READ3res::Ok(ok) => {
                assert_eq!(ok.count as usize, ok.data.len());
                Ok((ok.data.to_vec(), ok.eof))
            }
            nfs3::READ3res::Err((status, _)) => Err(status),
        }
    }
}
