//! Bonnie's phases: a file is written and read by characters and by blocks, rewritten in place, and
//! read at random places.

use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use nuri_io::rng::Rng;
use nuri_proto::size::{self, SizeError, human};
use serde::{Deserialize, Serialize};

use super::opened::InARow;
use super::pattern::Pattern;
use super::remote::RankFile;
use super::{LARGEST, Phase};
use crate::job::{Job, Moved, Order, Part};
use crate::server::Through;
use crate::tool::bonnie as tool;
use crate::{LabError, Result, at};

/// Of the C library's streams, through which Bonnie's characters go.
const STREAM: usize = 4096;
/// Of so many chunks that are sought one is written back.
const REWRITTEN: u64 = 10;
const WORD: u64 = 8;

#[derive(Args, Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Bonnie {
    /// Processes; each has its own file
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = super::processes)]
    pub np: usize,
    /// Bytes of each file and, after a colon, of each chunk
    #[arg(short = 's', value_name = "SIZE[:CHUNK]", default_value = "512m:16k",
        value_parser = parse_shape)]
    shape: Shape,
    /// Leave out the phases by characters
    #[arg(short = 'f')]
    fast: bool,
    /// Repetitions of all phases
    #[arg(short = 'x', value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u64).range(1..))]
    pub repetitions: u64,
    /// Chunks that each process reads at random places
    #[arg(long, value_name = "N", default_value_t = 2000)]
    seeks: u64,
    /// Read without dropping caches first
    #[arg(long)]
    pub warm: bool,
    /// How the files are reached: directory, nbd://HOST/EXPORT or nfs://HOST/PATH; in a testbed
    /// also volume, disk, nfs
    #[arg(long, value_name = "WHAT", default_value = "directory")]
    through: Through,
    /// Overwrite the data of an NBD export
    #[arg(long)]
    overwrite: bool,
    /// Let another program do the work: bonnie++ (needs --warm, as it drops no caches)
    #[arg(long, value_name = "PROGRAM", value_parser = [tool::NAME])]
    pub tool: Option<String>,
}

/// Bytes of a file and of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Shape {
    file: u64,
    chunk: u64,
}

const DEFAULT_CHUNK: &str = "16k";

fn parse_shape(text: &str) -> std::result::Result<Shape, SizeError> {
    let (file, chunk) = text.split_once(':').unwrap_or((text, DEFAULT_CHUNK));
    Ok(Shape { file: size::parse(file)?, chunk: size::parse(chunk)? })
}

impl Bonnie {
    pub(super) fn check(&self) -> Result<()> {
        let Shape { file, chunk } = self.shape;
        if !(WORD..=LARGEST).contains(&chunk) || !chunk.is_multiple_of(WORD) {
            let most = human(LARGEST);
            return Err(LabError(format!("-s: a chunk is a multiple of {WORD}, at most {most}")));
        }
        if file < chunk || !file.is_multiple_of(chunk) {
            let (file, chunk) = (human(file), human(chunk));
            return Err(LabError(format!("-s: {file} is not a multiple of the chunk, {chunk}")));
        }
        if self.tool.is_none() {
            return Ok(());
        }
        if self.through != Through::Directory {
            return Err(LabError::new("--tool bonnie++ works in directories: leave --through out"));
        }
        let fits = chunk.is_power_of_two() && chunk <= 1 << 20 && file.is_multiple_of(1 << 20);
        match (self.np, self.warm, fits) {
            (1, true, true) => Ok(()),
            (1, true, false) => Err(LabError::new(
                "--tool bonnie++ wants files of whole MiB and chunks of a power of two, at most 1m",
            )),
            (1, false, _) => Err(LabError::new("--tool bonnie++ drops no caches: say --warm")),
            _ => Err(LabError::new("--tool bonnie++ is one process: leave --np out")),
        }
    }

    pub(crate) fn chunk(&self) -> u64 {
        self.shape.chunk
    }

    pub(crate) fn seeks(&self) -> u64 {
        self.seeks
    }

    pub(crate) fn is_fast(&self) -> bool {
        self.fast
    }

