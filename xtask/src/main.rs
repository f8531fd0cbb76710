//! All automation: what CI runs, a laptop can run. `cargo xtask ci` is `make test`.

mod apps;
mod bench;
mod broken;
mod ci;
mod faults;
mod install;
mod litmus;
mod model;
mod shell;
mod studies;
mod testbed;
mod tidy;
mod watch;

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
    Ci,
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
        /// How long, for all shapes together
        #[arg(long, default_value_t = 10)]
        minutes: u64,
        /// Plays the same faults again (programs take their own time)
        #[arg(long)]
        seed: Option<u64>,
    },
    /// What programs on several mounts see of each other's doing
    Litmus {
        /// How long, for all tests together
        #[arg(long, default_value_t = 10)]
        minutes: u64,
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
    /// Builds that break one rule each must fail their test
    Broken {
        /// Only every n-th flag, starting with the day of the year
        #[arg(long, default_value_t = 1)]
        every: usize,
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
    /// How fast lost and absent targets come back, and what programs keep of their speed
    BenchRebuild {
        /// Where to work; needs some GiB
        #[arg(long, default_value = "/var/tmp/nuri-bench")]
        dir: std::path::PathBuf,
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
        Command::Ci => ci::run(),
        Command::Tidy => tidy::run(),
        Command::Apps { quick, only } => {
            apps::run(if quick { apps::Share::Quick } else { apps::Share::Whole }, &only)
        }
        Command::Faults { minutes, seed } => faults::run(minutes, seed),
        Command::Litmus { minutes, seed, only } => {
            litmus::run(std::time::Duration::from_secs(60 * minutes), seed, &only)
        }
        Command::Model { minutes, seed, shape, mounts } => {
            let only = model::Only { shape: &shape, mounts };
            model::run(std::time::Duration::from_secs(60 * minutes), seed, only)
        }
        Command::Broken { every } => broken::run(every, std::time::Duration::MAX),
        Command::Studies { every } => studies::run(every),
        Command::Fuzz { seconds } => broken::fuzz(seconds),
        Command::BenchShapes { rounds, dir } => bench::shapes::run(rounds, &dir),
        Command::BenchLink { rounds, dir } => bench::link::run(rounds, &dir),
        Command::BenchNear { rounds, dir } => bench::near::run(rounds, &dir),
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
