//! The kernel's structures (`include/uapi/linux/fuse.h`), native byte order.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub const MAJOR: u32 = 7;
/// The minor version that this code was written against.
pub const MINOR: u32 = 45;
/// First minor that knows `NOTIFY_INC_EPOCH`.
pub const MINOR_EPOCH: u32 = 44;
/// First minor that knows `NOTIFY_PRUNE`.
pub const MINOR_PRUNE: u32 = 45;

macro_rules! opcodes {
    ($($name:ident = $value:expr,)*) => { $(pub const $name: u32 = $value;)* };
}
opcodes! {
    LOOKUP = 1, FORGET = 2, GETATTR = 3, SETATTR = 4, READLINK = 5, SYMLINK = 6, MKNOD = 8,
    MKDIR = 9, UNLINK = 10, RMDIR = 11, RENAME = 12, LINK = 13, OPEN = 14, READ = 15, WRITE = 16,
    STATFS = 17, RELEASE = 18, FSYNC = 20, SETXATTR = 21, GETXATTR = 22, LISTXATTR = 23,
    REMOVEXATTR = 24, FLUSH = 25, INIT = 26, OPENDIR = 27, READDIR = 28, RELEASEDIR = 29,
    FSYNCDIR = 30, GETLK = 31, SETLK = 32, SETLKW = 33, CREATE = 35, INTERRUPT = 36, DESTROY = 38,
    IOCTL = 39, BATCH_FORGET = 42, FALLOCATE = 43,
    READDIRPLUS = 44, RENAME2 = 45, LSEEK = 46, COPY_FILE_RANGE = 47, SYNCFS = 50,
    TMPFILE = 51, STATX = 52,
}

// INIT flags.
pub const ASYNC_READ: u64 = 1 << 0;
pub const POSIX_LOCKS: u64 = 1 << 1;
pub const EXPORT_SUPPORT: u64 = 1 << 4;
pub const BIG_WRITES: u64 = 1 << 5;
pub const DONT_MASK: u64 = 1 << 6;
pub const FLOCK_LOCKS: u64 = 1 << 10;
pub const DO_READDIRPLUS: u64 = 1 << 13;
pub const READDIRPLUS_AUTO: u64 = 1 << 14;
pub const ASYNC_DIO: u64 = 1 << 15;
pub const PARALLEL_DIROPS: u64 = 1 << 18;
pub const POSIX_ACL: u64 = 1 << 20;
pub const MAX_PAGES: u64 = 1 << 22;
pub const CACHE_SYMLINKS: u64 = 1 << 23;
pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
pub const SETXATTR_EXT: u64 = 1 << 29;
pub const INIT_EXT: u64 = 1 << 30;
pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
pub const OVER_IO_URING: u64 = 1 << 41;

// OPEN reply flags.
pub const FOPEN_DIRECT_IO: u32 = 1 << 0;
pub const FOPEN_KEEP_CACHE: u32 = 1 << 1;
pub const FOPEN_PARALLEL_DIRECT_WRITES: u32 = 1 << 6;

// WRITE flags: the bytes come from the page cache, not from a program's call.
pub const WRITE_CACHE: u32 = 1 << 0;
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;

// IOCTL flags: the descriptor is a directory's.
pub const IOCTL_DIR: u32 = 1 << 4;

// Lock flags.
pub const LK_FLOCK: u32 = 1 << 0;

// SETATTR valid bits.
pub const FATTR_MODE: u32 = 1 << 0;
pub const FATTR_UID: u32 = 1 << 1;
pub const FATTR_GID: u32 = 1 << 2;
pub const FATTR_SIZE: u32 = 1 << 3;
pub const FATTR_ATIME: u32 = 1 << 4;
pub const FATTR_MTIME: u32 = 1 << 5;
pub const FATTR_ATIME_NOW: u32 = 1 << 7;
pub const FATTR_MTIME_NOW: u32 = 1 << 8;
pub const FATTR_KILL_SUIDGID: u32 = 1 << 11;

// SETXATTR flags: the caller is not in the file's group.
pub const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;

// Commands of a ring entry.
pub const RING_REGISTER: u32 = 1;
pub const RING_COMMIT_AND_FETCH: u32 = 2;

// Notifications.
pub const NOTIFY_INVAL_INODE: i32 = 2;
pub const NOTIFY_INC_EPOCH: i32 = 8;
pub const NOTIFY_PRUNE: i32 = 9;

macro_rules! wire {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $ty:ty,)* }) => {
        $(#[$doc])*
        #[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Debug, Default)]
        #[repr(C)]
        pub struct $name { $(pub $field: $ty,)* }
    };
}

