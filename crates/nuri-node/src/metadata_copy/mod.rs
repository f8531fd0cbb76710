//! Copies of the metadata on other nodes: which node sends them, which nodes keep them, and in
//! which files.
//!
//! [`copier`] runs on the first node, [`keeper`] on every node, and [`restore`] where the first
//! node's disk was lost.
//!
//! A copy is a directory `meta-copy.GENERATION` in the keeper's node directory. `whole.json` in it
//! says that the copy is whole. Without that file the copy is half made and never used.

pub mod copier;
pub mod keeper;
pub mod restore;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::directory::load_json;
use crate::failure::{Failure, at};

pub const FORMAT: u32 = 1;
/// Generations rise by one with each copy that is begun: none reaches this.
const LAST_GENERATION: u64 = 1 << 48;
const PREFIX: &str = "meta-copy.";
pub const WHOLE: &str = "whole.json";

/// `whole.json`: whose metadata it is, and since when the copy is whole.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Whole {
    pub format: u32,
    /// Cluster id, hexadecimal.
    pub cluster: String,
    pub generation: u64,
    /// The first node and its address.
    pub node: u32,
    pub address: String,
    /// Seconds since 1970.
    pub since: u64,
}

/// A copy in some node's directory.
#[derive(Clone, Debug)]
pub struct Found {
    pub generation: u64,
    pub path: PathBuf,
    /// `None`: half made.
    pub whole: Option<Whole>,
}

fn copy_path(dir: &Path, generation: u64) -> PathBuf {
    dir.join(format!("{PREFIX}{generation}"))
}

/// All copies in a node's directory.
pub fn copies(dir: &Path) -> Result<Vec<Found>, Failure> {
    let entries = std::fs::read_dir(dir).map_err(at(format!("cannot read {}", dir.display())))?;
    let paths = entries.flatten().map(|entry| entry.path());
    paths.filter_map(|path| copy_at(&path).transpose()).collect()
}

/// The copy that this directory is, if it is one.
pub fn copy_at(path: &Path) -> Result<Option<Found>, Failure> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let Some(generation) = name.strip_prefix(PREFIX).and_then(|n| n.parse().ok()) else {
        return Ok(None);
    };
    let whole: Option<Whole> = load_json(&path.join(WHOLE))?;
    if let Some(whole) = &whole
        && (whole.format, whole.generation) != (FORMAT, generation)
    {
        let (path, format, known) = (path.display(), whole.format, FORMAT);
        return Err(Failure(format!(
            "{path}/{WHOLE} has format {format} and generation {}, expected {known} and \
             {generation}",
            whole.generation
        )));
    }
    Ok(Some(Found { generation, path: path.to_owned(), whole }))
}
