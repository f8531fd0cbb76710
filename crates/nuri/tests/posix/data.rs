//! `read(2)`, `write(2)`, `truncate(2)`, `fallocate(2)`, `lseek(2)`, `copy_file_range(2)`,
//! `fsync(2)`, and `O_DIRECT`.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;

use rustix::fs::{FallocateFlags, OFlags, SeekFrom, fallocate, ftruncate, seek};
use rustix::io::{Errno, ReadWriteFlags};

use crate::kit::*;

const KEEP: FallocateFlags = FallocateFlags::KEEP_SIZE;
const PUNCH: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(KEEP);
const ZERO: FallocateFlags = FallocateFlags::ZERO_RANGE;
const NONE: FallocateFlags = FallocateFlags::empty();
/// Larger than any file may be on either.
const HUGE: u64 = i64::MAX as u64;

fn with_bytes(d: &Path, len: usize) -> File {
    let o = made(d, "f");
    o.write_all_at(&vec![b'x'; len], 0).unwrap();
    o
}

/// Makes a call under a limit of 1000 bytes per file. In a process of its own: the limit is the
/// process's, and its signal would end this one (Python ignores it).
fn limited(d: &Path, call: &str) -> Seen {
    drop(with_bytes(d, 1));
    let script = format!(
        "import errno, os, resource, sys\n\
         f = os.open(sys.argv[1], os.O_RDWR)\n\
         resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n\
         try: print({call}, end='')\n\
         except OSError as e: print(errno.errorcode[e.errno], end='')"
    );
    let out = Command::new("python3").args(["-c", &script]).arg(d.join("f")).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    say(String::from_utf8_lossy(&out.stdout))
}

/// How the bytes at some places look: data or zeros.
fn look(o: &File, places: &[u64]) -> String {
    places.iter().map(|at| bytes_at(o, *at, 1)).collect::<Vec<_>>().join("")
}

pub const READ_WRITE: &[Case] = &[
    case("beyond the end", "0", |d| say(rustix::io::pread(with_bytes(d, 5), &mut [0; 9], 5)?)),
    case("across the end", "2", |d| say(rustix::io::pread(with_bytes(d, 5), &mut [0; 9], 3)?)),
    case("a gap reads as zeros", "x00x", |d| {
        let o = with_bytes(d, 1);
        o.write_all_at(b"x", 3).unwrap();
        say(bytes_at(&o, 0, 9))
    }),
    case("a large gap reads as zeros", "x0x", |d| {
        let o = with_bytes(d, 1);
        o.write_all_at(b"x", 5 << 30).unwrap();
        say(look(&o, &[0, 3 << 30, 5 << 30]))
    }),
    case("what is open for reading", "EBADF", |d| {
        done(rustix::io::write(opened(&file(d, "f", b""), OFlags::RDONLY), b"x"))
    }),
    case("what is open for writing", "EBADF", |d| {
        done(rustix::io::read(opened(&file(d, "f", b""), OFlags::WRONLY), &mut [0; 1]))
    }),
    case("reading a directory", "EISDIR", |d| {
        done(rustix::io::read(open(d, OFlags::DIRECTORY, 0)?, &mut [0; 1]))
    }),
    case("beyond the largest offset", "EINVAL", |d| {
        done(rustix::io::pwrite(with_bytes(d, 1), b"x", HUGE))
    }),
    case("beyond the largest file", "EFBIG", |d| {
        done(rustix::io::pwrite(with_bytes(d, 1), b"x", HUGE - 4096))
    }),
    case("beyond the limit of the process", "EFBIG", |d| limited(d, "os.pwrite(f, b'x', 1000)")),
    case("across the limit of the process", "10", |d| limited(d, "os.pwrite(f, b'x' * 100, 990)")),
    case("O_APPEND ignores the place of pwrite", "xxxy", |d| {
        with_bytes(d, 3);
        let o = opened(&d.join("f"), OFlags::RDWR | OFlags::APPEND);
        rustix::io::pwrite(&o, b"y", 0)?;
        say(bytes_at(&o, 0, 9))
    }),
    case("RWF_APPEND", "xxxy", |d| {
        let o = with_bytes(d, 3);
        let vec = [std::io::IoSlice::new(b"y")];
        rustix::io::pwritev2(&o, &vec, 0, ReadWriteFlags::APPEND)?;
        say(bytes_at(&o, 0, 9))
    }),
    case("appends of two descriptors", "abab", |d| {
        let f = file(d, "f", b"");
        let flags = OFlags::WRONLY | OFlags::APPEND;
        let (a, b) = (opened(&f, flags), opened(&f, flags));
        for _ in 0..2 {
            rustix::io::write(&a, b"a")?;
            rustix::io::write(&b, b"b")?;
        }
        say(read(&f))
    }),
    case("what one writes another descriptor reads", "y", |d| {
        let o = with_bytes(d, 1);
        let other = opened(&d.join("f"), OFlags::RDONLY);
        assert_eq!(bytes_at(&other, 0, 1), "x");
        o.write_all_at(b"y", 0).unwrap();
        say(bytes_at(&other, 0, 1))
    }),
    case("several buffers in one call", "onetwo", |d| {
        let o = made(d, "f");
        let vec = [std::io::IoSlice::new(b"one"), std::io::IoSlice::new(b"two")];
        rustix::io::writev(&o, &vec)?;
        say(bytes_at(&o, 0, 9))
    }),
    case("the place moves with what was read", "3", |d| {
        with_bytes(d, 5);
        let o = opened(&d.join("f"), OFlags::RDONLY);
        rustix::io::read(&o, &mut [0; 3])?;
        say(rustix::fs::tell(&o)?)
    }),
];

