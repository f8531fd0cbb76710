//! The command line of `nuri`: its nouns, verbs and options. Arguments that can be checked without
//! a disk are checked here.

mod disk;
mod fs;
mod nbd;
mod nfs;
mod volume;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use nuri_proto::layout::Shape;
use nuri_proto::map::Placement;
use nuri_proto::size::parse as parse_size;

use crate::logs::LogOptions;

pub(crate) use self::disk::{Disk, DiskList, DiskServe};
pub(crate) use self::fs::{
    Convert, Df, Fs, Layout, Lost, Mount, Override, Overrides, Tune, TuneSet, Umount,
};
pub(crate) use self::nbd::NbdServer;
pub(crate) use self::nfs::{Nfs, NfsExport, NfsExportAdd, NfsServe};
pub(crate) use self::volume::{Volume, VolumeAttach, VolumeDetach, VolumeServe};

/// Default directory of a space.
pub(crate) const DEFAULT_DIR: &str = "/var/lib/nuri";

#[derive(Parser)]
#[command(
    name = "nuri",
    version,
    about = "Turns the disks of a small cluster into one shared file system",
    after_help = "Start here:  nuri up --create --dir D --mount M      Stop:  nuri down --dir D"
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
    #[command(flatten)]
    pub(crate) log: LogOptions,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Start a space on this machine (--create makes it) and mount it
    Up(Up),
    /// Stop a space: unmount, then end its processes
    Down(Down),
    /// Show nodes, targets, mounts, capacity and health
    Status(Status),
    /// Show the status and what changes, once a second
    Top(Whence),
    /// Check a stopped space (metadata and targets), or this machine's readiness
    Doctor(Doctor),
    /// Settings of a whole space
    #[command(subcommand)]
    Space(SpaceVerb),
    /// Nodes of a space
    #[command(subcommand)]
    Node(Node),
    /// Storage targets
    #[command(subcommand)]
    Target(Target),
    /// The shared file system
    #[command(subcommand)]
    Fs(Fs),
    /// NFS: directories of the space for machines beside the cluster
    #[command(subcommand)]
    Nfs(Nfs),
    /// Volumes: block devices that the space keeps, for virtual machines and NBD clients
    #[command(subcommand)]
    Volume(Volume),
    /// Raw disks of this machine, for NBD clients
    #[command(subcommand)]
    Disk(Disk),
    /// Measure a cluster as five published studies did (`nuri lab --help` tells how)
    #[command(disable_help_flag = true)]
    Lab {
        /// Arguments of the program nuri-lab
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<std::ffi::OsString>,
    },
    /// Keep a space's processes running (started by `up`)
    #[command(hide = true)]
    Supervise(Dir),
}

#[derive(Args)]
pub(crate) struct Dir {
    /// Directory of the space
    #[arg(long, default_value = DEFAULT_DIR)]
    pub(crate) dir: PathBuf,
}

#[derive(Args)]
pub(crate) struct Up {
    /// Directory of the space: its settings, logs and, unless --target is given, its targets
    #[arg(long, default_value = DEFAULT_DIR)]
    pub(crate) dir: PathBuf,
    /// Create the space and its targets where they do not exist yet. Without this option `up` only
    /// starts what exists
    #[arg(long)]
    pub(crate) create: bool,
    /// How many targets to make in the directory (default 4)
    #[arg(long, conflicts_with = "target", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) targets: Option<u16>,
    /// A directory or whole block device to use as a target; repeat for more
    #[arg(long, value_name = "PATH")]
    pub(crate) target: Vec<PathBuf>,
    /// Directory to mount the space on; created if it does not exist
    #[arg(long, value_name = "DIR")]
    pub(crate) mount: Option<PathBuf>,
    /// Let programs on the mount run with the rights of their owner (setuid)
    #[arg(long)]
    pub(crate) suid: bool,
    /// Let programs open device files on the mount
    #[arg(long)]
    pub(crate) dev: bool,
    /// How many node processes to run
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) nodes: Option<u16>,
    /// Bytes that a target directory may hold, e.g. 500G (default: its share of its file system's
    /// free space)
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) target_size: Option<u64>,
    /// Redundancy of files: stripe (none), mirror:N (N copies) or parity:K+M (K data and M parity
    /// members). Default: parity:3+1 with four targets or more, mirror:2 with two or three
    #[arg(long, value_name = "SHAPE")]
    pub(crate) shape: Option<Shape>,
    /// How the members of mirror and parity groups are placed on targets: declustered (default),
    /// rotated, chained or orthogonal. With declustered, all other targets rebuild a lost target's
    /// data
    #[arg(long, value_name = "PLACEMENT")]
    pub(crate) placement: Option<Placement>,
    /// Address to listen on (default 127.0.0.1:0, a free loopback port). Any other than a loopback
    /// address opens the space to the network. Further nodes take free ports of the same host
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) listen: Option<String>,
    /// Raw disks of this machine that `nuri disk serve` on other machines may use: all, none, or
    /// paths separated by commas (default: as before; none for a new space)
    #[arg(long, value_name = "DISKS", value_parser = disk::exported)]
    pub(crate) export_disks: Option<String>,
}

