//! Ratios against the local file system and a plain FUSE passthrough.

use std::path::Path;

pub(crate) fn run(_rounds: usize, _dir: &Path) -> Result<(), String> {
    Err("not written yet".into())
}
