//! Measures the metadata engine against redb alone, with durable commits on one disk.
//!
//! `cargo run --release -p nuri-kv --example engine_bench -- DIR`. Records of 16 + 100 bytes.
//! Producers commit one record at a time; redb alone gets one committer that drains a queue into
//! one durable transaction, which is what our log does for its own. Rounds are interleaved.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nuri_io::file::OpenMode;
use nuri_io::uring::open_disk;
use nuri_kv::embedded::{Embedded, KvConfig};
use nuri_kv::engine::{Batch, Engine};
use redb::{Database, ReadableDatabase, TableDefinition};

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

const TABLE: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("t");
const PRODUCERS: [usize; 3] = [1, 16, 64];
const TIME: Duration = Duration::from_secs(2);
const ROUNDS: usize = 3;

/// Something that makes one record durable, from many threads.
trait Store: Send + Sync {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> Outcome;
    fn get(&self, key: &[u8]) -> Outcome<bool>;
}

struct Ours(Arc<Embedded>);

impl Store for Ours {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> Outcome {
        let mut batch = Batch::new();
        batch.put(key, value);
        let id = self.0.commit(batch)?;
        Ok(self.0.wait_durable(id)?)
    }
    fn get(&self, key: &[u8]) -> Outcome<bool> {
        Ok(self.0.get(key)?.is_some())
    }
}

type Job = (Vec<u8>, Vec<u8>, Sender<()>);

struct RedbAlone {
    database: Arc<Database>,
    jobs: Mutex<Sender<Job>>,
}

impl RedbAlone {
    fn open(path: &Path) -> Outcome<RedbAlone> {
        let database = Arc::new(Database::create(path)?);
        let (jobs, queue) = channel();
        let committing = database.clone();
        std::thread::spawn(move || commit_loop(&committing, &queue));
        Ok(RedbAlone { database, jobs: Mutex::new(jobs) })
    }
}

fn commit_loop(database: &Database, queue: &Receiver<Job>) -> Outcome {
    while let Ok(first) = queue.recv() {
        let jobs: Vec<Job> = std::iter::once(first).chain(queue.try_iter()).collect();
        let transaction = database.begin_write()?;
        {
            let mut table = transaction.open_table(TABLE)?;
            for (key, value, _) in &jobs {
                table.insert(key.as_slice(), value.as_slice())?;
            }
        }
        transaction.commit()?;
        for (_, _, done) in &jobs {
            // A producer whose time is over does not listen.
            let _ = done.send(());
        }
    }
    Ok(())
}

impl Store for RedbAlone {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> Outcome {
        let (done, when_done) = channel();
        self.jobs.lock().map_err(|_| "poisoned")?.send((key, value, done))?;
        Ok(when_done.recv()?)
    }
    fn get(&self, key: &[u8]) -> Outcome<bool> {
        let transaction = self.database.begin_read()?;
        Ok(transaction.open_table(TABLE)?.get(key)?.is_some())
    }
}

fn key(i: u64) -> Vec<u8> {
    // Spread, as directory entries are.
    [i.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes(), i.to_be_bytes()].concat()
}

/// Commits per second, and the median and 99th percentile of their time in microseconds.
fn commits(store: &dyn Store, producers: usize, next: &AtomicU64) -> Outcome<(f64, f64, f64)> {
    let start = Instant::now();
    let produce = || -> Outcome<Vec<Duration>> {
        let mut times = Vec::new();
        while start.elapsed() < TIME {
            let begun = Instant::now();
            store.put(key(next.fetch_add(1, Ordering::Relaxed)), vec![7; 100])?;
            times.push(begun.elapsed());
        }
        Ok(times)
    };
    let mut times = std::thread::scope(|scope| {
        let running: Vec<_> = (0..producers).map(|_| scope.spawn(produce)).collect();
        let lost = || Err("a producer panicked".into());
        running
            .into_iter()
            .map(|r| r.join().unwrap_or_else(|_| lost()))
            .collect::<Outcome<Vec<_>>>()
    })?
    .concat();
    times.sort_unstable();
    let at = |part: usize| times[times.len() * part / 100].as_secs_f64() * 1e6;
    Ok((times.len() as f64 / start.elapsed().as_secs_f64(), at(50), at(99)))
}

fn gets(store: &dyn Store, written: u64) -> Outcome<f64> {
    let (start, mut found) = (Instant::now(), 0);
    for i in 0..200_000 {
        found += u64::from(store.get(&key(i * 7919 % written))?);
    }
    if found < 200_000 {
        return Err(format!("{} records are missing", 200_000 - found).into());
    }
    Ok(200_000.0 / start.elapsed().as_secs_f64())
}

fn main() -> Outcome {
    let dir = PathBuf::from(std::env::args().nth(1).unwrap_or_else(|| ".".to_owned()));
    let work = dir.join("engine-bench");
    std::fs::create_dir_all(&work)?;
    let disk = |name: &str| open_disk(&work.join(name), OpenMode::Create);
    let ours = Arc::new(Embedded::open(disk("log")?, disk("tables")?, KvConfig::default())?);
    let absorbing = ours.clone();
    std::thread::spawn(move || {
        while absorbing.absorb_frozen().is_ok() {
            std::thread::sleep(Duration::from_millis(25));
        }
    });
    let redb = RedbAlone::open(&work.join("redb"))?;
    let stores: [(&str, &dyn Store); 2] = [("log + redb", &Ours(ours)), ("redb alone", &redb)];
    let next = [AtomicU64::new(0), AtomicU64::new(0)];
    println!("{:<12} {:>9} {:>11} {:>9} {:>9}", "", "producers", "commits/s", "p50 us", "p99 us");
    for _ in 0..ROUNDS {
        for producers in PRODUCERS {
            for ((name, store), next) in stores.iter().zip(&next) {
                let (rate, p50, p99) = commits(*store, producers, next)?;
                println!("{name:<12} {producers:>9} {rate:>11.0} {p50:>9.0} {p99:>9.0}");
            }
        }
    }
    for ((name, store), next) in stores.iter().zip(&next) {
        println!("{name:<12} get/s {:.0}", gets(*store, next.load(Ordering::Relaxed))?);
    }
    std::fs::remove_dir_all(&work)?;
    Ok(())
}
