//! `chmod(2)`, `chown(2)`, `utimensat(2)`, `access(2)`, `stat(2)`, `statx(2)`, `statvfs(3)`.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use rustix::fs::{
    Access, AtFlags, CWD, Gid, OFlags, StatxFlags, Timestamps, UTIME_NOW, UTIME_OMIT, Uid,
    accessat, chmodat, chownat, statx, utimensat,
};
use rustix::io::Errno;

use crate::kit::*;

fn mode_to(path: &Path, mode: u32) -> Result<(), Errno> {
    chmodat(CWD, path, bits(mode), AtFlags::empty())
}

fn owner_to(path: &Path, uid: i64, gid: i64) -> Result<(), Errno> {
    let uid = u32::try_from(uid).ok().map(Uid::from_raw);
    let gid = u32::try_from(gid).ok().map(Gid::from_raw);
    chownat(CWD, path, uid, gid, AtFlags::SYMLINK_NOFOLLOW)
}

fn times_to(path: &Path, t: &Timestamps) -> Result<(), Errno> {
    utimensat(CWD, path, t, AtFlags::SYMLINK_NOFOLLOW)
}

fn both(nsec: i64) -> Timestamps {
    times(0, nsec)
}

fn may(path: &Path, access: Access) -> Result<(), Errno> {
    accessat(CWD, path, access, AtFlags::empty())
}

/// A program with all bits, owned by a user.
fn program(d: &Path, user: &User, mode: u32) -> std::path::PathBuf {
    let f = file(d, "f", b"text");
    chown(&f, user.uid, user.gid);
    chmod(&f, mode);
    f
}

pub const CHMOD: &[Case] = &[
    case("all bits by root", "7777", |d| {
        let f = file(d, "f", b"");
        mode_to(&f, 0o7777)?;
        say(mode(&f))
    }),
    case("by the owner", "6711", |d| {
        let f = program(d, &ALICE, 0o644);
        as_user(&ALICE, || mode_to(&f, 0o6711))?;
        say(mode(&f))
    }),
    case("by another", "EPERM", |d| {
        let f = program(d, &ALICE, 0o666);
        done(as_user(&BOB, || mode_to(&f, 0o777)))
    }),
    case("set-group-id by who is not in the group", "711", |d| {
        let f = file(d, "f", b"");
        chown(&f, ALICE.uid, CREW);
        as_user(&ALICE, || mode_to(&f, 0o2711))?;
        say(mode(&f))
    }),
    case("set-group-id by who is in it by a supplementary group", "2711", |d| {
        let f = file(d, "f", b"");
        chown(&f, CAROL.uid, CREW);
        as_user(&CAROL, || mode_to(&f, 0o2711))?;
        say(mode(&f))
    }),
    case("sticky on a file by a user", "1644", |d| {
        let f = program(d, &ALICE, 0o644);
        as_user(&ALICE, || mode_to(&f, 0o1644))?;
        say(mode(&f))
    }),
    case("of a directory", "3777", |d| {
        let s = dir(d, "s");
        mode_to(&s, 0o3777)?;
        say(mode(&s))
    }),
    case("through a link", "600", |d| {
        let f = file(d, "f", b"");
        mode_to(&symlink(d, "f", "l"), 0o600)?;
        say(mode(&f))
    }),
    case("marks change", "c", |d| {
        let f = file(d, "f", b"");
        say(moved(&f, "mc", || mode_to(&f, 0o600).unwrap()))
    }),
    case("of a missing name", "ENOENT", |d| done(mode_to(&d.join("f"), 0o600))),
    case("of a descriptor", "640", |d| {
        let o = made(d, "f");
        rustix::fs::fchmod(&o, bits(0o640))?;
        say(mode(&d.join("f")))
    }),
];

