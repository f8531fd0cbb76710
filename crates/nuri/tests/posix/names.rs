//! `link(2)`, `unlink(2)`, `rmdir(2)`, `mkdir(2)`, `symlink(2)`, `readlink(2)`, `mknod(2)`.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FileType, OFlags, linkat, makedev, mkdirat, mknodat, readlinkat, symlinkat,
    unlinkat,
};
use rustix::io::Errno;

use crate::kit::*;

fn link_to(from: &Path, to: &Path) -> Result<(), Errno> {
    linkat(CWD, from, CWD, to, AtFlags::empty())
}

fn remove(path: &Path) -> Result<(), Errno> {
    unlinkat(CWD, path, AtFlags::empty())
}

fn rmdir_of(path: &Path) -> Result<(), Errno> {
    unlinkat(CWD, path, AtFlags::REMOVEDIR)
}

fn mkdir_of(path: &Path, mode: u32) -> Result<(), Errno> {
    mkdirat(CWD, path, bits(mode))
}

fn node(path: &Path, kind: FileType, mode: u32, device: u64) -> Result<(), Errno> {
    mknodat(CWD, path, kind, bits(mode), device)
}

pub const LINK: &[Case] = &[
    case("a second name", "2 text", |d| {
        let f = file(d, "f", b"text");
        link_to(&f, &d.join("g"))?;
        say(format!("{} {}", nlink(&f), read(&d.join("g"))))
    }),
    case("marks change on the file", "c", |d| {
        let f = file(d, "f", b"");
        say(moved(&f, "mc", || link_to(&f, &d.join("g")).unwrap()))
    }),
    case("marks the directory", "mc", |d| {
        let f = file(d, "f", b"");
        let s = dir(d, "s");
        say(moved(&s, "mc", || link_to(&f, &s.join("g")).unwrap()))
    }),
    case("over a name", "EEXIST", |d| {
        let f = file(d, "f", b"");
        done(link_to(&f, &file(d, "g", b"")))
    }),
    case("of a missing name", "ENOENT", |d| done(link_to(&d.join("f"), &d.join("g")))),
    case("of a directory", "EPERM", |d| done(link_to(&dir(d, "s"), &d.join("t")))),
    case("into a missing directory", "ENOENT", |d| {
        done(link_to(&file(d, "f", b""), &d.join("s/g")))
    }),
    case("to a name with a slash", "ENOENT", |d| done(link_to(&file(d, "f", b""), &d.join("g/")))),
    case("to 256 bytes", "ENAMETOOLONG", |d| done(link_to(&file(d, "f", b""), &d.join(long(256))))),
    case("to another file system", "EXDEV", |d| {
        done(link_to(&file(d, "f", b""), &elsewhere().join("nuri-posix-l")))
    }),
    case("of a link: the link itself", "true", |d| {
        let l = symlink(d, "x", "l");
        link_to(&l, &d.join("m"))?;
        say(ino(&l) == ino(&d.join("m")))
    }),
    case("AT_SYMLINK_FOLLOW: what it names", "true", |d| {
        let f = file(d, "f", b"");
        linkat(CWD, symlink(d, "f", "l"), CWD, d.join("m"), AtFlags::SYMLINK_FOLLOW)?;
        say(ino(&f) == ino(&d.join("m")))
    }),
    case("of a fifo", "2", |d| {
        let p = fifo(d, "p");
        link_to(&p, &d.join("q"))?;
        say(nlink(&p))
    }),
    case("no right to add a name", "EACCES", |d| {
        let f = file(d, "f", b"");
        chown(&f, ALICE.uid, 0);
        let s = dir(d, "s");
        done(as_user(&ALICE, || link_to(&f, &s.join("g"))))
    }),
    case("another's file that one may not write", "EPERM", |d| {
        let f = file(d, "f", b"");
        done(as_user(&ALICE, || link_to(&f, &d.join("g"))))
    }),
    case("an open file without a name", "ENOENT", |d| {
        let o = made(d, "f");
        remove(&d.join("f")).unwrap();
        use std::os::fd::AsRawFd;
        let path = format!("/proc/self/fd/{}", o.as_raw_fd());
        done(linkat(CWD, path.as_str(), CWD, d.join("g"), AtFlags::SYMLINK_FOLLOW))
    }),
];

