//! A disk of this machine that is served. Its I/O bypasses the page cache, in the disk's own block
//! size.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;

use nuri_io::buf::AlignedBuf;
use rustix::fs::{FallocateFlags, OFlags, SeekFrom, fallocate, seek};
use rustix::io::Errno as System;

use super::list::{Use, block_of, used};
use crate::export::{About, Asked, Export, Extent, Kept, Zeroing};
use crate::order::Order;
use crate::protocol::Errno;

/// Most bytes that are zeroed by hand at once.
const ZEROS: usize = 1 << 20;
/// Where the kernel's I/O buffers may begin.
const ALIGN: usize = 512;

/// Whether clients may write to a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Writes {
    Refused,
    Allowed,
}

/// Why a disk is not served.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{0} is no block device")]
    NoDevice(String),
    #[error("{path} is used: {used}")]
    Used { path: String, used: Use },
    #[error("{path}: {error}")]
    Io { path: String, error: io::Error },
}

/// One disk.
pub(super) struct Device {
    file: File,
    about: About,
    order: Order,
}

impl Device {
    pub(super) fn open(path: &Path, name: String, writes: Writes) -> Result<Device, OpenError> {
        let shown = path.display().to_string();
        let failed = |error| OpenError::Io { path: path.display().to_string(), error };
        // A link in /dev/disk leads to it too.
        let real = std::fs::canonicalize(path).map_err(failed)?;
        if !real.metadata().map_err(failed)?.file_type().is_block_device() {
            return Err(OpenError::NoDevice(shown));
        }
        let kernel_name = real.strip_prefix("/dev").unwrap_or(&real).display().to_string();
        let kernel_name = kernel_name.replace('/', "!");
        match used(&kernel_name) {
            Use::Nothing => {}
            used => return Err(OpenError::Used { path: shown, used }),
        }
        let read_only = writes == Writes::Refused;
        // Exclusive: nothing else comes to use it meanwhile.
        let flags = OFlags::DIRECT | OFlags::EXCL | OFlags::CLOEXEC;
        let file = OpenOptions::new()
            .read(true)
            .write(!read_only)
            .custom_flags(flags.bits() as i32)
            .open(&real)
            .map_err(|error| match error.raw_os_error() {
                Some(code) if code == System::BUSY.raw_os_error() => {
                    let used = Use::Unknown("another program has it".into());
                    OpenError::Used { path: shown.clone(), used }
                }
                _ => failed(error),
            })?;
        let size = seek(&file, SeekFrom::End(0)).map_err(|error| failed(error.into()))?;
        let (block, description) = (block_of(&kernel_name), format!("the disk {shown}"));
        let preferred_block = block.max(4096);
        let about = About { name, description, size, read_only, block, preferred_block };
        Ok(Device { file, about, order: Order::default() })
    }

    fn told<T>(&self, outcome: io::Result<T>) -> Result<T, Errno> {
        outcome.map_err(|error| match error.raw_os_error().map(System::from_raw_os_error) {
            Some(System::NOSPC) => Errno::NoSpace,
            Some(System::PERM | System::ROFS) => Errno::Perm,
            Some(System::OPNOTSUPP | System::NODEV) => Errno::NotSupported,
            _ => {
                tracing::error!("nbd: {}: {error}", self.about.description);
                Errno::Io
            }
        })
    }

    /// The blocks that hold these bytes.
    fn blocks(&self, offset: u64, len: usize) -> (u64, usize) {
        let block = u64::from(self.about.block);
        let start = offset / block * block;
        let end = (offset + len as u64).next_multiple_of(block);
        (start, (end - start) as usize)
    }

    fn is_whole(&self, offset: u64, data: &[u8]) -> bool {
        let is_aligned = (data.as_ptr() as usize).is_multiple_of(ALIGN);
        is_aligned && self.blocks(offset, data.len()) == (offset, data.len())
    }

