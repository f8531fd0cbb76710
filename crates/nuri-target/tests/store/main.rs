//! The chunk store from outside: behaviour, crashes, corruption, space, bounds. Everything runs
//! on memory disks from fixed seeds.
//!
//! Each rule of the write order can be broken, and a test then fails: `docs/broken-rules.txt`.

#![allow(clippy::unwrap_used)] // Helpers outside `#[test]` functions are tests too.

mod basic;
mod corrupt;
mod crash;
mod member;
mod model;
mod overtaken;
mod served;
mod space;
mod staged;
mod threads;

use std::sync::Arc;

use nuri_io::disk::Disk;
use nuri_io::mem::MemDisk;
use nuri_proto::id::{BootId, ChunkKey, ClusterId, Epoch, Incarnation, ObjectId, TargetId};
use nuri_target::store::{ChunkStore, FormatOptions, OpenError, StoreConfig};

pub type Store = ChunkStore<Arc<MemDisk>>;
pub const BLOCK: usize = 4096;

pub fn key(object: u64, stripe: u32) -> ChunkKey {
    ChunkKey { object: ObjectId(object), component: 0, stripe }
}

pub fn options(capacity_bytes: u64) -> FormatOptions {
    FormatOptions {
        cluster: ClusterId([7; 16]),
        target: Some(TargetId(3)),
        incarnation: Incarnation(0xfeed),
        capacity_bytes,
        log_bytes: FormatOptions::LOG_BYTES,
    }
}

/// Small bounds, so that tests reach them.
pub fn config() -> StoreConfig {
    StoreConfig { overlay_bytes: 96 * BLOCK, checksum_cache_bytes: 16 * BLOCK }
}

pub fn open(disk: &Arc<MemDisk>) -> Result<Store, OpenError> {
    ChunkStore::open(disk.clone(), BootId(1), config())
}

/// Makes a store of a space that has come to the epoch of the tests' versions.
pub fn format<D: Disk>(disk: &Arc<D>, options: FormatOptions) {
    ChunkStore::format(disk, options).unwrap();
    let store = ChunkStore::open(disk.clone(), BootId(1), config()).unwrap();
    store.obey(Epoch(1)).unwrap();
    store.close().unwrap();
}

pub fn fresh_on(disk: MemDisk, capacity: u64) -> (Arc<MemDisk>, Store) {
    let disk = Arc::new(disk);
    format(&disk, options(capacity));
    let store = open(&disk).unwrap();
    (disk, store)
}

pub fn fresh(capacity: u64) -> (Arc<MemDisk>, Store) {
    fresh_on(MemDisk::new(), capacity)
}

pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut data = vec![0; len];
    nuri_io::rng::Rng::new(seed).fill(&mut data);
    data
}

pub fn read(store: &Store, key: ChunkKey, offset: u32, len: usize) -> Vec<u8> {
    let mut buf = vec![0xee; len];
    store.read(key, offset, &mut buf).unwrap();
    buf
}

pub fn assert_clean(disk: &Arc<MemDisk>) {
    let report = nuri_target::store::check::check(disk);
    assert!(report.is_clean(), "{report:#?}");
}
