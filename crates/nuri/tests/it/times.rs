//! Times of files: what was shown once stays, and later is later.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, StatxFlags, Timespec, Timestamps, statx, utimensat};

use crate::support::Space;

/// Modified and changed, asked of the mount and not of its kernel's cache.
fn times(path: &Path) -> [(i64, u32); 2] {
    let found = statx(CWD, path, AtFlags::STATX_FORCE_SYNC, StatxFlags::ALL).unwrap();
    [found.stx_mtime, found.stx_ctime].map(|time| (time.tv_sec, time.tv_nsec))
}

#[test]
fn times_that_were_shown_stay_when_bytes_are_flushed() {
    let mut space = Space::up(&[]);
    let (a, b) = (space.mnt(), space.mount("other"));
    // In a directory of its own, and in one that others look into.
    fs::create_dir(a.join("d")).unwrap();
    let mut shown = Vec::new();
    for (dir, len) in [("", 10), ("", 100_000), ("d", 10), ("d", 100_000)] {
        let name = format!("{dir}/f{len}");
        let name = name.trim_start_matches('/').to_owned();
        let file = File::create(a.join(&name)).unwrap();
        file.write_all_at(&vec![7; len], 0).unwrap();
        drop(file);
        let path = a.join(&name);
        shown.push((name, times(&path)));
    }
    std::thread::sleep(Duration::from_millis(1600));
    for (name, shown) in &shown {
        assert_eq!(times(&a.join(name)), *shown, "{name} after it was flushed");
        File::open(a.join(name)).unwrap().sync_all().unwrap();
        assert_eq!(times(&a.join(name)), *shown, "{name} after a sync");
        assert_eq!(times(&b.join(name)), *shown, "{name} elsewhere");
    }
    space.down_clean();
}

#[test]
fn whoever_saw_a_time_stamps_later() {
    let mut space = Space::up(&[]);
    let mounts = [space.mnt(), space.mount("other")];
    let open = |mount: &Path, name: &str| {
        OpenOptions::new().create(true).append(true).open(mount.join(name)).unwrap()
    };
    let mut before = [(0, 0); 2];
    for turn in 0..200 {
        let own = &mounts[turn % 2];
        // One file of both, and now and then one made from it.
        let name = if turn % 5 == 4 { format!("product{turn}") } else { "source".into() };
        std::io::Write::write_all(&mut open(own, &name), b"x").unwrap();
        let now = times(&own.join(&name));
        assert!(now[0] > before[0] && now[1] > before[1], "turn {turn}: {now:?} after {before:?}");
        assert_eq!(times(&mounts[1 - turn % 2].join(&name)), now, "turn {turn}");
        before = now;
    }
    space.down_clean();
}

#[test]
fn all_times_that_a_program_sets_are_kept() {
    let mut space = Space::up(&[]);
    let (a, b) = (space.mnt(), space.mount("other"));
    let (here, there) = (a.join("f"), b.join("f"));
    fs::write(&here, "x").unwrap();
    let seconds = [-62_135_596_800, -1, 0, 1, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, 0x1_0000_0000];
    // The ends of 2446 and of what is counted in nanoseconds, and beyond.
    let late = [15_032_385_535, 15_032_385_536, 9_223_372_036, 9_223_372_037, 1 << 40];
    for sec in seconds.into_iter().chain(late) {
        for nsec in [0, 1, 999_999_999] {
            let time = Timespec { tv_sec: sec, tv_nsec: nsec };
            let both = Timestamps { last_access: time, last_modification: time };
            utimensat(CWD, &here, &both, AtFlags::empty()).unwrap();
            for path in [&here, &there, &here] {
                let found = fs::metadata(path).unwrap();
                let wanted = (sec, nsec);
                assert_eq!((found.mtime(), found.mtime_nsec()), wanted, "{path:?}");
                assert_eq!((found.atime(), found.atime_nsec()), wanted, "{path:?}");
            }
        }
    }
    let wrong = Timespec { tv_sec: 5, tv_nsec: 1_000_000_000 };
    let both = Timestamps { last_access: wrong, last_modification: wrong };
    assert_eq!(utimensat(CWD, &here, &both, AtFlags::empty()), Err(rustix::io::Errno::INVAL));
    fs::write(&there, "y").unwrap();
    assert!(fs::metadata(&here).unwrap().mtime() > 1_700_000_000, "a write sets it again");
    space.down_clean();
}
