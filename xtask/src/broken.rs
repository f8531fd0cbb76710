//! Rules that are broken in a test: another test must notice. `cargo xtask broken`.
//!
//! `docs/broken-rules.txt` lists rule, crate and a part of a test's name. The tests are those that
//! CI built for everything else: a rule is broken by the environment (crate nuri-rules).

use std::collections::BTreeSet;
use std::time::Instant;

use crate::ci::programs::{self, Program, find};
use crate::ci::{Expected, Job, Load, Pool, logs, one, tell_end, verdict};
use crate::shell::root;

const LIST: &str = "docs/broken-rules.txt";
const SUITE: &str = "broken rules";
/// Seconds for a test that notices.
const LONGEST: u64 = 240;
/// Tests of its crate wait for processes and mounts.
const WAITING: &str = "nuri";

/// Rules whose breach shows in what the kernel has cached, which tests beside theirs drop, or while
/// two mounts take turns, which a busy machine makes them do too slowly.
const SEEN_IF_ALONE: &[&str] =
    &["trust_for_ever", "stale_pages_stay", "direct_beside_pages", "orphan_while_opened"];

/// A line of the list.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Line {
    rule: String,
    package: String,
    test: String,
}

fn list() -> Result<Vec<Line>, String> {
    let text = std::fs::read_to_string(root().join(LIST)).map_err(|e| format!("{LIST}: {e}"))?;
    let lines = text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#'));
    let line = |line: &str| match line.split_whitespace().collect::<Vec<_>>()[..] {
        [rule, package, test] => {
            Ok(Line { rule: rule.into(), package: package.into(), test: test.into() })
        }
        _ => Err(format!("{LIST}: {line:?} is not: rule crate test")),
    };
    lines.map(line).collect()
}

/// A job for each line of the list.
pub(crate) fn jobs(programs: &[Program]) -> Result<Vec<Job>, String> {
    let (jobs, odd): (Vec<_>, Vec<_>) =
        list()?.iter().map(|line| job(line, programs)).partition(Result::is_ok);
    let odd: Vec<String> = odd.into_iter().filter_map(Result::err).collect();
    if odd.is_empty() { Ok(jobs.into_iter().flatten().collect()) } else { Err(odd.join("\n")) }
}

fn job(line: &Line, programs: &[Program]) -> Result<Job, String> {
    let Line { rule, package, test } = line;
    let own: Vec<Program> = programs.iter().filter(|p| p.package == *package).cloned().collect();
    let [(program, name)] = find(&own, test)[..] else {
        let found: Vec<_> = find(&own, test).iter().map(|(_, name)| *name).collect();
        return Err(format!(
            "{LIST}: {rule}: {test:?} must be part of one name in {package}, not of: {found:?}"
        ));
    };
    let load = match package == WAITING {
        true if SEEN_IF_ALONE.contains(&rule.as_str()) => Load::Alone,
        true => Load::Waits,
        false => Load::Computes,
    };
    let mut job = one(SUITE, program, name).load(load).limit(LONGEST);
    job.name = format!("{rule} by {name}");
    job.expected = Expected::Failure;
    job.again = format!("NURI_BREAK={rule} cargo xtask test {name}");
    Ok(job.env("NURI_BREAK", rule))
}

/// Builds the tests and breaks all rules whose names contain `only`.
pub(crate) fn run(only: &str) -> Result<(), String> {
    let programs = programs::build(&[])?;
    let mut jobs = jobs(&programs)?;
    jobs.retain(|job| job.name.contains(only));
    let (start, count) = (Instant::now(), jobs.len());
    let mut done = 0;
    let ended = Pool::new(&logs()).run(jobs, |ended| {
        done += 1;
        tell_end(ended, start.elapsed(), (done, count));
    });
    verdict(&ended)
}

/// Rules that the code asks for and the list lacks, or the other way round; for `tidy`.
pub(crate) fn unlisted<'a>(sources: impl Iterator<Item = &'a str>) -> Result<Vec<String>, String> {
    let listed: BTreeSet<String> = list()?.into_iter().map(|line| line.rule).collect();
    let asked: BTreeSet<String> = sources.flat_map(asked).collect();
    let lacking = asked.difference(&listed).map(|rule| format!("{LIST} lacks the rule {rule}"));
    let unknown = listed.difference(&asked).map(|rule| format!("{LIST}: no code asks for {rule}"));
    Ok(lacking.chain(unknown).collect())
}

/// Rules that code asks for: `broken!("...")` outside comments.
fn asked(source: &str) -> Vec<String> {
    let code = source.lines().filter(|line| !line.trim_start().starts_with("//"));
    let rules = |line: &str| {
        let parts: Vec<&str> = line.split("broken!(\"").skip(1).collect();
        let name = |part: &&str| Some(part.split_once('"')?.0.to_string());
        parts.iter().filter_map(name).collect::<Vec<_>>()
    };
    code.flat_map(rules).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_found_in_code_and_not_in_comments() {
        let code = "/// `broken!(\"told\")`\nif broken!(\"a\") || broken!(\"b\") {}\n";
        assert_eq!(asked(code), ["a", "b"]);
    }

    #[test]
    fn the_list_is_whole() {
        assert!(list().unwrap().iter().any(|line| line.rule == "ack_before_log"));
    }
}
