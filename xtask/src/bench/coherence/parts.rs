//! The measurements: each gives the values of its rows.

use std::fs::{self, File, FileTimes, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use nuri_io::rng::Rng;

use super::super::measure::{Files, Outcome, Transfer, on_all, told};
use super::super::median;
use super::super::peers::Peer;
use super::{Column, Ground, PEERS, column};

/// What belongs together: one preparation, one or several rows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    /// What the kernel or the mount knows already.
    Warm,
    /// Empty files made and removed by one process.
    Names,
    /// A tree of small files as `tar` makes it, then a sync.
    Unpack,
    /// A process on each of two mounts makes files: in one directory, in two.
    TwoMakers,
    /// Own names of several processes in one directory, as `mdtest` does it.
    SharedDirectory { jobs: usize, mounts: usize },
    /// Four processes on two mounts write one file.
    OneFile(Files),
    /// A page that two mounts write in turn.
    PingPong,
}

/// Takes the value of a row, by its index within the part.
type Add<'a> = &'a mut dyn FnMut(usize, Column, f64);

const KNOWN: usize = 1000;
const KNOWN_LEN: usize = 4000;
const STATS: usize = 10_000;
const OPENS: usize = 5000;
const LISTINGS: usize = 200;
const NAMES: usize = 20_000;
const PASSTHROUGH_NAMES: usize = 18_000;
const UNPACKED: usize = 5000;
const UNPACKED_DIRS: usize = 100;
const MEAN_LEN: f64 = 6144.0;
const LONGEST: f64 = 65_536.0;
const SHARED_NAMES: usize = 2000;
const SEED: u64 = 0x7472_6565;
const WRITERS: usize = 4;
const SEGMENT_BLOCK: usize = 1 << 20;
/// The record of IO500's hard part: no multiple of anything.
const RECORD: usize = 47_008;
const WRITTEN: usize = 256 << 20;
const PAGE: usize = 4096;
const TURNS: usize = 500;

impl Part {
    pub(super) fn run(self, ground: &Ground, add: Add<'_>) -> Outcome<()> {
        match self {
            Part::Warm => each_peer(ground, add, warm),
            Part::Names => each_peer(ground, add, names),
            Part::Unpack => each_peer(ground, add, unpack),
            Part::TwoMakers => two_makers(ground, add),
            Part::SharedDirectory { jobs, mounts } => shared_directory(ground, jobs, mounts, add),
            Part::OneFile(files) => one_file(ground, files, add),
            Part::PingPong => ping_pong(ground, add),
        }
    }
}

/// Each system in turn, in an empty directory.
fn each_peer(
    ground: &Ground,
    add: Add<'_>,
    measure: impl Fn(&Ground, Peer, &Path) -> Outcome<Vec<f64>>,
) -> Outcome<()> {
    for peer in PEERS {
        let dir = ground.fresh(peer)?;
        let values = measure(ground, peer, &dir).map_err(|e| format!("{peer:?}: {e}"))?;
        values.into_iter().enumerate().for_each(|(i, value)| add(i, column(peer), value));
    }
    Ok(())
}

/// Does it so many times; returns how many a second.
fn rate(count: usize, mut act: impl FnMut(usize) -> std::io::Result<()>) -> Outcome<f64> {
    let start = Instant::now();
    told((0..count).try_for_each(&mut act))?;
    Ok(count as f64 / start.elapsed().as_secs_f64())
}

fn warm(ground: &Ground, peer: Peer, dir: &Path) -> Outcome<Vec<f64>> {
    let known: Vec<_> = (0..ground.count(KNOWN)).map(|i| dir.join(format!("known{i}"))).collect();
    told(known.iter().try_for_each(|path| fs::write(path, [7; KNOWN_LEN])))?;
    // What is still to be written would be written while others are measured.
    ground.peers.sync(peer)?;
    let path = |i: usize| &known[i % known.len()];
    let stat = |i| fs::metadata(path(i)).map(drop);
    let mut data = vec![0; KNOWN_LEN];
    let mut open = |i| File::open(path(i))?.read_exact_at(&mut data, 0);
    let list = |_| fs::read_dir(dir)?.try_for_each(|entry| entry.map(drop));
    // The passthrough knows attributes for a second: each warming is right before its row.
    rate(known.len(), stat)?;
    let stats = rate(ground.count(STATS), stat)?;
    rate(known.len(), &mut open)?;
    let opens = rate(ground.count(OPENS), open)?;
    rate(1, list)?;
    Ok(vec![stats, opens, rate(ground.count(LISTINGS), list)?])
}