    /// The blocks around these bytes, as they are now.
    fn read_around(&self, offset: u64, len: usize) -> io::Result<(u64, AlignedBuf)> {
        let (start, count) = self.blocks(offset, len);
        let mut buffer = AlignedBuf::zeroed(count);
        self.file.read_exact_at(&mut buffer, start)?;
        Ok((start, buffer))
    }

    fn write_any(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if self.is_whole(offset, data) {
            return self.file.write_all_at(data, offset);
        }
        let (start, mut buffer) = self.read_around(offset, data.len())?;
        let at = (offset - start) as usize;
        buffer[at..at + data.len()].copy_from_slice(data);
        self.file.write_all_at(&buffer, start)
    }

    /// Whole blocks of zeros by the device, the rest by hand.
    fn zero(&self, offset: u64, len: u64, how: Zeroing) -> io::Result<()> {
        let block = u64::from(self.about.block);
        let (end, first) = (offset + len, offset.next_multiple_of(block));
        let last = end / block * block;
        if first >= last {
            return self.write_zeros(offset, len);
        }
        let flags = match how.keeps_room {
            true => FallocateFlags::ZERO_RANGE,
            false => FallocateFlags::PUNCH_HOLE,
        };
        match fallocate(&self.file, flags | FallocateFlags::KEEP_SIZE, first, last - first) {
            Err(System::OPNOTSUPP | System::NODEV) if !how.is_fast => {
                self.write_zeros(first, last - first)?;
            }
            outcome => outcome?,
        }
        self.write_zeros(offset, first - offset)?;
        self.write_zeros(last, end - last)
    }

    fn write_zeros(&self, offset: u64, len: u64) -> io::Result<()> {
        let zeros = AlignedBuf::zeroed(ZEROS.min(len as usize));
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let count = (end - at).min(zeros.len() as u64) as usize;
            self.write_any(at, &zeros[..count])?;
            at += count as u64;
        }
        Ok(())
    }
}

impl Export for Device {
    fn about(&self) -> About {
        self.about.clone()
    }

    fn order(&self) -> &Order {
        &self.order
    }

    fn read(&self, _: Asked<'_>, offset: u64, out: &mut [u8]) -> Result<(), Errno> {
        if self.is_whole(offset, out) {
            return self.told(self.file.read_exact_at(out, offset));
        }
        let (start, buffer) = self.told(self.read_around(offset, out.len()))?;
        let at = (offset - start) as usize;
        out.copy_from_slice(&buffer[at..at + out.len()]);
        Ok(())
    }

    fn write(&self, asked: Asked<'_>, offset: u64, data: &[u8], kept: Kept) -> Result<(), Errno> {
        self.told(self.write_any(offset, data))?;
        if kept == Kept::Durably { self.flush(asked) } else { Ok(()) }
    }

    fn flush(&self, _: Asked<'_>) -> Result<(), Errno> {
        self.told(self.file.sync_data())
    }

    /// A device that cannot give room back may ignore it.
    fn trim(&self, _: Asked<'_>, offset: u64, len: u64) -> Result<(), Errno> {
        let block = u64::from(self.about.block);
        let (first, last) = (offset.next_multiple_of(block), (offset + len) / block * block);
        if first >= last {
            return Ok(());
        }
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match fallocate(&self.file, how, first, last - first) {
            Err(System::OPNOTSUPP | System::NODEV) => Ok(()),
            outcome => self.told(outcome.map_err(io::Error::from)),
        }
    }

    fn write_zeroes(&self, _: Asked<'_>, offset: u64, len: u64, how: Zeroing) -> Result<(), Errno> {
        self.told(self.zero(offset, len, how))
    }

    /// A disk does not tell.
    fn extents(&self, _: Asked<'_>, _: u64, len: u32, _: usize) -> Result<Vec<Extent>, Errno> {
        Ok(vec![Extent { len, is_hole: false }])
    }
}
