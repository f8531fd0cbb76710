//! Checks a stopped namespace: names, positions, link counts, counters, orphans agree.

use std::collections::HashMap;

use nuri_kv::engine::{Engine, KvError};
use nuri_proto::id::{Ino, ObjectId};
use nuri_proto::layout::Layout;

use crate::namespace::schema::{
    self, Body, CookieEntry, Counters, Entry, Family, Inode, cookie_key, entry_key, key_id,
    key_tail,
};

const PAGE: usize = 4096;

/// What a check found.
#[derive(Debug, Default)]
pub struct FsckReport {
    pub inodes: u64,
    pub directories: u64,
    pub orphans: u64,
    /// One sentence each; empty means clean.
    pub problems: Vec<String>,
    /// Objects that files own, for comparison with the targets.
    pub objects: HashMap<ObjectId, Layout>,
}

struct Known {
    inode: Inode,
    names: u32,
    subdirs: u32,
    entries: u64,
}

/// Checks everything; changes nothing.
///
/// # Errors
/// Where the store itself cannot be read.
pub fn check(engine: &dyn Engine) -> Result<FsckReport, KvError> {
    let mut report = FsckReport::default();
    let mut known = HashMap::new();
    each(engine, Family::Inode, |key, value| {
        let ino = key_id(key).unwrap_or(0);
        match schema::decode::<Inode>(value) {
            Ok(inode) => {
                known.insert(ino, Known { inode, names: 0, subdirs: 0, entries: 0 });
            }
            Err(_) => report.problems.push(format!("inode {ino} cannot be read")),
        }
    })?;
    check_entries(engine, &mut known, &mut report)?;
    check_cookies(engine, &mut report)?;
    check_tails(engine, &known, &mut report)?;
    for (ino, k) in &known {
        check_inode(*ino, k, engine, &mut report)?;
    }
    check_counters(engine, &known, &mut report)?;
    check_reachable(&known, &mut report);
    Ok(report)
}

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

fn check_entries(
    engine: &dyn Engine,
    known: &mut HashMap<u64, Known>,
    report: &mut FsckReport,
) -> Result<(), KvError> {
    let mut pairs = Vec::new();
    each(engine, Family::Entry, |key, value| {
        let (parent, name) = (key_id(key).unwrap_or(0), key_tail(key).to_vec());
        let shown = String::from_utf8_lossy(&name).into_owned();
        let Ok(entry) = schema::decode::<Entry>(value) else {
            report.problems.push(format!("entry {shown:?} of {parent} cannot be read"));
            return;
        };
        match known.get_mut(&entry.ino.0) {
            Some(child) => {
                child.names += 1;
                let is_dir = child.inode.is_dir();
                if child.inode.kind() != entry.kind {
                    report.problems.push(format!("entry {shown:?} of {parent} has another type"));
                }
                if let Some(dir) = known.get_mut(&parent) {
                    dir.entries += 1;
                    dir.subdirs += u32::from(is_dir);
                }
            }
            None => {
                report.problems.push(format!("entry {shown:?} of {parent} points to nothing"));
            }
        }
        pairs.push((parent, name, entry));
    })?;
    for (parent, name, entry) in pairs {
        let record = engine.get(&cookie_key(Ino(parent), entry.cookie))?;
        let agrees = record.and_then(|bytes| schema::decode::<CookieEntry>(&bytes).ok());
        if agrees.is_none_or(|c| c.name != name || c.ino != entry.ino) {
            let shown = String::from_utf8_lossy(&name);
            report.problems.push(format!("entry {shown:?} of {parent} has no position"));
        }
    }
    Ok(())
}

fn check_cookies(engine: &dyn Engine, report: &mut FsckReport) -> Result<(), KvError> {
    let mut names = Vec::new();
    each(engine, Family::Cookie, |key, value| {
        let parent = key_id(key).unwrap_or(0);
        match schema::decode::<CookieEntry>(value) {
            Ok(record) => names.push((parent, record.name)),
            Err(_) => report.problems.push(format!("a position of {parent} cannot be read")),
        }
    })?;
    for (parent, name) in names {
        if engine.get(&entry_key(Ino(parent), &name))?.is_none() {
            let shown = String::from_utf8_lossy(&name);
            report.problems.push(format!("position of {shown:?} in {parent} has no entry"));
        }
    }
    Ok(())
}