fn create(path: &Path) -> std::io::Result<()> {
    OpenOptions::new().write(true).create_new(true).open(path).map(drop)
}

fn names(ground: &Ground, peer: Peer, dir: &Path) -> Outcome<Vec<f64>> {
    let path = |i: usize| dir.join(format!("f{i}"));
    // The passthrough holds a descriptor for each, and is allowed 20,000 here.
    let most = if peer == Peer::Passthrough { PASSTHROUGH_NAMES } else { NAMES };
    let count = ground.count(most);
    let created = rate(count, |i| create(&path(i)))?;
    Ok(vec![created, rate(count, |i| fs::remove_file(path(i)))?])
}

fn unpack(ground: &Ground, peer: Peer, dir: &Path) -> Outcome<Vec<f64>> {
    let count = ground.count(UNPACKED);
    // What others left must not be counted here.
    ground.peers.sync(peer)?;
    let start = Instant::now();
    told(unpack_tree(dir, count))?;
    ground.peers.sync(peer)?;
    Ok(vec![count as f64 / start.elapsed().as_secs_f64()])
}

/// A directory's files follow it; its own time is set last, as its files change it.
fn unpack_tree(root: &Path, count: usize) -> std::io::Result<()> {
    let mut rng = Rng::new(SEED);
    let mut data = vec![0; LONGEST as usize];
    rng.fill(&mut data);
    let dirs: Vec<_> = (0..UNPACKED_DIRS).map(|i| root.join(format!("d{i}"))).collect();
    for dir in &dirs {
        fs::create_dir(dir)?;
        for i in 0..count / UNPACKED_DIRS {
            // Many short ones and few long ones.
            let uniform = (rng.next() >> 11) as f64 / (1u64 << 53) as f64;
            let len = (-MEAN_LEN * (1.0 - uniform).ln()).min(LONGEST) as usize;
            unpack_file(&dir.join(format!("f{i}")), &data[..len], &mut rng)?;
        }
    }
    dirs.iter().try_for_each(|dir| File::open(dir)?.set_times(old(&mut rng)))
}

fn unpack_file(path: &Path, data: &[u8], rng: &mut Rng) -> std::io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(data)?;
    file.set_times(old(rng))?;
    file.set_permissions(Permissions::from_mode(if rng.one_in(8) { 0o755 } else { 0o644 }))
}

/// Some time in the years before.
fn old(rng: &mut Rng) -> FileTimes {
    let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_500_000_000 + rng.below(100_000_000));
    FileTimes::new().set_accessed(SystemTime::now()).set_modified(at)
}

fn two_makers(ground: &Ground, add: Add<'_>) -> Outcome<()> {
    let dirs = ground.fresh_on(2)?;
    for name in ["own0", "own1", "both"] {
        told(fs::create_dir(dirs[0].join(name)))?;
    }
    let each = ground.count(NAMES / 2);
    let run = |name: &(dyn Fn(usize) -> String + Sync)| {
        let make = |job: usize| {
            let dir = dirs[job].join(name(job));
            (0..each).try_for_each(|i| create(&dir.join(format!("f.{job}.{i}"))))
        };
        told(on_all(2, make)).map(|took| 2.0 * each as f64 / took.as_secs_f64())
    };
    add(0, Column::Base, run(&|job| format!("own{job}"))?);
    add(0, Column::Nuri, run(&|_| "both".into())?);
    Ok(())
}

