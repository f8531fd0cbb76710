//! Sizes that grow under the eyes of others.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{Ground, said};

const RECORDS: u64 = 40;
const HEAD: usize = 12;

/// Appends of all mounts to one file: whole, none lost, each mount's in order.
pub(super) fn appends(ground: &Ground) -> Result<(), String> {
    ground.together(ground.dirs.len(), |mount, dir| {
        let mut rng = ground.rng(mount as u64);
        let open = || OpenOptions::new().append(true).create(true).open(dir.join("log"));
        let mut file = open().map_err(said("open"))?;
        for number in 0..RECORDS {
            if rng.one_in(3) {
                file = open().map_err(said("open"))?;
            }
            let most = [20, 600, 9000][rng.below(3) as usize];
            let len = HEAD as u64 + rng.below(most);
            file.write_all(&record(mount, number, len as usize)).map_err(said("append"))?;
        }
        Ok(())
    })?;
    (0..ground.dirs.len()).try_for_each(|mount| {
        let log = std::fs::read(ground.path(mount, "log")).map_err(said("the log"))?;
        check_log(&log, ground.dirs.len()).map_err(|words| format!("seen by {mount}: {words}"))
    })
}

/// Length, writer and number, then bytes that tell the writer.
fn record(mount: usize, number: u64, len: usize) -> Vec<u8> {
    let mut record = Vec::with_capacity(len);
    record.extend_from_slice(&(len as u32).to_le_bytes());
    record.extend_from_slice(&(mount as u32).to_le_bytes());
    record.extend_from_slice(&(number as u32).to_le_bytes());
    record.resize(len, b'a' + mount as u8);
    record
}

fn check_log(mut log: &[u8], mounts: usize) -> Result<(), String> {
    let mut next = vec![0; mounts];
    while !log.is_empty() {
        let word = |at: usize| {
            let bytes = log.get(at..at + 4).and_then(|b| b.try_into().ok());
            bytes.map_or(0, u32::from_le_bytes) as usize
        };
        let (len, mount, number) = (word(0), word(4), word(8));
        let whole = len >= HEAD && mount < mounts && log.len() >= len;
        if !whole || log[..len] != record(mount, number as u64, len)[..] {
            return Err(format!("{} bytes before the end a record is broken", log.len()));
        }
        if number != next[mount] {
            return Err(format!("of mount {mount}: record {number}, not {}", next[mount]));
        }
        next[mount] += 1;
        log = &log[len..];
    }
    if next.iter().any(|count| *count != RECORDS as usize) {
        return Err(format!("records of each mount: {next:?}, not {RECORDS}"));
    }
    Ok(())
}

/// One mount makes a file longer; what the others see of its size never shrinks, and covers bytes
/// that are there.
pub(super) fn growth(ground: &Ground) -> Result<(), String> {
    let mut rng = ground.rng(0);
    let (step, steps) = ([100, 4096, 50_000][rng.below(3) as usize], 60);
    let writing = AtomicUsize::new(1);
    let byte = |at: u64| 1 + (at % 251) as u8;
    std::fs::write(ground.path(0, "f"), "").map_err(said("the file"))?;
    ground.together(ground.dirs.len(), |mount, dir| {
        if mount == 0 {
            let grown = OpenOptions::new().write(true).open(dir.join("f")).and_then(|file| {
                (0..steps).try_for_each(|n| {
                    let bytes: Vec<_> = (n * step..(n + 1) * step).map(byte).collect();
                    file.write_all_at(&bytes, n * step)
                })
            });
            writing.store(0, Ordering::SeqCst);
            return grown.map_err(said("growing"));
        }
        let mut before = 0;
        loop {
            let is_last = writing.load(Ordering::SeqCst) == 0;
            let file = File::open(dir.join("f")).map_err(said("open"))?;
            let size = file.metadata().map_err(said("stat"))?.len();
            let at = size.saturating_sub(step);
            let mut tail = vec![0; (size - at) as usize];
            file.read_exact_at(&mut tail, at).map_err(said(format!("read below {size}")))?;
            if size < before || size % step != 0 {
                return Err(format!("a size of {size} after {before}"));
            }
            if let Some(bad) = (at..size).find(|i| tail[(i - at) as usize] != byte(*i)) {
                return Err(format!("byte {bad} of {size} is {}", tail[(bad - at) as usize]));
            }
            before = size;
            if is_last {
                let whole = steps * step;
                return if size == whole { Ok(()) } else { Err(format!("{size}, not {whole}")) };
            }
        }
    })?;
    Ok(())
}
