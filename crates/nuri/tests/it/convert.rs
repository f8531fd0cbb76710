//! `nuri fs convert`: files that are there come to lie in another way, beside programs.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::XattrFlags;
use serde_json::Value;

use crate::support::{NURI, SetAtEnd, Space, nuri, refused, text, wait};

const SOON: Duration = Duration::from_secs(20);

fn shape(path: &Path) -> String {
    let out = nuri(&["fs", "layout", "get", "--json", &path.display().to_string()]);
    let layout: Value = serde_json::from_slice(&out.stdout).unwrap();
    layout["shape"].as_str().unwrap().to_owned()
}

fn convert(path: &Path, more: &[&str]) -> (bool, Value) {
    let path = path.display().to_string();
    let out = nuri(&[&["fs", "convert", "--json", &path], more].concat());
    (out.status.success(), serde_json::from_slice(&out.stdout).unwrap())
}

fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut data = vec![0; len];
    nuri_io::rng::Rng::new(seed).fill(&mut data);
    data
}

#[test]
fn files_that_are_there_come_to_lie_as_new_ones() {
    let mut space = Space::up(&["--nodes", "3", "--targets", "3", "--shape", "stripe"]);
    let (mnt, other) = (space.mnt(), space.mount("other"));
    let sizes = [("empty", 0), ("small", 100), ("middle", 70_000), ("large", 5_000_000)];
    for (seed, (name, size)) in sizes.iter().enumerate() {
        fs::write(mnt.join(name), pattern(*size, seed as u64)).unwrap();
    }
    fs::hard_link(mnt.join("large"), mnt.join("second name")).unwrap();
    rustix::fs::setxattr(mnt.join("middle"), "user.a", b"b", XattrFlags::empty()).unwrap();
    let sparse = File::create(mnt.join("sparse")).unwrap();
    sparse.write_all_at(&[7; 5000], 40 << 20).unwrap();
    drop(sparse);
    let held = OpenOptions::new().read(true).write(true).open(other.join("large")).unwrap();
    let before = fs::metadata(mnt.join("large")).unwrap();
    refused(&["fs", "convert", &space.str("mnt"), "--shape", "parity:8+2"], "needs more targets");
    refused(&["fs", "convert", "/proc"], "is not on a mounted space");

    let (is_done, done) = convert(&mnt, &[]);
    assert!(is_done && done["as_wanted"] == 5 && done["converted"] == 0, "{done}");
    let set = nuri(&["space", "set", "--shape", "mirror:2", "--dir", &space.dir()]);
    assert!(set.status.success(), "{}", text(&set.stderr));
    let (is_done, done) = convert(&mnt, &[]);
    assert!(is_done && done["converted"] == 5, "{done}");
    let copied = done["bytes"].as_u64().unwrap();
    assert!((5_070_100..6_000_000).contains(&copied), "holes are not copied: {done}");

    for (seed, (name, size)) in sizes.iter().enumerate() {
        assert_eq!(shape(&mnt.join(name)), "mirror:2", "{name}");
        for mount in [&mnt, &other] {
            assert!(fs::read(mount.join(name)).unwrap() == pattern(*size, seed as u64), "{name}");
        }
    }
    let sparse = fs::read(other.join("sparse")).unwrap();
    assert!(sparse.len() == (40 << 20) + 5000 && sparse.ends_with(&[7; 5000]));
    let after = fs::metadata(mnt.join("large")).unwrap();
    assert_eq!((after.ino(), after.mtime(), after.nlink()), (before.ino(), before.mtime(), 2));
    let mut value = [0; 9];
    let len = rustix::fs::getxattr(other.join("middle"), "user.a", &mut value).unwrap();
    assert_eq!(&value[..len], b"b");
    // Who had it open goes on, and both see it.
    held.write_all_at(b"written after it", 4_999_999).unwrap();
    held.sync_all().unwrap();
    assert!(fs::read(mnt.join("second name")).unwrap().ends_with(b"written after it"));
    let (is_done, done) = convert(&mnt, &[]);
    assert!(is_done && done["converted"] == 0 && done["as_wanted"] == 5, "{done}");
    drop(held);
    space.down_clean();
}

/// A program appends numbers all the time; whatever becomes of the conversion, none is missing.
#[test]
fn a_file_that_is_written_meanwhile_loses_nothing() {
    let mut space = Space::up(&["--nodes", "3", "--targets", "3", "--shape", "stripe"]);
    let (mnt, other) = (space.mnt(), space.mount("other"));
    let (ends, wrote) = (AtomicBool::new(false), AtomicU64::new(0));
    let start = pattern(2_000_000, 1);
    fs::write(mnt.join("f"), &start).unwrap();
    std::thread::scope(|scope| {
        let ending = SetAtEnd(&ends);
        scope.spawn(|| {
            let file = OpenOptions::new().write(true).open(other.join("f")).unwrap();
            while !ends.load(Ordering::Relaxed) {
                let number = wrote.load(Ordering::Relaxed);
                let at = 2_000_000 + number * 8;
                file.write_all_at(&number.to_le_bytes(), at).unwrap();
                file.sync_data().unwrap();
                wrote.store(number + 1, Ordering::Relaxed);
            }
        });
        let (is_done, done) = convert(&mnt.join("f"), &["--shape", "mirror:2"]);
        let left = done["left"].to_string();
        assert!(is_done || left.contains("written all the time"), "{done}");
        assert!(wrote.load(Ordering::Relaxed) > 0);
        drop(ending);
    });
    let check = |path: &Path| {
        let bytes = fs::read(path).unwrap();
        assert_eq!(bytes.len() as u64, 2_000_000 + wrote.load(Ordering::Relaxed) * 8);
        assert!(bytes.starts_with(&start));
        for (number, bytes) in bytes[2_000_000..].chunks_exact(8).enumerate() {
            assert_eq!(bytes, (number as u64).to_le_bytes());
        }
    };
    check(&mnt.join("f"));
    let (is_done, done) = convert(&mnt.join("f"), &["--shape", "mirror:2"]);
    assert!(is_done, "{done}");
    assert_eq!(shape(&other.join("f")), "mirror:2");
    check(&other.join("f"));
    space.down_clean();
}

/// The command is killed in the middle, and a node is.
#[test]
fn a_conversion_that_is_interrupted_can_be_done_again() {
    let space = Space::up(&["--nodes", "3", "--targets", "3", "--shape", "stripe"]);
    let (mnt, data) = (space.mnt(), pattern(8 << 20, 3));
    for name in ["a", "b", "c"] {
        fs::write(mnt.join(name), &data).unwrap();
    }
    let slow = ["fs", "convert", &space.str("mnt"), "--shape", "mirror:2", "--rate", "8M"];
    let mut child = Command::new(NURI).args(slow).stdout(Stdio::null()).spawn().unwrap();
    let converted = || ["a", "b", "c"].iter().filter(|f| shape(&mnt.join(f)) == "mirror:2").count();
    wait("one is converted", SOON, || converted() == 1);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(converted() < 3);
    let mut child = Command::new(NURI).args(slow).stdout(Stdio::null()).spawn().unwrap();
    wait("the next is converted", SOON, || converted() == 2);
    space.kill("node1");
    assert!(child.wait().unwrap().success());
    assert_eq!(converted(), 3);
    for name in ["a", "b", "c"] {
        assert!(fs::read(mnt.join(name)).unwrap() == data, "{name}");
    }
    space.down_clean();
}
