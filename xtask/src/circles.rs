//! Circles of imports inside a crate: files that can only be understood together.
//!
//! An edge goes from a file to each file of the crate that its `use` items and its `crate::` paths
//! name. Two kinds are left out: what tests name, and what a file names of its own folder's front
//! file (`mod.rs`), whose types its neighbours extend.

use std::collections::{BTreeMap, BTreeSet};

/// Files of a circle, at most.
const LARGEST: usize = 3;
/// Crates with larger circles, and how large they may be until they are cut. Never raise one.
const UNCUT: &[(&str, usize)] = &[];

/// Says which circles are too large. `texts` are names and contents of all source files.
pub(crate) fn too_large(texts: &[(String, String)]) -> Vec<String> {
    let mut crates: BTreeMap<&str, Vec<(String, &str)>> = BTreeMap::new();
    for (name, text) in texts {
        if let Some((owner, file)) = name.split_once("/src/")
            && !file.contains("tests")
        {
            crates.entry(owner).or_default().push((file.to_string(), text));
        }
    }
    let mut found = Vec::new();
    for (owner, files) in crates {
        let short = owner.strip_prefix("crates/").unwrap_or(owner);
        let most = UNCUT.iter().find(|(name, _)| *name == short).map_or(LARGEST, |(_, most)| *most);
        for circle in circles(&imports(&files)) {
            if circle.len() > most {
                let files: Vec<_> = circle.iter().copied().collect();
                found.push(format!(
                    "{owner}: {} files import each other in a circle, {most} may: {}",
                    files.len(),
                    files.join(" ")
                ));
            }
        }
    }
    found
}

/// Module path of a file: `a/b.rs` and `a/b/mod.rs` are `a::b`; the root is empty.
fn module(file: &str) -> String {
    let path = file.trim_end_matches(".rs");
    let path = path.strip_suffix("/mod").unwrap_or(path);
    if matches!(path, "lib" | "main") { String::new() } else { path.replace('/', "::") }
}

fn imports<'a>(files: &'a [(String, &str)]) -> BTreeMap<&'a str, BTreeSet<&'a str>> {
    let by_module: BTreeMap<String, &str> =
        files.iter().map(|(file, _)| (module(file), file.as_str())).collect();
    let mut all = BTreeMap::new();
    for (file, text) in files {
        let own = module(file);
        let parent = own.rsplit_once("::").map_or("", |(parent, _)| parent).to_string();
        let is_front = file.ends_with("mod.rs") || own.is_empty();
        let mut seen = BTreeSet::new();
        for path in paths(text, &own, &parent, is_front) {
            let mut path = path.as_str();
            let target = loop {
                match (by_module.get(path), path.rsplit_once("::")) {
                    (Some(target), _) => break Some(*target),
                    (None, Some((shorter, _))) => path = shorter,
                    (None, None) => break by_module.get("").copied(),
                }
            };
            let is_own_front = |target: &str| module(target) == parent && target != file;
            if let Some(target) = target.filter(|t| t != file && !is_own_front(t)) {
                seen.insert(target);
            }
        }
        all.insert(file.as_str(), seen);
    }
    all
}

/// Absolute module paths that a file names, `crate::` left off.
fn paths(text: &str, own: &str, parent: &str, is_front: bool) -> Vec<String> {
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let join = |base: &str, rest: &str| match (base, rest) {
        ("", rest) => rest.to_string(),
        (base, "") => base.to_string(),
        (base, rest) => format!("{base}::{rest}"),
    };
    let mut found = Vec::new();
    for item in uses(text) {
        for path in spread(&item) {
            if let Some(rest) = path.strip_prefix("crate::") {
                found.push(rest.to_string());
            } else if let Some(rest) = path.strip_prefix("super::") {
                let base = if let Some(rest) = rest.strip_prefix("super::") {
                    let above = parent.rsplit_once("::").map_or("", |(above, _)| above);
                    join(above, rest)
                } else {
                    join(parent, rest)
                };
                found.push(base);
            } else if is_front {
                // A module of its folder, or another crate, which no file has the name of.
                let path = path.strip_prefix("self::").unwrap_or(&path);
                let first = path.split("::").next().unwrap_or_default();
                if text.contains(&format!("mod {first};")) {
                    found.push(join(own, path));
                }
            }
        }
    }
    let code: Vec<_> = text.lines().map(|line| line.split("//").next().unwrap_or("")).collect();
    let text = code.join("\n");
    for (at, _) in text.match_indices("crate::") {
        let rest = &text[at + "crate::".len()..];
        let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
        let before = text[..at].chars().next_back().unwrap_or(' ');
        if !before.is_alphanumeric() && !matches!(before, '_' | '$' | '`' | '[') {
            let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
            // A list was taken as a `use` item.
            if end > 0 {
                found.push(rest[..end].trim_end_matches(':').to_string());
            }
        }
    }
    found
}