pub const TRUNCATE: &[Case] = &[
    case("shorter", "3 xxx", |d| {
        let o = with_bytes(d, 5);
        ftruncate(&o, 3)?;
        say(format!("{} {}", size(&d.join("f")), bytes_at(&o, 0, 9)))
    }),
    case("longer: zeros", "xx00", |d| {
        let o = with_bytes(d, 2);
        ftruncate(&o, 4)?;
        say(bytes_at(&o, 0, 9))
    }),
    case("shorter and longer: what was cut off does not come back", "x00000", |d| {
        let o = with_bytes(d, 100_000);
        o.sync_all().unwrap();
        ftruncate(&o, 1)?;
        ftruncate(&o, 100_000)?;
        say(look(&o, &[0, 1, 4095, 4096, 65_536, 99_999]))
    }),
    case("marks modification and change", "mc", |d| {
        let o = with_bytes(d, 5);
        say(moved(&d.join("f"), "mc", || ftruncate(&o, 3).unwrap()))
    }),
    case("to the same size marks them too", "mc", |d| {
        let o = with_bytes(d, 5);
        say(moved(&d.join("f"), "mc", || ftruncate(&o, 5).unwrap()))
    }),
    case("what is open for reading", "EINVAL", |d| {
        done(ftruncate(opened(&file(d, "f", b""), OFlags::RDONLY), 0))
    }),
    case("a directory", "EINVAL", |d| done(ftruncate(open(d, OFlags::DIRECTORY, 0)?, 0))),
    case("a negative size", "EINVAL", |d| done(ftruncate(made(d, "f"), u64::MAX))),
    case("beyond the largest file", "EFBIG", |d| done(ftruncate(made(d, "f"), HUGE))),
    case("beyond the limit of the process", "EFBIG", |d| limited(d, "os.ftruncate(f, 1001)")),
    case("the place stays", "5", |d| {
        let o = with_bytes(d, 9);
        seek(&o, SeekFrom::Start(5))?;
        ftruncate(&o, 0)?;
        say(rustix::fs::tell(&o)?)
    }),
    case("frees blocks", "true", |d| {
        let o = with_bytes(d, 1 << 20);
        o.sync_all().unwrap();
        ftruncate(&o, 4096)?;
        o.sync_all().unwrap();
        say(o.metadata().unwrap().blocks() <= 16)
    }),
];

