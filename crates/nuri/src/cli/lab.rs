//! `nuri lab`: nouns, verbs and options.

use clap::{Args, Subcommand};
use nuri_lab::run::Request;
use nuri_lab::single::Where;
use nuri_lab::workload::bonnie::Bonnie;
use nuri_lab::workload::ior::Ior;
use nuri_lab::workload::mdtest::Mdtest;

#[derive(Subcommand)]
pub(crate) enum Lab {
    /// List the studies
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print a study's plan, a base for one's own
    Show {
        /// As in `nuri lab list`
        study: String,
    },
    /// Run a study, or a plan of one's own, and write its results to a file
    Run(Box<Request>),
    /// Write and read files as IOR does, with its option letters
    Ior(Box<Once<Ior>>),
    /// Create, stat and remove files and directories as mdtest does, with its option letters
    Mdtest(Box<Once<Mdtest>>),
    /// Write, rewrite and read files by characters and blocks as Bonnie does
    Bonnie(Box<Once<Bonnie>>),
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
