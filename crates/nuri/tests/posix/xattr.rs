//! `setxattr(2)`, `getxattr(2)`, `listxattr(2)`, `removexattr(2)`, and access control lists
//! (`acl(5)`), which travel as attributes.

use std::path::Path;

use rustix::fs::{
    OFlags, XattrFlags, getxattr, lgetxattr, listxattr, lsetxattr, removexattr, setxattr,
};
use rustix::io::Errno;

use crate::kit::*;

const ANY: XattrFlags = XattrFlags::empty();
const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

fn set(path: &Path, name: &str, value: &[u8]) -> Result<(), Errno> {
    setxattr(path, name, value, ANY)
}

fn get(path: &Path, name: &str) -> Seen {
    let mut buf = vec![0; 70_000];
    let len = getxattr(path, name, &mut buf[..])?;
    say(String::from_utf8_lossy(&buf[..len]))
}

/// Names in the list, sorted, without those that the system sets.
fn names(path: &Path) -> Seen {
    let mut buf = vec![0; 70_000];
    let len = listxattr(path, &mut buf[..])?;
    let all = String::from_utf8_lossy(&buf[..len]).into_owned();
    let mut names: Vec<_> = all.split_terminator('\0').filter(|n| !n.contains("selinux")).collect();
    names.sort_unstable();
    say(names.join(" "))
}

