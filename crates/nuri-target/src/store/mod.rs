//! The chunk store: chunks of objects on one disk, checksummed, crash-safe, bounded.
//!
//! One lock guards the memory (index, overlay, free map, journal); data moves without it. Writes
//! from 64 KiB go once to new places, and then a record makes them valid (`write.rs`). Smaller
//! writes go into the log as whole blocks. They shadow the disk from the overlay until a checkpoint
//! applies them (`checkpoint.rs`, with the write order). Every block read from the disk is verified
//! (`read.rs`). Any failed write or sync takes the store out of service until it is reopened.
//! Chunks of redundant groups keep staged writes beside their base (`member.rs`).
//!
//! Callers: the target's server, `nuri target check`, tests. Lock order: install shard, merge
//! shard, moving, checkpoint, state.

mod alloc;
mod bytes;
pub mod check;
mod checkpoint;
mod contents;
mod credits;
mod error;
mod held;
mod image;
mod index;
mod install;
mod journal;
mod leaves;
pub mod log;
mod member;
mod prove;
mod read;
mod recover;
mod room;
mod shadow;
mod state;
mod sums;
mod superblock;
mod trim_zeros;
mod write;

use std::time::Duration;

use nuri_io::disk::Disk;
use nuri_proto::id::{BootId, ChunkKey, ClusterId, Epoch, Incarnation, SessionId, TargetId};
use nuri_proto::limit;
use nuri_rules::broken;
use parking_lot::{Condvar, Mutex};

pub use credits::Payer;
pub use error::{FormatError, OpenError, StoreError};
pub use index::Extent;
pub use member::MemberRead;
pub use prove::Proof;
pub use shadow::is_base;
pub use superblock::{CheckpointAt, FormatOptions, LogStart, MIN_CAPACITY, Regions, Superblock};

use credits::Wish;
use journal::{Batch, Journal};
use state::State;

/// Unit of allocation and checksums, bytes.
const BLOCK: usize = limit::BLOCK as usize;
/// Blocks of the largest chunk.
const CHUNK_BLOCKS: u32 = limit::MAX_CHUNK / limit::BLOCK as u32;
/// Locks that serialise writes of parts of blocks, and as many for parts of installs, by chunk.
const MERGE_SHARDS: usize = 64;
/// Births skipped at opening: more than writes in flight at a crash can have used.
const BIRTH_GAP: u64 = 1 << 20;

/// Memory bounds of an open store.
#[derive(Clone, Copy, Debug)]
pub struct StoreConfig {
    /// Small writes kept in memory until applied, bytes.
    pub overlay_bytes: usize,
    /// Pages of the checksum table, bytes.
    pub checksum_cache_bytes: usize,
}

impl Default for StoreConfig {
    fn default() -> Self {
        StoreConfig { overlay_bytes: 24 << 20, checksum_cache_bytes: 32 << 20 }
    }
}

impl StoreConfig {
    fn overlay_blocks(&self) -> usize {
        // The longest small write must fit.
        (self.overlay_bytes / BLOCK).max(64)
    }
}

/// What a write did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WriteOutcome {
    /// Bytes of holes that hold data now, in whole blocks.
    pub allocated_bytes: u64,
}

/// Room for chunks, bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usage {
    pub size: u64,
    pub used: u64,
}

/// See the module's text.
pub struct ChunkStore<D: Disk> {
    disk: D,
    config: StoreConfig,
    boot: BootId,
    regions: superblock::Regions,
    state: Mutex<State>,
    /// A batch became durable, or the store failed.
    flushed: Condvar,
    /// A checkpoint is wanted.
    work: Condvar,
    /// Held during a checkpoint and any other change of the superblock.
    checkpointing: Mutex<()>,
    /// Held while free blocks move between map, reserve and device.
    moving: Mutex<()>,
    merging: Vec<Mutex<()>>,
    installing: Vec<Mutex<()>>,
}

impl<D: Disk> ChunkStore<D> {
    /// Makes an empty store on the disk; whatever was there is lost.
    ///
    /// # Errors
    /// A capacity too small, or the disk's errors.
    pub fn format(disk: &D, options: FormatOptions) -> Result<Superblock, FormatError> {
        superblock::format(disk, &options)
    }

