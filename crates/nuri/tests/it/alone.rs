//! What one mount does alone, by its journal: links, special files, extended attributes, renamed
//! directories, sizes. Another mount sees all of it, and none of it is undone by what the servers
//! say meanwhile.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nuri_io::rng::Rng;
use rustix::fs::{CWD, FileType, Mode, OFlags, XattrFlags};
use rustix::io::Errno;

use crate::log::{names, sync_dir};
use crate::support::{SetAtEnd, Space};

/// Two mounts of a space, and one directory as each shows it.
fn two() -> (Space, PathBuf, PathBuf) {
    let mut space = Space::up(&[]);
    let (here, there) = (space.mnt().join("d"), space.mount("there").join("d"));
    fs::create_dir(&here).unwrap();
    (space, here, there)
}

fn make_fifo(path: &Path) {
    rustix::fs::mknodat(CWD, path, FileType::Fifo, Mode::from(0o640), 0).unwrap();
}

fn set(path: &Path, name: &str, value: &[u8], flags: XattrFlags) -> Result<(), Errno> {
    rustix::fs::setxattr(path, name, value, flags)
}

fn get(path: &Path, name: &str) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0; 65_536];
    let len = rustix::fs::getxattr(path, name, &mut value)?;
    value.truncate(len);
    Ok(value)
}

fn listed(path: &Path) -> Vec<String> {
    let mut list = vec![0; 65_536];
    let len = rustix::fs::listxattr(path, &mut list).unwrap();
    let mut names: Vec<_> = list[..len].split(|byte| *byte == 0).collect();
    names.retain(|name| !name.is_empty());
    names.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect()
}

#[test]
fn what_a_mount_did_alone_is_seen_from_another_and_survives_its_death() {
    let (space, here, there) = two();
    let own = here.join("own");
    fs::create_dir(&own).unwrap();
    let at = |name: &str| own.join(name);
    make_fifo(&at("pipe"));
    fs::write(at("a"), b"one").unwrap();
    fs::hard_link(at("a"), at("b")).unwrap();
    fs::create_dir(at("dir")).unwrap();
    fs::hard_link(at("a"), at("dir/c")).unwrap();
    fs::remove_file(at("a")).unwrap();
    set(&at("b"), "user.kept", b"1", XattrFlags::CREATE).unwrap();
    set(&at("b"), "user.gone", b"2", XattrFlags::CREATE).unwrap();
    assert_eq!(set(&at("b"), "user.gone", b"3", XattrFlags::CREATE), Err(Errno::EXIST));
    rustix::fs::removexattr(at("b"), "user.gone").unwrap();
    assert_eq!(rustix::fs::removexattr(at("b"), "user.gone"), Err(Errno::NODATA));
    assert_eq!(set(&at("b"), "user.gone", b"3", XattrFlags::REPLACE), Err(Errno::NODATA));
    fs::rename(at("dir"), at("moved")).unwrap();
    fs::create_dir(at("empty")).unwrap();
    fs::rename(at("moved"), at("empty")).unwrap();
    fs::create_dir(at("other")).unwrap();
    let full = fs::rename(at("other"), at("empty")).unwrap_err();
    assert_eq!(full.kind(), ErrorKind::DirectoryNotEmpty);
    fs::remove_dir(at("other")).unwrap();
    fs::write(at("cut"), vec![7; 20_000]).unwrap();
    File::options().write(true).open(at("cut")).unwrap().set_len(5).unwrap();
    fs::write(at("anew"), vec![7; 20_000]).unwrap();
    fs::write(at("anew"), vec![8; 9000]).unwrap();
    let look = |dir: &Path| {
        assert_eq!(names(dir), ["anew", "b", "cut", "empty", "pipe"]);
        assert_eq!(names(&dir.join("empty")), ["c"]);
        assert!(fs::metadata(dir.join("pipe")).unwrap().file_type().is_fifo());
        let (b, c) = (fs::metadata(dir.join("b")).unwrap(), dir.join("empty/c"));
        assert_eq!((b.nlink(), b.ino()), (2, fs::metadata(&c).unwrap().ino()));
        assert_eq!(fs::read(c).unwrap(), b"one");
        assert_eq!(fs::metadata(dir).unwrap().nlink(), 3);
        assert_eq!(listed(&dir.join("b")), ["user.kept"]);
        assert_eq!(get(&dir.join("b"), "user.kept").unwrap(), b"1");
        assert_eq!(get(&dir.join("b"), "user.gone"), Err(Errno::NODATA));
        assert_eq!(fs::read(dir.join("cut")).unwrap(), [7; 5]);
        assert_eq!(fs::read(dir.join("anew")).unwrap(), [8; 9000]);
    };
    look(&own);
    look(&there.join("own"));
    for name in ["cut", "anew", "b"] {
        File::open(at(name)).unwrap().sync_all().unwrap();
    }
    fs::hard_link(at("b"), at("late")).unwrap();
    fs::remove_file(at("late")).unwrap();
    sync_dir(&own).unwrap();
    space.kill("mount");
    look(&there.join("own"));
    space.down_clean();
}

