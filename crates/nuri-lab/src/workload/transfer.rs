//! Runs one rank's transfers.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use nuri_io::buf::AlignedBuf;
use nuri_io::rng::Rng;
use rustix::fs::OFlags;

use super::Phase;
use super::collective::Exchange;
use super::ior::Ior;
use super::library::{Gate, Library};
use super::opened::Opened;
use super::pattern::Pattern;
use crate::job::{Job, Moved, Order, Part};
use crate::{LabError, Result, at, work};

type Places = Box<dyn Iterator<Item = u64>>;

pub(super) struct Transfers {
    ior: Ior,
    job: Job,
    /// Where all ranks go together.
    exchange: Option<Exchange>,
    /// Where it reaches files without the kernel.
    library: Option<Library>,
    ready: Option<Ready>,
}

/// All that a phase needs.
struct Ready {
    phase: Phase,
    path: PathBuf,
    /// Of this rank, or of all where they go together.
    places: Vec<Places>,
    /// Whose bytes.
    owner: usize,
    pattern: Pattern,
    buffer: AlignedBuf,
    /// Flags that the file is opened with.
    flags: i32,
}

impl Transfers {
    pub(super) fn new(ior: Ior, job: Job) -> Transfers {
        Transfers { ior, job, exchange: None, library: None, ready: None }
    }

    /// Whose bytes are read and where: its own through its own directory, or the next rank's
    /// through the directory after that rank's.
    fn source(&self, phase: Phase) -> (usize, PathBuf) {
        let owner = self.owner(self.job.rank, phase);
        let is_others = self.is_reordered(phase);
        let dir = if is_others { self.job.dir_of(owner + 1) } else { self.job.dir() };
        (owner, self.ior.path(dir, owner))
    }

    fn is_reordered(&self, phase: Phase) -> bool {
        phase == Phase::Read && self.ior.reorder
    }

    /// Whose bytes a rank moves.
    fn owner(&self, rank: usize, phase: Phase) -> usize {
        if self.is_reordered(phase) { (rank + 1) % self.ior.np } else { rank }
    }

    /// What is read is wrong from here on.
    fn wrong(&self, ready: &Ready, offset: u64) -> LabError {
        let (path, owner) = (ready.path.display(), ready.owner);
        LabError(format!("{path} does not hold what rank {owner} wrote at byte {offset}"))
    }

    fn go(&mut self, ready: &mut Ready) -> Result<Moved> {
        let file = self.open(ready).map_err(at(ready.path.display()))?;
        let mut moved = Moved::default();
        let mut places = std::mem::take(&mut ready.places);
        // Of all ranks that go together, this one's first where it goes alone.
        let mut step = vec![0; places.len()];
        let own = if self.exchange.is_some() { self.job.rank } else { 0 };
        while advance(&mut places, &mut step) {
            self.transfer(file.as_ref(), ready, &step, step[own])?;
            moved.operations += 1;
            moved.bytes += self.ior.transfer;
        }
        if ready.phase == Phase::Write && self.ior.sync {
            file.sync().map_err(at(ready.path.display()))?;
        }
        file.close().map_err(at(ready.path.display()))?;
        Ok(moved)
    }

    fn transfer(
        &mut self,
        file: &dyn Opened,
        ready: &mut Ready,
        step: &[u64],
        offset: u64,
    ) -> Result<()> {
        if ready.phase == Phase::Write {
            let data = ready.pattern.at(offset);
            let written = match &mut self.exchange {
                Some(exchange) => exchange.write(file, step, data)?,
                None => file.write_all_at(data, offset),
            };
            return written.map_err(at(ready.path.display()));
        }
        let read = match &mut self.exchange {
            Some(exchange) => exchange.read(file, step, &mut ready.buffer)?,
            None => {
                let end = offset + self.ior.transfer;
                file.read_exact_at(&mut ready.buffer, offset).map_err(|error| (error, end))
            }
        };
        read.map_err(|(error, end)| short(&error, ready, end))?;
        let wrong = if ready.phase == Phase::Verify || self.ior.verify_read {
            ready.pattern.wrong_byte(&ready.buffer, offset)
        } else {
            ready.pattern.wrong_end(&ready.buffer, offset)
        };
        wrong.map_or(Ok(()), |at| Err(self.wrong(ready, at)))
    }

    /// Opening and closing count, as in IOR.
    fn open(&self, ready: &Ready) -> io::Result<Box<dyn Opened>> {
        match &self.library {
            Some(library) => library.open(&ready.path, ready.phase),
            None => open(ready).map(|file| Box::new(file) as Box<dyn Opened>),
        }
    }

    /// The places of a rank's transfers, in the order in which it comes to them.
    fn places(&self, rank: usize, order: Order) -> Places {
        let owner = self.owner(rank, order.phase);
        if !self.ior.random {
            return Box::new(self.ior.offsets(owner));
        }
        let mut places: Vec<u64> = self.ior.offsets(owner).collect();
        shuffle(&mut places, order.seed ^ rank as u64);
        Box::new(places.into_iter())
    }

