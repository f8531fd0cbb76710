//! `nuri fs lost`: files that cannot be read whole while targets are missing.

use std::io;
use std::process::ExitCode;

use serde::Serialize;

use super::{AttributeError, attribute, tree};
use crate::Failure;
use crate::cli::Lost;
use crate::logs::plain;
use crate::show::{human, print_json};

const ATTRIBUTE: &str = "nuri.lost";

#[derive(Serialize)]
struct Row {
    path: String,
    /// That cannot be read now.
    bytes: u64,
    size: u64,
}

/// Why it is not known how much of a file is lost.
#[derive(Debug, thiserror::Error)]
enum LostError {
    #[error(transparent)]
    Attribute(#[from] AttributeError),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("the mount says {0}")]
    NoNumber(String),
}

/// Ends with 1 where there are some, or where it is not known of all.
pub(super) fn run(args: &Lost) -> Result<ExitCode, Failure> {
    // Says where that is no mount.
    attribute(&args.path, ATTRIBUTE)?;
    let mut rows = Vec::new();
    let walked = tree::walk(&args.path, |path, meta| -> Result<(), LostError> {
        let said = attribute(path, ATTRIBUTE)?;
        let bytes = said.parse().map_err(|_| LostError::NoNumber(said))?;
        if bytes > 0 {
            rows.push(Row { path: path.display().to_string(), bytes, size: meta.len() });
        }
        Ok(())
    })?;
    if args.json {
        print_json(&rows)?;
    } else {
        print(&rows, walked.files);
    }
    walked.unknown.iter().for_each(|what| eprintln!("nuri: {}", plain(&what.to_string())));
    let is_whole = rows.is_empty() && walked.unknown.is_empty();
    Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print(rows: &[Row], all: u64) {
    for row in rows {
        println!("{:>10} of {:>10}  {}", human(row.bytes), human(row.size), plain(&row.path));
    }
    let (count, bytes) = (rows.len(), human(rows.iter().map(|row| row.bytes).sum()));
    match count {
        0 => println!("all {all} files can be read"),
        _ => println!("{count} of {all} files cannot be read whole now: {bytes} are missing"),
    }
}