pub const UNLINK: &[Case] = &[
    case("a name", "", |d| {
        remove(&file(d, "f", b""))?;
        say(list(d))
    }),
    case("a missing name", "ENOENT", |d| done(remove(&d.join("f")))),
    case("below a file", "ENOTDIR", |d| done(remove(&file(d, "f", b"").join("g")))),
    case("a directory", "EISDIR", |d| done(remove(&dir(d, "s")))),
    case("a name with a slash", "ENOTDIR", |d| {
        file(d, "f", b"");
        done(remove(&d.join("f/")))
    }),
    case("256 bytes", "ENAMETOOLONG", |d| done(remove(&d.join(long(256))))),
    case("a link, not what it names", "f", |d| {
        file(d, "f", b"");
        remove(&symlink(d, "f", "l"))?;
        say(list(d))
    }),
    case("a fifo", "ok", |d| done(remove(&fifo(d, "p")))),
    case("one of two names", "1", |d| {
        let f = file(d, "f", b"");
        fs::hard_link(&f, d.join("g")).unwrap();
        remove(&f)?;
        say(nlink(&d.join("g")))
    }),
    case("marks change on the file and marks the directory", "c mc", |d| {
        let f = file(d, "f", b"");
        fs::hard_link(&f, d.join("g")).unwrap();
        let mut dir = String::new();
        let file = moved(&f, "mc", || {
            dir = moved(d, "mc", || remove(&d.join("g")).unwrap());
        });
        say(format!("{file} {dir}"))
    }),
    case("an open file goes on without a name", "0 text", |d| {
        use std::os::unix::fs::FileExt;
        let o = made(d, "f");
        remove(&d.join("f"))?;
        o.write_all_at(b"text", 0).unwrap();
        o.sync_all().unwrap();
        say(format!("{} {}", o.metadata().unwrap().nlink(), bytes_at(&o, 0, 9)))
    }),
    case("an open file without a name has attributes to change", "600 9", |d| {
        let o = made(d, "f");
        remove(&d.join("f"))?;
        rustix::fs::fchmod(&o, bits(0o600))?;
        rustix::fs::ftruncate(&o, 9)?;
        let meta = o.metadata().unwrap();
        say(format!("{:o} {}", meta.mode() & 0o7777, meta.len()))
    }),
    case("the name may be used again at once", "new", |d| {
        let o = made(d, "f");
        remove(&d.join("f"))?;
        file(d, "f", b"new");
        assert_eq!(o.metadata().unwrap().len(), 0);
        say(read(&d.join("f")))
    }),
    case("no right to write the directory", "EACCES", |d| {
        let s = dir(d, "s");
        let f = file(&s, "f", b"");
        chown(&f, ALICE.uid, 0);
        done(as_user(&ALICE, || remove(&f)))
    }),
    case("the file's own mode does not matter", "ok", |d| {
        let f = file(d, "f", b"");
        chmod(&f, 0);
        done(as_user(&ALICE, || remove(&f)))
    }),
    case("sticky: another's file", "EPERM", |d| {
        chmod(d, 0o1777);
        let f = file(d, "f", b"");
        done(as_user(&ALICE, || remove(&f)))
    }),
    case("sticky: one's own", "ok", |d| {
        chmod(d, 0o1777);
        let f = file(d, "f", b"");
        chown(&f, ALICE.uid, 0);
        done(as_user(&ALICE, || remove(&f)))
    }),
    case("sticky: the directory's owner", "ok", |d| {
        chmod(d, 0o1777);
        chown(d, ALICE.uid, 0);
        let f = file(d, "f", b"");
        done(as_user(&ALICE, || remove(&f)))
    }),
];

pub const RMDIR: &[Case] = &[
    case("an empty directory", "2", |d| {
        rmdir_of(&dir(d, "s"))?;
        say(nlink(d))
    }),
    case("one with entries", "ENOTEMPTY", |d| {
        let s = dir(d, "s");
        file(&s, "f", b"");
        done(rmdir_of(&s))
    }),
    case("a file", "ENOTDIR", |d| done(rmdir_of(&file(d, "f", b"")))),
    case("a link to a directory", "ENOTDIR", |d| {
        dir(d, "s");
        done(rmdir_of(&symlink(d, "s", "l")))
    }),
    case("a missing name", "ENOENT", |d| done(rmdir_of(&d.join("s")))),
    case(".", "EINVAL", |d| done(rmdir_of(&dir(d, "s").join(".")))),
    case("..", "ENOTEMPTY", |d| done(rmdir_of(&dir(d, "s").join("..")))),
    case("a mount's root", "EBUSY", |_| done(rmdir_of("/proc".as_ref()))),
    case("nothing can be made in what was removed", "ENOENT", |d| {
        let s = dir(d, "s");
        let o = open(&s, OFlags::DIRECTORY, 0)?;
        rmdir_of(&s)?;
        done(rustix::fs::openat(o, "f", OFlags::CREATE | OFlags::WRONLY, bits(0o644)))
    }),
    case("what was removed has no links", "0", |d| {
        let s = dir(d, "s");
        let o = open(&s, OFlags::DIRECTORY, 0)?;
        rmdir_of(&s)?;
        say(rustix::fs::fstat(o)?.st_nlink)
    }),
    case("what was removed lists nothing", "0", |d| {
        let s = dir(d, "s");
        let o = open(&s, OFlags::DIRECTORY, 0)?;
        rmdir_of(&s)?;
        let entries = rustix::fs::Dir::read_from(&o)?;
        say(entries.filter(|e| e.is_ok()).count())
    }),
    case("marks the parent", "mc", |d| {
        let s = dir(d, "s");
        say(moved(d, "mc", || rmdir_of(&s).unwrap()))
    }),
    case("no right", "EACCES", |d| {
        let s = dir(d, "s");
        let t = dir(&s, "t");
        done(as_user(&ALICE, || rmdir_of(&t)))
    }),
    case("sticky: another's", "EPERM", |d| {
        chmod(d, 0o1777);
        let s = dir(d, "s");
        done(as_user(&ALICE, || rmdir_of(&s)))
    }),
];