    /// Meets the others, in each repetition: the place is a new one.
    fn meet(&mut self, phase: Phase) -> Result<()> {
        let Some(aggregators) = self.ior.together(self.job.dirs.len()) else { return Ok(()) };
        if phase == Phase::Write {
            self.exchange = None;
            let (dir, ranks) = (work::private(&self.job.dirs), (self.job.rank, self.ior.np));
            let transfer = self.ior.transfer as usize;
            self.exchange = Some(Exchange::open(&dir, ranks, aggregators, transfer)?);
        }
        Ok(())
    }
}

/// Each rank's next place. False at the end, which all have at once.
fn advance(places: &mut [Places], step: &mut [u64]) -> bool {
    let mut all =
        places.iter_mut().zip(step).map(|(places, place)| places.next().map(|next| *place = next));
    all.all(|moved| moved.is_some())
}

impl Part for Transfers {
    fn prepare(&mut self, order: Order) -> Result<()> {
        self.meet(order.phase)?;
        let (owner, path) = self.source(order.phase);
        if let Some(token) = self.ior.by_library() {
            let dir = path.parent().unwrap_or(&path);
            self.library = Some(Gate::of(dir, token)?.enter(self.job.rank)?);
        }
        let transfer = self.ior.transfer as usize;
        let ranks = match self.exchange {
            Some(_) => 0..self.ior.np,
            None => self.job.rank..self.job.rank + 1,
        };
        self.ready = Some(Ready {
            phase: order.phase,
            path,
            places: ranks.map(|rank| self.places(rank, order)).collect(),
            owner,
            pattern: Pattern::new(order.seed, owner, transfer),
            buffer: AlignedBuf::zeroed(transfer),
            flags: if self.ior.direct { OFlags::DIRECT.bits() as i32 } else { 0 },
        });
        Ok(())
    }

    fn run(&mut self) -> Result<Moved> {
        let mut ready = self.ready.take().ok_or(LabError::new("told to go unprepared"))?;
        self.go(&mut ready)
    }

    /// What the library cached goes with its session.
    fn rest(&mut self) -> Result<()> {
        self.library = None;
        Ok(())
    }
}

fn open(ready: &Ready) -> io::Result<File> {
    let mut options = OpenOptions::new();
    match ready.phase {
        Phase::Write => options.write(true).create(true).truncate(false),
        _ => options.read(true),
    };
    options.custom_flags(ready.flags).open(&ready.path)
}

fn short(error: &io::Error, ready: &Ready, end: u64) -> LabError {
    let path = ready.path.display();
    match error.kind() {
        io::ErrorKind::UnexpectedEof => LabError(format!("{path} ends before byte {end}")),
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
    use std::os::unix::fs::FileExt;

    use std::sync::Barrier;

    use super::super::tests::parse;
    use super::*;

    fn rank(options: &str, rank: usize, dirs: &[PathBuf]) -> Box<dyn Part> {
        let workload = parse(&format!("ior {options}")).unwrap();
        workload.clone().part(Job::new(workload, rank, dirs.to_vec()))
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

    /// All ranks at once, through all phases; the file that they leave.
    fn together(options: &str) -> Vec<u8> {
        let dir = tempfile::tempdir().unwrap();
        let dirs = [dir.path().to_path_buf(), dir.path().join(".")];
        let workload = parse(&format!("ior {options}")).unwrap();
        workload.lay_out(&dirs).unwrap();
        let barrier = Barrier::new(workload.processes());
        let one = &|number: usize| {
            let mut part = rank(options, number, &dirs);
            for phase in [Phase::Write, Phase::Verify, Phase::Read] {
                let moved = run(part.as_mut(), phase).unwrap();
                assert_eq!(moved, Moved { bytes: 15_000, operations: 15 }, "{options}");
                barrier.wait();
            }
        };
        std::thread::scope(|scope| {
            (0..workload.processes()).for_each(|number| _ = scope.spawn(move || one(number)));
        });
        let left = std::fs::read(dir.path().join("data")).unwrap();
        workload.clear(&dirs).unwrap();
        assert!(!work::private(&dirs).exists());
        left
    }

    #[test]
    fn ranks_that_go_together_leave_what_they_leave_alone() {
        for options in ["-C", "-z -C -e -R", "-C -t 1000 -b 1000 -s 15"] {
            let shape = if options.contains("-b") { "" } else { "-t 1000 -b 5000 -s 3" };
            let options = format!("--np 3 {shape} {options}");
            let alone = together(&options);
            for aggregators in 1..=3 {
                let asked = format!("-a collective --aggregators {aggregators}");
                assert!(together(&format!("{options} {asked}")) == alone, "{options} {asked}");
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
