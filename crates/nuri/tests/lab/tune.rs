//! `nuri lab tune` on a space: what it finds, sets and takes back, and what an ended search leaves.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::Signal;

use super::support::{NURI, Space, nuri, refused, text, wait};
use super::{descendants, kill};

/// They measure: one after the other, so that they are not each other's noise.
static ALONE: Mutex<()> = Mutex::new(());
/// Searches until one must have found what is clear on a machine without other work.
const TRIES: usize = 10;

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn layout(dir: &str) -> String {
    text(&nuri(&["fs", "layout", "get", dir]).stdout).trim().to_string()
}

/// What is forced of the mount.
fn forced(dir: &str) -> String {
    let told = text(&nuri(&["fs", "tune", "get", dir, "--json"]).stdout);
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    let names = ["buffer", "streams", "read_ahead", "write_behind", "threads"];
    names.map(|name| told[format!("forced_{name}")].to_string()).join(" ")
}

fn force(dir: &str, words: &[&str]) {
    let set = nuri(&[&["fs", "tune", "set", dir], words].concat());
    assert!(set.status.success(), "{}", text(&set.stderr));
}

/// What the mount remembers for searches.
fn note(dir: &str) -> Option<String> {
    let mut note = [0; 4096];
    let len = rustix::fs::getxattr(dir, "nuri.tune", &mut note[..]).ok()?;
    Some(text(&note[..len]))
}

