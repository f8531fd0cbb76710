//! The process that uses the database: a connection for each phase.

use std::path::{Path, PathBuf};

use rusqlite::{Connection, params};

use super::DbStress;
use super::row::{Contents, Generation, TABLE};
use crate::rank::{Job, Moved, Order, Part};
use crate::workload::transfer::shuffle;
use crate::workload::{Key, Phase, remove};
use crate::{LabError, Result, at};

const SELECT: [&str; 2] =
    ["SELECT * FROM entries WHERE id = ?1", "SELECT * FROM entries WHERE code = ?1"];
const UPDATE: [&str; 2] = [
    "UPDATE entries SET title = ?2, note = ?3 WHERE id = ?1",
    "UPDATE entries SET title = ?2, note = ?3 WHERE code = ?1",
];
const DELETE: [&str; 2] =
    ["DELETE FROM entries WHERE id = ?1", "DELETE FROM entries WHERE code = ?1"];
const INSERT: &str = "INSERT INTO entries VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";

/// What ends a phase early.
#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error(transparent)]
    Database(#[from] rusqlite::Error),
    #[error("{0}")]
    Found(String),
}

type Outcome<T> = std::result::Result<T, Fault>;

/// One rank: there is only one.
pub(crate) struct Client {
    db: DbStress,
    job: Job,
    ready: Option<Ready>,
}

struct Ready {
    phase: Phase,
    path: PathBuf,
    open: Connection,
    contents: Contents,
    /// Rows in random order, without those at the end, which go in one statement.
    order: Vec<u64>,
}

impl Client {
    pub(crate) fn new(db: DbStress, job: Job) -> Client {
        Client { db, job, ready: None }
    }

    /// Checking sees what another mount sees, where there is one.
    fn path(&self, phase: Phase) -> PathBuf {
        let mount = usize::from(phase == Phase::Verify);
        self.db.path(self.job.dir_of(mount))
    }

    fn go(&self, ready: &Ready) -> Outcome<u64> {
        let touched = self.db.touched as usize;
        let set = |i: usize| &ready.order[i * touched..(i + 1) * touched];
        let commits = &ready.order[..self.db.commits as usize];
        match ready.phase {
            Phase::Insert => in_one(ready, |ready| self.insert(ready)),
            Phase::Select(key) => in_one(ready, |ready| select(ready, key, set(key as usize))),
            Phase::Update(key) => in_one(ready, |ready| update(ready, key, set(key as usize), 1)),
            Phase::Commit => update(ready, Key::Primary, commits, 2),
            Phase::Delete(key) => in_one(ready, |ready| delete(ready, key, set(2 + key as usize))),
            Phase::DeleteRange => in_one(ready, |ready| self.delete_range(ready)),
            _ => self.verify(ready),
        }
    }

    fn insert(&self, ready: &Ready) -> Outcome<u64> {
        let mut statement = ready.open.prepare(INSERT)?;
        for id in 0..self.db.rows {
            ready.contents.insert(&mut statement, id)?;
        }
        Ok(self.db.rows)
    }

    fn delete_range(&self, ready: &Ready) -> Outcome<u64> {
        let (first, last) = (self.db.rows - self.db.touched, self.db.rows - 1);
        let statement = "DELETE FROM entries WHERE id BETWEEN ?1 AND ?2";
        let gone = ready.open.execute(statement, params![first as i64, last as i64])?;
        if gone as u64 == self.db.touched { Ok(self.db.touched) } else { Err(wrong(first)) }
    }

    /// The file is sound, and holds all rows that it must, as they must be, and no other.
    fn verify(&self, ready: &Ready) -> Outcome<u64> {
        let sound: String = ready.open.query_row("PRAGMA integrity_check(1)", [], |r| r.get(0))?;
        if sound != "ok" {
            return Err(Fault::Found(format!("is damaged: {sound}")));
        }
        let mut expected = self.expected(ready).into_iter();
        let mut statement = ready.open.prepare("SELECT * FROM entries ORDER BY id")?;
        let mut rows = statement.query([])?;
        let mut seen = 0;
        while let Some(row) = rows.next()? {
            let Some((id, generation)) = expected.next() else {
                return Err(wrong(row.get::<_, i64>(0)? as u64));
            };
            if !ready.contents.is_right(row, id, generation)? {
                return Err(wrong(id));
            }
            seen += 1;
        }
        expected.next().map_or(Ok(seen), |(id, _)| Err(wrong(id)))
    }

