//! A rebuild's calls to the device and nothing else: three reads of other files and a write, some
//! of them side by side. Reads in sequence say more than the device gives to those.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use nuri_io::buf::AlignedBuf;
use rustix::fs::OFlags;

const MIB: u64 = 1 << 20;
const FILE: u64 = 256 * MIB;
const SOURCES: usize = 7;
const READS: usize = 3;
const LANES: usize = 8;
const TIME: Duration = Duration::from_secs(3);
const DIRECT: i32 = OFlags::DIRECT.bits() as i32;

/// MiB/s of what would be rebuilt.
pub(super) fn device_mix(dir: &Path) -> Result<f64, String> {
    let dir = dir.join("mix");
    let measured = std::fs::create_dir_all(&dir).and_then(|()| Mix::prepared(&dir)?.run());
    let removed = std::fs::remove_dir_all(&dir);
    measured.and_then(|rate| removed.map(|()| rate)).map_err(|e| e.to_string())
}

struct Mix {
    sources: Vec<File>,
    sink: File,
}

impl Mix {
    fn prepared(dir: &Path) -> std::io::Result<Mix> {
        let make = |i: usize| {
            let mut options = File::options();
            options.read(true).write(true).create(true).custom_flags(DIRECT);
            let file = options.open(dir.join(i.to_string()))?;
            let mut block = AlignedBuf::zeroed(MIB as usize);
            block.fill(i as u8 + 1);
            for at in (0..FILE).step_by(MIB as usize) {
                file.write_all_at(&block, at)?;
            }
            file.sync_all().map(|()| file)
        };
        let sources: std::io::Result<Vec<File>> = (0..SOURCES).map(make).collect();
        Ok(Mix { sources: sources?, sink: make(SOURCES)? })
    }

    fn run(&self) -> std::io::Result<f64> {
        let start = Instant::now();
        let written: std::io::Result<Vec<u64>> = std::thread::scope(|scope| {
            let start = |lane| scope.spawn(move || self.lane(lane, start));
            let lanes: Vec<_> = (0..LANES).map(start).collect();
            let ended = |lane: std::thread::ScopedJoinHandle<'_, _>| {
                lane.join().unwrap_or_else(|_| Err(std::io::Error::other("a lane panicked")))
            };
            lanes.into_iter().map(ended).collect()
        });
        Ok(written?.iter().sum::<u64>() as f64 / MIB as f64 / start.elapsed().as_secs_f64())
    }

    /// Bytes written until the time is over.
    fn lane(&self, lane: usize, start: Instant) -> std::io::Result<u64> {
        let mut block = AlignedBuf::zeroed(MIB as usize);
        let (mut written, mut random) = (0, lane as u64 + 1);
        let mut place = || {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((random >> 33) as usize, (random >> 40) % (FILE / MIB) * MIB)
        };
        while start.elapsed() < TIME {
            for _ in 0..READS {
                let (file, at) = place();
                self.sources[file % self.sources.len()].read_exact_at(&mut block, at)?;
            }
            self.sink.write_all_at(&block, place().1)?;
            written += MIB;
        }
        Ok(written)
    }
}
