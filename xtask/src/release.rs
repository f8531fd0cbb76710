//! A release keeps every rule: nothing in it can be told to break one.

use std::path::Path;
use std::time::Duration;

use crate::shell::{cargo, run, target};

/// The environment variables that break a rule, and that stop threads, in a build for tests.
const VARIABLES: [&[u8]; 2] = [b"NURI_BREAK", b"NURI_PAUSE"];

/// Fails where a program or a library reads one of them.
pub(crate) fn check(path: &Path) -> Result<(), String> {
    let bytes = std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let reads = |name: &&[u8]| bytes.windows(name.len()).any(|window| window == *name);
    match VARIABLES.iter().any(reads) {
        true => Err(format!("{}: it can be told to break rules: no release", path.display())),
        false => Ok(()),
    }
}

/// `cargo xtask release-check`: that the check finds the variable in a program for tests and not
/// in a release, with the smallest thing that is released and has such a rule.
pub(crate) fn run_check() -> Result<(), String> {
    let build = ["build", "--release", "-q", "-p", "nuri-ipc-c"];
    run(&mut cargo(&build), Duration::from_secs(900))?;
    check(&target().join("release/libnuri_ipc_c.so"))?;
    // In a release the macro is `false` for the compiler; this is asserted when it is compiled.
    let rules = ["build", "--release", "-q", "-p", "nuri-rules"];
    run(&mut cargo(&rules), Duration::from_secs(300))?;
    match check(&target().join("debug/nuri")) {
        Err(_) => Ok(()),
        Ok(()) => Err("the build for tests breaks no rules: the check sees nothing".into()),
    }
}
