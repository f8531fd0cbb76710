//! Mounts that change one directory together, by turns.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::log::{names, sync_dir};
use crate::support::{SetAtEnd, Space, wait};

/// Two mounts of a space, and one directory as each shows it.
fn two() -> (Space, PathBuf, PathBuf) {
    let mut space = Space::up(&[]);
    let (here, there) = (space.mnt().join("d"), space.mount("there").join("d"));
    fs::create_dir(&here).unwrap();
    (space, here, there)
}

/// Runs something on each of the mounts, twice on each.
fn on_both(dirs: [&Path; 2], act: impl Fn(&Path, usize) + Sync) {
    let act = &act;
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let dir = dirs[worker % 2];
            scope.spawn(move || act(dir, worker));
        }
    });
}

/// Each of many names is made by all, and has to be made by one.
#[test]
fn one_of_many_makes_a_name() {
    const NAMES: usize = 3000;
    let (space, here, there) = two();
    let made = AtomicUsize::new(0);
    on_both([&here, &there], |dir, worker| {
        // In four orders, so that all are at work all the time.
        for i in 0..NAMES {
            let i = (i + worker * NAMES / 4) % NAMES;
            match fs::File::create_new(dir.join(i.to_string())) {
                Ok(_) => drop(made.fetch_add(1, Ordering::Relaxed)),
                Err(error) => assert_eq!(error.kind(), ErrorKind::AlreadyExists),
            }
        }
    });
    assert_eq!(made.into_inner(), NAMES);
    assert_eq!(names(&here).len(), NAMES);
    assert_eq!(names(&here), names(&there));
    // And is removed by one.
    let removed = AtomicUsize::new(0);
    on_both([&here, &there], |dir, worker| {
        for i in 0..NAMES {
            let i = (i + worker * NAMES / 4) % NAMES;
            match fs::remove_file(dir.join(i.to_string())) {
                Ok(()) => drop(removed.fetch_add(1, Ordering::Relaxed)),
                Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound),
            }
        }
    });
    assert_eq!(removed.into_inner(), NAMES);
    assert!(names(&here).is_empty() && names(&there).is_empty());
    space.down_clean();
}

/// What one mount did before it said so, the other one sees: names, contents, renames, removals.
#[test]
fn what_was_said_to_be_done_is_seen_from_the_other_mount() {
    let (space, here, there) = two();
    let (done, dirs) = ([AtomicUsize::new(0), AtomicUsize::new(0)], [&here, &there]);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for me in 0..2 {
            let (done, dir, stop) = (&done, dirs[me], &stop);
            scope.spawn(move || {
                for i in 1..=1500 {
                    let (from, to) = (dir.join(format!("{me}")), dir.join(format!("{me}.{i}")));
                    fs::write(&from, format!("{me} {i}")).unwrap();
                    fs::rename(&from, &to).unwrap();
                    if i % 3 == 0 {
                        fs::remove_file(dir.join(format!("{me}.{}", i - 1))).unwrap();
                    }
                    done[me].store(i, Ordering::SeqCst);
                }
                stop.store(done.iter().all(|d| d.load(Ordering::SeqCst) == 1500), Ordering::SeqCst);
            });
            scope.spawn(move || {
                let other = 1 - me;
                while !stop.load(Ordering::SeqCst) {
                    let i = done[other].load(Ordering::SeqCst);
                    if i == 0 {
                        continue;
                    }
                    let last = fs::read_to_string(dir.join(format!("{other}.{i}")));
                    let goes = i % 3 == 2;
                    match last {
                        Ok(text) => assert_eq!(text, format!("{other} {i}")),
                        Err(error) => assert!(goes, "{other}.{i}: {error}"),
                    }
                    if i % 3 == 0 {
                        assert!(!dir.join(format!("{other}.{}", i - 1)).exists());
                    }
                }
            });
        }
    });
    assert_eq!(names(&here).len(), 2 * 1000);
    assert_eq!(names(&here), names(&there));
    space.down_clean();
}

