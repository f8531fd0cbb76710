//! `cargo xtask test NAME`: finds tests by a part of their names and runs them alone.

use std::process::{Command, Stdio};

use crate::ci::programs::{self, find};

pub(crate) fn run(part: &str) -> Result<(), String> {
    let programs = programs::build(&[])?;
    let found = find(&programs, part);
    if found.is_empty() {
        return Err(format!("no test has {part:?} in its name"));
    }
    let mut failed = Vec::new();
    for (program, test) in &found {
        println!("\n== {} {} {test}", program.package, program.target);
        let mut command = Command::new(&program.path);
        command.args(["--exact", test, "--nocapture"]).current_dir(&program.dir);
        let status = command.stdin(Stdio::null()).status();
        let status = status.map_err(|e| format!("{}: {e}", program.path.display()))?;
        if !status.success() {
            failed.push(*test);
        }
    }
    println!("\n{} passed, {} failed", found.len() - failed.len(), failed.len());
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", "))) }
}
