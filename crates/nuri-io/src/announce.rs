//! Tells a network that an address is now at this machine (gratuitous ARP, RFC 5227).
#![allow(unsafe_code)]

use std::io;
use std::net::Ipv4Addr;
use std::num::NonZeroU32;
use std::os::fd::AsRawFd;
use std::time::Duration;

use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, Protocol, SocketType, socket};

const ETHERNET: u16 = 1;
const IPV4: u16 = 0x0800;
const REQUEST: u16 = 1;
const BROADCAST: [u8; 6] = [0xff; 6];
/// Some may not hear the first one.
const TIMES: u32 = 3;
const BETWEEN: Duration = Duration::from_millis(50);

/// Asks who has the address, in the name of the address: every machine that knew it elsewhere knows
/// it here then.
///
/// # Errors
/// There is no such interface, or nothing can be sent on it.
pub fn tell(interface: &str, hardware: [u8; 6], address: Ipv4Addr) -> io::Result<()> {
    // As the kernel wants it: in the network's order.
    let protocol = NonZeroU32::new((libc::ETH_P_ARP as u16).to_be().into()).map(Protocol::from_raw);
    let socket = socket(AddressFamily::PACKET, SocketType::DGRAM, protocol)?;
    let index = name_to_index(&socket, interface)?;
    let message = message(hardware, address);
    for time in 0..TIMES {
        if time > 0 {
            std::thread::sleep(BETWEEN);
        }
        send(&socket, index as i32, &message)?;
    }
    Ok(())
}

/// Kinds and lengths of both addresses, the operation, the sender's two addresses and the target's.
fn message(hardware: [u8; 6], address: Ipv4Addr) -> [u8; 28] {
    let mut message = [0; 28];
    message[..2].copy_from_slice(&ETHERNET.to_be_bytes());
    message[2..4].copy_from_slice(&IPV4.to_be_bytes());
    message[4..6].copy_from_slice(&[6, 4]);
    message[6..8].copy_from_slice(&REQUEST.to_be_bytes());
    message[8..14].copy_from_slice(&hardware);
    message[14..18].copy_from_slice(&address.octets());
    message[24..].copy_from_slice(&address.octets());
    message
}

fn send(socket: &impl AsRawFd, index: i32, message: &[u8]) -> io::Result<()> {
    let mut to = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: (libc::ETH_P_ARP as u16).to_be(),
        sll_ifindex: index,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: BROADCAST.len() as u8,
        sll_addr: [0; 8],
    };
    to.sll_addr[..BROADCAST.len()].copy_from_slice(&BROADCAST);
    // SAFETY: the message and the address live until the call returns, and their lengths are those
    // that are given; the descriptor is open for as long as the socket is borrowed.
    let sent = unsafe {
        libc::sendto(
            socket.as_raw_fd(),
            message.as_ptr().cast(),
            message.len(),
            0,
            (&raw const to).cast(),
            size_of::<libc::sockaddr_ll>() as u32,
        )
    };
    if sent == message.len() as isize { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_says_who_has_the_address() {
        let message = message([1, 2, 3, 4, 5, 6], Ipv4Addr::new(10, 0, 0, 9));
        assert_eq!(message[..8], [0, 1, 8, 0, 6, 4, 0, 1]);
        assert_eq!(message[8..18], [1, 2, 3, 4, 5, 6, 10, 0, 0, 9]);
        assert_eq!(message[18..], [0, 0, 0, 0, 0, 0, 10, 0, 0, 9]);
    }
}
