//! The ranks of a workload, as the commanding process sees them. All ranks prepare, then all start,
//! then all rest. A phase lasts from the first start to the last end. No rank survives the group.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use nuri_netns::Network;
use serde::Serialize;

use crate::hosts::Hosts;
use crate::job::{Job, Moved, Order};
use crate::machine::Usage;
use crate::rank::{Done, Said, Seen, Told};
use crate::record::VERSION;
use crate::server::Server;
use crate::stop::Stop;
use crate::workload::{Phase, Workload};
use crate::{LabError, Result, at, clock};

/// Looks at a machine's clock before a phase.
const LOOKS: usize = 5;
/// How often a wait looks whether the run is to end.
const LOOK: Duration = Duration::from_millis(50);

/// When a group of ranks gives up.
#[derive(Clone)]
pub struct Control {
    pub stop: Stop,
    /// A phase that takes longer hangs.
    pub patience: Duration,
    /// Of the testbed that is measured, if it is one.
    pub network: Option<Network>,
    /// What it serves beside its mounts.
    pub(crate) served: Vec<Server>,
    /// Where ranks run.
    pub hosts: Hosts,
}

pub struct RankGroup {
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
    /// Makes caches ready that are not this machine's; returns what could not be done.
    fn cool(&mut self, _: Phase) -> Result<Option<String>> {
        Ok(None)
    }
}

impl RankGroup {
    /// Starts a process for each rank of the workload.
    pub fn start(workload: &Workload, dirs: &[PathBuf], control: &Control) -> Result<RankGroup> {
        workload.check_served(&control.served)?;
        let (send, heard) = channel();
        let mut crew = RankGroup { ranks: Vec::new(), heard, control: control.clone() };
        for rank in 0..workload.processes() {
            let machine =
                control.network.as_ref().map(|network| network.enter((rank % dirs.len()) as u64));
            crew.ranks.push(Rank::start(rank, control.hosts.command(rank, machine)?, &send)?);
            let (workload, dirs, served) =
                (workload.clone(), dirs.to_vec(), control.served.clone());
            let job = Job { workload, rank, dirs, served };
            crew.tell(rank, &job)?;
        }
        for (rank, Seen { version, .. }) in crew.look()?.into_iter().enumerate() {
            if version != VERSION {
                let place = control.hosts.place(rank);
                return Err(LabError(format!("{place} is Nuri {version}, this is {VERSION}")));
            }
        }
        Ok(crew)
    }

    /// Ranks that speak for their machines, where those are others.
    fn firsts(&self) -> std::ops::Range<usize> {
        0..self.control.hosts.names().len().min(self.ranks.len())
    }

    /// Looks at the machines.
    fn look(&mut self) -> Result<Vec<Seen>> {
        self.firsts().map(|rank| self.look_at(rank)).collect()
    }

    fn look_at(&mut self, rank: usize) -> Result<Seen> {
        match self.ask(rank, Told::Look)? {
            Said::Seen(seen) => Ok(seen),
            other => Err(LabError(format!("the answer of rank {rank}: {other:?}"))),
        }
    }

    /// What is to be added to a time of each machine's clock to have it by this one's. Of a few
    /// looks the shortest counts, whose middle is known best.
    fn offsets(&mut self) -> Result<Vec<i64>> {
        let mut offsets = Vec::new();
        for rank in self.firsts() {
            let mut best = (u64::MAX, 0);
            for _ in 0..LOOKS {
                let before = clock::monotonic();
                let there = self.look_at(rank)?.clock;
                let took = clock::monotonic() - before;
                let middle = before + took / 2;
                best = best.min((took, middle.wrapping_sub(there) as i64));
            }
            offsets.push(best.1);
        }
        Ok(offsets)
    }

    /// Of this machine, or of those where ranks run.
    fn usage(&mut self) -> Result<Usage> {
        if !self.control.hosts.are_others() {
            return Ok(Usage::now(self.control.network.as_ref()));
        }
        self.look().map(|seen| together(&seen))
    }

