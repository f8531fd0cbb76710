//! Repairs a stopped namespace where a check found faults. Caller: `nuri doctor --repair`, which
//! keeps the state from before.
//!
//! Nothing that can still be read is dropped: an inode that lost its name gets one in
//! `/lost+found`. A fault may be the consequence of another one. So faults are repaired stage by
//! stage ([`Problem::stage`]), with a new check after each stage.

use nuri_kv::engine::{Batch, Engine, KvError};
use nuri_proto::change::{S_IFDIR, S_IFMT};
use nuri_proto::id::Ino;
use nuri_proto::limit::MAX_INLINE;
use nuri_proto::op::meta::Time;

use super::{Check, Problem, check, each};
use crate::namespace::schema::{
    self, Body, CookieEntry, Counters, Entry, Family, Inode, cookie_key, entry_key, inline_key,
    inode_key, orphan_key,
};

const LOST_AND_FOUND: &[u8] = b"lost+found";
/// More stages than there are: one may have to be entered again.
const MOST_PASSES: usize = 32;
/// Changes are committed in parts of so many bytes.
const PART: usize = 1 << 20;

/// Repairs the namespace. Returns the faults in the order in which they were repaired.
///
/// # Errors
/// The store's. [`KvError::Damaged`] where faults stay.
pub fn repair(engine: &dyn Engine, now: Time) -> Result<Vec<Problem>, KvError> {
    let mut mended = Vec::new();
    for _ in 0..MOST_PASSES {
        let mut problems = check(engine)?.problems;
        let Some(stage) = problems.iter().map(Problem::stage).min() else { return Ok(mended) };
        problems.retain(|problem| problem.stage() == stage);
        let mut repair = Repair { engine, now, batch: Batch::new() };
        for problem in &problems {
            repair.mend(problem)?;
            if repair.batch.bytes() > PART {
                repair.commit()?;
            }
        }
        repair.commit()?;
        mended.append(&mut problems);
    }
    Err(KvError::Damaged("faults come back after they were mended".into()))
}

/// Changes of one stage.
struct Repair<'a> {
    engine: &'a dyn Engine,
    now: Time,
    batch: Batch,
}

fn encoded<T: serde::Serialize>(value: &T) -> Result<Vec<u8>, KvError> {
    schema::encode(value).map_err(|_| KvError::Damaged("a record cannot be written".into()))
}

