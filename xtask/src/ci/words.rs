//! What is read from the output of jobs: results of tests, their times, the words of a failure.

use std::time::Duration;

/// What the guard prints at a job's end, before the seconds.
pub(crate) const PROCESSOR: &str = "guard: seconds of processors:";
/// Lines of a log that are shown where nothing in it tells of a failure.
const LAST: usize = 20;
/// Lines that are shown of each panic.
const OF_A_PANIC: usize = 8;
const MOST: usize = 60;

/// Results of the test runner in a log.
#[derive(Clone, Default, Debug)]
pub(crate) struct Tests {
    pub(crate) passed: usize,
    /// Name and time of each that says so.
    pub(crate) times: Vec<(String, Duration)>,
}

impl Tests {
    pub(crate) fn read(text: &str) -> Tests {
        let mut tests = Tests::default();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("test result: ") {
                let passed = rest.split_whitespace().nth(1).and_then(|n| n.parse::<usize>().ok());
                tests.passed += passed.unwrap_or(0);
            }
            tests.times.extend(time(line));
        }
        tests
    }
}

/// `test NAME ... ok <0.123s>`.
fn time(line: &str) -> Option<(String, Duration)> {
    let (name, rest) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let seconds = rest.split_once('<')?.1.strip_suffix("s>")?.parse().ok()?;
    Some((name.into(), Duration::from_secs_f64(seconds)))
}

/// In CI a skipped test is a failure. A role is none: a test starts it as another process.
pub(crate) fn has_ignored(text: &str) -> bool {
    let skipped = |line: &str| line.contains(" ... ignored") && !line.contains("ignored, a role");
    text.lines().any(|line| line.starts_with("test ") && skipped(line))
}

/// The test runner itself says that a test failed: not a crash of something else.
pub(crate) fn has_failed_test(text: &str) -> bool {
    text.lines().any(|line| line.starts_with("test result: FAILED"))
}

pub(crate) fn processor(text: &str) -> Duration {
    let line = text.lines().rev().find_map(|line| line.strip_prefix(PROCESSOR));
    let seconds = line.and_then(|rest| rest.trim().parse().ok());
    Duration::from_secs_f64(seconds.unwrap_or(0.0))
}

/// What a person has to know of a failure: panics with their words, the guard's own, seeds.
pub(crate) fn failure(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with(PROCESSOR)).collect();
    let mut told: Vec<&str> = Vec::new();
    let mut goes_on = 0;
    for &line in &lines {
        let is_panic = line.contains("panicked at");
        let tells = ["guard: ", "error", "xtask: ", "sim: ", "play it again"];
        if is_panic {
            goes_on = OF_A_PANIC;
        } else if line == "stack backtrace:" {
            goes_on = 0;
        }
        let is_told = goes_on > 0
            || tells.iter().any(|start| line.starts_with(start))
            || line.contains("seed ")
            || line.ends_with("FAILED");
        goes_on = if line.is_empty() { 0 } else { goes_on.max(1) - 1 };
        if is_told && told.len() < MOST {
            told.push(line);
        }
    }
    if told.is_empty() {
        told = lines[lines.len().saturating_sub(LAST)..].to_vec();
    }
    told.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "running 2 tests\n\
        test a::b ... ok <1.250s>\n\
        test a::c ... FAILED <0.001s>\n\n\
        thread 'a::c' panicked at x.rs:1:2:\nleft: 1\nright: 2\n\n\
        test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out\n\
        guard: seconds of processors: 3.50\n";

    #[test]
    fn results_and_times_are_read() {
        let tests = Tests::read(LOG);
        assert_eq!(tests.passed, 1);
        assert_eq!(tests.times[0], ("a::b".into(), Duration::from_millis(1250)));
        assert_eq!(processor(LOG), Duration::from_millis(3500));
        assert!(has_failed_test(LOG) && !has_ignored(LOG));
        assert!(has_ignored("test a ... ignored\n") && has_ignored("test a ... ignored, slow\n"));
        assert!(!has_ignored("test a ... ignored, a role\n"));
    }

    #[test]
    fn a_failure_is_told_with_its_assertion() {
        let told = failure(LOG);
        assert!(told.contains("panicked at x.rs:1:2:\nleft: 1\nright: 2"), "{told}");
        assert!(!told.contains("a::b"), "{told}");
        assert_eq!(failure("one\ntwo\n"), "one\ntwo");
        let seeded = failure("fine\nsim: files seed 0x7 at commit 1: lost\n");
        assert_eq!(seeded, "sim: files seed 0x7 at commit 1: lost");
    }
}
