//! `nuri volume ...`: what it can be told.

use clap::{Args, Subcommand};
use nuri_proto::layout::Shape;
use nuri_proto::size::parse as parse_size;

use super::Whence;

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
    /// Use a volume again although a target lost bytes of it that were answered and not flushed
    AcceptLoss(VolumeRm),
    /// Make a volume a device of this machine, with channels to servers until it is detached
    Attach(VolumeAttach),
    /// Take the device of a volume away
    Detach(VolumeDetach),
    /// List the volumes that are devices of this machine
    Attached(VolumeAttached),
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
pub(crate) struct VolumeAttach {
    pub(crate) name: String,
    /// A server of volumes (nuri volume serve); repeat for more: requests go on while one lives
    #[arg(long = "server", required = true, value_name = "HOST:PORT")]
    pub(crate) servers: Vec<String>,
}

#[derive(Args)]
pub(crate) struct VolumeDetach {
    /// The volume, or its device
    pub(crate) name: String,
    /// Also while it is used: what was not flushed is lost
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Args)]
pub(crate) struct VolumeAttached {
    /// Print the documented JSON form
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct VolumeServe {
    /// Only this volume, which clients then also get without a name (default: all volumes)
    pub(crate) name: Option<String>,
    /// Clients may not write
    #[arg(long)]
    pub(crate) read_only: bool,
    #[command(flatten)]
    pub(crate) server: super::nbd::NbdServer,
    #[command(flatten)]
    pub(crate) whence: Whence,
}
