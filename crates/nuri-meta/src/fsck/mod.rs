//! Checks a stopped namespace: names, positions, link counts, counters and orphans must agree.

mod problem;
pub mod repair;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use nuri_kv::engine::{Engine, KvError};
use nuri_proto::id::{Ino, ObjectId};
use nuri_proto::layout::Layout;
use nuri_proto::op::once::CallKey;
use serde::de::DeserializeOwned;

pub use self::problem::Problem;
use crate::namespace::schema::{
    self, Body, CookieEntry, Counters, DoneRecord, Entry, Family, GarbageRecord, Inode,
    SessionRecord, SlotRecord, cookie_key, entry_key, key_id, key_tail,
};

const PAGE: usize = 4096;

/// What a check found.
#[derive(Debug, Default)]
pub struct FsckReport {
    pub inodes: u64,
    pub directories: u64,
    pub orphans: u64,
    /// Empty means clean.
    pub problems: Vec<Problem>,
    /// Objects that files own, for comparison with the targets.
    pub objects: HashMap<ObjectId, Layout>,
}

struct Known {
    inode: Inode,
    names: u32,
    subdirs: u32,
    entries: u64,
    /// The directory that its first name is in.
    parent: Option<Ino>,
    /// Of its entries.
    highest_cookie: u64,
}

impl Known {
    fn new(inode: Inode) -> Known {
        Known { inode, names: 0, subdirs: 0, entries: 0, parent: None, highest_cookie: 0 }
    }
}

/// A check under way.
struct Check<'a> {
    engine: &'a dyn Engine,
    known: BTreeMap<Ino, Known>,
    orphans: BTreeSet<Ino>,
    report: FsckReport,
}

/// Checks the whole namespace; changes nothing.
///
/// # Errors
/// Where the store itself cannot be read.
pub fn check(engine: &dyn Engine) -> Result<FsckReport, KvError> {
    let mut check = Check::new(engine);
    check.inodes()?;
    check.entries()?;
    check.positions()?;
    check.tails()?;
    check.sessions_and_garbage()?;
    let known = std::mem::take(&mut check.known);
    for (ino, known) in &known {
        check.inode(*ino, known)?;
    }
    check.counters(&known)?;
    check.reachable(&known);
    Ok(check.report)
}

/// All records of a family.
fn each(
    engine: &dyn Engine,
    family: Family,
    mut f: impl FnMut(&[u8], &[u8]),
) -> Result<(), KvError> {
    let prefix = schema::family_prefix(family);
    let mut after = prefix.clone();
    loop {
        let page = engine.scan(&prefix, &after, PAGE)?;
        let Some((last, _)) = page.last() else {
            return Ok(());
        };
        after.clone_from(last);
        page.iter().for_each(|(key, value)| f(key, value));
    }
}

