//! What mounts do by themselves in directories that nobody else uses, and tell later.

use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{SetAtEnd, Space, freeze, is_mounted, wait};

pub(crate) fn sync_dir(dir: &Path) -> std::io::Result<()> {
    fs::File::open(dir)?.sync_all()
}

/// Names in a directory, sorted.
pub(crate) fn names(dir: &Path) -> Vec<String> {
    let name = |e: std::io::Result<fs::DirEntry>| e.unwrap().file_name().into_string().unwrap();
    let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(name).collect();
    names.sort();
    names
}

/// Catches `broken!("recall_keeps_log")`.
#[test]
fn another_mount_sees_at_once_what_was_not_told_yet() {
    let mut space = Space::up(&[]);
    let (mnt, other) = (space.mnt(), space.mount("other"));
    for round in 0..20 {
        let (here, there) = (mnt.join(format!("d{round}")), other.join(format!("d{round}")));
        fs::create_dir(&here).unwrap();
        fs::create_dir(here.join("sub")).unwrap();
        for i in 0..30 {
            fs::write(here.join(format!("f{i}")), format!("{round} {i}")).unwrap();
        }
        fs::rename(here.join("f0"), here.join("sub/g")).unwrap();
        fs::remove_file(here.join("f1")).unwrap();
        std::os::unix::fs::symlink("f2", here.join("link")).unwrap();
        assert_eq!(fs::read_to_string(there.join("sub/g")).unwrap(), format!("{round} 0"));
        assert_eq!(fs::read_to_string(there.join("link")).unwrap(), format!("{round} 2"));
        assert!(!there.join("f0").exists() && !there.join("f1").exists());
        assert_eq!(names(&there).len(), 30);
        fs::remove_dir_all(&there).unwrap();
        assert!(!here.exists(), "gone there is gone here");
    }
    space.down_clean();
}

/// Data that goes to the targets is told after the log, and must not overwrite times in it.
#[test]
fn times_and_rights_set_behind_data_that_is_not_told_stay() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let mut space = Space::up(&[]);
    let (mnt, other) = (space.mnt(), space.mount("other"));
    let old = |i: u64| std::time::UNIX_EPOCH + Duration::from_secs(1_500_000_000 + i);
    let write_and_set = |file: &mut fs::File, data: &[u8], i: u64| {
        file.write_all(data).unwrap();
        file.set_times(fs::FileTimes::new().set_modified(old(i))).unwrap();
        file.set_permissions(fs::Permissions::from_mode(0o640)).unwrap();
    };
    let check = |name: String, data: &[u8], i: u64| {
        let found = fs::metadata(other.join(&name)).unwrap();
        let seen = (found.modified().unwrap(), found.mode() & 0o777, found.len());
        assert_eq!(seen, (old(i), 0o640, data.len() as u64), "{name}");
        assert!(fs::read(other.join(&name)).unwrap() == data, "{name}");
    };
    for i in 0..30 {
        let data = vec![i as u8; 9000 + 3000 * i as usize];
        let mut file = fs::File::create(mnt.join(format!("f{i}"))).unwrap();
        write_and_set(&mut file, &data, i);
        if i % 3 == 0 {
            // Now the server knows it.
            file.sync_all().unwrap();
            write_and_set(&mut file, &data, 100 + i);
            check(format!("f{i}"), &data.repeat(2), 100 + i);
            continue;
        }
        drop(file);
        check(format!("f{i}"), &data, i);
    }
    space.down_clean();
}

/// Makes numbered files by way of temporary names, as programs do that must not lose any.
fn keeper(dir: &Path, stop: &AtomicBool, kept: &AtomicU64) -> u64 {
    let mut done = 0;
    while !stop.load(Ordering::Relaxed) {
        let make = || -> std::io::Result<()> {
            let tmp = dir.join("tmp");
            let mut file = fs::File::create(&tmp)?;
            file.write_all(format!("{done}").as_bytes())?;
            file.sync_all()?;
            drop(file);
            fs::rename(&tmp, dir.join(format!("f{done}")))?;
            sync_dir(dir)
        };
        if make().is_err() {
            return done;
        }
        done += 1;
        kept.store(done, Ordering::Relaxed);
    }
    done
}

/// Catches `broken!("sync_without_log")`: the mount dies right after the sync, before it would have
/// flushed its journal by itself.
#[test]
fn what_a_sync_of_a_directory_confirmed_outlives_the_mount_at_once() {
    let space = Space::up(&[]);
    for round in 0..4 {
        let dir = space.mnt().join(format!("d{round}"));
        fs::create_dir(&dir).unwrap();
        let mount = space.pid("mount");
        // Often enough for the mount to have the directory to itself.
        (0..20).for_each(|i| fs::write(dir.join(format!("f{i}")), "").unwrap());
        sync_dir(&dir).unwrap();
        kill_process(Pid::from_raw(mount).unwrap(), Signal::KILL).unwrap();
        wait("the mount is back", Duration::from_secs(20), || {
            is_mounted(&space.mnt()) && space.pid("mount") != mount && dir.exists()
        });
        assert_eq!(names(&dir).len(), 20, "round {round}");
    }
    space.down_clean();
}

