//! Measures what a large index costs: memory, checkpoint, opening.
//!
//! `cargo run --release -p nuri-target --example index_bench -- DIR [CHUNKS]`. Makes a store in DIR
//! with so many chunks (default 1,000,000) of one block each, and removes it. Needs 5 KB a chunk.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use nuri_io::disk::Disk;
use nuri_io::file::OpenMode;
use nuri_io::uring::open_disk;
use nuri_proto::id::{BootId, ChunkKey, ClusterId, Incarnation, ObjectId};
use nuri_proto::op::data::Durability;
use nuri_target::store::{ChunkStore, FormatOptions, StoreConfig};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;
type Store = ChunkStore<Arc<dyn Disk>>;

/// Removes the file when the run ends, however it ends.
struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn main() -> Outcome {
    let mut args = std::env::args().skip(1);
    let dir = PathBuf::from(args.next().unwrap_or_else(|| ".".to_owned()));
    let chunks: u64 = args.next().map_or(Ok(1_000_000), |text| text.parse())?;
    if let Some(file) = args.next() {
        return measure_opening(Path::new(&file), chunks);
    }
    let file = Removed(dir.join("index_bench.store"));
    let store = new_store(&file.0, chunks)?;
    let start = Instant::now();
    for n in 0..chunks {
        let key = ChunkKey { object: ObjectId(n / 4 + 1), component: 0, stripe: (n % 4) as u32 };
        store.write(key, 0, &[n as u8; 4096], Durability::Memory)?;
    }
    println!("{chunks} chunks written in {:.1} s", start.elapsed().as_secs_f64());
    store.checkpoint()?;
    // One more change, so that there is something to write.
    store.punch(ChunkKey { object: ObjectId(1), component: 0, stripe: 0 }, 0, 4096)?;
    let start = Instant::now();
    store.checkpoint()?;
    println!("checkpoint of the whole index: {} ms", start.elapsed().as_millis());
    store.close()?;
    // A process of its own has nothing else in memory.
    let mut child = std::process::Command::new(std::env::current_exe()?);
    child.arg(&dir).arg(chunks.to_string()).arg(&file.0).status()?;
    Ok(())
}

fn measure_opening(file: &Path, chunks: u64) -> Outcome {
    let (before, start) = (resident()?, Instant::now());
    let store = open(file)?;
    println!("opening: {} ms", start.elapsed().as_millis());
    let grown = resident()?.saturating_sub(before + store.cached_bytes() as u64);
    println!("memory: {} bytes per chunk, caches not counted", grown / chunks);
    Ok(())
}

fn new_store(path: &Path, chunks: u64) -> Outcome<Store> {
    let options = FormatOptions {
        cluster: ClusterId([1; 16]),
        target: None,
        incarnation: Incarnation(1),
        capacity_bytes: chunks * 5000 + (512 << 20),
        log_bytes: FormatOptions::LOG_BYTES,
    };
    ChunkStore::format(&open_disk(path, OpenMode::Create)?, options)?;
    open(path)
}

fn open(path: &Path) -> Outcome<Store> {
    Ok(ChunkStore::open(open_disk(path, OpenMode::Existing)?, BootId(1), StoreConfig::default())?)
}

/// Resident bytes of this process.
fn resident() -> Outcome<u64> {
    let pages = std::fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = pages.split(' ').nth(1).ok_or("statm")?.parse()?;
    Ok(pages * 4096)
}
