//! The two processes: the first one leads, the second one follows.
//!
//! Each message has a number in its first and last bytes, and in every line of the cache between.
//! The receiver looks at all of them, so no message counts that was not read.

use std::hint::black_box;
use std::path::PathBuf;
use std::time::Instant;

use nuri_io::rng::Rng;
use rustix::thread::{CpuSet, sched_setaffinity};

use super::channel::{Channel, open};
use super::{Ipc, Through};
use crate::job::{Job, Moved, Order, Part};
use crate::workload::Phase;
use crate::{LabError, Result, at};

/// A cache line of this machine and most.
const LINE: usize = 64;
const WORD: usize = 4;
/// Trials take this part of the time that is asked for, at least.
const TRIAL: f64 = 0.05;
/// Ends the trials: the count that follows is the one that is timed.
const FINAL: u64 = 1 << 63;

pub(crate) struct Pair {
    ipc: Ipc,
    rank: usize,
    dir: PathBuf,
    line: Option<Line>,
    ready: Option<(Phase, u64)>,
}

/// This process's end, and its message.
struct Line {
    channel: Option<Box<dyn Channel>>,
    message: Vec<u8>,
    copy: Vec<u8>,
}

impl Pair {
    pub(crate) fn new(ipc: Ipc, job: Job) -> Pair {
        let dir = job.dirs[0].clone();
        Pair { ipc, rank: job.rank, dir, line: None, ready: None }
    }

    fn connect(&self) -> Result<Line> {
        let cpu = self.ipc.processors()?[self.rank];
        let mut set = CpuSet::new();
        set.set(cpu);
        sched_setaffinity(None, &set).map_err(at(format!("processor {cpu}")))?;
        let message = vec![0; self.ipc.message as usize];
        let copies = self.ipc.through == Through::Memcpy;
        let copy = if copies { message.clone() } else { Vec::new() };
        Ok(Line { channel: open(self.ipc.through, &self.dir, self.rank)?, message, copy })
    }

    /// Leads trials until it is known how many messages take the time that is asked for.
    fn count(&self, line: &mut Line, phase: Phase) -> Result<u64> {
        let mut count = 1;
        loop {
            line.send_number(count)?;
            let start = Instant::now();
            line.lead(phase, count)?;
            let seconds = start.elapsed().as_secs_f64();
            if seconds >= TRIAL * self.ipc.seconds {
                let count = (count as f64 * self.ipc.seconds / seconds).ceil() as u64;
                line.send_number(count | FINAL)?;
                return Ok(count);
            }
            count *= 2;
        }
    }
}

impl Line {
    fn channel(&mut self) -> Result<&mut Box<dyn Channel>> {
        self.channel.as_mut().ok_or(LabError::new("nothing is sent"))
    }

    fn send_number(&mut self, number: u64) -> Result<()> {
        match &mut self.channel {
            Some(channel) => channel.send(&number.to_le_bytes()),
            None => Ok(()),
        }
    }

