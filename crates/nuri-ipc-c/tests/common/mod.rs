//! What the tests of C programs share.

#![allow(clippy::unwrap_used, dead_code)]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Where cargo leaves the libraries.
pub(crate) fn deps() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_owned()
}

/// The static library, as built last.
pub(crate) fn newest_archive() -> PathBuf {
    let files = std::fs::read_dir(deps()).unwrap().map(|entry| entry.unwrap());
    let is_it = |name: &str| name.starts_with("libnuri_ipc_c") && name.ends_with(".a");
    let found = files.filter(|entry| entry.file_name().to_str().is_some_and(is_it));
    found.max_by_key(|entry| entry.metadata().unwrap().modified().unwrap()).unwrap().path()
}

/// Makes a directory one that sessions may lie in.
pub(crate) fn make_private(dir: &Path) {
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o700)).unwrap();
}