/// The rate is that of batches: asked one by one, each change takes the directory back first.
#[test]
fn two_mounts_make_files_in_one_directory_in_batches() {
    crate::support::timed(|| {
        let (space, here, there) = two();
        let start = Instant::now();
        on_both([&here, &there], |dir, worker| {
            (0..1000)
                .for_each(|i| drop(fs::File::create(dir.join(format!("{worker}.{i}"))).unwrap()));
        });
        crate::support::in_time(start.elapsed(), 3.0, "4,000 files of two mounts");
        assert_eq!(names(&here).len(), 4000);
        space.down_clean();
    });
}

/// The server dies again and again while two mounts take turns: nothing is lost or done twice.
#[test]
fn turns_go_on_after_the_server_died() {
    let (space, here, there) = two();
    let (stop, made) = (AtomicBool::new(false), [(); 2].map(|()| AtomicUsize::new(0)));
    let work = |dir: &Path, me: usize| {
        for i in (0..).take_while(|_| !stop.load(Ordering::Relaxed)) {
            let (from, to) = (dir.join(format!("{me}")), dir.join(format!("{me}.{i}")));
            fs::write(&from, i.to_string()).unwrap();
            fs::rename(&from, &to).unwrap();
            made[me].store(i + 1, Ordering::Relaxed);
        }
    };
    let work = &work;
    let counts = || made.each_ref().map(|count| count.load(Ordering::Relaxed));
    std::thread::scope(|scope| {
        let ending = SetAtEnd(&stop);
        for (dir, me) in [(&here, 0), (&there, 1)] {
            scope.spawn(move || work(dir, me));
        }
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(900));
            space.kill("node0");
        }
        let before = counts();
        wait("both go on", Duration::from_secs(20), || {
            let go_on = |me: usize| counts()[me] > before[me] + 100;
            if go_on(0) && go_on(1) { Ok(()) } else { Err(format!("{before:?}, {:?}", counts())) }
        });
        drop(ending);
    });
    let made = counts();
    for (me, count) in made.iter().enumerate() {
        for i in 0..*count {
            let text = fs::read_to_string(here.join(format!("{me}.{i}"))).unwrap();
            assert_eq!(text, i.to_string(), "{me}.{i}");
        }
    }
    assert_eq!(names(&there).len(), made.iter().sum::<usize>());
    space.down_clean();
}

/// A mount that dies in its turn: the other one goes on, with all that was synced.
#[test]
fn a_mount_that_dies_in_its_turn_loses_what_it_did_not_sync_and_nothing_else() {
    let (space, here, there) = two();
    let (synced, made, stop) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let ending = SetAtEnd(&stop);
        scope.spawn(|| {
            for i in 0.. {
                let sync = || -> std::io::Result<()> {
                    fs::write(here.join(format!("a{i:06}")), i.to_string())?;
                    if i % 100 == 99 {
                        fs::File::open(here.join(format!("a{i:06}")))?.sync_all()?;
                        sync_dir(&here)?;
                        synced.store(i + 1, Ordering::SeqCst);
                    }
                    Ok(())
                };
                if sync().is_err() || stop.load(Ordering::SeqCst) {
                    return;
                }
            }
        });
        scope.spawn(|| {
            while !stop.load(Ordering::SeqCst) {
                let i = made.load(Ordering::SeqCst);
                fs::write(there.join(format!("b{i:06}")), i.to_string()).unwrap();
                made.store(i + 1, Ordering::SeqCst);
            }
        });
        std::thread::sleep(Duration::from_secs(2));
        space.kill("mount");
        let before = made.load(Ordering::SeqCst);
        wait("the other one goes on", Duration::from_secs(30), || {
            made.load(Ordering::SeqCst) > before + 100
        });
        drop(ending);
    });
    let all = names(&there);
    let [a, b] = ["a", "b"].map(|start| all.iter().filter(|name| name.starts_with(start)).count());
    assert_eq!(b, made.into_inner());
    let synced = synced.into_inner();
    assert!(synced > 0 && a >= synced, "{a} of {synced}");
    // In order: none is missing before one that is there.
    assert!((0..a).all(|i| all[i] == format!("a{i:06}")));
    for i in 0..synced {
        // Each hundredth was synced itself.
        let text = fs::read_to_string(there.join(format!("a{i:06}"))).unwrap();
        assert!(text == i.to_string() || text.is_empty() && i % 100 != 99, "{i}: {text:?}");
    }
    space.down_clean();
}