pub const XATTR: &[Case] = &[
    case("set and get", "blue", |d| {
        let f = file(d, "f", b"");
        set(&f, "user.colour", b"blue")?;
        get(&f, "user.colour")
    }),
    case("an empty value", "0", |d| {
        let f = file(d, "f", b"");
        set(&f, "user.empty", b"")?;
        say(getxattr(&f, "user.empty", &mut [0; 9][..])?)
    }),
    case("set again", "red", |d| {
        let f = file(d, "f", b"");
        set(&f, "user.colour", b"blue")?;
        set(&f, "user.colour", b"red")?;
        get(&f, "user.colour")
    }),
    case("CREATE of what is set", "EEXIST", |d| {
        let f = file(d, "f", b"");
        set(&f, "user.a", b"1")?;
        done(setxattr(&f, "user.a", b"2", XattrFlags::CREATE))
    }),
    case("REPLACE of what is not set", "ENODATA", |d| {
        done(setxattr(file(d, "f", b""), "user.a", b"2", XattrFlags::REPLACE))
    }),
    case("unknown flags", "EINVAL", |d| {
        done(setxattr(file(d, "f", b""), "user.a", b"", XattrFlags::from_bits_retain(8)))
    }),
    case("get of what is not set", "ENODATA", |d| get(&file(d, "f", b""), "user.a")),
    case("get into too little room", "ERANGE", |d| {
        let f = file(d, "f", b"");
        set(&f, "user.a", b"value")?;
        done(getxattr(&f, "user.a", &mut [0; 4][..]))
    }),
    case("get into no room tells the size", "5", |d| {
        let f = file(d, "f", b"");
        set(&f, "user.a", b"value")?;
        say(rustix::fs::getxattr_query(&f, "user.a")?)
    }),
    case("remove", "ENODATA", |d| {
        let f = file(d, "f", b"");
        set(&f, "user.a", b"value")?;
        removexattr(&f, "user.a")?;
        get(&f, "user.a")
    }),
    case("remove of what is not set", "ENODATA", |d| {
        done(removexattr(file(d, "f", b""), "user.a"))
    }),
    case("list", "user.a user.b", |d| {
        let f = file(d, "f", b"");
        set(&f, "user.b", b"")?;
        set(&f, "user.a", b"")?;
        names(&f)
    }),
    case("list of none", "", |d| names(&file(d, "f", b""))),
    case("list into too little room", "ERANGE", |d| {
        let f = file(d, "f", b"");
        set(&f, "user.a", b"")?;
        done(listxattr(&f, &mut [0; 3][..]))
    }),
    case("a name of 255 bytes", "ok", |d| {
        done(set(&file(d, "f", b""), &format!("user.{}", long(250)), b"x"))
    }),
    case("a name of 256 bytes", "ERANGE", |d| {
        done(set(&file(d, "f", b""), &format!("user.{}", long(251)), b"x"))
    }),
    case("a name without a class", "EOPNOTSUPP", |d| done(set(&file(d, "f", b""), "colour", b"x"))),
    case("an unknown class", "EOPNOTSUPP", |d| done(set(&file(d, "f", b""), "other.colour", b"x"))),
    case("get in an unknown class", "EOPNOTSUPP", |d| get(&file(d, "f", b""), "other.colour")),
    case("a class alone", "EINVAL", |d| done(set(&file(d, "f", b""), "user.", b"x"))),
    case("no name", "ERANGE", |d| done(set(&file(d, "f", b""), "", b"x"))),
    case("an unknown name of the system class", "EOPNOTSUPP", |d| {
        done(set(&file(d, "f", b""), "system.colour", b"x"))
    }),
    differs(
        "a value of 64 KiB",
        ("ENOSPC", "65536", "ext4 keeps all attributes of a file in one block"),
        |d| {
            let f = file(d, "f", b"");
            set(&f, "user.a", &vec![7; 65_536])?;
            say(getxattr(&f, "user.a", &mut vec![0; 65_536][..])?)
        },
    ),
    case("a value beyond 64 KiB", "E2BIG", |d| {
        done(set(&file(d, "f", b""), "user.a", &vec![7; 65_537]))
    }),
    differs(
        "500 names",
        ("ENOSPC", "500", "ext4 keeps all attributes of a file in one block"),
        |d| {
            let f = file(d, "f", b"");
            for i in 0..500 {
                set(&f, &format!("user.{i}"), b"value")?;
            }
            say(names(&f)?.split(' ').count())
        },
    ),
    case("marks change", "c", |d| {
        let f = file(d, "f", b"");
        say(moved(&f, "mc", || set(&f, "user.a", b"x").unwrap()))
    }),
    case("removal marks change", "c", |d| {
        let f = file(d, "f", b"");
        set(&f, "user.a", b"x")?;
        say(moved(&f, "mc", || removexattr(&f, "user.a").unwrap()))
    }),
    case("of a directory", "user.a", |d| {
        set(d, "user.a", b"x")?;
        names(d)
    }),
    case("user attributes of a fifo", "EPERM", |d| done(set(&fifo(d, "p"), "user.a", b"x"))),
    case("user attributes of a link", "EPERM", |d| {
        done(lsetxattr(symlink(d, "x", "l"), "user.a", b"x", ANY))
    }),
    case("trusted attributes of a link", "1", |d| {
        let l = symlink(d, "x", "l");
        lsetxattr(&l, "trusted.a", b"x", ANY)?;
        say(lgetxattr(&l, "trusted.a", &mut [0; 9][..])?)
    }),
    case("through a link", "user.a", |d| {
        let f = file(d, "f", b"");
        set(&symlink(d, "f", "l"), "user.a", b"x")?;
        names(&f)
    }),
    case("of a file without a name", "blue", |d| {
        let o = made(d, "f");
        std::fs::remove_file(d.join("f")).unwrap();
        rustix::fs::fsetxattr(&o, "user.a", b"blue", ANY)?;
        let mut buf = [0; 9];
        let n = rustix::fs::fgetxattr(&o, "user.a", &mut buf[..])?;
        say(String::from_utf8_lossy(&buf[..n]))
    }),
    case("they stay when the file is renamed", "user.a", |d| {
        let f = file(d, "f", b"");
        set(&f, "user.a", b"x")?;
        std::fs::rename(&f, d.join("g")).unwrap();
        names(&d.join("g"))
    }),
    case("a user without the right to write sets", "EACCES", |d| {
        let f = file(d, "f", b"");
        done(as_user(&ALICE, || set(&f, "user.a", b"x")))
    }),
    case("a user without the right to read gets", "EACCES", |d| {
        let f = file(d, "f", b"");
        set(&f, "user.a", b"x")?;
        chmod(&f, 0o600);
        as_user(&ALICE, || get(&f, "user.a"))
    }),
    case("a user with the right to write sets", "ok", |d| {
        let f = file(d, "f", b"");
        chmod(&f, 0o666);
        done(as_user(&ALICE, || set(&f, "user.a", b"x")))
    }),
    case("another's sticky directory", "EPERM", |d| {
        chmod(d, 0o1777);
        done(as_user(&ALICE, || set(d, "user.a", b"x")))
    }),
    case("a user sets a trusted one", "EPERM", |d| {
        let f = file(d, "f", b"");
        chown(&f, ALICE.uid, 0);
        done(as_user(&ALICE, || set(&f, "trusted.a", b"x")))
    }),
    case("a user gets a trusted one", "ENODATA", |d| {
        let f = file(d, "f", b"");
        set(&f, "trusted.a", b"x")?;
        as_user(&ALICE, || get(&f, "trusted.a"))
    }),
    case("a user sees no trusted ones", "user.a", |d| {
        let f = file(d, "f", b"");
        set(&f, "trusted.a", b"x")?;
        set(&f, "user.a", b"x")?;
        as_user(&ALICE, || names(&f))
    }),
    case("root sees them", "trusted.a", |d| {
        let f = file(d, "f", b"");
        set(&f, "trusted.a", b"x")?;
        names(&f)
    }),
    case("security attributes by root", "security.a", |d| {
        let f = file(d, "f", b"");
        set(&f, "security.a", b"x")?;
        names(&f)
    }),
    case("security attributes by a user", "EPERM", |d| {
        let f = file(d, "f", b"");
        chown(&f, ALICE.uid, 0);
        done(as_user(&ALICE, || set(&f, "security.a", b"x")))
    }),
    case("of a missing name", "ENOENT", |d| get(&d.join("f"), "user.a")),
    case("of O_PATH", "EBADF", |d| {
        let o = open(&file(d, "f", b""), OFlags::PATH, 0)?;
        done(rustix::fs::fsetxattr(o, "user.a", b"x", ANY))
    }),
];