pub const CHOWN: &[Case] = &[
    case("both by root", "12001:12100", |d| {
        let f = file(d, "f", b"");
        owner_to(&f, 12_001, 12_100)?;
        say(owner(&f))
    }),
    case("-1 leaves as it is", "0:12100", |d| {
        let f = file(d, "f", b"");
        owner_to(&f, -1, 12_100)?;
        say(owner(&f))
    }),
    case("largest numbers", "4294967294:4294967294", |d| {
        let f = file(d, "f", b"");
        owner_to(&f, 4_294_967_294, 4_294_967_294)?;
        say(owner(&f))
    }),
    case("the owner gives the file away", "EPERM", |d| {
        let f = program(d, &ALICE, 0o644);
        done(as_user(&ALICE, || owner_to(&f, 12_002, -1)))
    }),
    case("the owner changes to a group that they are in", "12003:12100", |d| {
        let f = program(d, &CAROL, 0o644);
        as_user(&CAROL, || owner_to(&f, -1, 12_100))?;
        say(owner(&f))
    }),
    case("the owner changes to another group", "EPERM", |d| {
        let f = program(d, &CAROL, 0o644);
        done(as_user(&CAROL, || owner_to(&f, -1, 12_001)))
    }),
    case("another changes the group", "EPERM", |d| {
        let f = program(d, &ALICE, 0o666);
        done(as_user(&CAROL, || owner_to(&f, -1, 12_100)))
    }),
    case("by a user: set-user-id and set-group-id go", "711", |d| {
        let f = program(d, &CAROL, 0o6711);
        as_user(&CAROL, || owner_to(&f, -1, 12_100))?;
        say(mode(&f))
    }),
    case("by root they go too", "711", |d| {
        let f = program(d, &CAROL, 0o6711);
        owner_to(&f, 12_001, -1)?;
        say(mode(&f))
    }),
    case("set-group-id of what the group cannot execute stays", "2644", |d| {
        let f = program(d, &CAROL, 0o2644);
        owner_to(&f, 12_001, -1)?;
        say(mode(&f))
    }),
    case("nothing changed: they go too", "711", |d| {
        let f = program(d, &CAROL, 0o6711);
        owner_to(&f, -1, -1)?;
        say(mode(&f))
    }),
    case("of a directory they stay", "6755", |d| {
        let s = dir(d, "s");
        chmod(&s, 0o6755);
        owner_to(&s, 12_001, 12_001)?;
        say(mode(&s))
    }),
    case("of a link itself", "12001:0 0:0", |d| {
        let f = file(d, "f", b"");
        let l = symlink(d, "f", "l");
        owner_to(&l, 12_001, -1)?;
        say(format!("{} {}", owner(&l), owner(&f)))
    }),
    case("marks change", "c", |d| {
        let f = file(d, "f", b"");
        say(moved(&f, "mc", || owner_to(&f, 1, 1).unwrap()))
    }),
    case("of a descriptor", "5:6", |d| {
        let o = made(d, "f");
        rustix::fs::fchown(&o, Some(Uid::from_raw(5)), Some(Gid::from_raw(6)))?;
        say(owner(&d.join("f")))
    }),
];

/// What a write by a user leaves of a program's mode.
fn after_write(d: &Path, before: u32) -> Seen {
    let f = program(d, &BOB, before);
    as_user(&ALICE, || opened(&f, OFlags::WRONLY).write_all_at(b"x", 0).unwrap());
    say(mode(&f))
}

