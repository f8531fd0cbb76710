//! The trait that stores use for a disk. One suite of tests (`disk_suite`) runs for every
//! implementation.

use std::io;
use std::ops::Range;

/// One part of a batch.
pub enum DiskOp<'a> {
    Read { offset: u64, buf: &'a mut [u8] },
    Write { offset: u64, data: &'a [u8] },
}

/// A byte-addressed device. All methods may be called from several threads at once.
///
/// Transfers are exact: a short transfer is an error. A write is durable only after a later
/// [`Disk::sync`] returned; before that a crash may keep, drop or tear it at 512 bytes.
pub trait Disk: Send + Sync + 'static {
    /// Length in bytes.
    fn len(&self) -> io::Result<u64>;

    /// Whether nothing is there at all.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Grows (with zeros) or cuts a file. A block device only accepts lengths within its size.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Fills `buf` from `offset`.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;

    /// Writes all of `data` at `offset`.
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()>;

    /// Makes all finished writes durable.
    fn sync(&self) -> io::Result<()>;

    /// Gives the range's space back where the device can; it reads as zeros or as before.
    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        let _ = (offset, len);
        Ok(())
    }

    /// Whether ranges may lack room on the device until they are written, and can give it back.
    fn is_sparse(&self) -> bool {
        false
    }

    /// Takes room for the range beforehand, so that writing it never fails for want of space. Its
    /// content is undefined until it is written.
    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        let _ = (offset, len);
        Ok(())
    }

    /// The next range at or after `from` that was written and has its room, if there is one.
    fn next_written(&self, from: u64) -> io::Result<Option<Range<u64>>> {
        let len = self.len()?;
        Ok((from < len).then_some(from..len))
    }

    /// Runs independent transfers, at once where the device can. The first error is returned
    /// after all have ended.
    fn submit(&self, ops: &mut [DiskOp<'_>]) -> io::Result<()> {
        let mut outcome = Ok(());
        for op in ops {
            let done = match op {
                DiskOp::Read { offset, buf } => self.read_at(*offset, buf),
                DiskOp::Write { offset, data } => self.write_at(*offset, data),
            };
            outcome = outcome.and(done);
        }
        outcome
    }
}

impl<D: Disk + ?Sized> Disk for std::sync::Arc<D> {
    fn len(&self) -> io::Result<u64> {
        (**self).len()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        (**self).set_len(len)
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        (**self).read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        (**self).write_at(offset, data)
    }
    fn sync(&self) -> io::Result<()> {
        (**self).sync()
    }
    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        (**self).punch(offset, len)
    }
    fn is_sparse(&self) -> bool {
        (**self).is_sparse()
    }
    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        (**self).allocate(offset, len)
    }
    fn next_written(&self, from: u64) -> io::Result<Option<Range<u64>>> {
        (**self).next_written(from)
    }
    fn submit(&self, ops: &mut [DiskOp<'_>]) -> io::Result<()> {
        (**self).submit(ops)
    }
}