fn shared_directory(ground: &Ground, jobs: usize, mounts: usize, add: Add<'_>) -> Outcome<()> {
    let peers = if mounts == 1 { &PEERS[..] } else { &[Peer::Nuri] };
    for peer in peers {
        let dirs = match peer {
            Peer::Nuri => ground.fresh_on(mounts)?,
            _ => vec![ground.fresh(*peer)?],
        };
        let phases: [fn(&Path) -> std::io::Result<()>; 3] =
            [create, |path| fs::metadata(path).map(drop), |path| fs::remove_file(path)];
        for (i, phase) in phases.into_iter().enumerate() {
            let (rate, cpu) = of_all_names(ground, *peer, &dirs, jobs, phase)?;
            add(i, column(*peer), rate);
            if *peer == Peer::Nuri {
                add(i, Column::Cpu, cpu);
            }
        }
    }
    Ok(())
}

/// One phase; returns operations per second and Nuri's processor microseconds for each.
fn of_all_names(
    ground: &Ground,
    peer: Peer,
    dirs: &[PathBuf],
    jobs: usize,
    act: fn(&Path) -> std::io::Result<()>,
) -> Outcome<(f64, f64)> {
    let each = ground.count(SHARED_NAMES);
    let before = ground.peers.cpu_seconds();
    let took = told(on_all(jobs, |job| {
        let dir = &dirs[job % dirs.len()];
        (0..each).try_for_each(|i| act(&dir.join(format!("f.{job}.{i}"))))
    }))?;
    // What the mounts put off is work of these operations too, though nobody waits for it.
    ground.peers.sync(peer)?;
    let cpu = ground.peers.cpu_seconds() - before;
    let count = (jobs * each) as f64;
    Ok((count / took.as_secs_f64(), cpu * 1e6 / count))
}

fn one_file(ground: &Ground, files: Files, add: Add<'_>) -> Outcome<()> {
    let block = if files == Files::Strided { RECORD } else { SEGMENT_BLOCK };
    let total = ground.count(WRITTEN) / (block * WRITERS) * block * WRITERS;
    for (column, files) in [(Column::Base, Files::Own), (Column::Nuri, files)] {
        let dirs = ground.fresh_on(2)?;
        let transfer = Transfer { block, jobs: WRITERS, files, total };
        add(0, column, told(transfer.write(&dirs))?);
    }
    Ok(())
}

fn ping_pong(ground: &Ground, add: Add<'_>) -> Outcome<()> {
    let dirs = ground.fresh_on(2)?;
    let open = |dir: &PathBuf| {
        let options = OpenOptions::new().read(true).write(true).create(true).to_owned();
        told(options.open(dir.join("page")))
    };
    let sides = [open(&dirs[0])?, open(&dirs[1])?];
    let turns = ground.count(TURNS) as u64;
    let took = (0..turns).map(|turn| round_trip(&sides, turn)).collect::<Outcome<Vec<f64>>>()?;
    let call = call_of_server(&sides[0], ground.count(TURNS))?;
    add(0, Column::Nuri, median(took.clone()));
    add(1, Column::Nuri, high(took));
    add(0, Column::Base, 2.0 * call);
    add(1, Column::Base, 2.0 * call);
    add(2, Column::Nuri, call);
    Ok(())
}

fn microseconds(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e6
}

/// There and back: what one side wrote the other one reads.
fn round_trip(sides: &[File; 2], turn: u64) -> Outcome<f64> {
    let start = Instant::now();
    for from in 0..2 {
        let value = (2 * turn + from as u64 + 1).to_le_bytes();
        let page = value.repeat(PAGE / value.len());
        told(sides[from].write_all_at(&page, 0))?;
        let mut seen = vec![0; PAGE];
        told(sides[1 - from].read_exact_at(&mut seen, 0))?;
        if seen != page {
            return Err(format!("turn {turn}: a page is not what the other mount wrote"));
        }
    }
    Ok(microseconds(start))
}

/// What nobody exceeds but one of a hundred.
fn high(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() * 99 / 100).copied().unwrap_or(f64::NAN)
}

/// An attribute that is not set is known to the metadata server alone: one call for each question.
fn call_of_server(file: &File, count: usize) -> Outcome<f64> {
    let ask = |_| {
        let start = Instant::now();
        match rustix::fs::fgetxattr(file, "user.absent", &mut [0; 16]) {
            Err(rustix::io::Errno::NODATA) => Ok(microseconds(start)),
            other => Err(format!("an attribute that nobody set: {other:?}")),
        }
    };
    (0..count).map(ask).collect::<Outcome<Vec<f64>>>().map(median)
}