/// Texts of the `use` items, without the word and the semicolon.
fn uses(text: &str) -> Vec<String> {
    let mut items = Vec::new();
    let mut open: Option<String> = None;
    for line in text.lines() {
        let line = line.split("//").next().unwrap_or_default().trim();
        let begun = line.split_once("use ").filter(|(front, _)| {
            front.is_empty() || front.starts_with("pub") && front.ends_with(' ')
        });
        match (&mut open, begun) {
            (Some(item), _) => item.push_str(line),
            (None, Some((_, rest))) => open = Some(rest.to_string()),
            (None, None) => {}
        }
        if open.as_ref().is_some_and(|item| item.ends_with(';')) {
            let item = open.take().unwrap_or_default();
            items.push(item.trim_end_matches(';').to_string());
        }
    }
    items
}

/// `a::{b, c::{d}}` as `a::b` and `a::c::d`.
fn spread(item: &str) -> Vec<String> {
    let Some((front, rest)) = item.split_once('{') else {
        let path = item.split(" as ").next().unwrap_or_default();
        return vec![path.trim().trim_end_matches("::self").to_string()];
    };
    let inner = rest.strip_suffix('}').unwrap_or(rest);
    let (mut depth, mut start, mut parts) = (0, 0, Vec::new());
    for (at, c) in inner.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&inner[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&inner[start..]);
    let parts = parts.into_iter().map(str::trim).filter(|part| !part.is_empty());
    parts.flat_map(|part| spread(&format!("{}{part}", front.trim()))).collect()
}

/// Sets of files each of which reaches all others of its set.
fn circles<'a>(imports: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> Vec<BTreeSet<&'a str>> {
    let reach = |from: &'a str| {
        let (mut seen, mut todo) = (BTreeSet::new(), vec![from]);
        while let Some(file) = todo.pop() {
            for next in imports.get(file).into_iter().flatten() {
                if seen.insert(*next) {
                    todo.push(next);
                }
            }
        }
        seen
    };
    let reached: BTreeMap<_, _> = imports.keys().map(|file| (*file, reach(file))).collect();
    let mut circles = BTreeSet::new();
    for (file, seen) in &reached {
        if seen.contains(file) {
            let both = |other: &&&str| reached[*other].contains(file);
            circles.insert(seen.iter().filter(both).copied().collect::<BTreeSet<_>>());
        }
    }
    circles.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(files: &[(&str, &str)]) -> Vec<String> {
        let name = |file: &str| format!("crates/x/src/{file}");
        let texts: Vec<_> = files.iter().map(|(f, t)| (name(f), t.to_string())).collect();
        too_large(&texts)
    }

    #[test]
    fn a_circle_of_four_files_is_named() {
        let files = [
            ("a.rs", "use crate::b::B;\n"),
            ("b.rs", "use crate::{d, c::{self, C}};\n"),
            ("c.rs", "use crate::d::D;\n"),
            ("d.rs", "fn f() { crate::a::f() }\n"),
        ];
        let found = of(&files);
        assert!(found[0].contains("4 files") && found[0].ends_with("a.rs b.rs c.rs d.rs"));
        assert_eq!(of(&files[..3]), [""; 0], "no way back to the first");
        let test = ("d.rs", "#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n");
        assert_eq!(of(&[files[0], files[1], files[2], test]), [""; 0], "tests may");
    }

    #[test]
    fn a_folder_is_seen_through_its_front_file() {
        let files = [
            ("lib.rs", "mod f;\nmod g;\npub use f::F;\n"),
            ("f/mod.rs", "mod one;\nmod two;\nuse one::One;\n"),
            ("f/one.rs", "use super::F;\nuse super::two::Two;\n"),
            ("f/two.rs", "use super::super::g::G;\n"),
            ("g.rs", "use crate::f::F;\n"),
        ];
        let found = of(&files);
        assert!(found[0].ends_with("f/mod.rs f/one.rs f/two.rs g.rs"), "{found:?}");
        let apart = [files[0], files[1], files[2], files[3], ("g.rs", "pub struct G;\n")];
        assert_eq!(of(&apart), [""; 0], "neighbours may extend what the front file has");
    }
}
