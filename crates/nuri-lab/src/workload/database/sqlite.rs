//! SQLite, a library in the measuring process. So the run measures the file system under it.

use std::path::{Path, PathBuf};

use rusqlite::types::ToSql;
use rusqlite::{Connection, params_from_iter};

use super::engine::{Engine, Fault, Outcome, Row, Session, Show, Statement, Value};
use super::{Journal, remove};

/// The files of one database.
const ENDINGS: [&str; 4] = ["", "-journal", "-wal", "-shm"];

/// How it is set.
pub(super) struct Sqlite {
    pub(super) journal: Journal,
    pub(super) cache: u64,
}

/// Those that may be there.
pub(super) fn files(place: &Path) -> Vec<PathBuf> {
    let path = |ending: &&str| {
        let mut name = place.as_os_str().to_owned();
        name.push(ending);
        PathBuf::from(name)
    };
    ENDINGS.iter().map(path).collect()
}

impl Engine for Sqlite {
    /// Refused where the file system does not let the database work as it is set.
    fn open(&mut self, place: &Path, anew: bool) -> Outcome<Box<dyn Session>> {
        if anew {
            remove(&files(place))?;
        }
        let open = Connection::open(place)?;
        let wanted = self.journal.name();
        let set = format!("PRAGMA journal_mode = {wanted}");
        let mode: String = open.query_row(&set, [], |row| row.get(0))?;
        if mode != wanted {
            let text = format!("the database works here with --journal {mode}, not {wanted}");
            return Err(Fault::Found(text));
        }
        open.pragma_update(None, "synchronous", self.journal.synchronous())?;
        // Negative numbers are KiB, others pages.
        open.pragma_update(None, "cache_size", -((self.cache >> 10) as i64))?;
        Ok(Box::new(open))
    }

    fn rest(&mut self) -> Outcome<()> {
        Ok(())
    }
}

impl Session for Connection {
    fn batch(&mut self, statements: &str) -> Outcome<()> {
        Ok(self.execute_batch(statements)?)
    }

    fn prepare<'s>(&'s mut self, statement: &str) -> Outcome<Box<dyn Statement + 's>> {
        Ok(Box::new(Connection::prepare(self, statement)?))
    }

    fn damage(&mut self) -> Outcome<Option<String>> {
        let check = "PRAGMA integrity_check(1)";
        let found: String = self.query_row(check, [], |row| row.get(0))?;
        Ok((found != "ok").then_some(found))
    }

    /// A log is folded into the table.
    fn close(self: Box<Self>) -> Outcome<()> {
        Connection::close(*self).map_err(|(_, error)| error.into())
    }
}

fn bound<'v>(values: &'v [Value]) -> impl Iterator<Item = &'v dyn ToSql> {
    values.iter().map(|value| match value {
        Value::Id(id) => id as &dyn ToSql,
        Value::Text(text) => text,
    })
}

impl Statement for rusqlite::Statement<'_> {
    fn execute(&mut self, values: &[Value]) -> Outcome<u64> {
        let values = params_from_iter(bound(values));
        Ok(rusqlite::Statement::execute(self, values)? as u64)
    }

    fn query(&mut self, values: &[Value], show: &mut Show) -> Outcome<()> {
        let mut rows = rusqlite::Statement::query(self, params_from_iter(bound(values)))?;
        while let Some(row) = rows.next()? {
            show(row)?;
        }
        Ok(())
    }
}

impl Row for rusqlite::Row<'_> {
    fn id(&self) -> Outcome<u64> {
        Ok(self.get::<_, i64>(0)? as u64)
    }

    fn text(&self, column: usize) -> Outcome<&str> {
        let value = self.get_ref(column)?.as_str();
        Ok(value.map_err(rusqlite::Error::from)?)
    }
}
