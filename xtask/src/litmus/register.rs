//! Cells of a file, read and written by all mounts at once. Each cell must be a register: one order
//! of all reads and writes explains what was read and agrees with their times.
//!
//! With unique values that is decided by the zones of Gibbons and Korach: per value, from the first
//! end of an operation on it to the last beginning.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::time::Instant;

use nuri_io::rng::Rng;

use super::{Ground, said};

const CELLS: u64 = 24;
const OPERATIONS: u64 = 150;
const O_DIRECT: i32 = 0o40000;
const PAGE: usize = 4096;

/// One operation on one cell, times in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Done {
    cell: u64,
    /// The upper half tells the writer, counted from 1.
    value: u64,
    writes: bool,
    begin: u64,
    end: u64,
}

pub(super) fn cells(ground: &Ground) -> Result<(), String> {
    let mut rng = ground.rng(0);
    let apart = [8, 512, 4096, 65_536][rng.below(4) as usize];
    let file = ground.path(0, "cells");
    std::fs::write(&file, vec![0; (CELLS * apart).max(PAGE as u64) as usize])
        .map_err(said("the cells"))?;
    let start = Instant::now();
    let histories = ground.together(ground.dirs.len(), |mount, dir| {
        let open = |flags| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).custom_flags(flags).open(dir.join("cells"))
        };
        let file = open(0).map_err(said("open"))?;
        let direct = open(O_DIRECT).map_err(said("open without the kernel's cache"))?;
        let mut rng = ground.rng(1 + mount as u64);
        let mut history = Vec::new();
        for number in 1..=OPERATIONS {
            let cell = rng.below(CELLS);
            let value = (mount as u64 + 1) << 32 | number;
            let begin = start.elapsed().as_nanos() as u64;
            let outcome = step(&mut rng, (&file, &direct), cell * apart, value);
            let (writes, value) = outcome.map_err(said(format!("cell {cell}")))?;
            let end = start.elapsed().as_nanos() as u64;
            history.push(Done { cell, value, writes, begin, end });
        }
        Ok(history)
    })?;
    let mut by_cell: BTreeMap<u64, Vec<Done>> = BTreeMap::new();
    for done in histories.into_iter().flatten() {
        by_cell.entry(done.cell).or_default().push(done);
    }
    by_cell.values().try_for_each(|all| check(all))
}

/// Reads or writes. Returns the value.
fn step(
    rng: &mut Rng,
    (file, direct): (&File, &File),
    at: u64,
    value: u64,
) -> std::io::Result<(bool, u64)> {
    match rng.below(5) {
        0 | 1 => file.write_all_at(&value.to_le_bytes(), at).map(|()| (true, value)),
        2 => read_direct(direct, at).map(|value| (false, value)),
        _ => {
            let mut bytes = [0; 8];
            file.read_exact_at(&mut bytes, at)?;
            Ok((false, u64::from_le_bytes(bytes)))
        }
    }
}

fn read_direct(file: &File, at: u64) -> std::io::Result<u64> {
    let mut space = vec![0; 2 * PAGE];
    let skip = space.as_ptr().align_offset(PAGE);
    let page = &mut space[skip..skip + PAGE];
    let within = at as usize % PAGE;
    file.read_at(page, at - within as u64)?;
    let bytes = page[within..within + 8].try_into();
    Ok(u64::from_le_bytes(bytes.unwrap_or_default()))
}

/// All that happened to one value.
#[derive(Clone, Copy, Debug)]
struct Zone {
    value: u64,
    /// First end and last beginning.
    low: u64,
    high: u64,
}

impl Zone {
    fn is_forward(&self) -> bool {
        self.low < self.high
    }

    fn span(&self) -> (u64, u64) {
        (self.low.min(self.high), self.low.max(self.high))
    }
}

/// Whether one order explains the operations on a cell, which held 0 at first.
fn check(all: &[Done]) -> Result<(), String> {
    let mut zones: BTreeMap<u64, Zone> = BTreeMap::new();
    zones.insert(0, Zone { value: 0, low: 0, high: 0 });
    for done in all {
        let new = Zone { value: done.value, low: u64::MAX, high: 0 };
        let zone = zones.entry(done.value).or_insert(new);
        (zone.low, zone.high) = (zone.low.min(done.end), zone.high.max(done.begin));
    }
    for read in all.iter().filter(|d| !d.writes && d.value != 0) {
        match all.iter().find(|d| d.writes && d.value == read.value) {
            None => return Err(format!("nobody wrote what was read: {read:?}")),
            Some(write) if read.end < write.begin => {
                return Err(format!("read before it was written: {read:?}, {write:?}"));
            }
            Some(_) => {}
        }
    }
    let zones: Vec<_> = zones.into_values().collect();
    for (i, one) in zones.iter().enumerate() {
        for other in &zones[..i] {
            if are_crossed(one, other) {
                let of = |value| all.iter().filter(|d| d.value == value).collect::<Vec<_>>();
                return Err(format!(
                    "no order explains these two: {:?} and {:?}",
                    of(one.value),
                    of(other.value)
                ));
            }
        }
    }
    Ok(())
}

fn are_crossed(one: &Zone, other: &Zone) -> bool {
    let ((a, b), (c, d)) = (one.span(), other.span());
    match (one.is_forward(), other.is_forward()) {
        (true, true) => a < d && c < b,
        (true, false) => a < c && d < b,
        (false, true) => c < a && b < d,
        (false, false) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(value: u64, writes: bool, begin: u64, end: u64) -> Done {
        Done { cell: 0, value, writes, begin, end }
    }

    #[test]
    fn an_order_is_found_or_not() {
        let write = |value, begin, end| done(value, true, begin, end);
        let read = |value, begin, end| done(value, false, begin, end);
        assert!(check(&[write(1, 10, 20), read(0, 12, 15), read(1, 14, 18)]).is_ok());
        assert!(check(&[write(1, 10, 20), read(1, 14, 18), read(0, 19, 25)]).is_err(), "back");
        assert!(check(&[write(1, 10, 20), read(0, 21, 25)]).is_err(), "stale");
        assert!(check(&[write(1, 10, 20), read(1, 2, 5)]).is_err(), "before it was written");
        let both = [write(1, 10, 30), write(2, 10, 30)];
        let ends = |a, b| [&both[..], &[read(a, 40, 50), read(b, 60, 70)]].concat();
        assert!(check(&ends(1, 1)).is_ok() && check(&ends(1, 2)).is_err());
        assert!(check(&[read(7, 1, 2)]).is_err(), "nobody wrote it");
    }
}
