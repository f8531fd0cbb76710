//! One operation at a time, each on another mount: all mounts together must be one file system.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use nuri_io::rng::Rng;
use rustix::fs::{
    CWD, FallocateFlags, FileType, Mode, OFlags, RenameFlags, XattrFlags, fallocate, lgetxattr,
    mknodat, removexattr, setxattr,
};

use super::{Ground, said};

const STEPS: u64 = 250;
const LONGEST: u64 = 300_000;

/// Changes of one file through descriptors that stay open, against bytes in memory.
pub(super) fn data(ground: &Ground) -> Result<(), String> {
    File::create(ground.path(0, "f")).map_err(said("the file"))?;
    let open =
        |dir: &std::path::PathBuf| OpenOptions::new().read(true).write(true).open(dir.join("f"));
    let files = ground.dirs.iter().map(open).collect::<Result<Vec<_>, _>>();
    let files = files.map_err(said("open"))?;
    let (mut rng, mut model) = (ground.rng(0), Vec::new());
    let mut past = Vec::new();
    for number in 1..=STEPS {
        let mount = rng.below(files.len() as u64) as usize;
        let words = change(&mut rng, &files[mount], &mut model, number)
            .map_err(said(format!("step {number} on {mount}")))?;
        past.push(format!("{number}: mount {mount} {words}"));
        let reader = rng.below(files.len() as u64) as usize;
        look(&mut rng, &files[reader], &model).map_err(|words| {
            let last = past[past.len().saturating_sub(4)..].join(", ");
            format!("mount {reader} {words}; before: {last}")
        })?;
    }
    Ok(())
}

fn change(rng: &mut Rng, file: &File, model: &mut Vec<u8>, number: u64) -> std::io::Result<String> {
    let most = [10, 5000, 70_000][rng.below(3) as usize];
    let (at, len) = (rng.below(LONGEST), 1 + rng.below(most));
    let end = (at + len) as usize;
    match rng.below(8) {
        0 => {
            file.set_len(at)?;
            model.resize(at as usize, 0);
            Ok(format!("cuts to {at}"))
        }
        1 => {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(file, flags, at, len)?;
            let end = end.min(model.len());
            model[(at as usize).min(end)..end].fill(0);
            Ok(format!("punches {at}+{len}"))
        }
        2 => file.sync_all().map(|()| "syncs".to_string()),
        _ => {
            let byte = 1 + (number % 255) as u8;
            file.write_all_at(&vec![byte; len as usize], at)?;
            model.resize(model.len().max(end), 0);
            model[at as usize..end].fill(byte);
            Ok(format!("writes {byte} at {at}+{len}"))
        }
    }
}

fn look(rng: &mut Rng, file: &File, model: &[u8]) -> Result<(), String> {
    let size = file.metadata().map_err(said("stat"))?.len();
    if size != model.len() as u64 {
        return Err(format!("sees a size of {size}, not {}", model.len()));
    }
    let at = rng.below(size + 1);
    let mut found = vec![0; rng.below(80_000).min(size - at) as usize];
    file.read_exact_at(&mut found, at).map_err(said("read"))?;
    let wanted = &model[at as usize..at as usize + found.len()];
    match found.iter().zip(wanted).position(|(f, w)| f != w) {
        Some(i) => Err(format!("reads {} at {}, not {}", found[i], at + i as u64, wanted[i])),
        None => Ok(()),
    }
}

/// Changes of names and attributes, against a directory of the local file system where the same is
/// done. A mount goes on for a while, so that it takes the directories to itself.
pub(super) fn names(ground: &Ground) -> Result<(), String> {
    let local = tempfile::tempdir().map_err(said("a directory for comparison"))?;
    let (mut rng, mut past) = (ground.rng(0), Vec::new());
    let (mut mount, mut left) = (0, 0);
    for number in 0..STEPS {
        if left == 0 {
            mount = rng.below(ground.dirs.len() as u64) as usize;
            left = 1 + if rng.one_in(2) { rng.below(20) } else { 0 };
        }
        left -= 1;
        let step = Step::draw(&mut rng);
        let [wanted, found] = [local.path(), &ground.dirs[mount]].map(|dir| step.take(dir));
        past.push(format!("{number}: mount {mount} {step:?}"));
        let before = || past[past.len().saturating_sub(4)..].join(", ");
        if wanted != found {
            return Err(format!("{found:?}, not {wanted:?}; before: {}", before()));
        }
        let is_own = left > 0 && !rng.one_in(4);
        let reader = if is_own { mount } else { rng.below(ground.dirs.len() as u64) as usize };
        compare(local.path(), &ground.dirs[reader])
            .map_err(|words| format!("mount {reader} {words}; before: {}", before()))?;
    }
    Ok(())
}

