//! Numbers of the NBD protocol (doc/proto.md of the project NetworkBlockDevice/nbd). All are
//! big-endian on the wire.

pub(crate) mod reply;
pub(crate) mod request;

/// A server's first words, and what comes before each option.
pub(crate) const GREETING: u64 = u64::from_be_bytes(*b"NBDMAGIC");
pub(crate) const OPTION: u64 = u64::from_be_bytes(*b"IHAVEOPT");
/// Before the answer to an option.
pub(crate) const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;

/// What server and client say of themselves in the handshake.
pub(crate) mod handshake_flag {
    pub const FIXED_NEWSTYLE: u16 = 1;
    pub const NO_ZEROES: u16 = 2;
}

pub(crate) mod option {
    pub const EXPORT_NAME: u32 = 1;
    pub const ABORT: u32 = 2;
    pub const LIST: u32 = 3;
    pub const STARTTLS: u32 = 5;
    pub const INFO: u32 = 6;
    pub const GO: u32 = 7;
    pub const STRUCTURED_REPLY: u32 = 8;
    pub const LIST_META_CONTEXT: u32 = 9;
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Kinds of answers to an option.
pub(crate) mod option_reply {
    pub const ACK: u32 = 1;
    pub const SERVER: u32 = 2;
    pub const INFO: u32 = 3;
    pub const META_CONTEXT: u32 = 4;
    const ERROR: u32 = 1 << 31;
    pub const UNSUPPORTED: u32 = ERROR + 1;
    pub const POLICY: u32 = ERROR + 2;
    pub const INVALID: u32 = ERROR + 3;
    pub const TLS_REQUIRED: u32 = ERROR + 5;
    pub const UNKNOWN: u32 = ERROR + 6;
    pub const TOO_BIG: u32 = ERROR + 9;

    pub fn is_error(kind: u32) -> bool {
        kind & ERROR != 0
    }
}

/// Kinds of information on an export.
pub(crate) mod info {
    pub const EXPORT: u16 = 0;
    pub const NAME: u16 = 1;
    pub const DESCRIPTION: u16 = 2;
    pub const BLOCK_SIZE: u16 = 3;
}

/// What can be done with an export.
pub(crate) mod export_flag {
    pub const HAS_FLAGS: u16 = 1 << 0;
    pub const READ_ONLY: u16 = 1 << 1;
    pub const SEND_FLUSH: u16 = 1 << 2;
    pub const SEND_FUA: u16 = 1 << 3;
    pub const SEND_TRIM: u16 = 1 << 5;
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub const SEND_DF: u16 = 1 << 7;
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    pub const SEND_CACHE: u16 = 1 << 10;
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

pub(crate) const REQUEST: u32 = 0x2560_9513;
pub(crate) const SIMPLE_REPLY: u32 = 0x6744_6698;
pub(crate) const STRUCTURED_REPLY: u32 = 0x668e_33ef;

pub(crate) mod command {
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const DISCONNECT: u16 = 2;
    pub const FLUSH: u16 = 3;
    pub const TRIM: u16 = 4;
    pub const CACHE: u16 = 5;
    pub const WRITE_ZEROES: u16 = 6;
    pub const BLOCK_STATUS: u16 = 7;
    /// Between servers of this project only: the time of the one that is asked.
    pub const STAMP: u16 = 0x4e00;
}

pub(crate) mod command_flag {
    pub const FUA: u16 = 1 << 0;
    pub const NO_HOLE: u16 = 1 << 1;
    /// The answer shall be one piece.
    pub const DF: u16 = 1 << 2;
    pub const REQ_ONE: u16 = 1 << 3;
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Kinds of pieces of a structured reply.
pub(crate) mod chunk {
    pub const DONE: u16 = 1;
    pub const NONE: u16 = 0;
    pub const OFFSET_DATA: u16 = 1;
    pub const BLOCK_STATUS: u16 = 5;
    pub const ERROR: u16 = (1 << 15) + 1;
}

/// What `base:allocation` says of a range.
pub(crate) mod allocation {
    pub const HOLE: u32 = 1;
    pub const ZERO: u32 = 2;
}

/// Why a request failed, as the client is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Errno {
    Perm = 1,
    Io = 5,
    NoMem = 12,
    Invalid = 22,
    NoSpace = 28,
    Overflow = 75,
    NotSupported = 95,
    Shutdown = 108,
}

impl Errno {
    /// As another server told it. What is not known here is as good as EIO.
    pub(crate) fn of(number: u32) -> Errno {
        let all = [
            Errno::Perm,
            Errno::NoMem,
            Errno::Invalid,
            Errno::NoSpace,
            Errno::Overflow,
            Errno::NotSupported,
            Errno::Shutdown,
        ];
        all.into_iter().find(|errno| *errno as u32 == number).unwrap_or(Errno::Io)
    }

    pub(crate) fn words(self) -> &'static str {
        match self {
            Errno::Perm => "the export is read-only",
            Errno::Io => "the data cannot be reached, or is damaged",
            Errno::NoMem => "the server has no memory for it",
            Errno::Invalid => "the request is not valid",
            Errno::NoSpace => "the space is full, or the request reaches beyond the end",
            Errno::Overflow => "so much is not answered in one piece",
            Errno::NotSupported => "it cannot be done fast",
            Errno::Shutdown => "the server is ending",
        }
    }
}

/// The only name of information on ranges that there is, and its number.
pub(crate) const ALLOCATION: &str = "base:allocation";
pub(crate) const ALLOCATION_ID: u32 = 1;

/// Longest name of an export.
pub const MAX_NAME: usize = 4096;
/// Largest read or write.
pub const MAX_PAYLOAD: u32 = 32 << 20;
