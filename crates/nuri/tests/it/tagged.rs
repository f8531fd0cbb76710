//! A program that checks itself: a file in which every cell says what was written there last.
//!
//! `cargo xtask faults` uses it too.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::FallocateFlags;

use super::stopwatch::Stopwatch;

/// Bytes that one tag fills; also the alignment of direct reads.
pub const CELL: usize = 512;
/// Longest write and read, in cells: more than a row of three chunks of 1 MiB.
const LONGEST: u64 = 7000;

/// What may be at a place: the tag 0 is a hole.
type Tag = u64;

/// How often what is done, of 64 steps.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    pub syncs: u64,
    /// Cuts the file and makes it as long as before, or punches a hole.
    pub cuts: u64,
    pub reads: u64,
}

pub const MIX: Mix = Mix { syncs: 16, cuts: 2, reads: 16 };
/// Without what makes the state after a crash hard to say.
pub const NO_CUTS: Mix = Mix { cuts: 0, ..MIX };

/// The file and what it should hold.
pub struct Tagged {
    pub path: PathBuf,
    file: File,
    seed: u64,
    random: u64,
    next: Tag,
    /// What a reader must see.
    cells: Vec<Tag>,
    /// Cells with their tags before, as far as they are not known to be durable.
    unsynced: Vec<(u64, Tag)>,
    pub steps: u64,
    /// The longest step, and what it was.
    pub worst: (Duration, &'static str),
}

/// A failed step or a wrong byte, in words.
pub type Outcome = Result<(), String>;

/// Scrambles a number.
pub fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn fill(out: &mut [u8], seed: u64, cell: u64, tag: Tag) {
    if tag == 0 {
        return out.fill(0);
    }
    // The first two words name the cell and the tag, for whoever looks at a failure.
    let start = mix(seed ^ mix(cell) ^ tag);
    for (i, word) in out.chunks_exact_mut(8).enumerate() {
        let value = match i {
            0 => cell,
            1 => tag,
            i => start.wrapping_mul(2 * i as u64 + 1),
        };
        word.copy_from_slice(&value.to_le_bytes());
    }
}

/// The i-th word: the first two are cell and tag.
fn word(bytes: &[u8], i: usize) -> u64 {
    let word = bytes.get(8 * i..8 * i + 8).and_then(|b| b.try_into().ok());
    word.map_or(0, u64::from_le_bytes)
}

fn describe(bytes: &[u8]) -> String {
    let word = |i| word(bytes, i);
    let zero = if bytes.iter().all(|b| *b == 0) { ", all zeros" } else { "" };
    format!("says cell {} tag {}{zero}", word(0), word(1))
}

fn direct() -> i32 {
    rustix::fs::OFlags::DIRECT.bits() as i32
}

/// Reads `out.len()` bytes at `at` past every cache of the kernel; what is beyond the end is zero.
pub fn read_direct(path: &Path, at: u64, out: &mut [u8]) -> io::Result<()> {
    let file = OpenOptions::new().read(true).custom_flags(direct()).open(path)?;
    let mut done = 0;
    while done < out.len() {
        match file.read_at(&mut out[done..], at + done as u64)? {
            0 => break,
            n => done += n,
        }
    }
    out[done..].fill(0);
    Ok(())
}

impl Tagged {
    /// A new file of so many bytes, all holes.
    pub fn create(path: &Path, bytes: u64, seed: u64) -> Tagged {
        let make = || {
            let mut options = OpenOptions::new();
            let file = options.read(true).write(true).create(true).truncate(true).open(path)?;
            file.set_len(bytes)?;
            file.sync_all().map(|()| file)
        };
        let file = make().unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let cells = bytes / CELL as u64;
        Tagged {
            path: path.to_owned(),
            file,
            seed,
            random: mix(seed | 1),
            next: 1,
            cells: vec![0; cells as usize],
            unsynced: Vec::new(),
            steps: 0,
            worst: (Duration::ZERO, "nothing"),
        }
    }

    /// Opens it again, after its mount was another's.
    pub fn reopen(&mut self) -> Outcome {
        let file = OpenOptions::new().read(true).write(true).open(&self.path);
        self.file = file.map_err(|e| format!("open: {e}"))?;
        Ok(())
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.random) % below.max(1)
    }

    fn draw_range(&mut self) -> Range<u64> {
        let all = self.cells.len() as u64;
        let most = match self.draw(8) {
            0 => LONGEST,
            1 | 2 => 600,
            3 | 4 => 64,
            _ => 8,
        };
        let len = 1 + self.draw(most.min(all));
        let start = self.draw(all - len + 1);
        start..start + len
    }

    /// Its length in cells.
    pub fn len(&self) -> u64 {
        self.cells.len() as u64
    }

    /// One random operation.
    pub fn step(&mut self, mix: Mix) -> Outcome {
        let range = self.draw_range();
        match self.draw(64) {
            n if n < mix.syncs => self.sync(),
            n if n < mix.syncs + mix.cuts => match self.draw(2) {
                0 => self.cut(range.start),
                _ => self.punch(range),
            },
            n if n < mix.syncs + mix.cuts + mix.reads => self.check(range),
            _ => self.write(range),
        }
    }

