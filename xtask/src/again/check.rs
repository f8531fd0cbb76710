//! `cargo xtask check`: what tells within minutes whether a change is sound: format, house rules,
//! clippy and unit tests, of the crates that changed and those that depend on them.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::ci::{Load, Pool, logs, programs, tell_end, verdict, whole};
use crate::shell::{cargo, root, run as call};
use crate::tidy;

const LONGEST: Duration = Duration::from_secs(900);
/// Its programs of tests need mounts and take long: `cargo xtask test` runs them by name.
const MOUNTS: &str = "nuri";

pub(crate) fn run(since: &str) -> Result<(), String> {
    let start = Instant::now();
    call(&mut cargo(&["fmt", "--all", "--check"]), LONGEST)?;
    tidy::run()?;
    let metadata = tidy::metadata()?;
    let packages = with_dependents(&changed(since)?, &dependencies(&metadata));
    if packages.is_empty() {
        println!("no crate changed since {since}: format and house rules are fine");
        return Ok(());
    }
    let names: Vec<&str> = packages.iter().map(String::as_str).collect();
    println!("crates: {}", names.join(", "));
    let mut clippy = cargo(&["clippy", "-q", "--all-targets"]);
    clippy.args(names.iter().flat_map(|name| ["-p", name]));
    call(clippy.args(["--", "-D", "warnings"]), LONGEST)?;
    let tests = tests_of(&metadata, &packages);
    let tests = tests.iter().flat_map(|name| ["--test", name]);
    let which: Vec<&str> = ["--lib", "--bins"].into_iter().chain(tests).collect();
    let programs = programs::build(&which)?;
    let is_asked = |p: &&programs::Program| !p.tests.is_empty() && packages.contains(&p.package);
    let own = programs.iter().filter(is_asked);
    let jobs: Vec<_> = own.map(|p| whole("unit tests", p).load(Load::Computes)).collect();
    let (count, mut done) = (jobs.len(), 0);
    let ended = Pool::new(&logs()).run(jobs, |ended| {
        done += 1;
        tell_end(ended, start.elapsed(), (done, count));
    });
    println!("checked in {:.1} minutes", start.elapsed().as_secs_f64() / 60.0);
    verdict(&ended)
}

/// Files that differ from a commit, or that git does not know yet.
fn changed(since: &str) -> Result<BTreeSet<String>, String> {
    let git = |args: &[&str]| {
        let out = Command::new("git").args(args).current_dir(root()).output();
        let out = out.map_err(|e| format!("git: {e}"))?;
        match out.status.success() {
            true => Ok(String::from_utf8_lossy(&out.stdout).into_owned()),
            false => Err(String::from_utf8_lossy(&out.stderr).into_owned()),
        }
    };
    let known = git(&["diff", "--name-only", since])?;
    let new = git(&["ls-files", "--others", "--exclude-standard"])?;
    Ok(known.lines().chain(new.lines()).filter_map(package_of).collect())
}

/// The crate that a file belongs to.
fn package_of(file: &str) -> Option<String> {
    match file.split('/').collect::<Vec<_>>()[..] {
        ["crates", name, _, ..] => Some(name.into()),
        ["xtask", _, ..] => Some("xtask".into()),
        _ => None,
    }
}

/// Of each of our crates, those of ours that it uses.
fn dependencies(metadata: &serde_json::Value) -> BTreeMap<String, BTreeSet<String>> {
    let own = tidy::packages(metadata).filter(|package| package["source"].is_null());
    let name = |value: &serde_json::Value| value["name"].as_str().unwrap_or_default().to_string();
    own.map(|package| {
        let all = package["dependencies"].as_array().into_iter().flatten();
        (name(package), all.map(name).collect())
    })
    .collect()
}

/// Programs of tests beside the crates' own code.
fn tests_of(metadata: &serde_json::Value, packages: &BTreeSet<String>) -> Vec<String> {
    let name = |value: &serde_json::Value| value["name"].as_str().unwrap_or_default().to_string();
    let asked = tidy::packages(metadata).filter(|package| {
        let name = name(package);
        package["source"].is_null() && name != MOUNTS && packages.contains(&name)
    });
    let targets = asked.flat_map(|package| package["targets"].as_array().into_iter().flatten());
    targets.filter(|target| target["kind"][0] == "test").map(name).collect()
}

/// The crates themselves and, again and again, whoever uses one of them.
fn with_dependents(
    changed: &BTreeSet<String>,
    uses: &BTreeMap<String, BTreeSet<String>>,
) -> BTreeSet<String> {
    let mut all = changed.clone();
    loop {
        let meets = |(_, used): &(&String, &BTreeSet<String>)| !used.is_disjoint(&all);
        let above: BTreeSet<String> = uses.iter().filter(meets).map(|(n, _)| n.clone()).collect();
        let before = all.len();
        all.extend(above);
        if all.len() == before {
            return all;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_uses_what_changed_is_checked_too() {
        let set = |names: &[&str]| names.iter().map(ToString::to_string).collect::<BTreeSet<_>>();
        let uses = [("a", set(&[])), ("b", set(&["a"])), ("c", set(&["b"])), ("d", set(&[]))];
        let uses = uses.map(|(name, used)| (name.to_string(), used)).into();
        assert_eq!(with_dependents(&set(&["a"]), &uses), set(&["a", "b", "c"]));
        assert_eq!(with_dependents(&set(&["d"]), &uses), set(&["d"]));
    }

    #[test]
    fn files_belong_to_crates() {
        assert_eq!(package_of("crates/nuri-kv/src/lib.rs").unwrap(), "nuri-kv");
        assert_eq!(package_of("xtask/src/main.rs").unwrap(), "xtask");
        assert_eq!(package_of("docs/testing.md"), None);
    }
}
