//! The node that keeps the copy: it answers the calls of `op::copy`.
//!
//! 1 a directory for the new generation      crash: half made, removed by the next copy
//! 2 its files are filled, and followed      crash: as above
//! 3 files synced, `whole.json` written      crash: the newer of two whole copies counts
//! 4 copies of earlier generations go
//! 5 changes go on, each sync is a sync here crash: what a crash there could have left
//!
//! A restarted keeper accepts nothing more for the old generation, because it may lack what was
//! sent last. The copy stays what it is: a whole copy as of then.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nuri_cluster::store::{FileStore, MapStore};
use nuri_io::disk::Disk;
use nuri_io::file::OpenMode;
use nuri_io::uring::open_disk;
use nuri_proto::Status;
use nuri_proto::id::ClusterId;
use nuri_proto::limit::MAX_PAYLOAD;
use nuri_proto::op::Op;
use nuri_proto::op::copy::{
    Change, CopyBegin, CopyFile, CopyLatest, CopyMap, CopyWhole, CopyWrite, Origin,
};
use nuri_proto::op::data::Durability;
use nuri_rpc::{Reply, Request, reply_to};
use nuri_watch::calendar::unix_now;
use parking_lot::Mutex;

use super::{FORMAT, Found, LAST_GENERATION, WHOLE, Whole, copies, copy_path};
use crate::directory::{MAP, META_LOG, META_TABLES, save_json};
use crate::failure::{Failure, at};

/// Keeps copies in one node's directory.
pub struct Keeper {
    dir: PathBuf,
    cluster: ClusterId,
    /// The copy that is made or followed.
    open: Mutex<Option<Arc<Open>>>,
    /// Held while copies come and go.
    settling: Mutex<()>,
}

struct Open {
    origin: Origin,
    path: PathBuf,
    log: Arc<dyn Disk>,
    tables: Arc<dyn Disk>,
    map: FileStore,
}

impl Keeper {
    pub fn new(dir: &Path, cluster: ClusterId) -> Keeper {
        Keeper { dir: dir.to_owned(), cluster, open: Mutex::default(), settling: Mutex::default() }
    }

    pub fn serve(&self, request: &Request<'_>) -> Reply {
        let args = request.args;
        match request.op {
            Op::CopyLatest => reply_to::<CopyLatest>(args, |_| told(self.latest())),
            Op::CopyBegin => reply_to::<CopyBegin>(args, |c| self.begin(c.origin)),
            Op::CopyWrite => reply_to::<CopyWrite>(args, |c| self.write(&c, request.payload)),
            Op::CopyMap => reply_to::<CopyMap>(args, |c| self.map(&c)),
            Op::CopyWhole => reply_to::<CopyWhole>(args, |c| self.whole(c.generation)),
            _ => Reply::failed(Status::NOTSUP),
        }
    }

    fn latest(&self) -> Result<u64, Failure> {
        Ok(copies(&self.dir)?.iter().map(|c| c.generation).max().unwrap_or(0))
    }

    fn begin(&self, origin: Origin) -> Result<(), Status> {
        if origin.cluster != self.cluster {
            return Err(Status::WRONG_PEER);
        }
        // They rise by one: this would leave none for those to come.
        if origin.generation > LAST_GENERATION {
            return Err(Status::INVAL);
        }
        let _one_at_a_time = self.settling.lock();
        if origin.generation <= told(self.latest())? {
            return Err(Status::EXIST);
        }
        *self.open.lock() = None;
        let made = told(self.make(origin))?;
        *self.open.lock() = Some(Arc::new(made));
        Ok(())
    }

    fn make(&self, origin: Origin) -> Result<Open, Failure> {
        for half in copies(&self.dir)?.into_iter().filter(|c| c.whole.is_none()) {
            remove(&half.path)?;
        }
        let path = copy_path(&self.dir, origin.generation);
        fs::create_dir(&path).map_err(at(format!("cannot make {}", path.display())))?;
        let disk = |name: &str| {
            let path = path.join(name);
            open_disk(&path, OpenMode::Create).map_err(at(format!("cannot make {path:?}")))
        };
        let (log, tables) = (disk(META_LOG)?, disk(META_TABLES)?);
        let map = FileStore::new(&path.join(MAP));
        Ok(Open { origin, path, log, tables, map })
    }