/// An access control list from words: `u:rwx u:12001:r-- g:r-x m:rwx o:---`.
fn acl(text: &str) -> Vec<u8> {
    let mut out = vec![2, 0, 0, 0];
    for word in text.split(' ') {
        let parts: Vec<_> = word.split(':').collect();
        let id: u32 = if parts.len() == 3 { parts[1].parse().unwrap() } else { u32::MAX };
        let tag: u16 = match (parts[0], parts.len()) {
            ("u", 2) => 1,
            ("u", _) => 2,
            ("g", 2) => 4,
            ("g", _) => 8,
            ("m", _) => 16,
            _ => 32,
        };
        let rights =
            parts[parts.len() - 1].bytes().fold(0u16, |r, b| r << 1 | u16::from(b != b'-'));
        out.extend(tag.to_le_bytes());
        out.extend(rights.to_le_bytes());
        out.extend(id.to_le_bytes());
    }
    out
}

/// The list as words.
fn shown(path: &Path, name: &str) -> Seen {
    let mut buf = vec![0; 4096];
    let len = getxattr(path, name, &mut buf[..])?;
    let word = |e: &[u8]| {
        let rights = ["---", "--x", "-w-", "-wx", "r--", "r-x", "rw-", "rwx"][usize::from(e[2])];
        let id = u32::from_le_bytes(e[4..8].try_into().unwrap());
        match e[0] {
            1 => format!("u:{rights}"),
            2 => format!("u:{id}:{rights}"),
            4 => format!("g:{rights}"),
            8 => format!("g:{id}:{rights}"),
            16 => format!("m:{rights}"),
            _ => format!("o:{rights}"),
        }
    };
    say(buf[4..len].chunks(8).map(word).collect::<Vec<_>>().join(" "))
}

const FOR_ALICE: &str = "u:rw- u:12001:rw- g:r-- m:rw- o:---";
const INHERIT: &str = "u:rwx u:12001:rwx g:r-x m:rwx o:---";

fn listed(d: &Path, text: &str) -> std::path::PathBuf {
    let f = file(d, "f", b"text");
    set(&f, ACCESS, &acl(text)).unwrap();
    f
}

fn inheriting(d: &Path, text: &str) -> std::path::PathBuf {
    let s = dir(d, "s");
    chmod(&s, 0o777);
    set(&s, DEFAULT, &acl(text)).unwrap();
    s
}

