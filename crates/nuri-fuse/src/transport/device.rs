//! `/dev/fuse`: one descriptor per reader, and each reply goes to the descriptor that its request
//! came from. Also opens inodes of the own mount by number.

#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use rustix::fs::OFlags;
use rustix::ioctl::{Setter, ioctl, opcode};

const PATH: &str = "/dev/fuse";
/// `FUSE_DEV_IOC_CLONE`
const CLONE: rustix::ioctl::Opcode = opcode::read::<u32>(229, 0);

/// A handle as FUSE makes it (`fuse_encode_fh`): number and generation of an inode.
#[repr(C)]
struct Handle {
    bytes: u32,
    kind: i32,
    words: [u32; 3],
}

/// `FILEID_INO64_GEN`
const INO64_GEN: i32 = 0x81;

/// Opens an inode of the mount that `within` is on, by number.
///
/// # Errors
/// `ESTALE` where the kernel does not know it.
pub(crate) fn open_inode(
    within: &impl AsFd,
    number: u64,
    generation: u32,
    flags: OFlags,
) -> io::Result<OwnedFd> {
    let words = [(number >> 32) as u32, number as u32, generation];
    let mut handle = Handle { bytes: size_of_val(&words) as u32, kind: INO64_GEN, words };
    let (mount, flags) = (within.as_fd().as_raw_fd(), flags.union(OFlags::CLOEXEC).bits() as i32);
    // SAFETY: the handle is a whole `struct file_handle` with as many bytes behind it as it says,
    // and lives until the call returns.
    let fd = unsafe { libc::open_by_handle_at(mount, (&raw mut handle).cast(), flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was opened just now and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

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
