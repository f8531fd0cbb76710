//! `nuri fs lost`: files that cannot be read whole while targets are missing.

use std::io::IsTerminal;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::fs::attribute;
use crate::cli::Lost;
use crate::logs::plain;
use crate::show::{human, print_json};
use crate::{Failure, at};

const ATTRIBUTE: &str = "nuri.lost";
const TELL_EVERY: Duration = Duration::from_secs(1);

#[derive(Serialize)]
struct Row {
    path: String,
    /// That cannot be read now.
    bytes: u64,
    size: u64,
}

/// A walk through the tree.
struct Walk {
    device: u64,
    looked_at: u64,
    told: Instant,
    rows: Vec<Row>,
    /// Directories that could not be listed, and files that could not be asked of.
    unknown: Vec<String>,
}

/// Ends with 1 where there are some, or where it is not known of all.
pub(crate) fn run(args: &Lost) -> Result<ExitCode, Failure> {
    let meta = args.path.symlink_metadata().map_err(at(args.path.display()))?;
    // Says where that is no mount.
    attribute(&args.path, ATTRIBUTE)?;
    let (rows, unknown) = Default::default();
    let mut walk = Walk { device: meta.dev(), looked_at: 0, told: Instant::now(), rows, unknown };
    walk.all_below(&args.path);
    if args.json {
        print_json(&walk.rows)?;
    } else {
        walk.print();
    }
    walk.unknown.iter().for_each(|what| eprintln!("nuri: {}", plain(what)));
    let is_whole = walk.rows.is_empty() && walk.unknown.is_empty();
    Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Walk {
    fn all_below(&mut self, path: &Path) {
        let mut left = vec![path.to_owned()];
        while let Some(path) = left.pop() {
            if let Err(why) = self.look(&path, &mut left) {
                self.unknown.push(format!("{}: {why}", path.display()));
            }
        }
    }

    fn look(&mut self, path: &Path, left: &mut Vec<PathBuf>) -> Result<(), String> {
        let meta = path.symlink_metadata().map_err(|e| e.to_string())?;
        if meta.dev() != self.device {
            return Ok(());
        }
        if meta.is_dir() {
            for entry in path.read_dir().map_err(|e| e.to_string())? {
                left.push(entry.map_err(|e| e.to_string())?.path());
            }
            return Ok(());
        }
        if !meta.is_file() {
            return Ok(());
        }
        self.looked_at += 1;
        self.tell_progress();
        let said = attribute(path, ATTRIBUTE).map_err(|Failure(why)| why)?;
        let bytes = said.parse().map_err(|_| format!("the mount says {said}"))?;
        if bytes > 0 {
            self.rows.push(Row { path: path.display().to_string(), bytes, size: meta.len() });
        }
        Ok(())
    }

    fn tell_progress(&mut self) {
        if self.told.elapsed() > TELL_EVERY && std::io::stderr().is_terminal() {
            self.told = Instant::now();
            eprint!("\r{} files looked at ", self.looked_at);
        }
    }

    fn print(&self) {
        for row in &self.rows {
            println!("{:>10} of {:>10}  {}", human(row.bytes), human(row.size), plain(&row.path));
        }
        let (count, all) = (self.rows.len(), self.looked_at);
        let bytes = human(self.rows.iter().map(|row| row.bytes).sum());
        match count {
            0 => println!("all {all} files can be read"),
            _ => println!("{count} of {all} files cannot be read whole now: {bytes} are missing"),
        }
    }
}
