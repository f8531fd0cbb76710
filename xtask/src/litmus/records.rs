//! One file that several mounts write at the same time, each its own records or the same ones.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Ground, said};

const MOUNTS: usize = 3;
/// Programs on each mount.
const WRITERS: u64 = 2;
/// Records of each program: they end within pages, and within blocks.
const RECORDS: u64 = 40;
const LENS: [u64; 3] = [47_008, 4096, 300_001];

fn open(dir: &Path) -> Result<File, String> {
    let options = OpenOptions::new().read(true).write(true).create(true).truncate(false).to_owned();
    options.open(dir.join("records")).map_err(said("open"))
}

/// What a record holds, told by its number and who wrote it.
fn record(len: u64, number: u64, writer: u64) -> Vec<u8> {
    let word = (number * 64 + writer + 1).to_le_bytes();
    word.iter().copied().cycle().take(len as usize).collect()
}

/// Records in turn, all different; some mounts look at the file meanwhile. Nothing of it is lost,
/// and its size never goes back.
pub(super) fn in_turn(ground: &Ground) -> Result<(), String> {
    let len = LENS[ground.rng(0).below(LENS.len() as u64) as usize];
    let is_over = AtomicBool::new(false);
    let jobs = MOUNTS as u64 * WRITERS;
    let write = |mount: usize, dir: &Path| {
        let file = open(dir)?;
        std::thread::scope(|scope| {
            let job = |writer: u64| {
                let (file, me) = (&file, mount as u64 * WRITERS + writer);
                scope.spawn(move || {
                    (0..RECORDS).map(|i| i * jobs + me).try_for_each(|number| {
                        let data = record(len, number, me);
                        file.write_all_at(&data, number * len).map_err(said("write"))
                    })
                })
            };
            let jobs: Vec<_> = (0..WRITERS).map(job).collect();
            let mut ends = jobs.into_iter().map(|job| job.join().map_err(|_| "panic".to_string()));
            ends.try_for_each(|end| end?)
        })?;
        file.sync_all().map_err(said("fsync"))
    };
    let mut looks = ground.rng(1);
    let watch = |dir: &Path, pause: u64| {
        let mut last = 0;
        while !is_over.load(Ordering::SeqCst) {
            let size = std::fs::metadata(dir.join("records")).map_or(last, |meta| meta.len());
            if size < last {
                return Err(format!("the size went back from {last} to {size}"));
            }
            last = size;
            std::thread::sleep(std::time::Duration::from_millis(pause));
        }
        Ok(())
    };
    let pause = 20 + looks.below(200);
    let outcome = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| watch(&ground.dirs[MOUNTS], pause));
        let outcome = ground.together(MOUNTS, write);
        is_over.store(true, Ordering::SeqCst);
        let watched = watcher.join().map_err(|_| "the watcher panicked".to_string())?;
        outcome.and(watched)
    });
    outcome?;
    for (mount, dir) in ground.dirs.iter().enumerate() {
        check(dir, len, jobs).map_err(|words| format!("mount {mount}: {words}"))?;
    }
    Ok(())
}

fn check(dir: &Path, len: u64, jobs: u64) -> Result<(), String> {
    let data = std::fs::read(dir.join("records")).map_err(said("read"))?;
    let all = RECORDS * jobs;
    if data.len() as u64 != all * len {
        return Err(format!("{} bytes instead of {}", data.len(), all * len));
    }
    for number in 0..all {
        let at = (number * len) as usize;
        let found = &data[at..at + len as usize];
        let wanted = record(len, number, number % jobs);
        if let Some(wrong) = found.iter().zip(&wanted).position(|(a, b)| a != b) {
            let start = &found[..found.len().min(8)];
            return Err(format!(
                "record {number} of {len} bytes differs at byte {wrong}: begins {start:?}, \
                 should {:?}",
                &wanted[..8]
            ));
        }
    }
    Ok(())
}

/// All mounts write all records, in an order of their own, and read some of them back. At the end
/// each record is one writer's, whole, on every mount the same.
pub(super) fn overlapping(ground: &Ground) -> Result<(), String> {
    // Of whole pages: else the kernel writes it in two.
    const LEN: u64 = 20_480;
    const ALL: u64 = 24;
    let write = |mount: usize, dir: &Path| {
        let (file, mut rng) = (open(dir)?, ground.rng(10 + mount as u64));
        for _ in 0..3 * ALL {
            let number = rng.below(ALL);
            let data = record(LEN, number, mount as u64);
            file.write_all_at(&data, number * LEN).map_err(said("write"))?;
            if rng.one_in(6) {
                words(&file, rng.below(ALL), LEN)?;
            }
        }
        file.sync_all().map_err(said("fsync"))
    };
    let size = ALL * LEN;
    open(&ground.dirs[0])?.set_len(size).map_err(said("truncate"))?;
    ground.together(MOUNTS, write)?;
    let files: Vec<_> = ground.dirs.iter().map(|dir| open(dir)).collect::<Result<_, _>>()?;
    for number in 0..ALL {
        let found =
            files.iter().map(|file| whole(file, number, LEN)).collect::<Result<Vec<_>, _>>()?;
        if found.iter().any(|writer| *writer != found[0]) {
            return Err(format!("record {number} differs between mounts: {found:?}"));
        }
    }
    Ok(())
}

/// The words of a record, each of which some mount wrote, or nobody. Kernels read pages apart from
/// each other, so that those of a record that is being written may differ.
fn words(file: &File, number: u64, len: u64) -> Result<Vec<u64>, String> {
    let mut data = vec![0; len as usize];
    file.read_exact_at(&mut data, number * len).map_err(said("read"))?;
    let word = |chunk: &[u8]| u64::from_le_bytes(chunk.try_into().unwrap_or_default());
    let words: Vec<_> = data.chunks_exact(8).map(word).collect();
    let is_right = |w: &u64| *w == 0 || (w - 1) / 64 == number && (w - 1) % 64 < MOUNTS as u64;
    match words.iter().find(|word| !is_right(word)) {
        Some(bad) => Err(format!("record {number} holds {bad:#x}")),
        None => Ok(words),
    }
}

/// The writer of a record that nobody writes now; 0 where it was never written.
fn whole(file: &File, number: u64, len: u64) -> Result<u64, String> {
    let words = words(file, number, len)?;
    match words.iter().find(|word| **word != words[0]) {
        Some(other) => Err(format!("record {number} is mixed: {:#x} and {other:#x}", words[0])),
        None => Ok(words[0]),
    }
}