fn compare(local: &Path, dir: &Path) -> Result<(), String> {
    let (wanted, found) = (tree(local)?, tree(dir)?);
    if let Some(other) = wanted.iter().zip(&found).find(|(w, f)| w != f) {
        return Err(format!("has {other:?}"));
    }
    match wanted.len() == found.len() {
        true => Ok(()),
        false => Err(format!("has {} names, not {}", found.len(), wanted.len())),
    }
}

/// One change of names.
#[derive(Debug)]
struct Step {
    what: u64,
    one: String,
    other: String,
}

impl Step {
    fn draw(rng: &mut Rng) -> Step {
        // Some names lie in directories that may be there.
        let mut name = || match rng.below(3) {
            0 => format!("d{}/n{}", rng.below(3), rng.below(3)),
            1 => format!("d{}", rng.below(3)),
            _ => format!("n{}", rng.below(4)),
        };
        let (one, other) = (name(), name());
        Step { what: rng.below(15), one, other }
    }

    /// Its error number, if any.
    fn take(&self, dir: &Path) -> Option<i32> {
        let (one, other) = (dir.join(&self.one), dir.join(&self.other));
        let outcome = match self.what {
            0 | 1 => OpenOptions::new().write(true).create_new(true).open(one).map(drop),
            2 | 3 => std::fs::create_dir(one),
            4 => std::fs::remove_file(one),
            5 => std::fs::remove_dir(one),
            6 => std::fs::hard_link(one, other),
            7 => std::os::unix::fs::symlink(&self.other, one),
            8 | 9 => std::fs::rename(one, other),
            10 => fifo(&one),
            11 => setxattr(&one, "user.n", self.other.as_bytes(), XattrFlags::empty())
                .map_err(std::io::Error::from),
            12 => removexattr(&one, "user.n").map_err(std::io::Error::from),
            13 => cut(&one),
            _ => {
                let (from, to) = (rustix::fs::CWD, rustix::fs::CWD);
                let done = rustix::fs::renameat_with(from, &one, to, &other, RenameFlags::EXCHANGE);
                done.map_err(std::io::Error::from)
            }
        };
        outcome.err().map(|e| e.raw_os_error().unwrap_or(-1))
    }
}

/// A name as a program sees it.
#[derive(PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Seen {
    name: String,
    kind: u32,
    links: u64,
    attribute: Option<Vec<u8>>,
}

/// Without waiting for a reader of a fifo.
fn cut(path: &Path) -> std::io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::TRUNC | OFlags::NONBLOCK;
    rustix::fs::open(path, flags, Mode::empty()).map(drop).map_err(std::io::Error::from)
}

fn fifo(path: &Path) -> std::io::Result<()> {
    let mode = Mode::from(0o600);
    mknodat(CWD, path, FileType::Fifo, mode, 0).map_err(std::io::Error::from)
}

fn attribute(path: &Path) -> Option<Vec<u8>> {
    let mut value = vec![0; 64];
    let len = lgetxattr(path, "user.n", &mut value).ok()?;
    value.truncate(len);
    Some(value)
}

/// All names, sorted.
fn tree(dir: &Path) -> Result<Vec<Seen>, String> {
    let (mut all, mut left) = (Vec::new(), vec![dir.to_owned()]);
    while let Some(next) = left.pop() {
        for entry in std::fs::read_dir(&next).map_err(said("a directory"))? {
            let path = entry.map_err(said("an entry"))?.path();
            let meta = path.symlink_metadata().map_err(said(path.display()))?;
            let name = path.strip_prefix(dir).unwrap_or(&path).display().to_string();
            let (kind, links, attribute) =
                (meta.mode() & 0o170_000, meta.nlink(), attribute(&path));
            all.push(Seen { name, kind, links, attribute });
            if meta.is_dir() {
                left.push(path);
            }
        }
    }
    all.sort();
    Ok(all)
}
