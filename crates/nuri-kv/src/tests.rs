//! Tests of the engine: the suite for every implementation, layers, crashes, damage.
//!
//! `crash::what_was_durable_survives_every_crash` catches `broken!("kv_ack_before_sync")`,
//! `copied::what_was_durable_is_on_the_copy` catches `copy_not_awaited`.

#![allow(clippy::unwrap_used)] // Helpers outside `#[test]` functions are tests too.

mod copied;
mod crash;
mod damage;
mod layers;
mod mem;
mod suite;
mod tap;

use std::sync::Arc;

use nuri_io::disk::Disk;
use nuri_io::mem::MemDisk;
use nuri_io::rng::Rng;

use crate::embedded::{Embedded, KvConfig};
use crate::engine::{Batch, Engine, KvError, Pair};

/// Small segments, so that tests fill many of them.
pub const CONFIG: KvConfig =
    KvConfig { segment_bytes: 64 << 10, cache_bytes: 1 << 20, epoch_step: 1 };

pub fn open(log: &Arc<MemDisk>, tables: &Arc<MemDisk>) -> Result<Embedded, KvError> {
    Embedded::open(log.clone() as Arc<dyn Disk>, tables.clone() as Arc<dyn Disk>, CONFIG)
}

pub fn disks() -> (Arc<MemDisk>, Arc<MemDisk>) {
    (Arc::new(MemDisk::new()), Arc::new(MemDisk::new()))
}

pub fn batch(pairs: &[(&[u8], Option<&[u8]>)]) -> Batch {
    let mut batch = Batch::new();
    for (key, value) in pairs {
        match value {
            Some(value) => batch.put(key.to_vec(), value.to_vec()),
            None => batch.delete(key.to_vec()),
        }
    }
    batch
}

/// A batch over few keys, some of them prefixes of others, so that changes meet each other.
pub fn random_batch(rng: &mut Rng, longest: u64) -> Batch {
    let mut out = Batch::new();
    for _ in 0..=rng.below(6) {
        let mut key = vec![b'a' + rng.below(4) as u8; 1 + rng.below(3) as usize];
        key.push(b'0' + rng.below(8) as u8);
        if rng.one_in(3) {
            out.delete(key);
        } else {
            let mut value = vec![0; rng.below(longest) as usize];
            rng.fill(&mut value);
            out.put(key, value);
        }
    }
    out
}

pub fn all(engine: &dyn Engine) -> Vec<Pair> {
    engine.scan(b"", b"", usize::MAX).unwrap()
}

#[test]
fn the_oracle_conforms() {
    suite::suite(mem::MemEngine::default);
}

#[test]
fn embedded_conforms() {
    suite::suite(|| {
        let (log, tables) = disks();
        open(&log, &tables).unwrap()
    });
}
