//! One entry of one of the kernel's queues: FUSE over io_uring (Linux 6.14).
//!
//! An entry is a header and a payload in memory of ours, and an io_uring instance for its one
//! command. The first command registers the memory and waits for a request. Every further command
//! commits the reply that lies in the memory, and waits for the next request. From a command until
//! its completion the memory is the kernel's. All calls must come from the thread that made the
//! entry, because the kernel copies in that thread's calls.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::RawFd;

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use zerocopy::{FromBytes, IntoBytes};

use crate::protocol::abi::{
    InHeader, OutHeader, RING_COMMIT_AND_FETCH, RING_REGISTER, RingCommand, RingEntryInOut,
    RingHeader,
};
use crate::protocol::limits::MAX_WRITE;
use crate::protocol::reply::Body;
use crate::protocol::request::Request;

const PAGE: usize = 4096;
const PAYLOAD: usize = MAX_WRITE as usize;
/// Where in the first page the two buffers are described.
const DESCRIPTION: usize = 2048;
/// Offset of `len` in a submission (`struct io_uring_sqe`).
const SUBMISSION_LEN: usize = 24;
/// Memory that less was written to is not worth giving back.
const WORTH_RELEASING: usize = 64 << 10;

type Ring = IoUring<squeue::Entry128, cqueue::Entry>;

/// See the module's text.
pub(crate) struct RingEntry {
    ring: Ring,
    memory: ManuallyDrop<Memory>,
    device: RawFd,
    qid: u16,
    /// The memory is the kernel's.
    pending: bool,
    commit_id: u64,
    unique: u64,
    /// Bytes of the payload that the last request or its reply used.
    used: usize,
}

/// One page for the header, then the payload. Fresh pages cost nothing until they are used.
struct Memory(*mut c_void);

impl Memory {
    const LEN: usize = PAGE + PAYLOAD;

    fn new() -> io::Result<Memory> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), Self::LEN, access, flags) }?;
        Ok(Memory(base))
    }

    fn describe(&mut self) -> u64 {
        let base = self.0 as u64;
        let parts = [base, PAGE as u64 / 2, base + PAGE as u64, PAYLOAD as u64];
        // SAFETY: 32 aligned bytes inside the first page, behind the header.
        unsafe { self.0.cast::<u8>().add(DESCRIPTION).cast::<[u64; 4]>().write(parts) };
        base + DESCRIPTION as u64
    }

    /// Header and payload.
    fn parts(&mut self) -> (&mut RingHeader, &mut [u8]) {
        let base = self.0.cast::<u8>();
        // SAFETY: mapped and initialised (zero pages) for as long as `self`; the two parts do not
        // overlap and any bytes are valid for both. `&mut self` is the only access: the caller
        // has checked that the kernel does not own them.
        unsafe {
            let payload = std::slice::from_raw_parts_mut(base.add(PAGE), PAYLOAD);
            (&mut *base.cast::<RingHeader>(), payload)
        }
    }

    fn release(&mut self) {
        // SAFETY: the payload's pages; their content is not wanted any more, later reads see
        // zeros. The kernel copies only inside calls of this thread, so never meanwhile.
        let _ = unsafe { madvise(self.0.byte_add(PAGE), PAYLOAD, Advice::LinuxDontNeed) };
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length; nothing refers to it any more.
        let _ = unsafe { munmap(self.0, Self::LEN) };
    }
}

impl RingEntry {
    /// Makes the memory and the io_uring instance; the kernel's FUSE side is not asked yet.
    pub(crate) fn new(device: RawFd, qid: u16) -> io::Result<RingEntry> {
        let ring = Ring::builder().setup_single_issuer().setup_defer_taskrun().build(2)?;
        let memory = ManuallyDrop::new(Memory::new()?);
        Ok(RingEntry {
            ring,
            memory,
            device,
            qid,
            pending: false,
            commit_id: 0,
            unique: 0,
            used: 0,
        })
    }

    /// Offers the entry to the kernel.
    ///
    /// # Errors
    /// Where the kernel refuses, which ends its wish for rings on this mount.
    pub(crate) fn register(&mut self) -> io::Result<()> {
        let description = self.memory.describe();
        self.command(RING_REGISTER, Some(description))?;
        self.submit()?;
        self.completed().unwrap_or(Ok(()))
    }

