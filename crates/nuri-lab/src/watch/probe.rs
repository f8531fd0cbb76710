//! A short measurement that disturbs little: some MiB and some names for each place, in a directory
//! of its own. The best of a few tries counts, because other work on the machine makes figures
//! smaller, never larger.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use nuri_proto::size::human;
use nuri_watch::history::{Look, Subject};
use nuri_watch::unit::Unit;
use rustix::fs::{Advice, fadvise, getxattr, statvfs};

use crate::stop::Stop;
use crate::work::WorkDir;
use crate::workload::striping::Striping;
use crate::{LabError, Result, at};

const MIB: usize = 1 << 20;
const TRIES: usize = 3;
const NAMES: usize = 200;
const SYNCS: usize = 20;
const SMALL: usize = 4096;
/// Files that are made to find all groups of a space; so many in a row without a new one are
/// enough.
const MOST_FILES: usize = 256;
const IN_VAIN: usize = 16;
/// Shows where a file of a Nuri space lies.
const LAYOUT: &str = "nuri.layout";

/// Where and how much.
pub struct Probe<'a> {
    pub dir: &'a Path,
    /// Bytes that are written and read at each place.
    pub bytes: u64,
    pub stop: &'a Stop,
}

impl Probe<'_> {
    /// Measures all there is.
    ///
    /// # Errors
    /// The directory cannot be used, has no room, or the run is to end.
    pub fn run(&self, now: u64) -> Result<Vec<Look>> {
        let name = self.dir.display();
        let room = statvfs(self.dir).map_err(at(&name))?;
        let (free, least) = (room.f_bavail * room.f_frsize, 4 * self.bytes);
        if free < least {
            let (least, free) = (human(least), human(free));
            return Err(LabError(format!("{name}: a look takes up to {least}; {free} are free")));
        }
        let work = WorkDir::make(&[self.dir.to_path_buf()])?;
        let within = &work.views()[0];
        let mut looks = Vec::new();
        let mut add = |part: &str, what: &str, unit, value| {
            let (dir, part, what) = (name.to_string(), part.to_owned(), what.to_owned());
            looks.push(Look::new(now, Subject { dir, part, what }, unit, value));
        };
        add("", "creating and removing files", Unit::OpsPerSecond, self.best(|| names(within))?);
        add("", "small synced writes", Unit::OpsPerSecond, self.best(|| syncs(within))?);
        for (part, path) in self.places(within)? {
            let write = self.best(|| write(&path, self.bytes))?;
            add(&part, "writing", Unit::MibPerSecond, write);
            add(&part, "reading", Unit::MibPerSecond, self.best(|| read(&path, self.bytes))?);
            std::fs::remove_file(&path).map_err(at(path.display()))?;
        }
        Ok(looks)
    }

    fn best(&self, mut measure: impl FnMut() -> std::io::Result<f64>) -> Result<f64> {
        let mut best = 0.0f64;
        for _ in 0..TRIES {
            if self.stop.is_asked() {
                return Err(LabError::new("interrupted"));
            }
            best = best.max(measure().map_err(at(self.dir.display()))?);
        }
        Ok(best)
    }

    /// A file for each group of targets of a space, or one file elsewhere.
    fn places(&self, within: &Path) -> Result<Vec<(String, PathBuf)>> {
        let mut found: Vec<(String, PathBuf)> = Vec::new();
        if layout(within).is_none() {
            return Ok(vec![(String::new(), within.join("file"))]);
        }
        Striping::of_width(1).set(within)?;
        let mut in_vain = 0;
        for i in 0..MOST_FILES {
            let path = within.join(format!("file{i}"));
            // Small files lie with the metadata.
            std::fs::write(&path, vec![1; 64 << 10]).map_err(at(path.display()))?;
            let group = layout(&path).and_then(|text| group(&text)).unwrap_or_default();
            if found.iter().any(|(known, _)| *known == group) {
                std::fs::remove_file(&path).map_err(at(path.display()))?;
                in_vain += 1;
            } else {
                found.push((group, path));
                in_vain = 0;
            }
            if in_vain == IN_VAIN || self.stop.is_asked() {
                break;
            }
        }
        found.sort();
        Ok(found)
    }
}

fn layout(path: &Path) -> Option<String> {
    let mut text = [0; 4096];
    let len = getxattr(path, LAYOUT, &mut text[..]).ok()?;
    Some(String::from_utf8_lossy(&text[..len]).into_owned())
}

/// The group in a file's layout.
fn group(layout: &str) -> Option<String> {
    let groups = layout.split(' ').find_map(|word| word.strip_prefix("groups="))?;
    Some(format!("group {groups}"))
}

fn per_second(amount: usize, start: Instant) -> f64 {
    amount as f64 / start.elapsed().as_secs_f64().max(1e-9)
}

fn names(within: &Path) -> std::io::Result<f64> {
    let path = |i| within.join(format!("name{i}"));
    let start = Instant::now();
    (0..NAMES).try_for_each(|i| File::create_new(path(i)).map(drop))?;
    (0..NAMES).try_for_each(|i| std::fs::remove_file(path(i)))?;
    Ok(per_second(2 * NAMES, start))
}

fn syncs(within: &Path) -> std::io::Result<f64> {
    let path = within.join("synced");
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(&path)?;
    let start = Instant::now();
    for i in 0..SYNCS {
        file.write_all_at(&[i as u8; SMALL], (i * SMALL) as u64)?;
        file.sync_data()?;
    }
    Ok(per_second(SYNCS, start))
}

fn write(path: &Path, bytes: u64) -> std::io::Result<f64> {
    let block: Vec<u8> = (0..MIB).map(|i| (i / 512) as u8).collect();
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
    let start = Instant::now();
    for at in (0..bytes).step_by(MIB) {
        let len = (bytes - at).min(MIB as u64) as usize;
        file.write_all_at(&block[..len], at)?;
    }
    file.sync_all()?;
    Ok(per_second(bytes as usize, start) / MIB as f64)
}

/// Not from this machine's cache.
fn read(path: &Path, bytes: u64) -> std::io::Result<f64> {
    let file = File::open(path)?;
    fadvise(&file, 0, None, Advice::DontNeed)?;
    let mut block = vec![0; MIB];
    let start = Instant::now();
    for at in (0..bytes).step_by(MIB) {
        let len = (bytes - at).min(MIB as u64) as usize;
        file.read_exact_at(&mut block[..len], at)?;
    }
    Ok(per_second(bytes as usize, start) / MIB as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let probe = Probe { dir: dir.path(), bytes: 3 << 19, stop: &Stop::default() };
        let looks = probe.run(7).unwrap();
        let whats: Vec<_> = looks.iter().map(|look| look.of.what.as_str()).collect();
        let wanted = ["creating and removing files", "small synced writes", "writing", "reading"];
        assert_eq!(whats, wanted);
        assert!(looks.iter().all(|look| look.value > 0.0 && look.time == 7));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        let huge = Probe { bytes: 1 << 60, ..probe };
        assert!(huge.run(7).unwrap_err().to_string().contains("are free"));
    }

    #[test]
    fn where_a_file_lies_is_in_its_layout() {
        let text = "object=7 shape=stripe chunk_size=1048576 width=1 groups=3";
        assert_eq!(group(text).as_deref(), Some("group 3"));
        assert_eq!(group("shape=stripe"), None);
    }
}