    fn recv_number(&mut self) -> Result<u64> {
        let mut bytes = [0; 8];
        self.channel()?.recv(&mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Every byte goes over and back once.
    fn prove(&mut self, seed: u64, rank: usize) -> Result<()> {
        if self.channel.is_none() {
            return Ok(());
        }
        let mut expected = vec![0; self.message.len()];
        Rng::new(seed).fill(&mut expected);
        if rank == 0 {
            self.message.copy_from_slice(&expected);
            self.send()?;
            self.message.fill(0);
        }
        self.recv()?;
        if self.message != expected {
            return Err(LabError::new("a message does not hold what was sent"));
        }
        if rank > 0 {
            self.send()?;
        }
        self.channel()?.check()
    }

    fn send(&mut self) -> Result<()> {
        let Line { channel: Some(channel), message, .. } = self else { return Ok(()) };
        channel.send(message)
    }

    fn recv(&mut self) -> Result<()> {
        let Line { channel: Some(channel), message, .. } = self else { return Ok(()) };
        channel.recv(message)
    }

    /// Sends so many messages, and has an answer to each in a ping-pong, else one to all.
    fn lead(&mut self, phase: Phase, count: u64) -> Result<()> {
        if self.channel.is_none() {
            return self.copy(if phase == Phase::PingPong { 2 * count } else { count });
        }
        for i in 0..count {
            stamp(&mut self.message, 2 * i);
            self.send()?;
            if phase == Phase::PingPong {
                self.recv()?;
                proven(&self.message, 2 * i + 1)?;
            }
        }
        if phase == Phase::PingPong || self.recv_number()? == count {
            return Ok(());
        }
        Err(LabError::new("the other process counted other messages"))
    }

    fn follow(&mut self, phase: Phase, count: u64) -> Result<()> {
        for i in 0..count {
            self.recv()?;
            proven(&self.message, 2 * i)?;
            if phase == Phase::PingPong {
                stamp(&mut self.message, 2 * i + 1);
                self.send()?;
            }
        }
        if phase == Phase::PingPong { Ok(()) } else { self.send_number(count) }
    }

    fn copy(&mut self, count: u64) -> Result<()> {
        for i in 0..count {
            stamp(&mut self.message, i);
            self.copy.copy_from_slice(black_box(&self.message));
            proven(black_box(&self.copy), i)?;
        }
        Ok(())
    }
}

/// Writes a number at both ends and into every line between.
fn stamp(message: &mut [u8], number: u64) {
    let word = (number as u32).to_le_bytes();
    let last = message.len() - WORD;
    message[..WORD].copy_from_slice(&word);
    if last >= WORD {
        message[WORD..last].iter_mut().step_by(LINE).for_each(|byte| *byte = word[0]);
        message[last..].copy_from_slice(&word);
    }
}

fn proven(message: &[u8], number: u64) -> Result<()> {
    let word = (number as u32).to_le_bytes();
    let last = message.len() - WORD;
    let lines = message.get(WORD..last).unwrap_or_default().iter().step_by(LINE);
    let wrong = lines.fold(0, |wrong, byte| wrong | (byte ^ word[0]));
    let ends = last < WORD || message[last..] == word;
    if wrong == 0 && message[..WORD] == word && ends {
        return Ok(());
    }
    Err(LabError(format!("message {number} does not hold what was sent")))
}

impl Part for Pair {
    fn prepare(&mut self, order: Order) -> Result<()> {
        let mut line = match self.line.take() {
            Some(line) => line,
            None => self.connect()?,
        };
        line.prove(order.seed, self.rank)?;
        let phase = order.phase;
        let count = match (self.rank, &line.channel) {
            (0, _) => self.count(&mut line, phase)?,
            (_, None) => 0,
            _ => loop {
                match line.recv_number()? {
                    count if count & FINAL != 0 => break count & !FINAL,
                    count => line.follow(phase, count)?,
                }
            },
        };
        self.ready = Some((phase, count));
        self.line = Some(line);
        Ok(())
    }

    /// Only the first process tells what moved.
    fn run(&mut self) -> Result<Moved> {
        let unprepared = || LabError::new("told to go unprepared");
        let (phase, count) = self.ready.take().ok_or_else(unprepared)?;
        let line = self.line.as_mut().ok_or_else(unprepared)?;
        if self.rank > 0 {
            return line.follow(phase, count).map(|()| Moved::default());
        }
        line.lead(phase, count)?;
        Ok(match phase {
            Phase::PingPong => Moved { bytes: 0, operations: 2 * count },
            _ => Moved { bytes: count * self.ipc.message, operations: count },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Workload;
    use crate::workload::tests::parse;

    fn ranks(workload: &Workload, dir: &std::path::Path) -> [std::thread::JoinHandle<Moved>; 2] {
        [0, 1].map(|rank| {
            let (workload, dirs) = (workload.clone(), vec![dir.to_path_buf()]);
            std::thread::spawn(move || {
                let phases = workload.phases();
                let mut part = workload.clone().part(Job::new(workload, rank, dirs));
                let mut moved = Moved::default();
                for phase in phases {
                    part.prepare(Order { phase, seed: 1 }).unwrap();
                    moved = part.run().unwrap();
                }
                moved
            })
        })
    }

    #[test]
    fn messages_of_all_lengths_go_over_everything() {
        for through in ["nuri", "cma", "unix", "pipe", "memcpy"] {
            for size in [4, 7, 8, 100, 5000, 300_000] {
                let dir = tempfile::tempdir().unwrap();
                let line = format!("ipc -t {size} --through {through} --seconds 0.002");
                let workload = parse(&line).unwrap();
                let dirs = [dir.path().to_path_buf()];
                workload.lay_out(&dirs).unwrap();
                let [lead, follow] = ranks(&workload, dir.path()).map(|rank| rank.join().unwrap());
                assert!(lead.operations > 0 && lead.bytes == size * lead.operations, "{line}");
                assert_eq!(follow, Moved::default());
                workload.clear(&dirs).unwrap();
                assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "{line}");
            }
        }
    }

    #[test]
    fn a_message_that_is_old_or_torn_is_found() {
        for size in [4, 8, 9, 64, 200, 4096] {
            let mut message = vec![0; size];
            stamp(&mut message, 7);
            assert!(proven(&message, 7).is_ok(), "{size}");
            assert!(proven(&message, 8).is_err(), "{size}");
            for at in [0, size - 1, WORD.min(size - 1), (WORD + LINE).min(size - 1)] {
                let mut torn = message.clone();
                torn[at] ^= 1;
                assert!(proven(&torn, 7).is_err(), "{size} {at}");
            }
        }
    }
}