#[test]
fn a_killed_mount_keeps_what_was_synced_and_of_the_rest_a_beginning() {
    let space = Space::up(&[]);
    for round in 0..5 {
        let (kept, free) =
            (space.mnt().join(format!("k{round}")), space.mnt().join(format!("r{round}")));
        fs::create_dir(&kept).unwrap();
        fs::create_dir(&free).unwrap();
        sync_dir(&space.mnt()).unwrap();
        let (stop, before) = (AtomicBool::new(false), space.pid("mount"));
        let done = AtomicU64::new(0);
        let synced = std::thread::scope(|scope| {
            let ending = SetAtEnd(&stop);
            let keeper = scope.spawn(|| keeper(&kept, &stop, &done));
            let free = scope.spawn(|| {
                let write = |i: &u32| fs::write(free.join(format!("{i:06}")), i.to_string());
                // Who does not run between the kill and the next mount meets no error.
                (0..).find(|i| stop.load(Ordering::Relaxed) || write(i).is_err())
            });
            std::thread::sleep(Duration::from_millis(400 + 130 * round));
            // On a busy machine that may be too short for anything.
            wait("something is synced", Duration::from_secs(20), || {
                done.load(Ordering::Relaxed) > 0
            });
            space.kill("mount");
            drop(ending);
            free.join().unwrap();
            keeper.join().unwrap()
        });
        wait("the mount is back", Duration::from_secs(20), || {
            is_mounted(&space.mnt()) && space.pid("mount") != before && kept.exists()
        });
        for i in 0..synced {
            let text = fs::read_to_string(kept.join(format!("f{i}"))).unwrap();
            assert_eq!(text, i.to_string(), "round {round}");
        }
        assert!(synced > 0, "nothing was synced");
        // In order: none is missing before one that is there.
        let left = names(&free);
        let wanted: Vec<_> = (0..left.len()).map(|i| format!("{i:06}")).collect();
        assert_eq!(left, wanted, "round {round}");
    }
    space.down_clean();
}

/// Makes, renames and removes files until it is told to stop, and counts how often.
fn churn(dir: &Path, stop: &AtomicBool, done: &AtomicU64) {
    for i in (0..).take_while(|_| !stop.load(Ordering::Relaxed)) {
        let (a, b) = (dir.join(format!("a{i}")), dir.join(format!("b{i}")));
        fs::write(&a, i.to_string()).unwrap();
        fs::rename(&a, &b).unwrap();
        if i % 3 == 0 {
            fs::remove_file(&b).unwrap();
        }
        done.store(i + 1, Ordering::Relaxed);
    }
}

/// Churns the directory while servers die, and a while after the last one did.
fn churn_meanwhile(dir: &Path, meanwhile: impl FnOnce()) -> u64 {
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let ending = SetAtEnd(&stop);
        scope.spawn(|| churn(dir, &stop, &done));
        meanwhile();
        let enough = done.load(Ordering::Relaxed) + 100;
        wait("it goes on", Duration::from_secs(20), || done.load(Ordering::Relaxed) > enough);
        drop(ending);
    });
    done.into_inner()
}

/// What `churn` left, all of it and nothing else.
fn check_churned(dir: &Path, done: u64) {
    for i in 0..done {
        let text = fs::read_to_string(dir.join(format!("b{i}"))).ok();
        assert_eq!(text, (i % 3 != 0).then(|| i.to_string()), "{i}");
    }
    assert_eq!(names(dir).len(), (0..done).filter(|i| i % 3 != 0).count());
}

#[test]
fn a_restarted_server_gets_every_step_once() {
    let space = Space::up(&[]);
    let dir = space.mnt().join("d");
    fs::create_dir(&dir).unwrap();
    let done = churn_meanwhile(&dir, || {
        for _ in 0..4 {
            std::thread::sleep(Duration::from_millis(700));
            space.kill("node0");
        }
    });
    check_churned(&dir, done);
    space.down_clean();
}

/// It dies while the mount tells it what it holds, which takes several calls here.
#[test]
fn a_server_that_restarts_again_at_once_gets_every_step_too() {
    let space = Space::up(&[]);
    let (dir, held) = (space.mnt().join("d"), space.mnt().join("held"));
    fs::create_dir(&dir).unwrap();
    fs::create_dir(&held).unwrap();
    (0..9000).for_each(|i| drop(fs::File::create(held.join(i.to_string())).unwrap()));
    let log = space.path("space/log/node0.log");
    let starts = || fs::read_to_string(&log).unwrap().matches("serves").count();
    let done = churn_meanwhile(&dir, || {
        for after in [500, 0, 10, 30, 60] {
            let known = starts();
            std::thread::sleep(Duration::from_millis(after));
            space.kill("node0");
            wait("the server serves", Duration::from_secs(20), || starts() > known);
        }
    });
    check_churned(&dir, done);
    assert_eq!(names(&held).len(), 9000);
    space.down_clean();
}