impl Repair<'_> {
    fn commit(&mut self) -> Result<(), KvError> {
        let batch = std::mem::take(&mut self.batch);
        if batch.is_empty() {
            return Ok(());
        }
        self.engine.wait_durable(self.engine.commit(batch)?)
    }

    /// As the batch will leave it.
    fn get<T: serde::de::DeserializeOwned>(&self, key: &[u8]) -> Result<Option<T>, KvError> {
        let stored = match self.batch.get(key) {
            Some(changed) => changed.map(<[u8]>::to_vec),
            None => self.engine.get(key)?,
        };
        Ok(stored.and_then(|bytes| schema::decode(&bytes).ok()))
    }

    fn change(&mut self, ino: Ino, change: impl FnOnce(&mut Inode)) -> Result<(), KvError> {
        let Some(mut inode) = self.get::<Inode>(&inode_key(ino))? else { return Ok(()) };
        change(&mut inode);
        self.batch.put(inode_key(ino), encoded(&inode)?);
        Ok(())
    }

    fn mend(&mut self, problem: &Problem) -> Result<(), KvError> {
        match problem {
            Problem::Unreadable { key } | Problem::Stray { key } => self.batch.delete(key.clone()),
            Problem::NoCounters => self.count_anew()?,
            Problem::NoRoot => self.make_top(Ino::ROOT, 0o755)?,
            Problem::NoVolumes => self.make_top(Ino::VOLUMES, 0o700)?,
            Problem::EntryOfNothing { parent, name, cookie }
            | Problem::SecondName { parent, name, cookie, .. } => {
                self.batch.delete(entry_key(*parent, name));
                self.drop_position(*parent, *cookie, name)?;
            }
            Problem::EntryInNothing { parent, name } => self.batch.delete(entry_key(*parent, name)),
            Problem::EntryType { parent, name, kind } => self.set_type(*parent, name, *kind)?,
            Problem::NoPosition { parent, name, entry } => {
                self.give_position(*parent, name, *entry)?
            }
            Problem::PositionOfNothing { parent, cookie, .. } => {
                self.batch.delete(cookie_key(*parent, *cookie));
            }
            Problem::NextPosition { dir, highest } => self.change(*dir, |inode| {
                if let Body::Directory(dir) = &mut inode.body {
                    dir.next_cookie = highest + 1;
                }
            })?,
            Problem::WrongNumber { ino, .. } => self.change(*ino, |inode| inode.attr.ino = *ino)?,
            Problem::WrongParent { dir, parent, .. } => self.change(*dir, |inode| {
                if let Body::Directory(dir) = &mut inode.body {
                    dir.parent = *parent;
                }
            })?,
            Problem::Nameless { ino } => self.find_a_place(*ino)?,
            Problem::OrphanWithNames { ino } => self.batch.delete(orphan_key(*ino)),
            Problem::Unreachable { dir } => self.cut_circle(*dir)?,
            Problem::Links { ino, counted, .. } => {
                self.change(*ino, |inode| inode.attr.nlink = *counted)?;
            }
            Problem::Entries { dir, counted, .. } => {
                self.change(*dir, |inode| inode.attr.size = *counted)?;
            }
            Problem::Inline { ino, is_there } => self.settle_inline(*ino, *is_there)?,
            Problem::Counters { inodes, allocated } => {
                self.change_counters(|c| (c.inodes, c.allocated) = (inodes.1, allocated.1))?;
            }
            Problem::NextNumber { what, highest, .. } => self.change_counters(|c| match *what {
                "inode" => c.next_ino = *highest,
                "object" => c.next_object = *highest,
                _ => c.next_session = *highest,
            })?,
        }
        Ok(())
    }

    fn change_counters(&mut self, change: impl FnOnce(&mut Counters)) -> Result<(), KvError> {
        let key = schema::counters_key();
        let mut counters = self.get::<Counters>(&key)?.unwrap_or_default();
        change(&mut counters);
        self.batch.put(key, encoded(&counters)?);
        Ok(())
    }

    /// What the counters are for is above all that is there: no number is given twice.
    fn count_anew(&mut self) -> Result<(), KvError> {
        let mut counters = Counters { stamp: self.now, ..Counters::default() };
        let mut check = Check::new(self.engine);
        check.inodes()?;
        let known = std::mem::take(&mut check.known);
        let [(_, _, ino), (_, _, object), (_, _, session)] = check.highest(&known, &counters)?;
        counters.next_ino = ino.max(Ino::ROOT.0);
        // Objects and sessions that ended left nothing to see here, and targets may know them.
        counters.next_object = object + crate::restored::SKIP;
        counters.next_session = session + crate::restored::SKIP;
        counters.inodes = known.len() as u64;
        counters.allocated = known.values().map(|k| k.inode.attr.allocated).sum();
        self.batch.put(schema::counters_key(), encoded(&counters)?);
        Ok(())
    }

    fn make_top(&mut self, ino: Ino, mode: u32) -> Result<(), KvError> {
        let top = Inode::new_directory(ino, ino, mode, self.now);
        self.batch.put(inode_key(ino), encoded(&top)?);
        Ok(())
    }

    /// A position of the same number may be another name's.
    fn drop_position(&mut self, parent: Ino, cookie: u64, name: &[u8]) -> Result<(), KvError> {
        let key = cookie_key(parent, cookie);
        if self.get::<CookieEntry>(&key)?.is_some_and(|record| record.name == name) {
            self.batch.delete(key);
        }
        Ok(())
    }

    fn set_type(&mut self, parent: Ino, name: &[u8], kind: u8) -> Result<(), KvError> {
        let key = entry_key(parent, name);
        let Some(entry) = self.get::<Entry>(&key)? else { return Ok(()) };
        self.put_entry(parent, name, Entry { kind, ..entry })
    }

    fn put_entry(&mut self, parent: Ino, name: &[u8], entry: Entry) -> Result<(), KvError> {
        let Entry { ino, cookie, kind } = entry;
        self.batch.put(entry_key(parent, name), encoded(&entry)?);
        let position = CookieEntry { ino, kind, name: name.to_vec() };
        self.batch.put(cookie_key(parent, cookie), encoded(&position)?);
        Ok(())
    }

    /// Its own where that is free, else the directory's next one.
    fn give_position(&mut self, parent: Ino, name: &[u8], entry: Entry) -> Result<(), KvError> {
        let held = self.get::<CookieEntry>(&cookie_key(parent, entry.cookie))?;
        let is_free = held.is_none_or(|record| record.name == name);
        let cookie = if is_free { entry.cookie } else { self.next_position(parent)? };
        self.put_entry(parent, name, Entry { cookie, ..entry })
    }

    fn next_position(&mut self, dir: Ino) -> Result<u64, KvError> {
        let mut cookie = 0;
        self.change(dir, |inode| {
            if let Body::Directory(dir) = &mut inode.body {
                cookie = dir.next_cookie;
                dir.next_cookie += 1;
            }
        })?;
        Ok(cookie)
    }

    /// `/lost+found`, made where it is not there. Its counts are mended by a later stage.
    fn lost_and_found(&mut self) -> Result<Ino, KvError> {
        if let Some(entry) = self.get::<Entry>(&entry_key(Ino::ROOT, LOST_AND_FOUND))?
            && let Some(inode) = self.get::<Inode>(&inode_key(entry.ino))?
            && inode.is_dir()
        {
            return Ok(entry.ino);
        }
        let mut ino = Ino::ROOT;
        self.change_counters(|counters| {
            counters.next_ino += 1;
            ino = Ino::new(0, counters.next_ino);
        })?;
        let dir = Inode::new_directory(ino, Ino::ROOT, 0o700, self.now);
        self.batch.put(inode_key(ino), encoded(&dir)?);
        let name = self.free_name(Ino::ROOT, LOST_AND_FOUND)?;
        let (cookie, kind) = (self.next_position(Ino::ROOT)?, (S_IFDIR >> 12) as u8);
        self.put_entry(Ino::ROOT, &name, Entry { ino, cookie, kind })?;
        Ok(ino)
    }

    fn free_name(&self, dir: Ino, name: &[u8]) -> Result<Vec<u8>, KvError> {
        let mut free = name.to_vec();
        while self.get::<Entry>(&entry_key(dir, &free))?.is_some() {
            free.push(b'-');
        }
        Ok(free)
    }

    fn find_a_place(&mut self, ino: Ino) -> Result<(), KvError> {
        let Some(inode) = self.get::<Inode>(&inode_key(ino))? else { return Ok(()) };
        let dir = if ino.is_hidden() { Ino::VOLUMES } else { self.lost_and_found()? };
        let name = self.free_name(dir, format!("inode-{}", ino.0).as_bytes())?;
        let (cookie, kind) = (self.next_position(dir)?, ((inode.attr.mode & S_IFMT) >> 12) as u8);
        self.put_entry(dir, &name, Entry { ino, cookie, kind })
    }

    /// Takes the name of one directory of a circle away: it is found nameless by the next check.
    /// The others hang below it.
    fn cut_circle(&mut self, dir: Ino) -> Result<(), KvError> {
        let mut names = Vec::new();
        each(self.engine, Family::Entry, |key, value| {
            if let Ok(entry) = schema::decode::<Entry>(value)
                && entry.ino == dir
            {
                names.push((schema::key_id(key), schema::key_tail(key).to_vec(), entry.cookie));
            }
        })?;
        for (parent, name, cookie) in names {
            let parent = Ino(parent.unwrap_or(0));
            self.batch.delete(entry_key(parent, &name));
            self.drop_position(parent, cookie, &name)?;
        }
        Ok(())
    }

    /// Bytes in both places: those of a file as small as the inline record lie there.
    fn settle_inline(&mut self, ino: Ino, is_there: bool) -> Result<(), KvError> {
        let mut keeps = is_there;
        self.change(ino, |inode| {
            let size = inode.attr.size;
            if let Body::File(file) = &mut inode.body {
                keeps = is_there && (!file.on_targets || size <= MAX_INLINE);
                file.inline = keeps;
                file.on_targets &= !keeps;
            }
        })?;
        if is_there && !keeps {
            self.batch.delete(inline_key(ino));
        }
        Ok(())
    }
}
