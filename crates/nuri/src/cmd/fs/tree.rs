//! All regular files of a tree on one file system, told to a command one by one.

use std::fs::Metadata;
use std::io::{self, IsTerminal};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::{Failure, at};

const TELL_EVERY: Duration = Duration::from_secs(1);

/// What came of a walk, with errors of the visitor.
pub(super) struct Walked<E> {
    pub(super) files: u64,
    /// Directories that could not be listed, and files that the visitor could not judge.
    pub(super) unknown: Vec<Unknown<E>>,
}

/// A path that a walk could not see or that its visitor could not judge, and why.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", path.display())]
pub(super) struct Unknown<E> {
    path: PathBuf,
    source: E,
}

/// Visits the files at or below `root`. How far it is, is told to who sits there.
pub(super) fn walk<E: From<io::Error>>(
    root: &Path,
    mut visit: impl FnMut(&Path, &Metadata) -> Result<(), E>,
) -> Result<Walked<E>, Failure> {
    let device = root.symlink_metadata().map_err(at(root.display()))?.dev();
    let mut walked = Walked { files: 0, unknown: Vec::new() };
    let mut told = Instant::now();
    let mut left = vec![root.to_owned()];
    while let Some(path) = left.pop() {
        let mut look = || -> Result<(), E> {
            let meta = path.symlink_metadata()?;
            if meta.dev() == device && meta.is_dir() {
                left.extend(entries(&path)?);
            } else if meta.dev() == device && meta.is_file() {
                walked.files += 1;
                visit(&path, &meta)?;
            }
            Ok(())
        };
        if let Err(source) = look() {
            walked.unknown.push(Unknown { path, source });
        }
        if told.elapsed() > TELL_EVERY && io::stderr().is_terminal() {
            told = Instant::now();
            eprint!("\r{} files looked at ", walked.files);
        }
    }
    Ok(walked)
}

fn entries(dir: &Path) -> io::Result<Vec<PathBuf>> {
    dir.read_dir()?.map(|entry| entry.map(|entry| entry.path())).collect()
}
