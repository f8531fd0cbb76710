//! The scrub as a user runs it: bits are flipped in a stopped target's store, then it is found,
//! repaired where others can, and told where nobody can.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use serde_json::Value;

use crate::support::{Space, nuri, text, wait};

const BLOCK: usize = 4096;
/// No row has one chunk alone, whose parity would be the same bytes.
const SIZE: usize = 6 << 20;

fn pattern(seed: u64) -> Vec<u8> {
    let mut data = vec![0; SIZE];
    nuri_io::rng::Rng::new(seed).fill(&mut data);
    data
}

/// Writes some files and tells what is in them.
fn fill(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let one = |seed: u64| {
        let (path, data) = (dir.join(format!("file{seed}")), pattern(seed));
        fs::write(&path, &data).unwrap();
        fs::File::open(&path).unwrap().sync_all().unwrap();
        (path, data)
    };
    (1..4).map(one).collect()
}

fn stores(space: &Space) -> Vec<PathBuf> {
    let status = space.status();
    let path = |t: &Value| Path::new(t["path"].as_str().unwrap()).join("store");
    status["targets"].as_array().unwrap().iter().map(path).collect()
}

/// Flips a bit of one block in each chunk of the store that holds a part of these files. Returns
/// how many chunks that were.
fn rot(store: &Path, files: &[(PathBuf, Vec<u8>)]) -> u64 {
    let file = fs::File::options().read(true).write(true).open(store).unwrap();
    let bytes = fs::read(store).unwrap();
    let mut flipped = 0;
    for (_, data) in files {
        // Somewhere in the middle of each of the file's chunks.
        for at in (300 * BLOCK / 2..SIZE).step_by(1 << 20) {
            let at = at / BLOCK * BLOCK;
            let wanted = &data[at..at + BLOCK];
            let found = bytes.chunks_exact(BLOCK).position(|block| block == wanted);
            if let Some(block) = found {
                file.write_all_at(&[wanted[7] ^ 4], (block * BLOCK + 7) as u64).unwrap();
                flipped += 1;
            }
        }
    }
    file.sync_all().unwrap();
    flipped
}

fn scrub(space: &Space) -> (Output, Value) {
    let dir = space.dir();
    let out = nuri(&["target", "scrub", "--rate", "1G", "--wait", "--json", "--dir", &dir]);
    let said = serde_json::from_slice(&out.stdout);
    let said = said.unwrap_or_else(|_| panic!("{}{}", text(&out.stdout), text(&out.stderr)));
    (out, said)
}

fn wait_up(space: &Space, targets: usize) {
    space.wait_status("all targets", Duration::from_secs(20), |status| {
        let up = status["targets"].as_array().unwrap().iter();
        let ready = |t: &&Value| t["state"] == "up" && t["behind"] == 0;
        up.filter(ready).count() == targets
    });
}

#[test]
fn flipped_bits_are_repaired_from_the_others() {
    let more = ["--nodes", "4", "--targets", "4", "--shape", "parity:3+1"];
    let space = Space::up(&[&more[..], &["--target-size", "256M"]].concat());
    let files = fill(&space.mnt());
    let stores = stores(&space);
    space.down();
    let flipped = rot(&stores[1], &files);
    assert!(flipped > 0, "the target holds none of the files");
    space.again();
    wait_up(&space, 4);
    let (out, said) = scrub(&space);
    assert!(out.status.success(), "{said}");
    assert_eq!((said["repaired"].as_u64(), said["unrepaired"].as_u64()), (Some(flipped), Some(0)));
    assert!(said["findings"][0].as_str().unwrap().contains("repaired"), "{said}");
    let (_, said) = scrub(&space);
    assert_eq!((said["repaired"].as_u64(), said["unrepaired"].as_u64()), (Some(0), Some(0)));
    assert_eq!((&said["done"], &said["skipped"]), (&said["stripes"], &Value::from(0)));
    for (path, data) in &files {
        assert!(fs::read(path).unwrap() == *data, "{}", path.display());
    }
    assert_eq!(space.status()["health"]["state"], "ok");
    // What the repair wrote is on the disk.
    space.down_clean();
}

