//! The command-line arguments of `nuri disk`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Subcommand};
use nuri_nbd::disk::{Allowed, NoPath};
use nuri_proto::id::NodeId;

use super::Whence;
use super::nbd::NbdServer;

#[derive(Subcommand)]
pub(crate) enum Disk {
    /// List the block devices of this machine, or of all nodes of a space, and what uses them
    List(DiskList),
    /// Serve disks of this machine or of nodes to NBD clients until stopped
    Serve(DiskServe),
}

#[derive(Args)]
pub(crate) struct DiskList {
    /// Print the documented JSON form
    #[arg(long)]
    pub(crate) json: bool,
    /// List the disks of all nodes instead of this machine's
    #[arg(long)]
    pub(crate) nodes: bool,
    #[command(flatten)]
    pub(crate) whence: Whence,
}

#[derive(Args)]
pub(crate) struct DiskServe {
    /// Disks, partitions, optical drives or loop devices, such as /dev/sdb; NODE:/dev/sdb is a disk
    /// of a node
    #[arg(required = true, value_name = "[NODE:]DISK")]
    pub(crate) disks: Vec<DiskName>,
    /// Let clients write too
    #[arg(long)]
    pub(crate) writable: bool,
    #[command(flatten)]
    pub(crate) server: NbdServer,
    #[command(flatten)]
    pub(crate) whence: Whence,
}

/// Checks the value of `--export-disks` and returns it as it was typed.
pub(super) fn exported(text: &str) -> Result<String, NoPath> {
    text.parse::<Allowed>().map(|_| text.to_owned())
}

/// A disk of this machine, or of a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct DiskName {
    pub(crate) node: Option<NodeId>,
    pub(crate) path: PathBuf,
}

impl FromStr for DiskName {
    type Err = std::convert::Infallible;

    /// Reads `NODE:PATH`, or a path of this machine. The path of this machine may have a colon too.
    fn from_str(text: &str) -> Result<DiskName, Self::Err> {
        let of_node = text.split_once(':').and_then(|(node, path)| {
            let node = NodeId(node.parse().ok()?);
            Some(DiskName { node: Some(node), path: path.into() })
        });
        Ok(of_node.unwrap_or_else(|| DiskName { node: None, path: text.into() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_of_a_node_has_its_number_before_it() {
        let parse = |text: &str| text.parse::<DiskName>().unwrap();
        assert_eq!(
            parse("2:/dev/sdb"),
            DiskName { node: Some(NodeId(2)), path: "/dev/sdb".into() }
        );
        for own in ["/dev/sdb", "/dev/disk/by-path/pci-0:1", "x:/dev/sdb"] {
            assert_eq!(parse(own), DiskName { node: None, path: own.into() });
        }
    }
}