pub const PRIVILEGES: &[Case] = &[
    case("a user's write takes set-user-id", "777", |d| after_write(d, 0o4777)),
    case("a user's write takes set-group-id", "777", |d| after_write(d, 0o2777)),
    case("also where the group cannot execute", "767", |d| after_write(d, 0o2767)),
    case("root's write leaves both", "6777", |d| {
        let f = program(d, &BOB, 0o6777);
        opened(&f, OFlags::WRONLY).write_all_at(b"x", 0).unwrap();
        say(mode(&f))
    }),
    case("the owner's write takes both", "777", |d| {
        let f = program(d, &BOB, 0o6777);
        as_user(&BOB, || opened(&f, OFlags::RDWR).write_all_at(b"x", 0).unwrap());
        say(mode(&f))
    }),
    case("a user's truncation takes both", "777", |d| {
        let f = program(d, &BOB, 0o6777);
        as_user(&ALICE, || opened(&f, OFlags::WRONLY).set_len(1).unwrap());
        say(mode(&f))
    }),
    case("a user's O_TRUNC takes both", "777", |d| {
        let f = program(d, &BOB, 0o6777);
        as_user(&ALICE, || drop(opened(&f, OFlags::WRONLY | OFlags::TRUNC)));
        say(mode(&f))
    }),
    case("a user's fallocate takes both", "777", |d| {
        let f = program(d, &BOB, 0o6777);
        let none = rustix::fs::FallocateFlags::empty();
        as_user(&ALICE, || {
            rustix::fs::fallocate(opened(&f, OFlags::WRONLY), none, 0, 9000).unwrap();
        });
        say(mode(&f))
    }),
    case("a user's write takes capabilities", "ENODATA", |d| {
        let f = program(d, &BOB, 0o777);
        let value = [0, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(&f, "security.capability", &value, flags).unwrap();
        as_user(&ALICE, || opened(&f, OFlags::WRONLY).write_all_at(b"x", 0).unwrap());
        done(rustix::fs::getxattr(&f, "security.capability", &mut [0; 32][..]))
    }),
    case("a change of owner takes capabilities", "ENODATA", |d| {
        let f = program(d, &BOB, 0o777);
        let value = [0, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(&f, "security.capability", &value, flags).unwrap();
        owner_to(&f, 12_001, -1)?;
        done(rustix::fs::getxattr(&f, "security.capability", &mut [0; 32][..]))
    }),
];

pub const UTIMENSAT: &[Case] = &[
    case("nanoseconds are kept", "1234567890123456789", |d| {
        let f = file(d, "f", b"");
        times_to(&f, &times(1_234_567_890, 123_456_789))?;
        assert_eq!(stamp(&f, 'a'), stamp(&f, 'm'));
        say(stamp(&f, 'm'))
    }),
    case("before 1970", "-999999999", |d| {
        let f = file(d, "f", b"");
        times_to(&f, &times(-1, 1))?;
        say(stamp(&f, 'm'))
    }),
    case("after 2038", "4294967296000000000", |d| {
        let f = file(d, "f", b"");
        times_to(&f, &times(1 << 32, 0))?;
        say(stamp(&f, 'm'))
    }),
    differs(
        "after what 34 bits hold",
        ("15032385535000000000", "20000000000000000000", "ext4 stores seconds up to the year 2446"),
        |d| {
            let f = file(d, "f", b"");
            times_to(&f, &times(20_000_000_000, 0))?;
            say(stamp(&f, 'm'))
        },
    ),
    case("UTIME_OMIT leaves one as it is", "a", |d| {
        let f = file(d, "f", b"");
        times_to(&f, &times(5, 0)).unwrap();
        let mut t = times(9, 0);
        t.last_modification.tv_nsec = UTIME_OMIT as _;
        say(moved(&f, "am", || times_to(&f, &t).unwrap()))
    }),
    case("UTIME_NOW is now", "am", |d| {
        let f = file(d, "f", b"");
        times_to(&f, &times(5, 0)).unwrap();
        let now = both(i64::from(UTIME_NOW as i32));
        say(moved(&f, "am", || times_to(&f, &now).unwrap()))
    }),
    case("marks change", "c", |d| {
        let f = file(d, "f", b"");
        say(moved(&f, "c", || times_to(&f, &times(5, 0)).unwrap()))
    }),
    case("two UTIME_OMIT mark nothing", "", |d| {
        let f = file(d, "f", b"");
        say(moved(&f, "amc", || times_to(&f, &both(i64::from(UTIME_OMIT as i32))).unwrap()))
    }),
    case("of a link itself", "7000000000", |d| {
        let l = symlink(d, "x", "l");
        times_to(&l, &times(7, 0))?;
        say(stamp(&l, 'm'))
    }),
    case("of a directory", "7000000000", |d| {
        times_to(d, &times(7, 0))?;
        say(stamp(d, 'm'))
    }),
    case("a time by another with the right to write", "EPERM", |d| {
        let f = program(d, &BOB, 0o666);
        done(as_user(&ALICE, || times_to(&f, &times(5, 0))))
    }),
    case("now by another with the right to write", "ok", |d| {
        let f = program(d, &BOB, 0o666);
        done(as_user(&ALICE, || times_to(&f, &both(i64::from(UTIME_NOW as i32)))))
    }),
    case("now by another without it", "EACCES", |d| {
        let f = program(d, &BOB, 0o644);
        done(as_user(&ALICE, || times_to(&f, &both(i64::from(UTIME_NOW as i32)))))
    }),
    case("a time of one and now of the other, by another", "EPERM", |d| {
        let f = program(d, &BOB, 0o666);
        let mut t = times(5, 0);
        t.last_access.tv_nsec = UTIME_NOW as _;
        done(as_user(&ALICE, || times_to(&f, &t)))
    }),
    case("too many nanoseconds", "EINVAL", |d| {
        done(times_to(&file(d, "f", b""), &both(1_000_000_000)))
    }),
    case("of a file that is being written", "7000000000", |d| {
        let o = made(d, "f");
        o.write_all_at(b"x", 0).unwrap();
        rustix::fs::futimens(&o, &times(7, 0))?;
        say(stamp(&d.join("f"), 'm'))
    }),
    case("it stays after the close", "7000000000", |d| {
        let o = made(d, "f");
        o.write_all_at(&[7; 20_000], 0).unwrap();
        rustix::fs::futimens(&o, &times(7, 0))?;
        drop(o);
        say(stamp(&d.join("f"), 'm'))
    }),
];

pub const ACCESS: &[Case] = &[
    case("there", "ok", |d| done(may(&file(d, "f", b""), Access::EXISTS))),
    case("missing", "ENOENT", |d| done(may(&d.join("f"), Access::EXISTS))),
    case("a user reads", "ok", |d| {
        let f = file(d, "f", b"");
        done(as_user(&ALICE, || may(&f, Access::READ_OK)))
    }),
    case("a user writes", "EACCES", |d| {
        let f = file(d, "f", b"");
        done(as_user(&ALICE, || may(&f, Access::READ_OK | Access::WRITE_OK)))
    }),
    case("root executes what nobody may", "EACCES", |d| {
        done(may(&file(d, "f", b""), Access::EXEC_OK))
    }),
    case("root executes what somebody may", "ok", |d| {
        done(may(&program(d, &ALICE, 0o010), Access::EXEC_OK))
    }),
    case("root searches any directory", "ok", |d| {
        let s = dir(d, "s");
        chmod(&s, 0);
        done(may(&s, Access::EXEC_OK))
    }),
    case("by a supplementary group", "ok", |d| {
        let f = file(d, "f", b"");
        chown(&f, 0, CREW);
        chmod(&f, 0o070);
        done(as_user(&CAROL, || may(&f, Access::READ_OK | Access::EXEC_OK)))
    }),
];

fn birth(path: &Path) -> i128 {
    stamp(path, 'b')
}

pub const STAT: &[Case] = &[
    case("statx tells the birth time", "true", |d| {
        let f = file(d, "f", b"");
        let s = statx(CWD, &f, AtFlags::empty(), StatxFlags::BTIME)?;
        let has = StatxFlags::from_bits_retain(s.stx_mask).contains(StatxFlags::BTIME);
        say(has && s.stx_btime.tv_sec > 1_600_000_000)
    }),
    case("birth stays when all else changes", "true", |d| {
        let f = file(d, "f", b"");
        let was = birth(&f);
        moved(&f, "", || chmod(&f, 0o600));
        times_to(&f, &times(5, 0)).unwrap();
        fs::rename(&f, d.join("g")).unwrap();
        fs::write(d.join("g"), "text").unwrap();
        say(birth(&d.join("g")) == was)
    }),
    case("of a directory and a link", "true", |d| {
        say(birth(&dir(d, "s")) > 0 && birth(&symlink(d, "x", "l")) > 0)
    }),
    case("of a descriptor", "true", |d| {
        let o = made(d, "f");
        let s = statx(&o, "", AtFlags::EMPTY_PATH, StatxFlags::BTIME)?;
        let at = i128::from(s.stx_btime.tv_sec) * 1_000_000_000 + i128::from(s.stx_btime.tv_nsec);
        say(at == birth(&d.join("f")))
    }),
    case("a new file has one time", "true", |d| {
        let f = d.join("f");
        drop(open(&f, OFlags::CREATE | OFlags::WRONLY, 0o644)?);
        let all: Vec<_> = "amcb".chars().map(|c| stamp(&f, c)).collect();
        say(all.iter().all(|t| *t == all[0]))
    }),
    case("a write marks modification and change", "mc", |d| {
        let o = made(d, "f");
        say(moved(&d.join("f"), "mc", || o.write_all_at(b"x", 0).unwrap()))
    }),
    case("a write of no bytes marks nothing", "", |d| {
        let o = made(d, "f");
        say(moved(&d.join("f"), "mc", || assert_eq!(rustix::io::write(&o, b"").unwrap(), 0)))
    }),
    case("a read marks access where it was before the last change", "a", |d| {
        let f = file(d, "f", b"text");
        times_to(&f, &times(5, 0)).unwrap();
        say(moved(&f, "amc", || drop(fs::read(&f).unwrap())))
    }),
    case("a second read marks nothing", "", |d| {
        let f = file(d, "f", b"text");
        moved(&f, "", || drop(fs::read(&f).unwrap()));
        say(moved(&f, "amc", || drop(fs::read(&f).unwrap())))
    }),
    case("a read after a write marks access again", "a", |d| {
        let f = file(d, "f", b"text");
        fs::read(&f).unwrap();
        moved(&f, "", || fs::write(&f, "more").unwrap());
        say(moved(&f, "amc", || drop(fs::read(&f).unwrap())))
    }),
    case("a read under O_NOATIME marks nothing", "", |d| {
        let f = file(d, "f", b"text");
        times_to(&f, &times(5, 0)).unwrap();
        say(moved(&f, "amc", || drop(bytes_at(&opened(&f, OFlags::NOATIME), 0, 4))))
    }),
    case("a listing marks access", "a", |d| {
        file(d, "f", b"");
        times_to(d, &times(5, 0)).unwrap();
        say(moved(d, "amc", || drop(list(d))))
    }),
    case("a look at a link marks its access", "a", |d| {
        let l = symlink(d, "x", "l");
        times_to(&l, &times(5, 0)).unwrap();
        say(moved(&l, "amc", || drop(fs::read_link(&l).unwrap())))
    }),
    case("stat marks nothing", "", |d| {
        let f = file(d, "f", b"text");
        say(moved(&f, "amc", || assert!(fs::metadata(&f).is_ok())))
    }),
    case("blocks count what is stored", "true", |d| {
        let f = file(d, "f", &[7; 100_000]);
        fs::File::open(&f).unwrap().sync_all().unwrap();
        say((190..=260).contains(&fs::metadata(&f).unwrap().blocks()))
    }),
    case("a hole has no blocks", "0", |d| {
        let o = made(d, "f");
        o.set_len(1 << 30).unwrap();
        say(o.metadata().unwrap().blocks())
    }),
    case("an inode number stays through names", "true", |d| {
        let f = file(d, "f", b"");
        let was = ino(&f);
        fs::rename(&f, d.join("g")).unwrap();
        say(ino(&d.join("g")) == was)
    }),
    case("stat of a file below one without search", "EACCES", |d| {
        let s = dir(d, "s");
        let f = file(&s, "f", b"");
        chmod(&s, 0o600);
        done(as_user(&ALICE, || lift(fs::metadata(&f))))
    }),
    case("statvfs: longest name and room", "255 true", |d| {
        let s = rustix::fs::statvfs(d)?;
        let sane = s.f_bfree <= s.f_blocks && s.f_bavail <= s.f_bfree && s.f_ffree <= s.f_files;
        say(format!("{} {}", s.f_namemax, sane && s.f_blocks > 0))
    }),
];