/// Records that hang on an inode: inline data and extended attributes.
fn check_tails(
    engine: &dyn Engine,
    known: &HashMap<u64, Known>,
    report: &mut FsckReport,
) -> Result<(), KvError> {
    for (family, what) in [(Family::Inline, "inline data"), (Family::Xattr, "an attribute")] {
        each(engine, family, |key, _| {
            let ino = key_id(key).unwrap_or(0);
            if !known.contains_key(&ino) {
                report.problems.push(format!("{what} belongs to inode {ino}, which is gone"));
            }
        })?;
    }
    Ok(())
}

fn check_inode(
    ino: u64,
    k: &Known,
    engine: &dyn Engine,
    report: &mut FsckReport,
) -> Result<(), KvError> {
    report.inodes += 1;
    let attr = &k.inode.attr;
    if attr.ino.0 != ino {
        report.problems.push(format!("inode {ino} calls itself {}", attr.ino));
    }
    let orphan = engine.get(&schema::orphan_key(Ino(ino)))?.is_some();
    report.orphans += u64::from(orphan);
    if orphan != (attr.nlink == 0) {
        report.problems.push(format!("inode {ino} has {} links, orphan: {orphan}", attr.nlink));
    }
    match &k.inode.body {
        Body::Directory(_) => {
            report.directories += 1;
            let links = if orphan { 0 } else { 2 + k.subdirs };
            if attr.nlink != links || attr.size != k.entries {
                report.problems.push(format!(
                    "directory {ino} says {} links and {} entries, counted {links} and {}",
                    attr.nlink, attr.size, k.entries
                ));
            }
        }
        Body::File(file) => {
            if file.may_have_data(attr.size) {
                report.objects.insert(file.object, file.layout.clone());
            }
            let inline = engine.get(&schema::inline_key(Ino(ino)))?;
            if inline.is_some() != file.inline || (file.inline && file.on_targets) {
                report.problems.push(format!("file {ino} disagrees with its inline data"));
            }
        }
        Body::Symlink(_) | Body::Special => {}
    }
    if !k.inode.is_dir() && attr.nlink != k.names {
        report.problems.push(format!("inode {ino} says {} links, has {}", attr.nlink, k.names));
    }
    Ok(())
}

fn check_counters(
    engine: &dyn Engine,
    known: &HashMap<u64, Known>,
    report: &mut FsckReport,
) -> Result<(), KvError> {
    let stored = engine.get(&schema::counters_key())?;
    let Some(counters) = stored.and_then(|bytes| schema::decode::<Counters>(&bytes).ok()) else {
        report.problems.push("the counters cannot be read".into());
        return Ok(());
    };
    let allocated: u64 = known.values().map(|k| k.inode.attr.allocated).sum();
    if counters.inodes != known.len() as u64 || counters.allocated != allocated {
        report.problems.push(format!(
            "counters say {} inodes and {} bytes, counted {} and {allocated}",
            counters.inodes,
            counters.allocated,
            known.len()
        ));
    }
    if known.keys().any(|ino| *ino > counters.next_ino) {
        report.problems.push("an inode number is above the next one to give".into());
    }
    Ok(())
}

/// Every living directory leads up to the root.
fn check_reachable(known: &HashMap<u64, Known>, report: &mut FsckReport) {
    if !known.contains_key(&Ino::ROOT.0) {
        report.problems.push("the root directory is gone".into());
    }
    for (ino, k) in known {
        let (Body::Directory(dir), true) = (&k.inode.body, k.inode.attr.nlink > 0) else {
            continue;
        };
        let mut at = dir.parent.0;
        let mut steps = 0;
        while at != Ino::ROOT.0 && steps <= known.len() {
            at = match known.get(&at).map(|k| &k.inode.body) {
                Some(Body::Directory(dir)) => dir.parent.0,
                _ => break,
            };
            steps += 1;
        }
        if at != Ino::ROOT.0 {
            report.problems.push(format!("directory {ino} is not below the root"));
        }
    }
}
