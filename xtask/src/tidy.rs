//! House rules that a program can check.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell::root;
use crate::{broken, circles, named_files, quoted, retired, tracked};

const MAX_LINE: usize = 100;
const MAX_FUNCTION: usize = 70;
const MAX_FILE: usize = 600;

/// Row of each crate: dependencies look down only.
const ROWS: &[(&str, u8)] = &[
    ("nuri-rules", 0),
    ("nuri-proto", 0),
    ("nuri-stripe", 0),
    ("nuri-watch", 1),
    ("nuri-netns", 1),
    ("nuri-io", 1),
    ("nuri-ipc", 1),
    ("nuri-rpc", 1),
    ("nuri-kv", 1),
    ("nuri-ipc-c", 2),
    ("nuri-cluster", 2),
    ("nuri-volume", 2),
    ("nuri-target", 3),
    ("nuri-meta", 3),
    ("nuri-client", 4),
    ("nuri-node", 5),
    ("nuri-fuse", 5),
    ("nuri-nbd", 5),
    ("nuri-nfs", 5),
    ("nuri-lab", 6),
    ("nuri", 6),
    ("nuri-sim", 6),
    ("xtask", 6),
];

/// Inside a row these may look sideways.
const SIDEWAYS: &[(&str, &str)] = &[
    ("nuri-proto", "nuri-rules"),
    ("nuri-stripe", "nuri-rules"),
    ("nuri-stripe", "nuri-proto"),
    ("nuri-rpc", "nuri-io"),
    ("nuri-rpc", "nuri-ipc"),
    ("nuri-kv", "nuri-io"),
];

/// Crates that must not see services: they meet them only in the lower rows.
const STRANGERS: &[(&str, &[&str])] = &[
    ("nuri-volume", &["nuri-cluster"]),
    ("nuri-client", &["nuri-target", "nuri-meta"]),
    ("nuri-fuse", &["nuri-target", "nuri-meta"]),
    ("nuri-nbd", &["nuri-target", "nuri-meta"]),
    ("nuri-nfs", &["nuri-target", "nuri-meta"]),
    ("nuri-target", &["nuri-meta"]),
    ("nuri-meta", &["nuri-target"]),
];

/// Files that may hold unsafe code.
const UNSAFE_FILES: &[&str] = &[
    "crates/nuri-io/src/announce.rs",
    "crates/nuri-io/src/buf.rs",
    "crates/nuri-io/src/daemon.rs",
    "crates/nuri-io/src/tcp.rs",
    "crates/nuri-io/src/uring.rs",
    "crates/nuri-ipc-c/src/lib.rs",
    "crates/nuri-ipc-c/src/window.rs",
    "crates/nuri-ipc/examples/ipc_bench.rs",
    "crates/nuri-ipc/src/cma.rs",
    "crates/nuri-ipc/src/copy.rs",
    "crates/nuri-ipc/src/endpoint.rs",
    "crates/nuri-ipc/src/engine/tests.rs",
    "crates/nuri-ipc/src/heap.rs",
    "crates/nuri-ipc/src/lent_pages.rs",
    "crates/nuri-ipc/src/region.rs",
    "crates/nuri-ipc/src/ring/tests.rs",
    "crates/nuri-ipc/src/span.rs",
    "crates/nuri-fuse/src/transport/device.rs",
    "crates/nuri-fuse/src/transport/ring_entry.rs",
];

const LICENCES: &[&str] = &[
    "Apache-2.0",
    "MIT",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "Zlib",
    "Unicode-3.0",
    "Unlicense",
    "CC0-1.0",
    "0BSD",
    "BSL-1.0",
    "Apache-2.0 WITH LLVM-exception",
    "NCSA",
];