    fn timed<R>(
        &mut self,
        what: &'static str,
        f: impl FnOnce(&Self) -> io::Result<R>,
    ) -> Result<R, String> {
        let start = Stopwatch::start();
        let outcome = f(self);
        let took = start.elapsed();
        self.steps += 1;
        if took > self.worst.0 {
            self.worst = (took, what);
        }
        outcome.map_err(|e| format!("{}: {what} failed after {took:?}: {e}", self.path.display()))
    }

    fn set(&mut self, range: Range<u64>, tag: Tag) {
        for cell in range {
            let old = std::mem::replace(&mut self.cells[cell as usize], tag);
            self.unsynced.push((cell, old));
        }
    }

    pub fn write(&mut self, range: Range<u64>) -> Outcome {
        let (tag, seed) = (self.next, self.seed);
        self.next += 1;
        let mut data = vec![0; (range.end - range.start) as usize * CELL];
        for (out, cell) in data.chunks_exact_mut(CELL).zip(range.clone()) {
            fill(out, seed, cell, tag);
        }
        // Also what failed may be there.
        self.set(range.clone(), tag);
        self.timed("write", |t| t.file.write_all_at(&data, range.start * CELL as u64))
    }

    pub fn sync(&mut self) -> Outcome {
        self.timed("sync", |t| t.file.sync_data())?;
        self.unsynced.clear();
        Ok(())
    }

    /// Cuts the file at a cell and makes it as long as before: the rest is a hole.
    pub fn cut(&mut self, at: u64) -> Outcome {
        let end = self.cells.len() as u64;
        self.set(at..end, 0);
        self.timed("truncation", |t| t.file.set_len(at * CELL as u64))?;
        self.timed("extension", |t| t.file.set_len(end * CELL as u64))
    }

    /// Makes a range a hole.
    pub fn punch(&mut self, range: Range<u64>) -> Outcome {
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let (at, len) = (range.start, range.end - range.start);
        self.set(range, 0);
        self.timed("punch", |t| {
            let (at, len) = (at * CELL as u64, len * CELL as u64);
            rustix::fs::fallocate(&t.file, mode, at, len).map_err(io::Error::from)
        })
    }

    /// Compares a range, read past the kernel's caches.
    pub fn check(&mut self, range: Range<u64>) -> Outcome {
        let path = self.path.clone();
        self.check_at(&path, range)
    }

    fn check_at(&mut self, path: &Path, range: Range<u64>) -> Outcome {
        let mut data = vec![0; (range.end - range.start) as usize * CELL];
        self.timed("read", |_| read_direct(path, range.start * CELL as u64, &mut data))?;
        for (got, cell) in data.chunks_exact(CELL).zip(range) {
            self.compare(path, got, cell, &[self.cells[cell as usize]])?;
        }
        Ok(())
    }

    fn compare(&self, path: &Path, got: &[u8], cell: u64, allowed: &[Tag]) -> Outcome {
        let mut wanted = [0; CELL];
        let fits = allowed.iter().any(|tag| {
            fill(&mut wanted, self.seed, cell, *tag);
            got == wanted
        });
        let (path, says) = (path.display(), describe(got));
        let verdict =
            || format!("WRONG DATA in {path}: cell {cell} should be of {allowed:?}: {says}");
        if fits { Ok(()) } else { Err(verdict()) }
    }

    /// Compares everything, through this path of the file.
    pub fn check_all(&mut self, path: &Path) -> Outcome {
        let all = self.cells.len() as u64;
        let starts = (0..all).step_by(LONGEST as usize);
        starts.into_iter().try_for_each(|at| self.check_at(path, at..all.min(at + LONGEST)))
    }

    /// After a crash of the mount: every cell is as it was at the last sync or at some write since,
    /// and stays so. Reads what there is as the truth from now on.
    pub fn settle_after_crash(&mut self) -> Outcome {
        self.reopen()?;
        let unsynced = std::mem::take(&mut self.unsynced);
        let mut allowed: std::collections::HashMap<u64, Vec<Tag>> = Default::default();
        for (cell, old) in unsynced {
            allowed.entry(cell).or_insert_with(|| vec![self.cells[cell as usize]]).push(old);
        }
        let all = self.cells.len() as u64;
        let mut data = vec![0; CELL * all as usize];
        let path = self.path.clone();
        self.timed("read", |_| read_direct(&path, 0, &mut data))?;
        for (got, cell) in data.chunks_exact(CELL).zip(0..all) {
            let now = [self.cells[cell as usize]];
            self.compare(&path, got, cell, allowed.get(&cell).map_or(&now[..], |v| v))?;
            if allowed.contains_key(&cell) {
                self.cells[cell as usize] = word(got, 1);
            }
        }
        Ok(())
    }
}
