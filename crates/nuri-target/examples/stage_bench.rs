//! Measures staged writes against stable writes of the same size, in one store in one run.
//!
//! `cargo run --release -p nuri-target --example stage_bench -- DIR`. Makes a file in DIR and
//! removes it. Latencies in microseconds, the two kinds in turn.

use std::error::Error;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nuri_io::buf::AlignedBuf;
use nuri_io::file::OpenMode;
use nuri_io::rng::Rng;
use nuri_io::uring::open_disk;
use nuri_proto::id::{
    BootId, ChunkKey, ClusterId, Epoch, GroupId, Incarnation, ObjectId, SessionId,
};
use nuri_proto::op::data::Durability;
use nuri_proto::stripe::{Change, Covers, Earlier, Members, Stage, WriteId};
use nuri_target::store::{ChunkStore, FormatOptions, StoreConfig};

const MIB: usize = 1 << 20;
const CHUNKS: u64 = 64;

fn main() -> Result<(), Box<dyn Error>> {
    let dir = PathBuf::from(std::env::args().nth(1).unwrap_or_else(|| ".".to_owned()));
    let path = dir.join("stage_bench");
    let disk = open_disk(&path, OpenMode::Create)?;
    let options = FormatOptions {
        cluster: ClusterId([1; 16]),
        target: None,
        incarnation: Incarnation(1),
        capacity_bytes: 1 << 30,
        log_bytes: FormatOptions::LOG_BYTES,
    };
    ChunkStore::format(&disk, options)?;
    let store = ChunkStore::open(disk, BootId(1), StoreConfig::default())?;
    let mut buf = AlignedBuf::zeroed(MIB);
    Rng::new(1).fill(&mut buf);
    let mut number = 0;
    for (len, rounds) in [(MIB, 512), (4096, 2000), (MIB, 512)] {
        let (mut plain, mut staged, mut added) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..rounds {
            let key = |object| ChunkKey {
                object: ObjectId(object),
                component: 0,
                stripe: (round % CHUNKS) as u32,
            };
            let start = Instant::now();
            store.write(key(1), 0, &buf[..len], Durability::Stable)?;
            plain.push(start.elapsed());
            let changes = [Change::Bytes { offset: 0 }, Change::Xor { offset: 0 }];
            for (change, all) in changes.into_iter().zip([&mut staged, &mut added]) {
                number += 1;
                let held = store.held(key(2))?;
                let before = held.staged.as_ref().map_or(&held.covers, |staged| &staged.covers);
                let version = held.newest().next(Epoch(1));
                let ask = Stage {
                    group: GroupId(1),
                    version,
                    id: WriteId { session: SessionId(1), number },
                    base: before.clone(),
                    covers: Covers::one(version),
                    participants: Members(3),
                    earlier: Earlier::Decided(before.newest()),
                };
                let start = Instant::now();
                store.stage(key(2), &ask, change, &buf[..len])?;
                all.push(start.elapsed());
            }
        }
        let (plain, staged, added) = (median(plain), median(staged), median(added));
        println!("{len} bytes, p50: stable write {plain}, staged {staged}, staged sum {added}");
    }
    store.close()?;
    Ok(std::fs::remove_file(path)?)
}

fn median(mut all: Vec<Duration>) -> u128 {
    all.sort_unstable();
    all[all.len() / 2].as_micros()
}