/// What is open in the kernel alone (a directory, a fifo, a file by its path) is removed, and its
/// attributes are changed then: whatever that call hears, nothing else is lost.
/// Catches `broken!("gone_is_journalled")`.
#[test]
fn attributes_of_what_was_just_removed_cost_nobody_else() {
    let (space, here, there) = two();
    for round in 0..20 {
        let at = |name: &str| here.join(format!("{name}{round}"));
        fs::write(at("kept"), b"kept").unwrap();
        fs::create_dir(at("dir")).unwrap();
        make_fifo(&at("pipe"));
        fs::write(at("file"), b"gone").unwrap();
        let dir = File::open(at("dir")).unwrap();
        let pipe = OpenOptions::new().read(true).write(true).open(at("pipe")).unwrap();
        let path = rustix::fs::open(at("file"), OFlags::PATH, Mode::empty()).unwrap();
        fs::remove_dir(at("dir")).unwrap();
        fs::remove_file(at("pipe")).unwrap();
        fs::remove_file(at("file")).unwrap();
        let mode = fs::Permissions::from_mode(0o700);
        let by_number = format!("/proc/self/fd/{}", path.as_raw_fd());
        let _ = (dir.set_permissions(mode.clone()), pipe.set_permissions(mode));
        let _ = rustix::fs::fsetxattr(&dir, "user.a", b"1", XattrFlags::empty());
        let _ = set(Path::new(&by_number), "user.a", b"1", XattrFlags::empty());
        fs::write(at("late"), b"late").unwrap();
    }
    sync_dir(&here).unwrap();
    assert_eq!(names(&there).len(), 40);
    for round in 0..20 {
        for name in ["kept", "late"] {
            assert_eq!(fs::read(there.join(format!("{name}{round}"))).unwrap(), name.as_bytes());
        }
    }
    let logs = space.logs();
    assert!(!logs.contains("refused what was logged"), "{logs}");
    space.down_clean();
}

/// Catches `broken!("publication_hides_log")`: what a sync brings back of the attributes is from
/// before the names that came and went meanwhile.
#[test]
fn names_are_counted_right_beside_syncs_of_their_file() {
    let space = Space::up(&[]);
    let dir = space.mnt().join("d");
    fs::create_dir(&dir).unwrap();
    let at = |name: &str| dir.join(name);
    let file = File::create(at("f")).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let ending = SetAtEnd(&stop);
        scope.spawn(|| {
            for i in 0_u64.. {
                file.write_all_at(&i.to_le_bytes(), 0).unwrap();
                // The kernel keeps no names waiting for this one.
                set(&space.mnt(), "nuri.sync", b"", XattrFlags::empty()).unwrap();
                if stop.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let mut rng = Rng::new(7);
        // A sync takes about as long as the pauses: some end between a name and the look at it.
        let mut count = || {
            std::thread::sleep(Duration::from_micros(rng.below(400)));
            fs::metadata(at("f")).unwrap().nlink()
        };
        for round in 0..3000 {
            fs::hard_link(at("f"), at("g")).unwrap();
            let two = count();
            fs::remove_file(at("g")).unwrap();
            let one = count();
            if (two, one) != (2, 1) {
                panic!("round {round}: {two} names, then {one}");
            }
        }
        drop(ending);
    });
    drop(file);
    space.down_clean();
}

/// Files of 8 to 64 KiB get their place on the targets after they were written and closed. Another
/// mount that looks at once, a sync, another name and a removal all meet them on the way.
#[test]
fn short_files_are_whole_wherever_they_are_met_on_their_way() {
    let (space, here, there) = two();
    let text = |number: usize| vec![1 + (number % 255) as u8; 8000 + number * 6151 % 58_000];
    for number in 0..300 {
        let (name, other) = (number.to_string(), format!("{number}.renamed"));
        fs::write(here.join(&name), text(number)).unwrap();
        match number % 6 {
            0 => assert_eq!(fs::read(there.join(&name)).unwrap(), text(number)),
            1 => File::open(here.join(&name)).unwrap().sync_all().unwrap(),
            2 => fs::rename(here.join(&name), here.join(&other)).unwrap(),
            3 => fs::remove_file(here.join(&name)).unwrap(),
            4 => {
                let file = OpenOptions::new().write(true).open(here.join(&name)).unwrap();
                file.write_all_at(b"more", 100_000).unwrap();
                file.set_len(text(number).len() as u64).unwrap();
            }
            _ => fs::write(here.join(&name), text(number)).unwrap(),
        }
        if number % 50 == 49 {
            std::thread::sleep(Duration::from_millis(150));
        }
    }
    for (number, dir) in (0..300).flat_map(|number| [(number, &here), (number, &there)]) {
        let name = if number % 6 == 2 { format!("{number}.renamed") } else { number.to_string() };
        match fs::read(dir.join(&name)) {
            Err(error) => assert!(number % 6 == 3 && error.kind() == ErrorKind::NotFound, "{name}"),
            Ok(found) => assert!(found == text(number), "{name} in {}", dir.display()),
        }
    }
    space.down_clean();
}

/// Files that were small when they got their names, and grow beyond what lies with their inodes
/// before anybody is told of them.
#[test]
fn many_small_files_that_are_renamed_and_grow_at_once_are_kept() {
    let (space, here, there) = two();
    let text = |number: u8| vec![1 + number; 30_000];
    let grow = |number: u8| {
        let (new, name) = (here.join("new"), here.join(number.to_string()));
        let mut file = File::create(&new).unwrap();
        file.write_all(&text(number)[..8000]).unwrap();
        fs::rename(&new, &name).unwrap();
        file.write_all(&text(number)[8000..]).unwrap();
    };
    (0..80).for_each(grow);
    sync_dir(&here).unwrap();
    for number in 0..80 {
        assert!(fs::read(there.join(number.to_string())).unwrap() == text(number), "{number}");
    }
    let logs = space.logs();
    assert!(!logs.contains("refused what was logged"), "{logs}");
    space.down_clean();
}

/// Bytes that come between the last push of a sync and the word to the server go first: a size that
/// is told covers nothing that is only here, and the blocks are counted.
/// Catches `broken!("published_before_bytes")`.
#[test]
fn a_size_is_told_after_its_bytes() {
    let mut space = Space::up(&["--shape", "stripe"]);
    let here = space.mount_with("here", &[("NURI_PAUSE", "publish")]);
    let there = space.mnt();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let ending = SetAtEnd(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                set(&here, "nuri.sync", b"", XattrFlags::empty()).unwrap();
            }
        });
        for round in 0..150 {
            let name = round.to_string();
            let file = File::create_new(here.join(&name)).unwrap();
            file.set_len(150_000).unwrap();
            std::thread::sleep(Duration::from_millis(round % 7));
            file.write_all_at(&[7; 90_000], 50_000).unwrap();
            drop(file);
            let blocks = fs::metadata(there.join(&name)).unwrap().blocks();
            if blocks == 0 {
                panic!("round {round}: a file with bytes has no blocks");
            }
        }
        drop(ending);
    });
    space.down_clean();
}

