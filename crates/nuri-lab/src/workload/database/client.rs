//! The process that uses the database: it has a session for each phase.

use std::path::PathBuf;

use super::DbStress;
use super::engine::{Engine, Fault, Outcome, Session, Value};
use super::row::{Contents, Generation, TABLE};
use crate::job::{Job, Moved, Order, Part};
use crate::workload::transfer::shuffle;
use crate::workload::{Key, Phase};
use crate::{LabError, Result, at};

const SELECT: [&str; 2] =
    ["SELECT * FROM entries WHERE id = $1", "SELECT * FROM entries WHERE code = $1"];
const UPDATE: [&str; 2] = [
    "UPDATE entries SET title = $1, note = $2 WHERE id = $3",
    "UPDATE entries SET title = $1, note = $2 WHERE code = $3",
];
const DELETE: [&str; 2] =
    ["DELETE FROM entries WHERE id = $1", "DELETE FROM entries WHERE code = $1"];
const DELETE_RANGE: &str = "DELETE FROM entries WHERE id BETWEEN $1 AND $2";
const INSERT: &str = "INSERT INTO entries VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";
const ALL: &str = "SELECT * FROM entries ORDER BY id";

/// One rank: there is only one.
pub(crate) struct Client {
    db: DbStress,
    job: Job,
    engine: Box<dyn Engine>,
    ready: Option<Ready>,
}

struct Ready {
    phase: Phase,
    path: PathBuf,
    session: Box<dyn Session>,
    contents: Contents,
    /// Rows in random order, without those at the end, which go in one statement.
    order: Vec<u64>,
}

impl Client {
    pub(crate) fn new(db: DbStress, job: Job) -> Client {
        let engine = db.engine(&job.dirs);
        Client { db, job, engine, ready: None }
    }

    /// Checking sees what another mount sees, where there is one.
    fn path(&self, phase: Phase) -> PathBuf {
        let mount = usize::from(phase == Phase::Verify);
        self.db.path(self.job.dir_of(mount))
    }

    fn go(&self, ready: &mut Ready) -> Outcome<u64> {
        let touched = self.db.touched as usize;
        let order = std::mem::take(&mut ready.order);
        let set = |i: usize| &order[i * touched..(i + 1) * touched];
        let commits = &order[..self.db.commits as usize];
        match ready.phase {
            Phase::Insert => in_one(ready, |ready| self.insert(ready)),
            Phase::Select(key) => in_one(ready, |ready| select(ready, key, set(key as usize))),
            Phase::Update(key) => in_one(ready, |ready| update(ready, key, set(key as usize), 1)),
            Phase::Commit => update(ready, Key::Primary, commits, 2),
            Phase::Delete(key) => in_one(ready, |ready| delete(ready, key, set(2 + key as usize))),
            Phase::DeleteRange => in_one(ready, |ready| self.delete_range(ready)),
            _ => self.verify(ready, &order),
        }
    }

    fn insert(&self, ready: &mut Ready) -> Outcome<u64> {
        let mut statement = ready.session.prepare(INSERT)?;
        for id in 0..self.db.rows {
            statement.execute(&ready.contents.values(id))?;
        }
        Ok(self.db.rows)
    }

    fn delete_range(&self, ready: &mut Ready) -> Outcome<u64> {
        let (first, last) = (self.db.rows - self.db.touched, self.db.rows - 1);
        let values = [Value::id(first), Value::id(last)];
        let gone = ready.session.prepare(DELETE_RANGE)?.execute(&values)?;
        if gone == self.db.touched { Ok(gone) } else { Err(wrong(first)) }
    }

    /// The database is sound, and holds all rows that it must, as they must be, and no other.
    fn verify(&self, ready: &mut Ready, order: &[u64]) -> Outcome<u64> {
        if let Some(damage) = ready.session.damage()? {
            return Err(Fault::Found(format!("is damaged: {damage}")));
        }
        let mut expected = self.expected(order).into_iter();
        let contents = &ready.contents;
        let mut seen = 0;
        ready.session.prepare(ALL)?.query(&[], &mut |row| {
            let Some((id, generation)) = expected.next() else {
                return Err(wrong(row.id()?));
            };
            seen += 1;
            let right = contents.is_right(row, id, generation)?;
            if right { Ok(()) } else { Err(wrong(id)) }
        })?;
        expected.next().map_or(Ok(seen), |(id, _)| Err(wrong(id)))
    }

