//! A whole space stands still for longer than anybody waits for anybody, and goes on.

use std::fs;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use nuri_proto::clock::REQUEST;
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{SetAtEnd, Space, stop, text, wait};

/// As `docker pause` or a hypervisor does it: nobody waited for anything meanwhile.
#[test]
fn a_space_that_was_paused_as_a_whole_goes_on() {
    is_paused_and_goes_on(|_| true);
}

/// Machines that are resumed one after the other: those with the mounts first.
#[test]
fn mounts_that_are_resumed_before_the_nodes_wait_for_them() {
    is_paused_and_goes_on(|line| line.contains("mount"));
}

/// Those of which `is_first` is true by their command line are resumed some seconds before others.
fn is_paused_and_goes_on(is_first: impl Fn(&str) -> bool) {
    let mut space = Space::up(&["--nodes", "2", "--shape", "mirror:2", "--targets", "4"]);
    let other = space.mount("other");
    let (ends, wrote) = (AtomicBool::new(false), AtomicU64::new(0));
    let point = space.mnt();
    std::thread::scope(|scope| {
        let ending = SetAtEnd(&ends);
        scope.spawn(|| {
            let file = fs::File::create(point.join("numbers")).unwrap();
            while !ends.load(Ordering::Relaxed) {
                let number = wrote.load(Ordering::Relaxed);
                file.write_all_at(&number.to_le_bytes(), number * 8).unwrap();
                file.sync_data().unwrap();
                fs::write(point.join(format!("small{}", number % 10)), "bytes").unwrap();
                wrote.store(number + 1, Ordering::Relaxed);
            }
        });
        fs::write(other.join("unsynced"), vec![1; 300_000]).unwrap();
        std::thread::sleep(Duration::from_millis(300));
        let all: Vec<(Pid, String)> = processes(&space).collect();
        assert!(all.len() >= 5, "{all:?}");
        all.iter().for_each(|(pid, _)| stop(*pid));
        std::thread::sleep(REQUEST + Duration::from_secs(5));
        let (first, others): (Vec<_>, _) = all.iter().partition(|(_, line)| is_first(line));
        first.iter().for_each(|(pid, _)| kill_process(*pid, Signal::CONT).unwrap());
        if !others.is_empty() {
            std::thread::sleep(Duration::from_secs(4));
        }
        others.iter().for_each(|(pid, _)| kill_process(*pid, Signal::CONT).unwrap());
        let before = wrote.load(Ordering::Relaxed);
        wait("it goes on", Duration::from_secs(20), || wrote.load(Ordering::Relaxed) > before + 50);
        drop(ending);
    });
    space.wait_status("all is well", Duration::from_secs(20), |s| s["health"]["state"] == "ok");
    let numbers = fs::read(other.join("numbers")).unwrap();
    assert_eq!(numbers.len() as u64, wrote.load(Ordering::Relaxed) * 8);
    assert!(fs::read(space.mnt().join("unsynced")).unwrap() == vec![1; 300_000]);
    let logs = space.logs();
    assert!(!logs.contains("evicted") && !logs.contains(" lost"), "{logs}");
    space.down_clean();
}

/// Of the space and its mounts, with their command lines.
fn processes(space: &Space) -> impl Iterator<Item = (Pid, String)> {
    let own = space.path("").display().to_string();
    let all = fs::read_dir("/proc").unwrap().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let line = |pid: i32| fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let with_line = move |pid| Some((Pid::from_raw(pid)?, text(&line(pid))));
    pids.filter_map(with_line).filter(move |(_, line)| line.contains(&own))
}
