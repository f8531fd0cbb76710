//! `/dev/fuse`: one descriptor per reader, replies on the descriptor that the request came from.

#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::ioctl::{Setter, ioctl, opcode};

const PATH: &str = "/dev/fuse";
/// `FUSE_DEV_IOC_CLONE`
const CLONE: rustix::ioctl::Opcode = opcode::read::<u32>(229, 0);

/// A descriptor of a FUSE connection.
pub struct Device {
    file: File,
}

impl Device {
    /// Opens the device, not yet mounted.
    ///
    /// # Errors
    /// Where the kernel has no FUSE or the caller no right.
    pub fn open() -> io::Result<Device> {
        Ok(Device { file: OpenOptions::new().read(true).write(true).open(PATH)? })
    }

    /// The descriptor's number, for the mount options.
    pub fn raw(&self) -> i32 {
        self.file.as_raw_fd()
    }

    /// Another descriptor of the same connection, with its own queue of requests under way.
    ///
    /// # Errors
    /// Where the kernel refuses.
    pub fn clone_queue(&self) -> io::Result<Device> {
        let other = Device::open()?;
        let source = self.file.as_raw_fd() as u32;
        // SAFETY: FUSE_DEV_IOC_CLONE reads one u32, a descriptor number, through the pointer.
        unsafe { ioctl(other.file.as_fd(), Setter::<CLONE, u32>::new(source)) }?;
        Ok(other)
    }

    /// The same descriptor again, for writers of notifications.
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn duplicate(&self) -> io::Result<Device> {
        let fd: OwnedFd = self.file.as_fd().try_clone_to_owned()?;
        Ok(Device { file: fd.into() })
    }

    /// Reads one request.
    ///
    /// # Errors
    /// `ENODEV` once the mount is gone.
    pub fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        (&self.file).read(buf)
    }

    /// Writes one reply or notification.
    ///
    /// # Errors
    /// `ENOENT` where the request was aborted, or the inode is not known to the kernel.
    pub fn write(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        (&self.file).write_vectored(parts).map(|_| ())
    }
}
