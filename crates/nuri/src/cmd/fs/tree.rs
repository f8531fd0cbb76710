//! All regular files of a tree on one file system, told to a command one by one.

use std::fs::Metadata;
use std::io::IsTerminal;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::{Failure, at};

const TELL_EVERY: Duration = Duration::from_secs(1);

/// What came of a walk.
pub(super) struct Walked {
    pub(super) files: u64,
    /// Directories that could not be listed, and files of which the visitor knows nothing, why.
    pub(super) unknown: Vec<String>,
}

/// Visits the files at or below `root`. How far it is, is told to who sits there.
pub(super) fn walk(
    root: &Path,
    mut visit: impl FnMut(&Path, &Metadata) -> Result<(), String>,
) -> Result<Walked, Failure> {
    let device = root.symlink_metadata().map_err(at(root.display()))?.dev();
    let mut walked = Walked { files: 0, unknown: Vec::new() };
    let mut told = Instant::now();
    let mut left = vec![root.to_owned()];
    while let Some(path) = left.pop() {
        let mut look = || -> Result<(), String> {
            let meta = path.symlink_metadata().map_err(|e| e.to_string())?;
            if meta.dev() == device && meta.is_dir() {
                left.extend(entries(&path)?);
            } else if meta.dev() == device && meta.is_file() {
                walked.files += 1;
                visit(&path, &meta)?;
            }
            Ok(())
        };
        if let Err(why) = look() {
            walked.unknown.push(format!("{}: {why}", path.display()));
        }
        if told.elapsed() > TELL_EVERY && std::io::stderr().is_terminal() {
            told = Instant::now();
            eprint!("\r{} files looked at ", walked.files);
        }
    }
    Ok(walked)
}

fn entries(dir: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = dir.read_dir().map_err(|e| e.to_string())?;
    entries.map(|entry| entry.map(|entry| entry.path()).map_err(|e| e.to_string())).collect()
}