#[derive(Args)]
pub(crate) struct Down {
    #[command(flatten)]
    pub(crate) dir: Dir,
    /// Detach the mount even while programs use it; these programs will see errors
    #[arg(long)]
    pub(crate) force: bool,
    /// Stop the space even while other machines have it mounted
    #[arg(long)]
    pub(crate) yes: bool,
}

/// The space that a command asks, and how the command reaches it.
#[derive(Args)]
pub(crate) struct Whence {
    /// Directory of the space, or of any node
    #[arg(long, default_value = DEFAULT_DIR)]
    pub(crate) dir: PathBuf,
    /// Ask the first node at this address
    #[arg(long, value_name = "HOST:PORT", requires = "token_file", conflicts_with = "dir")]
    pub(crate) at: Option<String>,
    /// Ask the first node of the space that is mounted here
    #[arg(long, value_name = "PATH", requires = "token_file", conflicts_with_all = ["dir", "at"])]
    pub(crate) mount: Option<PathBuf>,
    /// File with the space's secret, for --at and --mount
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct Status {
    #[command(flatten)]
    pub(crate) whence: Whence,
    /// Print the documented JSON form
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct Doctor {
    #[command(flatten)]
    pub(crate) dir: Dir,
    /// Restore the newest whole copy of the metadata after the first node's disk was lost
    ///
    /// If --dir is a space made by `up`, its other nodes' directories are searched for a copy.
    /// If --dir is the first node's own directory, --from says where a copy is.
    #[arg(long, verbatim_doc_comment)]
    pub(crate) restore_metadata: bool,
    /// Repair a stopped space's metadata and map, and keep the state from before
    ///
    /// --dir is a space made by `up`, or the first node's own directory. Files that lost their
    /// names get new ones in /lost+found of the space.
    #[arg(long, verbatim_doc_comment, conflicts_with = "restore_metadata")]
    pub(crate) repair: bool,
    /// A node's directory, or a meta-copy.N in one, to restore from; repeat for more
    #[arg(long, value_name = "DIR", requires = "restore_metadata")]
    pub(crate) from: Vec<PathBuf>,
    /// File with the space's secret; with it --dir becomes a space that `nuri up` can start
    #[arg(long, value_name = "FILE", requires = "restore_metadata")]
    pub(crate) token_file: Option<PathBuf>,
    /// Overwrite existing metadata
    #[arg(long, requires = "restore_metadata")]
    pub(crate) force: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Subcommand)]
pub(crate) enum SpaceVerb {
    /// Set the redundancy of new files in directories without a layout of their own
    Set(SpaceSetting),
}

#[derive(Args)]
pub(crate) struct SpaceSetting {
    #[command(flatten)]
    pub(crate) dir: Dir,
    /// stripe, mirror:N (N copies) or parity:K+M (K data and M parity members)
    #[arg(long, value_name = "SHAPE")]
    pub(crate) shape: Shape,
}

#[derive(Subcommand)]
pub(crate) enum Node {
    /// Run a node in the foreground
    Run(NodeRun),
    /// List the nodes
    List(Status),
}

#[derive(Args)]
pub(crate) struct NodeRun {
    /// Directory of the node: its settings and, for the first node, the metadata
    #[arg(long)]
    pub(crate) dir: PathBuf,
    /// Create the space or node and its targets where they do not exist yet
    #[arg(long)]
    pub(crate) create: bool,
    /// Address to listen on (default: the one used before, else a free loopback port)
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) listen: Option<String>,
    /// Address of the space's first node; without it this node is the first
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) join: Option<String>,
    /// File with the space's secret (default: DIR/token)
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// A directory or whole block device to serve as a target; repeat for more
    #[arg(long, value_name = "PATH")]
    pub(crate) target: Vec<PathBuf>,
    /// Bytes that a target directory may hold, e.g. 500G
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) target_size: Option<u64>,
    /// Bytes of each target (from `up`, which knows what other nodes put on the same disks)
    #[arg(long, hide = true, value_delimiter = ',')]
    pub(crate) target_sizes: Vec<u64>,
    /// (first node) Redundancy of new files in directories without a layout of their own
    #[arg(long, value_name = "SHAPE")]
    pub(crate) shape: Option<Shape>,
    /// (first node) How new groups are placed on targets
    #[arg(long, value_name = "PLACEMENT")]
    pub(crate) placement: Option<Placement>,
    /// Raw disks that `nuri disk serve` on other machines may use: all, none, or paths separated by
    /// commas (default: as before; none for a new node)
    #[arg(long, value_name = "DISKS", value_parser = disk::exported)]
    pub(crate) export_disks: Option<String>,
}

