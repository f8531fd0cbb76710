//! The command-line arguments of `nuri nfs`.

use clap::{Args, Subcommand};
use nuri_nfs::export::Client;
use nuri_nfs::floating::FloatingAddress;

use super::Whence;

#[derive(Subcommand)]
pub(crate) enum Nfs {
    /// Set or list the directories that NFS clients may mount
    #[command(subcommand)]
    Export(NfsExport),
    /// Serve the exports to NFS clients (version 3) until stopped
    Serve(NfsServe),
}

#[derive(Subcommand)]
pub(crate) enum NfsExport {
    /// Export a directory to clients
    Add(NfsExportAdd),
    /// Replace the clients of an export; mounted clients that are still allowed go on
    Set(NfsExportAdd),
    /// List the exports
    List(NfsExportList),
    /// End an export; clients that have it mounted get stale handles
    Rm(NfsExportRm),
}

#[derive(Args)]
pub(crate) struct NfsExportAdd {
    /// Directory in the space, as a path from its root, such as /home
    pub(crate) path: String,
    /// Clients and their options, as in exports(5): an address, a network, a host's name or *, for
    /// example '10.0.0.0/8(rw,no_root_squash)'. Without options: ro,root_squash. The first entry
    /// that matches a client counts
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
    /// Address for clients; NFS, MOUNT and the port mapper answer there
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:2049")]
    pub(crate) listen: Vec<String>,
    /// Serve only these exports (default: all)
    #[arg(long = "export", value_name = "PATH")]
    pub(crate) exports: Vec<String>,
    /// Serve also at this address while no other server has it, with the bits of its network:
    /// 10.0.0.100/24. When this server ends or its machine is lost, the address moves to another
    /// server that has the same option
    #[arg(long, value_name = "ADDRESS/BITS")]
    pub(crate) floating: Vec<FloatingAddress>,
    /// Do not register with this machine's rpcbind, where clients ask for the ports
    #[arg(long)]
    pub(crate) no_rpcbind: bool,
    /// Connections to serve at once, at most
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u16).range(1..=32768))]
    pub(crate) max_connections: u16,
    #[command(flatten)]
    pub(crate) whence: Whence,
}
