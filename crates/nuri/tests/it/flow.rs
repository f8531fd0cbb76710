//! A mount's settings: forced ones carry the same bytes, and what is refused.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::support::{Space, nuri, refused, text};

/// Not a multiple of any flow buffer.
const LEN: usize = (5 << 20) + 12_345;

fn set(mnt: &str, buffer: &str, streams: &str) {
    let set = nuri(&["fs", "tune", "set", mnt, "--buffer", buffer, "--streams", streams]);
    assert!(set.status.success(), "{}", text(&set.stderr));
}

fn shown(mnt: &str) -> serde_json::Value {
    serde_json::from_str(&text(&nuri(&["fs", "tune", "get", mnt, "--json"]).stdout)).unwrap()
}

/// Whole files, then pieces over them that begin and end anywhere.
fn write(path: &Path, salt: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..LEN).map(|i| (i / 7 + i / 4096 + salt) as u8).collect();
    let file = File::create(path).unwrap();
    file.write_all_at(&bytes, 0).unwrap();
    for i in 0..20 {
        let (at, len) = (i * 271_829 % (LEN - 150_000), 1 + i * 7_919 % 150_000);
        bytes[at..at + len].fill(salt as u8);
        file.write_all_at(&bytes[at..at + len], at as u64).unwrap();
    }
    file.sync_all().unwrap();
    bytes
}

fn carries_the_same_bytes(shape: &str) {
    let mut space = Space::up(&["--shape", shape]);
    let [a, b] = [space.mnt(), space.mount("other")];
    let [from, to] = [&a, &b].map(|mnt| mnt.display().to_string());
    let settings = [("64k", "1"), ("256K", "8"), ("1m", "2"), ("auto", "auto")];
    for (i, (buffer, streams)) in settings.into_iter().enumerate() {
        let wanted = write(&a.join("f"), i);
        set(&to, buffer, streams);
        assert!(std::fs::read(b.join("f")).unwrap() == wanted, "read in {buffer} times {streams}");
        set(&from, buffer, streams);
        let wanted = write(&a.join("g"), i + 100);
        assert!(std::fs::read(b.join("g")).unwrap() == wanted, "wrote {buffer} times {streams}");
    }
    space.down_clean();
}

#[test]
fn forced_buffers_carry_the_same_bytes_on_stripes() {
    carries_the_same_bytes("stripe");
}

#[test]
fn forced_buffers_carry_the_same_bytes_under_parity() {
    carries_the_same_bytes("parity:2+1");
}

#[test]
fn flow_buffers_are_shown_and_forced_for_one_mount() {
    let mut space = Space::up(&[]);
    let [a, b] = [space.mnt(), space.mount("other")].map(|mnt| mnt.display().to_string());
    let fresh = shown(&a);
    assert_eq!([&fresh["write_buffer"], &fresh["streams"]], [256 << 10, 4]);
    assert!(fresh["forced_buffer"].is_null() && fresh["write_rate"].is_null(), "{fresh}");
    set(&a, "64k", "auto");
    let forced = nuri(&["fs", "tune", "set", &a, "--streams", "2"]);
    assert!(forced.status.success());
    let forced = shown(&a);
    assert_eq!([&forced["forced_buffer"], &forced["read_buffer"]], [65536, 65536]);
    assert_eq!(forced["streams"], 2, "and the buffer stays");
    assert!(shown(&b)["forced_buffer"].is_null(), "the other mount's are its own");
    set(&a, "auto", "auto");
    // Large transfers show what the path carries; here it is fast.
    let path = space.mnt().join("f");
    std::fs::write(&path, vec![1; 64 << 20]).unwrap();
    File::open(&path).unwrap().sync_all().unwrap();
    let told = shown(&a);
    assert!(told["write_rate"].as_u64().is_some_and(|rate| rate > 1 << 20), "{told}");

    let set = |more: &[&str], why| refused(&[&["fs", "tune", "set", &a], more].concat(), why);
    set(&[], "say what to set");
    for size in ["100k", "32k", "2m"] {
        set(&["--buffer", size], "a power of two from 64K to 1M, or auto");
    }
    set(&["--streams", "0"], "from 1 to 8, or auto");
    set(&["--read-ahead", "100k"], "a multiple of 64K up to 8M, or auto");
    set(&["--write-behind", "1G"], "from 4M to 256M, or auto");
    set(&["--threads", "9"], "from 1 to 8, or auto");
    let tmp = std::env::temp_dir().display().to_string();
    refused(&["fs", "tune", "get", &tmp], "not on a mounted space");
    let ior = ["lab", "ior", "--flow-buffer", "64k", &tmp];
    refused(&ior, "--flow-...: ");
    space.down_clean();
}

/// How far the kernel reads ahead on a mount, KiB.
fn kernel_ahead(mnt: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let device = std::fs::metadata(mnt).unwrap().dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let knob = std::fs::read_to_string(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"));
    knob.unwrap().trim().parse().unwrap()
}

/// Reads a file past the kernel's cache.
fn read_direct(path: &Path) -> Vec<u8> {
    let from = format!("if={}", path.display());
    let dd = ["iflag=direct", "bs=256k", "status=none", &from];
    std::process::Command::new("dd").args(dd).output().unwrap().stdout
}

#[test]
fn reading_ahead_and_writing_behind_are_forced_for_one_mount() {
    let mut space = Space::up(&["--shape", "stripe"]);
    let [a, b] = [space.mnt(), space.mount("other")];
    let mnt = a.display().to_string();
    let fresh = shown(&mnt);
    let usual = [2 << 20, 96 << 20, 3];
    assert_eq!(["read_ahead", "write_behind", "threads"].map(|name| &fresh[name]), usual);
    let force = |words: &[&str]| {
        let set = nuri(&[&["fs", "tune", "set", &mnt], words].concat());
        assert!(set.status.success(), "{}", text(&set.stderr));
    };
    for (ahead, behind, threads) in [("0", "4M", "1"), ("8M", "256M", "8"), ("64K", "5M", "2")] {
        let wanted = write(&a.join("f"), threads.len());
        force(&["--read-ahead", ahead, "--write-behind", behind, "--threads", threads]);
        assert!(read_direct(&a.join("f")) == wanted, "read {ahead} ahead in {threads}");
        let wanted = write(&a.join("g"), 7);
        assert!(std::fs::read(b.join("g")).unwrap() == wanted, "wrote {behind} behind");
        assert_eq!(shown(&mnt)["forced_threads"], threads.parse::<u64>().unwrap());
    }
    assert_eq!((kernel_ahead(&a), kernel_ahead(&b)), (64, 2048), "the other mount's is its own");
    force(&["--streams", "2"]);
    assert_eq!(shown(&mnt)["forced_read_ahead"], 64 << 10, "the rest stays");
    // Many more bytes than may be buffered.
    let long = vec![7; 40 << 20];
    std::fs::write(a.join("long"), &long).unwrap();
    assert!(std::fs::read(b.join("long")).unwrap() == long);
    force(&["--read-ahead", "auto", "--write-behind", "auto", "--threads", "auto"]);
    assert_eq!((kernel_ahead(&a), &shown(&mnt)["write_behind"]), (2048, &(96 << 20).into()));
    space.down_clean();
}
