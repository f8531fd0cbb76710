//! What programs expect of a file system.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{
    FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink,
};

use rustix::fs::{FallocateFlags, FileType, Mode, XattrFlags};

use crate::support::{Space, run};

fn with_mount(test: impl Fn(&std::path::Path)) {
    let space = Space::up(&[]);
    test(&space.mnt());
    space.down_clean();
}

#[test]
fn names() {
    with_mount(|m| {
        fs::write(m.join("a"), "1").unwrap();
        fs::write(m.join("b"), "2").unwrap();
        fs::hard_link(m.join("a"), m.join("a2")).unwrap();
        assert_eq!(fs::metadata(m.join("a")).unwrap().nlink(), 2);
        fs::rename(m.join("b"), m.join("a")).unwrap();
        assert_eq!(fs::read_to_string(m.join("a")).unwrap(), "2");
        assert_eq!(fs::read_to_string(m.join("a2")).unwrap(), "1");
        assert_eq!(fs::metadata(m.join("a2")).unwrap().nlink(), 1);
        symlink("a2", m.join("l")).unwrap();
        assert_eq!(fs::read_link(m.join("l")).unwrap().to_str(), Some("a2"));
        assert_eq!(fs::read_to_string(m.join("l")).unwrap(), "1");
        let long = "ä".repeat(127) + "x";
        assert_eq!(long.len(), 255);
        fs::write(m.join(&long), "long").unwrap();
        assert_eq!(fs::read_to_string(m.join(&long)).unwrap(), "long");
        let longer = fs::write(m.join(long + "y"), "").unwrap_err();
        assert_eq!(longer.kind(), ErrorKind::InvalidFilename);
        fs::create_dir_all(m.join("d/e")).unwrap();
        assert_eq!(fs::remove_dir(m.join("d")).unwrap_err().kind(), ErrorKind::DirectoryNotEmpty);
        assert!(fs::rename(m.join("d"), m.join("d/e/f")).is_err());
        assert_eq!(fs::metadata(m.join("d")).unwrap().nlink(), 3);
        fs::rename(m.join("d/e"), m.join("e")).unwrap();
        assert_eq!(fs::metadata(m.join("d")).unwrap().nlink(), 2);
        let exclusive = OpenOptions::new().write(true).create_new(true).open(m.join("a"));
        assert_eq!(exclusive.unwrap_err().kind(), ErrorKind::AlreadyExists);
    });
}

#[test]
fn open_files_outlive_their_names() {
    with_mount(|m| {
        let mut f = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(m.join("gone"))
            .unwrap();
        f.write_all(&vec![7; 300_000]).unwrap();
        fs::remove_file(m.join("gone")).unwrap();
        f.write_all(b"more").unwrap();
        f.seek(SeekFrom::Start(0)).unwrap();
        let mut all = Vec::new();
        f.read_to_end(&mut all).unwrap();
        assert_eq!((all.len(), all[0]), (300_004, 7));
        assert_eq!(f.metadata().unwrap().nlink(), 0);
    });
}

