//! A simulated target: the real chunk store on a memory disk that crashes.

use std::sync::Arc;

use nuri_io::mem::MemDisk;
use nuri_io::rng::Rng;
use nuri_proto::Status;
use nuri_proto::id::{BootId, ChunkKey, ClusterId, Incarnation, ObjectId, TargetId};
use nuri_proto::op::data::Durability;
use nuri_target::store::{ChunkStore, FormatOptions, StoreConfig, check};

use crate::check::{Wrong, wrong};

type Store = ChunkStore<Arc<MemDisk>>;

/// What is asked of a target.
#[derive(Clone)]
pub enum Ask {
    Write {
        key: ChunkKey,
        offset: u32,
        data: Arc<Vec<u8>>,
        durability: Durability,
    },
    Read {
        key: ChunkKey,
        offset: u32,
        len: u32,
    },
    Flush,
    Delete(Vec<ObjectId>),
    /// Takes off all stripes from this one on.
    Truncate(ObjectId, u32),
    Punch {
        key: ChunkKey,
        offset: u32,
        len: u32,
    },
}

/// What it answers.
pub enum Answer {
    Written(BootId),
    Bytes(Vec<u8>),
    Flushed(BootId),
    /// Nothing but that it is done.
    Done,
    Refused(Status),
}

pub struct Target {
    pub id: TargetId,
    disk: Arc<MemDisk>,
    store: Option<Store>,
    boots: u64,
    /// The disk fails soon: its read errors are told as corrupt blocks.
    dying: bool,
}

const CONFIG: StoreConfig =
    StoreConfig { overlay_bytes: 64 * 4096, checksum_cache_bytes: 16 * 4096 };

impl Target {
    /// # Errors
    /// Where the store cannot be made.
    pub fn new(id: TargetId, capacity_bytes: u64) -> Result<Target, Wrong> {
        let disk = Arc::new(MemDisk::new());
        let options = FormatOptions {
            cluster: ClusterId([1; 16]),
            target: Some(id),
            incarnation: Incarnation(u64::from(id.0)),
            capacity_bytes,
            log_bytes: FormatOptions::LOG_BYTES,
        };
        ChunkStore::format(&disk, options).map_err(|e| wrong!("format: {e}"))?;
        let mut target = Target { id, disk, store: None, boots: 0, dying: false };
        target.start()?;
        Ok(target)
    }

    /// Takes space away until so many bytes are left.
    ///
    /// # Errors
    /// Where the store refuses.
    pub fn fill(&self, leave: u64) -> Result<(), Wrong> {
        const PART: u32 = 32 << 10;
        let Some(store) = &self.store else { return Ok(()) };
        let key = ChunkKey { object: ObjectId(u64::MAX), component: 0, stripe: 0 };
        let mut at = 0;
        while store.usage().used + leave < store.usage().size {
            let written = store.write(key, at, &[7; PART as usize], Durability::Stable);
            written.map_err(|e| wrong!("fill: {e}"))?;
            at += PART;
        }
        Ok(())
    }

    pub fn is_up(&self) -> bool {
        self.store.is_some()
    }

    /// Opens the store under a new boot id.
    ///
    /// # Errors
    /// A store that a crash left must open.
    pub fn start(&mut self) -> Result<(), Wrong> {
        if self.store.is_none() {
            self.boots += 1;
            let boot = BootId(u64::from(self.id.0) << 32 | self.boots);
            let store = ChunkStore::open(self.disk.clone(), boot, CONFIG);
            self.store = Some(store.map_err(|e| wrong!("target {}: open: {e}", self.id))?);
        }
        Ok(())
    }

    /// Power is lost now.
    pub fn crash(&mut self, rng: &mut Rng) {
        let image = self.disk.crash_image(rng);
        (self.store, self.dying) = (None, false);
        self.disk = Arc::new(image);
    }

    /// The disk dies after a few more transfers, in the middle of whatever comes next.
    pub fn crash_soon(&mut self, rng: &mut Rng) {
        self.dying = true;
        self.disk.fail_after(rng.below(8));
    }

    /// `None`: the target fell over while it worked.
    pub fn ask(&self, ask: &Ask) -> Option<Answer> {
        let store = self.store.as_ref()?;
        let outcome = match ask {
            Ask::Write { key, offset, data, durability } => {
                store.write(*key, *offset, data, *durability).map(|_| Answer::Written(store.boot()))
            }
            Ask::Read { key, offset, len } => {
                let mut buf = vec![0xee; *len as usize];
                store.read(*key, *offset, &mut buf).map(|()| Answer::Bytes(buf))
            }
            Ask::Flush => store.flush().map(|()| Answer::Flushed(store.boot())),
            Ask::Delete(objects) => store.delete(objects).map(|()| Answer::Done),
            Ask::Truncate(object, from) => store.truncate(*object, *from).map(|_| Answer::Done),
            Ask::Punch { key, offset, len } => {
                store.punch(*key, *offset, *len).map(|_| Answer::Done)
            }
        };
        match outcome {
            Ok(answer) => Some(answer),
            Err(_) if self.dying || !store.is_in_service() => None,
            Err(error) => Some(Answer::Refused(error.into())),
        }
    }

    /// Moves small writes to their places, as the server's thread does.
    pub fn checkpoint(&self) -> bool {
        self.store.as_ref().is_none_or(|store| {
            let done = store.checkpoint().is_ok();
            store.trim(u64::MAX);
            done
        })
    }

    /// # Errors
    /// What the check of the stopped store found.
    pub fn check(&self) -> Result<(), Wrong> {
        let report = check::check(&self.disk);
        if report.is_clean() {
            Ok(())
        } else {
            Err(wrong!("target {}: check: {:?}", self.id, report.problems))
        }
    }

    /// Turns bits of stored data over.
    pub fn rot(&self, rng: &mut Rng) {
        if let Some(store) = &self.store {
            let regions = store.superblock().regions;
            let span = regions.data_blocks * 4096;
            for _ in 0..200 {
                self.disk.flip_bit(regions.data_at + rng.below(span), rng.below(8) as u32);
            }
        }
    }
}