    /// Opens a store: loads the index, replays the log, and starts a new log generation.
    ///
    /// # Errors
    /// Damage, an unknown format, or the disk's errors; the store was then not changed, except
    /// that small writes may have been applied.
    pub fn open(disk: D, boot: BootId, config: StoreConfig) -> Result<Self, OpenError> {
        let superblock = Superblock::load(&disk)?;
        let found = recover::load(&disk, &superblock, config.checksum_cache_bytes)?;
        let (mut free, twice) = recover::free_map(&found, superblock.regions.data_blocks);
        if let Some(first) = twice.into_iter().next() {
            return Err(OpenError::IndexDamaged(first));
        }
        let start =
            LogStart { generation: found.log_end.generation.wrapping_add(1), ..found.log_end };
        let regions = superblock.regions;
        room::find_written(&disk, &regions, &mut free)?;
        let journal = Journal::new(&regions, start);
        let mut state = State::new(found.contents, free, found.sums, journal, superblock);
        state.image = found.image;
        state.next_birth = found.next_birth + BIRTH_GAP;
        if disk.is_sparse() {
            state.refill(0);
        }
        let store = ChunkStore {
            disk,
            config,
            boot,
            regions,
            state: Mutex::new(state),
            flushed: Condvar::new(),
            work: Condvar::new(),
            checkpointing: Mutex::new(()),
            moving: Mutex::new(()),
            merging: (0..MERGE_SHARDS).map(|_| Mutex::new(())).collect(),
            installing: (0..MERGE_SHARDS).map(|_| Mutex::new(())).collect(),
        };
        if found.records > 0 || found.dropped {
            store.checkpoint()?;
        } else {
            store.change_superblock(|superblock| {
                superblock.log = start;
                Ok(())
            })?;
        }
        if store.disk.is_sparse() {
            // Where there is none, the first writes say so.
            let _ = store.make_room(0);
        }
        Ok(store)
    }

    /// Gives a store that belongs to nobody its cluster and target id, durably. Giving it the same
    /// ones again is success.
    ///
    /// # Errors
    /// [`StoreError::Assigned`] where it belongs to another.
    pub fn assign(&self, cluster: ClusterId, target: TargetId) -> Result<(), StoreError> {
        self.change_superblock(|superblock| {
            let owner = (superblock.cluster, superblock.target);
            if owner.1 != TargetId(0) && owner != (cluster, target) {
                return Err(StoreError::Assigned(owner.0, owner.1));
            }
            (superblock.cluster, superblock.target) = (cluster, target);
            Ok(())
        })
    }

    /// Notes, durably, that this target obeys the map of that epoch and no older one.
    ///
    /// # Errors
    /// Out of service.
    pub fn obey(&self, map: Epoch) -> Result<(), StoreError> {
        if self.superblock().map_epoch >= map {
            return Ok(());
        }
        self.change_superblock(|superblock| {
            superblock.map_epoch = superblock.map_epoch.max(map);
            Ok(())
        })
    }

    /// Notes, durably, that the authority refused this state as an older one, or that it took it.
    ///
    /// # Errors
    /// Out of service.
    pub fn doubt(&self, doubted: bool) -> Result<(), StoreError> {
        if self.superblock().is_doubted() == doubted {
            return Ok(());
        }
        self.change_superblock(|superblock| {
            superblock.doubt(doubted);
            Ok(())
        })
    }

    fn change_superblock(
        &self,
        change: impl FnOnce(&mut Superblock) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let _alone = self.checkpointing.lock();
        let mut next = {
            let state = self.state.lock();
            state.check()?;
            state.superblock.clone()
        };
        change(&mut next)?;
        next.sequence += 1;
        let stored = next.store(&self.disk);
        let mut state = self.state.lock();
        stored.map_err(|e| state.fail("superblock write", &e))?;
        state.superblock = next;
        Ok(())
    }

    /// Whether no I/O error stopped the store since it was opened.
    pub fn is_in_service(&self) -> bool {
        self.failure().is_none()
    }

    /// The I/O error that stopped the store, if one did.
    pub fn failure(&self) -> Option<std::sync::Arc<str>> {
        self.state.lock().failed.clone()
    }

    /// Who holds what is not flushed yet.
    pub fn boot(&self) -> BootId {
        self.boot
    }

    pub fn superblock(&self) -> Superblock {
        self.state.lock().superblock.clone()
    }

    pub fn cluster(&self) -> ClusterId {
        self.superblock().cluster
    }

