//! Cases and what they are written with.
//!
//! A case gets an empty directory that everybody may use, prepares it, makes the calls in question
//! and says what came of it: `ok`, a value as text, or the name of the error. What prepares panics
//! where it fails; only the calls in question hand their error on with `?`.

use std::ffi::OsStr;
use std::fs::{File, Permissions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, StatxFlags, Timespec, Timestamps, Uid,
};
use rustix::io::Errno;

/// What came of a case.
pub type Seen = Result<String, Errno>;
type Run = fn(&Path) -> Seen;

/// One row of a table.
pub struct Case {
    pub name: &'static str,
    pub run: Run,
    pub local: &'static str,
    pub mount: &'static str,
    /// Why the two may differ.
    pub why: &'static str,
}

/// A case that must come out the same everywhere.
pub const fn case(name: &'static str, expected: &'static str, run: Run) -> Case {
    Case { name, run, local: expected, mount: expected, why: "" }
}

/// A case that may come out differently: (local, mount, why).
pub const fn differs(
    name: &'static str,
    expected: (&'static str, &'static str, &'static str),
    run: Run,
) -> Case {
    Case { name, run, local: expected.0, mount: expected.1, why: expected.2 }
}

/// "ok", for a call whose success says enough.
pub fn done<T>(result: Result<T, Errno>) -> Seen {
    result.map(|_| "ok".into())
}

/// A value, for a call that tells something.
pub fn say(value: impl ToString) -> Seen {
    Ok(value.to_string())
}

pub fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or_else(|| panic!("{error}"))
}

pub fn lift<T>(result: std::io::Result<T>) -> Result<T, Errno> {
    result.map_err(|e| errno(&e))
}

macro_rules! names {
    ($($name:ident)*) => {
        /// The name of an error as manual pages have it.
        pub fn name_of(errno: Errno) -> String {
            $(if errno == Errno::$name { return concat!("E", stringify!($name)).into(); })*
            match errno {
                // Names that differ from the manual's.
                Errno::ACCESS => "EACCES".into(),
                Errno::TOOBIG => "E2BIG".into(),
                Errno::OPNOTSUPP => "EOPNOTSUPP".into(),
                other => format!("errno {}", other.raw_os_error()),
            }
        }
    };
}
names! {
    AGAIN BADF BUSY DQUOT EXIST FAULT FBIG INVAL IO ISDIR LOOP MLINK NAMETOOLONG NODATA
    NODEV NOENT NOSPC NOSYS NOTDIR NOTEMPTY NXIO OVERFLOW PERM PIPE RANGE ROFS SPIPE STALE
    TXTBSY XDEV
}

/// Who makes a call.
pub struct User {
    pub uid: u32,
    pub gid: u32,
    pub groups: &'static [u32],
}

pub const ALICE: User = User { uid: 12_001, gid: 12_001, groups: &[] };
pub const BOB: User = User { uid: 12_002, gid: 12_002, groups: &[] };
/// A group that only `CAROL` is in, beside her own.
pub const CREW: u32 = 12_100;
pub const CAROL: User = User { uid: 12_003, gid: 12_003, groups: &[CREW, 12_101] };