wire! {
    /// Before every request.
    InHeader {
        len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32,
        extlen: u16, padding: u16,
    }
}
wire! {
    /// Before every reply and notification.
    OutHeader { len: u32, error: i32, unique: u64, }
}
wire! {
    InitIn {
        major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32, unused: [u32; 11],
    }
}
wire! {
    InitOut {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16,
        congestion_threshold: u16, max_write: u32, time_gran: u32, max_pages: u16,
        map_alignment: u16, flags2: u32, max_stack_depth: u32, request_timeout: u16,
        unused: [u16; 11],
    }
}
wire! {
    Attr {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64, atimensec: u32,
        mtimensec: u32, ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32,
        blksize: u32, flags: u32,
    }
}
wire! {
    EntryOut {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32,
        attr_valid_nsec: u32, attr: Attr,
    }
}
wire! { AttrOut { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr, } }
wire! {
    StatxIn { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32, }
}
wire! { StatxTime { sec: i64, nsec: u32, reserved: i32, } }
wire! {
    StatxOut {
        attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], mask: u32,
        blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16, spare0: u16,
        ino: u64, size: u64, blocks: u64, attributes_mask: u64, atime: StatxTime,
        btime: StatxTime, ctime: StatxTime, mtime: StatxTime, rdev_major: u32, rdev_minor: u32,
        dev_major: u32, dev_minor: u32, spare2: [u64; 14],
    }
}
wire! { ForgetIn { nlookup: u64, } }
wire! { BatchForgetIn { count: u32, dummy: u32, } }
wire! { ForgetOne { nodeid: u64, nlookup: u64, } }
wire! { MknodIn { mode: u32, rdev: u32, umask: u32, padding: u32, } }
wire! { MkdirIn { mode: u32, umask: u32, } }
wire! { RenameIn { newdir: u64, } }
wire! { Rename2In { newdir: u64, flags: u32, padding: u32, } }
wire! { LinkIn { oldnodeid: u64, } }
wire! {
    SetattrIn {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64,
        ctime: u64, atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32,
        uid: u32, gid: u32, unused5: u32,
    }
}
wire! { OpenIn { flags: u32, open_flags: u32, } }
wire! { CreateIn { flags: u32, mode: u32, umask: u32, open_flags: u32, } }
wire! { OpenOut { fh: u64, open_flags: u32, backing_id: i32, } }
wire! { ReleaseIn { fh: u64, flags: u32, release_flags: u32, lock_owner: u64, } }
wire! { IoctlIn { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32, } }
wire! { IoctlOut { result: i32, flags: u32, in_iovs: u32, out_iovs: u32, } }
wire! { FlushIn { fh: u64, unused: u32, padding: u32, lock_owner: u64, } }
wire! {
    ReadIn {
        fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32,
        padding: u32,
    }
}
wire! {
    WriteIn {
        fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32,
        padding: u32,
    }
}
wire! { WriteOut { size: u32, padding: u32, } }
wire! { FsyncIn { fh: u64, fsync_flags: u32, padding: u32, } }
wire! { InterruptIn { unique: u64, } }
wire! {
    /// `kind` is one of `F_RDLCK`, `F_WRLCK`, `F_UNLCK`; `end` is the last byte.
    FileLock { start: u64, end: u64, kind: u32, pid: u32, }
}
wire! { LkIn { fh: u64, owner: u64, lk: FileLock, lk_flags: u32, padding: u32, } }
wire! { LkOut { lk: FileLock, } }
wire! { SetxattrIn { size: u32, flags: u32, } }
wire! {
    /// Follows where `SETXATTR_EXT` was agreed.
    SetxattrMore { setxattr_flags: u32, padding: u32, }
}
wire! { GetxattrIn { size: u32, padding: u32, } }
wire! { GetxattrOut { size: u32, padding: u32, } }
wire! { FallocateIn { fh: u64, offset: u64, length: u64, mode: u32, padding: u32, } }
wire! { LseekIn { fh: u64, offset: u64, whence: u32, padding: u32, } }
wire! { LseekOut { offset: u64, } }
wire! {
    CopyFileRangeIn {
        fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64,
    }
}
wire! {
    StatfsOut {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32,
        frsize: u32, padding: u32, spare: [u32; 6],
    }
}
wire! { Dirent { ino: u64, off: u64, namelen: u32, kind: u32, } }
wire! { NotifyInvalInode { ino: u64, off: i64, len: i64, } }
wire! {
    /// So many inode numbers follow.
    NotifyPrune { count: u32, padding: u32, spare: u64, }
}
wire! {
    /// What a ring command carries beside the buffers.
    RingCommand { flags: u64, commit_id: u64, qid: u16, padding: [u8; 6], }
}
wire! {
    /// The end of a ring entry's header: how long its payload is, and what a reply names.
    RingEntryInOut { flags: u64, commit_id: u64, payload_len: u32, padding: u32, reserved: u64, }
}

/// Bytes for `InHeader` or `OutHeader`, and for the operation's structure, in a ring entry.
pub const RING_PART: usize = 128;

/// Header of a ring entry, written by both sides in turn.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RingHeader {
    pub in_out: [u8; RING_PART],
    pub op_in: [u8; RING_PART],
    pub entry: RingEntryInOut,
}

const _: () = assert!(size_of::<InHeader>() == 40 && size_of::<OutHeader>() == 16);
const _: () = assert!(size_of::<InitIn>() == 64 && size_of::<InitOut>() == 64);
const _: () = assert!(size_of::<RingCommand>() == 24 && size_of::<RingHeader>() == 288);
const _: () = assert!(size_of::<Attr>() == 88 && size_of::<EntryOut>() == 128);
const _: () = assert!(size_of::<StatxIn>() == 24 && size_of::<StatxOut>() == 288);
const _: () = assert!(size_of::<LkIn>() == 48 && size_of::<LkOut>() == 24);
const _: () = assert!(size_of::<SetattrIn>() == 88 && size_of::<StatfsOut>() == 80);
