//! Reads the option `--through`: a rank reaches its files through a directory, a server of files or
//! a server of devices.

use std::fmt::{Display, Formatter, Result as FmtResult};
use std::str::FromStr;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::LabError;

/// See [`Through::from_str`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Through {
    /// A directory, by the kernel.
    Directory,
    /// What the nodes of a testbed serve.
    Testbed(Served),
    Server(Server),
}

/// What a testbed serves beside its mounts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ValueEnum)]
pub enum Served {
    /// The space, by NFS at the second node.
    Nfs,
    /// A volume of the space for each mount, at the mount's own node.
    Volume,
    /// A raw disk for each mount, at the node after the mount's.
    Disk,
    /// An ext4 on a volume for each mount's machine: a directory, whose blocks go by NBD.
    Filesystem,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Protocol {
    Nbd,
    Nfs,
}

/// Something at a server.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Server {
    pub(crate) protocol: Protocol,
    pub(crate) host: String,
    pub(crate) port: u16,
    /// An export's name or path.
    pub(crate) export: String,
}

const NBD_PORT: u16 = 10809;
const NFS_PORT: u16 = 2049;

impl Served {
    /// By its word in a plan; none where nothing is served.
    pub fn named(word: &str) -> Option<Served> {
        Served::from_str(word, false).ok()
    }

    /// At the node with that address.
    pub(crate) fn at(self, address: &str, export: &str) -> Server {
        let (protocol, port) = match self {
            Served::Nfs => (Protocol::Nfs, NFS_PORT),
            Served::Volume | Served::Disk | Served::Filesystem => (Protocol::Nbd, NBD_PORT),
        };
        Server { protocol, host: address.into(), port, export: export.into() }
    }
}

impl Through {
    /// The servers among those of a testbed take turns.
    pub(crate) fn server(&self, served: &[Server], rank: usize) -> Option<Server> {
        match self {
            Through::Directory | Through::Testbed(Served::Filesystem) => None,
            Through::Testbed(_) => served.get(rank % served.len().max(1)).cloned(),
            Through::Server(server) => Some(server.clone()),
        }
    }

    /// Those that `rank` shares a server with come before it.
    pub(crate) fn turn(&self, served: &[Server], rank: usize) -> usize {
        if matches!(self, Through::Testbed(_)) { rank / served.len().max(1) } else { rank }
    }
}

impl FromStr for Through {
    type Err = LabError;

    /// A place's word, or `nbd://HOST[:PORT]/EXPORT`, `nfs://HOST[:PORT]/EXPORT`.
    fn from_str(text: &str) -> Result<Through, LabError> {
        if let Some(served) = Served::named(text) {
            return Ok(Through::Testbed(served));
        }
        match text.split_once("://") {
            Some(("nbd", rest)) => server(Protocol::Nbd, NBD_PORT, rest).map(Through::Server),
            Some(("nfs", rest)) => server(Protocol::Nfs, NFS_PORT, rest).map(Through::Server),
            None if ["directory", "local", "space"].contains(&text) => Ok(Through::Directory),
            _ => Err(LabError(format!(
                "'{text}' is none of directory, nfs, volume, disk, filesystem, nbd://HOST/EXPORT, \
                 nfs://HOST/EXPORT"
            ))),
        }
    }
}

fn server(protocol: Protocol, port: u16, rest: &str) -> Result<Server, LabError> {
    let (authority, export) = rest.split_once('/').unwrap_or((rest, ""));
    let odd = || LabError(format!("'{authority}' is no HOST or HOST:PORT"));
    // An address of IPv6 has colons of its own.
    let (host, port) = match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, "")) => (host, port),
        Some((host, end)) => (host, end.trim_start_matches(':').parse().map_err(|_| odd())?),
        None => match authority.split_once(':') {
            Some((host, end)) => (host, end.parse().map_err(|_| odd())?),
            None => (authority, port),
        },
    };
    if host.is_empty() {
        return Err(odd());
    }
    let export = if protocol == Protocol::Nfs { format!("/{export}") } else { export.into() };
    Ok(Server { protocol, host: host.into(), port, export })
}

impl Display for Served {
    fn fmt(&self, f: &mut Formatter) -> FmtResult {
        f.write_str(match self {
            Served::Nfs => "NFS",
            Served::Volume => "volumes",
            Served::Disk => "raw disks",
            Served::Filesystem => "file systems on volumes",
        })
    }
}

impl Display for Server {
    fn fmt(&self, f: &mut Formatter) -> FmtResult {
        let Server { protocol, host, port, export } = self;
        let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        match protocol {
            Protocol::Nbd => write!(f, "nbd://{host}:{port}/{export}"),
            Protocol::Nfs => write!(f, "nfs://{host}:{port}{export}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_read_as_they_are_written() {
        for (text, whole) in [
            ("nbd://a", "nbd://a:10809/"),
            ("nbd://a:7/vm1", "nbd://a:7/vm1"),
            ("nbd://[::1]:7/vm1", "nbd://[::1]:7/vm1"),
            ("nbd://[::1]/vm1", "nbd://[::1]:10809/vm1"),
            ("nfs://10.0.0.1/home/a", "nfs://10.0.0.1:2049/home/a"),
        ] {
            let Ok(Through::Server(server)) = text.parse() else { panic!("{text}") };
            assert_eq!(server.to_string(), whole);
        }
        for odd in ["nbd:///x", "nbd://a:x/", "http://a/", "elsewhere", ""] {
            assert!(odd.parse::<Through>().is_err(), "{odd}");
        }
    }

    #[test]
    fn ranks_take_turns_with_the_servers_of_a_testbed() {
        let served: Vec<Server> =
            ["a", "b"].iter().map(|host| Served::Disk.at(host, "d")).collect();
        let through = Through::Testbed(Served::Disk);
        let of = |rank| (through.server(&served, rank).unwrap().host, through.turn(&served, rank));
        assert_eq!((of(1), of(2)), (("b".into(), 0), ("a".into(), 1)));
        assert_eq!(through.server(&[], 0), None);
        let filesystem = Through::Testbed(Served::Filesystem);
        assert_eq!(filesystem.server(&served, 0), None, "it is a directory");
        let one = "nbd://a/x".parse::<Through>().unwrap();
        assert_eq!((one.server(&[], 3).unwrap().host, one.turn(&[], 3)), ("a".into(), 3));
    }
}
