//! The command line of `nuri-lab`: it measures a cluster, judges results, and makes a cluster to
//! measure.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use nuri_lab::request::Request;
use nuri_lab::server::Served;
use nuri_lab::single::{How, Where};
use nuri_lab::tune::Tune;
use nuri_lab::watch::Watch;
use nuri_lab::workload::block::Block;
use nuri_lab::workload::bonnie::Bonnie;
use nuri_lab::workload::database::DbStress;
use nuri_lab::workload::io500::Io500;
use nuri_lab::workload::ior::Ior;
use nuri_lab::workload::ipc::Ipc;
use nuri_lab::workload::mdtest::Mdtest;
use nuri_netns::Link;
use nuri_proto::layout::Shape;
use nuri_proto::size::parse as parse_size;

#[derive(Parser)]
#[command(
    name = "nuri-lab",
    bin_name = "nuri lab",
    version,
    about = "Measures a cluster as five published studies did"
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Lab,
}

#[derive(Subcommand)]
pub(crate) enum Lab {
    /// List the studies
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print a study's plan, as a base for one of your own
    Show {
        /// Name of the study, as in `nuri lab list`
        study: String,
    },
    /// Run a study, or a plan of your own, and write the results to a file
    Run(Box<Request>),
    /// Write and read files as IOR does, with its option letters
    Ior(Box<Once<Ior>>),
    /// Create, stat and remove files and directories as mdtest does, with its option letters
    Mdtest(Box<Once<Mdtest>>),
    /// Write, rewrite and read files by characters and blocks as Bonnie does
    Bonnie(Box<Once<Bonnie>>),
    /// Write and read blocks of a device or a file: in order, at random places, and durably
    Block(Box<Once<Block>>),
    /// Fill a table of a database, then select, update and delete its rows (SQLite or PostgreSQL)
    DbStress(Box<Once<DbStress>>),
    /// Do the easy and the hard phases of IO500 by our own workloads; no official score
    #[command(name = "io500-like")]
    Io500(Box<Once<Io500>>),
    /// Send messages between two processes of this machine
    Ipc(Box<Between>),
    /// Measure directories again and again, and report what became slow and since when
    Watch(Box<Watch>),
    /// Find the best striping for new files of a directory, and set it if asked to
    Tune(Box<Tune>),
    /// Report what runs measured, as tables, plots and plain words
    Report(Report),
    /// Find what became slower between two runs; the exit status is 1 if something did
    Compare(Compare),
    /// Make a cluster on this machine: a network namespace per node, links with a rate
    Testbed(Testbed),
    /// One process of a workload (started by the others)
    #[command(hide = true)]
    Rank,
}

/// A workload's options and where it runs.
#[derive(Args)]
pub(crate) struct Once<O: Args> {
    #[command(flatten)]
    pub(crate) options: O,
    #[command(flatten)]
    pub(crate) place: Where,
}

/// Of messages, which lie nowhere.
#[derive(Args)]
pub(crate) struct Between {
    #[command(flatten)]
    pub(crate) options: Ipc,
    #[command(flatten)]
    pub(crate) how: How,
}

#[derive(Args)]
pub(crate) struct Report {
    /// Files that `nuri lab run` wrote
    #[arg(required = true, value_name = "RUN")]
    pub(crate) runs: Vec<PathBuf>,
    /// File to write the report to; repeat for several forms: a page (.html), Markdown (.md), and
    /// the drawing of runs with one metric (.svg). Default: Markdown on standard output
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Vec<PathBuf>,
}

#[derive(Args)]
pub(crate) struct Compare {
    /// The file of the earlier run
    pub(crate) before: PathBuf,
    /// The file of the later run
    pub(crate) after: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Testbed {
    #[command(subcommand)]
    pub(crate) action: Option<Action>,
    #[command(flatten)]
    pub(crate) make: Make,
}

#[derive(Args)]
pub(crate) struct Make {
    /// How many nodes, with one target each
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=64))]
    pub(crate) nodes: u64,
    /// Rate of each node's link, both ways: 100mbit, 1gbit (default: as fast as it goes)
    #[arg(long, value_name = "RATE")]
    pub(crate) link: Option<Link>,
    /// How many of the nodes mount the space
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=64))]
    pub(crate) mounts: u64,
    /// A new directory for the testbed's targets, mounts and logs; removed with the testbed
    #[arg(long, default_value = "/var/tmp/nuri-testbed")]
    pub(crate) dir: PathBuf,
    /// Bytes that each target may hold
    #[arg(long, value_name = "SIZE", default_value = "2G", value_parser = parse_size)]
    pub(crate) target_size: u64,
    /// Redundancy of files: stripe, mirror:N or parity:K+M (default: as for `nuri up`)
    #[arg(long, value_name = "SHAPE")]
    pub(crate) shape: Option<Shape>,
    /// What is served beside the mounts
    #[arg(long, value_enum, value_name = "WHAT")]
    pub(crate) serve: Option<Served>,
}

#[derive(Args)]
pub(crate) struct Which {
    /// Directory of the testbed; needed if several run
    #[arg(long)]
    pub(crate) dir: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct OneNode {
    /// The node's number; node 0 has the metadata
    pub(crate) node: u64,
    #[command(flatten)]
    pub(crate) which: Which,
}

#[derive(Subcommand)]
pub(crate) enum Action {
    /// Remove a testbed: its processes, mounts, namespaces and files
    Down(Which),
    /// Remove all testbeds, also those that a killed command left
    Clean,
    /// Show the testbeds
    List,
    /// Kill a node's processes
    Kill(OneNode),
    /// Start a killed node again
    Start(OneNode),
    /// Stop a node's processes, as on a frozen machine
    Pause(OneNode),
    /// Resume a paused node
    Resume(OneNode),
    /// Pull a node's cable
    Cut(OneNode),
    /// Put a node's cable in again
    Plug(OneNode),
}