pub const FALLOCATE: &[Case] = &[
    case("extends", "9000", |d| {
        let o = made(d, "f");
        fallocate(&o, NONE, 0, 9000)?;
        say(size(&d.join("f")))
    }),
    case("keeps what is there", "xxx00", |d| {
        let o = with_bytes(d, 3);
        fallocate(&o, NONE, 0, 5)?;
        say(bytes_at(&o, 0, 9))
    }),
    case("KEEP_SIZE", "3", |d| {
        let o = with_bytes(d, 3);
        fallocate(&o, KEEP, 0, 9000)?;
        say(size(&d.join("f")))
    }),
    case("extending marks modification and change", "mc", |d| {
        let o = with_bytes(d, 3);
        say(moved(&d.join("f"), "mc", || fallocate(&o, NONE, 0, 9000).unwrap()))
    }),
    case("PUNCH_HOLE", "x00x 20000", |d| {
        let o = with_bytes(d, 20_000);
        fallocate(&o, PUNCH, 100, 10_000)?;
        say(format!("{} {}", look(&o, &[99, 100, 10_099, 10_100]), size(&d.join("f"))))
    }),
    case("PUNCH_HOLE frees blocks", "true", |d| {
        let o = with_bytes(d, 1 << 20);
        o.sync_all().unwrap();
        fallocate(&o, PUNCH, 4096, (1 << 20) - 4096)?;
        o.sync_all().unwrap();
        say(o.metadata().unwrap().blocks() <= 16)
    }),
    case("PUNCH_HOLE beyond the end", "5", |d| {
        let o = with_bytes(d, 5);
        fallocate(&o, PUNCH, 3, 9000)?;
        assert_eq!(bytes_at(&o, 0, 9), "xxx00");
        say(size(&d.join("f")))
    }),
    case("PUNCH_HOLE marks modification and change", "mc", |d| {
        let o = with_bytes(d, 20_000);
        say(moved(&d.join("f"), "mc", || fallocate(&o, PUNCH, 0, 9000).unwrap()))
    }),
    case("PUNCH_HOLE without KEEP_SIZE", "EOPNOTSUPP", |d| {
        done(fallocate(with_bytes(d, 9), FallocateFlags::PUNCH_HOLE, 0, 5))
    }),
    case("ZERO_RANGE extends", "x0000 20000", |d| {
        let o = with_bytes(d, 10_000);
        fallocate(&o, ZERO, 100, 19_900)?;
        let seen = look(&o, &[99, 100, 9_999, 10_000, 19_999]);
        say(format!("{seen} {}", size(&d.join("f"))))
    }),
    case("ZERO_RANGE with KEEP_SIZE", "x0 10000", |d| {
        let o = with_bytes(d, 10_000);
        fallocate(&o, ZERO | KEEP, 100, 19_900)?;
        say(format!("{} {}", look(&o, &[99, 100]), size(&d.join("f"))))
    }),
    differs(
        "COLLAPSE_RANGE",
        ("ok", "EOPNOTSUPP", "the kernel's FUSE hands on allocation, holes and zeros only"),
        |d| {
            let o = with_bytes(d, 1 << 20);
            done(fallocate(o, FallocateFlags::COLLAPSE_RANGE, 0, 65_536))
        },
    ),
    differs(
        "INSERT_RANGE",
        ("ok", "EOPNOTSUPP", "the kernel's FUSE hands on allocation, holes and zeros only"),
        |d| {
            let o = with_bytes(d, 1 << 20);
            done(fallocate(o, FallocateFlags::INSERT_RANGE, 0, 65_536))
        },
    ),
    case("no length", "EINVAL", |d| done(fallocate(made(d, "f"), NONE, 0, 0))),
    case("a negative offset", "EINVAL", |d| done(fallocate(made(d, "f"), NONE, u64::MAX, 1))),
    case("an end beyond all numbers", "EFBIG", |d| done(fallocate(made(d, "f"), NONE, HUGE, HUGE))),
    case("beyond the limit of the process", "EFBIG", |d| {
        limited(d, "os.posix_fallocate(f, 0, 1001)")
    }),
    case("what is open for reading", "EBADF", |d| {
        done(fallocate(opened(&file(d, "f", b""), OFlags::RDONLY), NONE, 0, 9))
    }),
    case("a fifo", "ESPIPE", |d| done(fallocate(opened(&fifo(d, "p"), OFlags::RDWR), NONE, 0, 9))),
    case("a directory", "EBADF", |d| done(fallocate(open(d, OFlags::DIRECTORY, 0)?, NONE, 0, 9))),
];

