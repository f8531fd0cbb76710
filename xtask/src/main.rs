//! All automation: what CI runs, a laptop can run. `cargo xtask ci` is `make test`.

mod again;
mod apps;
mod bench;
mod broken;
mod ci;
mod circles;
mod faults;
mod guest;
mod install;
mod litmus;
mod model;
mod named_files;
mod quoted;
mod release;
mod retired;
mod shell;
mod studies;
mod testbed;
mod tidy;
mod tracked;
mod watch;

use std::time::Duration;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Nuri's automation")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Everything that CI checks, with a table of times
    Ci {
        /// Write the table of minutes in docs/testing.md anew
        #[arg(long)]
        update: bool,
    },
    /// Format, tidy, clippy and unit tests of the crates that changed and those above them
    Check {
        /// Since this commit; changes that are not committed count too
        #[arg(long, default_value = "HEAD")]
        since: String,
    },
    /// Run the tests whose names contain this, one after the other, and show what they say
    Test { name: String },
    /// Run the tests of mounts again and again beside a load, and list those that failed
    Flaky {
        /// How long; 0.5 is half an hour
        #[arg(long, default_value_t = 1.0)]
        hours: f64,
        /// Only tests whose names contain this
        #[arg(long, default_value = "")]
        only: String,
    },
    /// NBD and NFS clients in a real kernel: a guest under qemu that plays stories, as a power cut
    Guest {
        /// Only stories whose names contain this
        #[arg(long, default_value = "")]
        only: String,
        /// Of the long stories only every n-th; which ones changes by the day
        #[arg(long, default_value_t = 1)]
        every: usize,
    },
    /// Prove that no rule can be broken in a release
    ReleaseCheck,
    /// Run a program; end it and all that it started when the time is over
    #[command(hide = true)]
    Guard {
        /// Seconds
        #[arg(long)]
        limit: u64,
        /// What it leaves behind is ended without a word
        #[arg(long)]
        lenient: bool,
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
    /// House rules: layers, lengths, unsafe fences, licences
    Tidy,
    /// Real programs on a mount, and on two
    Apps {
        /// A bounded share, for CI
        #[arg(long)]
        quick: bool,
        /// Those alone of which the name contains this
        #[arg(long, default_value = "")]
        only: String,
    },
    /// Real programs on mirrors and parity while nodes are killed and stopped
    Faults {
        /// How long, for each shape
        #[arg(long, default_value_t = 300)]
        seconds: u64,
        /// Only shapes whose names contain this
        #[arg(long, default_value = "")]
        only: String,
        /// Plays the same faults again (programs take their own time)
        #[arg(long)]
        seed: Option<u64>,
    },
    /// What programs on several mounts see of each other's doing
    Litmus {
        /// How long, for all tests together
        #[arg(long, default_value_t = 10)]
        minutes: u64,
        /// The same in seconds
        #[arg(long, conflicts_with = "minutes")]
        seconds: Option<u64>,
        /// Plays rounds drawn from it (the mounts take their own time)
        #[arg(long)]
        seed: Option<u64>,
        /// Only tests whose names hold this
        #[arg(long, default_value = "")]
        only: String,
    },
    /// Random calls that change or show data, against a model in memory
    Model {
        /// How long, for all settings together
        #[arg(long, default_value_t = 10)]
        minutes: u64,
        /// The same in seconds
        #[arg(long, conflicts_with = "minutes")]
        seconds: Option<u64>,
        /// Plays rounds drawn from it
        #[arg(long)]
        seed: Option<u64>,
        /// Only shapes that begin so
        #[arg(long, default_value = "")]
        shape: String,
        /// Only with so many mounts (0: with one and with two)
        #[arg(long, default_value_t = 0)]
        mounts: u64,
    },
    /// Break each rule, one at a time: its test must notice
    Broken {
        /// Only rules whose names, or whose tests' names, contain this
        #[arg(long, default_value = "")]
        only: String,
    },
    /// The laboratory's studies in their short form, on a cluster of namespaces
    Studies {
        /// Only every n-th study, starting with the day of the year
        #[arg(long, default_value_t = 1)]
        every: usize,
    },
    /// Fuzz targets, for so many seconds in all
    Fuzz {
        #[arg(default_value_t = 600)]
        seconds: u64,
    },
    /// Mirrors and parity against `stripe` and the local file system
    BenchShapes {
        /// Rounds of each measurement
        #[arg(long, default_value_t = 5)]
        rounds: usize,
        /// Where to work; needs some GiB
        #[arg(long, default_value = "/var/tmp/nuri-bench")]
        dir: std::path::PathBuf,
    },
    /// Parity over 100 Mbit/s links, against a TCP stream
    BenchLink {
        /// Rounds of each measurement
        #[arg(long, default_value_t = 3)]
        rounds: usize,
        /// Where to work; needs some GiB
        #[arg(long, default_value = "/var/tmp/nuri-bench")]
        dir: std::path::PathBuf,
    },
    /// One copy between processes of this machine, against TCP over loopback
    BenchNear {
        /// Rounds of each measurement
        #[arg(long, default_value_t = 3)]
        rounds: usize,
        /// Where to work; needs some GiB
        #[arg(long, default_value = "/var/tmp/nuri-bench")]
        dir: std::path::PathBuf,
    },
    /// Volumes and a raw disk over NBD, against nbdkit on the local disk (install nbdkit first)
    BenchBlock {
        /// Rounds of each measurement
        #[arg(long, default_value_t = 3)]
        rounds: usize,
        /// Where to work; needs some GiB
        #[arg(long, default_value = "/var/tmp/nuri-bench")]
        dir: std::path::PathBuf,
    },
    /// The space over NFS, against nfs-ganesha on the local disk (run scripts/setup --bench first)
    BenchNfs {
        /// Rounds of each measurement
        #[arg(long, default_value_t = 3)]
        rounds: usize,
        /// Where to work; needs some GiB
        #[arg(long, default_value = "/var/tmp/nuri-bench")]
        dir: std::path::PathBuf,
    },
    /// How fast lost and absent targets come back, and what programs keep of their speed
    BenchRebuild {
        /// Where to work; needs some GiB
        #[arg(long, default_value = "/var/tmp/nuri-bench")]
        dir: std::path::PathBuf,
    },
    /// What single calls cost: names, links, attributes, sizes, locks
    BenchOps {
        /// Rounds of each measurement
        #[arg(long, default_value_t = 5)]
        rounds: usize,
        /// Where to work; needs some GiB
        #[arg(long, default_value = "/var/tmp/nuri-bench")]
        dir: std::path::PathBuf,
        /// Only the calls whose name contains this
        #[arg(long, default_value = "")]
        only: String,
        /// On the build that tests use, against what the calls usually cost
        #[arg(long)]
        short: bool,
        /// In directories that two mounts change at once
        #[arg(long, conflicts_with = "short")]
        turns: bool,
    },
    /// What names and coherence between mounts cost
    BenchCoherence {
        /// Rounds of each measurement
        #[arg(long, default_value_t = 5)]
        rounds: usize,
        /// Where to work; needs some GiB
        #[arg(long, default_value = "/var/tmp/nuri-bench")]
        dir: std::path::PathBuf,
        /// Only the rows whose name contains this
        #[arg(long, default_value = "")]
        only: String,
        /// A tenth of everything, to see that it runs
        #[arg(long, hide = true)]
        quick: bool,
    },
    /// Builds and installs the program, the libraries for C programs and the manual pages
    Install {
        /// Where to: `bin`, `lib`, `include` and `share` are made there
        #[arg(long, default_value = "/usr/local")]
        prefix: std::path::PathBuf,
        /// Only what C programs need
        #[arg(long)]
        libraries: bool,
    },
    /// Messages between two processes: nuri-ipc beside MPI, UCX, sockets and pipes
    BenchIpc {
        /// Rounds of each measurement
        #[arg(long, default_value_t = 5)]
        rounds: usize,
        /// One short round of three sizes, to see that it runs
        #[arg(long)]
        quick: bool,
    },
    #[command(hide = true)]
    LinkSink { address: String },
    #[command(hide = true)]
    LinkSource { address: String, mib: usize },
    /// Ratios against the local file system and a plain FUSE passthrough
    Bench {
        /// Rounds of each measurement
        #[arg(long, default_value_t = 5)]
        rounds: usize,
        /// Where to work; needs some GiB
        #[arg(long, default_value = "/var/tmp/nuri-bench")]
        dir: std::path::PathBuf,
        /// Only the rows whose name contains this
        #[arg(long, default_value = "")]
        only: String,
    },
}

