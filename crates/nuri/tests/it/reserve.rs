//! Room that `fallocate` took ahead of the bytes: it is there when they come, and it is given back.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::io::Errno;

use crate::support::{Space, wait};

const KEEP: FallocateFlags = FallocateFlags::KEEP_SIZE;
const PUNCH: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(KEEP);
const NONE: FallocateFlags = FallocateFlags::empty();
const MIB: u64 = 1 << 20;
const RESERVED: u64 = 24 * MIB;
const SHAPES: &[(&str, &str)] = &[("stripe", "2"), ("mirror:2", "2"), ("parity:2+1", "3")];

fn space(shape: &str, targets: &str) -> Space {
    Space::up(&["--shape", shape, "--targets", targets, "--target-size", "128M"])
}

fn made(space: &Space, name: &str) -> File {
    let mut options = File::options();
    options.read(true).write(true).create(true).open(space.mnt().join(name)).unwrap()
}

/// Bytes that `df` shows as used.
fn used(space: &Space) -> u64 {
    let s = rustix::fs::statvfs(space.mnt()).unwrap();
    (s.f_blocks - s.f_bfree) * s.f_frsize
}

fn blocks(file: &File) -> u64 {
    file.metadata().unwrap().blocks() * 512
}

/// Takes all room that is left.
fn fill(path: &Path) {
    let mut file = File::create(path).unwrap();
    for piece in [1 << 20, 4096] {
        let refused = (0..1000).find_map(|_| {
            let wrote = file.write_all(&vec![9; piece]).and_then(|()| file.sync_data());
            wrote.err()
        });
        assert_eq!(refused.unwrap().raw_os_error(), Some(28));
    }
}

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (i.wrapping_mul(0x9E37_79B9) >> 7) as u8 ^ seed as u8).collect()
}

/// Catches `broken!("margin_filled")`.
#[test]
fn what_was_reserved_can_be_written_in_a_full_space() {
    for (shape, targets) in SHAPES {
        let mut space = space(shape, targets);
        let (file, beyond) = (made(&space, "f"), made(&space, "beyond"));
        fallocate(&file, NONE, 0, RESERVED).unwrap();
        fallocate(&beyond, KEEP, 0, MIB).unwrap();
        assert_eq!((blocks(&file), blocks(&beyond)), (RESERVED, MIB), "{shape}");
        assert_eq!(beyond.metadata().unwrap().len(), 0, "{shape}");
        fill(&space.mnt().join("fill"));
        let data = pattern(1, RESERVED as usize);
        file.write_all_at(&data[..RESERVED as usize / 2], 0).unwrap();
        // Small ones too, each durable.
        for i in 0..20 {
            let at = RESERVED as usize / 2 + i * 300_000;
            file.write_all_at(&data[at..at + 5000], at as u64).unwrap();
            file.sync_data().unwrap();
        }
        file.write_all_at(&data[RESERVED as usize / 2..], RESERVED / 2).unwrap();
        file.sync_all().unwrap();
        beyond.write_all_at(&data[..MIB as usize], 0).unwrap();
        beyond.sync_all().unwrap();
        drop((file, beyond));
        let there = space.mount("there");
        assert!(fs::read(there.join("f")).unwrap() == data, "{shape}");
        assert!(fs::read(there.join("beyond")).unwrap() == data[..MIB as usize], "{shape}");
        space.down_clean();
    }
}

#[test]
fn a_reservation_that_finds_too_little_changes_nothing() {
    for (shape, targets) in SHAPES {
        let space = space(shape, targets);
        let file = made(&space, "f");
        file.write_all_at(b"here", 3 * MIB).unwrap();
        file.sync_all().unwrap();
        let (before, seen) = (used(&space), blocks(&file));
        // More than there is at all, and a little more than there is.
        let s = rustix::fs::statvfs(space.mnt()).unwrap();
        for len in [1 << 40, s.f_bavail * s.f_frsize + 16 * MIB] {
            let refused = fallocate(&file, NONE, 0, len);
            assert_eq!(refused, Err(Errno::NOSPC), "{shape}: {len}");
            assert_eq!((blocks(&file), file.metadata().unwrap().len()), (seen, 3 * MIB + 4));
            wait("all is given back", Duration::from_secs(5), || {
                used(&space).abs_diff(before) < MIB / 2
            });
        }
        fallocate(&file, NONE, 0, RESERVED).unwrap();
        let mut found = [0; 4];
        file.read_exact_at(&mut found, 3 * MIB).unwrap();
        assert_eq!(&found, b"here");
        drop(file);
        space.down_clean();
    }
}

#[test]
fn punch_truncation_and_removal_give_it_back() {
    for (shape, targets) in SHAPES {
        let space = space(shape, targets);
        let file = made(&space, "f");
        fallocate(&file, NONE, 0, RESERVED).unwrap();
        wait("df shows it", Duration::from_secs(5), || used(&space) >= RESERVED);
        fallocate(&file, PUNCH, 4 * MIB, 8 * MIB).unwrap();
        assert_eq!(blocks(&file), RESERVED - 8 * MIB, "{shape}");
        assert_eq!(seek(&file, SeekFrom::Hole(0)), Ok(4 * MIB), "{shape}");
        assert_eq!(seek(&file, SeekFrom::Data(5 * MIB)), Ok(12 * MIB), "{shape}");
        fallocate(&file, NONE, 0, RESERVED).unwrap();
        assert_eq!(blocks(&file), RESERVED, "{shape}: once more");
        file.set_len(6 * MIB).unwrap();
        assert_eq!(blocks(&file), 6 * MIB, "{shape}");
        fallocate(&file, KEEP, 0, 12 * MIB).unwrap();
        assert_eq!((blocks(&file), file.metadata().unwrap().len()), (12 * MIB, 6 * MIB));
        drop(file);
        fs::remove_file(space.mnt().join("f")).unwrap();
        wait("all is given back", Duration::from_secs(10), || used(&space) < MIB);
        space.down_clean();
    }
}

/// What is punched out of redundant files is a hole, with its parity; the bytes around it stay.
#[test]
fn punched_bytes_of_redundant_files_are_holes() {
    for (shape, targets) in &SHAPES[1..] {
        let space = space(shape, targets);
        let file = made(&space, "f");
        let mut data = pattern(3, 8 << 20);
        file.write_all_at(&data, 0).unwrap();
        file.sync_all().unwrap();
        wait("df shows it", Duration::from_secs(5), || used(&space) >= 8 * MIB);
        let before = used(&space);
        fallocate(&file, PUNCH, 2 * MIB + 100, 4 * MIB).unwrap();
        data[(2 << 20) + 100..(6 << 20) + 100].fill(0);
        assert_eq!(blocks(&file), 4 * MIB + 4096, "{shape}");
        assert_eq!(seek(&file, SeekFrom::Hole(0)), Ok(2 * MIB + 4096), "{shape}");
        assert_eq!(seek(&file, SeekFrom::Data(3 * MIB)), Ok(6 * MIB), "{shape}");
        // `df` counts bytes of files. Of parity, the first stripe is zeros in part only.
        let least = if shape.starts_with("mirror") { 7 * MIB / 2 } else { 3 * MIB };
        wait(
            "their room and that of copies or parity is given back",
            Duration::from_secs(5),
            || {
                let freed = before.saturating_sub(used(&space));
                if freed >= least { Ok(()) } else { Err(format!("{shape}: {freed} of {before}")) }
            },
        );
        assert!(fs::read(space.mnt().join("f")).unwrap() == data, "{shape}");
        drop(file);
        space.down_clean();
    }
}
