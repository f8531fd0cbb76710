//! What the phases ask of a database, independent of the database program.

use std::borrow::Cow;
use std::path::Path;

use crate::LabError;

/// What ends a phase early.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    #[error(transparent)]
    Sqlite(#[from] rusqlite::Error),
    #[error("{}", super::postgres::told(.0))]
    Postgres(#[from] postgres::Error),
    #[error(transparent)]
    Lab(#[from] LabError),
    #[error("{0}")]
    Found(String),
}

pub(super) type Outcome<T> = std::result::Result<T, Fault>;

/// A database, from one phase to the next.
pub(super) trait Engine {
    /// Opens it for a phase, its own memory empty; makes it first where it is to be `anew`.
    fn open(&mut self, place: &Path, anew: bool) -> Outcome<Box<dyn Session>>;
    /// What follows a phase, when its session is closed: all is written out.
    fn rest(&mut self) -> Outcome<()>;
}

/// The one connection of a phase.
pub(super) trait Session {
    /// Statements without values.
    fn batch(&mut self, statements: &str) -> Outcome<()>;
    /// Values of a statement are `$1`, `$2`, ... in the order in which it names them.
    fn prepare<'s>(&'s mut self, statement: &str) -> Outcome<Box<dyn Statement + 's>>;
    /// What the database says is damaged, if it does, after it looked at all that it holds.
    fn damage(&mut self) -> Outcome<Option<String>>;
    fn close(self: Box<Self>) -> Outcome<()>;
}

pub(super) trait Statement {
    /// Returns how many rows it changed.
    fn execute(&mut self, values: &[Value]) -> Outcome<u64>;
    /// Shows each row that it finds.
    fn query(&mut self, values: &[Value], show: &mut Show) -> Outcome<()>;
}

pub(super) type Show<'a> = dyn FnMut(&dyn Row) -> Outcome<()> + 'a;

/// One that was found, of all columns of the table.
pub(super) trait Row {
    /// The first column.
    fn id(&self) -> Outcome<u64>;
    /// One of the others.
    fn text(&self, column: usize) -> Outcome<&str>;
}

pub(super) enum Value<'a> {
    Id(i32),
    Text(Cow<'a, str>),
}

impl Value<'_> {
    /// Of a row's number.
    pub(super) fn id(id: u64) -> Value<'static> {
        Value::Id(id as i32)
    }
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(text: &'a str) -> Value<'a> {
        Value::Text(text.into())
    }
}

impl From<String> for Value<'_> {
    fn from(text: String) -> Self {
        Value::Text(text.into())
    }
}