/// Data in the second of three 64 KiB parts.
fn middle(d: &Path) -> File {
    let o = made(d, "f");
    o.set_len(3 << 16).unwrap();
    o.write_all_at(&[7; 1 << 16], 1 << 16).unwrap();
    o
}

pub const LSEEK: &[Case] = &[
    case("SEEK_END", "5", |d| say(seek(with_bytes(d, 5), SeekFrom::End(0))?)),
    case("beyond the end, and a write there", "8", |d| {
        let o = with_bytes(d, 5);
        seek(&o, SeekFrom::End(2))?;
        rustix::io::write(&o, b"x")?;
        say(size(&d.join("f")))
    }),
    case("before the start", "EINVAL", |d| done(seek(with_bytes(d, 5), SeekFrom::Current(-1)))),
    case("beyond all numbers", "EINVAL", |d| {
        let o = with_bytes(d, 5);
        done(seek(&o, SeekFrom::End(i64::MAX)))
    }),
    case("in a fifo", "ESPIPE", |d| {
        done(seek(opened(&fifo(d, "p"), OFlags::RDWR), SeekFrom::Start(0)))
    }),
    case("SEEK_DATA of a hole before data", "65536", |d| say(seek(middle(d), SeekFrom::Data(0))?)),
    case("SEEK_DATA in data", "65540", |d| say(seek(middle(d), SeekFrom::Data(65_540))?)),
    case("SEEK_DATA behind all data", "ENXIO", |d| done(seek(middle(d), SeekFrom::Data(131_072)))),
    case("SEEK_DATA beyond the end", "ENXIO", |d| done(seek(middle(d), SeekFrom::Data(3 << 16)))),
    case("SEEK_HOLE in a hole", "7", |d| say(seek(middle(d), SeekFrom::Hole(7))?)),
    case("SEEK_HOLE in data", "131072", |d| say(seek(middle(d), SeekFrom::Hole(65_540))?)),
    case("SEEK_HOLE of all data: the end", "5", |d| {
        say(seek(with_bytes(d, 5), SeekFrom::Hole(0))?)
    }),
    case("SEEK_HOLE beyond the end", "ENXIO", |d| done(seek(middle(d), SeekFrom::Hole(3 << 16)))),
    case("SEEK_DATA of an empty file", "ENXIO", |d| done(seek(made(d, "f"), SeekFrom::Data(0)))),
    case("SEEK_HOLE of an empty file", "ENXIO", |d| done(seek(made(d, "f"), SeekFrom::Hole(0)))),
    case("a punched hole is found", "65536 131072", |d| {
        let o = with_bytes(d, 3 << 16);
        o.sync_all().unwrap();
        fallocate(&o, PUNCH, 1 << 16, 1 << 16).unwrap();
        let hole = seek(&o, SeekFrom::Hole(0))?;
        say(format!("{hole} {}", seek(&o, SeekFrom::Data(1 << 16))?))
    }),
    case("a small file with a hole at its end", "true", |d| {
        let o = with_bytes(d, 10);
        o.set_len(8192).unwrap();
        let hole = seek(&o, SeekFrom::Hole(0))?;
        say((10..=8192).contains(&hole) && seek(&o, SeekFrom::Data(0))? == 0)
    }),
    case("a place below 0 for SEEK_DATA", "ENXIO", |d| {
        done(seek(middle(d), SeekFrom::Data(u64::MAX)))
    }),
];

fn copy(from: &File, at: u64, to: &File, into: u64, len: usize) -> Result<usize, Errno> {
    let (mut at, mut into) = (at, into);
    rustix::fs::copy_file_range(from, Some(&mut at), to, Some(&mut into), len)
}