/// Runs `f` with the credentials of a user, in a thread of its own: credentials are the thread's.
pub fn as_user<T: Send>(user: &User, f: impl FnOnce() -> T + Send) -> T {
    use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
    let body = || {
        let groups: Vec<_> = user.groups.iter().map(|g| Gid::from_raw(*g)).collect();
        let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
        set_thread_groups(&groups).unwrap();
        set_thread_res_gid(gid, gid, gid).unwrap();
        set_thread_res_uid(uid, uid, uid).unwrap();
        f()
    };
    let outcome = std::thread::scope(|s| s.spawn(body).join());
    outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Runs `f` under a file mode creation mask. The mask is the process's: cases run one at a time.
pub fn with_umask<T>(mask: u32, f: impl FnOnce() -> T) -> T {
    let before = rustix::process::umask(Mode::from_raw_mode(mask));
    let outcome = f();
    rustix::process::umask(before);
    outcome
}

pub fn bits(mode: u32) -> Mode {
    Mode::from_raw_mode(mode)
}

/// A file with bytes in it, mode 0644.
pub fn file(d: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = d.join(name);
    std::fs::write(&path, bytes).unwrap();
    chmod(&path, 0o644);
    path
}

/// A directory, mode 0755.
pub fn dir(d: &Path, name: &str) -> PathBuf {
    let path = d.join(name);
    std::fs::create_dir(&path).unwrap();
    chmod(&path, 0o755);
    path
}

pub fn symlink(d: &Path, to: &str, name: &str) -> PathBuf {
    let path = d.join(name);
    std::os::unix::fs::symlink(to, &path).unwrap();
    path
}

pub fn fifo(d: &Path, name: &str) -> PathBuf {
    let path = d.join(name);
    rustix::fs::mknodat(CWD, &path, FileType::Fifo, bits(0o666), 0).unwrap();
    path
}

pub fn chmod(path: &Path, mode: u32) {
    std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

pub fn chown(path: &Path, uid: u32, gid: u32) {
    std::os::unix::fs::lchown(path, Some(uid), Some(gid)).unwrap();
}

/// Permission bits as manual pages write them.
pub fn mode(path: &Path) -> String {
    format!("{:o}", std::fs::symlink_metadata(path).unwrap().mode() & 0o7777)
}

pub fn owner(path: &Path) -> String {
    let meta = std::fs::symlink_metadata(path).unwrap();
    format!("{}:{}", meta.uid(), meta.gid())
}

pub fn nlink(path: &Path) -> u64 {
    std::fs::symlink_metadata(path).unwrap().nlink()
}

pub fn ino(path: &Path) -> u64 {
    std::fs::symlink_metadata(path).unwrap().ino()
}

pub fn size(path: &Path) -> u64 {
    std::fs::symlink_metadata(path).unwrap().len()
}

pub fn there(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

pub fn read(path: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned()
}

/// Opens, as the call itself.
pub fn open(path: &Path, flags: OFlags, mode: u32) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, flags | OFlags::CLOEXEC, bits(mode))
}

/// Opens what must be there.
pub fn opened(path: &Path, flags: OFlags) -> File {
    File::from(open(path, flags, 0).unwrap())
}

/// A new file, open for reading and writing.
pub fn made(d: &Path, name: &str) -> File {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR;
    File::from(open(&d.join(name), flags, 0o644).unwrap())
}

pub fn bytes_at(file: &File, offset: u64, len: usize) -> String {
    let mut bytes = vec![b'?'; len];
    let n = file.read_at(&mut bytes, offset).unwrap();
    String::from_utf8_lossy(&bytes[..n]).replace('\0', "0")
}

/// A name of so many bytes.
pub fn long(len: usize) -> String {
    "n".repeat(len)
}

/// A path of so many bytes to `name` in `d`, by way of `./`.
pub fn long_path(d: &Path, name: &str, len: usize) -> PathBuf {
    let mut path = d.as_os_str().to_owned();
    while path.len() + 2 + name.len() < len {
        path.push("/.");
    }
    while path.len() + 1 + name.len() < len {
        path.push("/");
    }
    path.push("/");
    path.push(OsStr::new(name));
    assert_eq!(path.len(), len);
    PathBuf::from(path)
}

/// A time stamp of a path: `a`, `m`, `c` or `b` (birth), in nanoseconds.
pub fn stamp(path: &Path, which: char) -> i128 {
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    let want = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let s = rustix::fs::statx(CWD, path, flags, want).unwrap();
    let t = match which {
        'a' => s.stx_atime,
        'm' => s.stx_mtime,
        'c' => s.stx_ctime,
        _ => s.stx_btime,
    };
    i128::from(t.tv_sec) * 1_000_000_000 + i128::from(t.tv_nsec)
}

/// Which of a path's stamps `f` moved forward, of those named: "mc" for a write.
pub fn moved(path: &Path, which: &str, f: impl FnOnce()) -> String {
    let before: Vec<_> = which.chars().map(|c| stamp(path, c)).collect();
    // Longer than a tick of the kernel, by which local file systems stamp.
    std::thread::sleep(std::time::Duration::from_millis(12));
    f();
    let rose = which.chars().zip(before).filter(|(c, b)| stamp(path, *c) > *b);
    rose.map(|(c, _)| c).collect()
}

pub fn times(sec: i64, nsec: i64) -> Timestamps {
    let at = Timespec { tv_sec: sec, tv_nsec: nsec as _ };
    Timestamps { last_access: at, last_modification: at }
}

/// Names in a directory, sorted.
pub fn list(path: &Path) -> String {
    let name = |e: std::io::Result<std::fs::DirEntry>| e.unwrap().file_name();
    let mut names: Vec<_> = std::fs::read_dir(path).unwrap().map(name).collect();
    names.sort();
    let names: Vec<_> = names.iter().map(|n| n.to_string_lossy()).collect();
    names.join(" ")
}

/// A directory of another file system.
pub fn elsewhere() -> &'static Path {
    Path::new("/dev/shm")
}
