//! The measurements: each returns a rate, higher is better.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::peers::{Peer, Peers};

/// Whether processes use a file each, or parts of one: a long one each, or records in turn.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Files {
    Own,
    Shared,
    Strided,
}

/// One measurement.
#[derive(Clone, Copy)]
pub(crate) enum Case {
    Sequential { write: bool, block: usize, jobs: usize, files: Files },
    TreeCreate,
    TreeStat,
    TreeRead,
    TreeRemove,
    Direct { write: bool },
    Synced,
    RandomRead,
}

/// At least four times the client's buffers (96 MiB) and the targets' (24 MiB each).
const TOTAL: usize = 768 << 20;
const SMALL_TOTAL: usize = 128 << 20;
const TREE_FILES: usize = 5000;
const TREE_DIRS: usize = 50;
const SYNCS: usize = 1500;

pub(super) type Outcome<T> = Result<T, String>;

pub(super) fn told<T>(outcome: std::io::Result<T>) -> Outcome<T> {
    outcome.map_err(|e| e.to_string())
}

impl Case {
    pub(crate) fn unit(self) -> &'static str {
        match self {
            Case::Sequential { .. } | Case::Direct { .. } => "MiB/s",
            _ => "op/s",
        }
    }

    /// Runs on one system.
    pub(crate) fn run(self, peers: &Peers, peer: Peer) -> Outcome<f64> {
        let dir = peers.path(peer);
        match self {
            Case::Sequential { write, block, jobs, files } => {
                let total = if block < 1 << 20 { SMALL_TOTAL } else { TOTAL };
                if write { clear(&dir) } else { peers.cold(peer) }?;
                let transfer = Transfer { block, jobs, files, total };
                let run =
                    || told(if write { transfer.write(&[dir]) } else { transfer.read(&[dir]) });
                if peer == Peer::Nuri && block == 1 << 20 {
                    peers.metered(write, total, run)
                } else {
                    run()
                }
            }
            Case::TreeCreate => {
                clear(&dir)?;
                told(tree_create(&dir))
            }
            Case::TreeStat => {
                peers.cold(peer)?;
                told(tree_stat(&dir))
            }
            Case::TreeRead => {
                peers.cold(peer)?;
                told(tree_read(&dir))
            }
            Case::TreeRemove => told(tree_remove(&dir)),
            // passthrough_ll refuses O_DIRECT; it has no bound in these rows.
            Case::Direct { .. } if peer == Peer::Passthrough => Ok(f64::NAN),
            Case::Synced | Case::RandomRead if peer == Peer::Passthrough => Ok(f64::NAN),
            Case::Direct { write } => {
                if !write {
                    peers.cold(peer)?;
                }
                direct(&dir, write)
            }
            Case::Synced => told(synced(&dir.join("fio"), 4096, SyncKind::Data, SYNCS)),
            Case::RandomRead => {
                peers.cold(peer)?;
                random_read(&dir)
            }
        }
    }
}

/// Removes what an earlier case left.
pub(super) fn clear(dir: &Path) -> Outcome<()> {
    for entry in told(fs::read_dir(dir))?.flatten() {
        let path = entry.path();
        told(if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) })?;
    }
    std::thread::sleep(Duration::from_millis(300));
    Ok(())
}

fn mib_per_second(bytes: usize, took: Duration) -> f64 {
    bytes as f64 / f64::from(1 << 20) / took.as_secs_f64()
}

/// Runs jobs side by side, each in a thread; returns how long all of them took.
pub(super) fn on_all<F>(jobs: usize, f: F) -> std::io::Result<Duration>
where
    F: Fn(usize) -> std::io::Result<()> + Sync,
{
    let start = Instant::now();
    let f = &f;
    let outcomes: Vec<std::io::Result<()>> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..jobs).map(|job| scope.spawn(move || f(job))).collect();
        let lost = || Err(std::io::Error::other("a worker panicked"));
        running.into_iter().map(|r| r.join().unwrap_or_else(|_| lost())).collect()
    });
    outcomes.into_iter().collect::<std::io::Result<Vec<()>>>()?;
    Ok(start.elapsed())
}

/// Bytes moved in order, by one job or several, which take turns with the directories.
pub(crate) struct Transfer {
    pub(crate) block: usize,
    pub(crate) jobs: usize,
    pub(crate) files: Files,
    pub(crate) total: usize,
}

