//! What CI runs: the suites and their jobs, in the order in which they are started.
//!
//! What takes long and mostly waits is started first; what computes fills the processors beside
//! it; tests that measure time come last, two at a time.

use super::job::{Job, Load};
use super::programs::{self, Program};
use crate::broken;

/// Seconds of killing nodes under programs, for each shape.
const FAULT_SECONDS: &str = "40";
/// The same faults each time; `cargo xtask faults` draws others.
const FAULT_SEED: &str = "7";
/// Seconds of litmus tests: so long the same rounds each time, and so long others.
const LITMUS_SECONDS: &str = "20";
const LITMUS_SEED: &str = "7";
/// Seconds of random calls against a model, the same each time and others.
const MODEL_SECONDS: &str = "30";
const MODEL_SEED: &str = "1";
/// Seconds of fresh seeds, for each kind of simulation.
const SIMULATED: &[(&str, &str)] =
    &[("files", "18"), ("leased", "18"), ("logged", "10"), ("devices", "10")];
/// CI runs every n-th study; `cargo xtask studies` runs all.
const STUDIES_EVERY: &str = "4";
/// Of the guest's long stories CI plays every n-th; `cargo xtask guest` plays all.
const LONG_STORIES_EVERY: &str = "3";
/// Seconds of fuzzing, all targets together.
const FUZZ_SECONDS: &str = "12";

/// Tests of real processes and mounts: each runs as a job of its own.
const MOUNTS: &str = "nuri";
/// Its tests share one space.
const SHARING: &[&str] = &["posix"];
/// It turns a switch of the kernel off, which concerns every mount made meanwhile.
const EXCLUSIVE: &[&str] = &["fallback"];
/// Tests that compare times, and bear some noise.
const COMPARING: &[&str] = &["tune::", "transfers_agree_with_fio", "blocks_agree_with_bonnie"];
/// They fill disks.
const FILLING: &[&str] = &["full_host::df_"];
/// Their tests build something with cargo, which must not see the variable that [`whole`] sets.
const CALLING_CARGO: &[&str] = &["nuri-ipc-c", "xtask"];
/// Of the program `it`, what runs also where FUSE does not go over io_uring.
const CLASSIC: &[&str] = &["coherence", "crash", "posix", "lifecycle"];

/// What needs no tests built.
pub(crate) fn before_the_build() -> Vec<Job> {
    vec![
        Job::new("format", "all", &["cargo", "fmt", "--all", "--check"]),
        Job::xtask("tidy", "all", &["tidy"]),
    ]
}

/// What needs Nuri's programs alone, and bears compilers beside it: it measures nothing.
pub(crate) fn beside_the_build() -> Vec<Job> {
    let guest = |clients| {
        let words = ["guest", "--only", clients, "--every", LONG_STORIES_EVERY];
        Job::xtask("clients in a real kernel", clients, &words).load(Load::Works).limit(900)
    };
    let mut jobs = Vec::from(["nfs", "nbd"].map(guest));
    let model = ["model", "--seconds", MODEL_SECONDS];
    let fixed = [&model[..], &["--seed", MODEL_SEED]].concat();
    jobs.push(Job::xtask("bytes against a model", "the same rounds", &fixed).load(Load::Works));
    jobs.push(Job::xtask("bytes against a model", "fresh rounds", &model).load(Load::Works));
    jobs
}

/// Everything else.
pub(crate) fn after_the_build(programs: &[Program]) -> Result<Vec<Job>, String> {
    let mut jobs = long_ones();
    // They compute: two at a time from the beginning, not one after the other at the end.
    jobs.extend(simulations());
    jobs.extend(builds_of_their_own());
    jobs.extend(broken::jobs(programs)?);
    // One that takes more than the others waits until so much is free: it had better not begin at
    // the end.
    let is_hard_to_place = |job: &Job| job.load == Load::Works;
    let (hard, easy): (Vec<Job>, _) = mounts(programs)?.into_iter().partition(is_hard_to_place);
    jobs.extend(hard);
    jobs.extend(easy);
    jobs.extend(units(programs));
    // Of one load the order stays; what must be alone, or nearly so, waits until the others are
    // done.
    let is_quiet = |job: &Job| matches!(job.load, Load::Measures | Load::Alone);
    let (mut quiet, others): (Vec<Job>, _) = jobs.into_iter().partition(is_quiet);
    quiet.sort_by_key(|job| job.load);
    Ok(others.into_iter().chain(quiet).collect())
}

/// Spaces under real programs, on machines of their own.
fn long_ones() -> Vec<Job> {
    let mut jobs = Vec::new();
    for shape in crate::faults::SHAPES {
        let words = ["faults", "--seconds", FAULT_SECONDS, "--seed", FAULT_SEED, "--only", shape];
        jobs.push(Job::xtask("faults under programs", *shape, &words).load(Load::Works));
    }
    let studies = ["studies", "--every", STUDIES_EVERY];
    jobs.push(Job::xtask("studies", "today's share", &studies).load(Load::Works).limit(900));
    let litmus = ["litmus", "--seconds", LITMUS_SECONDS];
    let fixed = [&litmus[..], &["--seed", LITMUS_SEED]].concat();
    jobs.push(Job::xtask("litmus tests", "the same rounds", &fixed).load(Load::Waits));
    jobs.push(Job::xtask("litmus tests", "fresh rounds", &litmus).load(Load::Waits));
    let calls = ["bench-ops", "--short"];
    jobs.push(Job::xtask("what single calls cost", "all", &calls).load(Load::Waits));
    for app in crate::apps::names() {
        let words = ["apps", "--quick", "--only", app];
        jobs.push(Job::xtask("real programs", app, &words).load(Load::Works));
    }
    jobs
}