#[test]
fn attributes() {
    with_mount(|m| {
        let p = m.join("f");
        let f = File::create(&p).unwrap();
        let at = std::time::UNIX_EPOCH + std::time::Duration::new(1_234_567_890, 123_456_789);
        f.set_times(fs::FileTimes::new().set_modified(at).set_accessed(at)).unwrap();
        fs::set_permissions(&p, fs::Permissions::from_mode(0o4751)).unwrap();
        std::os::unix::fs::chown(&p, Some(12), Some(34)).unwrap();
        fs::set_permissions(&p, fs::Permissions::from_mode(0o4751)).unwrap();
        let meta = fs::metadata(&p).unwrap();
        assert_eq!((meta.mtime(), meta.mtime_nsec()), (1_234_567_890, 123_456_789));
        assert_eq!((meta.mode() & 0o7777, meta.uid(), meta.gid()), (0o4751, 12, 34));
        let x = rustix::fs::setxattr(&p, "user.colour", b"blue", XattrFlags::CREATE);
        x.unwrap();
        assert!(rustix::fs::setxattr(&p, "user.colour", b"x", XattrFlags::CREATE).is_err());
        let mut value = [0; 16];
        assert_eq!(rustix::fs::getxattr(&p, "user.colour", &mut value[..]), Ok(4));
        let mut list = [0; 64];
        assert_eq!(rustix::fs::listxattr(&p, &mut list[..]), Ok(12));
        rustix::fs::removexattr(&p, "user.colour").unwrap();
        assert!(rustix::fs::getxattr(&p, "user.colour", &mut value[..]).is_err());
        fs::create_dir(m.join("g")).unwrap();
        std::os::unix::fs::chown(m.join("g"), None, Some(77)).unwrap();
        fs::set_permissions(m.join("g"), fs::Permissions::from_mode(0o3777)).unwrap();
        fs::create_dir(m.join("g/sub")).unwrap();
        let sub = fs::metadata(m.join("g/sub")).unwrap();
        assert_eq!((sub.gid(), sub.mode() & 0o2000), (77, 0o2000));
        let stays =
            run("sh", &["-c", &format!("umask 027; touch {0}/u; stat -c %a {0}/u", m.display())]);
        assert_eq!(stays.trim(), "640");
        fs::write(m.join("g/mine"), "").unwrap();
        let other = format!("setpriv --reuid=1234 --clear-groups rm -f {}/g/mine", m.display());
        assert!(!std::process::Command::new("sh").args(["-c", &other]).status().unwrap().success());
        assert!(m.join("g/mine").exists(), "the sticky bit protects");
    });
}

#[test]
fn special_files() {
    with_mount(|m| {
        let mode = Mode::from_raw_mode(0o640);
        let cwd = rustix::fs::CWD;
        rustix::fs::mknodat(cwd, m.join("fifo"), FileType::Fifo, mode, 0).unwrap();
        assert!(fs::metadata(m.join("fifo")).unwrap().file_type().is_fifo());
        let null = rustix::fs::makedev(1, 3);
        rustix::fs::mknodat(cwd, m.join("null"), FileType::CharacterDevice, mode, null).unwrap();
        assert_eq!(fs::metadata(m.join("null")).unwrap().rdev(), null);
        // Not through a mount that was not told to: `daemons.rs` has one that was.
        let refused = OpenOptions::new().write(true).open(m.join("null")).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(13));
    });
}

#[test]
fn sizes_holes_and_appends() {
    with_mount(|m| {
        let f =
            OpenOptions::new().read(true).write(true).create_new(true).open(m.join("s")).unwrap();
        f.set_len(150 << 30).unwrap();
        f.write_all_at(b"far", 120 << 30).unwrap();
        f.write_all_at(&[1; 9000], 5 << 20).unwrap();
        f.sync_all().unwrap();
        assert_eq!(f.metadata().unwrap().len(), 150 << 30);
        assert!(f.metadata().unwrap().blocks() * 512 < 1 << 20);
        let seek = |from| rustix::fs::seek(&f, from);
        assert_eq!(seek(rustix::fs::SeekFrom::Data(0)), Ok(5 << 20));
        assert_eq!(seek(rustix::fs::SeekFrom::Hole(5 << 20)), Ok((5 << 20) + 12288));
        let mut far = [9; 5];
        f.read_exact_at(&mut far, (120 << 30) - 1).unwrap();
        assert_eq!(&far, b"\0far\0");
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&f, punch, (5 << 20) + 100, 5000).unwrap();
        let mut around = [9; 5200];
        f.read_exact_at(&mut around, 5 << 20).unwrap();
        assert_eq!((around[99], around[100], around[5099], around[5100]), (1, 0, 0, 1));
        rustix::fs::fallocate(&f, FallocateFlags::ZERO_RANGE, 5 << 20, 50).unwrap();
        f.read_exact_at(&mut around, 5 << 20).unwrap();
        assert_eq!((around[49], around[50]), (0, 1));
        let small = OpenOptions::new().append(true).create(true).open(m.join("ap")).unwrap();
        (&small).write_all(b"one").unwrap();
        fs::OpenOptions::new().append(true).open(m.join("ap")).unwrap().write_all(b"two").unwrap();
        assert_eq!(fs::read(m.join("ap")).unwrap(), b"onetwo");
        rustix::fs::fallocate(&small, FallocateFlags::empty(), 0, 20_000).unwrap();
        assert_eq!(fs::metadata(m.join("ap")).unwrap().len(), 20_000);
        File::create(m.join("ap")).unwrap();
        assert_eq!(fs::metadata(m.join("ap")).unwrap().len(), 0);
    });
}

