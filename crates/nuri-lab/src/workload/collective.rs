//! Two-phase collective transfers, as in MPI-IO: in each step all ranks together move one transfer
//! of one shared file.
//!
//! A few ranks, the aggregators, write and read the file. Their runs are as long as the step's
//! transfers lie beside each other. The bytes go between the aggregators and the other ranks by
//! `nuri-ipc`.

use std::io::{Error, Result as IoResult};
use std::path::Path;

use nuri_ipc::{Config, Endpoint, Request, Selector};

use super::opened::Opened;
use crate::{LabError, Result};

const SESSION: &str = "lab";

/// Where a rank's transfer of a step begins.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Piece {
    offset: u64,
    rank: usize,
}

/// One rank's side.
pub(super) struct Exchange {
    endpoint: Endpoint,
    rank: usize,
    /// The first so many ranks.
    aggregators: usize,
    transfer: usize,
    /// Of an aggregator: a run.
    buffer: Vec<u8>,
    /// Steps so far, which tell messages apart.
    steps: u64,
}

impl Exchange {
    /// Of `ranks` ranks, which meet in a directory that is there and nobody else's.
    pub(super) fn open(
        dir: &Path,
        (rank, ranks): (usize, usize),
        aggregators: usize,
        transfer: usize,
    ) -> Result<Exchange> {
        let config = Config::new(SESSION, rank as u32, ranks as u32).dir(dir);
        let endpoint = Endpoint::open(config).map_err(LabError::new)?;
        let aggregators = aggregators.min(ranks);
        Ok(Exchange { endpoint, rank, aggregators, transfer, buffer: Vec::new(), steps: 0 })
    }

    /// Writes the step in which each rank writes at its offset; here `own`.
    ///
    /// # Errors
    /// The file's by itself, for the words of who knows its name.
    pub(super) fn write(
        &mut self,
        file: &dyn Opened,
        offsets: &[u64],
        own: &[u8],
    ) -> Result<IoResult<()>> {
        let step = self.step(offsets);
        let to = step.aggregator(self.rank);
        let sent = (to != self.rank).then(|| self.send(to, own.to_vec())).transpose()?;
        for run in step.runs(self.rank, self.transfer as u64) {
            self.gather(run, own)?;
            if let Err(error) = file.write_all_at(&self.buffer, run[0].offset) {
                return Ok(Err(error));
            }
        }
        sent.into_iter().try_for_each(|sent| self.wait(sent))?;
        Ok(Ok(()))
    }

    /// Reads it; `own` is this rank's. Errors as [`Exchange::write`], with the end of what was
    /// read.
    pub(super) fn read(
        &mut self,
        file: &dyn Opened,
        offsets: &[u64],
        own: &mut [u8],
    ) -> Result<std::result::Result<(), (Error, u64)>> {
        let step = self.step(offsets);
        let mut sent = Vec::new();
        for run in step.runs(self.rank, self.transfer as u64) {
            self.buffer.resize(run.len() * self.transfer, 0);
            let (at, len) = (run[0].offset, self.buffer.len() as u64);
            if let Err(error) = file.read_exact_at(&mut self.buffer, at) {
                return Ok(Err((error, at + len)));
            }
            for (piece, bytes) in run.iter().zip(self.buffer.chunks_exact(self.transfer)) {
                if piece.rank == self.rank {
                    own.copy_from_slice(bytes);
                } else {
                    sent.push(self.send(piece.rank, bytes.to_vec())?);
                }
            }
        }
        let from = step.aggregator(self.rank);
        if from != self.rank {
            self.receive(from, own)?;
        }
        sent.into_iter().try_for_each(|sent| self.wait(sent))?;
        Ok(Ok(()))
    }

    fn step(&mut self, offsets: &[u64]) -> Step {
        self.steps += 1;
        Step::new(offsets, self.aggregators)
    }