pub const MKDIR: &[Case] = &[
    case("a directory", "2 755", |d| {
        let s = d.join("s");
        with_umask(0o022, || mkdir_of(&s, 0o777))?;
        say(format!("{} {}", nlink(&s), mode(&s)))
    }),
    case("the parent has a link more", "3", |d| {
        dir(d, "s");
        say(nlink(d))
    }),
    case("marks the parent", "mc", |d| say(moved(d, "mc", || drop(dir(d, "s"))))),
    case("a name that is there", "EEXIST", |d| done(mkdir_of(&file(d, "f", b""), 0o755))),
    case("a dangling link", "EEXIST", |d| done(mkdir_of(&symlink(d, "x", "l"), 0o755))),
    case("with a slash", "ok", |d| done(mkdir_of(&d.join("s/"), 0o755))),
    case(".", "EEXIST", |d| done(mkdir_of(&d.join("."), 0o755))),
    case("in a missing directory", "ENOENT", |d| done(mkdir_of(&d.join("x/s"), 0o755))),
    case("in a file", "ENOTDIR", |d| done(mkdir_of(&file(d, "f", b"").join("s"), 0o755))),
    case("256 bytes", "ENAMETOOLONG", |d| done(mkdir_of(&d.join(long(256)), 0o755))),
    case("the sticky bit may be asked for, set-group-id not", "1755", |d| {
        mkdir_of(&d.join("s"), 0o3755)?;
        say(mode(&d.join("s")))
    }),
    case("set-group-id is inherited with the group", "2755 12001:12100", |d| {
        let s = dir(d, "s");
        chown(&s, 0, CREW);
        chmod(&s, 0o2777);
        as_user(&ALICE, || mkdir_of(&s.join("t"), 0o755))?;
        say(format!("{} {}", mode(&s.join("t")), owner(&s.join("t"))))
    }),
    case("no right", "EACCES", |d| {
        let s = dir(d, "s");
        done(as_user(&ALICE, || mkdir_of(&s.join("t"), 0o755)))
    }),
    case("seventy levels deep", "ok", |d| {
        let mut path = d.to_path_buf();
        for _ in 0..70 {
            path.push("s");
            mkdir_of(&path, 0o755)?;
        }
        done(mkdir_of(&path.join("t"), 0o755))
    }),
];

pub const SYMLINK: &[Case] = &[
    case("text is kept as it is", "../x//y/.", |d| {
        symlink(d, "../x//y/.", "l");
        say(readlinkat(CWD, d.join("l"), Vec::new())?.to_string_lossy())
    }),
    case("the size is the text's", "3", |d| say(size(&symlink(d, "abc", "l")))),
    case("the mode is 777 whatever the mask", "777", |d| {
        with_umask(0o077, || symlink(d, "x", "l"));
        say(mode(&d.join("l")))
    }),
    case("4095 bytes", "4095", |d| {
        symlinkat(long(4095), CWD, d.join("l"))?;
        say(readlinkat(CWD, d.join("l"), Vec::new())?.as_bytes().len())
    }),
    case("4096 bytes", "ENAMETOOLONG", |d| done(symlinkat(long(4096), CWD, d.join("l")))),
    case("no bytes", "ENOENT", |d| done(symlinkat("", CWD, d.join("l")))),
    case("a name that is there", "EEXIST", |d| done(symlinkat("x", CWD, file(d, "f", b"")))),
    case("256 bytes of name", "ENAMETOOLONG", |d| done(symlinkat("x", CWD, d.join(long(256))))),
    case("no right", "EACCES", |d| {
        let s = dir(d, "s");
        done(as_user(&ALICE, || symlinkat("x", CWD, s.join("l"))))
    }),
    case("readlink of a file", "EINVAL", |d| done(readlinkat(CWD, file(d, "f", b""), Vec::new()))),
    case("readlink of a directory", "EINVAL", |d| done(readlinkat(CWD, d, Vec::new()))),
    case("readlink of a missing name", "ENOENT", |d| {
        done(readlinkat(CWD, d.join("l"), Vec::new()))
    }),
    case("the owner is its maker", "12001:12001", |d| {
        as_user(&ALICE, || symlinkat("x", CWD, d.join("l")))?;
        say(owner(&d.join("l")))
    }),
    case("followed in the middle of a path", "text", |d| {
        file(&dir(d, "s"), "f", b"text");
        say(read(&symlink(d, "s", "l").join("f")))
    }),
];

