//! Measures the chunk store against the raw disk under it, in one run on one file each.
//!
//! `cargo run --release -p nuri-target --example store_bench -- DIR [MIB]`. Makes two files in DIR
//! and removes them. Rates are MiB/s, latencies microseconds; reads are direct where the file
//! system allows it, so nothing comes from the page cache.

use std::error::Error;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nuri_io::buf::AlignedBuf;
use nuri_io::disk::Disk;
use nuri_io::file::{FileDisk, OpenMode};
use nuri_io::rng::Rng;
use nuri_io::uring::open_disk;
use nuri_proto::id::{BootId, ChunkKey, ClusterId, Incarnation, ObjectId};
use nuri_proto::op::data::Durability;
use nuri_target::store::{ChunkStore, FormatOptions, StoreConfig};

const MIB: usize = 1 << 20;
const THREADS: usize = 4;
const SMALL: usize = 4096;
const PAGE_READ: usize = 8192;
const ROUNDS: usize = 2000;
/// As the target's server does.
const TRIM_BYTES: u64 = 64 << 20;
const TRIM_PAUSE: Duration = Duration::from_millis(500);

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// Removes its files when the run ends, however it ends.
struct Files(Vec<PathBuf>);

impl Drop for Files {
    fn drop(&mut self) {
        for path in &self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn main() -> Outcome {
    let mut args = std::env::args().skip(1);
    let dir = PathBuf::from(args.next().unwrap_or_else(|| ".".to_owned()));
    let mib: usize = args.next().map_or(Ok(1024), |text| text.parse())?;
    std::fs::create_dir_all(&dir)?;
    let files = Files(vec![dir.join("raw"), dir.join("store")]);
    let raw = raw_disk(&files.0[0], mib)?;
    println!("direct I/O: {}, {mib} MiB, {THREADS} threads", raw.is_direct());
    let store = new_store(&files.0[1], mib)?;
    let share = mib / THREADS;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| trim_now_and_then(&store, &stop));
        let outcome = rounds(&raw, &store, mib, share);
        stop.store(true, Ordering::Relaxed);
        outcome
    })?;
    give_back(&store, &files.0[1])?;
    store.close()?;
    Ok(())
}

/// As a node does for its targets.
fn trim_now_and_then(store: &ChunkStore<Arc<dyn Disk>>, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(TRIM_PAUSE);
        store.trim(TRIM_BYTES);
    }
}

fn rounds(raw: &FileDisk, store: &ChunkStore<Arc<dyn Disk>>, mib: usize, share: usize) -> Outcome {
    for round in 1..=2 {
        println!("round {round}: what raw store");
        let a = rate(mib, || {
            each_thread(|t, buf| {
                for i in 0..share {
                    raw.write_at(((t * share + i) * MIB) as u64, buf)?;
                }
                Ok(())
            })?;
            Ok(raw.sync()?)
        })?;
        let b = rate(mib, || {
            each_thread(|t, buf| {
                for i in 0..share {
                    store.write(chunk(t, i), 0, buf, Durability::Memory)?;
                }
                Ok(())
            })?;
            Ok(store.flush()?)
        })?;
        println!("  write 1 MiB x{THREADS}, one flush  {a} | {b}");
        small_writes(raw, store, share)?;
        reads(raw, store, share)?;
    }
    Ok(())
}

/// Gives deleted data back: half of it in one go, half at a node's pace with others at work.
fn give_back(store: &ChunkStore<Arc<dyn Disk>>, file: &Path) -> Outcome {
    let mib = || -> Outcome<u64> { Ok(std::fs::metadata(file)?.blocks() / 2048) };
    let (full, start) = (mib()?, Instant::now());
    store.delete(&[ObjectId(1), ObjectId(2)])?;
    let given = store.trim(u64::MAX) >> 20;
    let took = start.elapsed().as_millis();
    println!("half deleted: {given} MiB given back in {took} ms; {full} MiB are {}", mib()?);
    store.delete(&[ObjectId(3), ObjectId(4)])?;
    let while_given = while_writing(store, || {
        let mut left = given << 20;
        while left > 0 {
            left = left.saturating_sub(store.trim(TRIM_BYTES).max(1 << 20));
            std::thread::sleep(TRIM_PAUSE);
        }
    })?;
    let pause = TRIM_PAUSE * (given / (TRIM_BYTES >> 20)) as u32;
    let after = while_writing(store, || std::thread::sleep(pause))?;
    println!("  stable writes while as much is given back  {while_given}");
    println!("  and for as long after it                   {after}");
    Ok(())
}

/// Latencies of stable writes of 4 KiB and of 1 MiB in turn, while `other` runs.
fn while_writing(store: &ChunkStore<Arc<dyn Disk>>, other: impl FnOnce()) -> Outcome<String> {
    let stop = AtomicBool::new(false);
    let outcome = std::thread::scope(|scope| {
        let writer = scope.spawn(|| both_sizes(store, &stop));
        other();
        stop.store(true, Ordering::Relaxed);
        writer.join()
    });
    outcome.unwrap_or_else(|_| Err("panicked".into()))
}

fn both_sizes(store: &ChunkStore<Arc<dyn Disk>>, stop: &AtomicBool) -> Outcome<String> {
    let buf = AlignedBuf::zeroed(MIB);
    let (mut small, mut large) = (Vec::new(), Vec::new());
    while !stop.load(Ordering::Relaxed) {
        for (all, len) in [(&mut small, SMALL), (&mut large, MIB)] {
            let start = Instant::now();
            store.write(chunk(9, all.len() % 64), 0, &buf[..len], Durability::Stable)?;
            all.push(start.elapsed());
        }
    }
    Ok(format!("4 KiB {} | 1 MiB {}", percentiles(small), percentiles(large)))
}

