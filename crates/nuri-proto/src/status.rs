//! What a reply says: success, an errno for the program, or a condition that the caller handles.

use std::fmt;

/// Outcome of a call. Values below 4096 are Linux errno numbers and reach the program as they are;
/// the others tell the caller's next step and never reach a program unmapped.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(pub u32);

/// What a caller may do after a failed call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RetryClass {
    /// The answer is final.
    Never,
    /// The same call may succeed later or elsewhere, with the same (session, slot, sequence).
    Later,
    /// The session is gone: open another one; what it cached is void.
    NewSession,
}

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $value:expr, $errno:expr, $class:ident, $text:expr;)*) => {
        impl Status {
            $($(#[$doc])* pub const $name: Status = Status($value);)*

            /// The errno that a program sees.
            pub fn errno(self) -> i32 {
                match self { $(Status::$name => $errno,)* other => other.0 as i32 & 0xfff }
            }

            /// What the caller may do.
            pub fn retry(self) -> RetryClass {
                match self { $(Status::$name => RetryClass::$class,)* _ => RetryClass::Never }
            }

            fn text(self) -> &'static str {
                match self { $(Status::$name => $text,)* _ => "system error" }
            }
        }
    };
}

statuses! {
    OK = 0, 0, Never, "ok";
    PERM = 1, 1, Never, "operation not permitted";
    NOENT = 2, 2, Never, "no such file or directory";
    INTR = 4, 4, Never, "interrupted";
    IO = 5, 5, Never, "input/output error";
    NXIO = 6, 6, Never, "no data there";
    TOOBIG = 7, 7, Never, "too long for the store";
    BADF = 9, 9, Never, "bad file descriptor";
    AGAIN = 11, 11, Never, "try again";
    NOMEM = 12, 12, Never, "out of memory";
    ACCES = 13, 13, Never, "permission denied";
    BUSY = 16, 16, Never, "resource busy";
    EXIST = 17, 17, Never, "file exists";
    XDEV = 18, 18, Never, "other file system";
    NOTDIR = 20, 20, Never, "not a directory";
    ISDIR = 21, 21, Never, "is a directory";
    INVAL = 22, 22, Never, "invalid argument";
    FBIG = 27, 27, Never, "file too large";
    NOSPC = 28, 28, Never, "no space left on the space's targets";
    ROFS = 30, 30, Never, "read-only";
    MLINK = 31, 31, Never, "too many links";
    RANGE = 34, 34, Never, "buffer too small";
    DEADLK = 35, 35, Never, "resource deadlock avoided";
    NAMETOOLONG = 36, 36, Never, "name too long";
    NOLCK = 37, 37, Never, "no locks available";
    NOTEMPTY = 39, 39, Never, "directory not empty";
    NODATA = 61, 61, Never, "no such attribute";
    NOTSUP = 95, 95, Never, "operation not supported";
    STALE = 116, 116, Never, "stale file handle";
    /// The server is starting, in grace, or has no room: ask again.
    RETRY = 4096, 5, Later, "server not ready";
    /// The connection broke or timed out before a reply came.
    UNREACHABLE = 4097, 5, Later, "server not reachable";
    /// The session is unknown or was evicted.
    SESSION_GONE = 4098, 5, NewSession, "session ended";
    /// A stored block failed its checksum.
    CORRUPT = 4099, 5, Never, "stored data failed its checksum";
    /// The peer speaks for another cluster, target or incarnation.
    WRONG_PEER = 4100, 5, Never, "peer belongs to another space";
    /// The frame or its arguments could not be parsed.
    MALFORMED = 4101, 5, Never, "malformed request";
    /// The store stopped after an I/O error; it must be reopened.
    OUT_OF_SERVICE = 4102, 5, Later, "target out of service after an I/O error";
    /// A staged write must be settled first.
    UNDECIDED = 4104, 5, Never, "a write is undecided";
    /// The group has another epoch than the caller or the member knows: fetch the map, ask again.
    EPOCH = 4105, 5, Later, "the stripe group changed";
    /// The member may have missed writes: ask the others.
    BEHIND = 4106, 5, Never, "member is not up to date";
    /// The call was done, and answered, in another session.
    DONE_BEFORE = 4107, 5, Never, "done before";
}

impl Status {
    /// `Ok` for [`Status::OK`], else the status as the error.
    pub fn into_result(self) -> Result<(), Status> {
        if self == Status::OK { Ok(()) } else { Err(self) }
    }

    /// The status for an errno of the operating system.
    pub fn from_errno(errno: i32) -> Status {
        if (1..4096).contains(&errno) { Status(errno as u32) } else { Status::IO }
    }

    /// The status for an error of the operating system.
    pub fn from_io(error: &std::io::Error) -> Status {
        error.raw_os_error().map_or(Status::IO, Status::from_errno)
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.text(), self.0)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl std::error::Error for Status {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_errno_passes_through_and_own_codes_are_eio() {
        assert_eq!(Status(38).errno(), 38);
        assert_eq!(Status::CORRUPT.errno(), 5);
        assert_eq!(Status::from_errno(0), Status::IO);
        assert_eq!(Status::UNREACHABLE.retry(), RetryClass::Later);
    }
}
