//! The command line: nouns and verbs. What needs no disk is checked here.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use nuri_client::flow;
use nuri_fuse::Transport;
use nuri_proto::layout::Shape;
use nuri_proto::map::Placement;
use nuri_proto::size::parse as parse_size;

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

#[derive(Subcommand)]
pub(crate) enum Fs {
    /// Mount a space
    Mount(Mount),
    /// Unmount
    Umount(Umount),
    /// Show or set how files are spread
    #[command(subcommand)]
    Layout(Layout),
    /// Show or force how a mount moves bulk data: flow buffers, reading ahead, writing behind
    #[command(subcommand)]
    Flow(Flow),
    /// Show capacity by target
    Df(Df),
}

#[derive(Args)]
pub(crate) struct Mount {
    /// The space: the directory given to `up`, or HOST:PORT of its first node
    pub(crate) space: String,
    /// An empty directory; made where it does not exist
    pub(crate) mountpoint: PathBuf,
    /// File with the space's secret (needed with HOST:PORT)
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// How the kernel hands requests over: auto (uring where it can be had), classic, uring
    ///
    /// uring is FUSE over io_uring: quicker, needs Linux 6.14 and fuse.enable_uring=Y, which
    /// auto and uring set themselves (as root). Mounts that `up` made take the variable.
    #[arg(long, env = "NURI_TRANSPORT", default_value = "auto", verbatim_doc_comment)]
    pub(crate) transport: Transport,
    /// Files and directories that the mount remembers, at most, beside those that programs use
    ///
    /// Each costs about half a KiB of memory here and one in the kernel. Needs Linux 6.18; before,
    /// the kernel forgets by its own need of memory. Mounts that `up` made take the variable.
    #[arg(long, value_name = "N", env = "NURI_INODES", default_value_t = 200_000,
        value_parser = clap::value_parser!(u32).range(100..))]
    pub(crate) inodes: u32,
    /// Programs there may run with the rights of their owner (setuid)
    #[arg(long)]
    pub(crate) suid: bool,
    /// Device files there may be opened
    #[arg(long)]
    pub(crate) dev: bool,
    /// No program there may be started
    #[arg(long)]
    pub(crate) noexec: bool,
    /// Reads leave access times as they are
    #[arg(long)]
    pub(crate) noatime: bool,
    /// What the table of mounts shows as its source
    #[arg(long, value_name = "TEXT", default_value = "nuri", hide = true)]
    pub(crate) source: String,
    /// Nothing can be changed through this mount
    #[arg(long)]
    pub(crate) ro: bool,
    /// Stay in the foreground
    #[arg(long)]
    pub(crate) foreground: bool,
}

#[derive(Args)]
pub(crate) struct Umount {
    pub(crate) mountpoint: PathBuf,
    /// Detach at once, also while programs use it
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Subcommand)]
pub(crate) enum Layout {
    /// Show the layout of a file, or what a directory's new files inherit
    Get {
        path: PathBuf,
        #[arg(long)]
        json: bool,
    },
    /// Set what a directory's new files inherit
    Set {
        path: PathBuf,
        /// Bytes per chunk, a power of two from 64K to 64M
        #[arg(long, value_parser = parse_size)]
        chunk_size: Option<u64>,
        /// Over how many groups a file rotates (0: all)
        #[arg(long)]
        width: Option<u16>,
        /// stripe, mirror:N (N copies) or parity:K+M (K data and M parity members)
        #[arg(long)]
        shape: Option<Shape>,
    },
}

#[derive(Subcommand)]
pub(crate) enum Flow {
    /// Show what is forced, what is used now, and what the paths carry
    Get {
        /// A mount, or anything in it
        path: PathBuf,
        #[arg(long)]
        json: bool,
    },
    /// Force a setting, until it is set to auto or the mount ends
    ///
    /// A mount fits its flow buffers to what the path carries, and the rest suits most programs; to
    /// force it is for measuring (nuri lab tune) and for programs that differ.
    Set(FlowSet),
}

#[derive(Args)]
pub(crate) struct FlowSet {
    /// A mount, or anything in it
    pub(crate) path: PathBuf,
    #[command(flatten)]
    pub(crate) wishes: Wishes,
}

