//! Lines of logs that a document quotes are lines that the code prints.

use crate::shell::root;

const DOCUMENT: &str = "docs/operate/monitor.md";
const SECTION: &str = "## Logs";
/// Shorter pieces between placeholders say nothing.
const SHORTEST: usize = 7;

/// Names every quoted piece that no source has.
pub(crate) fn unknown<'t>(
    sources: impl Iterator<Item = &'t str> + Clone,
) -> Result<Vec<String>, String> {
    let text = std::fs::read_to_string(root().join(DOCUMENT));
    let text = text.map_err(|e| format!("{DOCUMENT}: {e}"))?;
    let quoted: Vec<String> = section(&text).flat_map(pieces).collect();
    if quoted.is_empty() {
        return Err(format!("{DOCUMENT} quotes no lines of logs below {SECTION}"));
    }
    let sources: Vec<String> = sources.map(joined).collect();
    let is_unknown = |piece: &&String| !sources.iter().any(|source| source.contains(&**piece));
    let say = |piece: &String| format!("{DOCUMENT}: nothing prints \"{piece}\"");
    Ok(quoted.iter().filter(is_unknown).map(say).collect())
}

/// First cells of the section's table.
fn section(text: &str) -> impl Iterator<Item = &str> {
    let from = text.split(SECTION).nth(1).unwrap_or_default();
    let until = from.split("\n## ").next().unwrap_or_default();
    let rows = until.lines().filter(|line| line.starts_with("| `"));
    rows.filter_map(|row| row.split('|').nth(1))
}

/// What stands between placeholders, of each line that a cell quotes: `...`, and capitals as `N`.
fn pieces(cell: &str) -> Vec<String> {
    let lines = cell.split('`').skip(1).step_by(2);
    let words = lines.flat_map(|line| line.split("..."));
    let is_placeholder = |word: &str| {
        let word = word.trim_matches(|c: char| !c.is_alphanumeric());
        !word.is_empty() && word.chars().all(|c| c.is_ascii_uppercase())
    };
    let mut out = Vec::new();
    for part in words {
        let mut piece = Vec::new();
        for word in part.split_whitespace() {
            if is_placeholder(word) {
                out.push(std::mem::take(&mut piece).join(" "));
            } else {
                piece.push(word);
            }
        }
        out.push(piece.join(" "));
    }
    out.retain(|piece| piece.len() >= SHORTEST);
    out
}

/// A source whose strings are not broken into lines.
fn joined(source: &str) -> String {
    let parts = source.split("\\\n").enumerate();
    parts.map(|(i, part)| if i == 0 { part } else { part.trim_start() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_what_stands_between_placeholders() {
        let cell = " `client: N bytes of inode I lost: ...`, `target ID has failed` ";
        assert_eq!(pieces(cell), ["client:", "bytes of inode", "has failed"].map(String::from));
        assert_eq!(joined("\"a \\\n     b\""), "\"a b\"");
    }

    #[test]
    fn the_table_is_found() {
        let text =
            "# T\n\n## Logs\n\n| Line | Means |\n|---|---|\n| `a b c` | x |\n\n## Next\n| `no` |";
        assert_eq!(section(text).collect::<Vec<_>>(), [" `a b c` "]);
    }
}
