//! What two mounts of one space see of each other, and what a read-only mount refuses.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, OFlags, RenameFlags, XattrFlags, linkat, renameat_with, setxattr};

use crate::kit::*;

/// One row: the same empty directory by way of one mount and of the other.
pub struct Pair {
    pub name: &'static str,
    pub expected: &'static str,
    pub run: fn(&Path, &Path) -> Seen,
}

const fn pair(name: &'static str, expected: &'static str, run: fn(&Path, &Path) -> Seen) -> Pair {
    Pair { name, expected, run }
}

const LIST: &[u8] = b"\x02\0\0\0\x01\0\x06\0\xff\xff\xff\xff\x02\0\x06\0\xe1\x2e\0\0\
    \x04\0\x04\0\xff\xff\xff\xff\x10\0\x06\0\xff\xff\xff\xff\x20\0\0\0\xff\xff\xff\xff";

pub const ACROSS: &[Pair] = &[
    pair("a file open here, unlinked there, goes on", "0 text", |a, b| {
        let o = made(a, "f");
        o.write_all_at(b"text", 0).unwrap();
        fs::remove_file(b.join("f")).unwrap();
        say(format!("{} {}", o.metadata().unwrap().nlink(), bytes_at(&o, 0, 9)))
    }),
    pair("it can be written and grows", "300000 y", |a, b| {
        let o = made(a, "f");
        o.write_all_at(&vec![b'x'; 100_000], 0).unwrap();
        fs::remove_file(b.join("f")).unwrap();
        o.write_all_at(b"y", 299_999).unwrap();
        o.sync_all().unwrap();
        say(format!("{} {}", o.metadata().unwrap().len(), bytes_at(&o, 299_999, 9)))
    }),
    pair("open on both, unlinked by one, read by the other", "text", |a, b| {
        file(a, "f", b"text");
        let (one, two) = (opened(&a.join("f"), OFlags::RDWR), opened(&b.join("f"), OFlags::RDWR));
        fs::remove_file(a.join("f")).unwrap();
        drop(one);
        std::thread::sleep(std::time::Duration::from_millis(200));
        say(bytes_at(&two, 0, 9))
    }),
    pair("a file replaced there goes on here", "old new", |a, b| {
        let o = opened(&file(a, "f", b"old"), OFlags::RDONLY);
        file(b, "g", b"new");
        fs::rename(b.join("g"), b.join("f")).unwrap();
        say(format!("{} {}", bytes_at(&o, 0, 9), read(&a.join("f"))))
    }),
    pair("a mode changed there binds here at once", "EACCES", |a, b| {
        let f = file(a, "f", b"");
        as_user(&ALICE, || opened(&f, OFlags::RDONLY));
        chmod(&b.join("f"), 0o600);
        done(as_user(&ALICE, || open(&f, OFlags::RDONLY, 0)))
    }),
    pair("a list set there gives a right here at once", "ok", |a, b| {
        let f = file(a, "f", b"");
        assert!(as_user(&ALICE, || open(&f, OFlags::RDWR, 0)).is_err());
        setxattr(b.join("f"), "system.posix_acl_access", LIST, XattrFlags::empty())?;
        done(as_user(&ALICE, || open(&f, OFlags::RDWR, 0)))
    }),
    pair("a list removed there takes it", "EACCES", |a, b| {
        let f = file(a, "f", b"");
        setxattr(&f, "system.posix_acl_access", LIST, XattrFlags::empty())?;
        as_user(&ALICE, || opened(&f, OFlags::RDWR));
        rustix::fs::removexattr(b.join("f"), "system.posix_acl_access")?;
        done(as_user(&ALICE, || open(&f, OFlags::RDWR, 0)))
    }),
    pair("an attribute set there is seen here", "1", |a, b| {
        let f = file(a, "f", b"");
        assert!(rustix::fs::getxattr(&f, "user.a", &mut [0; 9][..]).is_err());
        setxattr(b.join("f"), "user.a", b"x", XattrFlags::empty())?;
        say(rustix::fs::getxattr(&f, "user.a", &mut [0; 9][..])?)
    }),
    pair("names exchanged there are exchanged here", "g f", |a, b| {
        file(a, "f", b"f");
        file(a, "g", b"g");
        renameat_with(CWD, b.join("f"), CWD, b.join("g"), RenameFlags::EXCHANGE)?;
        say(format!("{} {}", read(&a.join("f")), read(&a.join("g"))))
    }),
    pair("a directory moved there: .. here", "true", |a, b| {
        dir(a, "s");
        dir(&dir(a, "t"), "u");
        let o = open(&a.join("t/u"), OFlags::DIRECTORY, 0)?;
        fs::rename(b.join("t/u"), b.join("s/u")).unwrap();
        // The kernel here learns of it when it meets the directory at its new place.
        ino(&a.join("s/u"));
        let up = rustix::fs::openat(&o, "..", OFlags::DIRECTORY, bits(0))?;
        let entries = rustix::fs::Dir::read_from(&o)?;
        let up_listed = entries.flatten().find(|e| e.file_name().to_bytes() == b"..").unwrap();
        assert_eq!(rustix::fs::fstat(up)?.st_ino, ino(&b.join("s")));
        say(up_listed.ino() == ino(&b.join("s")))
    }),
    pair("crossed renames of directories make no loop", "EINVAL", |a, b| {
        dir(a, "s");
        dir(a, "t");
        fs::rename(a.join("s"), a.join("t/s")).unwrap();
        done(rustix::fs::rename(b.join("t"), b.join("t/s/t")))
    }),
    pair("an unnamed file given a name here is there", "text", |a, b| {
        use std::os::fd::AsRawFd;
        let o = open(a, OFlags::TMPFILE | OFlags::RDWR, 0o644)?;
        rustix::io::write(&o, b"text")?;
        let path = format!("/proc/self/fd/{}", o.as_raw_fd());
        linkat(CWD, path.as_str(), CWD, a.join("f"), AtFlags::SYMLINK_FOLLOW)?;
        say(read(&b.join("f")))
    }),
    pair("birth times agree", "true", |a, b| {
        let f = file(a, "f", b"");
        say(stamp(&f, 'b') == stamp(&b.join("f"), 'b') && stamp(&f, 'b') > 0)
    }),
    pair("appends of both", "4", |a, b| {
        file(a, "f", b"");
        let flags = OFlags::WRONLY | OFlags::APPEND;
        let (one, two) = (opened(&a.join("f"), flags), opened(&b.join("f"), flags));
        for _ in 0..2 {
            rustix::io::write(&one, b"x")?;
            rustix::io::write(&two, b"y")?;
        }
        say(size(&a.join("f")))
    }),
    pair("a fifo's ends must be on one machine, its name is on both", "true", |a, b| {
        fifo(a, "p");
        use std::os::unix::fs::FileTypeExt;
        say(fs::metadata(b.join("p")).unwrap().file_type().is_fifo())
    }),
];