    /// Rows after all phases, in order, each with its generation.
    fn expected(&self, order: &[u64]) -> Vec<(u64, Generation)> {
        const GONE: Generation = Generation::MAX;
        let touched = self.db.touched as usize;
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
fn in_one(ready: &mut Ready, work: impl FnOnce(&mut Ready) -> Outcome<u64>) -> Outcome<u64> {
    ready.session.batch("BEGIN")?;
    let done = work(ready)?;
    ready.session.batch("COMMIT")?;
    Ok(done)
}

/// By number or by code, as a statement wants it.
fn value(contents: &Contents, key: Key, id: u64) -> Value<'static> {
    match key {
        Key::Primary => Value::id(id),
        Key::Index => contents.code(id).into(),
    }
}

fn select(ready: &mut Ready, key: Key, ids: &[u64]) -> Outcome<u64> {
    let contents = &ready.contents;
    let mut statement = ready.session.prepare(SELECT[key as usize])?;
    for id in ids {
        let (mut found, mut right) = (0, true);
        statement.query(&[value(contents, key, *id)], &mut |row| {
            found += 1;
            right &= contents.is_right(row, *id, 0)?;
            Ok(())
        })?;
        if found != 1 || !right {
            return Err(wrong(*id));
        }
    }
    Ok(ids.len() as u64)
}

fn update(ready: &mut Ready, key: Key, ids: &[u64], generation: Generation) -> Outcome<u64> {
    let contents = &ready.contents;
    let mut statement = ready.session.prepare(UPDATE[key as usize])?;
    for id in ids {
        let [title, note] = contents.updated(*id, generation).map(Value::from);
        if statement.execute(&[title, note, value(contents, key, *id)])? != 1 {
            return Err(wrong(*id));
        }
    }
    Ok(ids.len() as u64)
}

fn delete(ready: &mut Ready, key: Key, ids: &[u64]) -> Outcome<u64> {
    let mut statement = ready.session.prepare(DELETE[key as usize])?;
    for id in ids {
        if statement.execute(&[value(&ready.contents, key, *id)])? != 1 {
            return Err(wrong(*id));
        }
    }
    Ok(ids.len() as u64)
}

impl Part for Client {
    fn prepare(&mut self, order: Order) -> Result<()> {
        let path = self.path(order.phase);
        let told = at(path.display().to_string());
        let anew = order.phase == Phase::Insert;
        let mut session = self.engine.open(&path, anew).map_err(&told)?;
        if anew {
            session.batch(TABLE).map_err(&told)?;
        }
        let mut ids: Vec<u64> = (0..self.db.rows - self.db.touched).collect();
        shuffle(&mut ids, order.seed);
        let contents = Contents::new(order.seed);
        self.ready = Some(Ready { phase: order.phase, path, session, contents, order: ids });
        Ok(())
    }

    /// Closing counts: SQLite folds a log into the table then.
    fn run(&mut self) -> Result<Moved> {
        let mut ready = self.ready.take().ok_or(LabError::new("told to go unprepared"))?;
        let told = at(ready.path.display().to_string());
        let operations = self.go(&mut ready).map_err(&told)?;
        ready.session.close().map_err(&told)?;
        Ok(Moved { bytes: 0, operations })
    }