impl Check<'_> {
    fn new(engine: &dyn Engine) -> Check<'_> {
        let (known, orphans, report) = Default::default();
        Check { engine, known, orphans, report }
    }

    fn found(&mut self, problem: Problem) {
        self.report.problems.push(problem);
    }

    /// The readable records of a family, with their numbers.
    fn readable<T: DeserializeOwned>(
        &mut self,
        family: Family,
        mut f: impl FnMut(u64, &[u8], T),
    ) -> Result<(), KvError> {
        let mut unreadable = Vec::new();
        each(self.engine, family, |key, value| match (key_id(key), schema::decode(value)) {
            (Some(id), Ok(record)) => f(id, key_tail(key), record),
            _ => unreadable.push(Problem::Unreadable { key: key.to_vec() }),
        })?;
        self.report.problems.extend(unreadable);
        Ok(())
    }

    fn inodes(&mut self) -> Result<(), KvError> {
        let mut known = BTreeMap::new();
        self.readable(Family::Inode, |id, _, inode| {
            known.insert(Ino(id), Known::new(inode));
        })?;
        self.known = known;
        let mut orphans = BTreeSet::new();
        each(self.engine, Family::Orphan, |key, _| {
            orphans.extend(key_id(key).map(Ino));
        })?;
        self.orphans = orphans;
        Ok(())
    }

    fn entries(&mut self) -> Result<(), KvError> {
        let mut entries = Vec::new();
        self.readable(Family::Entry, |id, name, entry: Entry| {
            entries.push((Ino(id), name.to_vec(), entry));
        })?;
        for (parent, name, entry) in entries {
            self.entry(parent, name, entry)?;
        }
        Ok(())
    }

    fn entry(&mut self, parent: Ino, name: Vec<u8>, entry: Entry) -> Result<(), KvError> {
        let Some(child) = self.known.get_mut(&entry.ino) else {
            self.found(Problem::EntryOfNothing { parent, name, cookie: entry.cookie });
            return Ok(());
        };
        let (is_dir, kind) = (child.inode.is_dir(), child.inode.kind());
        child.names += 1;
        child.parent.get_or_insert(parent);
        let is_second = is_dir && child.names > 1;
        let Some(dir) = self.known.get_mut(&parent).filter(|dir| dir.inode.is_dir()) else {
            self.found(Problem::EntryInNothing { parent, name });
            return Ok(());
        };
        dir.entries += 1;
        dir.subdirs += u32::from(is_dir);
        dir.highest_cookie = dir.highest_cookie.max(entry.cookie);
        if is_second {
            let (name, cookie, ino) = (name.clone(), entry.cookie, entry.ino);
            self.found(Problem::SecondName { parent, name, cookie, ino });
        }
        if kind != entry.kind {
            let name = name.clone();
            self.found(Problem::EntryType { parent, name, kind });
        }
        let record = self.engine.get(&cookie_key(parent, entry.cookie))?;
        let agrees = record.and_then(|bytes| schema::decode::<CookieEntry>(&bytes).ok());
        if agrees.is_none_or(|c| c.name != name || c.ino != entry.ino) {
            self.found(Problem::NoPosition { parent, name, entry });
        }
        Ok(())
    }

    fn positions(&mut self) -> Result<(), KvError> {
        let mut records = Vec::new();
        self.readable(Family::Cookie, |id, tail, record: CookieEntry| {
            let cookie = tail.try_into().map_or(0, u64::from_be_bytes);
            records.push((Ino(id), cookie, record.name));
        })?;
        for (parent, cookie, name) in records {
            let entry = self.engine.get(&entry_key(parent, &name))?;
            let entry = entry.and_then(|bytes| schema::decode::<Entry>(&bytes).ok());
            if entry.is_none_or(|entry| entry.cookie != cookie) {
                self.found(Problem::PositionOfNothing { parent, cookie, name });
            }
        }
        Ok(())
    }

    /// Records that hang on an inode: inline data and extended attributes.
    fn tails(&mut self) -> Result<(), KvError> {
        for family in [Family::Inline, Family::Xattr, Family::Done] {
            let mut stray = Vec::new();
            each(self.engine, family, |key, _| {
                if !key_id(key).is_some_and(|id| self.known.contains_key(&Ino(id))) {
                    stray.push(Problem::Stray { key: key.to_vec() });
                }
            })?;
            self.report.problems.extend(stray);
        }
        Ok(())
    }

    /// A server that finds one of these unreadable does not start.
    fn sessions_and_garbage(&mut self) -> Result<(), KvError> {
        self.readable(Family::Session, |_, _, _: SessionRecord| {})?;
        self.readable(Family::Slot, |_, _, _: SlotRecord| {})?;
        self.readable(Family::Done, |_, _, _: DoneRecord| {})?;
        self.keys_of_calls()?;
        self.readable(Family::Garbage, |_, _, _: GarbageRecord| {})
    }

    /// Who takes an address reads all its calls.
    fn keys_of_calls(&mut self) -> Result<(), KvError> {
        let mut unreadable = Vec::new();
        each(self.engine, Family::Done, |key, _| {
            if key_tail(key).len() != size_of::<CallKey>() {
                unreadable.push(Problem::Unreadable { key: key.to_vec() });
            }
        })?;
        self.report.problems.extend(unreadable);
        Ok(())
    }

    fn inode(&mut self, ino: Ino, known: &Known) -> Result<(), KvError> {
        self.report.inodes += 1;
        let (attr, is_orphan) = (&known.inode.attr, self.orphans.contains(&ino));
        self.report.orphans += u64::from(is_orphan);
        if attr.ino != ino {
            self.found(Problem::WrongNumber { ino, says: attr.ino });
        }
        let has_name = known.names > 0 || [Ino::ROOT, Ino::VOLUMES].contains(&ino);
        match (is_orphan, has_name) {
            (true, true) => self.found(Problem::OrphanWithNames { ino }),
            (true, false) if attr.nlink > 0 => self.found(Problem::OrphanWithNames { ino }),
            (false, false) => self.found(Problem::Nameless { ino }),
            _ => {}
        }
        match &known.inode.body {
            Body::Directory(dir) => self.directory(ino, dir, known),
            Body::File(file) => self.file(ino, file, attr.size)?,
            Body::Symlink(_) | Body::Special => {}
        }
        let counted = match (has_name, known.inode.is_dir()) {
            (false, _) => 0,
            (true, true) => 2 + known.subdirs,
            (true, false) => known.names,
        };
        if attr.nlink != counted {
            self.found(Problem::Links { ino, says: attr.nlink, counted });
        }
        Ok(())
    }

    fn directory(&mut self, dir: Ino, body: &schema::Directory, known: &Known) {
        self.report.directories += 1;
        if let Some(parent) = known.parent.filter(|parent| *parent != body.parent) {
            self.found(Problem::WrongParent { dir, says: body.parent, parent });
        }
        let highest = known.highest_cookie;
        if known.entries > 0 && highest >= body.next_cookie {
            self.found(Problem::NextPosition { dir, highest });
        }
        let (says, counted) = (known.inode.attr.size, known.entries);
        if says != counted {
            self.found(Problem::Entries { dir, says, counted });
        }
    }

    fn file(&mut self, ino: Ino, file: &schema::File, size: u64) -> Result<(), KvError> {
        if file.may_have_data(size) {
            self.report.objects.insert(file.object, file.layout.clone());
        }
        let is_there = self.engine.get(&schema::inline_key(ino))?.is_some();
        if is_there != file.inline || (file.inline && file.on_targets) {
            self.found(Problem::Inline { ino, is_there });
        }
        Ok(())
    }

    fn counters(&mut self, known: &BTreeMap<Ino, Known>) -> Result<(), KvError> {
        let stored = self.engine.get(&schema::counters_key())?;
        let Some(counters) = stored.and_then(|bytes| schema::decode::<Counters>(&bytes).ok())
        else {
            self.found(Problem::NoCounters);
            return Ok(());
        };
        let counted = (known.len() as u64, known.values().map(|k| k.inode.attr.allocated).sum());
        if (counters.inodes, counters.allocated) != counted {
            let inodes = (counters.inodes, counted.0);
            self.found(Problem::Counters { inodes, allocated: (counters.allocated, counted.1) });
        }
        for (what, says, highest) in self.highest(known, &counters)? {
            if highest > says {
                self.found(Problem::NextNumber { what, says, highest });
            }
        }
        Ok(())
    }

    /// What was given last, and the highest that there is: inodes, objects, sessions.
    fn highest(
        &self,
        known: &BTreeMap<Ino, Known>,
        counters: &Counters,
    ) -> Result<[(&'static str, u64, u64); 3], KvError> {
        let ino = known.keys().map(|ino| ino.counter()).max().unwrap_or(0);
        let object = |known: &Known| known.inode.as_file().map_or(0, |file| file.object.0);
        let mut garbage = 0;
        each(self.engine, Family::Garbage, |key, _| {
            garbage = garbage.max(key_id(key).unwrap_or(0))
        })?;
        let objects = known.values().map(object).max().unwrap_or(0).max(garbage);
        let mut session = 0;
        each(self.engine, Family::Session, |key, _| {
            session = session.max(key_id(key).unwrap_or(0))
        })?;
        Ok([
            ("inode", counters.next_ino, ino),
            ("object", counters.next_object, objects),
            ("session", counters.next_session, session),
        ])
    }

    /// Every directory with a name leads up to the root, unless one above it is told of.
    fn reachable(&mut self, known: &BTreeMap<Ino, Known>) {
        if !known.get(&Ino::ROOT).is_some_and(|root| root.inode.is_dir()) {
            self.found(Problem::NoRoot);
        }
        let has_volumes = known.keys().next_back().is_some_and(|ino| ino.is_hidden());
        if has_volumes && !known.get(&Ino::VOLUMES).is_some_and(|dir| dir.inode.is_dir()) {
            self.found(Problem::NoVolumes);
        }
        let mut seen = BTreeSet::from([Ino::ROOT, Ino::VOLUMES]);
        for (ino, _) in known.iter().filter(|(_, known)| known.inode.is_dir()) {
            if let Some(dir) = circle_above(known, *ino, &mut seen) {
                self.found(Problem::Unreachable { dir });
            }
        }
    }
}

/// A directory that lies in itself, found on the way up from `from` through what nobody saw yet.
fn circle_above(known: &BTreeMap<Ino, Known>, from: Ino, seen: &mut BTreeSet<Ino>) -> Option<Ino> {
    let (mut at, mut way) = (from, BTreeSet::new());
    while seen.insert(at) {
        way.insert(at);
        at = known.get(&at)?.parent?;
    }
    way.contains(&at).then_some(at)
}