/// Checks everything; lists every breach.
pub(crate) fn run() -> Result<(), String> {
    let mut found = Vec::new();
    let metadata = metadata()?;
    check_layers(&metadata, &mut found);
    check_licences(&metadata, &mut found);
    let mut texts = Vec::new();
    for path in sources()? {
        let text =
            std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let name = path.strip_prefix(root()).unwrap_or(&path).display().to_string();
        check_file(&name, &text, &mut found);
        texts.push((name, text));
    }
    found.extend(tracked::strange()?);
    found.extend(circles::too_large(&texts));
    found.extend(named_files::missing(&texts)?);
    found.extend(named_files::unreached(&texts));
    found.extend(retired::used(&texts)?);
    // The automation itself only writes about rules.
    let of_crates = texts.iter().filter(|(name, _)| name.starts_with("crates/"));
    found.extend(broken::unlisted(of_crates.map(|(_, text)| text.as_str()))?);
    let of_crates = texts.iter().filter(|(name, _)| name.starts_with("crates/"));
    found.extend(quoted::unknown(of_crates.map(|(_, text)| text.as_str()))?);
    if found.is_empty() { Ok(()) } else { Err(format!("tidy:\n{}", found.join("\n"))) }
}

pub(crate) fn metadata() -> Result<serde_json::Value, String> {
    let args = ["metadata", "--format-version", "1", "--locked"];
    let out = Command::new("cargo").args(args).current_dir(root()).output();
    let out = out.map_err(|e| format!("cargo metadata: {e}"))?;
    if !out.status.success() {
        return Err(String::from_utf8_lossy(&out.stderr).into_owned());
    }
    serde_json::from_slice(&out.stdout).map_err(|e| e.to_string())
}

pub(crate) fn packages(metadata: &serde_json::Value) -> impl Iterator<Item = &serde_json::Value> {
    metadata["packages"].as_array().into_iter().flatten()
}

fn check_layers(metadata: &serde_json::Value, found: &mut Vec<String>) {
    let rows: BTreeMap<_, _> = ROWS.iter().copied().collect();
    for package in packages(metadata).filter(|p| p["source"].is_null()) {
        let name = package["name"].as_str().unwrap_or_default();
        let Some(row) = rows.get(name) else {
            found.push(format!("{name}: no row; add it to xtask/src/tidy.rs"));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let on = dependency["name"].as_str().unwrap_or_default();
            let Some(below) = rows.get(on) else { continue };
            let sideways = SIDEWAYS.contains(&(name, on));
            if below >= row && !sideways {
                found.push(format!("{name} (row {row}) depends on {on} (row {below})"));
            }
            if STRANGERS.iter().any(|(who, whom)| *who == name && whom.contains(&on)) {
                found.push(format!("{name} must not know {on}"));
            }
        }
    }
}

fn check_licences(metadata: &serde_json::Value, found: &mut Vec<String>) {
    for package in packages(metadata).filter(|p| !p["source"].is_null()) {
        let licence = package["license"].as_str().unwrap_or("none");
        let parts = licence.split(" OR ").flat_map(|l| l.split('/'));
        let clean = |l: &str| l.trim_matches(['(', ')', ' ']).to_string();
        let all_of = |l: &str| {
            let mut parts = l.split(" AND ").map(clean);
            parts.all(|p| LICENCES.contains(&p.as_str()))
        };
        if !parts.map(clean).any(|l| all_of(&l)) {
            let name = package["name"].as_str().unwrap_or_default();
            found.push(format!("{name}: licence {licence} is not on the list of deny.toml"));
        }
    }
}

fn sources() -> Result<Vec<PathBuf>, String> {
    let out = Command::new("git").args(["ls-files", "*.rs"]).current_dir(root()).output();
    let out = out.map_err(|e| format!("git ls-files: {e}"))?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let there = |name: &str| root().join(name);
    Ok(text.lines().map(there).filter(|p| p.exists()).collect())
}

fn is_test_file(name: &str) -> bool {
    let file = Path::new(name);
    name.contains("/tests/")
        || name.starts_with("fuzz/")
        || file.file_name().is_some_and(|f| f == "tests.rs")
}