pub const COPY_FILE_RANGE: &[Case] = &[
    case("bytes of one file to another", "00xxx", |d| {
        let (from, to) = (with_bytes(d, 5), made(d, "g"));
        assert_eq!(copy(&from, 1, &to, 2, 3)?, 3);
        say(bytes_at(&to, 0, 9))
    }),
    case("no more than there is", "2", |d| say(copy(&with_bytes(d, 5), 3, &made(d, "g"), 0, 99)?)),
    case("from beyond the end", "0", |d| say(copy(&with_bytes(d, 5), 9, &made(d, "g"), 0, 9)?)),
    case("within one file, apart", "ab", |d| {
        let o = made(d, "f");
        o.write_all_at(b"a", 0).unwrap();
        o.write_all_at(b"b", 8).unwrap();
        copy(&o, 8, &o, 1, 1)?;
        say(bytes_at(&o, 0, 2))
    }),
    case("within one file, overlapping", "EINVAL", |d| {
        let o = with_bytes(d, 20);
        done(copy(&o, 0, &o, 5, 10))
    }),
    case("to a file open for appending", "EBADF", |d| {
        let from = with_bytes(d, 5);
        let to = opened(&file(d, "g", b""), OFlags::WRONLY | OFlags::APPEND);
        done(copy(&from, 0, &to, 0, 5))
    }),
    case("from a directory", "EISDIR", |d| {
        let from = File::from(open(d, OFlags::DIRECTORY, 0)?);
        done(copy(&from, 0, &made(d, "g"), 0, 5))
    }),
    case("to beyond all numbers", "EFBIG", |d| {
        done(copy(&with_bytes(d, 5), 0, &made(d, "g"), HUGE, 5))
    }),
    case("marks what is written", "mc", |d| {
        let (from, to) = (with_bytes(d, 5), made(d, "g"));
        say(moved(&d.join("g"), "mc", || assert_eq!(copy(&from, 0, &to, 0, 5), Ok(5))))
    }),
    case("three megabytes", "true", |d| {
        let from = made(d, "f");
        let bytes: Vec<u8> = (0..3_000_000u32).map(|i| (i / 7) as u8).collect();
        from.write_all_at(&bytes, 0).unwrap();
        let to = made(d, "g");
        let mut at = 0;
        while at < bytes.len() {
            at += copy(&from, at as u64, &to, at as u64, bytes.len() - at)?;
        }
        say(fs::read(d.join("g")).unwrap() == bytes)
    }),
];

pub const SYNC: &[Case] = &[
    case("fsync", "ok", |d| done(rustix::fs::fsync(with_bytes(d, 5)))),
    case("fdatasync", "ok", |d| done(rustix::fs::fdatasync(with_bytes(d, 5)))),
    case("fsync of what is open for reading", "ok", |d| {
        done(rustix::fs::fsync(opened(&file(d, "f", b"x"), OFlags::RDONLY)))
    }),
    case("fsync of a directory", "ok", |d| done(rustix::fs::fsync(open(d, OFlags::DIRECTORY, 0)?))),
    case("fdatasync of a directory", "ok", |d| {
        done(rustix::fs::fdatasync(open(d, OFlags::DIRECTORY, 0)?))
    }),
    case("fsync of a fifo", "EINVAL", |d| {
        done(rustix::fs::fsync(opened(&fifo(d, "p"), OFlags::RDWR)))
    }),
    case("fsync of O_PATH", "EBADF", |d| {
        done(rustix::fs::fsync(open(&file(d, "f", b""), OFlags::PATH, 0)?))
    }),
    case("fsync of a file without a name", "ok", |d| {
        let o = with_bytes(d, 20_000);
        fs::remove_file(d.join("f")).unwrap();
        done(rustix::fs::fsync(&o))
    }),
    case("syncfs", "ok", |d| done(rustix::fs::syncfs(open(d, OFlags::DIRECTORY, 0)?))),
    case("O_DSYNC and O_SYNC", "ok", |d| {
        let o = opened(&file(d, "f", b""), OFlags::WRONLY | OFlags::DSYNC);
        rustix::io::write(&o, b"x")?;
        let o = opened(&d.join("f"), OFlags::WRONLY | OFlags::SYNC);
        done(rustix::io::write(&o, b"x"))
    }),
    case("sync_file_range", "Some(0)", |d| {
        // Without a safe call for it, by way of another language.
        let f = file(d, "f", &[7; 20_000]);
        let script = "import ctypes,os,sys; f=os.open(sys.argv[1],os.O_RDWR); \
            os.pwrite(f,b'x',0); l=ctypes.CDLL(None,use_errno=True); \
            q=ctypes.c_long; sys.exit(l.sync_file_range(f,q(0),q(0),7) and ctypes.get_errno())";
        let status = Command::new("python3").args(["-c", script]).arg(f).status();
        say(format!("{:?}", status.unwrap().code()))
    }),
    case("posix_fadvise", "ok", |d| {
        let advice = rustix::fs::Advice::DontNeed;
        done(rustix::fs::fadvise(with_bytes(d, 5), 0, None, advice))
    }),
];