fn raw_disk(path: &Path, mib: usize) -> Outcome<FileDisk> {
    let raw = FileDisk::open(path, OpenMode::Create)?;
    raw.set_len((mib * MIB) as u64)?;
    Ok(raw)
}

fn new_store(path: &Path, mib: usize) -> Outcome<ChunkStore<Arc<dyn Disk>>> {
    let disk = open_disk(path, OpenMode::Create)?;
    let options = FormatOptions {
        cluster: ClusterId([1; 16]),
        target: None,
        incarnation: Incarnation(1),
        capacity_bytes: (mib * MIB) as u64 * 5 / 2 + (256 << 20),
        log_bytes: FormatOptions::LOG_BYTES,
    };
    ChunkStore::format(&disk, options)?;
    Ok(ChunkStore::open(disk, BootId(1), StoreConfig::default())?)
}

fn chunk(thread: usize, stripe: usize) -> ChunkKey {
    ChunkKey { object: ObjectId(thread as u64 + 1), component: 0, stripe: stripe as u32 }
}

/// Runs the work on every thread with a buffer of 1 MiB of its own.
fn each_thread(work: impl Fn(usize, &mut AlignedBuf) -> Outcome + Sync) -> Outcome {
    std::thread::scope(|scope| {
        let work = &work;
        let all: Vec<_> = (0..THREADS)
            .map(|t| {
                scope.spawn(move || {
                    let mut buf = AlignedBuf::zeroed(MIB);
                    Rng::new(t as u64).fill(&mut buf);
                    work(t, &mut buf)
                })
            })
            .collect();
        all.into_iter().try_for_each(|t| t.join().unwrap_or_else(|_| Err("panicked".into())))
    })
}

fn cpu() -> Duration {
    let times = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(times.tv_sec as u64, times.tv_nsec as u32)
}

/// MiB/s and the CPU time it took.
fn rate(mib: usize, work: impl FnOnce() -> Outcome) -> Outcome<String> {
    let (start, cpu_start) = (Instant::now(), cpu());
    work()?;
    let took = start.elapsed().as_secs_f64();
    let used = (cpu() - cpu_start).as_secs_f64() / took;
    Ok(format!("{:7.0} MiB/s {:3.0} % CPU", mib as f64 / took, used * 100.0))
}

fn percentiles(mut all: Vec<Duration>) -> String {
    all.sort_unstable();
    let at = |p: usize| all.get(all.len() * p / 100).map_or(0, Duration::as_micros);
    format!("p50 {:5} us p99 {:5} us", at(50), at(99))
}

fn timed(mut work: impl FnMut(usize) -> Outcome) -> Outcome<String> {
    let mut all = Vec::with_capacity(ROUNDS);
    for i in 0..ROUNDS {
        let start = Instant::now();
        work(i)?;
        all.push(start.elapsed());
    }
    Ok(percentiles(all))
}

fn small_writes(raw: &FileDisk, store: &ChunkStore<Arc<dyn Disk>>, share: usize) -> Outcome {
    let buf = AlignedBuf::zeroed(SMALL);
    let mut rng = Rng::new(9);
    let mut place = move || (rng.below(share as u64) as usize, rng.below(256) as u32 * 4096);
    let a = timed(|_| {
        let (stripe, offset) = place();
        raw.write_at((stripe * MIB) as u64 + u64::from(offset), &buf)?;
        Ok(raw.sync()?)
    })?;
    let mut rng = Rng::new(9);
    let mut place = move || (rng.below(share as u64) as usize, rng.below(256) as u32 * 4096);
    let b = timed(|_| {
        let (stripe, offset) = place();
        store.write(chunk(0, stripe), offset, &buf, Durability::Stable)?;
        Ok(())
    })?;
    println!("  stable 4 KiB random writes   {a} | {b}");
    let start = Instant::now();
    each_thread(|t, buf| {
        for i in 0..ROUNDS {
            let offset = (i % 256 * SMALL) as u32;
            store.write(chunk(t, i / 256), offset, &buf[..SMALL], Durability::Stable)?;
        }
        Ok(())
    })?;
    let per_second = (THREADS * ROUNDS) as f64 / start.elapsed().as_secs_f64();
    println!("  stable 4 KiB x{THREADS} threads: {per_second:.0} writes/s");
    let start = Instant::now();
    store.checkpoint()?;
    println!("  checkpoint after them: {} ms", start.elapsed().as_millis());
    Ok(())
}

fn reads(raw: &FileDisk, store: &ChunkStore<Arc<dyn Disk>>, share: usize) -> Outcome {
    let mib = share * THREADS;
    let a = rate(mib, || {
        each_thread(|t, buf| {
            for i in 0..share {
                raw.read_at(((t * share + i) * MIB) as u64, buf)?;
            }
            Ok(())
        })
    })?;
    let b = rate(mib, || {
        each_thread(|t, buf| {
            for i in 0..share {
                store.read(chunk(t, i), 0, buf)?;
            }
            Ok(())
        })
    })?;
    println!("  read 1 MiB x{THREADS}             {a} | {b}");
    let mut buf = AlignedBuf::zeroed(PAGE_READ);
    let mut rng = Rng::new(4);
    let spots = (MIB / PAGE_READ) as u64;
    let a = timed(|i| {
        let offset = rng.below(spots) * PAGE_READ as u64;
        Ok(raw.read_at((i % share * MIB) as u64 + offset, &mut buf)?)
    })?;
    let b = timed(|i| {
        let offset = rng.below(spots) as u32 * PAGE_READ as u32;
        Ok(store.read(chunk(1, i % share), offset, &mut buf)?)
    })?;
    println!("  read 8 KiB random            {a} | {b}");
    Ok(())
}
