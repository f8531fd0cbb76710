//! A full space: an error at the call or at the sync, nothing torn, space comes back.

use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::support::{Space, nuri, text, wait};

fn used(space: &Space) -> (u64, u64) {
    let s = rustix::fs::statvfs(space.mnt()).unwrap();
    ((s.f_blocks - s.f_bfree) * s.f_frsize, s.f_blocks * s.f_frsize)
}

#[test]
fn a_full_space_says_so_and_recovers() {
    let space = Space::up(&["--targets", "2", "--target-size", "48M"]);
    let m = space.mnt();
    fs::write(m.join("keep"), vec![1; 3 << 20]).unwrap();
    fs::File::open(m.join("keep")).unwrap().sync_all().unwrap();
    let mut file = fs::File::create(m.join("fill")).unwrap();
    let mut failed = None;
    for _ in 0..400 {
        let wrote = file.write_all(&[2; 1 << 20]).and_then(|()| file.sync_data());
        if let Err(error) = wrote {
            failed = Some(error);
            break;
        }
    }
    assert_eq!(failed.unwrap().raw_os_error(), Some(28));
    wait("df sees the full space", Duration::from_secs(5), || {
        let (used, size) = used(&space);
        used * 100 > size * 85
    });
    assert_eq!(fs::read(m.join("keep")).unwrap(), vec![1; 3 << 20]);
    drop(file);
    fs::remove_file(m.join("fill")).unwrap();
    wait("the space comes back", Duration::from_secs(10), || {
        let (used, size) = used(&space);
        used < (3 << 20) + size / 100
    });
    let again = vec![3; 30 << 20];
    fs::write(m.join("again"), &again).unwrap();
    fs::File::open(m.join("again")).unwrap().sync_all().unwrap();
    assert_eq!(fs::read(m.join("again")).unwrap(), again);
    space.down_clean();
}

/// Writes pieces to the end and syncs nothing, until one is refused. Returns how many bytes were
/// accepted.
fn write_until_refused(file: &mut fs::File, piece: &[u8]) -> usize {
    let mut accepted = 0;
    while accepted < 1 << 30 {
        match file.write(piece) {
            Ok(0) => panic!("neither room nor none"),
            Ok(len) => accepted += len,
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(28), "{error}");
                return accepted;
            }
        }
    }
    panic!("more was accepted than there is room for");
}

/// What was accepted is kept, and nothing else is told of afterwards.
fn check_accepted(file: fs::File, path: &Path, elsewhere: &Path, len: usize) {
    file.sync_all().unwrap();
    drop(file);
    for path in [path, elsewhere] {
        let found = fs::read(path).unwrap();
        assert_eq!(found.len(), len, "{}", path.display());
        let wrong = found.iter().position(|b| *b != 7);
        assert_eq!(wrong, None, "{} of {len}", path.display());
    }
}

/// Fills the space by two mounts at once, and appends to a small file.
fn fill(mounts: &[PathBuf; 2], piece: usize) {
    let other = |i: usize| &mounts[1 - i];
    let mut small = fs::File::create(mounts[0].join("small")).unwrap();
    small.write_all(&[7; 8000]).unwrap();
    small.sync_all().unwrap();
    let filled = std::thread::scope(|scope| {
        let fill = |mount: &Path| {
            let mut file = fs::File::create(mount.join(mount.file_name().unwrap())).unwrap();
            scope.spawn(move || (write_until_refused(&mut file, &vec![7; piece]), file))
        };
        [fill(&mounts[0]), fill(&mounts[1])].map(|thread| thread.join().unwrap())
    });
    let appended = write_until_refused(&mut small, &[7; 20_000]);
    check_accepted(small, &mounts[0].join("small"), &other(0).join("small"), 8000 + appended);
    for (i, (accepted, file)) in filled.into_iter().enumerate() {
        let name = mounts[i].file_name().unwrap();
        check_accepted(file, &mounts[i].join(name), &other(i).join(name), accepted);
        fs::remove_file(mounts[i].join(name)).unwrap();
    }
    fs::remove_file(mounts[0].join("small")).unwrap();
}

