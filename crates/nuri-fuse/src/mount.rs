//! Attaches and detaches a mount point.

use std::ffi::{CString, OsString};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use crate::protocol::limits::MAX_WRITE;
use crate::transport::device::Device;

/// Why a mount point cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    #[error("the mount point {0} cannot be made: {1}")]
    Missing(String, std::io::Error),
    #[error("the mount point {0} is not a directory")]
    NotDirectory(String),
    #[error("the mount point {0} is not empty; choose an empty directory")]
    NotEmpty(String),
    #[error("{0} holds a mount whose program died; run: nuri fs umount {0}")]
    Stale(String),
    #[error("{0} is mounted already")]
    Mounted(String),
    #[error("mounting needs root; run with sudo")]
    Rights,
    #[error("no FUSE here: cannot open /dev/fuse: {0}; load the module: modprobe fuse")]
    NoFuse(std::io::Error),
    #[error("the kernel refused to mount {0}: {1}")]
    Kernel(String, std::io::Error),
    #[error("{0} is in use; close the programs that work there (see: fuser -vm {0})")]
    Busy(String),
    #[error("{0} is not a mount point")]
    NotMounted(String),
}

/// Whether the directory can be a mount point.
///
/// # Errors
/// Says what is wrong and what to do.
pub fn check(point: &Path) -> Result<(), MountError> {
    let name = point.display().to_string();
    match std::fs::metadata(point) {
        Ok(meta) if !meta.is_dir() => return Err(MountError::NotDirectory(name)),
        Ok(meta) => {
            let parent = point.canonicalize().ok().and_then(|p| p.parent().map(Path::to_owned));
            let outside = parent.and_then(|p| std::fs::metadata(p).ok());
            if outside.is_some_and(|p| p.dev() != meta.dev()) && is_fuse(point) {
                return Err(MountError::Mounted(name));
            }
        }
        Err(e) if is_dead(&e) => return Err(MountError::Stale(name)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return Err(MountError::Missing(name, e));
        }
        Err(e) => return Err(MountError::Kernel(name, e)),
    }
    let mut entries = std::fs::read_dir(point).map_err(|e| MountError::Kernel(name.clone(), e))?;
    if entries.next().is_some() { Err(MountError::NotEmpty(name)) } else { Ok(()) }
}

/// Whether a mount's answer means that its program is gone. The latter two come while it dies:
/// its requests are taken back one by one.
pub fn is_dead(error: &std::io::Error) -> bool {
    let dead = [libc::ENOTCONN, libc::ECONNABORTED, libc::ECANCELED];
    error.raw_os_error().is_some_and(|e| dead.contains(&e))
}

fn is_fuse(point: &Path) -> bool {
    let Ok(real) = point.canonicalize() else {
        return false;
    };
    mounts().iter().any(|(at, kind)| *at == real && kind.starts_with("fuse"))
}

/// (mount point, type) of all mounts that this process sees.
pub fn mounts() -> Vec<(PathBuf, String)> {
    let kind = |kind: &[u8]| String::from_utf8_lossy(kind).into_owned();
    all_mounts().into_iter().map(|m| (m.point, kind(&m.kind))).collect()
}

/// Whether a mount of Nuri is there.
pub fn is_mounted(point: &Path) -> bool {
    mounts().iter().any(|(at, kind)| at == point && kind == "fuse.nuri")
}

/// A line of `/proc/self/mountinfo`.
struct Mounted {
    device: String,
    point: PathBuf,
    kind: Vec<u8>,
}

/// Names are bytes: any but zero and the slash may be in them.
fn all_mounts() -> Vec<Mounted> {
    let bytes = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    bytes.split(|b| *b == b'\n').filter_map(parse).collect()
}

/// `36 35 98:0 /root /point options optional... - type source options`
fn parse(line: &[u8]) -> Option<Mounted> {
    let words: Vec<_> = line.split(|b| *b == b' ').collect();
    let dash = words.iter().skip(6).position(|word| *word == b"-")? + 6;
    let device = String::from_utf8_lossy(words.get(2)?).into_owned();
    let point = PathBuf::from(OsString::from_vec(plain(words.get(4)?)));
    Some(Mounted { device, point, kind: words.get(dash + 1)?.to_vec() })
}

/// The kernel writes blanks and its own escape as a backslash and three octal digits.
fn plain(escaped: &[u8]) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::with_capacity(escaped.len()), escaped);
    while let [first, after @ ..] = rest {
        let digits = after.get(..3).filter(|d| d.iter().all(|b| (b'0'..=b'7').contains(b)));
        match digits {
            Some(digits) if *first == b'\\' => {
                let value = digits.iter().fold(0u32, |n, b| n * 8 + u32::from(b - b'0'));
                out.push(value as u8);
                rest = &after[3..];
            }
            _ => {
                out.push(*first);
                rest = after;
            }
        }
    }
    out
}

