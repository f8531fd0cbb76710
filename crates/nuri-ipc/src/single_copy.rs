//! Bytes taken from another process's memory with one copy, for protocols outside this crate.
//!
//! A peer names addresses in its own memory; a wrong one makes the call fail. The peer has to prove
//! that a process number is its own. Otherwise it could name another process and have that one's
//! memory read. As proof the peer shows bytes that it was just given, and that no other process can
//! have.

use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::cma;
use crate::error::{Error, Result, system};

/// Bytes of a proof.
pub const PROOF: usize = 16;

/// A process whose memory this one may read.
#[derive(Debug)]
pub struct PeerMemory {
    pid: Pid,
    process: OwnedFd,
}

impl PeerMemory {
    /// Reads a proof at an address of the process, and compares it with what the peer was given.
    ///
    /// # Errors
    /// The kernel does not allow it (another user, ptrace restricted, a container), there is no
    /// such process here, or the bytes are others.
    pub fn prove(pid: u32, address: u64, proof: &[u8; PROOF]) -> Result<PeerMemory> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or(Error::OutOfRange("a process number"))?;
        let process = pidfd_open(pid, PidfdFlags::empty()).map_err(system("pidfd_open"))?;
        let memory = PeerMemory { pid, process };
        let mut shown = [0; PROOF];
        memory.read(address, &mut shown)?;
        if shown == *proof { Ok(memory) } else { Err(system("proof")(Errno::PERM)) }
    }

    /// Reads as many bytes as fit. What the peer changes meanwhile may be seen half changed.
    ///
    /// # Errors
    /// The range is not mapped there, or the process has ended.
    pub fn read(&self, address: u64, into: &mut [u8]) -> Result<()> {
        cma::read_into(self.pid, into, &[(address, into.len() as u64)])?;
        // While it lives its number is nobody else's.
        let mut ended = [PollFd::new(&self.process, PollFlags::IN)];
        match poll(&mut ended, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
            Ok(0) => Ok(()),
            _ => Err(system("process_vm_readv")(Errno::SRCH)),
        }
    }
}

/// The address by which another process reads these bytes.
pub fn address_of(bytes: &[u8]) -> u64 {
    bytes.as_ptr() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_shows_the_proof_is_read() {
        let (proof, bytes) = ([7; PROOF], *b"some bytes");
        let own = std::process::id();
        let memory = PeerMemory::prove(own, address_of(&proof), &[7; PROOF]).unwrap();
        let mut into = [0; 10];
        memory.read(address_of(&bytes), &mut into).unwrap();
        assert_eq!(into, bytes);
        assert!(memory.read(8, &mut into).is_err(), "nothing is mapped there");
        assert!(PeerMemory::prove(own, address_of(&proof), &[8; PROOF]).is_err());
        assert!(PeerMemory::prove(0, address_of(&proof), &[7; PROOF]).is_err());
        assert!(PeerMemory::prove(u32::MAX, address_of(&proof), &[7; PROOF]).is_err());
    }

    #[test]
    fn a_process_that_ended_is_not_read() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let proof = [7; PROOF];
        // The child does not show anything: its end alone is looked at.
        let pid = Pid::from_raw(child.id() as i32).unwrap();
        let process = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        let memory = PeerMemory { pid: rustix::process::getpid(), process };
        memory.read(address_of(&proof), &mut [0; PROOF]).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(memory.read(address_of(&proof), &mut [0; PROOF]).is_err());
    }
}
