//! The tables behind the log: redb on a [`Disk`].

use std::io;
use std::sync::Arc;

use nuri_io::disk::Disk;
use nuri_io::program::catch_panics;
use parking_lot::RwLock;
use redb::{Database, ReadableDatabase, StorageBackend, TableDefinition};

use crate::engine::{KvError, Pair};
use crate::memtable::MemTable;

const DATA: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("data");
const STATE: TableDefinition<'_, &str, u64> = TableDefinition::new("state");
/// Pairs fetched per page of a scan.
const PAGE: usize = 256;
/// First bytes of a redb file.
const MARK: &[u8; 4] = b"redb";

/// redb's view of a disk.
struct Backend(Arc<dyn Disk>);

impl std::fmt::Debug for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Backend")
    }
}

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read_at(offset, out)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.0.sync()
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_at(offset, data)
    }
}

/// The durable tables, complete up to a sequence.
pub(crate) struct Tables {
    /// `None` after a write that failed for want of room: redb serves nothing more then before it
    /// is opened again.
    db: RwLock<Option<Database>>,
    disk: Arc<dyn Disk>,
    cache_bytes: usize,
}

fn broken(error: impl Into<redb::Error>) -> KvError {
    match error.into() {
        redb::Error::Corrupted(what) => KvError::Damaged(what),
        redb::Error::Io(e) if e.raw_os_error() == Some(28) => KvError::NoSpace,
        redb::Error::Io(e) if e.kind() == io::ErrorKind::InvalidData => {
            KvError::Damaged(e.to_string())
        }
        other => KvError::Io(other.to_string()),
    }
}

/// redb panics on some damage that its own checks do not see: to us that is damage too.
fn guarded<T>(f: impl FnOnce() -> Result<T, KvError>) -> Result<T, KvError> {
    let damaged = |_| Err(KvError::Damaged("the tables' structure".into()));
    catch_panics(f).unwrap_or_else(damaged)
}

impl Tables {
    /// Empties a disk on which redb began to make its file and did not come to an end: it writes
    /// its mark last.
    pub(crate) fn clear_unfinished(disk: &dyn Disk) -> Result<(), KvError> {
        let cleared = || {
            let mut mark = [0; MARK.len()];
            if disk.len()? >= MARK.len() as u64 {
                disk.read_at(0, &mut mark)?;
            }
            if &mark == MARK { Ok(()) } else { disk.set_len(0).and_then(|()| disk.sync()) }
        };
        cleared().map_err(|e: io::Error| KvError::Io(e.to_string()))
    }

    pub(crate) fn open(disk: Arc<dyn Disk>, cache_bytes: usize) -> Result<Tables, KvError> {
        let tables = Tables { db: RwLock::new(None), disk, cache_bytes };
        tables.reopen()?;
        tables.with(|db| {
            let txn = db.begin_write().map_err(broken)?;
            txn.open_table(DATA).map_err(broken)?;
            txn.open_table(STATE).map_err(broken)?;
            txn.commit().map_err(broken)
        })?;
        Ok(tables)
    }

    /// What was absorbed is there, and nothing of what failed.
    fn reopen(&self) -> Result<(), KvError> {
        let mut db = self.db.write();
        // Two at once on one disk would not know of each other.
        drop(db.take());
        *db = Some(guarded(|| {
            let mut builder = Database::builder();
            builder.set_cache_size(self.cache_bytes);
            builder.create_with_backend(Backend(self.disk.clone())).map_err(broken)
        })?);
        Ok(())
    }

    fn with<R>(&self, f: impl FnOnce(&Database) -> Result<R, KvError>) -> Result<R, KvError> {
        let db = self.db.read();
        let db = db.as_ref().ok_or(KvError::NoSpace)?;
        guarded(|| f(db))
    }

    /// A number kept beside the data: what the tables contain, or who owns them.
    pub(crate) fn state(&self, name: &str) -> Result<u64, KvError> {
        self.with(|db| {
            let txn = db.begin_read().map_err(broken)?;
            let table = txn.open_table(STATE).map_err(broken)?;
            Ok(table.get(name).map_err(broken)?.map_or(0, |v| v.value()))
        })
    }

    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, KvError> {
        self.with(|db| {
            let txn = db.begin_read().map_err(broken)?;
            let table = txn.open_table(DATA).map_err(broken)?;
            Ok(table.get(key).map_err(broken)?.map(|v| v.value().to_vec()))
        })
    }

    /// A page of pairs of `prefix` above `after`.
    pub(crate) fn page(&self, prefix: &[u8], after: &[u8]) -> Result<Vec<Pair>, KvError> {
        self.with(|db| {
            let txn = db.begin_read().map_err(broken)?;
            let table = txn.open_table(DATA).map_err(broken)?;
            let from = std::ops::Bound::Excluded(after.max(prefix_floor(prefix, after)));
            let range = table.range::<&[u8]>((from, std::ops::Bound::Unbounded)).map_err(broken)?;
            let mut out = Vec::new();
            for pair in range.take(PAGE) {
                let (key, value) = pair.map_err(broken)?;
                if !key.value().starts_with(prefix) {
                    break;
                }
                out.push((key.value().to_vec(), value.value().to_vec()));
            }
            Ok(out)
        })
    }

    /// Adds changes and state in one durable step.
    ///
    /// # Errors
    /// [`KvError::NoSpace`]: nothing was added, and it may be tried again.
    pub(crate) fn absorb(&self, changes: &MemTable, state: &[(&str, u64)]) -> Result<(), KvError> {
        if self.db.read().is_none() {
            self.reopen()?;
        }
        let outcome = self.add(changes, state);
        if outcome == Err(KvError::NoSpace) {
            self.reopen()?;
        }
        outcome
    }

    fn add(&self, changes: &MemTable, state: &[(&str, u64)]) -> Result<(), KvError> {
        self.with(|db| {
            let mut txn = db.begin_write().map_err(broken)?;
            txn.set_two_phase_commit(true);
            txn.set_quick_repair(true);
            {
                let mut table = txn.open_table(DATA).map_err(broken)?;
                for (key, value) in changes.iter() {
                    match value {
                        Some(value) => drop(table.insert(key, value).map_err(broken)?),
                        None => drop(table.remove(key).map_err(broken)?),
                    }
                }
                let mut numbers = txn.open_table(STATE).map_err(broken)?;
                for (name, value) in state {
                    numbers.insert(name, value).map_err(broken)?;
                }
            }
            txn.commit().map_err(broken)
        })
    }
}

/// Keys below the prefix are of no interest, whatever `after` says.
fn prefix_floor<'a>(prefix: &'a [u8], after: &'a [u8]) -> &'a [u8] {
    if after >= prefix { after } else { prefix }
}
