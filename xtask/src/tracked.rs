//! What the repository holds: no files that a test or a hand left behind.

use std::process::Command;

use crate::shell::root;

/// Files right in the root. A directory needs no entry.
const IN_ROOT: &[&str] = &[
    ".gitignore",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE",
    "Makefile",
    "README.md",
    "SECURITY.md",
    "clippy.toml",
    "deny.toml",
    "rust-toolchain.toml",
    "rustfmt.toml",
];
/// Bytes of a file.
const LARGEST: u64 = 1 << 20;

/// Files that git keeps and should not.
pub(crate) fn strange() -> Result<Vec<String>, String> {
    let out = Command::new("git").args(["ls-files", "-z"]).current_dir(root()).output();
    let out = out.map_err(|e| format!("git ls-files: {e}"))?;
    if !out.status.success() {
        return Err(format!("git ls-files: {}", String::from_utf8_lossy(&out.stderr).trim()));
    }
    let names = String::from_utf8_lossy(&out.stdout);
    Ok(names.split('\0').filter(|name| !name.is_empty()).filter_map(why).collect())
}

fn why(name: &str) -> Option<String> {
    if !name.contains('/') && !IN_ROOT.contains(&name) {
        return Some(format!("{name}: not a file of the root (xtask/src/tracked.rs lists them)"));
    }
    let size = std::fs::metadata(root().join(name)).map_or(0, |meta| meta.len());
    (size > LARGEST).then(|| format!("{name}: {size} bytes; a repository is for sources"))
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_was_left_behind_is_named() {
        assert!(super::why("w2").unwrap().contains("root"));
        assert_eq!(super::why("Cargo.toml"), None);
        assert_eq!(super::why("docs/testing.md"), None);
    }
}
