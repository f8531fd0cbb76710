//! PostgreSQL: the run starts a server for each phase, which no other program can reach.
//!
//! The server's files lie where the run measures. Its socket and its log lie in a directory for
//! temporary files, because the path of a socket has to be short.

mod server;

use std::path::{Path, PathBuf};

use postgres::Client;
use postgres::fallible_iterator::FallibleIterator;
use postgres::types::ToSql;

use super::engine::{Engine, Outcome, Row, Session, Show, Statement, Value};
use crate::{LabError, Result, at, work};
use server::{Installed, Server};

/// What a cluster has in it before any row.
const EMPTY: u64 = 128 << 20;
/// Its log of changes is seldom longer, as PostgreSQL is set by default.
const LOG: u64 = 1 << 30;
/// The first change of a page after a start writes all of it to the log.
const PAGE: u64 = 8192;
/// After rows were inserted, as after any large load: which rows are there is not to be found out
/// by the first who reads them, and a plan needs to know how many there are.
const LOADED: &str = "VACUUM (ANALYZE) entries";
/// Looks at all rows, and whether each is in each index.
const ROWS: &str = "
    CREATE EXTENSION IF NOT EXISTS amcheck;
    SELECT bt_index_check(indexrelid, true) FROM pg_index WHERE indrelid = 'entries'::regclass";
const PAGES: &str = "SELECT msg FROM verify_heapam('entries') LIMIT 1";

pub(super) struct Postgres {
    cache: u64,
    private: PathBuf,
    installed: Option<Installed>,
    /// Of the phase under way.
    running: Option<Server>,
    is_loading: bool,
}

impl Postgres {
    pub(super) fn new(cache: u64, dirs: &[PathBuf]) -> Postgres {
        let private = work::private(dirs);
        Postgres { cache, private, installed: None, running: None, is_loading: false }
    }
}

/// Why it cannot be run here.
pub(super) fn obstacle() -> Option<String> {
    Installed::find().err().map(|LabError(why)| why)
}

/// What it takes on the disk at most: of rows, and of how many the phases change.
pub(super) fn space(rows: u64, changed: u64) -> u64 {
    let log = rows.saturating_add(changed.saturating_mul(PAGE));
    EMPTY.saturating_add(rows.saturating_mul(2)).saturating_add(log.min(LOG))
}

/// Makes the place for what does not lie among the files.
pub(super) fn lay_out(dirs: &[PathBuf]) -> Result<()> {
    let private = work::private(dirs);
    std::fs::create_dir(&private).map_err(at(private.display()))?;
    let made = Installed::find().and_then(|installed| installed.make_private(&private));
    made.inspect_err(|_| forget(dirs))
}

pub(super) fn clear(dirs: &[PathBuf], place: &Path) -> Result<()> {
    forget(dirs);
    // A server that was just killed may still write.
    work::remove(place);
    if place.exists() { Err(LabError(format!("{} stays", place.display()))) } else { Ok(()) }
}

fn forget(dirs: &[PathBuf]) {
    work::remove(&work::private(dirs));
}

/// All that lies under a place.
pub(super) fn files(place: &Path) -> Vec<PathBuf> {
    let mut found = vec![place.to_path_buf()];
    let mut next = 0;
    while next < found.len() {
        let inside = std::fs::read_dir(&found[next]).into_iter().flatten().flatten();
        found.extend(inside.map(|entry| entry.path()));
        next += 1;
    }
    found
}

/// An error in the server's words, which the client's do not repeat.
pub(super) fn told(error: &postgres::Error) -> String {
    let cause = std::error::Error::source(error);
    let text = cause.map_or(error.to_string(), |cause| format!("{error}: {cause}"));
    text.replace('\n', "; ")
}

impl Engine for Postgres {
    fn open(&mut self, place: &Path, anew: bool) -> Outcome<Box<dyn Session>> {
        let installed = match self.installed.take() {
            Some(installed) => installed,
            None => Installed::find()?,
        };
        let installed = self.installed.insert(installed);
        self.running = None;
        let place = std::path::absolute(place).map_err(at(place.display()))?;
        if anew {
            installed.make_cluster(&place)?;
        }
        let (server, client) = Server::start(installed, &place, &self.private, self.cache)?;
        (self.running, self.is_loading) = (Some(server), anew);
        Ok(Box::new(client))
    }

    /// A phase ends when its last commit is in the log on stable storage. The pages themselves are
    /// written when the server ends.
    fn rest(&mut self) -> Outcome<()> {
        let Some(mut server) = self.running.take() else {
            return Ok(());
        };
        if std::mem::take(&mut self.is_loading) {
            let mut client = server.connect()?;
            client.batch_execute(LOADED)?;
            client.close()?;
        }
        Ok(server.stop()?)
    }
}

impl Session for Client {
    fn batch(&mut self, statements: &str) -> Outcome<()> {
        Ok(self.batch_execute(statements)?)
    }

    fn prepare<'s>(&'s mut self, statement: &str) -> Outcome<Box<dyn Statement + 's>> {
        let statement = Client::prepare(self, statement)?;
        Ok(Box::new(Prepared { client: self, statement }))
    }

    fn damage(&mut self) -> Outcome<Option<String>> {
        self.batch_execute(ROWS)?;
        let found = self.query_opt(PAGES, &[])?;
        Ok(found.map(|row| row.try_get(0)).transpose()?)
    }

    fn close(self: Box<Self>) -> Outcome<()> {
        Ok(Client::close(*self)?)
    }
}

struct Prepared<'s> {
    client: &'s mut Client,
    statement: postgres::Statement,
}

fn bound<'v>(values: &'v [Value]) -> Vec<&'v (dyn ToSql + Sync)> {
    let one = |value: &'v Value| match value {
        Value::Id(id) => id as &(dyn ToSql + Sync),
        Value::Text(text) => text,
    };
    values.iter().map(one).collect()
}

impl Statement for Prepared<'_> {
    fn execute(&mut self, values: &[Value]) -> Outcome<u64> {
        Ok(self.client.execute(&self.statement, &bound(values))?)
    }

    fn query(&mut self, values: &[Value], show: &mut Show) -> Outcome<()> {
        let mut rows = self.client.query_raw(&self.statement, bound(values))?;
        while let Some(row) = rows.next()? {
            show(&row)?;
        }
        Ok(())
    }
}

impl Row for postgres::Row {
    fn id(&self) -> Outcome<u64> {
        Ok(self.try_get::<_, i32>(0)? as u64)
    }

    fn text(&self, column: usize) -> Outcome<&str> {
        Ok(self.try_get(column)?)
    }
}
