//! Mirrors and parity: nodes are killed, stopped, wiped and replaced under programs that check
//! every byte.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;

use crate::support::{
    BUSY, Frozen, NURI, Space, freeze, in_time, kill_all, nuri, refused, run, text, timed, wait,
};
use crate::tagged::{MIX, Mix, NO_CUTS, Tagged, read_direct};

const MIB: u64 = 1 << 20;
/// Longest wait of a program while storage nodes die.
const PAUSE: f64 = 5.0;

/// A space of the default shape, and a directory of mirrors.
struct Shapes {
    space: Space,
    parity: PathBuf,
    mirror: PathBuf,
}

fn shapes(nodes: &str, parity: &str, mirror: &str) -> Shapes {
    let space = Space::up(&["--nodes", nodes, "--targets", nodes, "--shape", parity]);
    let dirs = ["parity", "mirror"].map(|name| space.mnt().join(name));
    dirs.iter().for_each(|dir| fs::create_dir(dir).unwrap());
    let [parity, dir] = dirs;
    let path = dir.display().to_string();
    let out = nuri(&["fs", "layout", "set", &path, "--shape", mirror]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    Shapes { space, parity, mirror: dir }
}

impl Shapes {
    /// One file of each kind.
    fn files(&self) -> [Tagged; 2] {
        let kinds = [(&self.parity, 14, 1), (&self.mirror, 6, 2)];
        kinds.map(|(dir, mib, seed)| Tagged::create(&dir.join("load"), mib * MIB, seed))
    }
}

/// Runs `meanwhile` while each file is written and checked by a thread of its own.
fn under_load(files: &mut [Tagged], mix: Mix, meanwhile: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    let run = |file: &mut Tagged| {
        while !stop.load(Ordering::Relaxed) {
            if let Err(words) = file.step(mix) {
                eprintln!("{words}");
                return Some(words);
            }
        }
        file.sync().err()
    };
    let failures = std::thread::scope(|scope| {
        let start = |file| scope.spawn(|| run(file));
        let workers: Vec<_> = files.iter_mut().map(start).collect();
        let meanwhile = std::panic::catch_unwind(std::panic::AssertUnwindSafe(meanwhile));
        stop.store(true, Ordering::Relaxed);
        let failures = workers.into_iter().filter_map(|w| w.join().unwrap());
        let failures: Vec<_> = failures.collect();
        if let Err(panic) = meanwhile {
            std::panic::resume_unwind(panic);
        }
        failures
    });
    assert!(failures.is_empty(), "{failures:?}");
}

fn check_all(files: &mut [Tagged]) {
    for file in files {
        let path = file.path.clone();
        file.check_all(&path).unwrap();
    }
}

/// The longest waits since the last call, told and bounded.
fn bound_pauses(what: &str, files: &mut [Tagged]) {
    for file in files {
        let (worst, steps) = (std::mem::take(&mut file.worst), file.steps);
        eprintln!("{what}: {}: longest pause {worst:?}, {steps} steps", file.path.display());
        in_time(worst.0, PAUSE, &format!("{what}: {} of {}", worst.1, file.path.display()));
    }
}

fn health(space: &Space) -> (String, String) {
    let status = space.status();
    let state = status["health"]["state"].as_str().unwrap().to_string();
    (state, status["health"]["sentences"].to_string())
}

fn wait_healthy(space: &Space) {
    let mut said = String::new();
    let end = std::time::Instant::now() + BUSY * Duration::from_secs(40);
    loop {
        let (state, words) = health(space);
        if state == "ok" {
            return;
        }
        assert!(std::time::Instant::now() < end, "not healthy: {state}: {words}, before {said}");
        said = words;
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn wait_sentence(space: &Space, words: &[&str]) {
    wait(&format!("status says {words:?}"), Duration::from_secs(10), || {
        let (state, said) = health(space);
        let is_so = state == "degraded" && words.iter().all(|w| said.contains(w));
        if is_so { Ok(()) } else { Err(format!("{state}: {said}")) }
    });
}

fn sleep(seconds: f64) {
    std::thread::sleep(Duration::from_secs_f64(seconds));
}

/// Stops nodes until their targets are out of their groups.
fn away(space: &Space, roles: &[&str]) -> Vec<Frozen> {
    let frozen = roles.iter().map(|role| freeze(space, role)).collect();
    let down = format!("{} of ", roles.len());
    wait_sentence(space, &[&down, "targets down"]);
    frozen
}

/// Everything is right although these nodes do not answer.
fn check_without(space: &Space, roles: &[&str], files: &mut [Tagged]) {
    let frozen = away(space, roles);
    check_all(files);
    drop(frozen);
    wait_healthy(space);
}

#[test]
fn a_storage_node_dies_or_hangs_and_programs_hardly_notice() {
    timed(|| {
        let mut shapes = shapes("4", "parity:3+1", "mirror:2");
        let other = shapes.space.mount("other");
        let space = &shapes.space;
        let mut files = shapes.files();
        under_load(&mut files, MIX, || {
            sleep(1.0);
            space.kill("node2");
            sleep(2.0);
            wait_healthy(space);
        });
        bound_pauses("killed", &mut files);
        check_without(space, &["node1"], &mut files);
        bound_pauses("stopped under a reader", &mut files);

        let mut frozen = None;
        under_load(&mut files, MIX, || {
            frozen = Some(freeze(space, "node3"));
            let words = ["1 of 4 targets down", "have no redundancy left", "resync not started"];
            wait_sentence(space, &words);
            sleep(7.0);
        });
        bound_pauses("stopped", &mut files);
        // A mount that has not heard of anything, and the node that has not either.
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let files = &mut files;
            scope.spawn(move || {
                told.recv().unwrap();
                for file in files {
                    let kind = file.path.parent().unwrap().file_name().unwrap();
                    let path = other.join(kind).join("load");
                    file.check_all(&path).unwrap();
                }
            });
            drop(frozen);
            tell.send(()).unwrap();
        });
        bound_pauses("woken", &mut files);
        wait_healthy(space);
        check_without(space, &["node1"], &mut files);
        check_without(space, &["node2"], &mut files);
        bound_pauses("another stopped", &mut files);
        drop(files);
        shapes.space.down_clean();
    });
}

#[test]
fn two_of_six_nodes_hang() {
    timed(|| {
        let shapes = shapes("6", "parity:3+2", "mirror:3");
        let space = &shapes.space;
        let mut files = shapes.files();
        under_load(&mut files, MIX, || {
            sleep(0.5);
            let frozen = away(space, &["node2", "node4"]);
            wait_sentence(space, &["2 of 6 targets down", "have no redundancy left"]);
            sleep(3.0);
            drop(frozen);
            wait_healthy(space);
        });
        bound_pauses("two stopped", &mut files);
        check_without(space, &["node1", "node5"], &mut files);
        check_without(space, &["node3", "node5"], &mut files);
        drop(files);
        shapes.space.down_clean();
    });
}

/// The target of a node, by the node's process, as soon as it serves.
fn target_of(space: &Space, role: &str) -> u64 {
    let serving = |status: &Value| {
        let pid = space.pid(role) as i64;
        let node = status["nodes"].as_array()?.iter().find(|n| n["pid"] == pid)?["id"].as_u64();
        let targets = status["targets"].as_array()?.iter();
        let mut own = targets.filter(|t| t["node"].as_u64() == node && t["state"] == "up");
        own.next_back()?["id"].as_u64()
    };
    let mut found = None;
    space.wait_status("its target serves", Duration::from_secs(15), |status| {
        found = serving(status);
        found.is_some()
    });
    found.unwrap()
}

/// Ends a node, does something to its target, and lets it come back.
fn while_ended(space: &Space, role: &str, act: impl FnOnce(PathBuf)) {
    let supervisor = freeze(space, "supervisor");
    let pid = space.pid(role);
    space.kill(role);
    wait("it has ended", Duration::from_secs(5), || crate::support::has_ended(pid));
    act(space.path("space").join(role.replace("node", "target")));
    drop(supervisor);
    space.wait_status("it is back", Duration::from_secs(15), |status| {
        let now = space.pid(role);
        let mut nodes = status["nodes"].as_array().unwrap().iter();
        now != pid && nodes.any(|n| n["pid"] == now && n["state"] == "up")
    });
}

#[test]
fn a_wiped_target_is_replaced() {
    timed(|| {
        let mut shapes = shapes("4", "parity:3+1", "mirror:2");
        let mut files = shapes.files();
        under_load(&mut files, MIX, || sleep(1.5));
        let space = &shapes.space;
        let dir = space.dir();
        let replace = |old: u64, new: u64, words: &str| {
            let (old, new) = (old.to_string(), new.to_string());
            refused(&["target", "replace", &old, &new, "--dir", &dir], words);
        };
        let (old, kept) = (target_of(space, "node2"), target_of(space, "node1"));
        let mut new = 0;
        under_load(&mut files, MIX, || {
            while_ended(space, "node2", |target| fs::remove_dir_all(target).unwrap());
            wait_sentence(space, &["is not there: is its disk mounted?"]);
            let out = nuri(&["up", "--create", "--dir", &dir]);
            assert!(out.status.success(), "{}", text(&out.stderr));
            new = target_of(space, "node2");
            assert_ne!(old, new);
            wait_sentence(space, &["1 of 5 targets down", "have no redundancy left"]);
            replace(old, 77, "there is no target 77");
            replace(77, new, "there is no target 77");
            replace(new, new, "is the same target");
            replace(kept, old, "is not up");
            replace(old, kept, "parts of the same stripes");
            let ids = [old.to_string(), new.to_string()];
            let out = nuri(&["target", "replace", &ids[0], &ids[1], "--dir", &dir]);
            assert!(out.status.success(), "{}", text(&out.stderr));
            space.wait_status("it has everything", Duration::from_secs(40), |status| {
                let mut targets = status["targets"].as_array().unwrap().iter();
                targets.any(|t| t["id"] == new && t["behind"] == 0 && t["places"] != 0)
            });
            let (_, said) = health(space);
            assert!(said.contains("1 of 5 targets down\""), "only the old one is missed: {said}");
        });
        bound_pauses("replaced", &mut files);
        let remove = |target: u64, more: &[&str]| {
            let target = target.to_string();
            nuri(&[&["target", "remove", &target, "--dir", &dir], more].concat())
        };
        for (target, words) in [(77, "there is no target 77"), (new, "nuri target drain")] {
            let said = text(&remove(target, &["--force"]).stderr);
            assert!(said.contains(words), "{said}");
        }
        let said = text(&remove(old, &[]).stderr);
        assert!(said.contains("--force"), "{said}");
        let out = remove(old, &["--force"]);
        assert!(out.status.success(), "{}", text(&out.stderr));
        assert_eq!(health(space).0, "ok", "{}", health(space).1);
        let frozen = freeze(space, "node1");
        wait_sentence(space, &["have no redundancy left"]);
        sleep(1.0);
        check_all(&mut files);
        drop(frozen);
        drop(files);
        small_target_is_refused(&mut shapes, new);
        shapes.space.down_clean();
    });
}

/// A node joins whose target cannot hold what another one has.
fn small_target_is_refused(shapes: &mut Shapes, full: u64) {
    let space = &mut shapes.space;
    let (node, target, dir) = (space.str("small"), space.str("small-target"), space.dir());
    let first = space.status()["nodes"][0]["address"].as_str().unwrap().to_string();
    let token = format!("{dir}/token");
    fs::create_dir(&node).unwrap();
    fs::write(shapes.parity.join("big"), vec![1; 100 << 20]).unwrap();
    let args =
        ["node", "run", "--create", "--dir", &node, "--join", &first, "--token-file", &token];
    let more = ["--listen", "127.0.0.1:0", "--target", &target, "--target-size", "16M"];
    let child = std::process::Command::new(crate::support::NURI).args(args).args(more).spawn();
    space.own_child(child.unwrap());
    let mut id = 0;
    space.wait_status("it joins", Duration::from_secs(10), |status| {
        let targets = status["targets"].as_array().unwrap().iter();
        let mut new = targets.filter(|t| t["path"] == target.as_str());
        new.next().map(|t| id = t["id"].as_u64().unwrap()).is_some()
    });
    space.wait_status("status counts", Duration::from_secs(10), |status| {
        let mut targets = status["targets"].as_array().unwrap().iter();
        targets.any(|t| t["id"] == full && t["used"].as_u64().unwrap() > 30 * MIB)
    });
    let ids = [full.to_string(), id.to_string()];
    let words = "choose a larger one";
    refused(&["target", "replace", &ids[0], &ids[1], "--dir", &dir], words);
}

#[test]
fn one_loss_too_many_waits_and_loses_nothing() {
    timed(|| {
        let shapes = shapes("4", "parity:3+1", "mirror:2");
        let space = &shapes.space;
        let mut files = shapes.files();
        under_load(&mut files, NO_CUTS, || sleep(1.0));
        // Small files, each on two of the four targets.
        let body = |i: u64| vec![i as u8 + 1; 64 << 10];
        let small = |i: u64| shapes.mirror.join(format!("small{i}"));
        for i in 0..24 {
            fs::write(small(i), body(i)).unwrap();
            fs::File::open(small(i)).unwrap().sync_all().unwrap();
        }
        let frozen = away(space, &["node2", "node3"]);
        wait_sentence(space, &["cannot be reached until they are back"]);
        // Each either is right at once or waits; none is wrong or an early error.
        let reads = (0..24).map(|i| {
            let path = small(i);
            std::thread::spawn(move || {
                let start = std::time::Instant::now();
                let mut data = vec![0; 64 << 10];
                let outcome = read_direct(&path, 0, &mut data);
                (start.elapsed(), outcome.map(|()| data))
            })
        });
        let reads: Vec<_> = reads.collect();
        let [mut parity, mut mirror] = files;
        let writer = std::thread::spawn(move || {
            parity.write(0..ROW).and_then(|()| parity.sync()).unwrap();
            parity
        });
        sleep(7.0);
        assert!(!writer.is_finished(), "parity:3+1 cannot be written without two");
        let done = reads.iter().filter(|r| r.is_finished()).count();
        eprintln!("{done} of 24 mirrored files read meanwhile");
        assert!((2..24).contains(&done), "{done}");
        drop(frozen);
        for (i, read) in reads.into_iter().enumerate() {
            let (took, outcome) = read.join().unwrap();
            let data = outcome.unwrap_or_else(|e| panic!("file {i} after {took:?}: {e}"));
            assert!(data == body(i as u64), "file {i}");
            in_time(took, 20.0, "all");
        }
        let mut parity = writer.join().unwrap();
        wait_healthy(space);
        check_all(std::slice::from_mut(&mut mirror));
        check_without(space, &["node1"], std::slice::from_mut(&mut parity));
        drop((parity, mirror));
        shapes.space.down_clean();
    });
}

#[test]
fn what_stays_out_of_reach_is_an_error_in_the_end() {
    let shapes = shapes("4", "parity:3+1", "mirror:2");
    let mut file = Tagged::create(&shapes.parity.join("load"), 4 * MIB, 4);
    let all = file.len();
    file.write(0..all).unwrap();
    file.sync().unwrap();
    let frozen = away(&shapes.space, &["node2", "node3"]);
    // One call for each chunk of a row, all at once.
    let reads = (0..3).map(|chunk| {
        let path = file.path.clone();
        std::thread::spawn(move || {
            let start = std::time::Instant::now();
            let outcome = read_direct(&path, chunk * MIB, &mut [0; 4096]);
            outcome.map_err(|e| (e.raw_os_error(), start.elapsed().as_secs_f64()))
        })
    });
    let reads: Vec<_> = reads.collect();
    let errors = reads.into_iter().filter_map(|read| read.join().unwrap().err());
    let errors: Vec<_> = errors.collect();
    assert!(!errors.is_empty(), "two of four targets have at least one chunk of three");
    for (errno, seconds) in errors {
        assert_eq!(errno, Some(5));
        assert!((25.0..40.0).contains(&seconds), "{seconds} s");
    }
    drop(frozen);
    check_all(std::slice::from_mut(&mut file));
    wait_healthy(&shapes.space);
    drop(file);
    shapes.space.down_clean();
}

/// Cells of a row of parity:3+1 and of one chunk.
const ROW: u64 = 6144;
const CHUNK: u64 = 2048;

#[test]
fn what_was_cut_off_meanwhile_does_not_come_back() {
    let shapes = shapes("4", "parity:3+1", "mirror:2");
    let space = &shapes.space;
    let mut files = shapes.files();
    for file in &mut files {
        file.check(0..1).unwrap();
        let all = file.len();
        file.write(0..all).unwrap();
        file.sync().unwrap();
    }
    let [parity, mirror] = &mut files;
    let gone = shapes.parity.join("gone");
    fs::write(&gone, vec![1; 12 << 20]).unwrap();
    fs::File::open(&gone).unwrap().sync_all().unwrap();
    let frozen = away(space, &["node2"]);
    fs::remove_file(&gone).unwrap();
    // Two rows and a part are cut off; of the second one a single chunk is written again.
    parity.cut(2 * ROW + 100).unwrap();
    parity.write(3 * ROW + 10..3 * ROW + 20).unwrap();
    parity.punch(CHUNK / 2..3 * CHUNK + 7).unwrap();
    mirror.cut(2 * CHUNK + 5).unwrap();
    mirror.write(3 * CHUNK..3 * CHUNK + 1).unwrap();
    mirror.punch(10..CHUNK + 10).unwrap();
    files.iter_mut().for_each(|file| file.sync().unwrap());
    drop(frozen);
    wait_healthy(space);
    // At once, by a mount that has not heard that the member is back.
    let [parity, _] = &mut files;
    parity.cut(ROW).unwrap();
    parity.write(4 * ROW..4 * ROW + 10).unwrap();
    parity.sync().unwrap();
    check_all(&mut files);
    for role in ["node1", "node2", "node3"] {
        check_without(space, &[role], &mut files);
    }
    drop(files);
    shapes.space.down_clean();
}

fn pace(space: &Space, args: &[&str]) {
    let dir = space.dir();
    let out = nuri(&[&["target", "resync", "--dir", &dir], args].concat());
    assert!(out.status.success(), "{}", text(&out.stderr));
}

#[test]
fn resync_has_the_pace_that_it_was_told() {
    let shapes = shapes("4", "parity:3+1", "mirror:2");
    let space = &shapes.space;
    let mut file = Tagged::create(&shapes.parity.join("load"), 48 * MIB, 3);
    pace(space, &["--pause"]);
    let frozen = away(space, &["node2"]);
    let all = file.len();
    file.write(0..all).unwrap();
    file.sync().unwrap();
    drop(frozen);
    wait_sentence(space, &["resync paused", "nuri target resync --gentle"]);
    sleep(1.0);
    wait_sentence(space, &["resync paused"]);
    let dir = space.dir();
    // A scrub does not wait for what may never come.
    let scrub = [NURI, "target", "scrub", "--wait", "--rate", "1G", "--dir", &dir];
    run("timeout", &[&["60"], &scrub[..]].concat());
    assert_eq!(resynced(space), 0);
    refused(&["target", "resync", "--rate", "0", "--dir", &dir], "--pause");
    refused(&["target", "resync", "--dir", &dir], "--gentle");
    let start = std::time::Instant::now();
    pace(space, &["--rate", "2M"]);
    wait("a part is brought", Duration::from_secs(10), || resynced(space) >= 4 * MIB);
    // The first chunk comes before the first rest.
    let bytes = resynced(space);
    let most = (start.elapsed().as_secs_f64() * 2.0) as u64 * MIB + 2 * MIB;
    assert!(bytes <= most, "{bytes} instead of {most} at 2 MiB/s");
    wait_sentence(space, &["resync "]);
    pace(space, &["--gentle"]);
    wait_healthy(space);
    check_without(space, &["node1"], std::slice::from_mut(&mut file));
    drop(file);
    shapes.space.down_clean();
}

/// Bytes brought to targets so far.
fn resynced(space: &Space) -> u64 {
    let status = space.status();
    let resyncs = status["health"]["resyncs"].as_array().unwrap().iter();
    resyncs.map(|r| r["bytes"].as_u64().unwrap()).sum()
}

#[test]
fn all_nodes_die_at_once_and_nobody_is_left_behind() {
    let shapes = shapes("4", "parity:3+1", "mirror:2");
    let space = &shapes.space;
    let nodes = ["node0", "node1", "node2", "node3"];
    let mut files = shapes.files();
    under_load(&mut files, NO_CUTS, || {
        sleep(1.0);
        let supervisor = freeze(space, "supervisor");
        nodes.iter().for_each(|role| space.kill(role));
        drop(supervisor);
        sleep(3.0);
        wait_healthy(space);
    });
    check_all(&mut files);
    // With the mount: what was not synced may be old or new.
    std::thread::scope(|scope| {
        for file in &mut files {
            scope.spawn(|| while file.step(NO_CUTS).is_ok() {});
        }
        sleep(1.0);
        kill_all(space, &nodes);
    });
    space.again();
    files.iter_mut().for_each(|file| file.settle_after_crash().unwrap());
    wait_healthy(space);
    under_load(&mut files, MIX, || sleep(0.5));
    for role in ["node1", "node2"] {
        check_without(space, &[role], &mut files);
    }
    drop(files);
    shapes.space.down_clean();
}

#[test]
fn shapes_are_checked() {
    let bare = Space::bare();
    let dir = bare.str("none");
    let up = |shape: &str, words: &str| {
        refused(&["up", "--dir", &dir, "--targets", "4", "--shape", shape], words);
        assert!(!bare.path("none").exists(), "{shape}");
    };
    let bad = ["mirror:0", "mirror:1", "mirror:5", "parity:3", "parity:0+1", "parity:3+0", "raid5"];
    bad.iter().for_each(|bad| up(bad, "a shape is `stripe`"));
    let placement = ["up", "--dir", &dir, "--placement", "anywhere"];
    refused(&placement, "one of rotated, chained, orthogonal, declustered");
    let shapes = shapes("4", "parity:3+1", "mirror:2");
    let kind = |dir: &PathBuf| {
        fs::write(dir.join("f"), vec![1; 100_000]).unwrap();
        let path = dir.join("f").display().to_string();
        text(&nuri(&["fs", "layout", "get", &path]).stdout)
    };
    assert!(kind(&shapes.parity).contains("parity:3+1"), "{}", kind(&shapes.parity));
    assert!(kind(&shapes.mirror).contains("mirror:2"), "{}", kind(&shapes.mirror));
    let path = shapes.mirror.display().to_string();
    let set = |shape: &str, words: &str| {
        refused(&["fs", "layout", "set", &path, "--shape", shape], words);
    };
    set("parity:9+1", "targets");
    set("mirror:0", "shape");
    assert!(kind(&shapes.mirror).contains("mirror:2"));
    shapes.space.down_clean();
}

/// The only up-to-date copy is put back to an older state: however often its node is started, it is
/// not taken for the newest.
#[test]
fn an_older_state_of_the_last_copy_is_refused_for_good() {
    let space = &Space::up(&["--nodes", "3", "--targets", "3", "--shape", "mirror:2"]);
    let mut file = Tagged::create(&space.mnt().join("load"), 6 * MIB, 5);
    let copy = |from: &Path, to: &Path| {
        let [from, to] = [from, to].map(|p| p.display().to_string());
        crate::support::run("cp", &["-a", "--sparse=always", &from, &to]);
    };
    let old = space.path("old");
    while_ended(space, "node2", |target| copy(&target, &old));
    wait_healthy(space);
    let frozen = away(space, &["node1"]);
    let all = file.len();
    file.write(0..all).unwrap();
    file.sync().unwrap();
    while_ended(space, "node2", |target| {
        let new = space.path("new");
        fs::rename(&target, &new).unwrap();
        fs::rename(&old, &target).unwrap();
        let node = space.str("space/node2");
        // The supervisor stands still and keeps the node's own port.
        let run = ["node", "run", "--dir", &node, "--listen", "127.0.0.1:0"];
        (0..12).for_each(|_| refused(&run, "older than what was known of them"));
        fs::remove_dir_all(&target).unwrap();
        fs::rename(&new, &target).unwrap();
    });
    drop(frozen);
    wait_healthy(space);
    file.check_all(&file.path.clone()).unwrap();
    drop(file);
    space.down_clean();
}

/// The node runs where the kernel seems to be another one.
#[test]
fn a_target_is_compared_after_a_start_of_its_machine() {
    let space = &Space::up(&["--nodes", "3", "--targets", "3", "--shape", "mirror:2"]);
    let mut file = Tagged::create(&space.mnt().join("load"), 6 * MIB, 5);
    let all = file.len();
    file.write(0..all).unwrap();
    file.sync().unwrap();
    let boot_id = "0123abcd-4567-89ab-cdef-0123456789ab";
    let seems = space.path("boot_id");
    fs::write(&seems, boot_id).unwrap();
    let map = || fs::read_to_string(space.path("space/node0/map.json")).unwrap();
    let machine = format!("\"machine\": {}", 0x0123_abcd_4567_89ab_u64);
    while_ended(space, "node2", |_| {
        let script = format!(
            "mount --bind {} /proc/sys/kernel/random/boot_id && \
             exec {} node run --listen 127.0.0.1:0 --dir {}",
            seems.display(),
            crate::support::NURI,
            space.str("space/node2")
        );
        let mut node = std::process::Command::new("unshare")
            .args(["-m", "sh", "-c", &script])
            .spawn()
            .unwrap();
        wait("it was compared", Duration::from_secs(15), || {
            let map = map();
            map.contains(&machine) && !map.contains("\"unproven\": true")
        });
        wait_healthy(space);
        file.check_all(&file.path.clone()).unwrap();
        node.kill().unwrap();
        node.wait().unwrap();
    });
    wait_healthy(space);
    assert!(!map().contains(&machine));
    file.check_all(&file.path.clone()).unwrap();
    drop(file);
    space.down_clean();
}

#[test]
fn groups_lie_as_they_were_told() {
    let args = ["--targets", "4", "--shape", "mirror:2", "--placement"];
    let space = Space::up(&[&args[..], &["chained"]].concat());
    fs::write(space.mnt().join("f"), vec![1; 100_000]).unwrap();
    let status = space.status();
    assert_eq!(status["placement"], "chained");
    // One group begins at each target and ends at the next.
    let places = |t: &serde_json::Value| t["places"].as_u64().unwrap();
    assert!(status["targets"].as_array().unwrap().iter().all(|t| places(t) == 2), "{status}");
    let dir = space.dir();
    refused(&["up", "--dir", &dir, "--placement", "rotated"], "stop it first: nuri down");
    space.down_clean();
    let out = nuri(&["up", "--dir", &dir, "--placement", "rotated"]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert_eq!(space.status()["placement"], "rotated");
    assert_eq!(fs::read(space.mnt().join("f")).unwrap(), vec![1; 100_000]);
    space.down_clean();
}

#[test]
fn flipped_bytes_are_read_around() {
    let shapes = shapes("4", "parity:3+1", "mirror:2");
    let space = &shapes.space;
    let pattern: Vec<u8> =
        (0..4096u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let body = pattern.repeat(6 * 256);
    let paths = [shapes.parity.join("f"), shapes.mirror.join("f")];
    for path in &paths {
        fs::write(path, &body).unwrap();
        fs::File::open(path).unwrap().sync_all().unwrap();
    }
    let mut flipped = 0;
    while_ended(space, "node2", |target| flipped = flip(&target.join("store"), &pattern));
    assert!(flipped > 90, "{flipped} blocks of the pattern");
    wait_healthy(space);
    let check = || {
        for path in &paths {
            let mut data = vec![0; body.len()];
            read_direct(path, 0, &mut data).unwrap();
            assert!(data == body, "{}", path.display());
        }
    };
    check();
    // Written anew, part by part, it is well again; twice, for the last write of a stripe may lie
    // beside what it replaces.
    for path in [&paths[..], &paths[..]].concat() {
        let file = fs::OpenOptions::new().write(true).open(path).unwrap();
        for at in (0..body.len()).step_by(64 << 10) {
            file.write_all_at(&body[at..at + (64 << 10)], at as u64).unwrap();
        }
        file.sync_all().unwrap();
    }
    check();
    shapes.space.down_clean();
}

/// Two bad blocks on the only other copy: everything else comes back nevertheless.
#[test]
fn what_nobody_can_give_holds_back_nothing_else() {
    let space = &Space::up(&["--nodes", "3", "--targets", "3", "--shape", "mirror:2"]);
    let pattern: Vec<u8> =
        (0..4096u32).map(|i| (i.wrapping_mul(2_246_822_519) >> 13) as u8).collect();
    let write = |name: &str, body: &[u8]| {
        let path = space.mnt().join(name);
        let options = fs::OpenOptions::new().write(true).create(true).truncate(false).to_owned();
        let file = options.open(&path).unwrap();
        file.write_all_at(body, 0).unwrap();
        file.sync_all().unwrap();
    };
    // Later they would be laid on groups without the one that is away.
    ["bad", "good"].iter().for_each(|name| write(name, &pattern.repeat(4)));
    pace(space, &["--pause"]);
    let frozen = away(space, &["node1"]);
    write("bad", &pattern.repeat(6 * 256));
    write("good", &vec![7; 60 << 20]);
    while_ended(space, "node2", |target| assert!(flip(&target.join("store"), &pattern) > 30));
    drop(frozen);
    pace(space, &["--gentle"]);
    // A third of it has its copies on nodes 0 and 1, a third on 1 and 2.
    let own = target_of(space, "node1");
    space.wait_status("what can be had", Duration::from_secs(40), |status| {
        let mut targets = status["targets"].as_array().unwrap().iter();
        targets.any(|t| t["id"] == own && t["used"].as_u64().unwrap() > 34 * MIB)
    });
    assert_eq!(health(space).0, "degraded");
    // What is lost is lost; without it all is well.
    fs::remove_file(space.mnt().join("bad")).unwrap();
    wait_healthy(space);
    assert!(fs::read(space.mnt().join("good")).unwrap() == vec![7; 60 << 20]);
    space.down_clean();
}

/// Changes a byte of every eighth block that holds the pattern.
fn flip(store: &Path, pattern: &[u8]) -> usize {
    let file = fs::OpenOptions::new().read(true).write(true).open(store).unwrap();
    let len = file.metadata().unwrap().len();
    let (mut block, mut flipped) = (vec![0; pattern.len()], 0);
    for at in (0..len).step_by(pattern.len()) {
        let turn = (at / pattern.len() as u64).is_multiple_of(8);
        if turn && file.read_exact_at(&mut block, at).is_ok() && block == pattern {
            file.write_all_at(&[!pattern[77]], at + 77).unwrap();
            flipped += 1;
        }
    }
    file.sync_all().unwrap();
    flipped
}
