//! `rename(2)`, `renameat2(2)`.

use std::fs;
use std::path::Path;

use rustix::fs::{CWD, OFlags, RenameFlags, rename, renameat_with};
use rustix::io::Errno;

use crate::kit::*;

fn with(d: &Path, from: &str, to: &str, flags: RenameFlags) -> Result<(), Errno> {
    renameat_with(CWD, d.join(from), CWD, d.join(to), flags)
}

fn plain(d: &Path, from: &str, to: &str) -> Result<(), Errno> {
    rename(d.join(from), d.join(to))
}

/// Two directories with one in the first: "a/s" and "b".
fn two(d: &Path) {
    dir(d, "a");
    dir(d, "b");
    dir(&d.join("a"), "s");
}

pub const CASES: &[Case] = &[
    case("a new name", "g", |d| {
        file(d, "f", b"");
        plain(d, "f", "g")?;
        say(list(d))
    }),
    case("over a file", "f", |d| {
        file(d, "f", b"f");
        file(d, "g", b"g");
        plain(d, "f", "g")?;
        say(read(&d.join("g")))
    }),
    case("the file replaced keeps its other names", "1 g", |d| {
        file(d, "f", b"f");
        file(d, "g", b"g");
        fs::hard_link(d.join("g"), d.join("h")).unwrap();
        plain(d, "f", "g")?;
        say(format!("{} {}", nlink(&d.join("h")), read(&d.join("h"))))
    }),
    case("the file replaced lives while it is open", "g", |d| {
        file(d, "f", b"f");
        let g = opened(&file(d, "g", b"g"), OFlags::RDONLY);
        plain(d, "f", "g")?;
        say(bytes_at(&g, 0, 9))
    }),
    case("a missing name", "ENOENT", |d| done(plain(d, "f", "g"))),
    case("into a missing directory", "ENOENT", |d| {
        file(d, "f", b"");
        done(plain(d, "f", "x/g"))
    }),
    case("into a file", "ENOTDIR", |d| {
        file(d, "f", b"");
        file(d, "g", b"");
        done(plain(d, "f", "g/h"))
    }),
    case("a file over a directory", "EISDIR", |d| {
        file(d, "f", b"");
        dir(d, "s");
        done(plain(d, "f", "s"))
    }),
    case("a directory over a file", "ENOTDIR", |d| {
        file(d, "f", b"");
        dir(d, "s");
        done(plain(d, "s", "f"))
    }),
    case("a directory over an empty one", "true", |d| {
        let was = ino(&dir(d, "s"));
        dir(d, "t");
        plain(d, "s", "t")?;
        say(ino(&d.join("t")) == was && list(d) == "t")
    }),
    case("a directory over one with entries", "ENOTEMPTY", |d| {
        dir(d, "s");
        file(&dir(d, "t"), "f", b"");
        done(plain(d, "s", "t"))
    }),
    case("a directory into itself", "EINVAL", |d| {
        dir(d, "s");
        done(plain(d, "s", "s/t"))
    }),
    case("a directory below itself", "EINVAL", |d| {
        two(d);
        done(plain(d, "a", "a/s/t"))
    }),
    case("over a directory above", "ENOTEMPTY", |d| {
        two(d);
        done(plain(d, "a/s", "a"))
    }),
    case("two names of one file: nothing happens", "f g", |d| {
        file(d, "f", b"");
        fs::hard_link(d.join("f"), d.join("g")).unwrap();
        plain(d, "f", "g")?;
        say(list(d))
    }),
    case("to itself", "ok", |d| {
        file(d, "f", b"");
        done(plain(d, "f", "f"))
    }),
    case("from .", "EBUSY", |d| {
        dir(d, "s");
        done(plain(d, "s/.", "t"))
    }),
    case("to ..", "EBUSY", |d| {
        dir(d, "s");
        done(plain(d, "s", "s/.."))
    }),
    case("a file to a name with a slash", "ENOTDIR", |d| {
        file(d, "f", b"");
        done(plain(d, "f", "g/"))
    }),
    case("a directory to a name with a slash", "ok", |d| {
        dir(d, "s");
        done(plain(d, "s", "t/"))
    }),
    case("a link itself, not what it names", "x", |d| {
        symlink(d, "x", "l");
        plain(d, "l", "m")?;
        say(fs::read_link(d.join("m")).unwrap().display())
    }),
    case("over a link, not over what it names", "g f", |d| {
        file(d, "f", b"f");
        file(d, "g", b"g");
        symlink(d, "g", "l");
        plain(d, "f", "l")?;
        say(format!("{} {}", read(&d.join("g")), read(&d.join("l"))))
    }),
    case("to 255 bytes", "ok", |d| {
        file(d, "f", b"");
        done(plain(d, "f", &long(255)))
    }),
    case("to 256 bytes", "ENAMETOOLONG", |d| {
        file(d, "f", b"");
        done(plain(d, "f", &long(256)))
    }),
    case("to another file system", "EXDEV", |d| {
        let f = file(d, "f", b"");
        done(rename(f, elsewhere().join("nuri-posix-f")))
    }),
    case("a directory moves: links of its parents", "2 3", |d| {
        two(d);
        plain(d, "a/s", "b/s")?;
        say(format!("{} {}", nlink(&d.join("a")), nlink(&d.join("b"))))
    }),
    case("a directory moves: .. is its new parent", "true", |d| {
        two(d);
        plain(d, "a/s", "b/s")?;
        say(ino(&d.join("b/s/..")) == ino(&d.join("b")))
    }),
    case("a directory moves while one stands in it", "true", |d| {
        two(d);
        let s = open(&d.join("a/s"), OFlags::DIRECTORY, 0)?;
        plain(d, "a/s", "b/s")?;
        let up = rustix::fs::openat(&s, "..", OFlags::DIRECTORY, bits(0))?;
        say(rustix::fs::fstat(up)?.st_ino == ino(&d.join("b")))
    }),
    case("change is marked on what moves", "c", |d| {
        let f = file(d, "f", b"");
        fs::hard_link(&f, d.join("other")).unwrap();
        say(moved(&d.join("other"), "mc", || plain(d, "f", "g").unwrap()))
    }),
    case("both directories are marked", "mc mc", |d| {
        two(d);
        file(&d.join("a"), "f", b"");
        let both = moved(&d.join("b"), "mc", || {
            let a = moved(&d.join("a"), "mc", || plain(d, "a/f", "b/f").unwrap());
            assert_eq!(a, "mc");
        });
        say(format!("{both} mc"))
    }),
    case("no right to take the name away", "EACCES", |d| {
        two(d);
        file(&d.join("a"), "f", b"");
        chmod(&d.join("b"), 0o777);
        done(as_user(&ALICE, || plain(d, "a/f", "b/f")))
    }),
    case("no right to add the name", "EACCES", |d| {
        two(d);
        file(&d.join("a"), "f", b"");
        chmod(&d.join("a"), 0o777);
        done(as_user(&ALICE, || plain(d, "a/f", "b/f")))
    }),
    case("a directory that one may not write keeps its parent", "EACCES", |d| {
        two(d);
        chmod(&d.join("a"), 0o777);
        chmod(&d.join("b"), 0o777);
        done(as_user(&ALICE, || plain(d, "a/s", "b/s")))
    }),
    case("it may get a new name there", "ok", |d| {
        two(d);
        chmod(&d.join("a"), 0o777);
        done(as_user(&ALICE, || plain(d, "a/s", "a/t")))
    }),
    case("sticky: another's file", "EPERM", |d| {
        chmod(d, 0o1777);
        file(d, "f", b"");
        done(as_user(&ALICE, || plain(d, "f", "g")))
    }),
    case("sticky: over another's file", "EPERM", |d| {
        chmod(d, 0o1777);
        chown(&file(d, "f", b""), ALICE.uid, 0);
        file(d, "g", b"");
        done(as_user(&ALICE, || plain(d, "f", "g")))
    }),
    case("sticky: one's own file", "ok", |d| {
        chmod(d, 0o1777);
        chown(&file(d, "f", b""), ALICE.uid, 0);
        done(as_user(&ALICE, || plain(d, "f", "g")))
    }),
    case("sticky: in one's own directory", "ok", |d| {
        chmod(d, 0o1777);
        chown(d, ALICE.uid, 0);
        file(d, "f", b"");
        done(as_user(&ALICE, || plain(d, "f", "g")))
    }),
    case("NOREPLACE where nothing is", "g", |d| {
        file(d, "f", b"");
        with(d, "f", "g", RenameFlags::NOREPLACE)?;
        say(list(d))
    }),
    case("NOREPLACE over a file", "EEXIST", |d| {
        file(d, "f", b"");
        file(d, "g", b"");
        done(with(d, "f", "g", RenameFlags::NOREPLACE))
    }),
    case("NOREPLACE over another name of the file", "EEXIST", |d| {
        file(d, "f", b"");
        fs::hard_link(d.join("f"), d.join("g")).unwrap();
        done(with(d, "f", "g", RenameFlags::NOREPLACE))
    }),
    case("NOREPLACE over a dangling link", "EEXIST", |d| {
        file(d, "f", b"");
        symlink(d, "x", "g");
        done(with(d, "f", "g", RenameFlags::NOREPLACE))
    }),
    case("EXCHANGE of files", "g f", |d| {
        file(d, "f", b"f");
        file(d, "g", b"g");
        with(d, "f", "g", RenameFlags::EXCHANGE)?;
        say(format!("{} {}", read(&d.join("f")), read(&d.join("g"))))
    }),
    case("EXCHANGE of a file and a directory", "a: f, b: ", |d| {
        two(d);
        fs::remove_dir(d.join("a/s")).unwrap();
        dir(&d.join("a"), "x");
        file(&d.join("b"), "f", b"");
        with(d, "a/x", "b/f", RenameFlags::EXCHANGE)?;
        assert!(d.join("a/x").is_file() && d.join("b/f").is_dir());
        let links = (nlink(&d.join("a")), nlink(&d.join("b")));
        assert_eq!(links, (2, 3));
        say("a: f, b: ")
    }),
    case("EXCHANGE: .. of both directories", "true true", |d| {
        two(d);
        dir(&d.join("b"), "t");
        with(d, "a/s", "b/t", RenameFlags::EXCHANGE)?;
        let up = |s: &str, t: &str| ino(&d.join(s)) == ino(&d.join(t));
        say(format!("{} {}", up("a/s/..", "a"), up("b/t/..", "b")))
    }),
    case("EXCHANGE with a full directory", "ok", |d| {
        dir(d, "s");
        file(&dir(d, "t"), "f", b"");
        done(with(d, "s", "t", RenameFlags::EXCHANGE))
    }),
    case("EXCHANGE with a missing name", "ENOENT", |d| {
        file(d, "f", b"");
        done(with(d, "f", "g", RenameFlags::EXCHANGE))
    }),
    case("EXCHANGE with a directory above", "EINVAL", |d| {
        two(d);
        done(with(d, "a", "a/s", RenameFlags::EXCHANGE))
    }),
    case("EXCHANGE the other way round", "EINVAL", |d| {
        two(d);
        done(with(d, "a/s", "a", RenameFlags::EXCHANGE))
    }),
    case("EXCHANGE marks change on both", "c c", |d| {
        file(d, "f", b"");
        file(d, "g", b"");
        fs::hard_link(d.join("f"), d.join("f2")).unwrap();
        fs::hard_link(d.join("g"), d.join("g2")).unwrap();
        let mut g = String::new();
        let f = moved(&d.join("f2"), "mc", || {
            g = moved(&d.join("g2"), "mc", || with(d, "f", "g", RenameFlags::EXCHANGE).unwrap());
        });
        say(format!("{f} {g}"))
    }),
    case("EXCHANGE of two names of one file", "ok", |d| {
        file(d, "f", b"");
        fs::hard_link(d.join("f"), d.join("g")).unwrap();
        done(with(d, "f", "g", RenameFlags::EXCHANGE))
    }),
    case("EXCHANGE in a sticky directory", "EPERM", |d| {
        chmod(d, 0o1777);
        chown(&file(d, "f", b""), ALICE.uid, 0);
        file(d, "g", b"");
        done(as_user(&ALICE, || with(d, "f", "g", RenameFlags::EXCHANGE)))
    }),
    case("NOREPLACE with EXCHANGE", "EINVAL", |d| {
        file(d, "f", b"");
        done(with(d, "f", "g", RenameFlags::NOREPLACE | RenameFlags::EXCHANGE))
    }),
    case("WHITEOUT leaves a character device 0:0", "c 0", |d| {
        use std::os::unix::fs::{FileTypeExt, MetadataExt};
        file(d, "f", b"");
        with(d, "f", "g", RenameFlags::WHITEOUT)?;
        let left = fs::symlink_metadata(d.join("f")).unwrap();
        say(format!(
            "{} {}",
            if left.file_type().is_char_device() { "c" } else { "?" },
            left.rdev()
        ))
    }),
    case("WHITEOUT with NOREPLACE over a name", "EEXIST", |d| {
        file(d, "f", b"");
        file(d, "g", b"");
        done(with(d, "f", "g", RenameFlags::WHITEOUT | RenameFlags::NOREPLACE))
    }),
    case("WHITEOUT with NOREPLACE to a free name", "c", |d| {
        use std::os::unix::fs::FileTypeExt;
        file(d, "f", b"");
        with(d, "f", "g", RenameFlags::WHITEOUT | RenameFlags::NOREPLACE)?;
        assert!(d.join("g").is_file());
        let left = fs::symlink_metadata(d.join("f")).unwrap().file_type();
        say(if left.is_char_device() { "c" } else { "?" }.to_owned())
    }),
    case("unknown flags", "EINVAL", |d| {
        file(d, "f", b"");
        done(with(d, "f", "g", RenameFlags::from_bits_retain(64)))
    }),
];