impl Transfer {
    /// Runs `each(file, buffer, offset)` for every block; returns MiB/s.
    fn run(
        &self,
        dirs: &[PathBuf],
        options: &OpenOptions,
        each: impl Fn(&File, &mut [u8], u64) -> std::io::Result<()> + Sync,
    ) -> std::io::Result<f64> {
        let took = on_all(self.jobs, |job| {
            let share = self.total / self.jobs;
            let (name, from, step) = match self.files {
                Files::Own => (format!("own{job}"), 0, self.block),
                Files::Shared => ("shared".into(), job * share, self.block),
                Files::Strided => ("shared".into(), job * self.block, self.jobs * self.block),
            };
            let path = dirs[job % dirs.len()].join(name);
            let file = options.open(path)?;
            let mut data: Vec<u8> = (0..self.block).map(|i| (i * 31 + job) as u8).collect();
            for i in 0..share / self.block {
                each(&file, &mut data, (from + i * step) as u64)?;
            }
            file.sync_all()
        })?;
        Ok(mib_per_second(self.total, took))
    }

    pub(crate) fn write(&self, dirs: &[PathBuf]) -> std::io::Result<f64> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false);
        self.run(dirs, &options, |file, data, at| file.write_all_at(data, at))
    }

    pub(crate) fn read(&self, dirs: &[PathBuf]) -> std::io::Result<f64> {
        let options = OpenOptions::new().read(true).to_owned();
        self.run(dirs, &options, |file, data, at| file.read_exact_at(data, at))
    }
}

fn tree_path(dir: &Path, i: usize) -> std::path::PathBuf {
    dir.join(format!("d{}", i % TREE_DIRS)).join(format!("f{i}"))
}

fn rate(start: Instant) -> f64 {
    TREE_FILES as f64 / start.elapsed().as_secs_f64()
}

fn tree_create(dir: &Path) -> std::io::Result<f64> {
    let start = Instant::now();
    for d in 0..TREE_DIRS {
        fs::create_dir(dir.join(format!("d{d}")))?;
    }
    for i in 0..TREE_FILES {
        File::create(tree_path(dir, i))?.write_all(&[i as u8; 4000])?;
    }
    Ok(rate(start))
}

fn tree_stat(dir: &Path) -> std::io::Result<f64> {
    let start = Instant::now();
    for i in 0..TREE_FILES {
        fs::metadata(tree_path(dir, i))?;
    }
    Ok(rate(start))
}

fn tree_read(dir: &Path) -> std::io::Result<f64> {
    let start = Instant::now();
    let mut data = Vec::new();
    for i in 0..TREE_FILES {
        data.clear();
        File::open(tree_path(dir, i))?.read_to_end(&mut data)?;
    }
    Ok(rate(start))
}

fn tree_remove(dir: &Path) -> std::io::Result<f64> {
    let start = Instant::now();
    for i in 0..TREE_FILES {
        fs::remove_file(tree_path(dir, i))?;
    }
    for d in 0..TREE_DIRS {
        fs::remove_dir(dir.join(format!("d{d}")))?;
    }
    Ok(rate(start))
}

/// fio with its own aligned buffers; one job, one request at a time as a program would.
fn direct(dir: &Path, write: bool) -> Outcome<f64> {
    let rw = if write { "write" } else { "read" };
    let args = ["--bs=1m", "--direct=1", "--ioengine=psync", "--size=512m", "--end_fsync=1"];
    let mib = fio(dir, rw, &args)?;
    Ok(mib / f64::from(1 << 20))
}

fn random_read(dir: &Path) -> Outcome<f64> {
    let args = ["--bs=8k", "--numjobs=16", "--size=512m", "--runtime=4", "--time_based"];
    Ok(fio(dir, "randread", &[&args[..], &["--group_reporting"]].concat())? / 8192.0)
}

/// Runs fio on `dir/fio`; returns bytes per second.
fn fio(dir: &Path, rw: &str, args: &[&str]) -> Outcome<f64> {
    let file = format!("--filename={}/fio", dir.display());
    let out = Command::new("fio")
        .args(["--name=x", "--output-format=json", "--invalidate=1", &file])
        .arg(format!("--rw={rw}"))
        .args(args)
        .output()
        .map_err(|e| format!("fio: {e}; run scripts/setup --test"))?;
    let json: serde_json::Value = serde_json::from_slice(&out.stdout)
        .map_err(|e| format!("fio: {e}: {}", String::from_utf8_lossy(&out.stderr)))?;
    let side = if rw.contains("write") { "write" } else { "read" };
    json["jobs"][0][side]["bw_bytes"].as_f64().ok_or_else(|| "fio gave no rate".into())
}

/// What a synced write waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum SyncKind {
    Data,
    All,
}

/// Random overwrites of a laid-out file, each synced; returns how many a second.
pub(crate) fn synced(
    path: &Path,
    len: usize,
    sync: SyncKind,
    count: usize,
) -> std::io::Result<f64> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let places = file.metadata()?.len() / len as u64;
    let data = vec![7u8; len];
    let mut x = 88_172_645_463_325_252u64;
    let start = Instant::now();
    for _ in 0..count {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        file.write_all_at(&data, x % places * len as u64)?;
        if sync == SyncKind::Data { file.sync_data() } else { file.sync_all() }?;
    }
    Ok(count as f64 / start.elapsed().as_secs_f64())
}
