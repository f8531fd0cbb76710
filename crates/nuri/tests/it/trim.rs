//! What a mount remembers is bounded, and nothing that programs use is forgotten.

use std::fs;
use std::io::{Read, Seek, Write};
use std::time::Duration;

use crate::support::{Space, nuri, refused, text};

const FILES: usize = 3000;
const LIMIT: u64 = 300;

#[test]
fn a_mount_forgets_what_nobody_uses() {
    let mut space = Space::up(&[]);
    let point = space.make_dir("small");
    let (dir, mnt) = (space.dir(), point.display().to_string());
    refused(&["fs", "mount", &dir, &mnt, "--inodes", "5"], "100");
    let out = nuri(&["fs", "mount", &dir, &mnt, "--inodes", &LIMIT.to_string()]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    space.own_mount(point.clone());
    let path = |i: usize| format!("d{}/f{i}", i % 20);
    (0..20).for_each(|i| fs::create_dir(space.mnt().join(format!("d{i}"))).unwrap());
    (0..FILES).for_each(|i| fs::write(space.mnt().join(path(i)), format!("{i}")).unwrap());
    let mut held = fs::File::options().read(true).write(true).open(point.join(path(0))).unwrap();
    for round in 0..2 {
        let read = |i| fs::read_to_string(point.join(path(i))).unwrap();
        assert!((1..FILES).all(|i| read(i) == format!("{i}")), "in round {round}");
        assert_eq!(fs::read_dir(point.join("d3")).unwrap().count(), FILES / 20);
        space.wait_status("few are remembered", Duration::from_secs(20), |status| {
            let mut mounts = status["mounts"].as_array().unwrap().iter();
            let small = mounts.find(|m| m["mountpoint"] == mnt.as_str());
            small.is_some_and(|m| m["inodes"].as_u64().unwrap() <= LIMIT)
        });
    }
    // The open file is still there, also without a name, and what is written to it is kept.
    fs::remove_file(space.mnt().join(path(0))).unwrap();
    held.write_all(b"more").unwrap();
    held.sync_all().unwrap();
    held.rewind().unwrap();
    let mut all = String::new();
    held.read_to_string(&mut all).unwrap();
    assert_eq!(all, "more");
    drop(held);
    // Nothing that was forgotten is stale.
    fs::write(space.mnt().join(path(1)), "new").unwrap();
    assert_eq!(fs::read_to_string(point.join(path(1))).unwrap(), "new");
    space.down_clean();
}
