//! The workload `db-stress`: one table of ten columns is filled in one transaction. Then rows are
//! selected, updated and deleted by one statement each, by primary key and by an index. The phases
//! are the same for every database.

mod client;
mod engine;
mod postgres;
mod row;
mod sqlite;

use std::path::{Path, PathBuf};

use clap::Args;
use serde::{Deserialize, Serialize};

pub(super) use client::Client;

use super::{Key, Phase, remove};
use crate::job::Moved;
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
const MOST_CACHE: u64 = 1 << 42;

#[derive(Args, Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DbStress {
    /// The database
    #[arg(long, value_enum, default_value_t = Program::Sqlite)]
    engine: Program,
    /// Rows of the table, of about 1 KB; inserted in one transaction
    #[arg(long, value_name = "N", default_value_t = 1_000_000,
        value_parser = clap::value_parser!(u64).range(SETS..=MOST_ROWS))]
    rows: u64,
    /// Rows that each phase selects, updates or deletes, in one transaction
    #[arg(long, value_name = "N", default_value_t = 10_000,
        value_parser = clap::value_parser!(u64).range(1..))]
    touched: u64,
    /// Rows to update in one transaction each; 0 leaves this phase out
    #[arg(long, value_name = "N", default_value_t = 1000)]
    commits: u64,
    /// How SQLite makes transactions atomic (default: delete)
    #[arg(long, value_enum)]
    journal: Option<Journal>,
    /// Memory of the database for its pages; for PostgreSQL, shared_buffers
    #[arg(long, value_name = "SIZE", default_value = "64m", value_parser = nuri_proto::size::parse)]
    cache: u64,
    /// Repetitions of all phases
    #[arg(short = 'i', value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u64).range(1..))]
    pub repetitions: u64,
    /// Select without dropping caches first
    #[arg(long)]
    pub warm: bool,
}

#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Program {
    /// SQLite, in the measuring process
    Sqlite,
    /// PostgreSQL, a server that the run starts
    Postgres,
}

/// SQLite's modes, each with the setting under which a commit survives the loss of power.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Journal {
    /// Keep old pages in a file that a commit removes (SQLite's default; synchronous=EXTRA)
    Delete,
    /// Keep old pages in a file that a commit truncates to 0 (synchronous=FULL)
    Truncate,
    /// Write new pages to a log (synchronous=FULL); the file system must share mapped memory
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
        if self.cache > MOST_CACHE {
            return Err(LabError::new("--cache is too large"));
        }
        if self.engine == Program::Postgres && self.journal.is_some() {
            let text = "--journal is of SQLite: leave it out with --engine postgres";
            return Err(LabError::new(text));
        }
        Ok(())
    }

    pub(super) fn obstacle(&self) -> Option<String> {
        match self.engine {
            Program::Sqlite => None,
            Program::Postgres => postgres::obstacle(),
        }
    }

    /// For the process that uses it.
    fn engine(&self, dirs: &[PathBuf]) -> Box<dyn engine::Engine> {
        let (journal, cache) = (self.journal.unwrap_or(Journal::Delete), self.cache);
        match self.engine {
            Program::Sqlite => Box::new(sqlite::Sqlite { journal, cache }),
            Program::Postgres => Box::new(postgres::Postgres::new(cache, dirs)),
        }
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

    /// Of the table and of what a transaction may have to undo or to do again.
    pub(super) fn space(&self) -> u64 {
        let rows = self.rows.saturating_mul(ROW);
        match self.engine {
            Program::Sqlite => rows.saturating_mul(2),
            Program::Postgres => postgres::space(rows, SETS * self.touched),
        }
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

    /// The files of the database that may be there.
    pub(crate) fn paths(&self, dir: &Path) -> Vec<PathBuf> {
        match self.engine {
            Program::Sqlite => sqlite::files(&self.path(dir)),
            Program::Postgres => postgres::files(&self.path(dir)),
        }
    }

    pub(super) fn lay_out(&self, dirs: &[PathBuf]) -> Result<()> {
        match self.engine {
            Program::Sqlite => Ok(()),
            Program::Postgres => postgres::lay_out(dirs),
        }
    }

    pub(super) fn clear(&self, dirs: &[PathBuf]) -> Result<()> {
        match self.engine {
            Program::Sqlite => remove(&self.paths(&dirs[0])),
            Program::Postgres => postgres::clear(dirs, &self.path(&dirs[0])),
        }
    }
}