/// Its session ends meanwhile: what was not told is lost, and whoever asks is told so.
#[test]
fn what_a_frozen_mount_could_not_tell_is_reported_lost() {
    let mut space = Space::up(&[]);
    let (mnt, other) = (space.mnt(), space.mount("other"));
    let dir = mnt.join("d");
    fs::create_dir(&dir).unwrap();
    sync_dir(&dir).unwrap();
    let mut lost = false;
    for round in 0..8 {
        // Held open, so that it can be asked.
        let file = fs::File::create(dir.join(format!("f{round}"))).unwrap();
        let frozen = freeze(&space, "mount");
        // Who looks from elsewhere does not wait for ever.
        assert!(names(&other.join("d")).len() <= round + 1);
        drop(frozen);
        wait("the mount is back", Duration::from_secs(20), || fs::metadata(&dir).is_ok());
        let there = other.join("d").join(format!("f{round}")).exists();
        let synced = file.sync_all();
        assert!(there || synced.is_err(), "round {round}: lost, and nobody was told");
        if !there {
            assert_eq!(synced.unwrap_err().raw_os_error(), Some(5));
            lost = true;
            break;
        }
    }
    assert!(lost, "the freezes came too late every time");
    assert_eq!(names(&dir), names(&other.join("d")));
    fs::write(dir.join("after"), "works").unwrap();
    assert_eq!(fs::read_to_string(other.join("d/after")).unwrap(), "works");
    space.down_clean();
}

#[test]
fn one_that_is_changed_from_both_sides_stays_one() {
    let mut space = Space::up(&[]);
    let (mnt, other) = (space.mnt(), space.mount("other"));
    fs::create_dir(mnt.join("d")).unwrap();
    std::thread::scope(|scope| {
        for (name, mount) in [("a", &mnt), ("b", &other)] {
            scope.spawn(move || {
                let dir = mount.join("d");
                for i in 0..300 {
                    let (from, to) =
                        (dir.join(format!("{name}{i}")), dir.join(format!("{name}-{i}")));
                    fs::write(&from, i.to_string()).unwrap();
                    fs::rename(&from, &to).unwrap();
                    if i % 2 == 0 {
                        fs::remove_file(&to).unwrap();
                    }
                    if i % 50 == 0 {
                        // Long enough alone for either to have it to itself.
                        std::thread::sleep(Duration::from_millis(200));
                    }
                }
            });
        }
    });
    let all = names(&mnt.join("d"));
    assert_eq!(all.len(), 300);
    assert_eq!(all, names(&other.join("d")));
    for name in all {
        let number = name.split('-').nth(1).unwrap();
        assert_eq!(fs::read_to_string(other.join("d").join(&name)).unwrap(), number);
    }
    space.down_clean();
}

/// An open that is on its way while its file is removed finds a file that keeps what is written to
/// it, or none.
#[test]
fn a_file_that_is_opened_while_it_is_removed_keeps_its_data() {
    let space = Space::up(&[]);
    let dir = space.mnt().join("d");
    fs::create_dir(&dir).unwrap();
    let (path, stop) = (dir.join("f"), AtomicBool::new(false));
    // The kernel asks again once; the next file of that name may go as well.
    let is_gone = |kind| matches!(kind, ErrorKind::NotFound | ErrorKind::StaleNetworkFileHandle);
    let writer = |place: u64| {
        let mut found = 0;
        while !stop.load(Ordering::Relaxed) {
            match fs::File::options().read(true).write(true).open(&path) {
                Ok(file) => {
                    file.write_all_at(b"mine", place).unwrap();
                    file.sync_all().unwrap();
                    let mut got = [0; 4];
                    file.read_exact_at(&mut got, place).unwrap();
                    assert_eq!(&got, b"mine");
                    found += 1;
                }
                Err(error) => assert!(is_gone(error.kind()), "{error}"),
            }
        }
        found
    };
    let found: u32 = std::thread::scope(|scope| {
        let ending = SetAtEnd(&stop);
        let writer = &writer;
        let writers: Vec<_> = (0..3).map(|i| scope.spawn(move || writer(3000 + 10 * i))).collect();
        for _ in 0..2000 {
            fs::write(&path, "its own").unwrap();
            fs::remove_file(&path).unwrap();
        }
        drop(ending);
        writers.into_iter().map(|writer| writer.join().unwrap()).sum()
    });
    assert!(found > 0, "nobody saw the file");
    space.down_clean();
}