fn tuned(dir: &str, more: &[&str]) -> serde_json::Value {
    let words = ["lab", "tune", "--size", "64m", "--json", dir];
    let out = nuri(&[&words, more].concat());
    assert!(out.status.success(), "{}", text(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

#[test]
fn a_bad_layout_is_found_bettered_and_set_again() {
    let _alone = alone();
    let space = Space::up(&["--shape", "stripe"]);
    let dir = space.mnt().join("d");
    std::fs::create_dir(&dir).unwrap();
    let dir = dir.display().to_string();
    let bad = "shape=stripe chunk_size=65536 width=0";
    assert!(nuri(&["fs", "layout", "set", &dir, "--chunk-size", "65536"]).status.success());
    assert_eq!(layout(&dir), bad);
    refused(&["lab", "tune", "--undo", &dir], "nothing was tuned there");

    // With the smallest chunks each request is a sixteenth.
    let only = ["--only", "layout", "--apply"];
    let found = (0..TRIES).map(|_| tuned(&dir, &only)).find(|told| told["best"].is_object());
    let told = found.expect("the smallest chunks are slower");
    let measured = told["measured"].as_array().unwrap();
    assert_eq!(measured.iter().filter(|one| one["stage"] == "layout").count(), 13, "{told}");
    assert_eq!(measured.len(), 15, "and once more, by what was set at first: {told}");
    assert!(told["best"]["times"].as_f64().unwrap() > 1.0 && told["applied"] == true, "{told}");
    let (chunk, width) = (&told["best"]["chunk_size"], &told["best"]["width"]);
    assert_ne!(chunk, 65536);
    assert_eq!(layout(&dir), format!("shape=stripe chunk_size={chunk} width={width}"));
    assert!(std::fs::read_dir(&dir).unwrap().next().is_none(), "its files are gone");
    assert_eq!((forced(&dir), note(&dir)), ("null null null null null".into(), None));

    assert!(nuri(&["lab", "tune", "--undo", &dir]).status.success());
    assert_eq!(layout(&dir), bad);
    refused(&["lab", "tune", "--undo", &dir], "nothing was tuned there");
    refused(&["lab", "tune", "--goal", "metadata", "--only", "buffer", &dir], "cannot matter");
    refused(&["lab", "tune", "--goal", "metadata", "--direct", &dir], "--direct moves bytes");
    refused(&["lab", "tune", "--only", "threads", &dir], "say --direct");
    refused(&["lab", "tune", "--size", "1000t", &dir], "free");
    refused(&["lab", "tune", &space.dir()], "not on a mounted Nuri space");
    assert!(Path::new(&dir).is_dir());
}

#[test]
fn bad_settings_of_a_mount_are_found_bettered_and_set_again() {
    let _alone = alone();
    let space = Space::up(&["--shape", "stripe"]);
    let dir = space.mnt().display().to_string();
    // Then the kernel asks for a page at a time.
    force(&dir, &["--read-ahead", "0", "--write-behind", "64M"]);
    let bad = "null null 0 67108864 null";
    assert_eq!(forced(&dir), bad);
    let told = tuned(&dir, &["--only", "read-ahead"]);
    assert_eq!((forced(&dir).as_str(), told["applied"] == false), (bad, true), "it only told");
    assert_eq!(note(&dir), None);

    let only = ["--only", "read-ahead", "--apply"];
    let found = (0..TRIES).map(|_| tuned(&dir, &only)).find(|told| told["best"].is_object());
    let told = found.expect("a page at a time is slower");
    let ahead = &told["best"]["read_ahead"];
    assert_ne!(ahead, 0);
    assert_eq!(forced(&dir), format!("null null {ahead} 67108864 null"));
    assert!(note(&dir).unwrap().contains("read_ahead=0"), "what was there before is kept");
    // What a second search finds does not change what the first one found there.
    tuned(&dir, &["--only", "streams", "--apply", "--budget", "15"]);
    let said = nuri(&["lab", "tune", "--undo", &dir]);
    assert!(text(&said.stdout).contains("read_ahead=0 write_behind=67108864"), "{said:?}");
    assert_eq!((forced(&dir).as_str(), note(&dir)), (bad, None));
    refused(&["lab", "tune", "--undo", &dir], "nothing was tuned there");
}

/// Settings under way on a mount, others than what was forced at first.
fn begun(dir: &str) -> (Child, Vec<i32>) {
    force(dir, &["--streams", "3"]);
    let mut command = Command::new(NURI);
    command.args(["lab", "tune", "--only", "streams", "--budget", "1000", dir]);
    let search = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let is_tried = || forced(dir) != "null 3 null null null";
    wait("another setting is tried", Duration::from_secs(30), is_tried);
    let processes = descendants(search.id() as i32);
    (search, processes)
}

#[test]
fn however_a_search_is_ended_what_it_tried_is_taken_back() {
    let _alone = alone();
    let space = Space::up(&["--shape", "stripe"]);
    let dir = space.mnt().display().to_string();
    let is_as_before = || forced(&dir) == "null 3 null null null" && note(&dir).is_none();
    let is_clean = || std::fs::read_dir(&dir).unwrap().next().is_none();

    let (mut search, processes) = begun(&dir);
    refused(&["lab", "tune", "--only", "streams", &dir], "another search tries settings");
    kill(search.id() as i32, Signal::INT);
    search.wait().unwrap();
    wait("Ctrl-C takes it back", Duration::from_secs(10), is_as_before);
    wait("its processes are gone", Duration::from_secs(10), || {
        processes.iter().all(|pid| super::support::has_ended(*pid)) && is_clean()
    });

    let (mut search, processes) = begun(&dir);
    kill(processes[0], Signal::KILL);
    search.wait().unwrap();
    wait("who waits takes it back", Duration::from_secs(10), is_as_before);
    assert!(is_clean());

    // Both at once: then whoever comes next.
    let (mut search, processes) = begun(&dir);
    kill(search.id() as i32, Signal::STOP);
    kill(processes[0], Signal::KILL);
    kill(search.id() as i32, Signal::KILL);
    search.wait().unwrap();
    assert!(note(&dir).unwrap().contains("streams=3"));
    // Those that measured end a moment later, and are in the way until then.
    wait("whoever comes next takes it back", Duration::from_secs(10), || {
        let out = nuri(&["lab", "tune", "--undo", &dir]);
        if out.status.success() { Ok(()) } else { Err(text(&out.stderr)) }
    });
    assert!(is_as_before(), "{}", forced(&dir));
    refused(&["lab", "tune", "--undo", &dir], "nothing was tuned there");
}

#[test]
fn names_are_measured_and_nothing_is_made_up() {
    let _alone = alone();
    let space = Space::up(&["--shape", "stripe"]);
    let dir = space.mnt().display().to_string();
    let told = tuned(&dir, &["--goal", "metadata", "--budget", "20", "--explain"]);
    let stages: Vec<_> =
        told["stages"].as_array().unwrap().iter().map(|s| s["stage"].as_str().unwrap()).collect();
    assert_eq!(stages[..3], ["layout", "streams", "write-behind"], "{told}");
    assert_eq!(told["unit"], "op/s");
    let measured = told["measured"].as_array().unwrap();
    let rates = measured.iter().flat_map(|one| one["samples"].as_array().unwrap());
    assert!(rates.clone().count() > 3 && rates.clone().all(|rate| rate.as_f64().unwrap() > 1.0));
    assert_eq!(
        told["best"].is_null(),
        told["stages"].as_array().unwrap().len() == 3 || told["stages"][3]["better"].is_null(),
        "{told}"
    );
    assert_eq!((forced(&dir), note(&dir)), ("null null null null null".into(), None));
}
