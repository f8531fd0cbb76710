//! `cargo xtask flaky`: the tests of mounts again and again, more of them at once than the
//! processors bear, and a list of those that failed. Each failure is a fault to find.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::ci::programs::{self, Program};
use crate::ci::{Ended, Load, Pool, is_comparing, logs, one, tell_end};

const MOUNTS: &str = "nuri";
/// Waiting tests at a time, for each processor.
const CROWD: u32 = 4;
/// Its tests turn a switch of the kernel, which concerns all others.
const EXCLUSIVE: &str = "fallback";

pub(crate) fn run(hours: f64, only: &str) -> Result<(), String> {
    let end = Instant::now() + Duration::from_secs_f64(3600.0 * hours);
    let programs = programs::build(&[])?;
    let own: Vec<&Program> =
        programs.iter().filter(|p| p.package == MOUNTS && p.target != EXCLUSIVE).collect();
    let mut seen: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    let mut round = 0;
    while Instant::now() < end {
        round += 1;
        println!("round {round}");
        for ended in one_round(&own, only)? {
            let (runs, failures) = seen.entry(ended.job.title()).or_default();
            *runs += 1;
            if let Some(words) = &ended.failure {
                *failures += 1;
                keep(&ended, round, words);
            }
        }
    }
    let failed: Vec<_> = seen.iter().filter(|(_, (_, failures))| *failures > 0).collect();
    for (name, (runs, failures)) in &failed {
        println!("{failures} of {runs}: {name}");
    }
    println!("{round} rounds of {} tests, {} failed at least once", seen.len(), failed.len());
    if failed.is_empty() { Ok(()) } else { Err("tests are flaky: see above".into()) }
}

/// The next round would overwrite the log.
fn keep(ended: &Ended, round: usize, words: &str) {
    let kept = ended.log.with_extension(format!("round{round}.log"));
    match std::fs::copy(&ended.log, &kept) {
        Ok(_) => println!("{words}\nlog: {}", kept.display()),
        Err(e) => println!("{words}\n{}: {e}", kept.display()),
    }
}

/// Each test once. What measures time runs among the others here: it must bear that. Only what
/// compares two times comes alone, at the end.
fn one_round(programs: &[&Program], only: &str) -> Result<Vec<Ended>, String> {
    let mut jobs = Vec::new();
    for program in programs {
        for test in program.tests.iter().filter(|test| test.contains(only)) {
            let load = if is_comparing(test) { Load::Alone } else { Load::Waits };
            jobs.push(one("flaky", program, test).load(load));
        }
    }
    if jobs.is_empty() {
        return Err(format!("no test has {only:?} in its name"));
    }
    let (start, count, mut done) = (Instant::now(), jobs.len(), 0);
    let processors = std::thread::available_parallelism().map_or(1, usize::from) as u32;
    let budget = CROWD * processors * Load::Waits.shares(u32::MAX);
    Ok(Pool::with_budget(&logs(), budget).run(jobs, |ended| {
        done += 1;
        if ended.failure.is_some() {
            tell_end(ended, start.elapsed(), (done, count));
        }
    }))
}
