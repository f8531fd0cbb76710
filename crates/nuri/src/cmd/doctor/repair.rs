//! `nuri doctor --repair`: puts a stopped space in order, and keeps what was there before.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use nuri_cluster::sound;
use nuri_cluster::standing;
use nuri_cluster::store::{FileStore, MapStore, StoreError};
use nuri_io::lock::ExclusiveLock;
use nuri_meta::fsck;
use nuri_node::directory::{MAP, META_LOG, META_TABLES, open_engine, private_dir};
use nuri_proto::id::{BootId, GroupId};
use nuri_proto::map::Map;
use nuri_proto::op::meta::Time;
use nuri_target::store::ChunkStore;

use super::super::target::open_store;
use super::Place;
use crate::{Failure, at};

const OLD_MAP: &str = "map.json.old";

/// What was done.
#[derive(Default)]
pub(super) struct Done {
    /// Each fault that was mended.
    pub(super) mended: Vec<String>,
    /// Where the state from before lies.
    pub(super) kept: Option<PathBuf>,
}

/// Mends what can be. The caller looks again afterwards.
pub(super) fn run(place: &Place) -> Result<Done, Failure> {
    let _lock = ExclusiveLock::acquire(&place.first).map_err(Failure::new)?;
    let promises = targets(place)?;
    let (map, mut mended) = map(&place.first, &promises)?;
    let is_damaged = {
        let engine = open_engine(&place.first)?;
        let report = fsck::check(&engine).map_err(Failure::new)?;
        engine.checkpoint().map_err(Failure::new)?;
        !report.problems.is_empty()
    };
    if !is_damaged && map.is_none() {
        return Ok(Done::default());
    }
    let kept = keep(&place.first)?;
    if let Some(map) = map {
        FileStore::new(&place.first.join(MAP)).save(&map).map_err(Failure::new)?;
    }
    for (path, _) in &promises {
        let store = open(path)?;
        let lowered = store.lower_promises().map_err(Failure::new)?;
        store.close().map_err(Failure::new)?;
        let path = path.display();
        mended.extend(lowered.iter().map(|(key, _)| {
            format!("{path}: chunk {key:?} took no writes before one of an epoch that is to come")
        }));
    }
    let engine = open_engine(&place.first)?;
    let problems = fsck::repair::repair(&engine, now()).map_err(Failure::new)?;
    engine.checkpoint().map_err(Failure::new)?;
    mended.extend(problems.iter().map(ToString::to_string));
    Ok(Done { mended, kept: Some(kept) })
}

fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time { sec: since.as_secs() as i64, nsec: since.subsec_nanos() }
}

fn open(path: &Path) -> Result<ChunkStore<std::sync::Arc<dyn nuri_io::disk::Disk>>, Failure> {
    let disk = open_store(path)?;
    let at_path = at(format!("cannot open the target {}", path.display()));
    ChunkStore::open(disk, BootId::default(), Default::default())
        .map_err(|e| at_path(std::io::Error::other(e)))
}

/// Targets with promises that nobody of the space asked for, and the groups they are about.
fn targets(place: &Place) -> Result<Vec<(PathBuf, Vec<GroupId>)>, Failure> {
    let mut found = Vec::new();
    for path in &place.targets {
        let _lock = ExclusiveLock::acquire(path).map_err(Failure::new)?;
        let groups = nuri_target::store::check::promised_beyond(&open_store(path)?);
        if !groups.is_empty() {
            found.push((path.clone(), groups));
        }
    }
    Ok(found)
}

/// The map as it should be, where it is to be replaced, and what is wrong with it.
fn map(
    dir: &Path,
    promises: &[(PathBuf, Vec<GroupId>)],
) -> Result<(Option<Map>, Vec<String>), Failure> {
    let (mut map, mut said) = usable(dir)?;
    said.extend(sound::repair(&mut map).iter().map(|problem| format!("map: {problem}")));
    // Who asked for a write before the promise was taken back does not get it now.
    let groups = promises.iter().flat_map(|(_, groups)| groups);
    for id in groups {
        if let Some(epoch) = map.group(*id).map(|group| group.epoch) {
            standing::renew(&mut map, *id, epoch).map_err(Failure::new)?;
        }
    }
    let is_changed = !said.is_empty() || !promises.is_empty();
    Ok((is_changed.then_some(map), said))
}

/// The stored map, or the one before where nothing can be made of it.
fn usable(dir: &Path) -> Result<(Map, Vec<String>), Failure> {
    let why = match FileStore::new(&dir.join(MAP)).load() {
        Ok(Some(map)) => match sound::check(&map).into_iter().find(sound::MapProblem::is_lasting) {
            None => return Ok((map, Vec::new())),
            Some(problem) => problem.to_string(),
        },
        Ok(None) => "it is not there".into(),
        Err(StoreError::Damaged(_)) => "it is damaged".into(),
        Err(e) => return Err(Failure::new(e)),
    };
    let old = FileStore::new(&dir.join(OLD_MAP)).load().ok().flatten();
    let old = old.filter(|map| !sound::check(map).iter().any(sound::MapProblem::is_lasting));
    let map = old.ok_or_else(|| {
        let dir = dir.display();
        Failure(format!(
            "the map in {dir} cannot be mended ({why}), and {OLD_MAP} is no better: put a copy of \
             the metadata back: nuri doctor --restore-metadata --force"
        ))
    })?;
    Ok((map, vec![format!("map: {why}; the one before, {OLD_MAP}, is used")]))
}

/// Copies what will be changed, as it is.
fn keep(dir: &Path) -> Result<PathBuf, Failure> {
    let name = |number: u32| dir.join(format!("before-repair-{number}"));
    let Some(kept) = (1..).map(name).find(|path| !path.exists()) else {
        return Err(Failure(format!("{} is full of repairs", dir.display())));
    };
    private_dir(&kept)?;
    let copy = || -> std::io::Result<()> {
        for file in [META_LOG, META_TABLES, MAP, OLD_MAP] {
            if dir.join(file).exists() {
                fs::copy(dir.join(file), kept.join(file))?;
                fs::File::open(kept.join(file))?.sync_all()?;
            }
        }
        fs::File::open(&kept)?.sync_all()?;
        fs::File::open(dir)?.sync_all()
    };
    copy().map_err(|e| {
        let _ = fs::remove_dir_all(&kept);
        Failure(format!("nothing was changed: the state from before cannot be kept: {e}"))
    })?;
    Ok(kept)
}
