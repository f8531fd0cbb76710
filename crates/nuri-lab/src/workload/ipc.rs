//! The workload `ipc`: messages between two processes of one machine. They go by `nuri-ipc`, or by
//! what programs use without it. No directory is measured.

mod channel;
mod pair;

use std::path::{Path, PathBuf};

use clap::Args;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::thread::{CpuSet, sched_getaffinity};
use serde::{Deserialize, Serialize};

pub(super) use pair::Pair;

use super::Phase;
use crate::{LabError, Result, at};
use nuri_proto::size::human;

/// A message has its number in it.
const SHORTEST: u64 = 4;
const LONGEST: u64 = 64 << 20;
const MOST_SECONDS: f64 = 3600.0;
/// Above 0, only root may read the memory of any process of its own.
const PTRACE_SCOPE: &str = "/proc/sys/kernel/yama/ptrace_scope";
/// What is not timed takes about this part more: connecting, finding how many messages to send.
const BESIDE: f64 = 1.3;

#[derive(Args, Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Ipc {
    /// Bytes of a message
    #[arg(short = 't', value_name = "SIZE", default_value = "4k",
        value_parser = nuri_proto::size::parse)]
    message: u64,
    /// Channel that carries the messages
    #[arg(long, value_enum, default_value_t = Through::Nuri)]
    through: Through,
    /// Processors of the two processes: one, two, or two numbers such as 0,3
    #[arg(long, value_name = "WHICH", default_value = "two", value_parser = parse_cores)]
    cores: Cores,
    /// Measure the latency, one way of a ping-pong (default: both)
    #[arg(long)]
    latency: bool,
    /// Measure the throughput of messages one way
    #[arg(long)]
    throughput: bool,
    /// Seconds to measure each of the two
    #[arg(long, value_name = "S", default_value_t = 0.5, value_parser = parse_seconds)]
    seconds: f64,
    /// Repetitions of all phases
    #[arg(short = 'i', value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u64).range(1..))]
    pub repetitions: u64,
}

#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Through {
    /// nuri-ipc as it is
    Nuri,
    /// nuri-ipc where the kernel copies once from one process to the other
    Cma,
    /// A Unix stream socket
    Unix,
    /// Two pipes
    Pipe,
    /// No message at all: one process copies memory
    Memcpy,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Cores {
    /// Both processes on one, the first that is allowed.
    One,
    /// On the first two.
    Two,
    These(usize, usize),
}

/// Why a text names no processors.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
enum CoresError {
    #[error("{0:?} is no processor")]
    Number(String),
    #[error("'one', 'two' or two numbers such as 0,3")]
    Unknown,
}

fn parse_cores(text: &str) -> std::result::Result<Cores, CoresError> {
    let number = |text: &str| text.parse().map_err(|_| CoresError::Number(text.into()));
    match (text, text.split_once(',')) {
        ("one", _) => Ok(Cores::One),
        ("two", _) => Ok(Cores::Two),
        (_, Some((a, b))) => Ok(Cores::These(number(a)?, number(b)?)),
        _ => Err(CoresError::Unknown),
    }
}

/// Why a text is no time to measure for.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
enum SecondsError {
    #[error("{0:?} is no number")]
    Number(String),
    #[error("more than 0, at most {MOST_SECONDS}")]
    OutOfBounds,
}

fn parse_seconds(text: &str) -> std::result::Result<f64, SecondsError> {
    let seconds: f64 = text.parse().map_err(|_| SecondsError::Number(text.into()))?;
    let fits = seconds > 0.0 && seconds <= MOST_SECONDS;
    if fits { Ok(seconds) } else { Err(SecondsError::OutOfBounds) }
}

impl Ipc {
    pub(super) fn check(&self) -> Result<()> {
        if !(SHORTEST..=LONGEST).contains(&self.message) {
            let most = human(LONGEST);
            return Err(LabError(format!("-t: at least {SHORTEST} bytes, at most {most}")));
        }
        self.processors().map(drop)
    }

    /// Of each process.
    fn processors(&self) -> Result<[usize; 2]> {
        let allowed = sched_getaffinity(None).map_err(at("processors"))?;
        let mut usable = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
        let (first, second) = (usable.next().unwrap_or(0), usable.next());
        match self.cores {
            Cores::One => Ok([first; 2]),
            Cores::Two => second.map(|second| [first, second]).ok_or(LabError::new(
                "--cores two: only one processor may be used here; there is --cores one",
            )),
            Cores::These(a, b) => {
                let set = |cpu: usize| cpu < CpuSet::MAX_CPU && allowed.is_set(cpu);
                match [a, b].into_iter().find(|cpu| !set(*cpu)) {
                    Some(odd) => {
                        Err(LabError(format!("--cores {a},{b}: processor {odd} may not be used")))
                    }
                    None => Ok([a, b]),
                }
            }
        }
    }

    /// Why the kernel would not let this be measured here.
    pub(super) fn obstacle(&self) -> Option<String> {
        if self.through != Through::Cma || rustix::process::geteuid().is_root() {
            return None;
        }
        let scope = std::fs::read_to_string(PTRACE_SCOPE).unwrap_or_default();
        let is_open = matches!(scope.trim(), "" | "0");
        let scope = scope.trim();
        (!is_open).then(|| format!("{PTRACE_SCOPE} is {scope}: processes cannot copy so"))
    }

    pub(super) fn phases(&self) -> Vec<Phase> {
        let both = self.latency == self.throughput;
        let all =
            [(both || self.latency, Phase::PingPong), (both || self.throughput, Phase::Stream)];
        all.into_iter().filter(|(wanted, _)| *wanted).map(|(_, phase)| phase).collect()
    }

    /// Seconds that one run of all phases takes.
    pub(super) fn lasts(&self) -> f64 {
        (self.phases().len() as u64 * self.repetitions) as f64 * self.seconds * BESIDE
    }

    pub(super) fn paths(&self, dir: &Path) -> Vec<PathBuf> {
        match self.through {
            Through::Pipe => channel::pipes(dir).to_vec(),
            _ => Vec::new(),
        }
    }

    /// Pipes have names, so that both processes find them.
    pub(super) fn lay_out(&self, dir: &Path) -> Result<()> {
        let make = |path: &PathBuf| mknodat(CWD, path, FileType::Fifo, Mode::RWXU, 0);
        self.paths(dir).iter().try_for_each(|path| make(path).map_err(at(path.display())))
    }
}
