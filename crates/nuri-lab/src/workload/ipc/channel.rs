//! The channels that carry messages between the two processes.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nuri_ipc::{Config, CrossMemory, Endpoint, Selector};

use super::Through;
use crate::{LabError, Result, at};

/// How long one process waits until the other is there.
const MEETING: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(1);
/// The kernel copies messages from this length on: shorter ones it may not.
const COPIED: usize = 2048;
const TAG: u64 = 1;

/// Messages of a length that both sides know, in order.
pub(super) trait Channel {
    fn send(&mut self, bytes: &[u8]) -> Result<()>;
    fn recv(&mut self, into: &mut [u8]) -> Result<()>;
    /// Whether messages go as they are said to, once some have gone.
    fn check(&self) -> Result<()> {
        Ok(())
    }
}

struct Messages {
    endpoint: Endpoint,
    peer: u32,
    /// Whether the kernel is to copy.
    copied: bool,
}

impl Channel for Messages {
    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.endpoint.send(self.peer, TAG, bytes).map_err(LabError::new)
    }

    fn recv(&mut self, into: &mut [u8]) -> Result<()> {
        let from = Selector::exact(self.peer, TAG);
        let status = self.endpoint.recv(from, into, None).map_err(LabError::new)?;
        match status.len == into.len() as u64 {
            true => Ok(()),
            false => Err(LabError(format!("a message of {} bytes", status.len))),
        }
    }

    fn check(&self) -> Result<()> {
        let peers = self.endpoint.info().peers;
        let forbidden = peers.iter().find_map(|peer| peer.cross_memory.and_then(|may| may.err()));
        match forbidden.filter(|_| self.copied) {
            None => Ok(()),
            Some(errno) => Err(LabError(format!("the kernel copies nothing here: {errno}"))),
        }
    }
}

struct Streams<R, W> {
    from: R,
    to: W,
}

impl<R: Read, W: Write> Channel for Streams<R, W> {
    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.to.write_all(bytes).map_err(LabError::new)
    }

    fn recv(&mut self, into: &mut [u8]) -> Result<()> {
        self.from.read_exact(into).map_err(LabError::new)
    }
}

/// One end, once the other process opens its own; none where nothing is sent.
pub(super) fn open(through: Through, dir: &Path, rank: usize) -> Result<Option<Box<dyn Channel>>> {
    let own = rank as u32;
    let config = Config::new("lab", own, 2).dir(dir.join("ipc"));
    let messages = |config, copied| -> Result<Option<Box<dyn Channel>>> {
        let endpoint = Endpoint::open(config).map_err(LabError::new)?;
        Ok(Some(Box::new(Messages { endpoint, peer: 1 - own, copied })))
    };
    match through {
        Through::Nuri => messages(config, false),
        Through::Cma => messages(config.cross_memory(CrossMemory::From(COPIED)), true),
        Through::Unix => {
            let to = socket(&dir.join("socket"), rank).map_err(at("a socket"))?;
            let from = to.try_clone().map_err(at("a socket"))?;
            Ok(Some(Box::new(Streams { from, to })))
        }
        Through::Pipe => {
            let (from, to) = piped(dir, rank).map_err(at("a pipe"))?;
            Ok(Some(Box::new(Streams { from, to })))
        }
        Through::Memcpy => Ok(None),
    }
}

/// The first process listens; the second knocks until it does.
fn socket(path: &Path, rank: usize) -> std::io::Result<UnixStream> {
    if rank == 0 {
        let listener = UnixListener::bind(path)?;
        let (stream, _) = listener.accept()?;
        std::fs::remove_file(path)?;
        return Ok(stream);
    }
    let start = Instant::now();
    loop {
        match UnixStream::connect(path) {
            Err(_) if start.elapsed() < MEETING => std::thread::sleep(LOOK),
            connected => return connected,
        }
    }
}

/// To the second process and back.
pub(super) fn pipes(dir: &Path) -> [PathBuf; 2] {
    [dir.join("there"), dir.join("back")]
}

/// Opening waits for the other end: both open in the same order.
fn piped(dir: &Path, rank: usize) -> std::io::Result<(File, File)> {
    let [there, back] = pipes(dir);
    let to = |path: &Path| OpenOptions::new().write(true).open(path);
    if rank == 0 {
        let out = to(&there)?;
        return Ok((File::open(&back)?, out));
    }
    let from = File::open(&there)?;
    Ok((from, to(&back)?))
}