    /// Rows after all phases, in order, each with its generation.
    fn expected(&self, ready: &Ready) -> Vec<(u64, Generation)> {
        const GONE: Generation = Generation::MAX;
        let (touched, order) = (self.db.touched as usize, &ready.order);
        let mut left = vec![0; order.len()];
        let mut mark = |ids: &[u64], how| ids.iter().for_each(|id| left[*id as usize] = how);
        mark(&order[..2 * touched], 1);
        mark(&order[..self.db.commits as usize], 2);
        mark(&order[2 * touched..4 * touched], GONE);
        let rows = left.into_iter().enumerate().map(|(id, how)| (id as u64, how));
        rows.filter(|(_, how)| *how != GONE).collect()
    }
}

fn wrong(id: u64) -> Fault {
    Fault::Found(format!("does not hold what was written as row {id}"))
}

/// In one transaction.
fn in_one(ready: &Ready, work: impl FnOnce(&Ready) -> Outcome<u64>) -> Outcome<u64> {
    let transaction = ready.open.unchecked_transaction()?;
    let done = work(ready)?;
    transaction.commit()?;
    Ok(done)
}

/// By number or by code, as a statement wants it.
fn value(ready: &Ready, key: Key, id: u64) -> rusqlite::types::Value {
    match key {
        Key::Primary => (id as i64).into(),
        Key::Index => ready.contents.code(id).into(),
    }
}

fn select(ready: &Ready, key: Key, ids: &[u64]) -> Outcome<u64> {
    let mut statement = ready.open.prepare(SELECT[key as usize])?;
    for id in ids {
        let right = |row: &rusqlite::Row| ready.contents.is_right(row, *id, 0);
        if !statement.query_row([value(ready, key, *id)], right)? {
            return Err(wrong(*id));
        }
    }
    Ok(ids.len() as u64)
}

fn update(ready: &Ready, key: Key, ids: &[u64], generation: Generation) -> Outcome<u64> {
    let mut statement = ready.open.prepare(UPDATE[key as usize])?;
    for id in ids {
        let [title, note] = ready.contents.updated(*id, generation);
        let row = value(ready, key, *id);
        if statement.execute(params![row, title, note])? != 1 {
            return Err(wrong(*id));
        }
    }
    Ok(ids.len() as u64)
}

fn delete(ready: &Ready, key: Key, ids: &[u64]) -> Outcome<u64> {
    let mut statement = ready.open.prepare(DELETE[key as usize])?;
    for id in ids {
        if statement.execute([value(ready, key, *id)])? != 1 {
            return Err(wrong(*id));
        }
    }
    Ok(ids.len() as u64)
}

/// A connection, set as the workload says. Refused where the file system does not let the database
/// work so.
fn open(db: &DbStress, path: &Path) -> Outcome<Connection> {
    let open = Connection::open(path)?;
    let wanted = db.journal.name();
    let set = format!("PRAGMA journal_mode = {wanted}");
    let mode: String = open.query_row(&set, [], |row| row.get(0))?;
    if mode != wanted {
        let text = format!("the database works here with --journal {mode}, not {wanted}");
        return Err(Fault::Found(text));
    }
    open.pragma_update(None, "synchronous", db.journal.synchronous())?;
    // Negative numbers are KiB, others pages.
    open.pragma_update(None, "cache_size", -((db.cache >> 10) as i64))?;
    Ok(open)
}

impl Part for Client {
    fn prepare(&mut self, order: Order) -> Result<()> {
        let path = self.path(order.phase);
        let name = path.display().to_string();
        if order.phase == Phase::Insert {
            remove(&self.db.paths(self.job.dir()))?;
        }
        let told = at(name);
        let open = open(&self.db, &path).map_err(&told)?;
        if order.phase == Phase::Insert {
            open.execute_batch(TABLE).map_err(|error| told(error.into()))?;
        }
        let mut ids: Vec<u64> = (0..self.db.rows - self.db.touched).collect();
        shuffle(&mut ids, order.seed);
        let contents = Contents::new(order.seed);
        self.ready = Some(Ready { phase: order.phase, path, open, contents, order: ids });
        Ok(())
    }