#[derive(Subcommand)]
pub(crate) enum Target {
    /// List the targets
    List(Status),
    /// Check a stopped target: log, index, slots and every checksum
    Check(TargetCheck),
    /// Replace a target by another one in all groups; the new target is brought up to date
    Replace(TargetReplace),
    /// Empty a target: others take its places in all groups while it still serves
    Drain(TargetDrain),
    /// Forget a target that is gone for ever: replaced, or drained and stopped
    Remove(TargetRemove),
    /// Spread the places of groups evenly, after targets were added
    Rebalance(TargetRebalance),
    /// Set how fast targets that missed writes are brought up to date
    Resync(TargetResync),
    /// Read and verify all data on the targets, and repair it from other targets where possible
    Scrub(TargetScrub),
}

#[derive(Args)]
pub(crate) struct TargetReplace {
    /// Number of the target to replace, as in `nuri target list`
    pub(crate) old: u32,
    /// Number of the target that takes its place
    pub(crate) new: u32,
    /// Replace the old target even while it still serves; its data has less redundancy until all of
    /// it is copied
    #[arg(long)]
    pub(crate) force: bool,
    /// Directory of the space
    #[arg(long, default_value = DEFAULT_DIR)]
    pub(crate) dir: PathBuf,
}

#[derive(Args)]
pub(crate) struct TargetDrain {
    /// Number of the target, as in `nuri target list`
    pub(crate) target: u32,
    /// Let new files use it again
    #[arg(long)]
    pub(crate) undo: bool,
    /// Directory of the space
    #[arg(long, default_value = DEFAULT_DIR)]
    pub(crate) dir: PathBuf,
}

#[derive(Args)]
pub(crate) struct TargetRemove {
    /// Number of the target, as in `nuri target list`
    pub(crate) target: u32,
    /// Remove the target even if it held data when it was last heard from
    #[arg(long)]
    pub(crate) force: bool,
    /// Directory of the space
    #[arg(long, default_value = DEFAULT_DIR)]
    pub(crate) dir: PathBuf,
}

#[derive(Args)]
pub(crate) struct TargetRebalance {
    /// Directory of the space
    #[arg(long, default_value = DEFAULT_DIR)]
    pub(crate) dir: PathBuf,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
pub(crate) struct Pace {
    /// Leave programs most of the disks and the network (the default)
    #[arg(long)]
    pub(crate) gentle: bool,
    /// Bytes per second to each target, at most, e.g. 50M
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) rate: Option<u64>,
    /// Pause until --gentle or --rate is given
    #[arg(long)]
    pub(crate) pause: bool,
}

#[derive(Args)]
pub(crate) struct TargetResync {
    #[command(flatten)]
    pub(crate) pace: Pace,
    /// Directory of the space
    #[arg(long, default_value = DEFAULT_DIR)]
    pub(crate) dir: PathBuf,
}

#[derive(Args)]
pub(crate) struct TargetScrub {
    /// Bytes that each node reads per second, at most (default 32M)
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) rate: Option<u64>,
    /// Begin a scrub every DAYS days, or never (default 7); does not begin one now
    #[arg(long, value_name = "DAYS", value_parser = parse_days)]
    #[arg(conflicts_with_all = ["rate", "wait"])]
    pub(crate) every: Option<Days>,
    /// End the scrub that runs
    #[arg(long, conflicts_with_all = ["rate", "every", "wait"])]
    pub(crate) stop: bool,
    /// Wait for the end of the scrub; the exit code is 1 if something could not be repaired
    #[arg(long)]
    pub(crate) wait: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Directory of the space
    #[arg(long, default_value = DEFAULT_DIR)]
    pub(crate) dir: PathBuf,
}

/// How many days, or never.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Days(pub(crate) Option<u16>);

#[derive(Args)]
pub(crate) struct TargetCheck {
    /// The target: its directory or device
    pub(crate) path: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// A text that says neither a number of days nor never.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is neither days nor \"never\"")]
struct UnknownDays(String);

fn parse_days(text: &str) -> Result<Days, UnknownDays> {
    if text == "never" {
        return Ok(Days(None));
    }
    let days = text.parse().ok().filter(|days| *days > 0);
    days.map(|days| Days(Some(days))).ok_or_else(|| UnknownDays(text.into()))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn days() {
        assert_eq!(parse_days("7"), Ok(Days(Some(7))));
        assert_eq!(parse_days("never"), Ok(Days(None)));
        assert!(parse_days("0").is_err());
    }
}
