//! The workload `block`: ranks write and read blocks of a device or a file. They do so in order and
//! at random places, and make blocks durable one by one.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use clap::Args;
use nuri_io::rng::Rng;
use nuri_proto::size::{self, human};
use serde::{Deserialize, Serialize};

use super::pattern::Pattern;
use super::remote::RankFile;
use super::{LARGEST, Phase};
use crate::job::{Job, Moved, Order, Part};
use crate::server::Through;
use crate::{LabError, Result, at};

/// What disks take, and so servers of disks.
const SECTOR: u64 = 512;
/// In a row so many bytes go at once.
const PIECE: u64 = 1 << 20;
/// Of so many blocks at random places one is made durable by itself.
const SYNCED: u64 = 10;

#[derive(Args, Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Block {
    /// Processes; each has its own bytes and sends one request after the other
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = super::processes)]
    pub np: usize,
    /// Bytes of each process
    #[arg(short = 's', value_name = "SIZE", default_value = "256m", value_parser = size::parse)]
    size: u64,
    /// Bytes of a block at a random place
    #[arg(short = 'b', value_name = "SIZE", default_value = "4k", value_parser = size::parse)]
    block: u64,
    /// Blocks at random places of each process in each phase; a tenth of them where each block is
    /// made durable
    #[arg(short = 'n', value_name = "N", default_value_t = 2000,
        value_parser = clap::value_parser!(u64).range(SYNCED..=1_000_000))]
    count: u64,
    /// Repetitions of all phases
    #[arg(short = 'x', value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u64).range(1..))]
    pub repetitions: u64,
    /// Read without dropping caches first
    #[arg(long)]
    pub warm: bool,
    /// How the bytes are reached: directory, nbd://HOST/EXPORT or nfs://HOST/PATH; in a testbed
    /// also volume, disk, nfs
    #[arg(long, value_name = "WHAT", default_value = "directory")]
    through: Through,
    /// Overwrite the data of an NBD export
    #[arg(long)]
    overwrite: bool,
}

impl Block {
    pub(super) fn check(&self) -> Result<()> {
        let Block { size, block, .. } = *self;
        if !(SECTOR..=LARGEST).contains(&block) || !block.is_multiple_of(SECTOR) {
            let most = human(LARGEST);
            return Err(LabError(format!("-b: a multiple of {SECTOR} bytes, at most {most}")));
        }
        let piece = self.piece();
        if size < piece || !size.is_multiple_of(piece) || !piece.is_multiple_of(block) {
            let (size, block) = (human(size), human(block));
            let text = format!("-s {size} -b {block}: a multiple of 1 MiB, and that of the block");
            return Err(LabError(text));
        }
        Ok(())
    }

    pub(super) fn phases(&self) -> Vec<Phase> {
        [Phase::Write, Phase::Read, Phase::WriteBlocks, Phase::WriteSynced, Phase::ReadBlocks]
            .into()
    }

    pub(crate) fn through(&self) -> &Through {
        &self.through
    }

    /// Bytes of all files.
    pub(crate) fn bytes(&self) -> u64 {
        self.size.saturating_mul(self.np as u64)
    }

    fn path(&self, dir: &Path, rank: usize) -> PathBuf {
        dir.join(format!("block.{rank}"))
    }

    pub(crate) fn paths(&self, dir: &Path) -> Vec<PathBuf> {
        (0..self.np).map(|rank| self.path(dir, rank)).collect()
    }

    /// Bytes that go at once in a row.
    fn piece(&self) -> u64 {
        PIECE.max(self.block)
    }

    /// Where the requests of a phase go. Every second block that is read was written as a block.
    fn places(&self, phase: Phase, seed: u64) -> Vec<u64> {
        let mut random = Rng::new(seed);
        let mut place = || random.below(self.size / self.block) * self.block;
        let written: Vec<u64> = (0..self.count).map(|_| place()).collect();
        match phase {
            Phase::Write | Phase::Read => {
                (0..self.size / self.piece()).map(|i| i * self.piece()).collect()
            }
            Phase::WriteSynced => written[..(self.count / SYNCED) as usize].into(),
            Phase::ReadBlocks => {
                let odd = |(i, place_written)| if i % 2 == 0 { place_written } else { place() };
                written.into_iter().enumerate().map(odd).collect()
            }
            _ => written,
        }
    }
}

/// One rank's bytes.
pub(super) struct Blocks {
    block: Block,
    rank: usize,
    file: RankFile,
    ready: Option<Ready>,
    /// Its last phase was run.
    is_over: bool,
}

struct Ready {
    phase: Phase,
    places: Vec<u64>,
    /// What was written in a row, and over it at random places.
    row: Pattern,
    blocks: Pattern,
    /// Where the latter is.
    written: HashSet<u64>,
    buffer: Vec<u8>,
}

