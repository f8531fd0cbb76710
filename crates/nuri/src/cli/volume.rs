//! The command-line arguments of `nuri volume`.

use clap::{Args, Subcommand};
use nuri_proto::layout::Shape;
use nuri_proto::size::parse as parse_size;

use super::Whence;

#[derive(Subcommand)]
pub(crate) enum Volume {
    /// Create a volume: a block device that the space keeps
    Create(VolumeCreate),
    /// List the volumes
    List(VolumeList),
    /// Change the size of a volume
    Resize(VolumeResize),
    /// Rename a volume
    Rename(VolumeRename),
    /// Remove a volume with all its data
    Rm(VolumeRm),
    /// Use a volume again although a target lost acknowledged bytes that were not flushed
    AcceptLoss(VolumeRm),
    /// Attach a volume as a device of this machine, with channels to servers
    Attach(VolumeAttach),
    /// Detach the device of a volume
    Detach(VolumeDetach),
    /// List the volumes that are attached to this machine
    Attached(VolumeAttached),
    /// Serve volumes to NBD clients (qemu, nbdcopy, the kernel) until stopped
    Serve(VolumeServe),
}

#[derive(Args)]
pub(crate) struct VolumeCreate {
    pub(crate) name: String,
    /// Size of the volume; it takes space only as it is written
    #[arg(long, value_parser = parse_size)]
    pub(crate) size: u64,
    /// Redundancy: stripe, mirror:N or parity:K+M (default: as for the space's files)
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
    /// Allow a smaller size; data beyond the new end is lost
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
    /// A server of volumes (nuri volume serve); repeat for more. Requests go on while one server
    /// lives
    #[arg(long = "server", required = true, value_name = "HOST:PORT")]
    pub(crate) servers: Vec<String>,
}

#[derive(Args)]
pub(crate) struct VolumeDetach {
    /// The volume, or its device
    pub(crate) name: String,
    /// Detach the device even while it is used; data that was not flushed is lost
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
    /// Serve only this volume, which clients then also get without a name (default: all volumes)
    pub(crate) name: Option<String>,
    /// Refuse writes of clients
    #[arg(long)]
    pub(crate) read_only: bool,
    #[command(flatten)]
    pub(crate) server: super::nbd::NbdServer,
    #[command(flatten)]
    pub(crate) whence: Whence,
}
