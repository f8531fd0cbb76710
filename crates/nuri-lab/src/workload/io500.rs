//! The phases of IO500 by our own workloads. There are large transfers to own files, and records of
//! 47,008 bytes in one file. There are empty files in own directories, and files of 3,901 bytes in
//! one directory.
//!
//! IO500's `find` is left out, and nothing runs for five minutes. So the result is no IO500 score.

use std::path::{Path, PathBuf};

use clap::Args;
use nuri_proto::size::human;
use serde::{Deserialize, Serialize};

use super::{Entry, Phase, Workload};
use crate::job::{Job, Moved, Order, Part};
use crate::{LabError, Result, at};

const TRANSFER: u64 = 1 << 20;
const RECORD: u64 = 47_008;
const HARD_FILE: u64 = 3901;

#[derive(Args, Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Io500 {
    /// Processes
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = super::processes)]
    pub np: usize,
    /// Bytes of each process in its own file, in transfers of 1m
    #[arg(long, value_name = "SIZE", default_value = "1g", value_parser = nuri_proto::size::parse)]
    easy: u64,
    /// Records of 47,008 bytes of each process in the shared file
    #[arg(long, value_name = "N", default_value_t = 10_000,
        value_parser = clap::value_parser!(u64).range(1..))]
    records: u64,
    /// Empty files of each process in its own directory
    #[arg(long, value_name = "N", default_value_t = 50_000,
        value_parser = clap::value_parser!(u64).range(1..))]
    empty: u64,
    /// Files of 3,901 bytes of each process in the shared directory
    #[arg(long, value_name = "N", default_value_t = 20_000,
        value_parser = clap::value_parser!(u64).range(1..))]
    small: u64,
    /// Repetitions of all phases
    #[arg(short = 'i', value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u64).range(1..))]
    pub repetitions: u64,
}

/// One of the four parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Kind {
    IorEasy,
    IorHard,
    MdtestEasy,
    MdtestHard,
}

/// What is done in a part.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Step {
    Write,
    Read,
    Stat,
    Remove,
}

const KINDS: [Kind; 4] = [Kind::IorEasy, Kind::IorHard, Kind::MdtestEasy, Kind::MdtestHard];

/// In the order of IO500, in which writing comes long before reading.
const PHASES: [(Kind, Step, &str); 11] = [
    (Kind::IorEasy, Step::Write, "ior-easy-write"),
    (Kind::MdtestEasy, Step::Write, "mdtest-easy-write"),
    (Kind::IorHard, Step::Write, "ior-hard-write"),
    (Kind::MdtestHard, Step::Write, "mdtest-hard-write"),
    (Kind::IorEasy, Step::Read, "ior-easy-read"),
    (Kind::MdtestEasy, Step::Stat, "mdtest-easy-stat"),
    (Kind::IorHard, Step::Read, "ior-hard-read"),
    (Kind::MdtestHard, Step::Stat, "mdtest-hard-stat"),
    (Kind::MdtestEasy, Step::Remove, "mdtest-easy-delete"),
    (Kind::MdtestHard, Step::Read, "mdtest-hard-read"),
    (Kind::MdtestHard, Step::Remove, "mdtest-hard-delete"),
];

impl Kind {
    fn is_ior(self) -> bool {
        matches!(self, Kind::IorEasy | Kind::IorHard)
    }

    /// Of its directory.
    fn name(self) -> &'static str {
        ["ior-easy", "ior-hard", "mdtest-easy", "mdtest-hard"][self as usize]
    }

    /// The phase of the part's own workload.
    pub(crate) fn phase(self, step: Step) -> Phase {
        match (self.is_ior(), step) {
            (true, Step::Write) => Phase::Write,
            (true, _) => Phase::Read,
            (false, Step::Write) => Phase::Create(Entry::File),
            (false, Step::Read) => Phase::Fetch,
            (false, Step::Stat) => Phase::Stat(Entry::File),
            (false, Step::Remove) => Phase::Remove(Entry::File),
        }
    }

    pub(super) fn metric(self, step: Step) -> &'static str {
        let own = PHASES.iter().find(|(kind, what, _)| (*kind, *what) == (self, step));
        own.map_or("", |(_, _, metric)| metric)
    }
}

impl Io500 {
    pub(super) fn check(&self) -> Result<()> {
        if self.easy == 0 || !self.easy.is_multiple_of(TRANSFER) {
            let easy = human(self.easy);
            return Err(LabError(format!("--easy {easy} is not a multiple of 1 MiB")));
        }
        KINDS.iter().try_for_each(|kind| self.part(*kind).map(drop))
    }

    pub(super) fn phases(&self) -> Vec<Phase> {
        PHASES.iter().map(|(kind, step, _)| Phase::Of(*kind, *step)).collect()
    }