    /// The copy of this generation; another one is followed no longer.
    fn following(&self, generation: u64) -> Result<Arc<Open>, Status> {
        let open = self.open.lock();
        let this = open.as_ref().filter(|open| open.origin.generation == generation);
        this.cloned().ok_or(Status::NOENT)
    }

    fn write(&self, call: &CopyWrite, mut data: &[u8]) -> Result<(), Status> {
        let open = self.following(call.generation)?;
        let disk = match call.file {
            CopyFile::Log => &open.log,
            CopyFile::Tables => &open.tables,
        };
        // What one call may have written.
        let mut zeros = MAX_PAYLOAD;
        for change in &call.changes {
            let done = match *change {
                Change::SetLen(len) => disk.set_len(len),
                Change::Zero { at, len } => {
                    zeros = zeros.checked_sub(len as usize).ok_or(Status::INVAL)?;
                    disk.write_at(at, &vec![0; len as usize])
                }
                Change::Write { at, len } => {
                    let (now, later) = data.split_at_checked(len as usize).ok_or(Status::INVAL)?;
                    data = later;
                    disk.write_at(at, now)
                }
            };
            told(done.map_err(at(open.path.display())))?;
        }
        if call.durability == Durability::Stable {
            told(disk.sync().map_err(at(open.path.display())))?;
        }
        Ok(())
    }

    fn map(&self, call: &CopyMap) -> Result<(), Status> {
        let open = self.following(call.generation)?;
        told(open.map.save(&call.map).map_err(Failure::new))
    }

    fn whole(&self, generation: u64) -> Result<(), Status> {
        let _one_at_a_time = self.settling.lock();
        let open = self.following(generation)?;
        told(self.finish(&open))
    }

    fn finish(&self, open: &Open) -> Result<(), Failure> {
        let path = open.path.display();
        if open.map.load().map_err(Failure::new)?.is_none() {
            return Err(Failure(format!("{path} has no map")));
        }
        let synced = open.log.sync().and_then(|()| open.tables.sync());
        synced.map_err(at(&path))?;
        let origin = &open.origin;
        let whole = Whole {
            format: FORMAT,
            cluster: origin.cluster.to_string(),
            generation: origin.generation,
            node: origin.node.0,
            address: origin.address.clone(),
            since: unix_now(),
        };
        save_json(&open.path.join(WHOLE), &whole)?;
        // The older copy goes only once the newer one's name is durable.
        let named = fs::File::open(&self.dir).and_then(|dir| dir.sync_all());
        named.map_err(at(self.dir.display()))?;
        // What another space left here is not ours to remove.
        let older = |c: &Found| {
            let ours = c.whole.as_ref().is_none_or(|w| w.cluster == whole.cluster);
            c.generation < origin.generation && ours
        };
        copies(&self.dir)?.iter().filter(|c| older(c)).try_for_each(|old| remove(&old.path))
    }
}

/// Removes a copy. What makes it whole goes first: its rest is never taken for a copy.
fn remove(path: &Path) -> Result<(), Failure> {
    let gone = || -> std::io::Result<()> {
        let whole = path.join(WHOLE);
        if whole.exists() {
            fs::remove_file(whole)?;
            fs::File::open(path)?.sync_all()?;
        }
        fs::remove_dir_all(path)
    };
    gone().map_err(at(format!("cannot remove {}", path.display())))
}

/// What went wrong here is for this node's log; the first node only needs to know that it did.
fn told<T>(outcome: Result<T, Failure>) -> Result<T, Status> {
    outcome.map_err(|why| {
        tracing::warn!("copy of the metadata: {why}");
        Status::IO
    })
}