pub const ACL: &[Case] = &[
    case("set and get", FOR_ALICE, |d| shown(&listed(d, FOR_ALICE), ACCESS)),
    case("the mode shows the mask as the group's bits", "660", |d| {
        say(mode(&listed(d, FOR_ALICE)))
    }),
    case("a named user", "ok", |d| {
        let f = listed(d, FOR_ALICE);
        done(as_user(&ALICE, || open(&f, OFlags::RDWR, 0)))
    }),
    case("another user", "EACCES", |d| {
        let f = listed(d, FOR_ALICE);
        done(as_user(&BOB, || open(&f, OFlags::RDONLY, 0)))
    }),
    case("the mask bounds a named user", "EACCES", |d| {
        let f = listed(d, "u:rw- u:12001:rw- g:r-- m:r-- o:---");
        done(as_user(&ALICE, || open(&f, OFlags::RDWR, 0)))
    }),
    case("a named user without rights", "EACCES", |d| {
        let f = listed(d, "u:rw- u:12001:--- g:r-- m:rw- o:rw-");
        done(as_user(&ALICE, || open(&f, OFlags::RDONLY, 0)))
    }),
    case("a named group", "ok", |d| {
        let f = listed(d, "u:rw- g:--- g:12100:rw- m:rw- o:---");
        done(as_user(&CAROL, || open(&f, OFlags::RDWR, 0)))
    }),
    case("a named group binds before the others' bits", "EACCES", |d| {
        let f = listed(d, "u:rw- g:--- g:12100:r-- m:rw- o:rw-");
        done(as_user(&CAROL, || open(&f, OFlags::RDWR, 0)))
    }),
    case("the owning group is bounded by the mask", "EACCES", |d| {
        let f = listed(d, "u:rw- u:12001:rw- g:rw- m:r-- o:---");
        chown(&f, 0, CREW);
        done(as_user(&CAROL, || open(&f, OFlags::RDWR, 0)))
    }),
    case("of a directory on the way", "ok", |d| {
        let s = dir(d, "s");
        let f = file(&s, "f", b"");
        set(&s, ACCESS, &acl("u:rwx u:12001:--x g:--- m:--x o:---"))?;
        done(as_user(&ALICE, || open(&f, OFlags::RDONLY, 0)))
    }),
    case("access(2) obeys it", "ok", |d| {
        let f = listed(d, FOR_ALICE);
        done(as_user(&ALICE, || rustix::fs::access(&f, rustix::fs::Access::WRITE_OK)))
    }),
    case("one that only repeats the mode is none", "640 ENODATA", |d| {
        let f = listed(d, "u:rw- g:r-- o:---");
        let left = shown(&f, ACCESS).map_err(name_of).unwrap_err();
        say(format!("{} {left}", mode(&f)))
    }),
    case("chmod changes the mask", "u:rwx u:12001:rw- g:r-- m:r-x o:--x", |d| {
        let f = listed(d, FOR_ALICE);
        chmod(&f, 0o751);
        shown(&f, ACCESS)
    }),
    case("chmod bounds a named user", "EACCES", |d| {
        let f = listed(d, FOR_ALICE);
        chmod(&f, 0o640);
        done(as_user(&ALICE, || open(&f, OFlags::RDWR, 0)))
    }),
    case("removal leaves the mode", "660", |d| {
        let f = listed(d, FOR_ALICE);
        removexattr(&f, ACCESS)?;
        say(mode(&f))
    }),
    case("removal where none is", "ok", |d| done(removexattr(file(d, "f", b""), ACCESS))),
    case("it is in the list of names", "system.posix_acl_access", |d| names(&listed(d, FOR_ALICE))),
    case("marks change", "c", |d| {
        let f = file(d, "f", b"");
        say(moved(&f, "mc", || set(&f, ACCESS, &acl(FOR_ALICE)).unwrap()))
    }),
    case("set by another than the owner", "EPERM", |d| {
        let f = file(d, "f", b"");
        chmod(&f, 0o666);
        done(as_user(&ALICE, || set(&f, ACCESS, &acl(FOR_ALICE))))
    }),
    case("set by who is not in the group: set-group-id goes", "660", |d| {
        let f = file(d, "f", b"");
        chown(&f, ALICE.uid, CREW);
        chmod(&f, 0o2771);
        as_user(&ALICE, || set(&f, ACCESS, &acl(FOR_ALICE)))?;
        say(mode(&f))
    }),
    case("set by who is: it stays", "2660", |d| {
        let f = file(d, "f", b"");
        chown(&f, CAROL.uid, CREW);
        chmod(&f, 0o2771);
        as_user(&CAROL, || set(&f, ACCESS, &acl(FOR_ALICE)))?;
        say(mode(&f))
    }),
    case("broken bytes", "EINVAL", |d| done(set(&file(d, "f", b""), ACCESS, b"x"))),
    case("without a mask", "EINVAL", |d| {
        done(set(&file(d, "f", b""), ACCESS, &acl("u:rw- u:12001:rw- g:r-- o:---")))
    }),
    case("a default list of a file", "EACCES", |d| {
        done(set(&file(d, "f", b""), DEFAULT, &acl(INHERIT)))
    }),
    case("of a link", "EOPNOTSUPP", |d| {
        done(lsetxattr(symlink(d, "x", "l"), ACCESS, &acl(FOR_ALICE), ANY))
    }),
    case("a default list says nothing of the directory itself", "EACCES", |d| {
        let s = inheriting(d, INHERIT);
        chmod(&s, 0o700);
        done(as_user(&ALICE, || open(&s, OFlags::DIRECTORY, 0)))
    }),
    case("a new file inherits", "u:rw- u:12001:rwx g:r-x m:r-- o:---", |d| {
        let s = inheriting(d, INHERIT);
        open(&s.join("f"), OFlags::CREATE | OFlags::WRONLY, 0o644)?;
        shown(&s.join("f"), ACCESS)
    }),
    case("its mode is what both allow", "640", |d| {
        let s = inheriting(d, INHERIT);
        open(&s.join("f"), OFlags::CREATE | OFlags::WRONLY, 0o644)?;
        say(mode(&s.join("f")))
    }),
    case("the mask of the process does not count then", "660", |d| {
        let s = inheriting(d, INHERIT);
        with_umask(0o077, || open(&s.join("f"), OFlags::CREATE | OFlags::WRONLY, 0o666))?;
        say(mode(&s.join("f")))
    }),
    case("it counts where nothing is inherited", "600", |d| {
        with_umask(0o077, || open(&d.join("f"), OFlags::CREATE | OFlags::WRONLY, 0o666))?;
        say(mode(&d.join("f")))
    }),
    case("what was inherited is obeyed at once", "ok", |d| {
        let s = inheriting(d, INHERIT);
        open(&s.join("f"), OFlags::CREATE | OFlags::WRONLY, 0o660)?;
        done(as_user(&ALICE, || open(&s.join("f"), OFlags::RDWR, 0)))
    }),
    case("a new directory inherits both", INHERIT, |d| {
        let s = inheriting(d, INHERIT);
        std::fs::create_dir(s.join("t")).unwrap();
        assert_eq!(shown(&s.join("t"), ACCESS)?, INHERIT);
        shown(&s.join("t"), DEFAULT)
    }),
    case("a new fifo inherits", "u:rw- u:12001:rwx g:r-x m:rw- o:---", |d| {
        let s = inheriting(d, INHERIT);
        fifo(&s, "p");
        shown(&s.join("p"), ACCESS)
    }),
    case("a new link does not", "777 ENODATA", |d| {
        let s = inheriting(d, INHERIT);
        let l = symlink(&s, "x", "l");
        let left = lgetxattr(&l, ACCESS, &mut [0; 64][..]).map_err(name_of).unwrap_err();
        say(format!("{} {}", mode(&l), left.replace("EOPNOTSUPP", "ENODATA")))
    }),
    case("a plain default list gives a mode alone", "640 ENODATA", |d| {
        let s = inheriting(d, "u:rw- g:r-- o:---");
        open(&s.join("f"), OFlags::CREATE | OFlags::WRONLY, 0o666)?;
        let left = shown(&s.join("f"), ACCESS).map_err(name_of).unwrap_err();
        say(format!("{} {left}", mode(&s.join("f"))))
    }),
    case("O_TMPFILE inherits", "640", |d| {
        let s = inheriting(d, INHERIT);
        let o = open(&s, OFlags::TMPFILE | OFlags::RDWR, 0o644)?;
        say(format!("{:o}", rustix::fs::fstat(o)?.st_mode & 0o7777))
    }),
    case("a moved file keeps its own", "644 ENODATA", |d| {
        let s = inheriting(d, INHERIT);
        std::fs::rename(file(d, "f", b""), s.join("f")).unwrap();
        let left = shown(&s.join("f"), ACCESS).map_err(name_of).unwrap_err();
        say(format!("{} {left}", mode(&s.join("f"))))
    }),
    case("removal of a default list", "644", |d| {
        let s = inheriting(d, INHERIT);
        removexattr(&s, DEFAULT)?;
        open(&s.join("f"), OFlags::CREATE | OFlags::WRONLY, 0o644)?;
        say(mode(&s.join("f")))
    }),
];
