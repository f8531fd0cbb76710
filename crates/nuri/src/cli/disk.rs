//! `nuri disk ...`: what it can be told.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::nbd::NbdServer;

#[derive(Subcommand)]
pub(crate) enum Disk {
    /// List this machine's block devices, and what uses them
    List(DiskList),
    /// Serve disks of this machine to NBD clients until it is stopped
    Serve(DiskServe),
}

#[derive(Args)]
pub(crate) struct DiskList {
    /// Print the documented JSON form
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct DiskServe {
    /// Disks, partitions, optical drives or loop devices, such as /dev/sdb
    #[arg(required = true)]
    pub(crate) paths: Vec<PathBuf>,
    /// Clients may also write
    #[arg(long)]
    pub(crate) writable: bool,
    #[command(flatten)]
    pub(crate) server: NbdServer,
}