#[derive(Args)]
pub(crate) struct Wishes {
    /// Bytes of a flow buffer, a power of two from 64K to 1M, or auto
    #[arg(long, value_name = "SIZE", value_parser = parse_buffer)]
    pub(crate) buffer: Option<Wish>,
    /// Flow buffers on their way at once, and so threads that write, from 1 to 8, or auto
    #[arg(long, value_name = "N", value_parser = parse_streams)]
    pub(crate) streams: Option<Wish>,
    /// Bytes to read ahead, a multiple of 64K up to 8M, or auto; for files opened later
    #[arg(long, value_name = "SIZE", value_parser = parse_ahead)]
    pub(crate) read_ahead: Option<Wish>,
    /// Bytes to buffer for writing, from 4M to 256M, or auto
    #[arg(long, value_name = "SIZE", value_parser = parse_behind)]
    pub(crate) write_behind: Option<Wish>,
    /// Threads that read ahead for programs that bypass the kernel's cache, from 1 to 8, or auto
    #[arg(long, value_name = "N", value_parser = parse_threads)]
    pub(crate) threads: Option<Wish>,
}

/// A number that is forced, or none.
#[derive(Clone, Copy)]
pub(crate) struct Wish(pub(crate) Option<u64>);

#[derive(Args)]
pub(crate) struct Df {
    /// The space's directory, or a path on a mounted space
    #[arg(default_value = DEFAULT_DIR)]
    pub(crate) space: PathBuf,
    #[arg(long)]
    pub(crate) json: bool,
}

const AUTO: &str = "auto";

fn parse_buffer(text: &str) -> Result<Wish, String> {
    wish(text, parse_size, flow::is_size, "a power of two from 64K to 1M")
}

fn parse_streams(text: &str) -> Result<Wish, String> {
    wish(text, parse_count, flow::is_count, "from 1 to 8")
}

fn parse_ahead(text: &str) -> Result<Wish, String> {
    wish(text, parse_size, flow::is_ahead, "a multiple of 64K up to 8M")
}

fn parse_behind(text: &str) -> Result<Wish, String> {
    wish(text, parse_size, flow::is_behind, "from 4M to 256M")
}

fn parse_threads(text: &str) -> Result<Wish, String> {
    wish(text, parse_count, flow::is_crew, "from 1 to 8")
}

/// A number within its bounds, or `auto`.
fn wish<T: TryFrom<u64> + Copy>(
    text: &str,
    parse: fn(&str) -> Result<u64, String>,
    is_good: fn(T) -> bool,
    bounds: &str,
) -> Result<Wish, String> {
    if text == AUTO {
        return Ok(Wish(None));
    }
    let number = parse(text)?;
    match T::try_from(number) {
        Ok(small) if is_good(small) => Ok(Wish(Some(number))),
        _ => Err(format!("{bounds}, or auto")),
    }
}

fn parse_count(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{text:?} is neither a number nor \"auto\""))
}

fn parse_days(text: &str) -> Result<Days, String> {
    if text == "never" {
        return Ok(Days(None));
    }
    let days = text.parse().ok().filter(|days| *days > 0);
    days.map(|days| Days(Some(days))).ok_or(format!("{text:?} is neither days nor \"never\""))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    /// The bounds that sentences name are those that a mount obeys.
    #[test]
    fn settings_of_a_mount_have_bounds() {
        let number = |parsed: Result<Wish, String>| parsed.ok().and_then(|wish| wish.0);
        assert_eq!(number(parse_behind("4M")), Some(flow::LEAST_BEHIND));
        assert_eq!(number(parse_behind("256M")), Some(flow::MOST_BEHIND));
        assert_eq!(number(parse_ahead("8M")), Some(flow::MOST_AHEAD.into()));
        assert_eq!(number(parse_ahead("64K")), Some(flow::AHEAD_STEP.into()));
        assert_eq!(number(parse_threads("8")), Some(flow::MOST_THREADS.into()));
        assert_eq!(number(parse_streams("8")), Some(flow::MOST_STREAMS.into()));
        assert_eq!(number(parse_ahead("0")), Some(0));
        for odd in ["3M", "257M", "x"] {
            assert!(parse_behind(odd).is_err(), "{odd}");
        }
        assert!(parse_ahead("65k").is_err() && parse_ahead("9M").is_err());
        assert!(parse_threads("9").is_err() && parse_streams("many").is_err());
        assert!(parse_threads("auto").is_ok_and(|wish| wish.0.is_none()));
    }

    #[test]
    fn days() {
        assert_eq!(parse_days("7"), Ok(Days(Some(7))));
        assert_eq!(parse_days("never"), Ok(Days(None)));
        assert!(parse_days("0").is_err());
    }
}
