//! `nuri`: the main program. Verbs are in `cmd`, processes and their restarts in `supervisor`, and
//! the contents of a space's directory in `space`. A node itself is the crate `nuri-node`, and the
//! laboratory is the program `nuri-lab`.

mod cli;
mod cmd;
mod disks;
mod health;
mod listeners;
mod logs;
mod loss;
mod show;
mod space;
mod supervisor;
mod users;

use clap::Parser;
use nuri_node::failure::{Failure, at};

fn main() -> std::process::ExitCode {
    nuri_io::program::end_when_nobody_reads();
    if cmd::helper::is_called() {
        return cmd::helper::run();
    }
    let cli = cli::Cli::parse();
    match cmd::run(cli) {
        Ok(code) => code,
        Err(Failure(text)) => {
            tracing::error!("{text}");
            std::process::ExitCode::FAILURE
        }
    }
}
