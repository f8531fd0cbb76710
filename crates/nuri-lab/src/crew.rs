//! The processes of a workload, as seen by the one that commands them. All prepare, then all go,
//! then all rest; a phase lasts from the first start to the last end. None survives the crew.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::guard::Stop;
use crate::machine::Usage;
use crate::rank::{Done, Job, Moved, Order, Said, Told};
use crate::testbed::network::Network;
use crate::workload::Workload;
use crate::{LabError, Result, at};

/// How often a wait looks whether the run is to end.
const LOOK: Duration = Duration::from_millis(50);

/// When a crew gives up.
#[derive(Clone)]
pub struct Control {
    pub stop: Stop,
    /// A phase that takes longer hangs.
    pub patience: Duration,
    /// Of the testbed that is measured, if it is one.
    pub network: Option<Network>,
}

pub struct Crew {
    ranks: Vec<Rank>,
    heard: Receiver<Heard>,
    control: Control,
}

struct Rank {
    process: Child,
    orders: ChildStdin,
}

/// A line from a rank, or the end of its output.
struct Heard {
    rank: usize,
    line: Option<String>,
}

/// What all ranks did in a phase and what the machine was used for meanwhile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timed {
    pub(crate) seconds: f64,
    /// Between the first rank that was done and the last, if that is known.
    pub(crate) straggling: Option<f64>,
    pub(crate) moved: Moved,
    pub(crate) used: Usage,
    /// KiB of all ranks at most, if that is known.
    pub(crate) memory: Option<u64>,
}

/// Who does a workload's phases.
pub(crate) trait Hands {
    /// Runs a phase. None where it was too short for a figure.
    fn run(&mut self, order: Order) -> Result<Option<Timed>>;
}

impl Crew {
    /// Starts a process for each rank of the workload.
    pub fn start(workload: &Workload, dirs: &[PathBuf], control: &Control) -> Result<Crew> {
        let (send, heard) = channel();
        let mut crew = Crew { ranks: Vec::new(), heard, control: control.clone() };
        for rank in 0..workload.processes() {
            crew.ranks.push(Rank::start(rank, &send)?);
            let job = Job { workload: workload.clone(), rank, dirs: dirs.to_vec() };
            crew.tell(rank, &job)?;
        }
        Ok(crew)
    }

    fn tell_all(&mut self, told: Told) -> Result<()> {
        (0..self.ranks.len()).try_for_each(|rank| self.tell(rank, &told))
    }

    fn tell(&mut self, rank: usize, what: &impl Serialize) -> Result<()> {
        let line = serde_json::to_string(what).map_err(at("an order"))? + "\n";
        let told = self.ranks[rank].orders.write_all(line.as_bytes());
        told.map_err(|_| self.fate(rank))
    }

    /// One answer of each rank, in the order of their arrival.
    fn answers(&mut self) -> Result<Vec<Option<Done>>> {
        let start = Instant::now();
        let mut done = Vec::new();
        while done.len() < self.ranks.len() {
            if self.control.stop.is_asked() {
                return Err(LabError::new("interrupted"));
            }
            match self.heard.recv_timeout(LOOK) {
                Ok(Heard { rank, line: Some(line) }) => done.push(answer(rank, &line)?),
                Ok(Heard { rank, line: None }) => return Err(self.fate(rank)),
                Err(RecvTimeoutError::Timeout) if start.elapsed() < self.control.patience => {}
                Err(_) => return Err(self.hangs(done.len())),
            }
        }
        Ok(done)
    }

    /// How a rank came to its end.
    fn fate(&mut self, rank: usize) -> LabError {
        let end = match self.ranks[rank].process.wait() {
            Ok(status) => match status.signal() {
                Some(signal) => format!("was killed by signal {signal}"),
                None => format!("ended by itself ({status})"),
            },
            Err(error) => format!("is lost: {error}"),
        };
        LabError(format!("rank {rank} {end}"))
    }

    fn hangs(&self, answered: usize) -> LabError {
        let (all, seconds) = (self.ranks.len(), self.control.patience.as_secs());
        let silent = all - answered;
        LabError(format!("{silent} of {all} ranks did not answer for {seconds} s; see --patience"))
    }
}

