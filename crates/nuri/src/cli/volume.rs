//! `nuri volume ...`: what it can be told.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use nuri_proto::layout::Shape;
use nuri_proto::size::parse as parse_size;

use super::Whence;

/// Where clients are served unless another address is said: the port that NBD has.
const DEFAULT_LISTEN: &str = "127.0.0.1:10809";

#[derive(Subcommand)]
pub(crate) enum Volume {
    /// Make a volume: a block device that the space keeps
    Create(VolumeCreate),
    /// List the volumes
    List(VolumeList),
    /// Give a volume another size
    Resize(VolumeResize),
    /// Give a volume another name
    Rename(VolumeRename),
    /// Remove a volume with all that it holds
    Rm(VolumeRm),
    /// Serve volumes to NBD clients (qemu, nbdcopy, the kernel) until it is stopped
    Serve(VolumeServe),
}

#[derive(Args)]
pub(crate) struct VolumeCreate {
    pub(crate) name: String,
    /// Its size; it costs no room until it is written
    #[arg(long, value_parser = parse_size)]
    pub(crate) size: u64,
    /// How it is kept: stripe, mirror:N or parity:K+M (default: as the space's files)
    #[arg(long)]
    pub(crate) shape: Option<Shape>,
    #[command(flatten)]
    pub(crate) whence: Whence,
}

#[derive(Args)]
pub(crate) struct VolumeList {
    #[command(flatten)]
    pub(crate) whence: Whence,
    /// Print the documented JSON form
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct VolumeResize {
    pub(crate) name: String,
    #[arg(value_parser = parse_size)]
    pub(crate) size: u64,
    /// Also make it smaller: what lies beyond is lost
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) whence: Whence,
}

#[derive(Args)]
pub(crate) struct VolumeRename {
    pub(crate) name: String,
    pub(crate) new: String,
    #[command(flatten)]
    pub(crate) whence: Whence,
}

#[derive(Args)]
pub(crate) struct VolumeRm {
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) whence: Whence,
}

#[derive(Args)]
pub(crate) struct VolumeServe {
    /// Only this volume, which clients then also get without a name (default: all volumes)
    pub(crate) name: Option<String>,
    /// Where TCP clients connect; without this and --socket: 127.0.0.1:10809
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,
    /// A Unix socket for clients on this machine
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Clients may not write
    #[arg(long)]
    pub(crate) read_only: bool,
    /// Connections served at once
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) max_connections: u16,
    #[command(flatten)]
    pub(crate) whence: Whence,
}

impl VolumeServe {
    /// The address for TCP clients, if they are served.
    pub(crate) fn listen(&self) -> Option<&str> {
        let default = self.socket.is_none().then_some(DEFAULT_LISTEN);
        self.listen.as_deref().or(default)
    }
}