    /// What one rank answers, while no other is asked.
    fn ask(&mut self, rank: usize, told: Told) -> Result<Said> {
        self.tell(rank, &told)?;
        self.hear(Instant::now(), |other| other == rank).map(|(_, said)| said)
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
    fn answers(&mut self) -> Result<Vec<(usize, Said)>> {
        let start = Instant::now();
        let mut said = Vec::new();
        while said.len() < self.ranks.len() {
            let answered: Vec<usize> = said.iter().map(|(rank, _)| *rank).collect();
            said.push(self.hear(start, |rank| !answered.contains(&rank))?);
        }
        Ok(said)
    }

    /// The next answer, of those who are waited for.
    fn hear(
        &mut self,
        start: Instant,
        is_waited_for: impl Fn(usize) -> bool,
    ) -> Result<(usize, Said)> {
        loop {
            if self.control.stop.is_asked() {
                return Err(LabError::new("interrupted"));
            }
            match self.heard.recv_timeout(LOOK) {
                Ok(Heard { rank, line: Some(line) }) => {
                    return answer(&self.control.hosts.place(rank), &line).map(|said| (rank, said));
                }
                Ok(Heard { rank, line: None }) => return Err(self.fate(rank)),
                Err(RecvTimeoutError::Timeout) if start.elapsed() < self.control.patience => {}
                Err(_) => return Err(self.hangs(is_waited_for)),
            }
        }
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
        LabError(format!("{} {end}", self.control.hosts.place(rank)))
    }

    fn hangs(&self, is_waited_for: impl Fn(usize) -> bool) -> LabError {
        let (all, seconds) = (self.ranks.len(), self.control.patience.as_secs());
        let silent: Vec<usize> = (0..all).filter(|rank| is_waited_for(*rank)).collect();
        let one = silent.first().map(|rank| self.control.hosts.place(*rank)).unwrap_or_default();
        LabError(format!(
            "{} of {all} ranks did not answer for {seconds} s ({one}); see --patience",
            silent.len()
        ))
    }
}

impl Hands for RankGroup {
    /// On all ranks at once.
    fn run(&mut self, order: Order) -> Result<Option<Timed>> {
        self.tell_all(Told::Prepare(order))?;
        self.answers()?;
        let offsets = self.offsets()?;
        let before = self.usage()?;
        self.tell_all(Told::Go)?;
        let said = self.answers()?;
        let used = self.usage()?.since(before);
        self.tell_all(Told::Rest)?;
        self.answers()?;
        let hosts = &self.control.hosts;
        let offset = |rank| offsets.get(hosts.of(rank)).copied().unwrap_or_default();
        let done = said.into_iter().filter_map(|(rank, said)| match said {
            Said::Done(done) => Some(done.moved_by(offset(rank))),
            _ => None,
        });
        timed(&done.collect::<Vec<_>>(), used).map(Some)
    }

    fn cool(&mut self, phase: Phase) -> Result<Option<String>> {
        let mut told = None;
        for rank in self.firsts() {
            if let Said::Cool { warning: Some(text) } = self.ask(rank, Told::Cool(phase))? {
                told = Some(format!("{}: {text}", self.control.hosts.place(rank)));
            }
        }
        Ok(told)
    }
}

impl Drop for RankGroup {
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
    fn start(rank: usize, mut command: Command, heard: &Sender<Heard>) -> Result<Rank> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
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

fn answer(place: &str, line: &str) -> Result<Said> {
    match serde_json::from_str(line).map_err(at(format!("the answer of {place}")))? {
        Said::Failed(text) => Err(LabError(format!("{place}: {text}"))),
        said => Ok(said),
    }
}

/// Of all machines, each once, and of all their networks.
fn together(seen: &[Seen]) -> Usage {
    let mut sum = Usage::default();
    for (i, Seen { boot, used, .. }) in seen.iter().enumerate() {
        let is_known = seen[..i].iter().any(|earlier| earlier.boot == *boot);
        sum = sum.and(if is_known { used.of_network() } else { *used });
    }
    sum
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
    fn a_machine_with_several_networks_counts_once() {
        let look = |boot: &str, wire| {
            let used = Usage::of_tests(7, wire);
            Seen { clock: 1, used, boot: boot.into(), version: VERSION.into() }
        };
        let sum = together(&[look("a", 10), look("a", 20), look("b", 5)]);
        assert_eq!((sum.cpu_seconds(), sum.wire), (0.14, 35));
    }

    #[test]
    fn a_failure_names_its_rank() {
        let error = answer("rank 3", r#"{"Failed":"no space"}"#).unwrap_err().to_string();
        assert_eq!(error, "rank 3: no space");
        assert!(answer("rank 3", "nonsense").unwrap_err().to_string().contains("rank 3"));
        assert!(matches!(answer("rank 0", r#""Ready""#), Ok(Said::Ready)));
    }
}
