//! `getdents64(2)` with `lseek(2)` (which is `readdir(3)`, `telldir(3)`, `seekdir(3)`), and
//! `open(2)` with `O_TMPFILE`.

use std::collections::BTreeSet;
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, OFlags, RawDir, SeekFrom, linkat, seek};
use rustix::io::Errno;

use crate::kit::*;

/// One entry: name, position after it, type.
type Entry = (String, u64, FileType);

/// What follows where the descriptor stands.
fn entries(fd: impl AsFd) -> Vec<Entry> {
    let mut buf = [MaybeUninit::uninit(); 2048];
    let mut dir = RawDir::new(fd, &mut buf);
    let mut found = Vec::new();
    while let Some(entry) = dir.next() {
        let e = entry.unwrap();
        let name = e.file_name().to_string_lossy().into_owned();
        found.push((name, e.next_entry_cookie(), e.file_type()));
    }
    found
}

/// A directory with files `f0` and on, open.
fn full(d: &Path, count: usize) -> OwnedFd {
    let s = dir(d, "s");
    (0..count).for_each(|i| drop(fs::File::create(s.join(format!("f{i}"))).unwrap()));
    open(&s, OFlags::DIRECTORY, 0).unwrap()
}

fn set_of(entries: &[Entry]) -> BTreeSet<String> {
    entries.iter().map(|e| e.0.clone()).collect()
}

pub const READDIR: &[Case] = &[
    case("an empty directory", ". ..", |d| {
        let names: Vec<_> = entries(full(d, 0)).into_iter().map(|e| e.0).collect();
        say(names.join(" "))
    }),
    case("each name once", "502 502", |d| {
        let all = entries(full(d, 500));
        say(format!("{} {}", all.len(), set_of(&all).len()))
    }),
    case("types", "true", |d| {
        let s = dir(d, "s");
        dir(&s, "dir");
        file(&s, "file", b"");
        fifo(&s, "fifo");
        symlink(&s, "x", "link");
        let all = entries(open(&s, OFlags::DIRECTORY, 0)?);
        let kind = |name: &str| all.iter().find(|e| e.0 == name).unwrap().2;
        say(kind("dir").is_dir()
            && kind(".").is_dir()
            && kind("..").is_dir()
            && kind("file").is_file()
            && kind("fifo").is_fifo()
            && kind("link").is_symlink())
    }),
    case("inode numbers are those of stat", "true", |d| {
        use std::os::unix::fs::{DirEntryExt, MetadataExt};
        full(d, 9);
        let all = fs::read_dir(d.join("s")).unwrap();
        say(all.flatten().all(|e| e.ino() == e.metadata().unwrap().ino()))
    }),
    case("positions: from each one the rest follows", "true", |d| {
        let fd = full(d, 60);
        let all = entries(&fd);
        let rest = |i: usize| {
            seek(&fd, SeekFrom::Start(all[i].1)).unwrap();
            entries(&fd) == all[i + 1..]
        };
        say((0..all.len()).step_by(7).all(rest))
    }),
    case("positions hold while other names come and go", "true", |d| {
        let fd = full(d, 60);
        let all = entries(&fd);
        let (before, after): (BTreeSet<_>, BTreeSet<_>) = (set_of(&all[..31]), set_of(&all[31..]));
        before.iter().chain(&after).filter(|n| n.ends_with('7')).for_each(|n| {
            fs::remove_file(d.join("s").join(n)).unwrap();
        });
        (0..20).for_each(|i| drop(file(&d.join("s"), &format!("new{i}"), b"")));
        seek(&fd, SeekFrom::Start(all[30].1))?;
        let rest = set_of(&entries(&fd));
        let stayed = |n: &&String| !n.ends_with('7');
        say(after.iter().filter(stayed).all(|n| rest.contains(n))
            && before.iter().filter(stayed).all(|n| !rest.contains(n)))
    }),
    case("from the start again: what is there now", ". .. new", |d| {
        let fd = full(d, 1);
        entries(&fd);
        fs::remove_file(d.join("s/f0")).unwrap();
        file(&d.join("s"), "new", b"");
        seek(&fd, SeekFrom::Start(0))?;
        say(set_of(&entries(&fd)).into_iter().collect::<Vec<_>>().join(" "))
    }),
    case("at the end nothing comes", "0", |d| {
        let fd = full(d, 3);
        entries(&fd);
        say(entries(&fd).len())
    }),
    case("removing while reading empties", "ok", |d| {
        full(d, 300);
        for entry in fs::read_dir(d.join("s")).unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
        }
        done(lift(fs::remove_dir(d.join("s"))))
    }),
    case(".. is the parent's number", "true", |d| {
        full(d, 0);
        say(ino(&d.join("s/..")) == ino(d))
    }),
    case("without the right to read", "EACCES", |d| {
        full(d, 1);
        chmod(&d.join("s"), 0o711);
        done(as_user(&ALICE, || lift(fs::read_dir(d.join("s")))))
    }),
    case("of a file", "ENOTDIR", |d| {
        let o = opened(&file(d, "f", b""), OFlags::RDONLY);
        let mut buf = [MaybeUninit::uninit(); 512];
        let outcome = RawDir::new(o, &mut buf).next().unwrap().map(|_| ());
        done(outcome)
    }),
];