    fn command(&mut self, what: u32, description: Option<u64>) -> io::Result<()> {
        assert!(!self.pending, "one command at a time");
        let RingEntry { qid, commit_id, .. } = *self;
        let mut bytes = [0; 80];
        let command = RingCommand { flags: 0, commit_id, qid, padding: [0; 6] };
        bytes[..size_of::<RingCommand>()].copy_from_slice(command.as_bytes());
        let fd = types::Fd(self.device);
        let mut entry = opcode::UringCmd80::new(fd, what).cmd(bytes).addr(description).build();
        if description.is_some() {
            let at = (&raw mut entry).cast::<u8>();
            // SAFETY: the entry is the kernel's structure of 128 bytes; the crate has no setter
            // for `len`, which says how many buffers `addr` describes.
            unsafe { at.add(SUBMISSION_LEN).cast::<u32>().write_unaligned(2) };
        }
        // SAFETY: the memory that the command refers to lives until the command has completed:
        // `drop` gives it up otherwise.
        unsafe { self.ring.submission().push(&entry) }.map_err(io::Error::other)?;
        self.pending = true;
        Ok(())
    }

    fn submit(&mut self) -> io::Result<()> {
        while let Err(e) = self.ring.submit() {
            if e.kind() != io::ErrorKind::Interrupted {
                return Err(e);
            }
        }
        Ok(())
    }

    /// Waits until a request is in the memory. Submits what was not submitted yet.
    ///
    /// # Errors
    /// `ENOTCONN` and the like once the mount is gone; then the entry has ended.
    pub(crate) fn wait(&mut self) -> io::Result<()> {
        while self.pending {
            match self.completed() {
                Some(outcome) => return outcome,
                None => match self.ring.submit_and_wait(1) {
                    Err(e) if e.kind() != io::ErrorKind::Interrupted => return Err(e),
                    _ => {}
                },
            }
        }
        Ok(())
    }

    /// Takes the completion, if it has come: the memory is ours again.
    fn completed(&mut self) -> Option<io::Result<()>> {
        let result = self.ring.completion().next()?.result();
        self.pending = false;
        Some(if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(()) })
    }

    /// The request that arrived, and the memory that it leaves for a large reply.
    pub(crate) fn request(&mut self) -> Option<(Request<'_>, &mut [u8])> {
        assert!(!self.pending, "the memory is the kernel's");
        let (header, payload) = self.memory.parts();
        let (in_header, _) = InHeader::read_from_prefix(&header.in_out).ok()?;
        self.commit_id = header.entry.commit_id;
        self.unique = in_header.unique;
        let len = header.entry.payload_len as usize;
        self.used = len;
        // A request with data keeps the payload to itself until the handler has returned.
        let (data, room) =
            if len == 0 { (&[][..], payload) } else { (payload.get(..len)?, &mut [][..]) };
        Some((Request::of_parts(in_header, &header.op_in, data), room))
    }

    /// Puts the reply into the memory. `wait` or `commit` sends it.
    pub(crate) fn answer(&mut self, error: i32, body: &Body, scratch: &[u8]) -> io::Result<()> {
        assert!(!self.pending, "the memory is the kernel's");
        let (header, payload) = self.memory.parts();
        let mut put = |bytes: &[u8]| {
            let len = bytes.len().min(PAYLOAD);
            payload[..len].copy_from_slice(&bytes[..len]);
            len
        };
        let len = match body {
            Body::Silent | Body::Parked | Body::Empty => 0,
            Body::Scratch => put(scratch),
            Body::Pooled(bytes) => put(bytes),
            Body::Room(len) => *len,
        };
        let out =
            OutHeader { len: (size_of::<OutHeader>() + len) as u32, error, unique: self.unique };
        header.in_out[..size_of::<OutHeader>()].copy_from_slice(out.as_bytes());
        self.used = self.used.max(len);
        let commit_id = self.commit_id;
        header.entry = RingEntryInOut { commit_id, payload_len: len as u32, ..Default::default() };
        self.command(RING_COMMIT_AND_FETCH, None)
    }

    /// Hands the reply to the kernel without waiting for the next request.
    pub(crate) fn commit(&mut self) -> io::Result<()> {
        self.submit()
    }

    /// Whether the last request, or its reply, touched so much memory that it is worth giving back.
    pub(crate) fn used_much(&self) -> bool {
        self.used >= WORTH_RELEASING
    }

    /// Gives the payload's pages back to the system, unless the kernel has put the next request
    /// there already. After `commit`.
    pub(crate) fn release(&mut self) {
        if self.ring.completion().is_empty() {
            self.memory.release();
        }
    }
}

impl Drop for RingEntry {
    fn drop(&mut self) {
        if !self.pending {
            // SAFETY: not used again. While a command is pending the kernel may still write
            // there, and the memory is better lost than freed.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
        }
    }
}
