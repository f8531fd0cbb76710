//! What CI checks, and the table of times: `cargo xtask ci`.
//!
//! All tests are built once, in one profile, beside what needs the programs alone. Then the jobs of
//! all suites run side by side, as the processors bear it ([`pool`]); each writes a log of its own
//! under `target/ci`.

mod job;
mod plan;
mod pool;
pub(crate) mod programs;
mod spare;
mod table;
pub(crate) mod words;

use std::path::PathBuf;
use std::time::{Duration, Instant};

pub(crate) use job::{Expected, Job, Load};
pub(crate) use plan::{is_comparing, one, whole};
pub(crate) use pool::{Ended, Pool};

use crate::shell::{Build, build, target};
use job::PROCESSOR;
use programs::Program;
use table::Table;

/// So many of the slowest tests are named.
const SLOWEST: usize = 20;

/// Where the logs of jobs are.
pub(crate) fn logs() -> PathBuf {
    target().join("ci")
}

/// All that was run, with what is told of it at the end.
struct Run {
    start: Instant,
    table: Table,
    ended: Vec<Ended>,
}

/// Runs everything, the document's table written anew where asked.
pub(crate) fn run(update: bool) -> Result<(), String> {
    let mut run = Run { start: Instant::now(), table: Table::default(), ended: Vec::new() };
    let _ = std::fs::remove_dir_all(logs());
    run.jobs(Pool::new(&logs()), plan::before_the_build());
    build(Build::Tests)?;
    let programs = run.while_tests_are_built(plan::beside_the_build());
    // What failed beside a build that failed is told too.
    let programs = programs.inspect_err(|_| drop(verdict(&run.ended)))?;
    run.jobs(Pool::new(&logs()), plan::after_the_build(&programs)?);
    run.tell();
    let whole = run.start.elapsed();
    let failed = run.failed();
    if update && failed.is_empty() {
        run.table.update(whole)?;
    }
    verdict(&run.ended)
}

impl Run {
    /// Cargo keeps one processor busy most of the time, and two for the rest: the jobs have the
    /// other one.
    fn while_tests_are_built(&mut self, jobs: Vec<Job>) -> Result<Vec<Program>, String> {
        println!("building the tests");
        std::thread::scope(|scope| {
            let building = scope.spawn(|| {
                let start = Instant::now();
                let programs = programs::build(&[]);
                println!("built in {:.1} minutes", start.elapsed().as_secs_f64() / 60.0);
                programs
            });
            self.jobs(Pool::with_budget(&logs(), PROCESSOR), jobs);
            building.join().map_err(|_| "the build of the tests panicked".to_string())?
        })
    }

    fn jobs(&mut self, mut pool: Pool, jobs: Vec<Job>) {
        let count = jobs.len();
        let mut done = 0;
        let (table, start) = (&mut self.table, self.start);
        let ended = pool.run(jobs, |ended| {
            done += 1;
            table.add(ended);
            tell_end(ended, start.elapsed(), (done, count));
        });
        self.ended.extend(ended);
    }

    fn failed(&self) -> Vec<&Ended> {
        self.ended.iter().filter(|ended| ended.failure.is_some()).collect()
    }

    fn tell(&self) {
        println!("\nthe slowest tests, in seconds:");
        for (name, took) in slowest(&self.ended).iter().take(SLOWEST) {
            println!("{:8.1}  {name}", took.as_secs_f64());
        }
        self.table.print(self.start.elapsed());
        for grown in self.table.grown() {
            println!("grown: {grown}");
        }
    }
}

/// Each test with a time of its own: those of programs that ran whole, and jobs of one test.
fn slowest(ended: &[Ended]) -> Vec<(String, Duration)> {
    let mut times: Vec<(String, Duration)> = Vec::new();
    for Ended { job, took, tests, .. } in ended {
        let within = |(name, took): &(String, Duration)| (format!("{}: {name}", job.name), *took);
        match tests.times.is_empty() {
            true => times.push((job.title(), *took)),
            false => times.extend(tests.times.iter().map(within)),
        }
    }
    times.sort_by_key(|(_, took)| std::cmp::Reverse(*took));
    times
}

/// One line for each job that ended.
pub(crate) fn tell_end(ended: &Ended, since: Duration, (done, count): (usize, usize)) {
    let (minutes, seconds) = (since.as_secs() / 60, since.as_secs() % 60);
    let verdict = if ended.failure.is_some() { "FAILED" } else { "ok" };
    let (title, took) = (ended.job.title(), ended.took.as_secs_f64());
    println!("{minutes:>3}:{seconds:02} {done:>4}/{count} {verdict:<6} {took:7.1} s  {title}");
}

/// The last lines: what failed, with its words, its log and how to run it alone.
pub(crate) fn verdict(ended: &[Ended]) -> Result<(), String> {
    let tests: usize = ended.iter().map(|ended| ended.tests.passed).sum();
    let failed: Vec<&Ended> = ended.iter().filter(|ended| ended.failure.is_some()).collect();
    for Ended { job, log, failure, .. } in &failed {
        println!("\nFAILED {}", job.title());
        println!("{}", failure.as_deref().unwrap_or_default());
        println!("log:   {}", log.display());
        println!("alone: {}", job.again);
    }
    let passed = ended.len() - failed.len();
    println!("\n{tests} tests in {} jobs", ended.len());
    println!("jobs: {passed} passed, {} failed", failed.len());
    match failed.is_empty() {
        true => Ok(()),
        false => Err(format!("{} jobs failed", failed.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_come_first_whether_alone_or_in_a_program() {
        let ended = |name: &str, took: u64, log: &str| Ended {
            job: Job::new("suite", name, &["true"]),
            took: Duration::from_secs(took),
            processor: Duration::ZERO,
            tests: words::Tests::read(log),
            log: PathBuf::new(),
            failure: None,
        };
        let all = [
            ended("program", 9, "test a ... ok <2.000s>\ntest b ... ok <6.000s>\n"),
            ended("it one", 3, "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured\n"),
        ];
        let names: Vec<_> = slowest(&all).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["program: b", "suite: it one", "program: a"]);
    }
}