pub const MKNOD: &[Case] = &[
    case("a file", "640 0", |d| {
        node(&d.join("f"), FileType::RegularFile, 0o640, 0)?;
        say(format!("{} {}", mode(&d.join("f")), size(&d.join("f"))))
    }),
    case("a file made so can be written", "text", |d| {
        node(&d.join("f"), FileType::RegularFile, 0o640, 0)?;
        fs::write(d.join("f"), "text").unwrap();
        say(read(&d.join("f")))
    }),
    case("a fifo", "true 620", |d| {
        with_umask(0o002, || node(&d.join("p"), FileType::Fifo, 0o622, 0))?;
        let kind = fs::metadata(d.join("p")).unwrap().file_type();
        say(format!("{} {}", kind.is_fifo(), mode(&d.join("p"))))
    }),
    case("a fifo carries bytes", "text", |d| {
        let p = fifo(d, "p");
        let r = open(&p, OFlags::RDONLY | OFlags::NONBLOCK, 0)?;
        let w = open(&p, OFlags::WRONLY, 0)?;
        rustix::io::write(w, b"text")?;
        let mut buf = [0; 9];
        let n = rustix::io::read(r, &mut buf)?;
        say(String::from_utf8_lossy(&buf[..n]))
    }),
    case("a socket", "true", |d| {
        node(&d.join("s"), FileType::Socket, 0o600, 0)?;
        say(fs::metadata(d.join("s")).unwrap().file_type().is_socket())
    }),
    case("a bound socket connects", "ok", |d| {
        let listener = std::os::unix::net::UnixListener::bind(d.join("s")).unwrap();
        let outcome = lift(std::os::unix::net::UnixStream::connect(d.join("s")));
        drop(listener);
        done(outcome)
    }),
    case("a character device", "true", |d| {
        let null = makedev(1, 3);
        node(&d.join("n"), FileType::CharacterDevice, 0o600, null)?;
        say(fs::metadata(d.join("n")).unwrap().rdev() == null)
    }),
    case("a block device with large numbers", "true", |d| {
        let device = makedev(4095, 1_048_575);
        node(&d.join("b"), FileType::BlockDevice, 0o600, device)?;
        say(fs::metadata(d.join("b")).unwrap().rdev() == device)
    }),
    case("a device by a user", "EPERM", |d| {
        let outcome =
            as_user(&ALICE, || node(&d.join("n"), FileType::CharacterDevice, 0o600, makedev(1, 3)));
        done(outcome)
    }),
    case("a fifo by a user", "12001:12001", |d| {
        as_user(&ALICE, || node(&d.join("p"), FileType::Fifo, 0o600, 0))?;
        say(owner(&d.join("p")))
    }),
    case("a directory", "EPERM", |d| done(node(&d.join("s"), FileType::Directory, 0o755, 0))),
    case("a link", "EINVAL", |d| done(node(&d.join("l"), FileType::Symlink, 0o755, 0))),
    case("a name that is there", "EEXIST", |d| {
        done(node(&file(d, "f", b""), FileType::Fifo, 0o600, 0))
    }),
    case("a dangling link", "EEXIST", |d| {
        done(node(&symlink(d, "x", "l"), FileType::Fifo, 0o600, 0))
    }),
    case("256 bytes", "ENAMETOOLONG", |d| done(node(&d.join(long(256)), FileType::Fifo, 0o600, 0))),
    case("a whiteout by a user", "ok", |d| {
        done(as_user(&ALICE, || node(&d.join("w"), FileType::CharacterDevice, 0o600, 0)))
    }),
];
