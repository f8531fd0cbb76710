//! Log files: where they are, and what may be in them.

mod line;
mod rotation;

use std::borrow::Cow;
use std::fs::{File, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nuri_proto::checksum::crc64;
use rustix::fs::OFlags;

pub(crate) use line::{LogOptions, begin, begin_command, pass_on};

use crate::{Failure, at};
use nuri_node::directory::private_dir;

/// Logs of mounts that no supervisor started, for root.
const DIR: &str = "/var/log/nuri";
/// Of a mount point in a log's name.
const LONGEST: usize = 80;

/// Opens a log for appending. What was put in its place by somebody else is not followed.
pub(crate) fn open(path: &Path) -> Result<File, Failure> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    let mut options = OpenOptions::new();
    let file = options.create(true).append(true).mode(0o600).custom_flags(flags).open(path);
    let file = file.map_err(at(format!("cannot open the log {}", path.display())))?;
    let is_file = file.metadata().is_ok_and(|meta| meta.is_file());
    let wrong = || Failure(format!("the log {} is no file: remove it", path.display()));
    is_file.then_some(file).ok_or_else(wrong)
}

/// The log of a mount that no supervisor started.
pub(crate) fn of_mount(point: &Path) -> Result<PathBuf, Failure> {
    let user = rustix::process::geteuid();
    let dir = match std::env::var_os("XDG_RUNTIME_DIR").filter(|_| !user.is_root()) {
        Some(run) => Path::new(&run).join("nuri"),
        None => PathBuf::from(DIR),
    };
    private_dir(&dir)?;
    let meta = std::fs::symlink_metadata(&dir).map_err(at(dir.display()))?;
    if !meta.is_dir() || meta.uid() != user.as_raw() {
        return Err(Failure(format!("{} is not this user's directory: remove it", dir.display())));
    }
    Ok(dir.join(name_of(point)))
}

/// What the process that wrote the log said last, beyond so many bytes, before it ended. A log
/// that is shorter was begun anew.
pub(crate) fn last_error(log: &Path, before: u64) -> Option<String> {
    let bytes = std::fs::read(log).unwrap_or_default();
    let new = bytes.get(before as usize..).unwrap_or(&bytes);
    let text = String::from_utf8_lossy(new).into_owned();
    text.lines().rev().find_map(line::error_in)
}

fn name_of(point: &Path) -> String {
    let bytes = point.as_os_str().as_bytes();
    let plain =
        |b: &u8| if b.is_ascii_alphanumeric() || b"._".contains(b) { *b as char } else { '-' };
    let tail = &bytes[bytes.len().saturating_sub(LONGEST)..];
    let name: String = tail.iter().map(plain).collect();
    // Different mount points have different logs.
    format!("mount{name}-{:08x}.log", crc64(bytes) as u32)
}

/// Control characters, which a terminal would obey, as what they are called in a program.
pub(crate) fn plain(text: &str) -> Cow<'_, str> {
    if !text.chars().any(char::is_control) {
        return text.into();
    }
    let escape = |c: char| match c.is_control() {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    };
    text.chars().map(escape).collect::<String>().into()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn control_characters_are_named() {
        assert_eq!(plain("a\tb\u{1b}[31m\n"), r"a\tb\u{1b}[31m\n");
        assert!(matches!(plain("plain ä"), Cow::Borrowed("plain ä")));
    }

    #[test]
    fn the_last_error_of_a_log_is_found() {
        let mut log = tempfile::NamedTempFile::new().unwrap();
        let line =
            |level: &str, said: &str| format!("2026-11-26T05:12:03Z {level} mount[7] {said}\n");
        let text = [line("ERROR", "old"), line("ERROR", "new [1] one"), line(" WARN", "more")];
        log.write_all(text.concat().as_bytes()).unwrap();
        let last = last_error(log.path(), text[0].len() as u64);
        assert_eq!(last.as_deref(), Some("new [1] one"));
        let all = text.concat().len() as u64;
        assert_eq!(last_error(log.path(), all), None);
        assert_eq!(last_error(log.path(), all + 1).as_deref(), Some("new [1] one"));
    }

    #[test]
    fn each_mount_point_has_a_log_of_its_own() {
        let names = ["/a/b", "/a-b", "/a\tb"].map(|point| name_of(Path::new(point)));
        assert!(names.iter().all(|name| name.starts_with("mount-a-b-")), "{names:?}");
        assert!(names[0] != names[1] && names[1] != names[2]);
        assert!(name_of(Path::new(&"x".repeat(4000))).len() < 200);
    }

    #[test]
    fn what_lies_in_the_way_of_a_log_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let [victim, log] = ["victim", "log"].map(|name| dir.path().join(name));
        std::fs::write(&victim, "dear").unwrap();
        std::os::unix::fs::symlink(&victim, &log).unwrap();
        assert!(open(&log).is_err());
        std::fs::remove_file(&log).unwrap();
        let fifo = rustix::fs::FileType::Fifo;
        let mode = rustix::fs::Mode::from_raw_mode(0o666);
        rustix::fs::mknodat(rustix::fs::CWD, &log, fifo, mode, 0).unwrap();
        assert!(open(&log).is_err(), "and does not wait for a reader");
        std::fs::remove_file(&log).unwrap();
        assert_eq!(open(&log).unwrap().metadata().unwrap().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read(&victim).unwrap(), b"dear");
    }
}
