//! `nuri`: the one binary. Verbs are in `cmd`, the services of a node in `node`, processes and
//! their restarts in `supervisor`, copies of the metadata in `copy`, what lies in a space's
//! directory in `space`.

mod cli;
mod cmd;
mod copy;
mod health;
mod joining;
mod logs;
mod news;
mod node;
mod resync;
mod room;
mod scrub;
mod show;
mod space;
mod supervisor;
mod targets;
mod users;

use clap::Parser;

/// What went wrong and what to do, in one sentence.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Failure(pub(crate) String);

impl Failure {
    pub(crate) fn new(text: impl std::fmt::Display) -> Failure {
        Failure(text.to_string())
    }
}

/// `map_err` helper: a sentence from an error and where it happened.
pub(crate) fn at<E: std::fmt::Display>(place: impl std::fmt::Display) -> impl Fn(E) -> Failure {
    move |error| Failure(format!("{place}: {error}"))
}

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
