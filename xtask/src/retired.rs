//! Words that the glossary retired name no type and no file any more.

use std::path::Path;

use crate::shell::root;

const GLOSSARY: &str = "docs/glossary.md";
const SECTION: &str = "## Retired words";

/// Says which types and files have a retired name. `sources` are names and texts of all files.
pub(crate) fn used(sources: &[(String, String)]) -> Result<Vec<String>, String> {
    let text = std::fs::read_to_string(root().join(GLOSSARY));
    let text = text.map_err(|e| format!("{GLOSSARY}: {e}"))?;
    let words = words(&text);
    if words.is_empty() {
        return Err(format!("{GLOSSARY} has no words below {SECTION}"));
    }
    Ok(sources.iter().flat_map(|(name, text)| used_in(&words, name, text)).collect())
}

/// Retired words, and what is said instead.
fn words(text: &str) -> Vec<(&str, &str)> {
    let rows = text.split(SECTION).nth(1).unwrap_or_default().lines();
    let cells =
        rows.filter_map(|row| row.strip_prefix("| ")?.strip_suffix(" |")?.split_once(" | "));
    cells.filter(|(was, _)| *was != "Was").collect()
}

fn used_in(words: &[(&str, &str)], name: &str, text: &str) -> Vec<String> {
    let instead = |word: &str| words.iter().find(|(was, _)| *was == word).map(|(_, is)| *is);
    let stem = Path::new(name).file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let file = instead(stem).map(|is| format!("{name}: the word of this file is now {is}"));
    let types = text.lines().enumerate().filter_map(|(at, line)| {
        let mut parts = line.trim_start().split(' ').skip_while(|w| w.starts_with("pub"));
        let is_type = matches!(parts.next()?, "struct" | "enum" | "trait" | "type");
        let end = |c: char| !c.is_alphanumeric() && c != '_';
        let word = parts.next().filter(|_| is_type)?.split(end).next()?;
        instead(word).map(|is| format!("{name}:{}: {word} is now called {is}", at + 1))
    });
    file.into_iter().chain(types).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_and_files_with_retired_names_are_found() {
        let words = words("x\n\n## Retired words\n\n| Was | Is |\n|---|---|\n| Crew | Pool |\n");
        assert_eq!(words, [("Crew", "Pool")]);
        let text = "// struct Crew\npub(crate) struct Crew<T>(T);\nstruct Crews;\n";
        let found = used_in(&words, "a/Crew.rs", text);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[1].starts_with("a/Crew.rs:2: Crew is now called Pool"));
    }
}