impl Blocks {
    pub(super) fn new(block: Block, job: &Job) -> Blocks {
        let path = block.path(job.dir(), job.rank);
        let file = RankFile::new(
            (job.rank, &job.served),
            path,
            (&block.through, block.overwrite),
            block.size,
        );
        Blocks { block, rank: job.rank, file, ready: None, is_over: false }
    }

    fn go(&self, ready: &mut Ready) -> std::io::Result<Moved> {
        let block = self.block.block as usize;
        let phase = ready.phase;
        let file = if phase == Phase::Write { self.file.create() } else { self.file.open() }?;
        for place in &ready.places {
            match phase {
                Phase::Write => {
                    for (i, part) in ready.buffer.chunks_exact_mut(block).enumerate() {
                        part.copy_from_slice(ready.row.at(place + (i * block) as u64));
                    }
                    file.write_all_at(&ready.buffer, *place)?;
                }
                Phase::WriteBlocks => file.write_all_at(ready.blocks.at(*place), *place)?,
                Phase::WriteSynced => {
                    file.write_all_at(ready.blocks.at(*place), *place)?;
                    file.sync()?;
                }
                _ => {
                    file.read_exact_at(&mut ready.buffer, *place)?;
                    ready.prove(*place, block)?;
                }
            }
        }
        if matches!(phase, Phase::Write | Phase::WriteBlocks) {
            file.sync()?;
        }
        file.close()?;
        let operations = ready.places.len() as u64;
        Ok(Moved { bytes: operations * ready.buffer.len() as u64, operations })
    }
}

impl Ready {
    /// What was read there is what was written last.
    fn prove(&self, place: u64, block: usize) -> std::io::Result<()> {
        for (i, part) in self.buffer.chunks_exact(block).enumerate() {
            let at = place + (i * block) as u64;
            let pattern = if self.written.contains(&at) { &self.blocks } else { &self.row };
            let wrong = |at| format!("does not hold what was written at byte {at}");
            if let Some(at) = pattern.wrong_end(part, at) {
                return Err(std::io::Error::other(wrong(at)));
            }
        }
        Ok(())
    }
}

impl Part for Blocks {
    fn prepare(&mut self, Order { phase, seed }: Order) -> Result<()> {
        self.file.check()?;
        // Patterns of the row and of blocks differ, and both from those of another repetition.
        let seeds = [seed.wrapping_mul(2), seed.wrapping_mul(2).wrapping_add(1)];
        let own = Rng::new(seeds[0]).next() ^ self.rank as u64;
        let is_row = matches!(phase, Phase::Write | Phase::Read);
        let written = match phase {
            Phase::ReadBlocks => self.block.places(Phase::WriteBlocks, own),
            _ => Vec::new(),
        };
        let pattern = |seed| Pattern::new(seed, self.rank, self.block.block as usize);
        let len = if is_row { self.block.piece() } else { self.block.block };
        self.ready = Some(Ready {
            phase,
            places: self.block.places(phase, own),
            row: pattern(seeds[0]),
            blocks: pattern(seeds[1]),
            written: written.into_iter().collect(),
            buffer: vec![0; len as usize],
        });
        Ok(())
    }

    fn run(&mut self) -> Result<Moved> {
        let mut ready = self.ready.take().ok_or(LabError::new("told to go unprepared"))?;
        let moved = self.go(&mut ready).map_err(at(self.file.name()));
        self.is_over = self.block.phases().last() == Some(&ready.phase);
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
        let workload = parse("block -s 2m -n 100").unwrap();
        let mut part = workload.clone().part(Job::new(workload.clone(), 0, dirs));
        for seed in 0..2 {
            for phase in workload.phases() {
                part.prepare(Order { phase, seed }).unwrap();
                let moved = part.run().unwrap();
                let expected = match phase {
                    Phase::Write | Phase::Read => (2 << 20, 2),
                    Phase::WriteSynced => (10 << 12, 10),
                    _ => (100 << 12, 100),
                };
                assert_eq!((moved.bytes, moved.operations), expected, "{phase:?}");
            }
        }
        std::fs::write(dir.path().join("block.0"), vec![0; 2 << 20]).unwrap();
        for phase in [Phase::Read, Phase::ReadBlocks] {
            part.prepare(Order { phase, seed: 1 }).unwrap();
            let error = part.run().unwrap_err().to_string();
            assert!(error.contains("block.0: does not hold what was written"), "{error}");
        }
    }

    #[test]
    fn blocks_that_were_written_and_others_are_read() {
        let parse_block = |line| match parse(line).unwrap() {
            crate::workload::Workload::Block(block) => block,
            _ => unreachable!(),
        };
        let block = parse_block("block -s 64m -n 1000");
        let written = block.places(Phase::WriteBlocks, 7);
        let read = block.places(Phase::ReadBlocks, 7);
        let old = read.iter().filter(|place| written.contains(place)).count();
        assert!((500..700).contains(&old), "{old}");
        assert_eq!(block.places(Phase::WriteSynced, 7), written[..100]);
    }
}
