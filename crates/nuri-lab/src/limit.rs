//! What this machine can do at best, measured in the same run: memory copy, a TCP stream over
//! loopback, and a disk without the page cache. Each of the three takes at most about a second.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nuri_io::buf::AlignedBuf;
use nuri_io::rng::Rng;

use crate::record::Limit;
use crate::work::WorkDir;
use crate::{LabError, Result, at};

pub const MEMORY: &str = "memory copy";
pub const STREAM: &str = "loopback TCP";
/// Of the cables of all nodes that mount, between two nodes each.
pub const WIRE: &str = "wire";
pub const DISK_WRITE: &str = "disk write";
pub const DISK_READ: &str = "disk read";

const BUDGET: Duration = Duration::from_millis(700);
const BLOCK: usize = 4 << 20;
/// Requests to the disk at once.
const STREAMS: usize = 4;
/// Beyond the caches of processors.
const COPIED: usize = 64 << 20;
const MOST_WRITTEN: u64 = 1 << 30;
/// The scratch file takes this part of the free space at most.
const SHARE_OF_FREE: u64 = 4;

/// Limits in MiB/s.
#[derive(Clone, Default, Debug)]
pub struct Limits(Vec<Limit>);

impl Limits {
    /// Of memory and loopback, and of the disk under `scratch`. What cannot be measured is left
    /// out with a reason.
    pub fn measure(scratch: Option<&Path>) -> (Limits, Vec<String>) {
        let mut limits = vec![Limit { name: MEMORY.into(), value: memory_copy() }];
        let mut left_out = Vec::new();
        match loopback() {
            Ok(value) => limits.push(Limit { name: STREAM.into(), value }),
            Err(error) => left_out.push(format!("the limit of loopback TCP is unknown: {error}")),
        }
        match scratch.map(disk) {
            Some(Ok((write, read))) => {
                limits.push(Limit { name: DISK_WRITE.into(), value: write });
                limits.push(Limit { name: DISK_READ.into(), value: read });
            }
            Some(Err(error)) => left_out.push(format!("the disk's limits are unknown: {error}")),
            None => left_out.push("the disk's limits are unknown without --scratch".into()),
        }
        (Limits(limits), left_out)
    }

    /// With one that was measured elsewhere.
    pub(crate) fn with(mut self, name: &str, value: f64) -> Limits {
        self.0.push(Limit { name: name.into(), value });
        self
    }

    /// The lowest of those named that are known.
    pub fn lowest(&self, names: &[&str]) -> Option<Limit> {
        let known = self.0.iter().filter(|limit| names.contains(&limit.name.as_str()));
        known.min_by(|a, b| a.value.total_cmp(&b.value)).cloned()
    }

    pub fn all(&self) -> &[Limit] {
        &self.0
    }
}

fn mib_per_second(bytes: u64, since: Instant) -> f64 {
    bytes as f64 / f64::from(1 << 20) / since.elapsed().as_secs_f64()
}

/// Of all processors together: so many processes may copy at once.
fn memory_copy() -> f64 {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let copy = || {
        let (from, mut to) = (vec![1u8; COPIED], vec![0u8; COPIED]);
        let start = Instant::now();
        let mut bytes = 0;
        while start.elapsed() < BUDGET / 2 {
            to.copy_from_slice(std::hint::black_box(&from));
            bytes += std::hint::black_box(&to).len() as u64;
        }
        mib_per_second(bytes, start)
    };
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(copy)).collect();
        running.into_iter().filter_map(|thread| thread.join().ok()).sum()
    })
}

fn loopback() -> Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(LabError::new)?;
    let address = listener.local_addr().map_err(LabError::new)?;
    let out = TcpStream::connect(address).map_err(LabError::new)?;
    stream(&listener, out)
}

/// What one connection carries: `out`, which the listener has not accepted yet.
pub(crate) fn stream(listener: &TcpListener, mut out: TcpStream) -> Result<f64> {
    let (mut into, _) = listener.accept().map_err(LabError::new)?;
    std::thread::scope(|scope| {
        let sender = scope.spawn(move || {
            let (block, start) = (vec![1u8; BLOCK / 16], Instant::now());
            while start.elapsed() < BUDGET && out.write_all(&block).is_ok() {}
        });
        let (mut block, start, mut bytes) = (vec![0u8; BLOCK / 16], Instant::now(), 0);
        loop {
            match into.read(&mut block).map_err(LabError::new)? {
                0 => break,
                read => bytes += read as u64,
            }
        }
        let rate = mib_per_second(bytes, start);
        sender.join().map_err(|_| LabError::new("the sender ended early"))?;
        Ok(rate)
    })
}

/// Writing with a sync at the end, and reading the same.
fn disk(scratch: &Path) -> Result<(f64, f64)> {
    let work = WorkDir::make(&[scratch.to_path_buf()])?;
    let path = work.views()[0].join("limit");
    let mut options = OpenOptions::new();
    let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
    options.read(true).write(true).create_new(true).custom_flags(direct);
    let file = options.open(&path).map_err(at(path.display()))?;
    let most = MOST_WRITTEN.min(free(scratch)? / SHARE_OF_FREE);
    disk_rates(&file, most).map_err(at(path.display()))
}

fn disk_rates(file: &File, most: u64) -> std::io::Result<(f64, f64)> {
    let start = Instant::now();
    let written = blocks(most, |block, at| file.write_all_at(block, at))?;
    file.sync_data()?;
    let write = mib_per_second(written, start);
    let start = Instant::now();
    let read = blocks(written, |block, at| file.read_exact_at(block, at))?;
    Ok((write, mib_per_second(read, start)))
}

/// Moves blocks one after the other, as many at once as keep a disk busy, until the time or the
/// bytes are used up; returns how many bytes there were.
fn blocks(
    most: u64,
    each: impl Fn(&mut [u8], u64) -> std::io::Result<()> + Sync,
) -> std::io::Result<u64> {
    let (next, start) = (AtomicU64::new(0), Instant::now());
    let stream = || {
        let mut block = AlignedBuf::zeroed(BLOCK);
        // Zeros flatter disks that compress.
        Rng::new(0).fill(&mut block);
        while start.elapsed() < BUDGET {
            let at = next.fetch_add(1, Ordering::Relaxed) * BLOCK as u64;
            if at + BLOCK as u64 > most {
                next.fetch_sub(1, Ordering::Relaxed);
                break;
            }
            each(&mut block, at)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..STREAMS).map(|_| scope.spawn(stream)).collect();
        let lost = || Err(std::io::Error::other("a thread panicked"));
        running.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| lost()))
    })?;
    Ok(next.into_inner() * BLOCK as u64)
}

/// Bytes that may still be written under `dir`.
pub fn free(dir: &Path) -> Result<u64> {
    let stat = rustix::fs::statvfs(dir).map_err(at(dir.display()))?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_positive_and_leave_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (limits, left_out) = Limits::measure(Some(dir.path()));
        assert!(limits.all().iter().all(|limit| limit.value > 1.0), "{limits:?}");
        assert!(limits.all().len() == 4 || left_out.len() == 1, "{left_out:?}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_lowest_that_is_known_counts() {
        let limit = |name: &str, value| Limit { name: name.into(), value };
        let limits = Limits(vec![limit(MEMORY, 9000.0), limit(STREAM, 3000.0)]);
        let lowest = limits.lowest(&[MEMORY, STREAM, DISK_READ]).unwrap();
        assert_eq!(lowest.name, STREAM);
        assert!(limits.lowest(&[DISK_READ]).is_none());
    }
}
