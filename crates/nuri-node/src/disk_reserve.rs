//! Room for the metadata store on the file system of its node's directory.
//!
//! The client log answers creates by itself, so a full disk must be known before: while less than
//! [`ROOM`] is free the metadata server refuses what grows. What was answered by then, and removes,
//! go on: they need room only when a full log segment moves into the tables, and for that a file of
//! as many bytes is kept, which gives way whenever other programs left nothing. It is taken again
//! as soon as there is room for it.
//!
//! Only this node's own thread changes the file; a crash at any time leaves a file of some length,
//! which the next start fills up or gives way.

use std::fs::File;
use std::io;
use std::path::Path;

use nuri_kv::embedded::Embedded;
use nuri_kv::engine::KvError;
use nuri_meta::server::MetaServer;
use rustix::fs::{FallocateFlags, StatVfs, fallocate, fstatvfs};

use crate::failure::{Failure, at};

const FILE: &str = "room";
/// Several times what the clients' logs and half a log segment come to.
const ROOM: u64 = 64 << 20;
/// Of a small file system no more than this part.
const SHARE: u64 = 16;

/// The file that gives way.
pub struct DiskReserve {
    file: File,
    size: u64,
    is_held: bool,
    is_full: bool,
}

impl DiskReserve {
    /// Takes the room, if there is as much.
    pub fn open(dir: &Path) -> Result<DiskReserve, Failure> {
        let path = dir.join(FILE);
        let mut options = File::options();
        let file = options.write(true).create(true).truncate(false).open(&path);
        let file = file.map_err(at(format!("cannot open {}", path.display())))?;
        let stat = fstatvfs(&file).map_err(at(format!("cannot look at {}", path.display())))?;
        let size = size_on(&stat);
        let mut room = DiskReserve { file, size, is_held: false, is_full: false };
        room.take();
        Ok(room)
    }

    /// Does what may need room on the disk; where there is none, again with the file given way.
    pub fn with<R>(&mut self, mut work: impl FnMut() -> Result<R, KvError>) -> Result<R, KvError> {
        match work() {
            Err(KvError::NoSpace) if self.is_held => {
                self.give_way().map_err(|e| KvError::Io(e.to_string()))?;
                work()
            }
            outcome => outcome,
        }
    }

    /// Moves what waits into the tables, and tells the server how things are.
    pub fn look_after(&mut self, engine: &Embedded, server: &MetaServer) -> Result<(), KvError> {
        if !self.is_held && self.free() >= self.size {
            self.take();
        }
        let is_full = !self.is_held || self.free() < self.size;
        server.set_full(is_full);
        if is_full != std::mem::replace(&mut self.is_full, is_full) {
            self.tell();
        }
        self.with(|| engine.absorb_frozen())
    }

    fn tell(&self) {
        match self.is_full {
            true => tracing::warn!("{}", shortage_of(self.size)),
            false => tracing::info!("the disk of the metadata has room again"),
        }
    }

    /// Bytes that other programs could still write.
    fn free(&self) -> u64 {
        fstatvfs(&self.file).map_or(0, |stat| stat.f_bavail * stat.f_frsize)
    }

    fn take(&mut self) {
        self.is_held = fallocate(&self.file, FallocateFlags::empty(), 0, self.size).is_ok();
        if !self.is_held {
            // A part that was taken serves nobody.
            let _ = self.give_way();
        }
    }

    fn give_way(&mut self) -> io::Result<()> {
        self.is_held = false;
        self.file.set_len(0)
    }
}

fn shortage_of(size: u64) -> String {
    format!(
        "the disk of the metadata is nearly full: nothing new is made until {} MiB are free there",
        size >> 20
    )
}

fn size_on(stat: &StatVfs) -> u64 {
    ROOM.min(stat.f_blocks * stat.f_frsize / SHARE)
}

/// What there is to say of the metadata's disk in a node's directory.
pub fn shortage(dir: &Path) -> Option<String> {
    let file = File::open(dir.join(FILE)).ok()?;
    let (stat, len) = (fstatvfs(&file).ok()?, file.metadata().ok()?.len());
    let size = size_on(&stat);
    (len < size || stat.f_bavail * stat.f_frsize < size).then(|| shortage_of(size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_gives_way_to_work_that_needs_room_and_only_then() {
        let dir = tempfile::tempdir().unwrap();
        let len = || std::fs::metadata(dir.path().join(FILE)).unwrap().len();
        let mut room = DiskReserve::open(dir.path()).unwrap();
        let size = room.size;
        assert_eq!(len(), size);
        assert_eq!(room.with(|| Ok(1)), Ok(1));
        assert_eq!(len(), size);
        let mut tries = 0;
        let outcome = room.with(|| {
            tries += 1;
            if len() > 0 { Err(KvError::NoSpace) } else { Ok(()) }
        });
        assert_eq!((outcome, tries, len()), (Ok(()), 2, 0));
        assert_eq!(room.with(|| Err::<(), _>(KvError::NoSpace)), Err(KvError::NoSpace));
        drop(room);
        assert_eq!((DiskReserve::open(dir.path()).unwrap().is_held, len()), (true, size));
    }
}
