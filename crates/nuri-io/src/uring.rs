//! A file disk whose batches go to the kernel in one call through io_uring.
//!
//! Single transfers use plain positioned calls: with nothing to run beside them, that is the
//! cheapest way. A ring serves one batch at a time, and its memory is borrowed from the caller. So
//! a batch returns only when the kernel has let go of every buffer, also after an error.

#![allow(unsafe_code)]

use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;

use io_uring::{IoUring, Probe, opcode, squeue, types};
use parking_lot::Mutex;

use crate::disk::{Disk, DiskOp};
use crate::file::{FileDisk, OpenMode};

/// Transfers in flight per ring.
const DEPTH: u32 = 64;
/// Idle rings kept; more are made when more threads submit at once, and dropped after.
const KEEP: usize = 8;

/// See the module's text.
pub struct UringDisk {
    file: FileDisk,
    rings: Mutex<Vec<IoUring>>,
}

/// Opens with io_uring where the kernel permits it, else without.
///
/// # Errors
/// As [`FileDisk::open`].
pub fn open_disk(path: &Path, mode: OpenMode) -> io::Result<Arc<dyn Disk>> {
    let file = FileDisk::open(path, mode)?;
    Ok(match usable_ring() {
        Ok(ring) => Arc::new(UringDisk { file, rings: Mutex::new(vec![ring]) }),
        Err(_) => Arc::new(file),
    })
}

/// Whether this process may use io_uring, with the operations that the disks need.
pub fn available() -> bool {
    usable_ring().is_ok()
}

fn usable_ring() -> io::Result<IoUring> {
    let ring = IoUring::new(DEPTH)?;
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    if probe.is_supported(opcode::Read::CODE) && probe.is_supported(opcode::Write::CODE) {
        Ok(ring)
    } else {
        Err(io::ErrorKind::Unsupported.into())
    }
}

impl UringDisk {
    /// Opens a file or block device.
    ///
    /// # Errors
    /// Also where the kernel offers no usable ring; [`open_disk`] falls back instead.
    pub fn open(path: &Path, mode: OpenMode) -> io::Result<UringDisk> {
        let ring = usable_ring()?;
        Ok(UringDisk { file: FileDisk::open(path, mode)?, rings: Mutex::new(vec![ring]) })
    }

    fn take_ring(&self) -> io::Result<IoUring> {
        let kept = self.rings.lock().pop();
        kept.map_or_else(|| IoUring::new(DEPTH), Ok)
    }

    /// Runs one transfer without the ring.
    fn plain(&self, op: &mut DiskOp<'_>) -> io::Result<()> {
        match op {
            DiskOp::Read { offset, buf } => self.file.read_at(*offset, buf),
            DiskOp::Write { offset, data } => self.file.write_at(*offset, data),
        }
    }

    fn entry(&self, op: &mut DiskOp<'_>, index: usize) -> Option<squeue::Entry> {
        let fd = types::Fd(self.file.file().as_raw_fd());
        let entry = match op {
            DiskOp::Read { offset, buf } if self.file.fits(*offset, buf) => {
                let len = u32::try_from(buf.len()).ok()?;
                opcode::Read::new(fd, buf.as_mut_ptr(), len).offset(*offset).build()
            }
            DiskOp::Write { offset, data } if self.file.fits(*offset, data) => {
                let len = u32::try_from(data.len()).ok()?;
                opcode::Write::new(fd, data.as_ptr(), len).offset(*offset).build()
            }
            _ => return None,
        };
        Some(entry.user_data(index as u64))
    }

    fn batch(&self, ring: &mut IoUring, ops: &mut [DiskOp<'_>]) -> io::Result<()> {
        let mut outcome = Ok(());
        let mut queued = 0;
        for (index, op) in ops.iter_mut().enumerate() {
            let Some(entry) = self.entry(op, index) else {
                continue;
            };
            // SAFETY: `ops` borrows the buffers until this function returns, and below it waits
            // until every entry the kernel took has completed.
            let pushed = unsafe { ring.submission().push(&entry) };
            if pushed.is_ok() {
                queued += 1;
            }
        }
        let results = drive(ring, queued, ops.len());
        for (op, result) in ops.iter_mut().zip(results) {
            let done = match result {
                Some(n) if n < 0 && n != -rustix::io::Errno::INTR.raw_os_error() => {
                    Err(io::Error::from_raw_os_error(-n))
                }
                Some(n) if n as usize == op_len(op) => Ok(()),
                // Never taken, interrupted or short: once more, to the end or to its true error.
                _ => self.plain(op),
            };
            outcome = outcome.and(done);
        }
        outcome
    }
}

fn op_len(op: &DiskOp<'_>) -> usize {
    match op {
        DiskOp::Read { buf, .. } => buf.len(),
        DiskOp::Write { data, .. } => data.len(),
    }
}

/// Submits `queued` entries and waits for all that the kernel took. `None` for the others.
fn drive(ring: &mut IoUring, queued: usize, slots: usize) -> Vec<Option<i32>> {
    let mut results = vec![None; slots];
    let (mut taken, mut done, mut refused) = (0, 0, false);
    while done < queued {
        if taken < queued && !refused {
            match ring.submit_and_wait(queued - done) {
                Ok(n) => taken += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    // Entries still in the queue never reached the kernel; those taken must end.
                    taken = queued - ring.submission().len();
                    refused = true;
                }
            }
        } else if done < taken && ring.submitter().submit_and_wait(0).is_err() {
            std::thread::yield_now();
        }
        for completion in ring.completion() {
            results[completion.user_data() as usize] = Some(completion.result());
            done += 1;
        }
        if refused && done >= taken {
            break;
        }
    }
    results
}

impl Disk for UringDisk {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.file.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_at(offset, data)
    }
    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }
    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.file.punch(offset, len)
    }
    fn is_sparse(&self) -> bool {
        self.file.is_sparse()
    }
    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.file.allocate(offset, len)
    }
    fn next_written(&self, from: u64) -> io::Result<Option<Range<u64>>> {
        self.file.next_written(from)
    }

    fn submit(&self, ops: &mut [DiskOp<'_>]) -> io::Result<()> {
        if let [op] = ops {
            return self.plain(op);
        }
        let Ok(mut ring) = self.take_ring() else {
            return self.file.submit(ops);
        };
        let mut outcome = Ok(());
        for part in ops.chunks_mut(DEPTH as usize) {
            outcome = outcome.and(self.batch(&mut ring, part));
        }
        // A ring that still holds refused entries must not be used again.
        let clean = ring.submission().is_empty();
        let mut rings = self.rings.lock();
        if clean && rings.len() < KEEP {
            rings.push(ring);
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conforms() {
        let dir = tempfile::tempdir().unwrap();
        assert!(available(), "this test needs a kernel that permits io_uring");
        let next = std::cell::Cell::new(0);
        crate::disk_suite::suite(|| {
            next.set(next.get() + 1);
            let path = dir.path().join(next.get().to_string());
            UringDisk::open(&path, OpenMode::Create).unwrap()
        });
    }

    #[test]
    fn opener_falls_back_or_not_but_works() {
        let dir = tempfile::tempdir().unwrap();
        let next = std::cell::Cell::new(0);
        crate::disk_suite::suite(|| {
            next.set(next.get() + 1);
            open_disk(&dir.path().join(next.get().to_string()), OpenMode::Create).unwrap()
        });
    }
}
