//! The command line: nouns and verbs. What needs no disk is checked here.

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
    /// What holds for a whole space
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
        /// For the program nuri-lab
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<std::ffi::OsString>,
    },
    /// Keeps a space's processes running (started by `up`)
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
    /// Make what is not there yet: the space, targets. Without it `up` only starts what there is
    #[arg(long)]
    pub(crate) create: bool,
    /// How many targets to make in the directory (default 4)
    #[arg(long, conflicts_with = "target", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) targets: Option<u16>,
    /// A directory or whole block device to use as a target; repeat for more
    #[arg(long, value_name = "PATH")]
    pub(crate) target: Vec<PathBuf>,
    /// Where to mount the space; made where it does not exist
    #[arg(long, value_name = "DIR")]
    pub(crate) mount: Option<PathBuf>,
    /// Programs on the mount may run with the rights of their owner (setuid)
    #[arg(long)]
    pub(crate) suid: bool,
    /// Device files on the mount may be opened
    #[arg(long)]
    pub(crate) dev: bool,
    /// How many node processes to run
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) nodes: Option<u16>,
    /// Bytes that a target directory may hold, e.g. 500G (default: its share of its file system's
    /// free space)
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) target_size: Option<u64>,
    /// How files are kept: stripe, mirror:N (N copies) or parity:K+M (K data and M parity members).
    /// Default: parity:3+1 with four targets or more, mirror:2 with two or three
    #[arg(long, value_name = "SHAPE")]
    pub(crate) shape: Option<Shape>,
    /// How the members of mirrors and parity lie over targets: declustered (default; a lost
    /// target's data comes back from all others), rotated, chained or orthogonal
    #[arg(long, value_name = "PLACEMENT")]
    pub(crate) placement: Option<Placement>,
    /// Address to listen on (default 127.0.0.1:0, a free loopback port); others than loopback open
    /// the space to the network. Further nodes take free ports of the same host
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) listen: Option<String>,
    /// Raw disks of this machine that `nuri disk serve` on other machines may use: all, none, or
    /// paths with commas between them (default: as before, at first none)
    #[arg(long, value_name = "DISKS", value_parser = disk::exported)]
    pub(crate) export_disks: Option<String>,
}

#[derive(Args)]
pub(crate) struct Down {
    #[command(flatten)]
    pub(crate) dir: Dir,
    /// Detach the mount even while programs use it; they will see errors
    #[arg(long)]
    pub(crate) force: bool,
    /// Also while other machines have mounted the space
    #[arg(long)]
    pub(crate) yes: bool,
}

/// Which space, and how to ask it.
#[derive(Args)]
pub(crate) struct Whence {
    /// Directory of the space, or of any node
    #[arg(long, default_value = DEFAULT_DIR)]
    pub(crate) dir: PathBuf,
    /// Ask the first node at this address
    #[arg(long, value_name = "HOST:PORT", requires = "token_file", conflicts_with = "dir")]
    pub(crate) at: Option<String>,
    /// Ask the node that this mount asks
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
    /// Put the newest whole copy of the metadata back, where the first node's disk was lost
    ///
    /// --dir is a space made by `up`: its other nodes' directories are searched. Or it is the first
    /// node's own directory, and --from says where a copy is.
    #[arg(long, verbatim_doc_comment)]
    pub(crate) restore_metadata: bool,
    /// Mend a stopped space's metadata and map, keeping what was there before
    ///
    /// --dir is a space made by `up`, or the first node's own directory. Names that were lost are
    /// found in /lost+found of the space.
    #[arg(long, verbatim_doc_comment, conflicts_with = "restore_metadata")]
    pub(crate) repair: bool,
    /// A node's directory, or a meta-copy.N of one, to restore from; repeat for more
    #[arg(long, value_name = "DIR", requires = "restore_metadata")]
    pub(crate) from: Vec<PathBuf>,
    /// File with the space's secret: makes --dir a space that `nuri up` starts
    #[arg(long, value_name = "FILE", requires = "restore_metadata")]
    pub(crate) token_file: Option<PathBuf>,
    /// Overwrite metadata that is there
    #[arg(long, requires = "restore_metadata")]
    pub(crate) force: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Subcommand)]
pub(crate) enum SpaceVerb {
    /// Set how new files are kept where no directory says otherwise
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
    /// Make what is not there yet: a new space or node, targets
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
    /// (first node) What new files get where no directory says otherwise
    #[arg(long, value_name = "SHAPE")]
    pub(crate) shape: Option<Shape>,
    /// (first node) How groups that are made from now on lie over targets
    #[arg(long, value_name = "PLACEMENT")]
    pub(crate) placement: Option<Placement>,
    /// Raw disks that `nuri disk serve` on other machines may use: all, none, or paths with commas
    /// between them (default: as before, at first none)
    #[arg(long, value_name = "DISKS", value_parser = disk::exported)]
    pub(crate) export_disks: Option<String>,
}

#[derive(Subcommand)]
pub(crate) enum Target {
    /// List the targets
    List(Status),
    /// Check a stopped target: log, index, slots and every checksum
    Check(TargetCheck),
    /// Put a target in the place of another in all groups; what it lacks is brought to it
    Replace(TargetReplace),
    /// Empty a target: others take its places in all groups while it still serves
    Drain(TargetDrain),
    /// Forget a target that is gone for ever: replaced, or drained and stopped
    Remove(TargetRemove),
    /// Spread the places of groups evenly, after targets were added
    Rebalance(TargetRebalance),
    /// Say how fast targets that missed writes are brought up to date
    Resync(TargetResync),
    /// Read all that the targets hold, prove it, and repair what others can repair
    Scrub(TargetScrub),
}

#[derive(Args)]
pub(crate) struct TargetReplace {
    /// The number of the target that goes, as in `nuri target list`
    pub(crate) old: u32,
    /// The number of the target that comes
    pub(crate) new: u32,
    /// Also where the old one still serves: what it holds has less redundancy until all is copied
    #[arg(long)]
    pub(crate) force: bool,
    /// Directory of the space
    #[arg(long, default_value = DEFAULT_DIR)]
    pub(crate) dir: PathBuf,
}

#[derive(Args)]
pub(crate) struct TargetDrain {
    /// The number of the target, as in `nuri target list`
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
    /// The number of the target, as in `nuri target list`
    pub(crate) target: u32,
    /// Also where it held bytes when it was last heard of
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
    /// Stop until told otherwise
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
    /// Begin one every so many days, or never (default 7); none begins now
    #[arg(long, value_name = "DAYS", value_parser = parse_days)]
    #[arg(conflicts_with_all = ["rate", "wait"])]
    pub(crate) every: Option<Days>,
    /// End the one that runs
    #[arg(long, conflicts_with_all = ["rate", "every", "wait"])]
    pub(crate) stop: bool,
    /// Wait for its end; the exit code is 1 where something could not be repaired
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
