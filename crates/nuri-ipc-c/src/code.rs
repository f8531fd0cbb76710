//! Errors as numbers, the same as in `nuri_ipc.h`.

use std::ffi::{CStr, c_int};

use nuri_ipc::Error;

/// An argument that must not be null was, or was otherwise no argument at all.
pub(crate) const EINVAL: c_int = -13;

/// Number, name in the header, words.
pub(crate) const TABLE: [(c_int, &str, &CStr); 16] = [
    (0, "NURI_IPC_OK", c"success"),
    (-1, "NURI_IPC_EWRONGRANK", c"the rank is not in the session"),
    (-2, "NURI_IPC_EGONE", c"the peer is gone"),
    (-3, "NURI_IPC_EABSENT", c"the peer has not opened its endpoint"),
    (-4, "NURI_IPC_EBADPEER", c"the peer broke the protocol"),
    (-5, "NURI_IPC_ENOTREAD", c"the message could not be read from its sender's memory"),
    (-6, "NURI_IPC_ETRUNCATED", c"the message is longer than the buffers"),
    (-7, "NURI_IPC_EFULL", c"the heap is full"),
    (-8, "NURI_IPC_ETIMEDOUT", c"timed out"),
    (-9, "NURI_IPC_ECANCELLED", c"cancelled"),
    (-10, "NURI_IPC_EREQUEST", c"unknown request"),
    (-11, "NURI_IPC_ETAKEN", c"the rank is taken by a living process"),
    (-12, "NURI_IPC_ENAME", c"not a session name"),
    (EINVAL, "NURI_IPC_EINVAL", c"an argument is out of range"),
    (-14, "NURI_IPC_EPRIVATE", c"the session's directory is not private to this user"),
    (-15, "NURI_IPC_ESYSTEM", c"the operating system refused; see errno"),
];

/// The number of an error. One of the system's is left in `errno`.
pub(crate) fn of(error: &Error) -> c_int {
    match error {
        Error::WrongRank { .. } => -1,
        Error::PeerGone { .. } => -2,
        Error::PeerAbsent { .. } => -3,
        Error::BadPeer { .. } => -4,
        Error::NotRead { .. } => -5,
        Error::Truncated { .. } => -6,
        Error::HeapFull => -7,
        Error::TimedOut => -8,
        Error::Cancelled => -9,
        Error::UnknownRequest => -10,
        Error::RankTaken { .. } => -11,
        Error::BadName(_) => -12,
        Error::OutOfRange(_) => EINVAL,
        Error::NotPrivate(_) => -14,
        Error::System { errno, .. } => {
            crate::set_errno(errno.raw_os_error());
            -15
        }
    }
}
