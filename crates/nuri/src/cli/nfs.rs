//! `nuri nfs ...`: what it can be told.

use clap::{Args, Subcommand};
use nuri_nfs::export::Client;
use nuri_nfs::floating::FloatingAddress;

use super::Whence;

#[derive(Subcommand)]
pub(crate) enum Nfs {
    /// Say which directories NFS clients may mount
    #[command(subcommand)]
    Export(NfsExport),
    /// Serve the exports to NFS clients (version 3) until it is stopped
    Serve(NfsServe),
}

#[derive(Subcommand)]
pub(crate) enum NfsExport {
    /// Export a directory to clients
    Add(NfsExportAdd),
    /// Give an export other clients; those that have it mounted and still may go on
    Set(NfsExportAdd),
    /// List the exports
    List(NfsExportList),
    /// End an export: clients that have it mounted get stale handles
    Rm(NfsExportRm),
}

#[derive(Args)]
pub(crate) struct NfsExportAdd {
    /// In the space, from its root: /home
    pub(crate) path: String,
    /// Who may mount it, as in exports(5): an address, a network, a host's name or *, and what they
    /// may: '10.0.0.0/8(rw,no_root_squash)'. Without options: ro,root_squash. The first that fits
    /// counts
    #[arg(required = true, value_name = "CLIENT[(OPTIONS)]")]
    pub(crate) clients: Vec<Client>,
    #[command(flatten)]
    pub(crate) whence: Whence,
}

#[derive(Args)]
pub(crate) struct NfsExportList {
    #[command(flatten)]
    pub(crate) whence: Whence,
    /// Print the documented JSON form
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct NfsExportRm {
    pub(crate) path: String,
    #[command(flatten)]
    pub(crate) whence: Whence,
}

#[derive(Args)]
pub(crate) struct NfsServe {
    /// Where clients connect: NFS, MOUNT and the port mapper answer there
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:2049")]
    pub(crate) listen: Vec<String>,
    /// Only these exports (default: all)
    #[arg(long = "export", value_name = "PATH")]
    pub(crate) exports: Vec<String>,
    /// Also at this address, if no other server has it: it moves to another server that was told
    /// the same when this one ends or its machine is lost. With the bits of its network:
    /// 10.0.0.100/24
    #[arg(long, value_name = "ADDRESS/BITS")]
    pub(crate) floating: Vec<FloatingAddress>,
    /// Connections served at once
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u16).range(1..=32768))]
    pub(crate) max_connections: u16,
    #[command(flatten)]
    pub(crate) whence: Whence,
}