/// One file as it must be, and what is done to it by chance.
struct Cut {
    path: PathBuf,
    file: File,
    wanted: Vec<u8>,
    rng: Rng,
}

const LONGEST: u64 = 40_000;

impl Cut {
    fn step(&mut self) {
        let len = self.rng.below(LONGEST) as usize;
        match self.rng.below(8) {
            0..=2 => {
                let at = self.rng.below(LONGEST) as usize;
                let mut data = vec![0; self.rng.below(12_000) as usize];
                self.rng.fill(&mut data);
                self.file.write_all_at(&data, at as u64).unwrap();
                let end = (at + data.len()).max(self.wanted.len());
                if !data.is_empty() {
                    self.wanted.resize(end, 0);
                    self.wanted[at..at + data.len()].copy_from_slice(&data);
                }
            }
            3 | 4 => self.set_len(len),
            5 => self.set_len(0),
            6 => self.set_len(len / 10),
            _ if self.rng.one_in(2) => self.file.sync_all().unwrap(),
            _ => {
                let open = || OpenOptions::new().read(true).write(true).open(&self.path);
                self.file = open().unwrap();
            }
        }
    }

    fn set_len(&mut self, len: usize) {
        self.file.set_len(len as u64).unwrap();
        self.wanted.resize(len, 0);
    }

    fn check(&self, path: &Path) {
        let found = fs::read(path).unwrap();
        let meta = fs::metadata(path).unwrap();
        assert_eq!((found.len(), meta.len()), (self.wanted.len(), self.wanted.len() as u64));
        let differs = found.iter().zip(&self.wanted).position(|(a, b)| a != b);
        assert_eq!(differs, None, "at this byte of {}", path.display());
    }
}

/// Catches `broken!("cut_what_was_sent")`.
#[test]
fn what_was_cut_off_never_comes_back() {
    for shape in ["stripe", "mirror:2"] {
        let mut space = Space::up(&["--nodes", "3", "--shape", shape]);
        let (here, there) = (space.mnt(), space.mount("there"));
        for seed in 0..6 {
            let path = here.join(format!("{seed}"));
            let file = File::create_new(&path).unwrap();
            let mut cut = Cut { path, file, wanted: Vec::new(), rng: Rng::new(seed) };
            for i in 0..120 {
                cut.step();
                if i % 10 == 9 {
                    cut.check(&cut.path);
                }
                if i % 40 == 39 {
                    cut.check(&there.join(format!("{seed}")));
                }
            }
        }
        space.down_clean();
    }
}