impl Hands for Crew {
    /// On all ranks at once.
    fn run(&mut self, order: Order) -> Result<Option<Timed>> {
        self.tell_all(Told::Prepare(order))?;
        self.answers()?;
        let network = self.control.network.clone();
        let before = Usage::now(network.as_ref());
        self.tell_all(Told::Go)?;
        let done = self.answers()?;
        let used = Usage::now(network.as_ref()).since(before);
        self.tell_all(Told::Rest)?;
        self.answers()?;
        timed(&done.into_iter().flatten().collect::<Vec<_>>(), used).map(Some)
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for rank in &mut self.ranks {
            let _ = rank.process.kill();
        }
        for rank in &mut self.ranks {
            let _ = rank.process.wait();
        }
    }
}

impl Rank {
    fn start(rank: usize, heard: &Sender<Heard>) -> Result<Rank> {
        let own = std::env::current_exe().map_err(at("this program"))?;
        let mut command = Command::new(own);
        command.args(["lab", "rank"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().map_err(at("cannot start a process"))?;
        let (Some(orders), Some(output)) = (process.stdin.take(), process.stdout.take()) else {
            return Err(LabError::new("a process without its pipes"));
        };
        let heard = heard.clone();
        std::thread::spawn(move || forward(rank, output, &heard));
        Ok(Rank { process, orders })
    }
}

/// Until the rank's output ends; nobody listens any more where the crew is gone.
fn forward(rank: usize, output: ChildStdout, heard: &Sender<Heard>) {
    for line in BufReader::new(output).lines().map_while(std::io::Result::ok) {
        let _ = heard.send(Heard { rank, line: Some(line) });
    }
    let _ = heard.send(Heard { rank, line: None });
}

fn answer(rank: usize, line: &str) -> Result<Option<Done>> {
    match serde_json::from_str(line).map_err(at(format!("the answer of rank {rank}")))? {
        Said::Ready => Ok(None),
        Said::Done(done) => Ok(Some(done)),
        Said::Failed(text) => Err(LabError(format!("rank {rank}: {text}"))),
    }
}

fn timed(done: &[Done], used: Usage) -> Result<Timed> {
    let start = done.iter().map(|d| d.start).min();
    let (first, last) = (done.iter().map(|d| d.end).min(), done.iter().map(|d| d.end).max());
    let (Some(start), Some(first), Some(last)) = (start, first, last) else {
        return Err(LabError::new("no rank did anything"));
    };
    let sum = |of: fn(&Done) -> u64| done.iter().map(of).sum();
    let seconds = |nanos: u64| nanos as f64 / 1e9;
    Ok(Timed {
        seconds: seconds(last - start),
        straggling: Some(seconds(last - first)),
        moved: Moved { bytes: sum(|d| d.moved.bytes), operations: sum(|d| d.moved.operations) },
        used,
        memory: Some(sum(|d| d.memory)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_lasts_from_the_first_start_to_the_last_end() {
        let moved = Moved { bytes: 10, operations: 1 };
        let done = [
            Done { start: 2_000_000_000, end: 3_000_000_000, moved, memory: 1 },
            Done { start: 1_000_000_000, end: 5_000_000_000, moved, memory: 2 },
        ];
        let timed = timed(&done, Usage::default()).unwrap();
        assert_eq!((timed.seconds, timed.straggling, timed.memory), (4.0, Some(2.0), Some(3)));
        assert_eq!(timed.moved, Moved { bytes: 20, operations: 2 });
        assert!(super::timed(&[], Usage::default()).is_err());
    }

    #[test]
    fn a_failure_names_its_rank() {
        let error = answer(3, r#"{"Failed":"no space"}"#).unwrap_err().to_string();
        assert_eq!(error, "rank 3: no space");
        assert!(answer(3, "nonsense").unwrap_err().to_string().contains("rank 3"));
        assert!(answer(0, r#""Ready""#).unwrap().is_none());
    }
}