fn unnamed(d: &Path, more: OFlags) -> Result<OwnedFd, Errno> {
    open(d, OFlags::TMPFILE | OFlags::RDWR | more, 0o640)
}

fn give_name(o: &OwnedFd, to: &Path) -> Result<(), Errno> {
    let path = format!("/proc/self/fd/{}", o.as_raw_fd());
    linkat(CWD, path.as_str(), CWD, to, AtFlags::SYMLINK_FOLLOW)
}

pub const TMPFILE: &[Case] = &[
    case("a file without a name", "0 640 ", |d| {
        let s = rustix::fs::fstat(unnamed(d, OFlags::empty())?)?;
        say(format!("{} {:o} {}", s.st_nlink, s.st_mode & 0o7777, list(d)))
    }),
    case("holds data", "text", |d| {
        let o = fs::File::from(unnamed(d, OFlags::empty())?);
        o.write_all_at(b"text", 0).unwrap();
        o.sync_all().unwrap();
        say(bytes_at(&o, 0, 9))
    }),
    case("holds a lot of data", "yy", |d| {
        let o = fs::File::from(unnamed(d, OFlags::empty())?);
        o.write_all_at(&vec![b'y'; 3 << 20], 0).unwrap();
        o.sync_all().unwrap();
        say(bytes_at(&o, (3 << 20) - 2, 9))
    }),
    case("a name can be given", "1 text", |d| {
        let o = unnamed(d, OFlags::empty())?;
        rustix::io::write(&o, b"text")?;
        give_name(&o, &d.join("f"))?;
        say(format!("{} {}", rustix::fs::fstat(&o)?.st_nlink, read(&d.join("f"))))
    }),
    case("what has a name goes on when it is closed", "text", |d| {
        let o = unnamed(d, OFlags::empty())?;
        rustix::io::write(&o, b"text")?;
        give_name(&o, &d.join("f"))?;
        drop(o);
        fs::write(d.join("g"), "").unwrap();
        say(read(&d.join("f")))
    }),
    case("a second name too", "2", |d| {
        let o = unnamed(d, OFlags::empty())?;
        give_name(&o, &d.join("f"))?;
        give_name(&o, &d.join("g"))?;
        say(rustix::fs::fstat(&o)?.st_nlink)
    }),
    case("over a name", "EEXIST", |d| {
        let o = unnamed(d, OFlags::empty())?;
        done(give_name(&o, &file(d, "f", b"")))
    }),
    case("none after it had one and lost it", "ENOENT", |d| {
        let o = unnamed(d, OFlags::empty())?;
        give_name(&o, &d.join("f"))?;
        fs::remove_file(d.join("f")).unwrap();
        done(give_name(&o, &d.join("g")))
    }),
    case("with O_EXCL no name can be given", "ENOENT", |d| {
        let o = unnamed(d, OFlags::EXCL)?;
        done(give_name(&o, &d.join("f")))
    }),
    case("for reading alone", "EINVAL", |d| done(open(d, OFlags::TMPFILE | OFlags::RDONLY, 0o644))),
    case("the mask counts", "640", |d| {
        let open = || open(d, OFlags::TMPFILE | OFlags::RDWR, 0o666);
        let o = with_umask(0o027, open)?;
        say(format!("{:o}", rustix::fs::fstat(o)?.st_mode & 0o7777))
    }),
    case("of a user in a set-group-id directory", "12001:12100", |d| {
        chown(d, 0, CREW);
        chmod(d, 0o2777);
        let o = as_user(&ALICE, || unnamed(d, OFlags::empty()))?;
        let s = rustix::fs::fstat(o)?;
        say(format!("{}:{}", s.st_uid, s.st_gid))
    }),
    case("without the right to write the directory", "EACCES", |d| {
        let s = dir(d, "s");
        done(as_user(&ALICE, || unnamed(&s, OFlags::empty())))
    }),
    case("in a file", "ENOTDIR", |d| done(unnamed(&file(d, "f", b""), OFlags::empty()))),
    case("in a missing directory", "ENOENT", |d| done(unnamed(&d.join("s"), OFlags::empty()))),
    case("marks nothing on the directory", "", |d| {
        say(moved(d, "mc", || drop(unnamed(d, OFlags::empty()))))
    }),
];