    pub(crate) fn through(&self) -> &Through {
        &self.through
    }

    /// Bytes of all files.
    pub(crate) fn bytes(&self) -> u64 {
        self.shape.file.saturating_mul(self.np as u64)
    }

    pub(super) fn phases(&self) -> Vec<Phase> {
        let all = [
            (!self.fast, Phase::WriteCharacters),
            (true, Phase::Write),
            (true, Phase::Rewrite),
            (!self.fast, Phase::ReadCharacters),
            (true, Phase::Read),
            (self.seeks > 0, Phase::Seek),
        ];
        all.into_iter().filter(|(wanted, _)| *wanted).map(|(_, phase)| phase).collect()
    }

    fn path(&self, dir: &Path, rank: usize) -> PathBuf {
        dir.join(format!("bonnie.{rank}"))
    }

    pub(crate) fn paths(&self, dir: &Path) -> Vec<PathBuf> {
        (0..self.np).map(|rank| self.path(dir, rank)).collect()
    }

    fn chunks(&self) -> u64 {
        self.shape.file / self.shape.chunk
    }
}

/// One rank's file.
pub(super) struct Stream {
    bonnie: Bonnie,
    rank: usize,
    file: RankFile,
    ready: Option<Ready>,
    /// Its last phase was run.
    is_over: bool,
}

struct Ready {
    phase: Phase,
    /// What the file holds before the phase, and what is written in it.
    old: Pattern,
    new: Pattern,
    buffer: Vec<u8>,
    random: Rng,
}

impl Stream {
    pub(super) fn new(bonnie: Bonnie, job: Job) -> Stream {
        let path = bonnie.path(job.dir(), job.rank);
        let through = (&bonnie.through, bonnie.overwrite);
        let file = RankFile::new((job.rank, &job.served), path, through, bonnie.shape.file);
        Stream { bonnie, rank: job.rank, file, ready: None, is_over: false }
    }

    fn go(&self, ready: &mut Ready) -> std::io::Result<Moved> {
        let (chunks, chunk) = (self.bonnie.chunks(), self.bonnie.shape.chunk);
        let places = (0..chunks).map(|i| i * chunk);
        match ready.phase {
            Phase::WriteCharacters => self.write_characters(ready, places)?,
            Phase::ReadCharacters => self.read_characters(ready, places)?,
            Phase::Seek => return self.seek(ready),
            phase => self.by_chunks(phase, ready, places)?,
        }
        Ok(Moved { bytes: chunks * chunk, operations: chunks })
    }

    fn write_characters(
        &self,
        ready: &mut Ready,
        places: impl Iterator<Item = u64>,
    ) -> std::io::Result<()> {
        let mut out = BufWriter::with_capacity(STREAM, InARow::of(self.file.create()?));
        for place in places {
            for byte in ready.new.at(place) {
                out.write_all(std::slice::from_ref(byte))?;
            }
        }
        let file = out.into_inner()?.file;
        file.sync()?;
        file.close()
    }

    fn read_characters(
        &self,
        ready: &mut Ready,
        places: impl Iterator<Item = u64>,
    ) -> std::io::Result<()> {
        let mut source = BufReader::with_capacity(STREAM, InARow::of(self.file.open()?));
        for place in places {
            for byte in &mut ready.buffer {
                source.read_exact(std::slice::from_mut(byte))?;
            }
            proven(&ready.old, &ready.buffer, place)?;
        }
        Ok(())
    }

    fn by_chunks(
        &self,
        phase: Phase,
        ready: &mut Ready,
        places: impl Iterator<Item = u64>,
    ) -> std::io::Result<()> {
        let file = if phase == Phase::Write { self.file.create() } else { self.file.open() }?;
        for place in places {
            if phase != Phase::Write {
                file.read_exact_at(&mut ready.buffer, place)?;
                proven(&ready.old, &ready.buffer, place)?;
            }
            if phase != Phase::Read {
                file.write_all_at(ready.new.at(place), place)?;
            }
        }
        if phase != Phase::Read {
            file.sync()?;
        }
        file.close()
    }

