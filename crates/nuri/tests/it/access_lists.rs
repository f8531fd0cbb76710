//! Access control lists: modes follow them and new names inherit them, by the journal or by the
//! server, as on a local disk.

use std::fs::{self, Permissions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use nuri_io::rng::Rng;
use rustix::fs::{CWD, FileType, Mode, XattrFlags};
use rustix::io::Errno;

use crate::support::Space;

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";
const STEPS: usize = 600;
/// Names in each directory, and directories.
const NAMES: u64 = 12;
const DIRS: u64 = 4;

/// Owner, group and others; or the user 12 and a mask beside them.
fn list(rng: &mut Rng) -> Vec<u8> {
    let tags: &[u8] = if rng.one_in(3) { &[1, 4, 32] } else { &[1, 2, 4, 16, 32] };
    let entry = |tag: u8, rights: u8| {
        let id = if tag == 2 { [12, 0, 0, 0] } else { [255; 4] };
        [&[tag, 0, rights, 0][..], &id].concat()
    };
    let entries = tags.iter().map(|tag| entry(*tag, rng.below(8) as u8));
    [vec![2, 0, 0, 0], entries.collect::<Vec<_>>().concat()].concat()
}

/// What is done at one place, the same on the disk and in the space.
#[derive(Debug)]
enum Act {
    Directory(u32),
    File(u32),
    Fifo(u32),
    Link,
    Mode(u32),
    Set(&'static str, Vec<u8>),
    Remove(&'static str),
}

impl Act {
    fn any(rng: &mut Rng) -> Act {
        let mode = rng.below(0o1000) as u32;
        match rng.below(12) {
            0 => Act::Directory(mode),
            1 | 2 => Act::File(mode),
            3 => Act::Fifo(mode),
            4 => Act::Link,
            5 | 6 => Act::Mode(mode | if rng.one_in(4) { 0o2000 } else { 0 }),
            7 | 8 => Act::Set(ACCESS, list(rng)),
            9 | 10 => Act::Set(DEFAULT, list(rng)),
            _ => Act::Remove(if rng.one_in(2) { ACCESS } else { DEFAULT }),
        }
    }

    /// Says how it ended.
    fn at(&self, path: &Path) -> Result<(), Option<i32>> {
        let of_io = |outcome: std::io::Result<()>| outcome.map_err(|e| e.raw_os_error());
        let of_errno = |outcome: Result<(), Errno>| outcome.map_err(|e| Some(e.raw_os_error()));
        match self {
            Act::Directory(mode) => of_io(fs::DirBuilder::new().mode(*mode).create(path)),
            Act::File(mode) => {
                let mut options = fs::OpenOptions::new();
                of_io(options.write(true).create_new(true).mode(*mode).open(path).map(drop))
            }
            Act::Fifo(mode) => {
                of_errno(rustix::fs::mknodat(CWD, path, FileType::Fifo, Mode::from(*mode), 0))
            }
            Act::Link => of_io(symlink("nowhere", path)),
            Act::Mode(mode) => of_io(fs::set_permissions(path, Permissions::from_mode(*mode))),
            Act::Set(name, list) => {
                of_errno(rustix::fs::setxattr(path, *name, list, XattrFlags::empty()))
            }
            Act::Remove(name) => of_errno(rustix::fs::removexattr(path, *name)),
        }
    }
}

/// A list, or why there is none.
type List = Result<Vec<u8>, Errno>;

/// Mode and lists.
fn look(path: &Path) -> Option<(u32, [List; 2])> {
    let mode = fs::symlink_metadata(path).ok()?.mode();
    let lists = [ACCESS, DEFAULT].map(|name| {
        let mut list = vec![0; 4096];
        let len = rustix::fs::lgetxattr(path, name, &mut list)?;
        list.truncate(len);
        Ok(list)
    });
    Some((mode, lists))
}

fn places() -> Vec<PathBuf> {
    let dirs = (0..DIRS).map(|dir| PathBuf::from(format!("dir{dir}")));
    let names = dirs.clone().flat_map(|dir| (0..NAMES).map(move |n| dir.join(format!("n{n}"))));
    dirs.chain(names).collect()
}

fn compare(disk: &Path, other: &Path) {
    for place in places() {
        assert_eq!(look(&disk.join(&place)), look(&other.join(&place)), "{place:?}");
    }
}

/// Plays the same on both, and compares what each act changes.
fn play(rng: &mut Rng, disk: &Path, space: &Path) {
    let places = places();
    for step in 0..STEPS {
        let place = &places[rng.below(places.len() as u64) as usize];
        let (here, there) = (disk.join(place), space.join(place));
        if rng.one_in(8) && here.is_file() {
            fs::remove_file(&here).unwrap();
            fs::remove_file(&there).unwrap();
        }
        let act = Act::any(rng);
        assert_eq!(act.at(&here), act.at(&there), "step {step}: {act:?} at {place:?}");
        assert_eq!(look(&here), look(&there), "step {step}: after {act:?} at {place:?}");
    }
}

#[test]
fn modes_and_lists_follow_each_other_as_on_a_disk() {
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    let mut rng = Rng::new(seed);
    let mut space = Space::up(&[]);
    let disk = tempfile::tempdir().unwrap();
    let (mine, other) = (space.mnt().join("d"), space.mount("other").join("d"));
    fs::create_dir(&mine).unwrap();
    for dir in (0..DIRS).map(|dir| format!("dir{dir}")) {
        fs::create_dir(disk.path().join(&dir)).unwrap();
        fs::create_dir(mine.join(&dir)).unwrap();
    }
    play(&mut rng, disk.path(), &mine);
    compare(disk.path(), &other);
    // Directories that are taken over with the lists that they hand down.
    play(&mut rng, disk.path(), &other);
    compare(disk.path(), &mine);
    compare(disk.path(), &other);
    let logs = space.logs();
    assert!(!logs.contains("refused what was logged"), "{logs}");
    space.down_clean();
    space.again();
    compare(disk.path(), &mine);
    space.down_clean();
}
