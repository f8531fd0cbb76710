//! Clients as people write them, after exports(5): an address, a network, a host's name or all.
//! Their rights follow in brackets: `10.0.0.0/8(rw,all_squash,anonuid=1000,anongid=1000)`.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{Access, Anonymous, Client, Squash};

/// Who a rule is for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Host {
    All,
    /// An address is a network of one.
    Network {
        address: IpAddr,
        bits: u8,
    },
    Name(String),
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} names no client: write *, an address, a network (10.0.0.0/8) or a host's name")]
pub struct HostError(String);

impl FromStr for Host {
    type Err = HostError;

    fn from_str(text: &str) -> Result<Host, HostError> {
        let no = || HostError(text.into());
        if text == "*" {
            return Ok(Host::All);
        }
        if let Some((address, bits)) = text.split_once('/') {
            let address: IpAddr = address.parse().map_err(|_| no())?;
            let bits = bits.parse().ok().filter(|bits| *bits <= width(address)).ok_or_else(no)?;
            return Ok(Host::Network { address, bits });
        }
        if let Ok(address) = text.parse::<IpAddr>() {
            let address = address.to_canonical();
            return Ok(Host::Network { address, bits: width(address) });
        }
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-.".contains(c);
        let is_name = !text.is_empty() && text.chars().all(is_plain) && text.len() < 254;
        // Four numbers that are no address are none of a host either.
        let has_letter = text.chars().any(|c| c.is_ascii_alphabetic());
        if is_name && has_letter { Ok(Host::Name(text.into())) } else { Err(no()) }
    }
}

impl TryFrom<String> for Host {
    type Error = HostError;

    fn try_from(text: String) -> Result<Host, HostError> {
        text.parse()
    }
}

impl From<Host> for String {
    fn from(host: Host) -> String {
        host.to_string()
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::All => f.write_str("*"),
            Host::Network { address, bits } if *bits == width(*address) => address.fmt(f),
            Host::Network { address, bits } => write!(f, "{address}/{bits}"),
            Host::Name(name) => f.write_str(name),
        }
    }
}

fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u32::from(address).into(),
        IpAddr::V6(address) => address.into(),
    }
}

impl Host {
    pub(crate) fn name(&self) -> Option<&str> {
        if let Host::Name(name) = self { Some(name) } else { None }
    }

    /// Whether the client at `peer` is one of them. `addresses` gives those of a host's name.
    pub(crate) fn covers(&self, peer: IpAddr, addresses: impl FnOnce(&str) -> Vec<IpAddr>) -> bool {
        match self {
            Host::All => true,
            Host::Network { address, bits } => {
                let free = width(*address) - bits;
                let network = |of| number(of).checked_shr(free.into()).unwrap_or(0);
                address.is_ipv4() == peer.is_ipv4() && network(*address) == network(peer)
            }
            Host::Name(name) => addresses(name).contains(&peer),
        }
    }
}

/// Why a text says nothing of a client.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ClientError {
    #[error(transparent)]
    Host(#[from] HostError),
    #[error(
        "{0:?} is no option of an export: ro, rw, root_squash, no_root_squash, all_squash, \
         anonuid=N, anongid=N, sec=sys"
    )]
    Option(String),
    #[error("{0:?}: a bracket is missing: HOST(OPTION,OPTION)")]
    Bracket(String),
}

impl FromStr for Client {
    type Err = ClientError;

    fn from_str(text: &str) -> Result<Client, ClientError> {
        let (host, options) = match text.split_once('(') {
            None if text.contains(')') => return Err(ClientError::Bracket(text.into())),
            None => (text, ""),
            Some((host, rest)) => {
                let inner = rest.strip_suffix(')').ok_or(ClientError::Bracket(text.into()))?;
                (host, inner)
            }
        };
        let (access, squash, anonymous) = (Access::Read, Squash::Root, Anonymous::NOBODY);
        let mut client = Client { host: host.trim().parse()?, access, squash, anonymous };
        for option in options.split(',').map(str::trim).filter(|option| !option.is_empty()) {
            client.take(option).ok_or_else(|| ClientError::Option(option.into()))?;
        }
        Ok(client)
    }
}