/// By way of the mount that may write, and of the one that may not.
pub const READ_ONLY: &[Pair] = &[
    pair("reading", "text", |w, r| {
        file(w, "f", b"text");
        say(read(&r.join("f")))
    }),
    pair("what is written elsewhere is seen", "new", |w, r| {
        file(w, "f", b"old");
        read(&r.join("f"));
        fs::write(w.join("f"), "new").unwrap();
        say(read(&r.join("f")))
    }),
    pair("listing", "f", |w, r| {
        file(w, "f", b"");
        say(list(r))
    }),
    pair("open for writing", "EROFS", |w, r| {
        file(w, "f", b"");
        done(open(&r.join("f"), OFlags::WRONLY, 0))
    }),
    pair("O_CREAT of a new name", "EROFS", |_, r| {
        done(open(&r.join("f"), OFlags::CREATE | OFlags::RDONLY, 0o644))
    }),
    pair("O_CREAT for reading of what is there", "ok", |w, r| {
        file(w, "f", b"");
        done(open(&r.join("f"), OFlags::CREATE | OFlags::RDONLY, 0o644))
    }),
    pair("O_TRUNC", "EROFS", |w, r| {
        file(w, "f", b"");
        done(open(&r.join("f"), OFlags::RDONLY | OFlags::TRUNC, 0))
    }),
    pair("O_TMPFILE", "EROFS", |_, r| done(open(r, OFlags::TMPFILE | OFlags::RDWR, 0o644))),
    pair("mkdir", "EROFS", |_, r| done(rustix::fs::mkdir(r.join("s"), bits(0o755)))),
    pair("mkdir of what is there", "EEXIST", |w, r| {
        dir(w, "s");
        done(rustix::fs::mkdir(r.join("s"), bits(0o755)))
    }),
    pair("mknod", "EROFS", |_, r| {
        let kind = rustix::fs::FileType::Fifo;
        done(rustix::fs::mknodat(CWD, r.join("p"), kind, bits(0o644), 0))
    }),
    pair("symlink", "EROFS", |_, r| done(rustix::fs::symlink("x", r.join("l")))),
    pair("link", "EROFS", |w, r| {
        file(w, "f", b"");
        done(rustix::fs::link(r.join("f"), r.join("g")))
    }),
    pair("unlink", "EROFS", |w, r| {
        file(w, "f", b"");
        done(rustix::fs::unlink(r.join("f")))
    }),
    pair("rmdir", "EROFS", |w, r| {
        dir(w, "s");
        done(rustix::fs::rmdir(r.join("s")))
    }),
    pair("rename", "EROFS", |w, r| {
        file(w, "f", b"");
        done(rustix::fs::rename(r.join("f"), r.join("g")))
    }),
    pair("chmod", "EROFS", |w, r| {
        file(w, "f", b"");
        done(rustix::fs::chmod(r.join("f"), bits(0o600)))
    }),
    pair("chown", "EROFS", |w, r| {
        file(w, "f", b"");
        done(rustix::fs::chown(r.join("f"), Some(rustix::fs::Uid::ROOT), None))
    }),
    pair("utimensat", "EROFS", |w, r| {
        file(w, "f", b"");
        done(rustix::fs::utimensat(CWD, r.join("f"), &times(5, 0), AtFlags::empty()))
    }),
    pair("setxattr", "EROFS", |w, r| {
        file(w, "f", b"");
        done(setxattr(r.join("f"), "user.a", b"x", XattrFlags::empty()))
    }),
    pair("removexattr", "EROFS", |w, r| {
        file(w, "f", b"");
        done(rustix::fs::removexattr(r.join("f"), "user.a"))
    }),
    pair("access for writing", "EROFS", |w, r| {
        file(w, "f", b"");
        done(rustix::fs::access(r.join("f"), rustix::fs::Access::WRITE_OK))
    }),
    pair("a read marks no access", "", |w, r| {
        file(w, "f", b"text");
        rustix::fs::utimensat(CWD, w.join("f"), &times(5, 0), AtFlags::empty()).unwrap();
        say(moved(&r.join("f"), "amc", || drop(read(&r.join("f")))))
    }),
    pair("fsync", "ok", |w, r| {
        file(w, "f", b"");
        done(rustix::fs::fsync(open(&r.join("f"), OFlags::RDONLY, 0)?))
    }),
    pair("statvfs says it", "true", |_, r| {
        say(rustix::fs::statvfs(r)?.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY))
    }),
];