fn main() -> std::process::ExitCode {
    let outcome = match Cli::parse().command {
        Command::Ci { update } => ci::run(update),
        Command::Check { since } => again::check::run(&since),
        Command::Test { name } => again::test::run(&name),
        Command::Flaky { hours, only } => again::flaky::run(hours, &only),
        Command::Guest { only, every } => guest::run(&only, every),
        Command::ReleaseCheck => release::run_check(),
        Command::Guard { limit, lenient, words } => {
            watch::guard(&words, Duration::from_secs(limit), lenient)
        }
        Command::Tidy => tidy::run(),
        Command::Apps { quick, only } => {
            apps::run(if quick { apps::Share::Quick } else { apps::Share::Whole }, &only)
        }
        Command::Faults { seconds, seed, only } => {
            faults::run(Duration::from_secs(seconds), seed, &only)
        }
        Command::Litmus { minutes, seconds, seed, only } => {
            let time = Duration::from_secs(seconds.unwrap_or(60 * minutes));
            litmus::run(time, seed, &only)
        }
        Command::Broken { only } => broken::run(&only),
        Command::Model { minutes, seconds, seed, shape, mounts } => {
            let only = model::Only { shape: &shape, mounts };
            model::run(Duration::from_secs(seconds.unwrap_or(60 * minutes)), seed, only)
        }
        Command::Studies { every } => studies::run(every),
        Command::Fuzz { seconds } => shell::run(
            std::process::Command::new("bash").arg("fuzz/run.sh").arg(seconds.to_string()),
            Duration::from_secs(seconds + 600),
        ),
        Command::BenchShapes { rounds, dir } => bench::shapes::run(rounds, &dir),
        Command::BenchLink { rounds, dir } => bench::link::run(rounds, &dir),
        Command::BenchNear { rounds, dir } => bench::near::run(rounds, &dir),
        Command::BenchBlock { rounds, dir } => bench::block::run(rounds, &dir),
        Command::BenchNfs { rounds, dir } => bench::nfs::run(rounds, &dir),
        Command::BenchOps { short: true, .. } => bench::ops::run_short(),
        Command::BenchOps { rounds, dir, only, turns: true, .. } => {
            bench::ops::turns::run(rounds, &dir, &only)
        }
        Command::BenchOps { rounds, dir, only, .. } => bench::ops::run(rounds, &dir, &only),
        Command::BenchRebuild { dir } => bench::rebuild::run(&dir),
        Command::BenchCoherence { rounds, dir, only, quick } => {
            let extent = bench::coherence::Extent { rounds, only: &only, quick };
            bench::coherence::run(&dir, &extent)
        }
        Command::Install { prefix, libraries } => {
            let parts = if libraries { install::Parts::Libraries } else { install::Parts::All };
            install::run(&prefix, parts)
        }
        Command::BenchIpc { rounds, quick } => {
            bench::ipc::run(&bench::ipc::Extent { rounds, quick })
        }
        Command::LinkSink { address } => bench::link::sink(&address),
        Command::LinkSource { address, mib } => bench::link::source(&address, mib),
        Command::Bench { rounds, dir, only } => bench::run(rounds, &dir, &only),
    };
    match outcome {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("xtask: {text}");
            std::process::ExitCode::FAILURE
        }
    }
}