    /// Closing counts: a log is folded into the table then.
    fn run(&mut self) -> Result<Moved> {
        let ready = self.ready.take().ok_or(LabError::new("told to go unprepared"))?;
        let operations = self.go(&ready).map_err(at(ready.path.display()))?;
        ready.open.close().map_err(|(_, error)| at(ready.path.display())(error))?;
        Ok(Moved { bytes: 0, operations })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::tests::parse;

    fn client(options: &str, dir: &Path) -> (Vec<Phase>, Box<dyn Part>) {
        let workload = parse(&format!("db-stress {options}")).unwrap();
        let dirs = vec![dir.to_path_buf(), dir.join(".")];
        (workload.phases(), workload.clone().part(Job { workload, rank: 0, dirs }))
    }

    fn run(part: &mut dyn Part, phase: Phase) -> Result<u64> {
        part.prepare(Order { phase, seed: 3 })?;
        Ok(part.run()?.operations)
    }

    #[test]
    fn every_phase_finds_what_the_others_left() {
        for options in ["--journal delete", "--journal truncate", "--journal wal --warm"] {
            let dir = tempfile::tempdir().unwrap();
            let options = format!("--rows 100 --touched 20 --commits 5 {options}");
            let (phases, mut part) = client(&options, dir.path());
            assert_eq!(phases.len(), 10);
            let done: Vec<u64> = phases.iter().map(|p| run(part.as_mut(), *p).unwrap()).collect();
            assert_eq!(done, [100, 20, 20, 20, 20, 5, 20, 20, 20, 40], "{options}");
        }
    }

    #[test]
    fn wrong_missing_and_surplus_rows_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let (phases, mut part) = client("--rows 50 --touched 10 --commits 0", dir.path());
        phases.iter().for_each(|phase| assert!(run(part.as_mut(), *phase).is_ok()));
        let change = |statement: &str| {
            let open = Connection::open(dir.path().join("database")).unwrap();
            assert_eq!(open.execute(statement, []).unwrap(), 1);
        };
        let told = |part: &mut dyn Part| run(part, Phase::Verify).unwrap_err().to_string();
        change("INSERT INTO entries (id, title) VALUES (1000, 'x')");
        assert!(told(part.as_mut()).ends_with("does not hold what was written as row 1000"));
        change("DELETE FROM entries WHERE id = 1000");
        assert_eq!(run(part.as_mut(), Phase::Verify).unwrap(), 20);
        change("UPDATE entries SET body = 'y' WHERE id = (SELECT max(id) FROM entries)");
        assert!(told(part.as_mut()).contains("does not hold what was written as row"));
        change("DELETE FROM entries WHERE id = (SELECT max(id) FROM entries)");
        assert!(told(part.as_mut()).contains("does not hold what was written as row"));
    }

    #[test]
    fn a_damaged_file_and_an_older_state_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let (phases, mut part) = client("--rows 500 --touched 50 --commits 0", dir.path());
        run(part.as_mut(), Phase::Insert).unwrap();
        let path = dir.path().join("database");
        let old = std::fs::read(&path).unwrap();
        phases[1..].iter().for_each(|phase| assert!(run(part.as_mut(), *phase).is_ok()));
        std::fs::write(&path, &old).unwrap();
        let error = run(part.as_mut(), Phase::Verify).unwrap_err().to_string();
        assert!(error.contains("does not hold what was written as row"), "{error}");
        let mut torn = old;
        let middle = torn.len() / 2;
        torn[middle..middle + 4096].fill(0xff);
        std::fs::write(&path, torn).unwrap();
        let error = run(part.as_mut(), Phase::Verify).unwrap_err().to_string();
        assert!(error.contains("damaged") || error.contains("malformed"), "{error}");
    }
}
