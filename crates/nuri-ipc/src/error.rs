//! What can go wrong, one variant for each thing the caller may do about it.

use std::path::PathBuf;

use rustix::io::Errno;

/// Why a call or a request failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The rank is not one of the session's; nothing was sent.
    #[error("rank {rank} is not in a session of {size}")]
    WrongRank {
        /// The rank asked for.
        rank: u32,
        /// Ranks of the session are below this.
        size: u32,
    },
    /// The peer ended or closed its endpoint. What it sent before can still be received.
    #[error("peer {rank} is gone")]
    PeerGone {
        /// Who is gone.
        rank: u32,
    },
    /// The peer has not opened its endpoint within the connect timeout.
    #[error("peer {rank} has not opened its endpoint")]
    PeerAbsent {
        /// Who did not come.
        rank: u32,
    },
    /// The peer broke the protocol. The links with it are cut, which it sees as
    /// [`Error::PeerGone`]; the endpoint works on with the others.
    #[error("peer {rank} broke the protocol")]
    BadPeer {
        /// Who broke it.
        rank: u32,
    },
    /// A message was to be copied from its sender's memory and could not be: the sender unmapped
    /// it or died. Both ends see this.
    #[error("a message with peer {rank} could not be read from its sender's memory")]
    NotRead {
        /// The other end.
        rank: u32,
    },
    /// The message is longer than the buffers: they are full, the rest of it is lost.
    #[error("a message of {length} bytes came for a buffer of {room}")]
    Truncated {
        /// Length of the message in bytes.
        length: u64,
        /// Length of the buffers in bytes.
        room: u64,
    },
    /// No buffer of that length is free in the heap; peers hold the rest, or the program does.
    #[error("the heap is full")]
    HeapFull,
    /// Time ran out; the request, if there is one, goes on.
    #[error("timed out")]
    TimedOut,
    /// The request was cancelled.
    #[error("cancelled")]
    Cancelled,
    /// No such request: it was waited for already, or belongs to another endpoint.
    #[error("unknown request")]
    UnknownRequest,
    /// Another living process has this rank in this session.
    #[error("rank {rank} is taken by a living process")]
    RankTaken {
        /// The rank asked for.
        rank: u32,
    },
    /// A session name is 1 to 40 of `A-Z a-z 0-9 _ - .` and does not begin with a dot.
    #[error("not a session name: {0:?}")]
    BadName(String),
    /// A directory that others may enter or that somebody else owns.
    #[error("{0:?} is not a directory of this user with mode 0700")]
    NotPrivate(PathBuf),
    /// A value outside its bounds; the text says which.
    #[error("{0}")]
    OutOfRange(&'static str),
    /// The operating system refused.
    #[error("{what}: {errno}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What it answered.
        errno: Errno,
    },
}

/// Result of nearly every call here.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Names what was tried when the system refuses.
pub(crate) fn system(what: &'static str) -> impl FnOnce(Errno) -> Error {
    move |errno| Error::System { what, errno }
}

/// As [`system`], for calls of the standard library.
pub(crate) fn io(what: &'static str) -> impl FnOnce(std::io::Error) -> Error {
    move |e| Error::System { what, errno: Errno::from_io_error(&e).unwrap_or(Errno::IO) }
}
