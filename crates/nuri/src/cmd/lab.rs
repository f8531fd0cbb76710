//! `nuri lab`.

mod compare;
mod report;
mod testbed;

use std::process::ExitCode;

use super::done;
use crate::Failure;
use crate::cli::lab::Lab;

pub(super) fn run(command: Lab) -> Result<ExitCode, Failure> {
    match command {
        Lab::Report(args) => report::run(&args).map(done),
        Lab::Compare(args) => compare::run(&args),
        Lab::Testbed(args) => testbed::run(args).map(done),
    }
}