impl Client {
    fn take(&mut self, option: &str) -> Option<()> {
        match option {
            "ro" => self.access = Access::Read,
            "rw" => self.access = Access::Write,
            "root_squash" => self.squash = Squash::Root,
            "no_root_squash" => self.squash = Squash::None,
            "all_squash" => self.squash = Squash::All,
            // The only one that there is.
            "sec=sys" => {}
            option => match option.split_once('=')? {
                ("anonuid", uid) => self.anonymous.uid = uid.parse().ok()?,
                ("anongid", gid) => self.anonymous.gid = gid.parse().ok()?,
                _ => return None,
            },
        }
        Some(())
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let access = if self.access == Access::Write { "rw" } else { "ro" };
        let squash = match self.squash {
            Squash::None => "no_root_squash",
            Squash::Root => "root_squash",
            Squash::All => "all_squash",
        };
        write!(f, "{}({access},{squash}", self.host)?;
        let Anonymous { uid, gid } = self.anonymous;
        if self.anonymous != Anonymous::NOBODY {
            write!(f, ",anonuid={uid},anongid={gid}")?;
        }
        f.write_str(")")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn covers(host: &str, peer: &str) -> bool {
        let named = |_: &str| vec!["192.0.2.7".parse().unwrap()];
        host.parse::<Host>().unwrap().covers(peer.parse().unwrap(), named)
    }

    #[test]
    fn addresses_networks_and_names_cover_clients() {
        assert!(covers("*", "192.0.2.1") && covers("*", "2001:db8::1"));
        assert!(covers("192.0.2.1", "192.0.2.1") && !covers("192.0.2.1", "192.0.2.2"));
        assert!(covers("192.0.2.0/24", "192.0.2.200") && !covers("192.0.2.0/24", "192.0.3.1"));
        assert!(covers("0.0.0.0/0", "1.2.3.4") && !covers("0.0.0.0/0", "::1"));
        assert!(covers("2001:db8::/32", "2001:db8:7::1") && !covers("2001:db8::/32", "2001::1"));
        assert!(covers("::/0", "::1"));
        assert!(covers("host-7.example", "192.0.2.7") && !covers("host-7.example", "192.0.2.8"));
    }

    #[test]
    fn what_names_nobody_is_refused() {
        for text in ["", "1.2.3", "1.2.3.4.5", "10.0.0.0/33", "a b", "10.0.0.0/", "/8", "x/8", "ä"]
        {
            let error = text.parse::<Host>().unwrap_err().to_string();
            assert!(error.contains("names no client"), "{text}: {error}");
        }
    }

    #[test]
    fn names_are_kept_as_they_are_written() {
        for text in ["*", "192.0.2.1", "10.0.0.0/8", "::1", "2001:db8::/32", "host.example"] {
            assert_eq!(text.parse::<Host>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn options_of_clients_are_those_of_exports() {
        let shown = |text: &str| text.parse::<Client>().unwrap().to_string();
        assert_eq!(shown("*"), "*(ro,root_squash)");
        assert_eq!(shown("10.0.0.0/8(rw, no_root_squash)"), "10.0.0.0/8(rw,no_root_squash)");
        let all = "host(rw,all_squash,anonuid=7,anongid=8)";
        assert_eq!(shown(all), all);
        assert_eq!(shown("::1(sec=sys)"), "::1(ro,root_squash)");
        for text in ["*(rx)", "*(anonuid=x)", "*(anonuid)", "*(rw", "*rw)", "(rw)", "1.2.3(rw)"] {
            assert!(text.parse::<Client>().is_err(), "{text}");
        }
    }
}
