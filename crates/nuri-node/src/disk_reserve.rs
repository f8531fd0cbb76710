//! Keeps disk space for the metadata store, on the file system of its node's directory.
//!
//! A client's journal answers creates by itself, so a full disk must be noticed before. While less
//! than [`ROOM`] is free, the metadata server refuses operations that need space. Operations that
//! were answered by then, and removes, go on. They need space only when a full log segment moves
//! into the tables. For that the node keeps a file of as many bytes, and shortens it whenever other
//! programs left no space. The map of the space is written with this space too. Otherwise a node
//! that crashed on a full disk could not start. The file grows again as soon as there is enough
//! space.
//!
//! Only this node changes the file. A crash at any time leaves a file of some length, which the
//! next start fills up or shortens.

use std::fs::File;
use std::io;
use std::path::Path;

use nuri_kv::embedded::Embedded;
use nuri_kv::engine::KvError;
use nuri_meta::server::MetaServer;
use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, StatVfs, fallocate, fstatvfs};

use crate::failure::{Failure, at};

const FILE: &str = "room";
/// Several times what the clients' logs and half a log segment come to.
const ROOM: u64 = 64 << 20;
/// Of a small file system no more than this part.
const SHARE: u64 = 16;

/// The file that gives way. Shared by those who must write though the disk is full: the metadata
/// store and the map.
pub struct DiskReserve {
    file: File,
    size: u64,
    state: Mutex<State>,
}

#[derive(Clone, Copy, Default)]
struct State {
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
        let reserve = DiskReserve { file, size: size_on(&stat), state: Mutex::default() };
        reserve.take(&mut reserve.state.lock());
        Ok(reserve)
    }

    /// Does what may need room on the disk; where there is none, again with the file given way.
    pub fn with<R, E>(
        &self,
        mut work: impl FnMut() -> Result<R, E>,
        is_no_space: impl Fn(&E) -> bool,
    ) -> Result<R, E> {
        match work() {
            Err(error) if is_no_space(&error) => match self.give_way(&mut self.state.lock()) {
                Ok(()) => work(),
                Err(_) => Err(error),
            },
            outcome => outcome,
        }
    }

    /// Moves what waits into the tables, and tells the server how things are.
    pub fn look_after(&self, engine: &Embedded, server: &MetaServer) -> Result<(), KvError> {
        let (was_full, is_full) = {
            let mut state = self.state.lock();
            if !state.is_held && self.free() >= self.size {
                self.take(&mut state);
            }
            let is_full = !state.is_held || self.free() < self.size;
            (std::mem::replace(&mut state.is_full, is_full), is_full)
        };
        server.set_full(is_full);
        match is_full {
            _ if is_full == was_full => {}
            true => tracing::warn!("{}", shortage_of(self.size)),
            false => tracing::info!("the disk of the metadata has room again"),
        }
        self.with(|| engine.absorb_frozen(), is_store_full)
    }

    /// Bytes that other programs could still write.
    fn free(&self) -> u64 {
        fstatvfs(&self.file).map_or(0, |stat| stat.f_bavail * stat.f_frsize)
    }

    fn take(&self, state: &mut State) {
        let taken = fallocate(&self.file, FallocateFlags::empty(), 0, self.size);
        state.is_held = taken.is_ok();
        if !state.is_held {
            // A part that was taken serves nobody.
            let _ = self.give_way(state);
        }
    }

    fn give_way(&self, state: &mut State) -> io::Result<()> {
        state.is_held = false;
        self.file.set_len(0)
    }
}

/// Whether the metadata store found no room.
pub(crate) fn is_store_full(error: &KvError) -> bool {
    matches!(error, KvError::NoSpace)
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
        let room = DiskReserve::open(dir.path()).unwrap();
        let size = room.size;
        assert_eq!(len(), size);
        assert_eq!(room.with(|| Ok(1), is_store_full), Ok(1));
        assert_eq!(len(), size);
        let mut tries = 0;
        let work = || {
            tries += 1;
            if len() > 0 { Err(KvError::NoSpace) } else { Ok(()) }
        };
        assert_eq!(room.with(work, is_store_full), Ok(()));
        assert_eq!((tries, len()), (2, 0));
        let never = room.with(|| Err::<(), _>(KvError::NoSpace), is_store_full);
        assert_eq!(never, Err(KvError::NoSpace));
        drop(room);
        assert_eq!(
            (DiskReserve::open(dir.path()).unwrap().state.lock().is_held, len()),
            (true, size)
        );
    }
}
