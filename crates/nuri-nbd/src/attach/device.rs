//! The devices of the kernel's NBD client: finds, connects and disconnects them.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::netlink::{Attributes, Family};

const CONNECT: u8 = 1;
const DISCONNECT: u8 = 2;
const RECONFIGURE: u8 = 3;

const INDEX: u16 = 1;
const SIZE: u16 = 2;
const BLOCK_SIZE: u16 = 3;
const TIMEOUT: u16 = 4;
const SERVER_FLAGS: u16 = 5;
const SOCKETS: u16 = 7;
const DEAD_CONN_TIMEOUT: u16 = 8;
const BACKEND: u16 = 10;
/// Of a nested attribute: one of the sockets, and its descriptor.
const ITEM: u16 = 1;
const FD: u16 = 1;

/// A request that has no answer for so long is sent on another channel, and its channel given up.
/// Also where the channel is lost the kernel waits so long with what it had sent. Longer than a
/// server serves it ([`crate::AGE`]), by what a network may delay it unnoticed (`age.rs`).
pub(super) const ANSWER: Duration = Duration::from_secs(15);
/// Without any channel requests wait so long, and a file system on the device with them.
const WITHOUT: Duration = Duration::from_secs(7 * 24 * 3600);
const BLOCK: u64 = 4096;
/// What the kernel shows as the device's back end begins so.
const OURS: &str = "nuri:";
const CLASS: &str = "/sys/block";

/// Why a volume is not attached, or stays so.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    #[error("this kernel's NBD client is not loaded: modprobe nbd ({0})")]
    NoClient(io::Error),
    #[error("{0} is attached already, as {1}")]
    Attached(String, String),
    #[error("{0} is not attached here")]
    NotAttached(String),
    #[error("{device} is used ({by}): end that first, or say --force")]
    Used { device: String, by: String },
    #[error("no server gives {name}: {why}")]
    NoServer { name: String, why: String },
    #[error("the kernel refuses the device: {0}")]
    Kernel(io::Error),
}

/// A device and the volume that it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attached {
    pub device: String,
    pub volume: String,
    pub size: u64,
    /// What uses the device.
    pub used: Option<String>,
}

/// Volumes that are devices of this machine.
pub fn attached() -> Vec<Attached> {
    let entries = fs::read_dir(CLASS).into_iter().flatten().flatten();
    let mut found: Vec<_> = entries.filter_map(|entry| look_at(&entry.path())).collect();
    found.sort_by(|a, b| a.device.cmp(&b.device));
    found
}

fn look_at(class: &Path) -> Option<Attached> {
    let read = |name: &str| fs::read_to_string(class.join(name)).ok();
    // Only one that is connected has it.
    read("pid")?;
    let volume = read("backend")?.trim().strip_prefix(OURS)?.to_owned();
    let name = class.file_name()?.to_str()?;
    let size = read("size")?.trim().parse::<u64>().ok()? * 512;
    let used = match crate::disk::used_by(name) {
        crate::disk::Use::MountedAt(point) => Some(format!("mounted at {point}")),
        used @ (crate::disk::Use::Swap | crate::disk::Use::Held(_)) => Some(used.to_string()),
        _ => None,
    };
    Some(Attached { device: format!("/dev/{name}"), volume, size, used })
}

/// A device that was made; it stays when this is dropped.
pub(super) struct Device {
    family: Family,
    pub(super) index: u32,
}

/// What the kernel is told of a device.
pub(super) struct Wanted<'w> {
    pub(super) volume: &'w str,
    pub(super) size: u64,
    /// As the servers gave them.
    pub(super) flags: u16,
}

fn sockets<'s>(fds: impl Iterator<Item = &'s (dyn AsFd + 's)>) -> Attributes {
    fds.fold(Attributes::default(), |all, fd| {
        let fd = Attributes::default().u32(FD, fd.as_fd().as_raw_fd() as u32);
        all.nested(ITEM, &fd)
    })
}

impl Device {
    pub(super) fn make<'s>(
        wanted: &Wanted<'_>,
        fds: impl Iterator<Item = &'s (dyn AsFd + 's)>,
    ) -> Result<Device, AttachError> {
        let mut family = Family::find("nbd").map_err(AttachError::NoClient)?;
        let attributes = Attributes::default()
            .u64(SIZE, wanted.size)
            .u64(BLOCK_SIZE, BLOCK)
            .u64(TIMEOUT, ANSWER.as_secs())
            .u64(DEAD_CONN_TIMEOUT, WITHOUT.as_secs())
            .u64(SERVER_FLAGS, u64::from(wanted.flags))
            .nested(SOCKETS, &sockets(fds))
            .text(BACKEND, &format!("{OURS}{}", wanted.volume));
        let found = family.ask(CONNECT, &attributes).map_err(AttachError::Kernel)?;
        let index = found.number(INDEX).ok_or(io::ErrorKind::InvalidData);
        let index = index.map_err(|kind| AttachError::Kernel(kind.into()))?;
        Ok(Device { family, index })
    }

    pub(super) fn path(&self) -> PathBuf {
        PathBuf::from(format!("/dev/nbd{}", self.index))
    }

    /// Whether the kernel still has it.
    pub(super) fn is_there(&self) -> bool {
        Path::new(CLASS).join(format!("nbd{}/pid", self.index)).exists()
    }

    /// Another socket takes the place of a dead one; an error where the kernel knows of none.
    pub(super) fn put_back(&mut self, volume: &str, fd: &dyn AsFd) -> io::Result<()> {
        let attributes = Attributes::default()
            .u32(INDEX, self.index)
            .nested(SOCKETS, &sockets(std::iter::once(fd)))
            .text(BACKEND, &format!("{OURS}{volume}"));
        self.family.ask(RECONFIGURE, &attributes).map(drop)
    }
}

/// Takes a volume's device away, which is named by the volume or by its path.
///
/// # Errors
/// Why it stays.
pub fn detach(name: &str, is_forced: bool) -> Result<Attached, AttachError> {
    let is_meant = |one: &Attached| one.volume == name || one.device == name;
    let found = attached().into_iter().find(is_meant);
    let found = found.ok_or_else(|| AttachError::NotAttached(name.into()))?;
    if let Some(by) = found.used.clone().filter(|_| !is_forced) {
        return Err(AttachError::Used { device: found.device, by });
    }
    let index = found.device.trim_start_matches("/dev/nbd").parse().unwrap_or(u32::MAX);
    let mut family = Family::find("nbd").map_err(AttachError::NoClient)?;
    let attributes = Attributes::default().u32(INDEX, index);
    family.ask(DISCONNECT, &attributes).map_err(AttachError::Kernel)?;
    Ok(found)
}