    fn seek(&self, ready: &mut Ready) -> std::io::Result<Moved> {
        let file = self.file.open()?;
        for i in 0..self.bonnie.seeks {
            let place = ready.random.below(self.bonnie.chunks()) * self.bonnie.shape.chunk;
            file.read_exact_at(&mut ready.buffer, place)?;
            proven(&ready.old, &ready.buffer, place)?;
            if i % REWRITTEN == 0 {
                file.write_all_at(&ready.buffer, place)?;
            }
        }
        file.close()?;
        let seeks = self.bonnie.seeks;
        Ok(Moved { bytes: seeks * self.bonnie.shape.chunk, operations: seeks })
    }
}

fn proven(pattern: &Pattern, data: &[u8], place: u64) -> std::io::Result<()> {
    let wrong = |at| format!("does not hold what was written at byte {at}");
    pattern.wrong_end(data, place).map_or(Ok(()), |at| Err(std::io::Error::other(wrong(at))))
}

const GENERATIONS: u64 = 4;

/// How often the file was written before a phase, and with it: each time holds other data.
fn generations(phase: Phase) -> (u64, u64) {
    match phase {
        Phase::WriteCharacters => (0, 1),
        Phase::Write => (1, 2),
        Phase::Rewrite => (2, 3),
        _ => (3, 3),
    }
}

impl Part for Stream {
    fn prepare(&mut self, order: Order) -> Result<()> {
        self.file.check()?;
        let chunk = self.bonnie.shape.chunk as usize;
        let (old, new) = generations(order.phase);
        let pattern = |generation| {
            let seed = order.seed.wrapping_mul(GENERATIONS).wrapping_add(generation);
            Pattern::new(seed, self.rank, chunk)
        };
        self.ready = Some(Ready {
            phase: order.phase,
            old: pattern(old),
            new: pattern(new),
            buffer: vec![0; chunk],
            random: Rng::new(order.seed ^ self.rank as u64),
        });
        Ok(())
    }

    fn run(&mut self) -> Result<Moved> {
        let mut ready = self.ready.take().ok_or(LabError::new("told to go unprepared"))?;
        let phase = ready.phase;
        let moved = self.go(&mut ready).map_err(at(self.file.name()));
        self.is_over = self.bonnie.phases().last() == Some(&phase);
        moved
    }

    fn rest(&mut self) -> Result<()> {
        if self.is_over { self.file.leave() } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::parse;
    use super::*;

    #[test]
    fn every_phase_finds_what_the_last_one_wrote() {
        let dir = tempfile::tempdir().unwrap();
        let dirs = vec![dir.path().to_path_buf()];
        let workload = parse("bonnie -s 80k:10000 --seeks 20").unwrap_err().to_string();
        assert!(workload.contains("not a multiple of the chunk"), "{workload}");
        let workload = parse("bonnie -s 80000:10000 --seeks 20").unwrap();
        let mut part = workload.clone().part(Job::new(workload.clone(), 0, dirs));
        let phases = workload.phases();
        assert_eq!(phases.len(), 6);
        for phase in &phases {
            part.prepare(Order { phase: *phase, seed: 3 }).unwrap();
            let moved = part.run().unwrap();
            assert_eq!(moved.operations, if *phase == Phase::Seek { 20 } else { 8 });
            assert_eq!(dir.path().join("bonnie.0").metadata().unwrap().len(), 80_000);
        }
        std::fs::write(dir.path().join("bonnie.0"), vec![0; 80_000]).unwrap();
        for phase in &phases[2..] {
            part.prepare(Order { phase: *phase, seed: 3 }).unwrap();
            let error = part.run().unwrap_err().to_string();
            assert!(error.contains("bonnie.0: does not hold what was written"), "{error}");
        }
    }

    #[test]
    fn shapes() {
        assert_eq!(parse_shape("1m"), Ok(Shape { file: 1 << 20, chunk: 16 << 10 }));
        assert_eq!(parse_shape("500m:8k"), Ok(Shape { file: 500 << 20, chunk: 8 << 10 }));
        assert!(parse_shape("1m:").is_err());
    }
}