/// Makes a mount point that does not exist. Returns whether it did.
///
/// # Errors
/// Where it cannot be made.
pub fn make_point(point: &Path) -> Result<bool, MountError> {
    // A dead mount is there, and so is what cannot be looked at.
    let is_missing = |e: std::io::Error| {
        matches!(e.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory)
    };
    if !std::fs::symlink_metadata(point).is_err_and(is_missing) {
        return Ok(false);
    }
    let make = || {
        std::fs::create_dir_all(point)?;
        std::fs::set_permissions(point, std::fs::Permissions::from_mode(0o755))
    };
    make().map_err(|e| MountError::Missing(point.display().to_string(), e))?;
    Ok(true)
}

/// Whether programs may change anything through a mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Writes {
    Allowed,
    Refused,
}

/// Settings of a mount point.
#[derive(Clone, Copy, Debug)]
pub struct How {
    /// How far the kernel reads ahead.
    pub readahead_kib: u32,
    pub writes: Writes,
    /// Programs there may run with their owner's rights; device files there may be opened.
    pub suid: bool,
    pub dev: bool,
    /// Programs there may be started.
    pub exec: bool,
    /// Reads mark access times.
    pub atime: bool,
}

/// Mounts a new connection at `point` and sets how far the kernel reads ahead.
///
/// # Errors
/// Says what is wrong and what to do.
pub fn mount(point: &Path, source: &str, how: How) -> Result<Device, MountError> {
    check(point)?;
    let name = point.display().to_string();
    if !rustix::process::geteuid().is_root() {
        return Err(MountError::Rights);
    }
    let device = Device::open().map_err(MountError::NoFuse)?;
    let options = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions,max_read={}",
        device.raw(),
        MAX_WRITE
    );
    let options = CString::new(options).unwrap_or_default();
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RELATIME, how.atime);
    flags.set(MountFlags::NOATIME, !how.atime);
    flags.set(MountFlags::NOEXEC, !how.exec);
    flags.set(MountFlags::RDONLY, how.writes == Writes::Refused);
    flags.set(MountFlags::NOSUID, !how.suid);
    flags.set(MountFlags::NODEV, !how.dev);
    rustix::mount::mount(source, point, "fuse.nuri", flags, options.as_c_str()).map_err(
        |e| match e {
            Errno::PERM => MountError::Rights,
            e => MountError::Kernel(name, e.into()),
        },
    )?;
    if let Some(knob) = read_ahead_knob(point) {
        // Without it reading is slower, not wrong.
        let _ = std::fs::write(knob, how.readahead_kib.to_string());
    }
    Ok(device)
}

/// The file that says how far the kernel reads ahead on a mount, in KiB. stat would wait for INIT,
/// which nobody answers yet: the device number is in mountinfo.
pub(crate) fn read_ahead_knob(point: &Path) -> Option<PathBuf> {
    let number = device_number(point)?;
    Some(format!("/sys/class/bdi/{number}/read_ahead_kb").into())
}

fn device_number(point: &Path) -> Option<String> {
    all_mounts().into_iter().rfind(|mounted| mounted.point == point).map(|mounted| mounted.device)
}

/// Detaches a mount point; a dead one is detached lazily.
///
/// # Errors
/// Where it is in use or no mount point.
pub fn unmount(point: &Path) -> Result<(), MountError> {
    let name = point.display().to_string();
    match rustix::mount::unmount(point, UnmountFlags::empty()) {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => Err(MountError::Busy(name)),
        Err(Errno::INVAL | Errno::NOENT) => Err(MountError::NotMounted(name)),
        Err(Errno::PERM) => Err(MountError::Rights),
        Err(Errno::NOTCONN) => detach(point),
        Err(e) => Err(MountError::Kernel(name, e.into())),
    }
}

/// Ends a mount whose daemon is gone or will not finish: requests that wait fail, and so do all
/// that programs have open there.
///
/// # Errors
/// Where it is no mount point.
pub fn abort(point: &Path) -> Result<(), MountError> {
    rustix::mount::unmount(point, UnmountFlags::FORCE | UnmountFlags::DETACH)
        .map_err(|e| MountError::Kernel(point.display().to_string(), e.into()))
}

/// Takes the mount point out of the name space at once, whoever uses it.
///
/// # Errors
/// Where it is no mount point.
pub fn detach(point: &Path) -> Result<(), MountError> {
    rustix::mount::unmount(point, UnmountFlags::DETACH)
        .map_err(|e| MountError::Kernel(point.display().to_string(), e.into()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn mount_points_are_bytes() {
        let line = b"36 35 98:0 / /mnt/a\\040b\\011\\012\\134\xff' rw shared:1 - fuse.nuri nuri rw";
        let mounted = parse(line).unwrap();
        assert_eq!(mounted.point.as_os_str().as_bytes(), b"/mnt/a b\t\n\\\xff'");
        assert_eq!((mounted.device.as_str(), &mounted.kind[..]), ("98:0", &b"fuse.nuri"[..]));
        assert!(parse(b"").is_none() && parse(b"1 2 3 4 5 6 7").is_none());
        assert_eq!(plain(br"\04 \9"), br"\04 \9");
    }
}
