//! Files hold what was written last, whatever calls made them so.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Space, nuri, refused, wait};

const PUNCH: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);

fn open(path: &Path) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

fn assert_zeros(file: &File, len: usize, what: &str) {
    let mut found = vec![1; len];
    file.read_exact_at(&mut found, 0).unwrap();
    let wrong = found.iter().position(|byte| *byte != 0);
    assert_eq!(wrong, None, "{what}");
}

/// Catches `nuri_break = "sparse_has_nothing"`. Bytes reach the targets below a size that was set
/// before, so nobody was told of them.
#[test]
fn a_file_that_was_cut_to_nothing_shows_no_old_bytes() {
    let space = Space::up(&[]);
    for size in [5000, 8192, 100_000] {
        for begin in ["small", "sparse", "synced", "closed"] {
            let path = space.mnt().join(format!("{begin}{size}"));
            let file = open(&path);
            if begin == "small" {
                file.write_all_at(&[7; 5000], 0).unwrap();
            }
            file.set_len(2 << 20).unwrap();
            if begin != "small" {
                file.write_all_at(&[7; 100_000], 0).unwrap();
            }
            match begin {
                "synced" => file.sync_all().unwrap(),
                "closed" => drop(open(&path)),
                _ => fallocate(&file, PUNCH, 1 << 20, 4096).unwrap(),
            }
            file.set_len(0).unwrap();
            file.set_len(size).unwrap();
            assert_zeros(&file, size as usize, begin);
            file.set_len(2 << 20).unwrap();
            assert_zeros(&file, 2 << 20, begin);
        }
    }
    space.down_clean();
}

/// An empty file lies with its inode or on the targets: both sides must mean the same.
#[test]
fn a_file_that_was_empty_again_can_be_synced() {
    let mut space = Space::up(&[]);
    let (a, b) = (space.mnt(), space.mount("other"));
    for (i, len) in [5000, 100_000].into_iter().enumerate() {
        let name = format!("f{i}");
        let file = open(&b.join(&name));
        file.set_len(3272).unwrap();
        fallocate(&file, FallocateFlags::ZERO_RANGE, 9845, 512).unwrap();
        file.set_len(0).unwrap();
        fallocate(&file, PUNCH, 18092, 512).unwrap();
        assert_eq!(fs::metadata(a.join(&name)).unwrap().len(), 0);
        file.write_all_at(&vec![7; len], 0).unwrap();
        file.sync_all().unwrap();
        assert!(fs::read(a.join(&name)).unwrap() == vec![7; len]);
    }
    space.down_clean();
}

/// A small file grows beyond what lies with its inode; who reads it elsewhere moves nothing.
#[test]
fn a_small_file_that_grew_is_read_elsewhere() {
    let mut space = Space::up(&[]);
    let (a, b) = (space.mnt(), space.mount("other"));
    for size in [8193, 100_000, 5 << 20] {
        let name = format!("f{size}");
        fs::write(a.join(&name), "0123456789").unwrap();
        let file = open(&a.join(&name));
        file.set_len(5).unwrap();
        file.set_len(size).unwrap();
        let reader = File::open(b.join(&name)).unwrap();
        let mut found = vec![1; size as usize];
        reader.read_exact_at(&mut found, 0).unwrap();
        reader.sync_all().unwrap();
        assert!(found[..5] == *b"01234" && found[5..].iter().all(|byte| *byte == 0));
        assert_eq!(fs::copy(b.join(&name), space.path("copy")).unwrap(), size);
    }
    let log = fs::read_to_string(space.path("space/log/mount.log")).unwrap_or_default();
    assert!(!log.contains("lost"), "{log}");
    space.down_clean();
}

/// The file was closed without an error, so nobody else can be told.
#[test]
fn an_unmount_that_lost_bytes_says_so() {
    let mut space = Space::up(&["--shape", "stripe"]);
    let (a, b) = (space.mnt(), space.mount("other"));
    wait("the mount is listed", Duration::from_secs(5), || {
        space.status()["mounts"].as_array().unwrap().len() == 2
    });
    let status = space.status();
    let mounts = status["mounts"].as_array().unwrap().clone();
    let mount = mounts.iter().find(|m| m["mountpoint"] == b.display().to_string()).unwrap();
    let daemon = Pid::from_raw(mount["pid"].as_i64().unwrap() as i32).unwrap();
    fs::write(a.join("f"), "old").unwrap();
    fs::write(b.join("f"), "new").unwrap();
    kill_process(daemon, Signal::STOP).unwrap();
    // Once the lease of the frozen mount ran out.
    assert!(fs::read(a.join("f")).is_ok());
    kill_process(daemon, Signal::CONT).unwrap();
    wait("a new session", Duration::from_secs(10), || fs::read(b.join("f")).is_ok());
    let point = b.display().to_string();
    refused(&["fs", "umount", &point], "lost");
    assert!(fs::read(b.join("f")).is_ok(), "it stays mounted");
    assert!(nuri(&["fs", "umount", &point]).status.success(), "it was said");
    space.down_clean();
}