/// What is compiled in another way. All of them share the target directory, and cargo lets only
/// one at a time build there: one job after the other is as fast.
fn builds_of_their_own() -> Vec<Job> {
    let clippy = ["cargo", "clippy", "--workspace", "--all-targets", "-q", "--", "-D", "warnings"];
    let jobs = [
        Job::new("memory under a sanitizer", "all", &["bash", "scripts/test-sanitizer"]),
        Job::new("interleavings", "all", &["bash", "scripts/test-interleavings"]),
        Job::new("fuzz", "all targets", &["bash", "fuzz/run.sh", FUZZ_SECONDS]),
        Job::new("examples in documents", "all", &["cargo", "test", "-q", "--doc", "--workspace"]),
        Job::xtask("no broken rule in a release", "all", &["release-check"]),
        Job::new("clippy", "all", &clippy).limit(900),
    ];
    jobs.map(|job| job.env("CARGO_BUILD_JOBS", "1")).into()
}

fn mounts(programs: &[Program]) -> Result<Vec<Job>, String> {
    let measuring = programs::all_measuring("crates/nuri/tests/it")?;
    let mut jobs = Vec::new();
    for program in programs.iter().filter(|p| p.package == MOUNTS) {
        let suite = "binary, mounts, crashes";
        let target = program.target.as_str();
        if SHARING.contains(&target) || program.target == MOUNTS {
            jobs.push(whole(suite, program).load(Load::Waits));
            continue;
        }
        for test in &program.tests {
            let measures = measuring.contains(test);
            let load = match EXCLUSIVE.contains(&target) {
                true => Load::Alone,
                false if measures => Load::Measures,
                false => Load::Waits,
            };
            let mut job = one(suite, program, test).load(load).env("NURI_TRANSPORT", "uring");
            if is_comparing(test) {
                job = job.load(Load::Compares);
            } else if is_of(FILLING, test) {
                job = job.load(Load::Works);
            }
            jobs.push(job);
            // What must be nearly alone costs the whole run nearly as long as it takes.
            let is_classic = target == "it" && CLASSIC.iter().any(|part| test.contains(part));
            if is_classic && !measures {
                let again = one("the same without io_uring", program, test).load(load);
                jobs.push(again.env("NURI_TRANSPORT", "classic"));
            }
        }
    }
    Ok(jobs)
}

fn is_of(parts: &[&str], test: &str) -> bool {
    parts.iter().any(|part| test.starts_with(part))
}

/// Whether a test compares times: beside a crowd it finds no difference, and says so.
pub(crate) fn is_comparing(test: &str) -> bool {
    is_of(COMPARING, test)
}

fn units(programs: &[Program]) -> Vec<Job> {
    let has_tests = |p: &&Program| !p.tests.is_empty();
    let others = programs.iter().filter(|p| p.package != MOUNTS).filter(has_tests);
    let suite = |package: &str| match package {
        "nuri-sim" => "simulator",
        _ => "unit and property tests",
    };
    let mut jobs = Vec::new();
    for program in others {
        let suite = suite(&program.package);
        match CALLING_CARGO.contains(&program.package.as_str()) {
            true => jobs.extend(program.tests.iter().map(|test| one(suite, program, test))),
            false => jobs.push(whole(suite, program)),
        }
    }
    jobs
}

/// All tests of a program in one job, with the time that each takes.
pub(crate) fn whole(suite: &'static str, program: &Program) -> Job {
    let path = program.path.display().to_string();
    let words = [path.as_str(), "--test-threads=2", "-Zunstable-options", "--report-time"];
    let mut job = Job::new(suite, format!("{} {}", program.package, program.target), &words);
    job.dir.clone_from(&program.dir);
    job.again = format!("cargo test -p {} {}", program.package, choice(program));
    // The test runner of the stable compiler tells times only so.
    job.env("RUSTC_BOOTSTRAP", "1")
}

/// What cargo calls the program.
fn choice(program: &Program) -> String {
    let is_main = program.target.replace('_', "-") == program.package;
    if is_main { String::new() } else { format!("--test {}", program.target) }
}

/// One test in a job.
pub(crate) fn one(suite: &'static str, program: &Program, test: &str) -> Job {
    let path = program.path.display().to_string();
    let mut job = Job::new(suite, format!("{} {test}", program.target), &[&path, "--exact", test]);
    job.dir.clone_from(&program.dir);
    job.again = format!("cargo xtask test {test}");
    job
}

/// Fresh seeds; the fixed ones are tests.
fn simulations() -> Vec<Job> {
    let program = crate::shell::target().join("debug/nuri-sim").display().to_string();
    let job = |(kind, seconds): &(&str, &str)| {
        let mut job = Job::new("simulator", *kind, &[&program, kind, "--seconds", seconds]);
        job.again = format!("cargo sim {kind} SEED");
        job
    };
    SIMULATED.iter().map(job).collect()
}
