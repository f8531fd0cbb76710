//! A rank: one of the processes of a workload. It takes orders from its standard input and answers
//! on its standard output, one JSON line each. A rank ends when its input ends, whatever it is
//! doing, so that no rank outlives the run.

use std::io::{BufRead, Write};
use std::sync::mpsc::{Receiver, channel};

use serde::{Deserialize, Serialize};

use crate::job::{Job, Moved, Order, Part};
use crate::machine::Usage;
use crate::record::VERSION;
use crate::workload::Phase;
use crate::{LabError, Result, at, caches, clock, machine};

const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// What a rank is told after its job.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Told {
    Prepare(Order),
    Go,
    /// After a phase.
    Rest,
    /// The first rank of a machine is asked, for all of them.
    Look,
    /// Makes that machine's caches ready for a phase.
    Cool(Phase),
}

/// What a rank answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Said {
    Ready,
    Done(Done),
    Seen(Seen),
    Cool { warning: Option<String> },
    Failed(String),
}

/// Of the machine that a rank runs on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Seen {
    /// Nanoseconds of its clock.
    pub(crate) clock: u64,
    pub(crate) used: Usage,
    /// Which start of which machine that is: nodes of a testbed are one.
    pub(crate) boot: String,
    /// Of the program there.
    pub(crate) version: String,
}

/// Times are nanoseconds of the clock that the machine's processes share.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Done {
    pub start: u64,
    pub end: u64,
    pub moved: Moved,
    /// KiB of the process at most, in this phase.
    pub memory: u64,
}

impl Done {
    /// By a clock that is so many nanoseconds ahead.
    pub(crate) fn moved_by(self, nanos: i64) -> Done {
        let moved = |time: u64| time.wrapping_add_signed(nanos);
        Done { start: moved(self.start), end: moved(self.end), ..self }
    }
}

/// The whole life of a rank's process.
pub fn serve() -> Result<()> {
    let lines = listen();
    let job: Job = next(&lines)?;
    let (workload, dirs) = (job.workload.clone(), job.dirs.clone());
    let mut part = job.workload.clone().part(job);
    loop {
        let said = match next(&lines)? {
            Told::Prepare(order) => part.prepare(order).map(|()| Said::Ready),
            Told::Go => timed(part.as_mut()).map(Said::Done),
            Told::Rest => part.rest().map(|()| Said::Ready),
            Told::Look => Ok(Said::Seen(look())),
            Told::Cool(phase) => caches::ready(&workload, phase, &dirs, 1)
                .map(|caches| Said::Cool { warning: caches.warning }),
        };
        say(&said.unwrap_or_else(|LabError(text)| Said::Failed(text)))?;
    }
}

/// Reads on its own thread, so that the end of the input is seen also in mid-phase.
fn listen() -> Receiver<String> {
    let (send, lines) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(std::io::Result::ok) {
            let _ = send.send(line);
        }
        std::process::exit(0);
    });
    lines
}

fn next<T: serde::de::DeserializeOwned>(lines: &Receiver<String>) -> Result<T> {
    let line = lines.recv().map_err(at("no more orders"))?;
    serde_json::from_str(&line).map_err(at("an order"))
}

fn say(said: &Said) -> Result<()> {
    let line = serde_json::to_string(said).map_err(at("an answer"))?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).map_err(at("an answer"))
}

fn look() -> Seen {
    let used = Usage::now(None);
    let boot = std::fs::read_to_string(BOOT).unwrap_or_default();
    Seen { clock: clock::monotonic(), used, boot, version: VERSION.into() }
}

fn timed(part: &mut dyn Part) -> Result<Done> {
    machine::forget_peak();
    let start = clock::monotonic();
    let moved = part.run()?;
    Ok(Done { start, end: clock::monotonic(), moved, memory: machine::peak_kib() })
}
