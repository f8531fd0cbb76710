//! Prepares a process that stays in the background. It passes no open files on to the processes
//! that it starts. It may be given a listening socket, and the kernel spares it when memory is
//! short.
//!
//! Callers: the commands that become, or start, a process of a space.
#![allow(unsafe_code)]

use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::net::sockopt::socket_acceptconn;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors that a mount or a node needs at least.
const FEWEST_DESCRIPTORS: u64 = 1024;
/// What the kernel adds to a process's share of memory, in thousandths, when it looks for one to
/// end where memory is short.
const OOM_SCORE: &str = "/proc/self/oom_score_adj";
const SPARED: &str = "-900";
const AS_OTHERS: &str = "0";

/// No process that this one starts gets a descriptor above 2 that this one was given. A lock or a
/// pipe of the starting shell would otherwise be held for as long as the space runs.
pub fn pass_on_nothing() {
    // SAFETY: the call sets a flag on descriptors and closes none; it touches no memory.
    let marked = unsafe { libc::close_range(3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC as i32) };
    // Kernels before 5.11 do not know it; there the descriptors are passed on as before.
    let _ = marked;
}

/// Environment variable with the number of a listening socket that a process is given.
pub const LISTENER: &str = "NURI_LISTENER";

/// The listening socket that the process was given by the one that started it, the first time that
/// this is asked.
pub fn given_listener() -> Option<TcpListener> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let number: RawFd = std::env::var(LISTENER).ok()?.parse().ok().filter(|fd| *fd > 2)?;
    if TAKEN.swap(true, Ordering::SeqCst) {
        return None;
    }
    // SAFETY: the descriptor is only looked at; a number that is not open is an error below.
    let look = unsafe { BorrowedFd::borrow_raw(number) };
    if !socket_acceptconn(look.as_fd()).unwrap_or(false) {
        return None;
    }
    // SAFETY: it is open, the parent opened it for this process, nothing else here knows the
    // number, and it is taken once.
    let owned = unsafe { OwnedFd::from_raw_fd(number) };
    let _ = rustix::io::fcntl_setfd(&owned, rustix::io::FdFlags::CLOEXEC);
    Some(TcpListener::from(owned))
}

/// Where memory is short others are ended first: this process starts them anew. What it starts is
/// spared too until it says otherwise.
pub fn is_spared_by_oom() {
    // Not everybody may; then it is one of many.
    let _ = std::fs::write(OOM_SCORE, SPARED);
}

/// Takes back what a process has from who started it by [`is_spared_by_oom`].
pub fn is_as_others_to_oom() {
    if std::fs::read_to_string(OOM_SCORE).is_ok_and(|score| score.trim() == SPARED) {
        let _ = std::fs::write(OOM_SCORE, AS_OTHERS);
    }
}

/// The hard limit of open files is too low.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "only {0} files may be open at once, and nuri needs {FEWEST_DESCRIPTORS}: raise the hard limit \
     (ulimit -Hn {FEWEST_DESCRIPTORS}, or LimitNOFILE= of the service)"
)]
pub struct TooFewDescriptors(u64);

/// Raises the limits of this process as far as it may.
///
/// # Errors
/// Where even then it could not keep enough descriptors open; says the limit.
pub fn raise_limits() -> Result<(), TooFewDescriptors> {
    for resource in [Resource::Nofile, Resource::Nproc, Resource::Memlock] {
        let maximum = getrlimit(resource).maximum;
        // What is refused stays as it was.
        let _ = setrlimit(resource, Rlimit { current: maximum, maximum });
    }
    match getrlimit(Resource::Nofile).current {
        Some(most) if most < FEWEST_DESCRIPTORS => Err(TooFewDescriptors(most)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_is_the_hard_one() {
        raise_limits().unwrap();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
    }
}
