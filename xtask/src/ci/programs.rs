//! The test programs of the workspace: built once, in one profile, and asked for their tests.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::shell::{cargo, root};

/// A program that holds tests of a crate.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) package: String,
    /// Of the program: `it`, `nuri_meta`.
    pub(crate) target: String,
    pub(crate) path: PathBuf,
    /// Where cargo would run it.
    pub(crate) dir: PathBuf,
    pub(crate) tests: Vec<String>,
}

/// Builds the workspace's test programs, or those of them that the arguments choose; cargo's own
/// words are shown. Always of the whole workspace: another choice of packages would be another
/// choice of features, and build all dependencies once more.
pub(crate) fn build(which: &[&str]) -> Result<Vec<Program>, String> {
    let mut command = cargo(&["test", "--workspace", "--no-run", "--locked", "--message-format"]);
    command.arg("json-render-diagnostics").args(which);
    let command = command.current_dir(root()).stdin(Stdio::null()).stderr(Stdio::inherit());
    let out = command.output().map_err(|e| format!("cannot run cargo: {e}"))?;
    if !out.status.success() {
        return Err(format!("the tests do not build: {}", out.status));
    }
    if which.is_empty() {
        // The laboratory's program has no tests: it is not built for them.
        crate::shell::build(crate::shell::Build::Tests)?;
    }
    let mut programs = Vec::new();
    for line in String::from_utf8_lossy(&out.stdout).lines() {
        if let Some(program) = serde_json::from_str(line).ok().as_ref().and_then(program) {
            programs.push(Program { tests: list(&program.path)?, ..program });
        }
    }
    programs.sort_by(|a, b| (&a.package, &a.target).cmp(&(&b.package, &b.target)));
    Ok(programs)
}

/// From cargo's message about something that it built.
fn program(message: &Value) -> Option<Program> {
    let executable = message["executable"].as_str()?;
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let dir = PathBuf::from(message["manifest_path"].as_str()?).parent()?.to_path_buf();
    let package = dir.file_name()?.to_str()?.to_string();
    let target = message["target"]["name"].as_str()?.to_string();
    Some(Program { package, target, path: executable.into(), dir, tests: Vec::new() })
}

fn list(program: &PathBuf) -> Result<Vec<String>, String> {
    let out = Command::new(program).args(["--list", "--format", "terse"]).output();
    let out = out.map_err(|e| format!("{}: {e}", program.display()))?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(String::from).collect())
}

/// Tests of which the name contains `part`, as `program module::name`.
pub(crate) fn find<'a>(programs: &'a [Program], part: &str) -> Vec<(&'a Program, &'a str)> {
    let all = programs.iter().flat_map(|p| p.tests.iter().map(move |test| (p, test.as_str())));
    all.filter(|(_, test)| test.contains(part)).collect()
}

/// Whole names of the tests in a source file that measure time: those that call `timed(`. They
/// run alone, so that nothing beside them makes them slow.
pub(crate) fn measuring(module: &str, source: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut current = None;
    for line in source.lines() {
        let name = line.strip_prefix("fn ").and_then(|rest| rest.split_once('('));
        if let Some((name, _)) = name {
            current = Some(name);
        }
        if line.contains("timed(") && line.starts_with(' ') {
            found.extend(current.take().map(|name| format!("{module}::{name}")));
        }
    }
    found
}

/// Of a package's program whose modules are files beside its `main.rs`.
pub(crate) fn all_measuring(dir: &str) -> Result<Vec<String>, String> {
    let dir = root().join(dir);
    let entries = std::fs::read_dir(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let mut found = BTreeMap::new();
    for path in entries.flatten().map(|entry| entry.path()) {
        let module = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        found.insert(module.clone(), measuring(&module, &text));
    }
    Ok(found.into_values().flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_that_measure_time_are_found_in_their_source() {
        let source = "#[test]\nfn quick() {\n    a();\n}\n\n#[test]\nfn slow() {\n    timed(|| {\n\
                      \x20   });\n    timed(b);\n}\nfn timed(test: impl Fn()) {\n}\n";
        assert_eq!(measuring("locks", source), ["locks::slow"]);
        let there = all_measuring("crates/nuri/tests/it").unwrap();
        assert!(there.iter().any(|name| name.starts_with("locks::")), "{there:?}");
    }

    #[test]
    fn programs_are_read_from_cargos_messages() {
        let message = serde_json::json!({
            "reason": "compiler-artifact",
            "manifest_path": "/w/crates/nuri-kv/Cargo.toml",
            "target": { "name": "nuri_kv" },
            "profile": { "test": true },
            "executable": "/w/target/debug/deps/nuri_kv-1",
        });
        let program = program(&message).unwrap();
        assert_eq!((program.package.as_str(), program.target.as_str()), ("nuri-kv", "nuri_kv"));
        assert_eq!(program.dir, PathBuf::from("/w/crates/nuri-kv"));
        let mut library = message.clone();
        library["profile"]["test"] = false.into();
        assert!(super::program(&library).is_none());
    }
}
