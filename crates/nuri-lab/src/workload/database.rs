//! A database under stress: one table of ten columns in SQLite, filled in one transaction, then
//! rows selected, updated and deleted one statement each, by primary key and by an index.

mod client;
mod row;

use std::path::{Path, PathBuf};

use clap::Args;
use serde::{Deserialize, Serialize};

pub(super) use client::Client;

use super::{Key, Phase};
use crate::rank::Moved;
use crate::{LabError, Result};

/// In so many disjoint sets of rows the phases work.
const SETS: u64 = 5;
const MOST_ROWS: u64 = 1 << 27;
/// What a row takes in the table and both indexes, at most.
const ROW: u64 = 1400;
/// By guess: so many statements of one transaction take as long as an operation on an entry; so
/// many of these as long as a commit, which syncs a few times.
const STATEMENTS: u64 = 3;
const COMMIT: u64 = 40;
/// The files of one database.
const ENDINGS: [&str; 4] = ["", "-journal", "-wal", "-shm"];

#[derive(Args, Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DbStress {
    /// Rows of the table, of about 1 KB; inserted in one transaction
    #[arg(long, value_name = "N", default_value_t = 1_000_000,
        value_parser = clap::value_parser!(u64).range(SETS..=MOST_ROWS))]
    rows: u64,
    /// Rows that each phase selects, updates or deletes, in one transaction
    #[arg(long, value_name = "N", default_value_t = 10_000,
        value_parser = clap::value_parser!(u64).range(1..))]
    touched: u64,
    /// Rows that are updated in a transaction each; 0 leaves that out
    #[arg(long, value_name = "N", default_value_t = 1000)]
    commits: u64,
    /// How the database makes transactions whole
    #[arg(long, value_enum, default_value_t = Journal::Delete)]
    journal: Journal,
    /// Memory of the database for its pages
    #[arg(long, value_name = "SIZE", default_value = "64m", value_parser = crate::size::parse)]
    cache: u64,
    /// How often all is done
    #[arg(short = 'i', value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u64).range(1..))]
    pub repetitions: u64,
    /// Select without dropping caches first
    #[arg(long)]
    pub warm: bool,
}

/// SQLite's modes, each with the setting under which a commit survives the loss of power.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Journal {
    /// Old pages in a file that a commit removes (SQLite's default; synchronous=EXTRA)
    Delete,
    /// Old pages in a file that a commit cuts to nothing (synchronous=FULL)
    Truncate,
    /// New pages in a log (synchronous=FULL); the file system must share mapped memory
    Wal,
}

impl Journal {
    fn name(self) -> &'static str {
        match self {
            Journal::Delete => "delete",
            Journal::Truncate => "truncate",
            Journal::Wal => "wal",
        }
    }

    /// With FULL alone a removed journal may be back after a loss of power, and undo the commit:
    /// EXTRA also syncs the directory.
    fn synchronous(self) -> &'static str {
        match self {
            Journal::Delete => "EXTRA",
            Journal::Truncate | Journal::Wal => "FULL",
        }
    }
}

impl DbStress {
    pub(super) fn check(&self) -> Result<()> {
        let (rows, touched) = (self.rows, self.touched);
        if touched > rows / SETS {
            return Err(LabError(format!(
                "--touched {touched}: at most a fifth of --rows {rows}, as phases work on \
                 different rows"
            )));
        }
        if self.commits > touched {
            let commits = self.commits;
            return Err(LabError(format!("--commits {commits} is more than --touched {touched}")));
        }
        if self.cache > i64::MAX as u64 {
            return Err(LabError::new("--cache is too large"));
        }
        Ok(())
    }

    pub(super) fn phases(&self) -> Vec<Phase> {
        let both = [Key::Primary, Key::Index];
        let mut phases = vec![Phase::Insert];
        phases.extend(both.map(Phase::Select));
        phases.extend(both.map(Phase::Update));
        phases.extend((self.commits > 0).then_some(Phase::Commit));
        phases.extend(both.map(Phase::Delete));
        phases.extend([Phase::DeleteRange, Phase::Verify]);
        phases
    }

    /// Of the table and of what a transaction may have to undo.
    pub(super) fn space(&self) -> u64 {
        self.rows.saturating_mul(2 * ROW)
    }

    /// The table is written and checked; most other statements move a page or two.
    pub(super) fn amount(&self) -> Moved {
        let statements = SETS * self.touched / STATEMENTS + COMMIT * self.commits;
        let bytes = self.rows.saturating_mul(2 * ROW).saturating_mul(self.repetitions);
        Moved { bytes, operations: statements.saturating_mul(self.repetitions) }
    }

    fn path(&self, dir: &Path) -> PathBuf {
        dir.join("database")
    }

    pub(crate) fn paths(&self, dir: &Path) -> Vec<PathBuf> {
        let path = |ending: &str| {
            let mut name = self.path(dir).into_os_string();
            name.push(ending);
            PathBuf::from(name)
        };
        ENDINGS.iter().map(|ending| path(ending)).collect()
    }
}
