//! A disk on a regular file or a whole block device, by plain positioned reads and writes.
//!
//! It is opened with O_DIRECT where the file system accepts it, and buffered otherwise. With direct
//! I/O, a transfer whose memory, offset or length is not on 4 KiB goes through an aligned copy.
//! Such a write reads and rewrites whole blocks under a lock. So callers must not write other bytes
//! of the same block at the same time by an aligned transfer. Callers: stores, through [`Disk`].

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;

use parking_lot::Mutex;
use rustix::fs::{
    FallocateFlags, FileType, Mode, OFlags, SeekFrom, fallocate, fdatasync, fstat, open, seek,
};
use rustix::io::{Errno, pread, pwrite};

use crate::buf::{ALIGN, AlignedBuf};
use crate::disk::Disk;

/// Longest aligned copy of one unaligned transfer, bytes.
const BOUNCE: usize = 1 << 20;

/// Whether opening may make the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpenMode {
    /// Make a file where there is none; one that is there is opened as it is.
    Create,
    /// The file or device must be there.
    Existing,
}

/// See the module's text.
pub struct FileDisk {
    file: File,
    direct: bool,
    block_device: bool,
    /// Held while a write replaces part of a block.
    partial: Mutex<()>,
}

impl FileDisk {
    /// Opens a file or block device for reading and writing.
    ///
    /// # Errors
    /// As the operating system says; a path that is neither file nor block device is refused.
    pub fn open(path: &Path, mode: OpenMode) -> io::Result<FileDisk> {
        let mut flags = OFlags::RDWR | OFlags::CLOEXEC;
        if mode == OpenMode::Create {
            flags |= OFlags::CREATE;
        }
        let perms = Mode::from_raw_mode(0o600);
        let (fd, direct) = match open(path, flags | OFlags::DIRECT, perms) {
            Ok(fd) if takes_direct(&fd) => (fd, true),
            Ok(_) | Err(Errno::INVAL) => (open(path, flags, perms)?, false),
            Err(e) => return Err(e.into()),
        };
        let kind = FileType::from_raw_mode(fstat(&fd)?.st_mode);
        if kind != FileType::RegularFile && kind != FileType::BlockDevice {
            let text = format!("{} is neither a file nor a block device", path.display());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let block_device = kind == FileType::BlockDevice;
        Ok(FileDisk { file: File::from(fd), direct, block_device, partial: Mutex::new(()) })
    }

    /// Whether transfers go past the page cache.
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Whether this transfer may go to the device as it is.
    pub(crate) fn fits(&self, offset: u64, bytes: &[u8]) -> bool {
        let place = bytes.as_ptr() as usize | offset as usize | bytes.len();
        !self.direct || place.is_multiple_of(ALIGN)
    }

    fn read_exact(&self, mut offset: u64, mut buf: &mut [u8]) -> io::Result<()> {
        while !buf.is_empty() {
            match pread(&self.file, &mut *buf, offset) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => {
                    offset += n as u64;
                    buf = &mut buf[n..];
                }
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    fn write_all(&self, mut offset: u64, mut data: &[u8]) -> io::Result<()> {
        while !data.is_empty() {
            match pwrite(&self.file, data, offset) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    offset += n as u64;
                    data = &data[n..];
                }
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    fn write_zeros(&self, offset: u64, len: u64) -> io::Result<()> {
        let zeros = AlignedBuf::zeroed(BOUNCE);
        let mut at = offset;
        while at < offset + len {
            let take = (offset + len - at).min(zeros.len() as u64);
            self.write_at(at, &zeros[..take as usize])?;
            at += take;
        }
        Ok(())
    }

    /// Reads what there is of an aligned range; what lies past the end stays zero.
    fn read_some(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < buf.len() && done % ALIGN == 0 {
            match pread(&self.file, &mut buf[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(done)
    }

    fn read_bounced(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let mut at = offset;
        let mut rest = buf;
        while !rest.is_empty() {
            let skip = at as usize % ALIGN;
            let take = rest.len().min(BOUNCE - skip);
            let mut bounce = AlignedBuf::zeroed((skip + take).next_multiple_of(ALIGN));
            if self.read_some(at - skip as u64, &mut bounce)? < skip + take {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let (now, later) = rest.split_at_mut(take);
            now.copy_from_slice(&bounce[skip..skip + take]);
            rest = later;
            at += take as u64;
        }
        Ok(())
    }

    fn write_bounced(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut at = offset;
        let mut rest = data;
        while !rest.is_empty() {
            let skip = at as usize % ALIGN;
            let take = rest.len().min(BOUNCE - skip);
            let span = (skip + take).next_multiple_of(ALIGN);
            let start = at - skip as u64;
            let mut bounce = AlignedBuf::zeroed(span);
            let whole = skip == 0 && take == span;
            let _partial = (!whole).then(|| self.partial.lock());
            let old_len = if whole { u64::MAX } else { self.len()? };
            if !whole {
                self.read_some(start, &mut bounce)?;
            }
            bounce[skip..skip + take].copy_from_slice(&rest[..take]);
            self.write_all(start, &bounce)?;
            if !whole && !self.block_device && start + span as u64 > old_len {
                self.file.set_len(old_len.max(at + take as u64))?;
            }
            rest = &rest[take..];
            at += take as u64;
        }
        Ok(())
    }
}

/// Some file systems accept the flag at open and refuse the transfer.
fn takes_direct(fd: &rustix::fd::OwnedFd) -> bool {
    let mut probe = AlignedBuf::zeroed(ALIGN);
    !matches!(pread(fd, &mut probe[..], 0), Err(Errno::INVAL))
}

impl Disk for FileDisk {
    fn len(&self) -> io::Result<u64> {
        if self.block_device {
            return Ok(seek(&self.file, SeekFrom::End(0))?);
        }
        Ok(fstat(&self.file)?.st_size as u64)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        if !self.block_device {
            return self.file.set_len(len);
        }
        if len <= self.len()? { Ok(()) } else { Err(Errno::NOSPC.into()) }
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        if self.fits(offset, buf) {
            self.read_exact(offset, buf)
        } else {
            self.read_bounced(offset, buf)
        }
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if self.fits(offset, data) {
            self.write_all(offset, data)
        } else {
            self.write_bounced(offset, data)
        }
    }

    fn sync(&self) -> io::Result<()> {
        Ok(fdatasync(&self.file)?)
    }

    fn is_sparse(&self) -> bool {
        !self.block_device
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        if self.block_device || len == 0 {
            return Ok(());
        }
        match fallocate(&self.file, FallocateFlags::empty(), offset, len) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => self.write_zeros(offset, len),
            other => other.map_err(io::Error::from),
        }
    }

    fn next_written(&self, from: u64) -> io::Result<Option<Range<u64>>> {
        let start = match seek(&self.file, SeekFrom::Data(from)) {
            Ok(start) => start,
            Err(Errno::NXIO) => return Ok(None),
            // No word about holes: a device, or a file system that has none.
            Err(Errno::INVAL) => return Ok(Some(from..self.len()?).filter(|r| !r.is_empty())),
            Err(e) => return Err(e.into()),
        };
        Ok(Some(start..seek(&self.file, SeekFrom::Hole(start))?))
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        if self.block_device || len == 0 {
            return Ok(());
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match fallocate(&self.file, flags, offset, len) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            other => other.map_err(io::Error::from),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conforms() {
        let dir = tempfile::tempdir().unwrap();
        let next = std::cell::Cell::new(0);
        crate::disk_suite::suite(|| {
            next.set(next.get() + 1);
            let path = dir.path().join(next.get().to_string());
            FileDisk::open(&path, OpenMode::Create).unwrap()
        });
    }

    #[test]
    fn missing_file_and_directory_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert!(FileDisk::open(&dir.path().join("x"), OpenMode::Existing).is_err());
        assert!(FileDisk::open(dir.path(), OpenMode::Existing).is_err());
    }
}