    /// `None` while not assigned.
    pub fn target(&self) -> Option<TargetId> {
        Some(self.superblock().target).filter(|id| id.0 != 0)
    }

    pub fn incarnation(&self) -> Incarnation {
        self.superblock().incarnation
    }

    pub fn disk(&self) -> &D {
        &self.disk
    }

    pub fn usage(&self) -> Usage {
        self.state.lock().usage()
    }

    /// As programs can fill it.
    pub fn fillable(&self) -> Usage {
        self.state.lock().fillable()
    }

    /// Promises a session room, in the place of what it was promised before; all in bytes. Returns
    /// how much it is, and what there is at all beside what was written.
    pub fn promise_room(&self, session: SessionId, needed: u64, wanted: u64) -> (u64, u64) {
        let blocks = |bytes: u64| bytes.div_ceil(BLOCK as u64);
        let wish = Wish { needed: blocks(needed), wanted: blocks(wanted).max(blocks(needed)) };
        let (promised, free) = self.state.lock().promise(session, wish);
        (promised * BLOCK as u64, free * BLOCK as u64)
    }

    /// Sessions that ended are promised no room.
    pub fn keep_promises(&self, lives: impl Fn(SessionId) -> bool) {
        self.state.lock().credits.retain(lives);
    }

    /// Bytes of memory that overlay and checksum cache take now.
    pub fn cached_bytes(&self) -> usize {
        let state = self.state.lock();
        state.contents.overlay_len() * BLOCK + state.sums.resident_bytes()
    }

    /// Makes everything acknowledged so far durable.
    ///
    /// # Errors
    /// Out of service.
    pub fn flush(&self) -> Result<(), StoreError> {
        let seq = {
            let state = self.state.lock();
            state.check()?;
            state.journal.last_seq()
        };
        self.flush_to(seq)
    }

    /// Waits until a checkpoint is wanted, at most so long. For a thread that calls
    /// [`ChunkStore::checkpoint`] so that writers seldom have to.
    pub fn wait_for_work(&self, at_most: Duration) -> bool {
        let mut state = self.state.lock();
        if state.failed.is_some() || !state.wants_checkpoint(&self.config) {
            self.work.wait_for(&mut state, at_most);
        }
        state.failed.is_none() && state.wants_checkpoint(&self.config)
    }

    /// Flushes and applies everything; the next opening has nothing to replay.
    ///
    /// # Errors
    /// Out of service.
    pub fn close(self) -> Result<(), StoreError> {
        self.checkpoint()
    }

    /// Group commit: the first waiter writes everybody's records, the others wait for it.
    fn flush_to(&self, seq: u64) -> Result<(), StoreError> {
        let mut state = self.state.lock();
        while state.journal.durable_seq() < seq {
            state.check()?;
            if state.journal.flushing {
                self.flushed.wait(&mut state);
                continue;
            }
            let batch = state.journal.take_batch();
            drop(state);
            self.write_batch(batch)?;
            state = self.state.lock();
        }
        state.check()
    }

    /// Write order of a batch:
    /// ```text
    /// 1 sync, where data went to new places  crash: orphan blocks, free again after replay
    /// 2 write the records to the log         crash: torn batch, ends the log at replay
    /// 3 sync                                 crash: all of it counts
    /// ```
    fn write_batch(&self, batch: Batch) -> Result<(), StoreError> {
        let run = || {
            if batch.needs_data && !broken!("log_before_data") {
                self.disk.sync()?;
            }
            batch.write(&self.disk, &self.regions)?;
            self.disk.sync()
        };
        let outcome = run();
        let mut state = self.state.lock();
        let result = match outcome {
            Ok(()) => {
                state.journal.written(batch);
                state.release();
                Ok(())
            }
            Err(e) => Err(state.fail("log write", &e)),
        };
        self.flushed.notify_all();
        result
    }

    fn merge_lock(&self, key: ChunkKey) -> &Mutex<()> {
        &self.merging[shard(key)]
    }

    fn install_lock(&self, key: ChunkKey) -> &Mutex<()> {
        &self.installing[shard(key)]
    }
}

fn shard(key: ChunkKey) -> usize {
    let hash = nuri_proto::checksum::mix(&[key.object.0, u64::from(key.stripe)]);
    hash as usize % MERGE_SHARDS
}