    fn rest(&mut self) -> Result<()> {
        self.engine.rest().map_err(at(self.db.path(self.job.dir()).display()))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use super::*;
    use crate::workload::Workload;
    use crate::workload::tests::parse;

    /// A rank and the directory in which it works.
    struct Bench {
        dirs: Vec<PathBuf>,
        workload: Workload,
        part: Option<Box<dyn Part>>,
        tmp: tempfile::TempDir,
    }

    impl Bench {
        fn new(options: &str) -> Bench {
            let tmp = tempfile::tempdir().unwrap();
            // A server runs as another user where we are root.
            std::fs::set_permissions(tmp.path(), PermissionsExt::from_mode(0o755)).unwrap();
            let dirs = vec![tmp.path().to_path_buf(), tmp.path().join(".")];
            let workload = parse(&format!("db-stress {options}")).unwrap();
            workload.lay_out(&dirs).unwrap();
            let job = Job::new(workload.clone(), 0, dirs.clone());
            let part = Some(workload.clone().part(job));
            Bench { dirs, workload, part, tmp }
        }

        fn run(&mut self, phase: Phase) -> Result<u64> {
            let part = self.part.as_mut().unwrap();
            part.prepare(Order { phase, seed: 3 })?;
            let done = part.run();
            part.rest()?;
            Ok(done?.operations)
        }

        fn run_all(&mut self) -> Vec<u64> {
            self.workload.phases().iter().map(|phase| self.run(*phase).unwrap()).collect()
        }

        fn told(&mut self) -> String {
            self.run(Phase::Verify).unwrap_err().to_string()
        }

        fn path(&self) -> PathBuf {
            self.tmp.path().join("database")
        }

        /// Changes one row behind the workload's back.
        fn change(&self, statement: &str) {
            let Workload::DbStress(db) = &self.workload else { panic!("another workload") };
            let mut engine = db.engine(&self.dirs);
            let mut session = engine.open(&self.path(), false).unwrap();
            assert_eq!(session.prepare(statement).unwrap().execute(&[]).unwrap(), 1);
            session.close().unwrap();
            engine.rest().unwrap();
        }

        /// Nothing stays of it.
        fn clear(mut self) {
            self.part = None;
            self.workload.clear(&self.dirs).unwrap();
            assert_eq!(std::fs::read_dir(self.tmp.path()).unwrap().count(), 0);
        }
    }

    const ENGINES: [&str; 2] = ["--engine sqlite", "--engine postgres"];

    #[test]
    fn every_phase_finds_what_the_others_left() {
        let journals = ["--journal delete", "--journal truncate", "--journal wal --warm"];
        for options in journals.into_iter().chain(["--engine postgres"]) {
            let mut bench = Bench::new(&format!("--rows 100 --touched 20 --commits 5 {options}"));
            assert_eq!(bench.run_all(), [100, 20, 20, 20, 20, 5, 20, 20, 20, 40], "{options}");
            bench.clear();
        }
    }

    #[test]
    fn wrong_missing_and_surplus_rows_are_told() {
        for engine in ENGINES {
            let mut bench = Bench::new(&format!("--rows 50 --touched 10 --commits 0 {engine}"));
            bench.run_all();
            let wrong = "does not hold what was written as row";
            bench.change("INSERT INTO entries (id, title) VALUES (1000, 'x')");
            assert!(bench.told().ends_with(&format!("{wrong} 1000")), "{engine}");
            bench.change("DELETE FROM entries WHERE id = 1000");
            assert_eq!(bench.run(Phase::Verify).unwrap(), 20);
            bench.change("UPDATE entries SET body = 'y' WHERE id = (SELECT max(id) FROM entries)");
            assert!(bench.told().contains(wrong), "{engine}");
            bench.change("DELETE FROM entries WHERE id = (SELECT max(id) FROM entries)");
            assert!(bench.told().contains(wrong), "{engine}");
        }
    }

    #[test]
    fn a_damaged_file_and_an_older_state_are_told() {
        let mut bench = Bench::new("--rows 500 --touched 50 --commits 0");
        let phases = bench.workload.phases();
        bench.run(Phase::Insert).unwrap();
        let path = bench.path();
        let old = std::fs::read(&path).unwrap();
        phases[1..].iter().for_each(|phase| assert!(bench.run(*phase).is_ok()));
        std::fs::write(&path, &old).unwrap();
        let error = bench.told();
        assert!(error.contains("does not hold what was written as row"), "{error}");
        tear(&path);
        let error = bench.told();
        assert!(error.contains("damaged") || error.contains("malformed"), "{error}");
    }

    /// A page in the middle.
    fn tear(path: &Path) {
        let mut bytes = std::fs::read(path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle..middle + 4096].fill(0xff);
        std::fs::write(path, bytes).unwrap();
    }

    #[test]
    fn a_damaged_page_of_a_cluster_is_told() {
        let mut bench = Bench::new("--rows 2000 --touched 50 --commits 0 --engine postgres");
        bench.run(Phase::Insert).unwrap();
        let Workload::DbStress(db) = &bench.workload else { panic!("another workload") };
        let files = db.paths(bench.tmp.path()).into_iter().filter(|path| path.is_file());
        let in_table = |path: &PathBuf| path.components().any(|part| part.as_os_str() == "base");
        let length = |path: &PathBuf| std::fs::metadata(path).unwrap().len();
        let table = files.filter(in_table).max_by_key(length).unwrap();
        assert!(length(&table) > 2000 * 1000);
        tear(&table);
        let error = bench.told();
        assert!(error.contains("invalid page in block"), "{error}");
    }

    #[test]
    fn a_commit_of_the_server_is_durable() {
        let bench = Bench::new("--rows 50 --touched 10 --commits 0 --cache 5m --engine postgres");
        let Workload::DbStress(db) = &bench.workload else { panic!("another workload") };
        let mut engine = db.engine(&bench.dirs);
        let mut session = engine.open(&bench.path(), true).unwrap();
        let mut set = |name: &str| {
            // Its number is in the row's first column, as in the table.
            let ask = format!("SELECT 1, current_setting('{name}')");
            let mut found = String::new();
            let mut statement = session.prepare(&ask).unwrap();
            let mut show = |row: &dyn super::super::engine::Row| {
                found = row.text(1)?.to_owned();
                Ok(())
            };
            statement.query(&[], &mut show).unwrap();
            drop(statement);
            found
        };
        for name in ["fsync", "synchronous_commit", "full_page_writes", "data_checksums"] {
            assert_eq!(set(name), "on", "{name}");
        }
        assert_eq!(set("listen_addresses"), "");
        assert_eq!(set("shared_buffers"), "5MB");
    }
}
