//! Every maximum of the system in one place, their relations proved at compile time.

/// Unit of checksums and allocation on a target, and of alignment for direct I/O, bytes.
pub const BLOCK: u64 = 4096;
/// Longest extent of a chunk on a target, and the largest payload of one frame, bytes.
pub const MAX_PAYLOAD: usize = 1 << 20;
/// Longest encoded argument list of one frame, bytes.
pub const MAX_ARGS: usize = 256 << 10;
/// Bounds of a file's chunk size, bytes.
pub const MIN_CHUNK: u32 = 64 << 10;
pub const MAX_CHUNK: u32 = 64 << 20;
/// Default chunk size of a file, bytes.
pub const DEFAULT_CHUNK: u32 = 1 << 20;
/// Most groups that a file rotates over.
pub const MAX_WIDTH: u16 = 256;
/// Most data and parity members of a group, and most copies.
pub const MAX_DATA: usize = 16;
pub const MAX_PARITY: usize = 4;
pub const MAX_COPIES: usize = 4;
pub const MAX_MEMBERS: usize = MAX_DATA + MAX_PARITY;
/// Longest name of a directory entry, bytes.
pub const MAX_NAME: usize = 255;
/// Longest symbolic link, bytes.
pub const MAX_SYMLINK: usize = 4095;
/// Files up to this length live in the inode record, bytes.
pub const MAX_INLINE: u64 = 8 << 10;
/// Largest value of one extended attribute, bytes (Linux's own limit).
pub const MAX_XATTR_VALUE: usize = 64 << 10;
/// Most bytes of all extended attribute names of one inode.
pub const MAX_XATTR_LIST: usize = 64 << 10;
/// Most bytes of names and values of all extended attributes that are read at once.
pub const MAX_XATTRS_READ: usize = 64 << 10;
/// Most hard links to one inode.
pub const MAX_LINKS: u32 = 65_000;
/// Largest file: chunk rows are 32 bit, so the bound follows from the smallest chunk size.
pub const MAX_FILE: u64 = (u32::MAX as u64) * MIN_CHUNK as u64;
/// Reply slots of one session: at most this many mutating calls in flight.
pub const SESSION_SLOTS: u32 = 64;
/// Locks of one session and of all, counted as ranges, and waits for locks.
pub const SESSION_LOCKS: usize = 65_536;
/// Files whose locks a session may decide about by itself, and locks that it may give there: all
/// of them have to fit into one call.
pub const SESSION_LOCK_FILES: usize = 256;
pub const DELEGATED_LOCKS: usize = 256;
pub const MAX_LOCKS: usize = 1 << 20;
pub const SESSION_LOCK_WAITS: usize = 4096;
pub const MAX_LOCK_WAITS: usize = 65_536;
/// Sessions at once: a heartbeat's answer names them all.
pub const MAX_SESSIONS: usize = 16_384;
/// Most allocated bytes that may be published for a file, over all targets, with parity.
pub const MAX_ALLOCATED: u64 = 1 << 56;
/// Most events that one reply carries.
pub const MAX_EVENTS: usize = 4096;
/// Most targets and nodes of a space.
pub const MAX_TARGETS: usize = 4096;
pub const MAX_NODES: usize = 64;
/// Most stripes in one answer; a shorter answer is the last one.
pub const MAX_LISTED: u32 = 1024;
/// Most inodes that one call asks for.
pub const MAX_CHILDREN: usize = 256;
/// Most entries of one directory listing reply.
pub const MAX_READDIR: u32 = 1024;
/// Writes shorter than this go to a target's log first; longer ones to new places once, bytes.
pub const LOG_FIRST: u64 = 64 << 10;

const _: () = assert!((MAX_PAYLOAD as u64).is_multiple_of(BLOCK));
const _: () = assert!(
    (MIN_CHUNK as u64).is_multiple_of(BLOCK) && (MAX_CHUNK as usize).is_multiple_of(MAX_PAYLOAD)
);
const _: () = assert!(DEFAULT_CHUNK >= MIN_CHUNK && DEFAULT_CHUNK <= MAX_CHUNK);
const _: () = assert!(MAX_INLINE < LOG_FIRST && LOG_FIRST as usize <= MAX_PAYLOAD);
const _: () = assert!(MAX_XATTR_VALUE <= MAX_ARGS && MAX_XATTR_LIST <= MAX_ARGS);
const _: () = assert!(2 * MAX_XATTRS_READ <= MAX_ARGS);
const _: () = assert!(MAX_EVENTS * 48 <= MAX_ARGS && SESSION_LOCK_WAITS <= MAX_LOCK_WAITS);
const _: () = assert!(SESSION_LOCKS <= MAX_LOCKS && DELEGATED_LOCKS * 64 <= MAX_ARGS);
const _: () = assert!((SESSION_LOCK_FILES / 2) * DELEGATED_LOCKS < SESSION_LOCKS);
const _: () = assert!(MAX_SESSIONS * 10 <= MAX_ARGS && MAX_FILE < MAX_ALLOCATED);
const _: () = assert!(MAX_SYMLINK < MAX_ARGS && MAX_INLINE as usize <= MAX_PAYLOAD);
/// Most ranges of a file that are granted at once beyond the requested one.
pub const MAX_AHEAD: u32 = 256;
/// Most ranges of a file that a session holds.
pub const MAX_PARTS: usize = 4096;
/// The first bytes of a target.
pub const TARGET_MAGIC: &[u8; 8] = b"NURI-TGT";
