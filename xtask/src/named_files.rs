//! Source files that documents and comments name are there, and each is a module of its crate.

use std::path::Path;
use std::process::Command;

use crate::shell::root;

/// Folders of a crate that a path names a file in.
const FOLDERS: [&str; 3] = ["/src/", "/tests/", "/examples/"];

/// Says which named files are missing. `sources` are names and texts of all source files.
pub(crate) fn missing(sources: &[(String, String)]) -> Result<Vec<String>, String> {
    let out = Command::new("git").args(["ls-files", "*.md", "*.txt"]).current_dir(root()).output();
    let out = out.map_err(|e| format!("git ls-files: {e}"))?;
    let mut found = Vec::new();
    for name in String::from_utf8_lossy(&out.stdout).lines() {
        // History tells of files as they were.
        let is_history = name.starts_with("docs/notes/") || name == "CHANGELOG.md";
        if let Ok(text) = std::fs::read_to_string(root().join(name))
            && !is_history
        {
            found.extend(missing_of(name, &text));
            found.extend(unknown_of(name, &text, sources));
        }
    }
    for (name, text) in sources {
        found.extend(missing_of(name, text));
        // The automation has examples of names.
        if name.starts_with("crates/") {
            found.extend(unknown_of(name, text, sources));
        }
    }
    Ok(found)
}

fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Short names of source files, `file.rs` or `folder/file.rs`, that no file has.
fn unknown_of(name: &str, text: &str, sources: &[(String, String)]) -> Vec<String> {
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_/".contains(c);
    let is_short = |word: &&str| {
        let stem = word.strip_suffix(".rs");
        stem.is_some_and(|stem| !stem.is_empty() && stem.chars().all(is_part))
    };
    let has = |path: &str, word: &str| {
        path.strip_suffix(word).is_some_and(|front| front.is_empty() || front.ends_with('/'))
    };
    let is_unknown = |word: &&str| !sources.iter().any(|(path, _)| has(path, word));
    let words = quoted(text).filter(is_short).filter(is_unknown);
    words.map(|word| format!("{name}: no file is called {word}")).collect()
}

/// Says which sources of crates are named by no `mod`: nothing compiles or tests them.
pub(crate) fn unreached(sources: &[(String, String)]) -> Vec<String> {
    let text_of = |path: &str| sources.iter().find(|(name, _)| name == path).map(|(_, text)| text);
    let is_root = |file: &str| matches!(file, "lib.rs" | "main.rs" | "build.rs");
    let mut found = Vec::new();
    for (name, _) in sources.iter().filter(|(name, _)| name.contains("/src/")) {
        let Some((dir, file)) = name.rsplit_once('/') else { continue };
        let (dir, module) = match file.trim_end_matches(".rs") {
            "mod" => dir.rsplit_once('/').unwrap_or(("", dir)),
            stem => (dir, stem),
        };
        let fronts = ["/mod.rs", "/lib.rs", "/main.rs", ".rs"].map(|end| format!("{dir}{end}"));
        let names = |front: &String| {
            text_of(front).is_some_and(|text| text.contains(&format!("mod {module};")))
        };
        if !is_root(file) && !fronts.iter().any(names) {
            found.push(format!("{name}: no module names this file"));
        }
    }
    found
}

fn missing_of(name: &str, text: &str) -> Vec<String> {
    let is_there = |path: &str| {
        let root = root();
        root.join("crates").join(path).exists() || root.join(path).exists()
    };
    let all = quoted(text).flat_map(paths);
    let missing = all.filter(|path| !is_there(path));
    missing.map(|path| format!("{name}: there is no file {path}")).collect()
}

/// The files that a quoted word names: `crate/src/file.rs`, or `crate/src/{one,two}.rs`.
fn paths(word: &str) -> Vec<String> {
    let is_path = |c: char| c.is_ascii_alphanumeric() || "/._-{},".contains(c);
    let is_crate = word.starts_with("nuri") || word.starts_with("xtask");
    let names_file = is_crate && FOLDERS.iter().any(|folder| word.contains(folder));
    if !names_file || !word.chars().all(is_path) {
        return Vec::new();
    }
    let Some((front, rest)) = word.split_once('{') else {
        let is_file = Path::new(word).extension().is_some_and(|e| e == "rs") || word.ends_with('/');
        return if is_file { vec![word.to_string()] } else { Vec::new() };
    };
    let Some((names, back)) = rest.split_once('}') else { return Vec::new() };
    names.split(',').flat_map(|name| paths(&format!("{front}{name}{back}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_found_in_quotes() {
        let both = ["nuri-kv/src/a.rs", "nuri-kv/src/b/"].map(String::from);
        assert_eq!(paths("nuri-kv/src/{a.rs,b/}"), both);
        assert_eq!(paths("nuri-kv"), [""; 0]);
        assert_eq!(paths("nuri-kv/src/a.rs:12"), [""; 0]);
        let text = "see `xtask/src/named_files.rs`, not `nuri-kv/src/nowhere.rs`";
        assert_eq!(missing_of("x", text), ["x: there is no file nuri-kv/src/nowhere.rs"]);
    }

    #[test]
    fn short_names_are_names_of_files() {
        let sources = [("crates/a/src/b/c.rs".to_string(), String::new())];
        let unknown = |text: &str| unknown_of("x", text, &sources);
        assert_eq!(unknown("`c.rs`, `b/c.rs`, `src/b/c.rs`, `a-b.rs`, `.rs`"), [""; 0]);
        assert_eq!(unknown("see `bc.rs`"), ["x: no file is called bc.rs"]);
        assert_eq!(unknown("see `d/c.rs`"), ["x: no file is called d/c.rs"]);
    }

    #[test]
    fn a_file_that_no_module_names_is_found() {
        let file = |name: &str, text: &str| (format!("crates/a/src/{name}"), text.to_string());
        let mut sources = vec![
            file("lib.rs", "mod b;\nmod c;\n"),
            file("b.rs", ""),
            file("c/mod.rs", "pub(crate) mod d;\n"),
            file("c/d.rs", ""),
        ];
        assert_eq!(unreached(&sources), [""; 0]);
        sources.push(file("c/e.rs", ""));
        assert_eq!(unreached(&sources), ["crates/a/src/c/e.rs: no module names this file"]);
    }
}
