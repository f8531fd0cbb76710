//! One copy by the kernel, straight from the sender's memory, where the kernel allows that.
//!
//! The kernel allows it between processes of one user, unless ptrace is restricted. Each link tries
//! it once, when it is set up, and no link needs it. Addresses that a peer names are addresses in
//! that peer: a wrong one makes the call fail and harms no other process.

#![allow(unsafe_code)]

use rustix::io::Errno;
use rustix::process::Pid;

use crate::error::{Result, system};
use crate::span::Scatter;

/// Most parts of a message: their places fill a record.
pub(crate) const PARTS: usize = 60;

/// Tries to read a word of a peer's that is known otherwise.
pub(crate) fn probe(pid: Pid, address: u64, word: u64) -> std::result::Result<(), Errno> {
    let mut bytes = [0; 8];
    // SAFETY: the array outlives the scatter.
    let into = unsafe { Scatter::new(std::iter::once((bytes.as_mut_ptr(), bytes.len()))) };
    read_some(pid, &into, 0, &[(address, 8)])?;
    if u64::from_ne_bytes(bytes) == word { Ok(()) } else { Err(Errno::SRCH) }
}

/// Reads all parts, in order, as far as there is room for them.
///
/// # Errors
/// What the kernel says: the source is not mapped (`EFAULT`), the process is gone (`ESRCH`).
pub(crate) fn read(pid: Pid, into: &Scatter, parts: &[(u64, u64)]) -> Result<()> {
    let mut done = 0;
    let mut left: Vec<(u64, u64)> = parts.to_vec();
    while done < into.len() && !left.is_empty() {
        let moved = read_some(pid, into, done, &left).map_err(system("process_vm_readv"))?;
        if moved == 0 {
            return Err(system("process_vm_readv")(Errno::FAULT));
        }
        done += moved;
        skip(&mut left, moved as u64);
    }
    Ok(())
}

/// As [`read`], into one private buffer.
pub(crate) fn read_into(pid: Pid, into: &mut [u8], parts: &[(u64, u64)]) -> Result<()> {
    // SAFETY: the slice outlives the scatter.
    let into = unsafe { Scatter::new(std::iter::once((into.as_mut_ptr(), into.len()))) };
    read(pid, &into, parts)
}

/// Takes the first bytes off a list of parts.
fn skip(parts: &mut Vec<(u64, u64)>, mut bytes: u64) {
    parts.retain_mut(|(at, len)| {
        let here = bytes.min(*len);
        bytes -= here;
        (*at, *len) = (at.wrapping_add(here), *len - here);
        *len > 0
    });
}

fn read_some(
    pid: Pid,
    into: &Scatter,
    from: usize,
    parts: &[(u64, u64)],
) -> std::result::Result<usize, Errno> {
    let part = |(at, len): &(u64, u64)| libc::iovec { iov_base: *at as _, iov_len: *len as usize };
    let remote: Vec<libc::iovec> = parts.iter().map(part).collect();
    let mut local = Vec::new();
    into.pieces(from, into.len() - from, |_, piece| {
        local.push(libc::iovec { iov_base: piece.as_mut_ptr().cast(), iov_len: piece.len() });
    });
    local.truncate(libc::UIO_MAXIOV as usize);
    // SAFETY: the local parts are the scatter's, writable by its contract; the remote ones are
    // checked by the kernel.
    let moved = unsafe {
        libc::process_vm_readv(
            pid.as_raw_nonzero().get(),
            local.as_ptr(),
            local.len() as libc::c_ulong,
            remote.as_ptr(),
            remote.len() as libc::c_ulong,
            0,
        )
    };
    usize::try_from(moved).map_err(|_| {
        let last = std::io::Error::last_os_error();
        Errno::from_io_error(&last).unwrap_or(Errno::IO)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_our_own_memory() {
        let (a, b) = (*b"hello, ", *b"world");
        let parts = [(a.as_ptr() as u64, 7), (b.as_ptr() as u64, 5)];
        let mut bytes = [0; 12];
        let at = bytes.as_mut_ptr();
        // SAFETY: both parts lie in the array.
        let into = unsafe { Scatter::new([(at, 3), (at.add(3), 9)].into_iter()) };
        let pid = rustix::process::getpid();
        read(pid, &into, &parts).unwrap();
        assert_eq!(&bytes, b"hello, world");
        assert!(read(pid, &into, &[(8, 12)]).is_err(), "nothing is mapped there");
        let word = 77u64;
        assert_eq!(probe(pid, &raw const word as u64, 77), Ok(()));
        assert!(probe(pid, &raw const word as u64, 78).is_err());
    }

    #[test]
    fn bytes_are_skipped_across_parts() {
        let mut parts = vec![(100, 5), (200, 5), (300, 5)];
        skip(&mut parts, 7);
        assert_eq!(parts, [(202, 3), (300, 5)]);
    }
}