fn the_write_says(shape: &str, targets: &str) {
    let mut space = Space::bare();
    space.start(&["--shape", shape, "--targets", targets, "--target-size", "256M"]);
    let mounts = [space.mnt(), space.mount("b")];
    // Pieces of one chunk each, and such as lie across the targets' chunks.
    for piece in [64 << 10, 700_001] {
        fill(&mounts, piece);
        wait("the space comes back", Duration::from_secs(30), || {
            let (used, size) = used(&space);
            used < size / 20
        });
    }
    space.down_clean();
}

#[test]
fn the_write_that_finds_no_room_says_so_on_stripes() {
    the_write_says("stripe", "2");
}

#[test]
fn the_write_that_finds_no_room_says_so_under_parity() {
    the_write_says("parity:2+1", "3");
}

#[test]
fn the_write_that_finds_no_room_says_so_on_mirrors() {
    the_write_says("mirror:2", "2");
}

/// Short new files have no place on the targets when they are written and closed: each is accepted
/// with all that was written, or the write says that there is no room.
/// Catches `broken!("unplaced_has_room")`.
#[test]
fn short_new_files_that_are_accepted_find_room() {
    for (shape, targets) in [("stripe", "2"), ("parity:2+1", "3")] {
        let mut space = Space::bare();
        space.start(&["--shape", shape, "--targets", targets, "--target-size", "48M"]);
        let (here, there) = (space.mnt(), space.mount("b"));
        let len = |number: usize| 9000 + number * 7919 % 50_000;
        let write = |number: usize| {
            let mut file = fs::File::create(here.join(number.to_string()))?;
            file.write_all(&vec![number as u8; len(number)])
        };
        let refused = (0..40_000).find_map(|number| Some((number, write(number).err()?)));
        let (count, error) = refused.expect("there is an end of the room");
        assert_eq!(error.raw_os_error(), Some(28), "{shape}: file {count}: {error}");
        assert!(count > 200, "{shape}: {count} files");
        for mount in [&here, &there] {
            for number in 0..count {
                let found = fs::read(mount.join(number.to_string())).unwrap();
                let is_whole =
                    found.len() == len(number) && found.iter().all(|b| *b == number as u8);
                assert!(is_whole, "{shape}: file {number} of {count}, {} bytes", found.len());
            }
        }
        fs::File::open(here.join("0")).unwrap().sync_all().unwrap();
        space.down_clean();
    }
}

/// Writes pieces of so many bytes at every second place, until one is refused. Returns how many.
///
/// Where only a part of a piece finds room, that part is accepted, the rest is refused, and the
/// part is cut off again: 127 pieces of 1 MiB fit in 127.996 MiB, and 1020 KiB of the next.
fn write_every_second(file: &fs::File, piece: u64) -> u64 {
    for i in 0..4096 {
        let (at, mut accepted) = (2 * i * piece, 0);
        while accepted < piece {
            match file.write_at(&vec![7; (piece - accepted) as usize], at + accepted) {
                Ok(0) => panic!("neither room nor none"),
                Ok(len) => accepted += len as u64,
                Err(error) => {
                    assert_eq!(error.raw_os_error(), Some(28), "{error}");
                    file.set_len(at.saturating_sub(piece)).unwrap();
                    return i;
                }
            }
        }
    }
    panic!("more was accepted than there is room for");
}