/// A buffer of `len` bytes that begins `skip` bytes after a page.
fn aligned(len: usize, skip: usize, f: impl FnOnce(&mut [u8]) -> Seen) -> Seen {
    let mut buf = vec![b'y'; len + 8192];
    let start = buf.as_ptr().align_offset(4096) + skip;
    f(&mut buf[start..start + len])
}

const ANY: &str = "the mount takes any offset, length and memory, as NFS does";

fn direct(d: &Path) -> File {
    with_bytes(d, 16_384).sync_all().unwrap();
    opened(&d.join("f"), OFlags::RDWR | OFlags::DIRECT)
}

pub const DIRECT: &[Case] = &[
    case("aligned reads", "4096", |d| {
        let o = direct(d);
        aligned(4096, 0, |buf| say(rustix::io::pread(&o, buf, 4096)?))
    }),
    case("aligned writes are seen at once", "yx", |d| {
        let o = direct(d);
        aligned(4096, 0, |buf| say(rustix::io::pwrite(&o, buf, 4096)?))?;
        say(look(&opened(&d.join("f"), OFlags::RDONLY), &[4096, 8192]))
    }),
    case("buffered writes are seen at once", "z", |d| {
        let o = direct(d);
        opened(&d.join("f"), OFlags::WRONLY).write_all_at(b"z", 4096).unwrap();
        aligned(4096, 0, |buf| {
            rustix::io::pread(&o, &mut *buf, 4096)?;
            say(char::from(buf[0]))
        })
    }),
    case("pages that were cached are read anew", "y", |d| {
        let o = direct(d);
        let cached = opened(&d.join("f"), OFlags::RDONLY);
        assert_eq!(look(&cached, &[4096]), "x");
        aligned(4096, 0, |buf| say(rustix::io::pwrite(&o, buf, 4096)?))?;
        say(look(&cached, &[4096]))
    }),
    case("across the end", "100", |d| {
        let o = direct(d);
        o.set_len(8292).unwrap();
        aligned(4096, 0, |buf| say(rustix::io::pread(&o, buf, 8192)?))
    }),
    case("a gap before a write", "0", |d| {
        let o = direct(d);
        aligned(4096, 0, |buf| say(rustix::io::pwrite(&o, buf, 1 << 20)?))?;
        say(look(&opened(&d.join("f"), OFlags::RDONLY), &[1 << 19]))
    }),
    differs("an offset between blocks", ("EINVAL", "512", ANY), |d| {
        let o = direct(d);
        aligned(512, 0, |buf| say(rustix::io::pread(&o, buf, 100)?))
    }),
    differs("a length between blocks", ("EINVAL", "100", ANY), |d| {
        let o = direct(d);
        aligned(100, 0, |buf| say(rustix::io::pread(&o, buf, 0)?))
    }),
    differs("memory between blocks", ("EINVAL", "4096", ANY), |d| {
        let o = direct(d);
        aligned(4096, 1, |buf| say(rustix::io::pwrite(&o, buf, 0)?))
    }),
];
