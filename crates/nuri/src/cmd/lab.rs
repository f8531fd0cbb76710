//! `nuri lab`: runs the laboratory, which is a program of its own.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use nuri_io::program;

use crate::Failure;

const PROGRAM: &str = "nuri-lab";

/// The laboratory takes the place of this process.
pub(super) fn run(args: &[OsString]) -> Result<ExitCode, Failure> {
    let Some(lab) = program::find(PROGRAM) else {
        return Err(Failure(format!(
            "the laboratory is a program of its own, {PROGRAM}, which is neither beside nuri nor \
             on the PATH: build it with `cargo build --release -p {PROGRAM}`, or install all with \
             `make install`"
        )));
    };
    let error = Command::new(&lab).args(args).exec();
    Err(Failure(format!("{}: {error}", lab.display())))
}