#[test]
fn a_target_that_gets_all_of_a_file_says_so_too() {
    const CHUNK: u64 = 1 << 20;
    let mut space = Space::bare();
    space.start(&["--shape", "stripe", "--targets", "2", "--target-size", "128M"]);
    let path = space.mnt().join("holes");
    let file = fs::File::create(&path).unwrap();
    // All of them lie on one of two targets.
    let size = used(&space).1 / 2;
    let pieces = write_every_second(&file, CHUNK);
    assert!((size * 9 / 10..=size).contains(&(pieces * CHUNK)), "{pieces} MiB of {size}");
    file.sync_all().unwrap();
    let found = fs::read(&path).unwrap();
    assert_eq!(found.len() as u64, (2 * pieces - 1) * CHUNK);
    for (i, chunk) in found.chunks(CHUNK as usize).enumerate() {
        let expected = if i % 2 == 0 { 7 } else { 0 };
        assert!(chunk.iter().all(|b| *b == expected), "chunk {i}");
    }
    // The other target has room, also for who writes behind.
    fs::write(space.mnt().join("small"), vec![7; 20_000]).unwrap();
    drop(file);
    space.down_clean();
}

/// The groups of a shape are made when it is first asked for, after the mount got its map. Blocks
/// that are half full are not pushed for a while, which would bring a new one.
/// Catches `broken!("unknown_has_room")`.
#[test]
fn the_first_file_of_a_shape_finds_room_too() {
    const PIECE: u64 = 512 << 10;
    let mut space = Space::bare();
    space.start(&["--shape", "stripe", "--targets", "2", "--target-size", "64M"]);
    let dir = space.mnt().join("mirrored");
    fs::create_dir(&dir).unwrap();
    let set = ["fs", "layout", "set", &dir.display().to_string(), "--shape", "mirror:2"];
    let out = nuri(&set);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let file = fs::File::create(dir.join("f")).unwrap();
    let pieces = write_every_second(&file, PIECE);
    file.sync_all().unwrap();
    let size = used(&space).1 / 2;
    assert!((size * 3 / 4..=size).contains(&(pieces * PIECE)), "{pieces} pieces of {size}");
    drop(file);
    space.down_clean();
}

#[test]
fn what_a_mount_was_promised_and_does_not_use_others_get() {
    let mut space = Space::bare();
    space.start(&["--shape", "stripe", "--targets", "1", "--target-size", "128M"]);
    let mounts = [space.mnt(), space.mount("b")];
    let mut first = fs::File::create(mounts[0].join("first")).unwrap();
    // It would like more than there is.
    first.write_all(&[7; 1 << 20]).unwrap();
    let mut second = fs::File::create(mounts[1].join("second")).unwrap();
    let accepted = write_until_refused(&mut second, &[7; 1 << 20]);
    let size = used(&space).1;
    assert!(accepted as u64 > size * 9 / 10, "{accepted} of {size}");
    first.sync_all().unwrap();
    drop(first);
    check_accepted(second, &mounts[1].join("second"), &mounts[0].join("second"), accepted);
    space.down_clean();
}

/// Fills the space by one mount; a node is killed on the way, and started again.
fn fill_beside_a_crash(space: &Space, node: &str, crash_at: usize) {
    let path = space.mnt().join("fill");
    let mut file = fs::File::create(&path).unwrap();
    file.write_all(&vec![7; crash_at]).unwrap();
    space.kill(node);
    let accepted = crash_at + write_until_refused(&mut file, &[7; 1 << 20]);
    check_accepted(file, &path, &path, accepted);
    fs::remove_file(&path).unwrap();
    wait("the space comes back", Duration::from_secs(30), || {
        let (used, size) = used(space);
        used < size / 20
    });
}

#[test]
fn what_a_killed_target_lost_finds_its_room_again() {
    let space = Space::up(&["--shape", "stripe", "--targets", "2", "--target-size", "128M"]);
    for crash_at in [20 << 20, 60 << 20, 150 << 20] {
        fill_beside_a_crash(&space, "node0", crash_at);
    }
    space.down_clean();
}

#[test]
fn what_was_accepted_beside_a_killed_mirror_finds_room() {
    let space = Space::up(&["--shape", "mirror:2", "--nodes", "2", "--target-size", "128M"]);
    for crash_at in [20 << 20, 60 << 20, 90 << 20] {
        fill_beside_a_crash(&space, "node1", crash_at);
    }
    space.down_clean();
}
