//! Files of a space by the client library, without the kernel: each rank is a client of its own.

use std::fs::File;
use std::io::{Error, Result as IoResult};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nuri_client::{Access, Client, ClientConfig, Position, Privileges, Sync};
use nuri_proto::Status;
use nuri_proto::id::Ino;
use nuri_proto::op::meta::{Exclusive, Make, MakeKind};
use nuri_rpc::Secret;
use nuri_volume::Cluster;
use rustix::process::{getegid, geteuid};

use super::Phase;
use super::opened::Opened;
use crate::{LabError, Result, at};

/// What a mount tells of its space: where a node listens.
const SPACE_ATTRIBUTE: &str = "nuri.space";
const LONGEST_ADDRESS: usize = 512;
/// Bytes of one call of the library: as many as the kernel would send.
const CALL: usize = 1 << 20;
const INODES: usize = 1024;
const MODE: u32 = 0o644;

/// The space that a directory is in, for who has its token.
pub(super) struct Gate {
    address: String,
    secret: Secret,
    /// The directory.
    dir: Ino,
}

impl Gate {
    pub(super) fn of(dir: &Path, token: &Path) -> Result<Gate> {
        let secret = Secret::load(token).map_err(LabError::new)?.for_mounts();
        let mut address = vec![0; LONGEST_ADDRESS];
        let read = rustix::fs::getxattr(dir, SPACE_ATTRIBUTE, &mut address);
        let foreign = || LabError(format!("{} is not on a mounted space", dir.display()));
        address.truncate(read.map_err(|_| foreign())?);
        let address = String::from_utf8(address).map_err(|_| foreign())?;
        let ino = Ino(std::fs::metadata(dir).map_err(at(dir.display()))?.ino());
        Ok(Gate { address, secret, dir: ino })
    }

    /// Opens a session.
    pub(super) fn enter(self, rank: usize) -> Result<Library> {
        let cluster = Cluster::connect(&self.address, &self.secret).map_err(LabError::new)?;
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let name = format!("{host}:rank {rank} of nuri lab");
        let client =
            Client::start(&cluster, &ClientConfig { name, inodes: INODES, marks_reads: true });
        Ok(Library { client: Arc::new(client.map_err(at("no session"))?), dir: self.dir })
    }
}

/// A client, and the directory where it works.
pub(super) struct Library {
    client: Arc<Client>,
    dir: Ino,
}

impl Library {
    pub(super) fn open(&self, name: &Path, phase: Phase) -> IoResult<Box<dyn Opened>> {
        let name = name.file_name().unwrap_or_default().as_encoded_bytes();
        let (ino, access) = match phase {
            Phase::Write => (self.make(name)?, Access::Write),
            _ => (self.find(name)?, Access::Read),
        };
        let fh = self.client.open(ino, access).map_err(told)?;
        Ok(Box::new(LibraryFile { client: self.client.clone(), ino, fh }))
    }

    /// As who runs this; a file that is there is taken.
    fn make(&self, name: &[u8]) -> IoResult<Ino> {
        let made = self.client.make(&Make {
            parent: self.dir,
            name: name.to_vec(),
            kind: MakeKind::File,
            mode: MODE,
            umask: 0,
            uid: geteuid().as_raw(),
            gid: getegid().as_raw(),
            exclusive: Exclusive::No,
        });
        made.map(|entry| entry.ino).map_err(told)
    }

    fn find(&self, name: &[u8]) -> IoResult<Ino> {
        let found = self.client.lookup(self.dir, name).map_err(told)?;
        found.map(|entry| entry.ino).ok_or_else(|| told(Status::NOENT))
    }
}

impl Drop for Library {
    /// Without this the server would wait for the session's end.
    fn drop(&mut self) {
        // A phase whose bytes must be kept has synced them.
        let _ = self.client.close();
    }
}

struct LibraryFile {
    client: Arc<Client>,
    ino: Ino,
    fh: u64,
}

impl FileExt for LibraryFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> IoResult<usize> {
        let len = buf.len().min(CALL);
        self.client.read_direct(self.ino, offset, &mut buf[..len]).map_err(told)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> IoResult<usize> {
        let data = &buf[..buf.len().min(CALL)];
        let (file, place) = ((self.ino, self.fh), Position::At(offset));
        let wrote = self.client.write(file, place, data, Privileges::All).map_err(told)?;
        Ok(wrote.len as usize)
    }
}

impl Opened for LibraryFile {
    fn sync(&self) -> IoResult<()> {
        self.client.fsync(self.fh, Sync::All).map_err(told)
    }

    fn close(self: Box<Self>) -> IoResult<()> {
        self.client.flush(self.fh).map_err(told)
    }
}

impl Drop for LibraryFile {
    fn drop(&mut self) {
        self.client.release(self.fh);
    }
}

fn told(status: Status) -> Error {
    Error::from_raw_os_error(status.errno())
}

/// Lets ranks in: looks at what they need, and tells the space of the directory, which only the
/// mount may know yet. Whether the space can be reached from where they run they find out.
pub(super) fn prepare(dirs: &[PathBuf], token: &Path) -> Result<()> {
    Gate::of(&dirs[0], token)?;
    File::open(&dirs[0]).and_then(|dir| dir.sync_all()).map_err(at(dirs[0].display()))
}
