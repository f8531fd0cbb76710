//! Generic netlink, as far as the kernel's NBD client needs it (Documentation/userspace-api/netlink
//! and include/uapi/linux/nbd-netlink.h of Linux).
//!
//! A message is a header, a command, and attributes: a length, a kind, and bytes up to a multiple
//! of four. All numbers are in the order of the machine.

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};

const HEADER: usize = 16;
const COMMAND: usize = 4;
const ERROR: u16 = 2;
/// The family that tells the numbers of families.
const CONTROL: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
const REQUEST: u16 = 1;
const ACKNOWLEDGE: u16 = 4;
const NESTED: u16 = 0x8000;

/// Attributes of a message that is made.
#[derive(Default)]
pub(super) struct Attributes(Vec<u8>);

impl Attributes {
    #[must_use]
    pub(super) fn bytes(mut self, kind: u16, bytes: &[u8]) -> Attributes {
        self.0.extend_from_slice(&(4 + bytes.len() as u16).to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(bytes);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    #[must_use]
    pub(super) fn u32(self, kind: u16, value: u32) -> Attributes {
        self.bytes(kind, &value.to_ne_bytes())
    }

    #[must_use]
    pub(super) fn u64(self, kind: u16, value: u64) -> Attributes {
        self.bytes(kind, &value.to_ne_bytes())
    }

    #[must_use]
    pub(super) fn text(self, kind: u16, text: &str) -> Attributes {
        self.bytes(kind, &[text.as_bytes(), b"\0"].concat())
    }

    #[must_use]
    pub(super) fn nested(self, kind: u16, inside: &Attributes) -> Attributes {
        self.bytes(kind | NESTED, &inside.0)
    }

    /// A whole message.
    fn message(&self, family: u16, command: u8, sequence: u32) -> Vec<u8> {
        let len = (HEADER + COMMAND + self.0.len()) as u32;
        let mut bytes = len.to_ne_bytes().to_vec();
        bytes.extend_from_slice(&family.to_ne_bytes());
        bytes.extend_from_slice(&(REQUEST | ACKNOWLEDGE).to_ne_bytes());
        bytes.extend_from_slice(&sequence.to_ne_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&[command, 1, 0, 0]);
        bytes.extend_from_slice(&self.0);
        bytes
    }
}

/// Attributes of an answer, the outermost ones.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Found(Vec<(u16, Vec<u8>)>);

impl Found {
    fn parse(mut bytes: &[u8]) -> Found {
        let mut found = Vec::new();
        while let Some((len, kind)) = u16_at(bytes, 0).zip(u16_at(bytes, 2)) {
            let Some(value) = bytes.get(4..usize::from(len)) else { break };
            found.push((kind & !NESTED, value.to_vec()));
            bytes = bytes.get(usize::from(len).next_multiple_of(4)..).unwrap_or_default();
        }
        Found(found)
    }

    /// Of up to four bytes.
    pub(super) fn number(&self, kind: u16) -> Option<u32> {
        let (_, bytes) = self.0.iter().find(|(own, _)| *own == kind)?;
        match bytes.len() {
            2 => u16_at(bytes, 0).map(u32::from),
            _ => u32_at(bytes, 0),
        }
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2).map(|two| u16::from_ne_bytes([two[0], two[1]]))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4).map(|b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]]))
}

/// A family of the kernel that can be asked.
pub(super) struct Family {
    socket: OwnedFd,
    number: u16,
    sequence: u32,
}

impl Family {
    /// # Errors
    /// `NotFound` where the kernel has no such family: its module is not loaded.
    pub(super) fn find(name: &str) -> io::Result<Family> {
        let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
        let protocol = Some(netlink::GENERIC);
        let socket = socket_with(family, kind, SocketFlags::CLOEXEC, protocol)?;
        let mut control = Family { socket, number: CONTROL, sequence: 0 };
        let found = control.ask(GET_FAMILY, &Attributes::default().text(FAMILY_NAME, name))?;
        let number = found.number(FAMILY_ID).ok_or(io::ErrorKind::NotFound)?;
        Ok(Family { number: number as u16, ..control })
    }

    /// Sends a command; what the kernel says before it acknowledges it.
    pub(super) fn ask(&mut self, command: u8, attributes: &Attributes) -> io::Result<Found> {
        self.sequence += 1;
        let message = attributes.message(self.number, command, self.sequence);
        send(&self.socket, &message, SendFlags::empty())?;
        let mut found = Found::default();
        loop {
            let mut bytes = [0; 8192];
            let (count, _) = recv(&self.socket, &mut bytes, RecvFlags::empty())?;
            let mut rest = &bytes[..count];
            while let Some(len) = u32_at(rest, 0) {
                let Some(one) = rest.get(..len as usize).filter(|one| one.len() >= HEADER) else {
                    return Err(io::ErrorKind::InvalidData.into());
                };
                if u16_at(one, 4) == Some(ERROR) {
                    return match u32_at(one, HEADER).unwrap_or_default() as i32 {
                        0 => Ok(found),
                        error => Err(Errno::from_raw_os_error(-error).into()),
                    };
                }
                found = Found::parse(one.get(HEADER + COMMAND..).unwrap_or_default());
                rest = rest.get((len as usize).next_multiple_of(4)..).unwrap_or_default();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_found_again() {
        let inside = Attributes::default().u32(1, 7);
        let made = Attributes::default().text(2, "nbd").u64(3, 9).nested(4, &inside);
        let found = Found::parse(&made.u32(5, 11).bytes(6, &[1, 0]).0);
        assert_eq!(found.0[0], (2, b"nbd\0".to_vec()));
        assert_eq!(found.0[1], (3, 9u64.to_ne_bytes().to_vec()));
        assert_eq!(Found::parse(&found.0[2].1).number(1), Some(7));
        assert_eq!((found.number(5), found.number(7)), (Some(11), None));
        // Whatever the kernel sends, nothing is read beyond it.
        for cut in 0..20 {
            let _ = Found::parse(&[0xff; 20][..cut]);
            let _ = Found::parse(&[0; 20][..cut]);
        }
    }

    /// Every kernel has the family that tells of the others.
    #[test]
    fn the_kernel_answers() {
        assert_eq!(u32::from(Family::find("nlctrl").unwrap().number), u32::from(CONTROL));
        let none = Family::find("no such family").err().unwrap();
        assert_eq!(none.kind(), io::ErrorKind::NotFound);
    }
}