#[test]
fn truncation_never_brings_data_back() {
    with_mount(|m| {
        for size in [100u64, 10_000, 3_000_000] {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(true);
            let f = options.open(m.join("t")).unwrap();
            f.write_all_at(&vec![5; size as usize], 0).unwrap();
            f.set_len(size / 2).unwrap();
            f.set_len(size).unwrap();
            let mut all = vec![9; size as usize];
            f.read_exact_at(&mut all, 0).unwrap();
            assert!(all[..size as usize / 2].iter().all(|b| *b == 5), "{size}");
            assert!(all[size as usize / 2..].iter().all(|b| *b == 0), "{size}");
        }
    });
}

#[test]
fn copy_range_and_direct_io() {
    with_mount(|m| {
        let data: Vec<u8> = (0..3_000_000u32).map(|i| (i / 3) as u8).collect();
        fs::write(m.join("a"), &data).unwrap();
        let (a, b) = (File::open(m.join("a")).unwrap(), File::create(m.join("b")).unwrap());
        let (mut from, mut to) = (0, 0);
        while rustix::fs::copy_file_range(&a, Some(&mut from), &b, Some(&mut to), 1 << 20).unwrap()
            > 0
        {}
        assert_eq!(fs::read(m.join("b")).unwrap(), data);
        let d =
            OpenOptions::new().read(true).custom_flags(libc_o_direct()).open(m.join("b")).unwrap();
        let mut buf = vec![0; (1 << 20) + 4096];
        let skip = buf.as_ptr().align_offset(4096);
        d.read_exact_at(&mut buf[skip..skip + (1 << 20)], 1 << 20).unwrap();
        assert_eq!(buf[skip..skip + (1 << 20)], data[1 << 20..2 << 20]);
    });
}

fn libc_o_direct() -> i32 {
    rustix::fs::OFlags::DIRECT.bits() as i32
}

#[test]
fn readdir_is_complete_while_the_directory_changes() {
    with_mount(|m| {
        let dir = m.join("many");
        fs::create_dir(&dir).unwrap();
        for i in 0..3000 {
            File::create(dir.join(format!("stay{i}"))).unwrap();
        }
        let mut seen = HashSet::new();
        for (i, entry) in fs::read_dir(&dir).unwrap().enumerate() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            assert!(seen.insert(name.clone()), "{name} twice");
            if i % 3 == 0 {
                File::create(dir.join(format!("new{i}"))).unwrap();
                let _ = fs::remove_file(dir.join(format!("new{}", i / 2)));
            }
        }
        assert_eq!(seen.iter().filter(|n| n.starts_with("stay")).count(), 3000);
        fs::remove_dir_all(&dir).unwrap();
    });
}

/// What overlay file systems do to hide a name of a lower layer.
#[test]
fn a_whiteout_takes_the_place_of_a_name() {
    let mut space = Space::up(&[]);
    let (a, b) = (space.mnt(), space.mount("other"));
    for round in 0..3 {
        let dir = format!("d{round}");
        fs::create_dir(a.join(&dir)).unwrap();
        for name in ["from", "over"] {
            fs::write(a.join(&dir).join(name), name).unwrap();
        }
        if round == 1 {
            assert_eq!(fs::read_dir(b.join(&dir)).unwrap().count(), 2);
        }
        let [from, to] =
            ["from", ["new", "new", "over"][round]].map(|name| a.join(&dir).join(name));
        let flags = rustix::fs::RenameFlags::WHITEOUT;
        rustix::fs::renameat_with(rustix::fs::CWD, &from, rustix::fs::CWD, &to, flags).unwrap();
        assert_eq!(fs::read_to_string(&to).unwrap(), "from");
        for mount in [&a, &b] {
            let left = fs::symlink_metadata(mount.join(&dir).join("from")).unwrap();
            assert!(left.file_type().is_char_device() && left.rdev() == 0);
            assert_eq!(left.mode() & 0o7777, 0);
        }
        fs::remove_dir_all(b.join(&dir)).unwrap();
    }
    space.down_clean();
}
