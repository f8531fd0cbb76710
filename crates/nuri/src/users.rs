//! Finds in `/proc` which processes use a mount, and which process serves it. Also unmounts a mount
//! that no process uses.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use clap::Parser;
use nuri_fuse::mount::{MountError, unmount};

use crate::cli::{Cli, Command, Fs, Mount};

/// Processes that a message names.
const NAMED: usize = 8;
/// How long a mount may be in use while nobody can be named who uses it.
const PASSING: Duration = Duration::from_secs(3);

/// Unmounts. Where it is in use and no process has anything open there, somebody looks at it just
/// now (`df`, a monitor, its own daemon): that passes.
///
/// # Errors
/// As [`unmount`].
pub(crate) fn unmount_unused(point: &Path) -> Result<(), MountError> {
    let start = Instant::now();
    loop {
        let outcome = unmount(point);
        let is_busy = matches!(outcome, Err(MountError::Busy(_)));
        if !is_busy || start.elapsed() > PASSING || processes().any(|pid| uses(pid, point)) {
            return outcome;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Processes with something open below the mount point, for people.
pub(crate) fn of(point: &Path) -> String {
    let mut names: Vec<_> = processes().filter(|pid| uses(*pid, point)).map(name).collect();
    let more = names.len().saturating_sub(NAMED);
    names.truncate(NAMED);
    match (names.is_empty(), more) {
        (true, _) => "programs of another container or a mount below it".into(),
        (_, 0) => names.join(", "),
        (_, more) => format!("{} and {more} more", names.join(", ")),
    }
}

fn processes() -> impl Iterator<Item = u32> {
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn name(pid: u32) -> String {
    let name = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    format!("{} ({pid})", String::from_utf8_lossy(&name).trim())
}

/// The links' texts are compared: nothing on the mount is touched.
fn uses(pid: u32, point: &Path) -> bool {
    let is_below = |link: &Path| std::fs::read_link(link).is_ok_and(|to| to.starts_with(point));
    let process = Path::new("/proc").join(pid.to_string());
    let files = |dir: &str| std::fs::read_dir(process.join(dir)).into_iter().flatten().flatten();
    ["cwd", "root", "exe"].iter().any(|name| is_below(&process.join(name)))
        || files("fd").chain(files("map_files")).any(|file| is_below(&file.path()))
}

/// The process that serves a mount point, and what it was told.
pub(crate) fn mount_of(point: &Path) -> Option<(u32, Mount)> {
    let own = mounts_of("self");
    // In another container the same path is another place.
    let sees_it = |pid: &u32| own.is_none() || mounts_of(&pid.to_string()) == own;
    let serves = |pid: u32| {
        let mount = told(pid).filter(|mount| mount.foreground && mount.mountpoint == point)?;
        Some((pid, mount))
    };
    processes().filter(sees_it).find_map(serves)
}

/// What a process was told, if it is a mount.
fn told(pid: u32) -> Option<Mount> {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let line = line.strip_suffix(&[0]).unwrap_or(&line);
    let words: Vec<_> = line.split(|b| *b == 0).map(OsStr::from_bytes).collect();
    if words.get(1..3) != Some(&["fs".as_ref(), "mount".as_ref()]) {
        return None;
    }
    let Cli { command: Command::Fs(Fs::Mount(mount)), .. } = Cli::try_parse_from(words).ok()?
    else {
        return None;
    };
    Some(mount.said_in(&std::fs::read_link(format!("/proc/{pid}/cwd")).ok()?))
}

/// Names the mounts that a process sees.
fn mounts_of(pid: &str) -> Option<std::path::PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/ns/mnt")).ok()
}

/// Waits until a process has ended with all its threads. Returns whether it did.
pub(crate) fn wait_ended(pid: u32, at_most: Duration) -> bool {
    let start = Instant::now();
    loop {
        let stat = std::fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
        let stat = String::from_utf8_lossy(&stat);
        let state = stat.rsplit(')').next().unwrap_or_default().trim_start().chars().next();
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
        // One that nobody waited for is a zombie; so is one whose other threads still end.
        if matches!(state, None | Some('X')) || state == Some('Z') && threads <= 1 {
            return true;
        }
        if start.elapsed() > at_most {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
