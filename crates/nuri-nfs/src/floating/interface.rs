//! An address on an interface of this machine, by `ip(8)`.
//!
//! A small process adds the address, and takes it away when its input ends. So the address goes
//! with the server however that ends, by `kill -9` too.

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use nuri_io::announce;

/// Address and bits of its network: `10.0.0.100/24`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FloatingAddress {
    pub address: Ipv4Addr,
    pub bits: u8,
}

/// Why a text is none.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is no address that can move: write it with the bits of its network, 10.0.0.100/24")]
pub struct NoAddress(String);

impl std::str::FromStr for FloatingAddress {
    type Err = NoAddress;

    fn from_str(text: &str) -> Result<FloatingAddress, NoAddress> {
        let no = || NoAddress(text.into());
        let (address, bits) = text.split_once('/').ok_or_else(no)?;
        let address: Ipv4Addr = address.parse().map_err(|_| no())?;
        let bits = bits.parse().ok().filter(|bits| (1..=32).contains(bits)).ok_or_else(no)?;
        let is_plain = !address.is_loopback() && !address.is_unspecified();
        if is_plain { Ok(FloatingAddress { address, bits }) } else { Err(no()) }
    }
}

impl std::fmt::Display for FloatingAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

/// Lines of `ip -o -4 addr show`: interface and address with its bits.
fn addresses(shown: &str) -> impl Iterator<Item = (&str, &str)> {
    shown.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let at = words.iter().position(|word| *word == "inet")?;
        Some((*words.get(1)?, *words.get(at + 1)?))
    })
}

/// The interface with an address in the same network.
fn interface_in(shown: &str, wanted: FloatingAddress) -> Option<&str> {
    let network = |address: Ipv4Addr| u32::from(address) >> (32 - wanted.bits);
    let fits = |text: &str| {
        let address = text.split('/').next().and_then(|text| text.parse::<Ipv4Addr>().ok());
        address.is_some_and(|own| own != wanted.address && network(own) == network(wanted.address))
    };
    addresses(shown).find(|(_, address)| fits(address)).map(|(interface, _)| interface)
}

/// Of `ip -o link show`: `link/ether 00:1f:aa:0b:0c:0d`.
fn hardware_address(shown: &str) -> Option<[u8; 6]> {
    let mut words = shown.split_whitespace();
    words.find(|word| *word == "link/ether")?;
    let bytes = words.next()?.split(':').map(|byte| u8::from_str_radix(byte, 16));
    bytes.collect::<Result<Vec<u8>, _>>().ok()?.try_into().ok()
}

fn ip(words: &[&str]) -> io::Result<String> {
    let out = Command::new("ip").args(words).output()?;
    match out.status.success() {
        true => Ok(String::from_utf8_lossy(&out.stdout).into_owned()),
        false => Err(io::Error::other(String::from_utf8_lossy(&out.stderr).trim().to_owned())),
    }
}

/// The interface that gets the address. What an earlier server may have left of it goes.
///
/// # Errors
/// There is none, or it cannot be changed.
pub(super) fn prepare(wanted: FloatingAddress) -> io::Result<String> {
    let shown = ip(&["-o", "-4", "addr", "show"])?;
    let interface = interface_in(&shown, wanted).ok_or_else(|| {
        io::Error::other(format!("no interface of this machine is in the network of {wanted}"))
    })?;
    if addresses(&shown).any(|(_, address)| address == wanted.to_string()) {
        ip(&["addr", "del", &wanted.to_string(), "dev", interface])?;
    }
    Ok(interface.into())
}

/// The address is here until this is dropped.
pub(super) struct Added(Child);

impl Drop for Added {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

impl Added {
    /// Adds the address, and tells the network.
    pub(super) fn new(wanted: FloatingAddress, interface: &str) -> io::Result<Added> {
        let script = "ip addr add $0 dev $1 && echo added && cat >/dev/null; ip addr del $0 dev $1";
        let mut command = Command::new("sh");
        command.args(["-c", script, &wanted.to_string(), interface]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        // A signal for the server's group is not for it.
        let mut child = command.process_group(0).spawn()?;
        let out = child.stdout.take();
        let added = Added(child);
        let mut said = String::new();
        if let Some(out) = out {
            BufReader::new(out).read_line(&mut said)?;
        }
        if said.trim_end() != "added" {
            return Err(io::Error::other(format!("{wanted} cannot be added to {interface}")));
        }
        let link = ip(&["-o", "link", "show", "dev", interface])?;
        match hardware_address(&link) {
            Some(hardware) => announce::tell(interface, hardware, wanted.address)?,
            // A tunnel, say: nobody remembers who has which address.
            None => tracing::debug!("nfs: {interface} has no hardware address to tell of"),
        }
        Ok(added)
    }
}

/// Whether this machine may change addresses at all.
pub(super) fn may_change() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    // CAP_NET_ADMIN
    bits.is_some_and(|bits| bits >> 12 & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHOWN: &str = "\
1: lo    inet 127.0.0.1/8 scope host lo\\       valid_lft forever preferred_lft forever
2: eth0    inet 192.0.2.7/24 brd 192.0.2.255 scope global eth0\\       valid_lft forever
3: eth1    inet 10.0.0.3/16 scope global eth1\\       valid_lft forever preferred_lft forever
";

    #[test]
    fn the_interface_of_the_same_network_gets_the_address() {
        let of = |text: &str| interface_in(SHOWN, text.parse().unwrap());
        assert_eq!(of("192.0.2.100/24"), Some("eth0"));
        assert_eq!(of("10.0.9.9/16"), Some("eth1"));
        assert_eq!((of("10.0.9.9/24"), of("198.51.100.1/24")), (None, None));
        assert_eq!(of("192.0.2.7/24"), None, "another's own address");
        let link =
            "2: eth0: <UP> mtu 1500 \\    link/ether 00:1f:aa:0b:0c:0d brd ff:ff:ff:ff:ff:ff";
        assert_eq!(hardware_address(link), Some([0, 0x1f, 0xaa, 0x0b, 0x0c, 0x0d]));
        assert_eq!(hardware_address("1: lo: link/loopback 00:00 brd 00:00"), None);
        for text in ["10.0.0.1", "10.0.0.1/33", "10.0.0.1/0", "::1/64", "127.0.0.1/8", "x/24"] {
            assert!(text.parse::<FloatingAddress>().is_err(), "{text}");
        }
    }
}
