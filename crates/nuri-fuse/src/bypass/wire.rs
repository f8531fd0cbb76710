//! The messages between `libnuri_preload` and a mount, in native byte order, as both are on one
//! machine. The same in C: `preload/bypass.h`.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The ioctl that gives a [`Ticket`]: `_IOR('N', 1, Ticket)`.
pub(crate) const TICKET: u32 =
    2 << 30 | (size_of::<Ticket>() as u32) << 16 | (b'N' as u32) << 8 | 1;
pub(super) const VERSION: u32 = 1;
/// Most bytes of one request.
pub(super) const LARGEST: u64 = 1 << 20;

pub(super) const READ: u32 = 1;
pub(super) const WRITE: u32 = 2;

/// How an open file is reached.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Ticket {
    pub(super) version: u32,
    pub(super) largest: u32,
    pub(super) ticket: [u8; 16],
    /// Of the abstract socket, zero-terminated.
    pub(super) name: [u8; 32],
    pub(super) reserved: u64,
}

/// A request. The bytes of a write come by the pipe from the program, those that a read is
/// answered with by the pipe to it.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Ask {
    pub(super) ticket: [u8; 16],
    pub(super) what: u32,
    pub(super) padding: u32,
    pub(super) offset: u64,
    pub(super) len: u64,
}

/// Bytes that were moved, or a negative error number.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Answer {
    pub(super) result: i64,
}