#[test]
fn reads_repair_in_passing() {
    let more = ["--nodes", "3", "--targets", "3", "--shape", "parity:2+1"];
    let space = Space::up(&[&more[..], &["--target-size", "256M"]].concat());
    let files = fill(&space.mnt());
    let stores = stores(&space);
    space.down();
    let flipped = rot(&stores[0], &files);
    assert!(flipped > 0, "the target holds none of the files");
    space.again();
    wait_up(&space, 3);
    for (path, data) in &files {
        assert!(fs::read(path).unwrap() == *data, "{}", path.display());
    }
    wait("the repair", Duration::from_secs(20), || {
        space.logs().matches("repaired from the others").count() as u64 >= flipped
    });
    assert_eq!(scrub(&space).1["repaired"], 0, "all of it was");
    space.down_clean();
}

#[test]
fn what_nobody_else_has_is_told() {
    let more = ["--targets", "2", "--shape", "stripe", "--target-size", "256M"];
    let space = Space::up(&more);
    let files = fill(&space.mnt());
    let stores = stores(&space);
    let (out, said) = scrub(&space);
    assert!(out.status.success() && said["bytes"].as_u64() >= Some(3 * SIZE as u64), "{said}");
    space.down();
    let flipped = rot(&stores[0], &files);
    assert!(flipped > 0, "the target holds none of the files");
    space.again();
    wait_up(&space, 2);
    let (out, said) = scrub(&space);
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert_eq!((said["repaired"].as_u64(), said["unrepaired"].as_u64()), (Some(0), Some(flipped)));
    let named = |(path, _): &(PathBuf, _)| {
        let out = nuri(&["fs", "layout", "get", path.to_str().unwrap()]);
        let object = text(&out.stdout).split(' ').next().unwrap().replace('=', " ");
        said["findings"].to_string().contains(&format!("of {object},"))
    };
    assert!(files.iter().all(named), "each lies on both targets: {said}");
    space.wait_status("the health tells it", Duration::from_secs(5), |status| {
        status["health"]["state"] == "damaged"
    });
    // It is remembered, until the files are restored and a scrub has seen it.
    space.down();
    space.again();
    wait_up(&space, 2);
    space.wait_status("the health tells it again", Duration::from_secs(5), |status| {
        status["health"]["state"] == "damaged"
    });
    for (path, data) in &files {
        fs::write(path, data).unwrap();
        fs::File::open(path).unwrap().sync_all().unwrap();
    }
    wait("what was there is deleted", Duration::from_secs(20), || scrub(&space).0.status.success());
    assert_eq!(space.status()["health"]["state"], "ok");
}

#[test]
fn a_scrub_is_stopped_and_scheduled() {
    let space = Space::up(&["--targets", "2", "--target-size", "256M"]);
    let _files = fill(&space.mnt());
    let dir = space.dir();
    let say = |args: &[&str]| {
        let out = nuri(&[&["target", "scrub", "--json", "--dir", &dir], args].concat());
        assert!(out.status.success(), "{}", text(&out.stderr));
        serde_json::from_slice::<Value>(&out.stdout).unwrap()
    };
    assert_eq!(space.status()["scrub"]["every_days"], 7);
    assert_eq!(say(&["--every", "3"])["every_days"], 3);
    assert_eq!(say(&["--every", "never"])["every_days"], Value::Null);
    assert_eq!(space.status()["scrub"]["number"], 0, "none began");
    assert_eq!(say(&["--rate", "64K"])["running"], true);
    space.wait_status("it reads", Duration::from_secs(10), |status| status["scrub"]["bytes"] != 0);
    std::thread::sleep(Duration::from_secs(3));
    let done = space.status()["scrub"]["done"].as_u64().unwrap();
    assert_eq!(done, 1, "more than a stripe of 2 MiB in 32 s");
    assert_eq!(say(&["--stop"])["running"], false);
    assert_eq!(space.status()["scrub"]["stopped"], true);
    let (out, said) = scrub(&space);
    assert!(out.status.success(), "one that begins ends the old one: {said}");
}
