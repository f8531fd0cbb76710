//! One rank's share of a workload: its orders, and what it has moved.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::Result;
use crate::server::Server;
use crate::workload::{Phase, Workload};

/// The first line that a rank reads.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    pub workload: Workload,
    pub rank: usize,
    /// The working directory as each mount shows it; ranks take turns with them.
    pub dirs: Vec<PathBuf>,
    /// What a testbed serves beside its mounts; ranks take turns with it.
    pub(crate) served: Vec<Server>,
}

impl Job {
    pub(crate) fn new(workload: Workload, rank: usize, dirs: Vec<PathBuf>) -> Job {
        Job { workload, rank, dirs, served: Vec::new() }
    }

    /// Where this rank works.
    pub fn dir(&self) -> &Path {
        self.dir_of(self.rank)
    }

    pub fn dir_of(&self, rank: usize) -> &Path {
        &self.dirs[rank % self.dirs.len()]
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Order {
    pub phase: Phase,
    /// Of the data that is written or expected.
    pub seed: u64,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Moved {
    pub bytes: u64,
    pub operations: u64,
}

/// One rank's part of a workload.
pub trait Part {
    /// What is not timed: buffers, lists.
    fn prepare(&mut self, order: Order) -> Result<()>;
    /// What is timed.
    fn run(&mut self) -> Result<Moved>;
    /// What follows and is not timed.
    fn rest(&mut self) -> Result<()> {
        Ok(())
    }
}
