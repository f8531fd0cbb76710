//! `open(2)`, `openat(2)`, `creat(2)`.

use std::io::Write;
use std::os::unix::fs::MetadataExt;

use rustix::fs::OFlags;

use crate::kit::*;

const CREATE: OFlags = OFlags::CREATE.union(OFlags::WRONLY);
const RDONLY: OFlags = OFlags::RDONLY;

pub const CASES: &[Case] = &[
    case("a missing name", "ENOENT", |d| done(open(&d.join("x"), RDONLY, 0))),
    case("an empty path", "ENOENT", |_| done(open("".as_ref(), RDONLY, 0))),
    case("a missing directory on the way", "ENOENT", |d| done(open(&d.join("x/y"), CREATE, 0o644))),
    case("a file on the way", "ENOTDIR", |d| {
        file(d, "f", b"");
        done(open(&d.join("f/y"), CREATE, 0o644))
    }),
    case("a file with a slash behind it", "ENOTDIR", |d| {
        file(d, "f", b"");
        done(open(&d.join("f/"), RDONLY, 0))
    }),
    case("O_CREAT with a slash behind a new name", "EISDIR", |d| {
        done(open(&d.join("new/"), CREATE, 0o644))
    }),
    case("O_CREAT of a directory", "EISDIR", |d| {
        dir(d, "s");
        done(open(&d.join("s"), CREATE, 0o644))
    }),
    case("a directory for writing", "EISDIR", |d| {
        dir(d, "s");
        done(open(&d.join("s"), OFlags::RDWR, 0))
    }),
    case("a directory for reading", "ok", |d| done(open(d, RDONLY, 0))),
    case("O_DIRECTORY of a file", "ENOTDIR", |d| {
        done(open(&file(d, "f", b""), OFlags::DIRECTORY, 0))
    }),
    case("O_CREAT|O_EXCL of what is there", "EEXIST", |d| {
        done(open(&file(d, "f", b""), CREATE | OFlags::EXCL, 0o644))
    }),
    case("O_CREAT|O_EXCL of a dangling link", "EEXIST", |d| {
        done(open(&symlink(d, "x", "l"), CREATE | OFlags::EXCL, 0o644))
    }),
    case("O_CREAT of a dangling link makes its target", "true", |d| {
        open(&symlink(d, "x", "l"), CREATE, 0o644)?;
        say(there(&d.join("x")))
    }),
    case("O_NOFOLLOW of a link", "ELOOP", |d| {
        file(d, "f", b"");
        done(open(&symlink(d, "f", "l"), OFlags::NOFOLLOW, 0))
    }),
    case("O_NOFOLLOW|O_PATH of a link", "ok", |d| {
        done(open(&symlink(d, "x", "l"), OFlags::NOFOLLOW | OFlags::PATH, 0))
    }),
    case("a link to itself", "ELOOP", |d| done(open(&symlink(d, "l", "l"), RDONLY, 0))),
    case("40 links in a row", "ok", |d| {
        file(d, "l0", b"");
        (1..=40).for_each(|i| drop(symlink(d, &format!("l{}", i - 1), &format!("l{i}"))));
        done(open(&d.join("l40"), RDONLY, 0))
    }),
    case("41 links in a row", "ELOOP", |d| {
        file(d, "l0", b"");
        (1..=41).for_each(|i| drop(symlink(d, &format!("l{}", i - 1), &format!("l{i}"))));
        done(open(&d.join("l41"), RDONLY, 0))
    }),
    case("a name of 255 bytes", "ok", |d| done(open(&d.join(long(255)), CREATE, 0o644))),
    case("a name of 256 bytes", "ENAMETOOLONG", |d| done(open(&d.join(long(256)), CREATE, 0o644))),
    case("looking for a name of 256 bytes", "ENAMETOOLONG", |d| {
        done(open(&d.join(long(256)), RDONLY, 0))
    }),
    case("a path of 4095 bytes", "ok", |d| done(open(&long_path(d, "f", 4095), CREATE, 0o644))),
    case("a path of 4096 bytes", "ENAMETOOLONG", |d| {
        done(open(&long_path(d, "f", 4096), CREATE, 0o644))
    }),
    case("names are bytes", "ok", |d| {
        use std::os::unix::ffi::OsStrExt;
        let all: Vec<u8> = (1..=255).filter(|b| *b != b'/').collect();
        done(open(&d.join(std::ffi::OsStr::from_bytes(&all)), CREATE, 0o644))
    }),
    case("O_TRUNC empties", "0", |d| {
        let f = file(d, "f", b"text");
        open(&f, OFlags::WRONLY | OFlags::TRUNC, 0)?;
        say(size(&f))
    }),
    case("O_TRUNC marks modification and change", "mc", |d| {
        let f = file(d, "f", b"text");
        say(moved(&f, "mc", || drop(open(&f, OFlags::WRONLY | OFlags::TRUNC, 0).unwrap())))
    }),
    case("O_TRUNC of an empty file marks them too", "mc", |d| {
        let f = file(d, "f", b"");
        say(moved(&f, "mc", || drop(open(&f, OFlags::WRONLY | OFlags::TRUNC, 0).unwrap())))
    }),
    case("O_CREAT|O_TRUNC keeps the mode", "644", |d| {
        let f = file(d, "f", b"text");
        open(&f, CREATE | OFlags::TRUNC, 0o777)?;
        say(mode(&f))
    }),
    case("O_CREAT marks the directory", "mc", |d| {
        let s = dir(d, "s");
        say(moved(&s, "mc", || drop(open(&s.join("f"), CREATE, 0o644).unwrap())))
    }),
    case("O_CREAT of what is there marks nothing", "", |d| {
        let s = dir(d, "s");
        file(&s, "f", b"");
        say(moved(&s, "mc", || drop(open(&s.join("f"), CREATE, 0o644).unwrap())))
    }),
    case("the mask takes bits away", "640", |d| {
        with_umask(0o027, || open(&d.join("f"), CREATE, 0o666))?;
        say(mode(&d.join("f")))
    }),
    case("set-user-id and sticky may be asked for", "5755", |d| {
        open(&d.join("f"), CREATE, 0o5755)?;
        say(mode(&d.join("f")))
    }),
    case("a new file belongs to its maker", "12001:12001", |d| {
        as_user(&ALICE, || open(&d.join("f"), CREATE, 0o644))?;
        say(owner(&d.join("f")))
    }),
    case("in a set-group-id directory the group is the directory's", "12001:12100", |d| {
        let s = dir(d, "s");
        chown(&s, ALICE.uid, CREW);
        chmod(&s, 0o2775);
        as_user(&ALICE, || open(&s.join("f"), CREATE, 0o644))?;
        say(owner(&s.join("f")))
    }),
    case("who is not in that group makes no set-group-id program", "755", |d| {
        let s = dir(d, "s");
        chown(&s, ALICE.uid, CREW);
        chmod(&s, 0o2775);
        as_user(&ALICE, || open(&s.join("f"), CREATE, 0o2755))?;
        say(mode(&s.join("f")))
    }),
    case("who is in that group does", "2755", |d| {
        let s = dir(d, "s");
        chown(&s, CAROL.uid, CREW);
        chmod(&s, 0o2775);
        as_user(&CAROL, || open(&s.join("f"), CREATE, 0o2755))?;
        say(mode(&s.join("f")))
    }),
    case("the mode does not bind who made the file", "ok", |d| {
        let f = as_user(&ALICE, || open(&d.join("f"), OFlags::RDWR | OFlags::CREATE, 0))?;
        done(rustix::io::write(f, b"x"))
    }),
    case("no right to read", "EACCES", |d| {
        let f = file(d, "f", b"");
        chmod(&f, 0o600);
        done(as_user(&ALICE, || open(&f, RDONLY, 0)))
    }),
    case("no right to write", "EACCES", |d| {
        let f = file(d, "f", b"");
        done(as_user(&ALICE, || open(&f, OFlags::WRONLY, 0)))
    }),
    case("O_TRUNC needs the right to write", "EACCES", |d| {
        let f = file(d, "f", b"");
        done(as_user(&ALICE, || open(&f, OFlags::RDONLY | OFlags::TRUNC, 0)))
    }),
    case("the owner's bits bind the owner", "EACCES", |d| {
        let f = file(d, "f", b"");
        chown(&f, ALICE.uid, 0);
        chmod(&f, 0o077);
        done(as_user(&ALICE, || open(&f, RDONLY, 0)))
    }),
    case("the group's bits bind the group", "EACCES", |d| {
        let f = file(d, "f", b"");
        chown(&f, 0, ALICE.gid);
        chmod(&f, 0o707);
        done(as_user(&ALICE, || open(&f, RDONLY, 0)))
    }),
    case("a supplementary group counts", "ok", |d| {
        let f = file(d, "f", b"");
        chown(&f, 0, CREW);
        chmod(&f, 0o060);
        done(as_user(&CAROL, || open(&f, OFlags::RDWR, 0)))
    }),
    case("a group that one is not in does not", "EACCES", |d| {
        let f = file(d, "f", b"");
        chown(&f, 0, CREW);
        chmod(&f, 0o060);
        done(as_user(&BOB, || open(&f, RDONLY, 0)))
    }),
    case("no right to search the directory", "EACCES", |d| {
        let s = dir(d, "s");
        file(&s, "f", b"");
        chmod(&s, 0o766);
        done(as_user(&ALICE, || open(&s.join("f"), RDONLY, 0)))
    }),
    case("search alone is enough", "ok", |d| {
        let s = dir(d, "s");
        file(&s, "f", b"");
        chmod(&s, 0o711);
        done(as_user(&ALICE, || open(&s.join("f"), RDONLY, 0)))
    }),
    case("no right to add a name", "EACCES", |d| {
        let s = dir(d, "s");
        done(as_user(&ALICE, || open(&s.join("f"), CREATE, 0o644)))
    }),
    case("root reads what nobody may", "ok", |d| {
        let f = file(d, "f", b"");
        chown(&f, ALICE.uid, ALICE.gid);
        chmod(&f, 0);
        done(open(&f, OFlags::RDWR, 0))
    }),
    case("O_NOATIME by another than the owner", "EPERM", |d| {
        let f = file(d, "f", b"");
        done(as_user(&ALICE, || open(&f, OFlags::NOATIME, 0)))
    }),
    case("O_NOATIME by the owner", "ok", |d| {
        let f = file(d, "f", b"");
        chown(&f, ALICE.uid, 0);
        done(as_user(&ALICE, || open(&f, OFlags::NOATIME, 0)))
    }),
    case("a fifo without a reader, not waiting", "ENXIO", |d| {
        done(open(&fifo(d, "p"), OFlags::WRONLY | OFlags::NONBLOCK, 0))
    }),
    case("a fifo for reading, not waiting", "ok", |d| {
        done(open(&fifo(d, "p"), OFlags::NONBLOCK, 0))
    }),
    case("a socket", "ENXIO", |d| {
        let s = std::os::unix::net::UnixListener::bind(d.join("s")).unwrap();
        let outcome = done(open(&d.join("s"), RDONLY, 0));
        drop(s);
        outcome
    }),
    case("a running program for writing", "ETXTBSY", |d| {
        let f = d.join("sleep");
        std::fs::copy("/bin/sleep", &f).unwrap();
        chmod(&f, 0o755);
        let mut child = std::process::Command::new(&f).arg("9").spawn().unwrap();
        let outcome = done(open(&f, OFlags::WRONLY, 0));
        child.kill().unwrap();
        child.wait().unwrap();
        outcome
    }),
    case("a program without the right to execute", "EACCES", |d| {
        let f = d.join("true");
        std::fs::copy("/bin/true", &f).unwrap();
        chmod(&f, 0o644);
        done(lift(std::process::Command::new(&f).status()))
    }),
    case("a program open for writing", "ETXTBSY", |d| {
        let f = d.join("true");
        std::fs::copy("/bin/true", &f).unwrap();
        chmod(&f, 0o755);
        let _writer = opened(&f, OFlags::WRONLY);
        done(lift(std::process::Command::new(&f).status()))
    }),
    case("a descriptor outlives a change of the mode", "text", |d| {
        let f = file(d, "f", b"text");
        let o = as_user(&ALICE, || open(&f, RDONLY, 0))?;
        chmod(&f, 0);
        say(as_user(&ALICE, || bytes_at(&o.into(), 0, 9)))
    }),
    case("O_PATH gives no right to read", "EBADF", |d| {
        let o = open(&file(d, "f", b"text"), OFlags::PATH, 0)?;
        done(rustix::io::read(o, &mut [0; 4]))
    }),
    case("O_APPEND writes at the end wherever one stands", "onetwo", |d| {
        let f = file(d, "f", b"one");
        let mut o = opened(&f, OFlags::RDWR | OFlags::APPEND);
        rustix::fs::seek(&o, rustix::fs::SeekFrom::Start(1))?;
        o.write_all(b"two").unwrap();
        say(read(&f))
    }),
    case("two names of one file are one file", "true", |d| {
        let f = file(d, "f", b"");
        std::fs::hard_link(&f, d.join("g")).unwrap();
        let (a, b) = (opened(&f, RDONLY), opened(&d.join("g"), RDONLY));
        let same = a.metadata().unwrap().ino() == b.metadata().unwrap().ino();
        say(same && a.metadata().unwrap().dev() == b.metadata().unwrap().dev())
    }),
];
