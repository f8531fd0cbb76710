//! Attaching and detaching a mount point.

use std::ffi::CString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use crate::device::Device;
use crate::server::MAX_WRITE;

/// Why a mount point cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    #[error("the mount point {0} does not exist; create it: mkdir -p {0}")]
    Missing(String),
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
            return Err(MountError::Missing(name));
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
    mounts().iter().any(|(at, kind)| Path::new(at) == real && kind.starts_with("fuse"))
}

/// (mount point, type) of all mounts that this process sees.
pub fn mounts() -> Vec<(String, String)> {
    let text = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let line = |l: &str| {
        let mut words = l.split(' ').skip(1);
        let point = words.next()?.replace("\\040", " ").replace("\\134", "\\");
        Some((point, words.next()?.to_string()))
    };
    text.lines().filter_map(line).collect()
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
    let flags = match how.writes {
        Writes::Allowed => MountFlags::RELATIME,
        Writes::Refused => MountFlags::RELATIME | MountFlags::RDONLY,
    };
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
    let text = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let wanted = point.to_str()?;
    let line = text.lines().rfind(|l| l.split(' ').nth(4) == Some(wanted))?;
    line.split(' ').nth(2).map(str::to_owned)
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
