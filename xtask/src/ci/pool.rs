//! Runs jobs side by side, as many as the processors bear, and tells how each ended.

use std::collections::VecDeque;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use super::job::{Expected, Job, Load, PROCESSOR};
use super::spare::{LOOK, Spare};
use super::words::{self, Tests};

/// How a job ended.
#[derive(Clone, Debug)]
pub(crate) struct Ended {
    pub(crate) job: Job,
    pub(crate) took: Duration,
    /// Of processors, the job's processes together.
    pub(crate) processor: Duration,
    pub(crate) tests: Tests,
    pub(crate) log: PathBuf,
    /// Nothing where it ended as it must.
    pub(crate) failure: Option<String>,
}

/// Jobs that wait and jobs that run.
pub(crate) struct Pool {
    logs: PathBuf,
    budget: u32,
    used: u32,
    running: usize,
    computing: usize,
    quiet: usize,
    spare: Spare,
    waiting: VecDeque<Job>,
}

impl Pool {
    /// For the processors of this machine.
    pub(crate) fn new(logs: &Path) -> Pool {
        let processors = std::thread::available_parallelism().map_or(1, usize::from) as u32;
        Pool::with_budget(logs, PROCESSOR * processors)
    }

    pub(crate) fn with_budget(logs: &Path, budget: u32) -> Pool {
        Pool {
            logs: logs.into(),
            budget,
            used: 0,
            running: 0,
            computing: 0,
            quiet: 0,
            spare: Spare::new(budget / 2),
            waiting: VecDeque::new(),
        }
    }

    /// Runs all jobs, the first ones first where there is room. Calls `tell` when one has ended.
    pub(crate) fn run(&mut self, jobs: Vec<Job>, mut tell: impl FnMut(&Ended)) -> Vec<Ended> {
        self.waiting = jobs.into();
        let (end, ends) = channel();
        let mut all = Vec::new();
        loop {
            while let Some(job) = self.next() {
                self.start(job, end.clone());
            }
            if self.running == 0 {
                return all;
            }
            let ended = match ends.recv_timeout(LOOK) {
                Ok(ended) => ended,
                Err(RecvTimeoutError::Timeout) => {
                    self.spare.look();
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => return all,
            };
            self.spare.look();
            self.used -= self.shares(&ended.job);
            self.running -= 1;
            self.computing -= usize::from(ended.job.load == Load::Computes);
            self.quiet -= usize::from(ended.job.load.is_quiet());
            tell(&ended);
            all.push(ended);
        }
    }

    fn shares(&self, job: &Job) -> u32 {
        job.load.shares(self.budget)
    }

    /// The first one that fits. A processor is kept for what computes, while there is any: else
    /// it would come last, alone, and leave the processors idle before. What is spare beyond the
    /// budget is not for what compares or measures times, nor for what runs beside that.
    fn next(&mut self) -> Option<Job> {
        let computes = |job: &Job| job.load == Load::Computes;
        let is_kept = self.computing == 0 && self.waiting.iter().any(computes);
        let fits = |job: &Job| {
            let kept =
                if is_kept && !computes(job) { Load::Computes.shares(self.budget) } else { 0 };
            let has_spare = self.quiet == 0 && !job.load.is_quiet();
            let spare = if has_spare { self.spare.shares() } else { 0 };
            self.used + self.shares(job) + kept <= self.budget + spare
        };
        let at = self.waiting.iter().position(fits)?;
        self.waiting.remove(at)
    }

    fn start(&mut self, job: Job, end: Sender<Ended>) {
        self.used += self.shares(&job);
        self.running += 1;
        self.computing += usize::from(job.load == Load::Computes);
        self.quiet += usize::from(job.load.is_quiet());
        let log = job.log(&self.logs);
        std::thread::spawn(move || drop(end.send(perform(job, log))));
    }
}

/// Runs a job to its end.
fn perform(job: Job, log: PathBuf) -> Ended {
    let start = Instant::now();
    let outcome = spawn_and_wait(&job, &log);
    let took = start.elapsed();
    let text = String::from_utf8_lossy(&std::fs::read(&log).unwrap_or_default()).into_owned();
    let failure = match (job.expected, outcome) {
        (_, Err(error)) => Some(error),
        (Expected::Success, Ok(true)) if words::has_ignored(&text) => {
            Some("a test was skipped".into())
        }
        (Expected::Success, Ok(true)) => None,
        (Expected::Success, Ok(false)) => Some(words::failure(&text)),
        (Expected::Failure, Ok(false)) if words::has_failed_test(&text) => None,
        (Expected::Failure, Ok(false)) => Some(words::failure(&text)),
        (Expected::Failure, Ok(true)) => Some("the rule is broken and no test noticed".into()),
    };
    let (processor, tests) = (words::processor(&text), Tests::read(&text));
    Ended { job, took, processor, tests, log, failure }
}

fn spawn_and_wait(job: &Job, log: &Path) -> Result<bool, String> {
    let at = |e: std::io::Error| format!("{}: {e}", log.display());
    let dir = log.parent().unwrap_or(log);
    std::fs::create_dir_all(dir).map_err(at)?;
    let out = File::create(log).map_err(at)?;
    let err = out.try_clone().map_err(at)?;
    let mut command = job.guarded();
    command.stdin(Stdio::null()).stdout(out).stderr(err);
    let status = command.status().map_err(|e| format!("cannot run {}: {e}", job.title()))?;
    Ok(status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_beside_what_runs_is_started() {
        let job = |name: &str, load| Job::new("suite", name, &["true"]).load(load);
        let mut pool = Pool::with_budget(Path::new("logs"), 2 * PROCESSOR);
        let waits = [Load::Waits; 4];
        let loads = [&[Load::Works][..], &waits, &[Load::Computes, Load::Alone]].concat();
        let names = ["works", "waits", "too", "as well", "more", "computes", "alone"];
        pool.waiting = names.into_iter().zip(loads).map(|(name, load)| job(name, load)).collect();
        for name in ["works", "waits", "too", "as well", "computes"] {
            let next = pool.next().unwrap();
            assert_eq!(next.name, name, "a processor is kept for what computes");
            pool.used += pool.shares(&next);
            pool.computing += usize::from(next.load == Load::Computes);
        }
        assert!(pool.next().is_none(), "all is used");
        pool.used -= 2;
        assert_eq!(pool.next().unwrap().name, "more");
        assert!(pool.next().is_none(), "something runs");
        pool.used = 0;
        assert_eq!(pool.next().unwrap().name, "alone");
    }
}
