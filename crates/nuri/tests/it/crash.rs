//! kill -9 of any process at any moment.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::stopwatch::Stopwatch;
use crate::support::{SetAtEnd, Space, in_time, is_mounted, stop, timed, wait};

/// Appends numbered records, each synced, until told to stop; counts those that were acknowledged
/// and returns the longest wait.
fn synced_writer(path: PathBuf, stop: &AtomicBool, done: &AtomicU64) -> Duration {
    let mut file = fs::OpenOptions::new().append(true).create(true).open(&path).unwrap();
    let mut worst = Duration::ZERO;
    while !stop.load(Ordering::Relaxed) {
        let start = Stopwatch::start();
        let record = format!("{:015}\n", done.load(Ordering::Relaxed));
        file.write_all(record.as_bytes()).expect("a write must wait, not fail");
        file.sync_data().expect("a sync must wait, not fail");
        worst = worst.max(start.elapsed());
        done.fetch_add(1, Ordering::Relaxed);
    }
    worst
}

/// Creates files under temporary names and renames them; counts how many were done.
fn renamer(dir: PathBuf, stop: &AtomicBool, done: &AtomicU64) {
    fs::create_dir(&dir).unwrap();
    while !stop.load(Ordering::Relaxed) {
        let number = done.load(Ordering::Relaxed);
        let body = vec![number as u8; 20_000];
        fs::write(dir.join("tmp"), &body).unwrap();
        fs::rename(dir.join("tmp"), dir.join(format!("f{number}"))).unwrap();
        done.fetch_add(1, Ordering::Relaxed);
    }
}

fn check_log(path: &std::path::Path, acknowledged: u64) {
    let text = fs::read_to_string(path).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert!(lines.len() as u64 >= acknowledged, "{} of {acknowledged} records", lines.len());
    for (i, line) in lines.iter().enumerate() {
        assert_eq!(line.parse::<usize>().ok(), Some(i), "record {i} is {line:?}");
    }
}

#[test]
fn servers_killed_under_load_lose_nothing_that_was_synced() {
    timed(|| {
        let space = Space::up(&["--nodes", "2"]);
        let stop = AtomicBool::new(false);
        let [synced, renamed] = [(); 2].map(|()| AtomicU64::new(0));
        std::thread::scope(|scope| {
            let ending = SetAtEnd(&stop);
            let log = scope.spawn(|| synced_writer(space.mnt().join("log"), &stop, &synced));
            let names = scope.spawn(|| renamer(space.mnt().join("names"), &stop, &renamed));
            for role in ["node1", "node0", "node1", "node0"] {
                std::thread::sleep(Duration::from_millis(900));
                space.kill(role);
            }
            std::thread::sleep(Duration::from_secs(4));
            let counts = || [&synced, &renamed].map(|done| done.load(Ordering::Relaxed));
            let last = Instant::now();
            let is_enough = || counts()[0] > 100 && counts()[1] > 10;
            // A panic would wait for the writers.
            while !is_enough() && last.elapsed() < Duration::from_secs(60) {
                std::thread::sleep(Duration::from_millis(20));
            }
            drop(ending);
            let worst = log.join().unwrap();
            names.join().unwrap();
            assert!(is_enough(), "a minute after the last start: {:?}", counts());
            in_time(worst, 10.0, "the longest pause");
            let [acknowledged, renamed] = counts();
            check_log(&space.mnt().join("log"), acknowledged);
            for i in 0..renamed {
                let body = fs::read(space.mnt().join(format!("names/f{i}"))).unwrap();
                assert_eq!(body, vec![i as u8; 20_000], "file {i}");
            }
        });
        space.down_clean();
    });
}

#[test]
fn everything_killed_at_once_keeps_what_was_synced() {
    for round in 0..3u64 {
        let space = Space::up(&[]);
        let (stop, synced) = (AtomicBool::new(false), AtomicU64::new(0));
        let log = space.mnt().join("log");
        let acknowledged = std::thread::scope(|scope| {
            let ending = SetAtEnd(&stop);
            let writer = scope.spawn(|| {
                let mut file = fs::File::create(&log).unwrap();
                let mut done = 0u64;
                loop {
                    let wrote = writeln!(file, "{done:015}").and_then(|()| file.sync_data());
                    if wrote.is_err() || stop.load(Ordering::Relaxed) {
                        return done;
                    }
                    done += 1;
                    synced.store(done, Ordering::Relaxed);
                }
            });
            std::thread::sleep(Duration::from_millis(500 + 170 * round));
            wait("enough is synced", Duration::from_secs(30), || {
                synced.load(Ordering::Relaxed) > 50
            });
            for role in ["supervisor", "node0", "mount"] {
                space.kill(role);
            }
            drop(ending);
            writer.join().unwrap()
        });
        assert!(acknowledged > 50, "{acknowledged}");
        space.again();
        check_log(&log, acknowledged);
        space.down_clean();
    }
}