    /// The workload of a part.
    pub(crate) fn part(&self, kind: Kind) -> Result<Workload> {
        let Io500 { np, easy, records, empty, small, .. } = self;
        let (name, options) = match kind {
            Kind::IorEasy => ("ior", format!("-F -t {TRANSFER} -b {easy} -e -C")),
            Kind::IorHard => ("ior", format!("-t {RECORD} -b {RECORD} -s {records} -e -C")),
            Kind::MdtestEasy => ("mdtest", format!("-F -u -n {empty} -N 1")),
            Kind::MdtestHard => {
                ("mdtest", format!("-F -n {small} -w {HARD_FILE} -e {HARD_FILE} -N 1"))
            }
        };
        let words = format!("--np {np} {options}");
        Workload::parse(name, &words.split(' ').map(String::from).collect::<Vec<_>>())
    }

    fn parts(&self) -> impl Iterator<Item = (Kind, Workload)> {
        KINDS.into_iter().filter_map(|kind| Some((kind, self.part(kind).ok()?)))
    }

    pub(super) fn space(&self) -> u64 {
        self.parts().map(|(_, part)| part.space()).fold(0, u64::saturating_add)
    }

    pub(super) fn amount(&self) -> Moved {
        let all = self.parts().map(|(_, part)| part.amount());
        let sum = all.fold(Moved::default(), |sum, part| Moved {
            bytes: sum.bytes.saturating_add(part.bytes),
            operations: sum.operations.saturating_add(part.operations),
        });
        Moved {
            bytes: sum.bytes.saturating_mul(self.repetitions),
            operations: sum.operations.saturating_mul(self.repetitions),
        }
    }

    pub(super) fn lay_out(&self, dirs: &[PathBuf]) -> Result<()> {
        self.parts().try_for_each(|(kind, part)| {
            let own = of(dirs, kind);
            std::fs::create_dir_all(&own[0]).map_err(at(own[0].display()))?;
            part.lay_out(&own)
        })
    }

    pub(super) fn clear(&self, dirs: &[PathBuf]) -> Result<()> {
        self.parts().try_for_each(|(kind, part)| part.clear(&of(dirs, kind)))
    }
}

/// Where a part works.
pub(crate) fn of(dirs: &[PathBuf], kind: Kind) -> Vec<PathBuf> {
    dirs.iter().map(|dir: &PathBuf| Path::join(dir, kind.name())).collect()
}

/// One rank of all parts.
pub(super) struct Parts {
    own: Vec<(Kind, Box<dyn Part>)>,
    now: usize,
}

impl Parts {
    pub(super) fn new(io500: &Io500, job: &Job) -> Parts {
        let part = |(kind, workload): (Kind, Workload)| {
            let dirs = of(&job.dirs, kind);
            let job = Job::new(workload.clone(), job.rank, dirs);
            (kind, workload.part(job))
        };
        Parts { own: io500.parts().map(part).collect(), now: 0 }
    }
}

impl Part for Parts {
    fn prepare(&mut self, order: Order) -> Result<()> {
        let Phase::Of(kind, step) = order.phase else {
            return Err(LabError::new("no such phase"));
        };
        self.now = self.own.iter().position(|(own, _)| *own == kind).unwrap_or(0);
        self.own[self.now].1.prepare(Order { phase: kind.phase(step), seed: order.seed })
    }

    fn run(&mut self) -> Result<Moved> {
        self.own[self.now].1.run()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::parse;
    use super::*;

    #[test]
    fn all_parts_find_what_they_wrote_and_leave_nothing_but_directories() {
        let dir = tempfile::tempdir().unwrap();
        let dirs = vec![dir.path().to_path_buf(), dir.path().join(".")];
        let line = "io500-like --np 2 --easy 2m --records 3 --empty 4 --small 5";
        let workload = parse(line).unwrap();
        workload.lay_out(&dirs).unwrap();
        let job = |rank| Job::new(workload.clone(), rank, dirs.clone());
        let mut ranks: Vec<_> = (0..2).map(|r| workload.clone().part(job(r))).collect();
        let mut done = Vec::new();
        for phase in workload.phases() {
            for rank in &mut ranks {
                rank.prepare(Order { phase, seed: 1 }).unwrap();
                done.push(rank.run().unwrap().operations);
            }
        }
        let each = [2, 4, 3, 5, 2, 4, 3, 5, 4, 5, 5];
        assert_eq!(done, each.map(|n| [n, n]).concat());
        let hard = dir.path().join("ior-hard/data").metadata().unwrap().len();
        assert_eq!(hard, 2 * 3 * RECORD);
        workload.clear(&dirs).unwrap();
        assert!(!dir.path().join("ior-hard/data").exists());
    }
}
