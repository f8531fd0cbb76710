//! What CI runs, in order, with the time that each suite took.

use std::time::{Duration, Instant};

use crate::shell::{cargo, run as call, run_tests, target};
use crate::{apps, broken, faults, litmus, studies, tidy, watch};

const MINUTE: Duration = Duration::from_secs(60);
/// All suites end before this, well before who started CI gives up and hears nothing.
const WHOLE: Duration = Duration::from_secs(80 * 60);
/// No suite takes longer; the slowest takes a third of it.
const SUITE: Duration = Duration::from_secs(30 * 60);
/// Seconds of fuzzing in CI.
const FUZZ_SECONDS: u64 = 24;
/// Minutes of killing nodes under programs in CI.
const FAULT_MINUTES: u64 = 2;
/// The same faults each time; `cargo xtask faults` draws others.
const FAULT_SEED: u64 = 7;
/// Of litmus tests in CI: so long the same rounds each time, and so long others.
const LITMUS: Duration = Duration::from_secs(20);
const LITMUS_SEED: u64 = 7;
/// Of the simulator in CI, builds included where they take long.
const SIMULATE: Duration = Duration::from_secs(180);
/// Of fresh seeds, at least.
const LEAST_FRESH: Duration = Duration::from_secs(60);
/// CI runs every n-th study; `cargo xtask studies` runs all.
const STUDIES_EVERY: usize = 3;
/// CI builds every n-th broken rule; `cargo xtask broken` builds all.
const BROKEN_EVERY: usize = 5;
/// On a slow machine no further one is begun after this.
const BROKEN: Duration = Duration::from_secs(9 * 60);

type Suite = (&'static str, fn() -> Result<(), String>);

const SUITES: &[Suite] = &[
    ("format", || call(&mut cargo(&["fmt", "--all", "--check"]), MINUTE)),
    ("tidy", tidy::run),
    ("clippy", || {
        let args = ["clippy", "--workspace", "--all-targets", "-q", "--", "-D", "warnings"];
        call(&mut cargo(&args), 15 * MINUTE)
    }),
    ("release build", || {
        call(&mut cargo(&["build", "--release", "-q", "-p", "nuri"]), 15 * MINUTE)
    }),
    ("unit and property tests", || {
        let args = ["test", "--workspace", "--exclude", "nuri", "--exclude", "nuri-sim"];
        run_tests(&mut cargo(&args), 15 * MINUTE)
    }),
    ("interleavings", || {
        let args = ["test", "--release", "-p", "nuri-ipc", "--lib", "all_interleavings"];
        let mut test = cargo(&args);
        test.env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", target().join("loom"));
        // All of them take minutes.
        test.env("LOOM_MAX_PREEMPTIONS", "3");
        run_tests(&mut test, 10 * MINUTE)
    }),
    ("memory under a sanitizer", || {
        let target_of_host = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        let args = ["test", "-p", "nuri-ipc", "-p", "nuri-io", "--lib", "--tests", "--target"];
        let mut test = cargo(&args);
        // The stable compiler has what the option needs; miri is not in it.
        test.arg(target_of_host).env("RUSTC_BOOTSTRAP", "1");
        test.env("RUSTFLAGS", "-Zsanitizer=address");
        run_tests(test.env("CARGO_TARGET_DIR", target().join("sanitizer")), 10 * MINUTE)
    }),
    ("binary, mounts, crashes", || {
        let args = ["test", "-p", "nuri", "--", "--test-threads=2"];
        // Ten on a machine of one's own; a host that takes processor time made it fifteen.
        run_tests(cargo(&args).env("NURI_TRANSPORT", "uring"), 25 * MINUTE)
    }),
    ("the same without io_uring", || {
        let args = ["test", "-p", "nuri", "--test", "it", "--", "--test-threads=2"];
        let parts = ["coherence", "crash", "posix", "lifecycle"];
        let args = [&args[..], &parts[..]].concat();
        run_tests(cargo(&args).env("NURI_TRANSPORT", "classic"), 15 * MINUTE)
    }),
    ("simulator", simulate),
    ("real programs", || apps::run(apps::Share::Quick, "")),
    ("litmus tests", || {
        litmus::run(LITMUS, Some(LITMUS_SEED), "")?;
        litmus::run(LITMUS, None, "")
    }),
    ("faults under programs", || faults::run(FAULT_MINUTES, Some(FAULT_SEED))),
    ("studies", || studies::run(STUDIES_EVERY)),
    ("fuzz", || broken::fuzz(FUZZ_SECONDS)),
    ("broken builds", || broken::run(BROKEN_EVERY, BROKEN)),
];

/// The attacks and fixed seeds, then fresh ones for what is left of the time.
fn simulate() -> Result<(), String> {
    let start = Instant::now();
    run_tests(&mut cargo(&["test", "--release", "-p", "nuri-sim"]), 10 * MINUTE)?;
    let left = SIMULATE.saturating_sub(start.elapsed()).max(LEAST_FRESH).as_secs();
    // The last one plays many seeds in a short time.
    let shares = [("files", 2), ("leased", 2), ("logged", 1)];
    for (kind, share) in shares {
        let seconds = (left * share / 5).to_string();
        let args = ["run", "-q", "--release", "-p", "nuri-sim", "--", kind, "--seconds", &seconds];
        call(&mut cargo(&args), 10 * MINUTE)?;
    }
    Ok(())
}

/// Runs all suites; the table comes also after a failure.
pub(crate) fn run() -> Result<(), String> {
    watch::adopt()?;
    let mut table = Vec::new();
    let mut outcome = Ok(());
    let whole = Instant::now();
    for (name, suite) in SUITES {
        println!("== {name}");
        let start = Instant::now();
        let result = watch::run(*suite, SUITE.min(WHOLE.saturating_sub(start - whole)));
        table.push((name, start.elapsed(), result.is_ok()));
        if let Err(text) = result {
            outcome = Err(format!("{name}: {text}"));
            break;
        }
    }
    println!("\nsuite                          minutes");
    for (name, took, ok) in &table {
        let verdict = if *ok { "" } else { "  FAILED" };
        println!("{name:<30} {:7.1}{verdict}", took.as_secs_f64() / 60.0);
    }
    let passed = table.iter().filter(|(_, _, ok)| *ok).count();
    println!("\nsuites: {passed} passed, {} failed", table.len() - passed);
    outcome
}

#[cfg(test)]
mod tests {
    #[test]
    fn suites_have_distinct_names() {
        let mut names: Vec<_> = super::SUITES.iter().map(|(name, _)| name).collect();
        names.dedup();
        assert_eq!(names.len(), super::SUITES.len());
    }
}