#[test]
fn a_killed_mount_daemon_is_mounted_again() {
    let space = Space::up(&[]);
    fs::write(space.mnt().join("kept"), "kept").unwrap();
    fs::File::open(space.mnt().join("kept")).unwrap().sync_all().unwrap();
    for _ in 0..3 {
        let before = space.pid("mount");
        space.kill("mount");
        wait("the mount is back", Duration::from_secs(10), || {
            is_mounted(&space.mnt())
                && space.pid("mount") != before
                && fs::read_to_string(space.mnt().join("kept")).is_ok_and(|t| t == "kept")
        });
    }
    space.down_clean();
}

/// Bytes used on the first node's targets.
fn used_on_first(space: &Space) -> u64 {
    let status = space.status();
    let first = status["nodes"][0]["id"].clone();
    let targets = status["targets"].as_array().unwrap();
    targets.iter().filter(|t| t["node"] == first).map(|t| t["used"].as_u64().unwrap()).sum()
}

#[test]
fn a_target_that_hangs_keeps_no_space_of_the_others() {
    let space = Space::up(&["--nodes", "2"]);
    let dir = space.mnt().join("d");
    fs::create_dir(&dir).unwrap();
    let set = ["fs", "layout", "set", &dir.display().to_string(), "--width", "1"];
    assert!(crate::support::nuri(&set).status.success());
    let before = used_on_first(&space);
    // More objects than one round of deletions, spread over both nodes.
    for i in 0..700 {
        fs::write(dir.join(i.to_string()), vec![1; 64 << 10]).unwrap();
    }
    rustix::fs::syncfs(fs::File::open(&dir).unwrap()).unwrap();
    let full = before + (15 << 20);
    wait("status counts it", Duration::from_secs(10), || used_on_first(&space) > full);
    let node1 = rustix::process::Pid::from_raw(space.pid("node1")).unwrap();
    stop(node1);
    fs::remove_dir_all(&dir).unwrap();
    wait("space comes back", Duration::from_secs(45), || {
        used_on_first(&space) < before + (2 << 20)
    });
    rustix::process::kill_process(node1, rustix::process::Signal::CONT).unwrap();
    space.down_clean();
}

/// Its recall waits in the kernel for a page that it was about to deliver itself.
#[test]
fn a_mount_daemon_killed_in_a_recall_is_mounted_again() {
    let mut space = Space::up(&["--nodes", "2"]);
    let (mnt, other) = (space.mnt(), space.mount("other"));
    fs::write(other.join("f"), vec![7; 8 << 20]).unwrap();
    fs::File::open(other.join("f")).unwrap().sync_all().unwrap();
    let old = space.pid("mount");
    let node1 = rustix::process::Pid::from_raw(space.pid("node1")).unwrap();
    stop(node1);
    let file = mnt.join("f");
    let reads = std::thread::spawn(move || fs::read(file));
    std::thread::sleep(Duration::from_millis(500));
    let file = other.join("f");
    let writes = std::thread::spawn(move || {
        fs::OpenOptions::new().write(true).open(file).and_then(|mut f| f.write_all(b"new"))
    });
    std::thread::sleep(Duration::from_millis(500));
    space.kill("mount");
    assert!(reads.join().unwrap().is_err(), "the reader is told");
    rustix::process::kill_process(node1, rustix::process::Signal::CONT).unwrap();
    writes.join().unwrap().unwrap();
    wait("another daemon mounts", Duration::from_secs(15), || {
        is_mounted(&mnt) && space.pid("mount") != old && fs::metadata(mnt.join("f")).is_ok()
    });
    assert_eq!(&fs::read(mnt.join("f")).unwrap()[..4], b"new\x07");
    space.down_clean();
}
