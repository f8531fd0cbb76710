//! One rank's transfers.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use nuri_io::rng::Rng;

use super::Phase;
use super::ior::Ior;
use super::pattern::Pattern;
use crate::rank::{Job, Moved, Order, Part};
use crate::{LabError, Result, at};

pub(super) struct Transfers {
    ior: Ior,
    job: Job,
    ready: Option<Ready>,
}

/// All that a phase needs.
struct Ready {
    phase: Phase,
    path: PathBuf,
    /// In random order; none where they go in order.
    shuffled: Option<Vec<u64>>,
    /// Whose bytes.
    owner: usize,
    pattern: Pattern,
    buffer: Vec<u8>,
}

impl Transfers {
    pub(super) fn new(ior: Ior, job: Job) -> Transfers {
        Transfers { ior, job, ready: None }
    }

    /// Whose bytes are read and where: its own through its own directory, or the next rank's
    /// through the directory after that rank's.
    fn source(&self, phase: Phase) -> (usize, PathBuf) {
        let own = self.job.rank;
        if phase != Phase::Read || !self.ior.reorder {
            return (own, self.ior.path(self.job.dir(), own));
        }
        let next = (own + 1) % self.ior.np;
        (next, self.ior.path(self.job.dir_of(next + 1), next))
    }

    /// What is read is wrong from here on.
    fn wrong(&self, ready: &Ready, offset: u64) -> LabError {
        let (path, owner) = (ready.path.display(), ready.owner);
        LabError(format!("{path} does not hold what rank {owner} wrote at byte {offset}"))
    }

    fn go(&self, ready: &mut Ready) -> Result<Moved> {
        let file = open(ready).map_err(at(ready.path.display()))?;
        let mut moved = Moved::default();
        let shuffled = ready.shuffled.take();
        let in_order = shuffled.is_none().then(|| self.ior.offsets(ready.owner));
        for offset in shuffled.into_iter().flatten().chain(in_order.into_iter().flatten()) {
            self.transfer(&file, ready, offset)?;
            moved.operations += 1;
            moved.bytes += self.ior.transfer;
        }
        if ready.phase == Phase::Write && self.ior.sync {
            file.sync_all().map_err(at(ready.path.display()))?;
        }
        Ok(moved)
    }

    fn transfer(&self, file: &File, ready: &mut Ready, offset: u64) -> Result<()> {
        if ready.phase == Phase::Write {
            let data = ready.pattern.at(offset);
            return file.write_all_at(data, offset).map_err(at(ready.path.display()));
        }
        let read = file.read_exact_at(&mut ready.buffer, offset);
        read.map_err(|error| short(error, ready, offset))?;
        let wrong = if ready.phase == Phase::Verify || self.ior.verify_read {
            ready.pattern.wrong_byte(&ready.buffer, offset)
        } else {
            ready.pattern.wrong_end(&ready.buffer, offset)
        };
        wrong.map_or(Ok(()), |at| Err(self.wrong(ready, at)))
    }
}

impl Part for Transfers {
    fn prepare(&mut self, order: Order) -> Result<()> {
        let (owner, path) = self.source(order.phase);
        let transfer = self.ior.transfer as usize;
        let shuffled = self.ior.random.then(|| {
            let mut places: Vec<u64> = self.ior.offsets(owner).collect();
            shuffle(&mut places, order.seed ^ self.job.rank as u64);
            places
        });
        self.ready = Some(Ready {
            phase: order.phase,
            path,
            shuffled,
            owner,
            pattern: Pattern::new(order.seed, owner, transfer),
            buffer: vec![0; transfer],
        });
        Ok(())
    }

    fn run(&mut self) -> Result<Moved> {
        let mut ready = self.ready.take().ok_or(LabError::new("told to go unprepared"))?;
        self.go(&mut ready)
    }
}

/// Opening and closing count, as in IOR.
fn open(ready: &Ready) -> io::Result<File> {
    let mut options = OpenOptions::new();
    match ready.phase {
        Phase::Write => options.write(true).create(true).truncate(false),
        _ => options.read(true),
    };
    options.open(&ready.path)
}

fn short(error: io::Error, ready: &Ready, offset: u64) -> LabError {
    let path = ready.path.display();
    match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            LabError(format!("{path} ends before byte {}", offset + ready.buffer.len() as u64))
        }
        _ => LabError(format!("{path}: {error}")),
    }
}

/// Fisher and Yates; the same order for the same seed.
pub(super) fn shuffle(places: &mut [u64], seed: u64) {
    let mut random = Rng::new(seed);
    for i in (1..places.len()).rev() {
        places.swap(i, random.below(i as u64 + 1) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::parse;
    use super::*;

    fn rank(options: &str, rank: usize, dirs: &[PathBuf]) -> Box<dyn Part> {
        let workload = parse(&format!("ior {options}")).unwrap();
        workload.clone().part(Job { workload, rank, dirs: dirs.to_vec() })
    }

    fn run(part: &mut dyn Part, phase: Phase) -> Result<Moved> {
        part.prepare(Order { phase, seed: 3 })?;
        part.run()
    }

    #[test]
    fn what_a_rank_wrote_its_neighbour_reads() {
        for options in ["-s 3", "-s 3 -F", "-z -s 3 -e", "-s 3 -F -R"] {
            let dir = tempfile::tempdir().unwrap();
            let dirs = [dir.path().to_path_buf(), dir.path().join(".")];
            let options = format!("--np 2 -C -t 1000 -b 5000 {options}");
            let mut ranks: Vec<_> = (0..2).map(|r| rank(&options, r, &dirs)).collect();
            for phase in [Phase::Write, Phase::Verify, Phase::Read] {
                for part in &mut ranks {
                    let moved = run(part.as_mut(), phase).unwrap();
                    assert_eq!(moved, Moved { bytes: 15_000, operations: 15 }, "{options}");
                }
            }
        }
    }

    #[test]
    fn wrong_and_missing_bytes_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let mut part = rank("-t 1000 -b 4000 -R", 0, &[dir.path().to_path_buf()]);
        run(part.as_mut(), Phase::Write).unwrap();
        let file = OpenOptions::new().write(true).open(dir.path().join("data")).unwrap();
        file.write_all_at(b"?", 2500).unwrap();
        let error = run(part.as_mut(), Phase::Read).unwrap_err().to_string();
        assert!(error.ends_with("does not hold what rank 0 wrote at byte 2500"), "{error}");
        file.set_len(2400).unwrap();
        let error = run(part.as_mut(), Phase::Read).unwrap_err().to_string();
        assert!(error.ends_with("ends before byte 3000"), "{error}");
    }

    #[test]
    fn shuffling_keeps_all_places() {
        let places: Vec<u64> = (0..1000).collect();
        let (mut mixed, mut again) = (places.clone(), places.clone());
        shuffle(&mut mixed, 5);
        shuffle(&mut again, 5);
        assert_eq!(mixed, again);
        assert_ne!(mixed, places);
        mixed.sort_unstable();
        assert_eq!(mixed, places);
    }
}