fn check_file(name: &str, text: &str, found: &mut Vec<String>) {
    let lines: Vec<&str> = text.lines().collect();
    for (i, line) in lines.iter().enumerate().filter(|(_, l)| l.chars().count() > MAX_LINE) {
        found.push(format!("{name}:{}: {} columns", i + 1, line.chars().count()));
    }
    let code_end = lines.iter().position(|l| l.trim() == "#[cfg(test)]").unwrap_or(lines.len());
    let code = &lines[..code_end];
    if !is_test_file(name) {
        let length = code.iter().filter(|l| !l.trim().is_empty()).count();
        if length > MAX_FILE {
            found.push(format!("{name}: {length} lines without tests"));
        }
        if lines.first().is_none_or(|l| !l.starts_with("//!")) {
            found.push(format!("{name}: does not open with its duty (//! ...)"));
        }
        check_functions(name, code, found);
        check_errors(name, code, found);
    }
    let fenced = UNSAFE_FILES.contains(&name) || name.starts_with("fuzz/");
    let words = |l: &&str| {
        let l = l.trim_start();
        !l.starts_with("//")
            && (l.contains("unsafe {") || l.contains("unsafe impl") || l.contains("unsafe fn"))
    };
    if !fenced && name != "xtask/src/tidy.rs" && lines.iter().any(words) {
        found.push(format!("{name}: unsafe code outside its fence"));
    }
}

/// Errors are enums: text has no cause and cannot be matched. The automation's command lines may.
fn check_errors(name: &str, code: &[&str], found: &mut Vec<String>) {
    let is_text = |l: &str| l.contains("Result<") && l.contains(", String>");
    let lines = code.iter().enumerate().filter(|(_, l)| is_text(l));
    for (i, _) in lines.filter(|_| name.starts_with("crates/")) {
        found.push(format!("{name}:{}: an error that is only text", i + 1));
    }
}

/// Function lengths, by indentation: rustfmt puts the closing brace under the `fn`.
fn check_functions(name: &str, code: &[&str], found: &mut Vec<String>) {
    let is_fn = |l: &str| {
        let l = l.trim_start();
        ["fn ", "pub fn ", "pub(crate) fn ", "pub(super) fn "].iter().any(|p| l.starts_with(p))
    };
    // Of a trait's function without a body the head ends so.
    let has_body = |start: usize| {
        code[start..].iter().find(|l| l.ends_with(['{', ';'])).is_some_and(|l| l.ends_with('{'))
    };
    let functions = code.iter().enumerate().filter(|(start, l)| is_fn(l) && has_body(*start));
    for (start, line) in functions {
        let indent = line.len() - line.trim_start().len();
        let close = format!("{}}}", " ".repeat(indent));
        let end = code[start..].iter().position(|l| *l == close);
        let length = end.map_or(0, |e| e + 1);
        if length > MAX_FUNCTION {
            found.push(format!("{name}:{}: a function of {length} lines", start + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn breaches(name: &str, text: &str) -> Vec<String> {
        let mut found = Vec::new();
        check_file(name, text, &mut found);
        found
    }

    #[test]
    fn breaches_are_seen() {
        let long = format!("//! x\nfn f() {{\n{}}}\n", "    g();\n".repeat(80));
        assert!(breaches("crates/a/src/b.rs", &long)[0].contains("82 lines"));
        assert!(breaches("crates/a/src/b.rs", "fn f() {}\n")[0].contains("duty"));
        let wide = format!("//! {}\n", "x".repeat(120));
        assert!(breaches("crates/a/src/b.rs", &wide)[0].contains("columns"));
        let sharp = "//! x\nfn f() {\n    unsafe { g() }\n}\n";
        assert!(breaches("crates/a/src/b.rs", sharp)[0].contains("fence"));
        let text = "//! x\nfn f() -> Result<(), String> {}\n";
        assert!(breaches("crates/a/src/b.rs", text)[0].contains("only text"));
        assert!(breaches("xtask/src/b.rs", text).is_empty());
        assert!(breaches("crates/a/src/b.rs", "//! x\nfn f() {}\n").is_empty());
    }
}
