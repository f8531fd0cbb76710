//! NFS version 3 (RFC 1813) on the wire, with the parts that belong to it. [`call`] is what clients
//! ask, [`attributes`] what they are told of files, and [`status`] why a call fails.

use std::ops::RangeInclusive;

pub mod attributes;
pub mod call;
pub mod status;

/// A program of ONC RPC.
pub const NFS: u32 = 100_003;
pub const MOUNT: u32 = 100_005;
pub const PORT_MAPPER: u32 = 100_000;
pub const NFS_VERSION: u32 = 3;
pub const MOUNT_VERSION: u32 = 3;
pub const PORT_MAPPER_VERSIONS: RangeInclusive<u32> = 2..=4;

/// Bytes of a handle, at most.
pub const LONGEST_HANDLE: usize = 64;
/// Bytes of a name, as they may come; the space has a bound of its own.
pub const LONGEST_NAME: usize = 1024;
/// Bytes of a path.
pub const LONGEST_PATH: usize = 4096;
/// Bytes of one READ or WRITE.
pub const MOST_DATA: u32 = 1 << 20;
/// Bytes of one answer to READDIR or READDIRPLUS.
pub const MOST_ENTRIES: u32 = 1 << 20;
/// Bytes of a call: the data and what stands around it.
pub const LONGEST_CALL: usize = MOST_DATA as usize + 4096;