    /// A run's bytes of all ranks.
    fn gather(&mut self, run: &[Piece], own: &[u8]) -> Result<()> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize(run.len() * self.transfer, 0);
        let mut places = run.iter().zip(buffer.chunks_exact_mut(self.transfer));
        let all = places.try_for_each(|(piece, place)| {
            if piece.rank == self.rank {
                place.copy_from_slice(own);
                return Ok(());
            }
            self.receive(piece.rank, place)
        });
        self.buffer = buffer;
        all
    }

    /// Does not wait: two aggregators may send to each other.
    fn send(&self, to: usize, bytes: Vec<u8>) -> Result<Request> {
        self.endpoint.isend(to as u32, self.steps, bytes).map_err(|e| lost(to, &e))
    }

    fn wait(&self, sent: Request) -> Result<()> {
        self.endpoint.wait(sent, None).and_then(|end| end.result).map(drop).map_err(LabError::new)
    }

    fn receive(&self, from: usize, into: &mut [u8]) -> Result<()> {
        let message = Selector::exact(from as u32, self.steps);
        let status = self.endpoint.recv(message, into, None).map_err(|e| lost(from, &e))?;
        match status.len == into.len() as u64 {
            true => Ok(()),
            false => Err(LabError(format!("{} bytes from rank {from}", status.len))),
        }
    }
}

fn lost(rank: usize, error: &nuri_ipc::Error) -> LabError {
    LabError(format!("no exchange with rank {rank}: {error}"))
}

/// The pieces of all ranks, in the file's order; each aggregator has as many of them as the others.
struct Step {
    pieces: Vec<Piece>,
    aggregators: usize,
}

impl Step {
    fn new(offsets: &[u64], aggregators: usize) -> Step {
        let piece = |(rank, offset): (usize, &u64)| Piece { offset: *offset, rank };
        let mut pieces: Vec<_> = offsets.iter().enumerate().map(piece).collect();
        pieces.sort_unstable();
        Step { pieces, aggregators }
    }

    fn share(&self, aggregator: usize) -> &[Piece] {
        if aggregator >= self.aggregators {
            return &[];
        }
        let bound = |i: usize| i * self.pieces.len() / self.aggregators;
        &self.pieces[bound(aggregator)..bound(aggregator + 1)]
    }

    /// Who writes and reads a rank's piece.
    fn aggregator(&self, rank: usize) -> usize {
        let has = |i: &usize| self.share(*i).iter().any(|piece| piece.rank == rank);
        (0..self.aggregators).find(has).unwrap_or(0)
    }

    /// What lies in a row of an aggregator's share.
    fn runs(&self, aggregator: usize, transfer: u64) -> impl Iterator<Item = &[Piece]> {
        self.share(aggregator).chunk_by(move |a, b| a.offset + transfer == b.offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aggregators_share_a_step_in_the_files_order() {
        let step = Step::new(&[30, 0, 10, 50, 20], 2);
        let ranks = |i| step.share(i).iter().map(|piece| piece.rank).collect::<Vec<_>>();
        assert_eq!([ranks(0), ranks(1), ranks(2)], [vec![1, 2], vec![4, 0, 3], vec![]]);
        let who: Vec<_> = (0..5).map(|rank| step.aggregator(rank)).collect();
        assert_eq!(who, [1, 0, 0, 1, 1]);
        let runs: Vec<_> = step.runs(1, 10).map(|run| (run[0].offset, run.len())).collect();
        assert_eq!(runs, [(20, 2), (50, 1)]);
    }

    #[test]
    fn each_piece_has_one_aggregator() {
        for ranks in 1..20 {
            for aggregators in 1..=ranks {
                let offsets: Vec<_> = (0..ranks as u64).rev().map(|i| i * 8).collect();
                let step = Step::new(&offsets, aggregators);
                let all: usize = (0..aggregators).map(|i| step.share(i).len()).sum();
                assert_eq!(all, ranks);
                assert!((0..aggregators).all(|i| !step.share(i).is_empty()));
            }
        }
    }
}
