//! Puts the newest whole copy of the metadata back where the first node's disk was lost.
//!
//! 1 a mark that a restore began        crash: no node starts there, the restore is run again
//! 2 log, tables, map and settings      crash: as above
//! 3 the store is opened, checked, and its numbers rise above all that may have been given since
//! 4 the mark goes                      crash: as above, or done
//!
//! Callers: `nuri doctor --restore-metadata`, and code that opens the store and has to see that
//! mark.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use nuri_cluster::store::{FileStore, MapStore};
use nuri_io::lock::ExclusiveLock;
use nuri_kv::embedded::{Embedded, KvConfig};
use nuri_meta::{fsck, restored};
use nuri_proto::map::{Map, Target};

use super::copier::{Counter, counter_path};
use super::{FORMAT, Found, Whole, copies, copy_at};
use crate::directory::{MAP, META_LOG, META_TABLES, NODE, NodeSettings, save_json, store_disks};
use crate::failure::{Failure, at};

/// There while a restore is not done.
const MARK: &str = "meta.restoring";
/// Owners that there may have been since the copy was made.
const EPOCH_STEP: u64 = 1 << 10;

/// Whether what is in the way may go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Overwrite {
    Refuse,
    Force,
}

/// What was restored.
pub struct Restored {
    pub from: PathBuf,
    pub whole: Whole,
    /// When the copy changed last, seconds since 1970.
    pub changed: u64,
    pub check: fsck::FsckReport,
    /// The first node's targets, and whether they are there.
    pub targets: Vec<(PathBuf, bool)>,
}

/// A store whose restore did not end must not be opened: it may be part of a copy.
pub fn refuse_unfinished(dir: &Path) -> Result<(), Failure> {
    if !dir.join(MARK).exists() {
        return Ok(());
    }
    let dir = dir.display();
    Err(Failure(format!(
        "a restore into {dir} did not end; run it again: nuri doctor --restore-metadata"
    )))
}

/// The newest whole copy in these directories: of nodes, or copies themselves.
pub fn newest(sources: &[PathBuf]) -> Result<Found, Failure> {
    let mut found = Vec::new();
    for dir in sources {
        match copy_at(dir)? {
            Some(copy) => found.push(copy),
            None if dir.is_dir() => found.extend(copies(dir)?),
            None => return Err(Failure(format!("{} is no directory", dir.display()))),
        }
    }
    found.retain(|copy| copy.whole.is_some());
    let space = |copy: &Found| copy.whole.as_ref().map(|whole| whole.cluster.clone());
    if let [first, others @ ..] = &found[..]
        && let Some(other) = others.iter().find(|other| space(other) != space(first))
    {
        let (one, two) = (first.path.display(), other.path.display());
        return Err(Failure(format!("{one} and {two} are of two spaces; name one with --from")));
    }
    found.into_iter().max_by_key(|copy| copy.generation).ok_or_else(|| {
        let places: Vec<_> = sources.iter().map(|p| p.display().to_string()).collect();
        let places = places.join(", ");
        Failure(format!(
            "no whole copy of the metadata is in {places}; name another node's directory: --from"
        ))
    })
}

/// Restores the newest whole copy of `sources` into a node's directory.
pub fn restore(dir: &Path, sources: &[PathBuf], overwrite: Overwrite) -> Result<Restored, Failure> {
    let copy = newest(sources)?;
    let Some(whole) = copy.whole else { return Err(Failure("the copy is half made".into())) };
    let stored = FileStore::new(&copy.path.join(MAP)).load().map_err(Failure::new)?;
    let map = stored.ok_or_else(|| Failure(format!("{} has no map", copy.path.display())))?;
    fs::create_dir_all(dir).map_err(at(format!("cannot make {}", dir.display())))?;
    let _lock = ExclusiveLock::acquire(dir).map_err(Failure::new)?;
    if overwrite == Overwrite::Refuse && !dir.join(MARK).exists() {
        refuse_existing(dir)?;
    }
    let changed = changed(&copy.path)?;
    let settings = settings(&whole, &map);
    let fill = || -> std::io::Result<()> {
        fs::write(dir.join(MARK), "")?;
        fs::File::open(dir)?.sync_all()?;
        for name in [META_LOG, META_TABLES] {
            // A copy of its own: the file that was in the way may be a link, or larger.
            let _ = fs::remove_file(dir.join(name));
            fs::copy(copy.path.join(name), dir.join(name))?;
            fs::File::open(dir.join(name))?.sync_all()?;
        }
        fs::File::open(dir)?.sync_all()
    };
    fill().map_err(at(format!("cannot restore into {}", dir.display())))?;
    FileStore::new(&dir.join(MAP)).save(&map).map_err(Failure::new)?;
    save_json(&counter_path(dir), &Counter { format: FORMAT, generation: whole.generation })?;
    save_json(&dir.join(NODE), &settings)?;
    let check = settle(dir)?;
    let unmark = fs::remove_file(dir.join(MARK)).and_then(|()| fs::File::open(dir)?.sync_all());
    unmark.map_err(at(format!("cannot write {}", dir.display())))?;
    let targets = paths(&whole, &map).map(|path| (path.clone(), path.exists())).collect();
    Ok(Restored { from: copy.path, whole, changed, check, targets })
}

fn refuse_existing(dir: &Path) -> Result<(), Failure> {
    match [META_LOG, META_TABLES, MAP].iter().find(|name| dir.join(name).exists()) {
        None => Ok(()),
        Some(name) => Err(Failure(format!(
            "{} has a {name}: this would overwrite metadata; if that is what you want, add --force",
            dir.display()
        ))),
    }
}

/// When the copy's files changed last.
fn changed(copy: &Path) -> Result<u64, Failure> {
    let mut last = 0;
    for name in [META_LOG, META_TABLES] {
        let path = copy.join(name);
        let time = fs::metadata(&path).and_then(|m| m.modified());
        let time = time.map_err(at(format!("cannot read {}", path.display())))?;
        last = last.max(time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs());
    }
    Ok(last)
}

fn paths<'a>(whole: &Whole, map: &'a Map) -> impl Iterator<Item = PathBuf> + 'a {
    own(whole, map).map(|t| PathBuf::from(&t.path))
}

fn own<'a>(whole: &Whole, map: &'a Map) -> impl Iterator<Item = &'a Target> + 'a {
    let node = whole.node;
    map.targets.iter().filter(move |t| t.node.0 == node)
}

/// A target that is gone is not named: its path may be a mount point that is empty now.
fn settings(whole: &Whole, map: &Map) -> NodeSettings {
    NodeSettings {
        format: 1,
        id: Some(whole.node),
        cluster: Some(whole.cluster.clone()),
        address: Some(whole.address.clone()),
        targets: paths(whole, map).filter(|path| path.exists()).collect(),
        target_ids: own(whole, map)
            .filter(|t| Path::new(&t.path).exists())
            .map(|t| (PathBuf::from(&t.path), t.id.0))
            .collect(),
        ..NodeSettings::default()
    }
}

/// Opens what was restored, checks it, and leaves out the numbers that were given since.
fn settle(dir: &Path) -> Result<fsck::FsckReport, Failure> {
    let [log, tables] = store_disks(dir)?;
    let config = KvConfig { epoch_step: EPOCH_STEP, ..KvConfig::default() };
    let engine = Embedded::open(log, tables, config).map_err(Failure::new)?;
    restored::skip_numbers(&engine).map_err(Failure::new)?;
    let report = fsck::check(&engine).map_err(Failure::new)?;
    engine.checkpoint().map_err(Failure::new)?;
    Ok(report)
}
