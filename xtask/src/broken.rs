//! Builds that break one rule each: their test must fail. And the fuzz targets.
//!
//! `docs/broken-builds.txt` lists flag, crate and test filter.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::shell::{root, run as run_command, todays_share};

const LIST: &str = "docs/broken-builds.txt";
/// Seconds for a build, and for a test.
const LONGEST: &str = "600";
/// What `timeout` answers then.
const TIMED_OUT: i32 = 124;

/// Runs every n-th flag of the list; which ones changes by the day. Begins none after `limit`.
pub(crate) fn run(every: usize, limit: Duration) -> Result<(), String> {
    let start = Instant::now();
    let text = std::fs::read_to_string(root().join(LIST)).map_err(|e| format!("{LIST}: {e}"))?;
    let lines = text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#'));
    let flags: Vec<Vec<&str>> = lines.map(|l| l.split_whitespace().collect()).collect();
    for line in todays_share(&flags, every) {
        if start.elapsed() > limit {
            println!("no time is left for {} and those after it", line[0]);
            break;
        }
        let [flag, package, filter, ..] = line.as_slice() else {
            return Err(format!("{LIST}: {line:?} is not: flag crate test"));
        };
        if passes(flag, package, filter)? {
            return Err(format!("the build broken by {flag} passes {package} {filter}"));
        }
        println!("{flag:<24} caught by {package} {filter}");
    }
    Ok(())
}

/// A compiler wrapper that sets the flag for our own crates only: dependencies stay built.
fn wrapper(flag: &str) -> Result<PathBuf, String> {
    let dir = root().join("target/broken");
    let path = dir.join(format!("rustc-{flag}"));
    let text = format!("#!/bin/sh\nexec \"$@\" --cfg 'nuri_break=\"{flag}\"'\n");
    let write = || -> std::io::Result<()> {
        std::fs::create_dir_all(&dir)?;
        std::fs::write(&path, text)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))
    };
    write().map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(path)
}

fn passes(flag: &str, package: &str, filter: &str) -> Result<bool, String> {
    let wrapper = wrapper(flag)?;
    let cargo = |more: &[&str]| {
        // It ends the whole group: a test that hangs is a process of its own.
        let mut command = Command::new("timeout");
        command
            .args(["-k", "5", LONGEST, "cargo", "test", "-q", "-p", package])
            .args(more)
            .arg(filter)
            .env("RUSTC_WORKSPACE_WRAPPER", &wrapper)
            .env("CARGO_TARGET_DIR", root().join("target/broken"))
            .current_dir(root())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.status().map_err(|e| format!("cargo: {e}"))
    };
    // A build that does not compile must not count as a caught rule.
    if !cargo(&["--no-run"])?.success() {
        return Err(format!("the build broken by {flag} does not compile"));
    }
    let outcome = cargo(&[])?;
    if outcome.code() == Some(TIMED_OUT) {
        return Err(format!("the build broken by {flag} hangs in {package} {filter}"));
    }
    Ok(outcome.success())
}

/// Runs all fuzz targets for a share of the seconds each.
pub(crate) fn fuzz(seconds: u64) -> Result<(), String> {
    let mut command = Command::new("bash");
    command.arg("fuzz/run.sh").arg(seconds.to_string());
    run_command(&mut command, Duration::from_secs(seconds + 600))
}
