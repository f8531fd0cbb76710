//! `nuri doctor --repair` of spaces that were damaged while they were stopped.

use std::fs;
use std::path::PathBuf;

use nuri_cluster::store::{FileStore, MapStore};
use nuri_io::file::OpenMode;
use nuri_io::uring::open_disk;
use nuri_kv::engine::{Batch, Engine};
use nuri_node::directory::open_engine;
use nuri_proto::id::{BootId, Epoch};
use nuri_proto::stripe::Version;
use nuri_target::store::ChunkStore;
use nuri_target::target::store_path;
use serde_json::Value;

use crate::support::*;

fn doctor(space: &Space, more: &[&str]) -> (bool, Value) {
    let out = nuri(&[&["doctor", "--json", "--dir", &space.dir()], more].concat());
    let value = serde_json::from_slice(&out.stdout);
    (out.status.success(), value.unwrap_or_else(|_| panic!("{}", text(&out.stderr))))
}

fn node(space: &Space) -> PathBuf {
    space.path("space").join("node0")
}

/// What is wrong is told first, then mended, and what was there before is kept.
fn mended(space: &Space) -> String {
    let (is_clean, before) = doctor(space, &[]);
    assert!(!is_clean, "{before}");
    assert_eq!(before["mended"], Value::Array(vec![]));
    let (is_clean, after) = doctor(space, &["--repair"]);
    assert!(is_clean && after["problems"] == Value::Array(vec![]), "{after}");
    assert!(fs::exists(PathBuf::from(after["kept"].as_str().unwrap()).join("meta.log")).unwrap());
    let (is_clean, again) = doctor(space, &["--repair"]);
    assert!(is_clean && again["kept"] == Value::Null, "{again}");
    after["mended"].to_string()
}

#[test]
fn a_name_that_was_lost_is_found_again() {
    let space = Space::up(&[]);
    let mnt = space.path("mnt");
    fs::create_dir(mnt.join("dir")).unwrap();
    fs::write(mnt.join("dir/file"), "bytes").unwrap();
    let out = nuri(&["doctor", "--repair", "--dir", &space.dir()]);
    assert!(text(&out.stderr).contains("the space runs"), "{}", text(&out.stderr));
    space.down();
    let engine = open_engine(&node(&space)).unwrap();
    let mut batch = Batch::new();
    for (key, _) in engine.scan(&[], &[], usize::MAX).unwrap() {
        if key.ends_with(b"dir") {
            batch.delete(key);
        }
    }
    assert!(!batch.is_empty());
    engine.wait_durable(engine.commit(batch).unwrap()).unwrap();
    engine.checkpoint().unwrap();
    drop(engine);
    let what = mended(&space);
    assert!(what.contains("has no name"), "{what}");
    space.again();
    let found = fs::read_dir(mnt.join("lost+found")).unwrap().flatten().map(|entry| entry.path());
    let found: Vec<_> = found.collect();
    assert_eq!(found.len(), 1);
    assert_eq!(fs::read_to_string(found[0].join("file")).unwrap(), "bytes");
    space.down_clean();
}

#[test]
fn a_map_that_says_what_cannot_be_is_told_of_and_mended() {
    let space = Space::up(&[]);
    fs::write(space.path("mnt/file"), "bytes").unwrap();
    space.down();
    let store = FileStore::new(&node(&space).join("map.json"));
    let mut map = store.load().unwrap().unwrap();
    map.nodes[0].address = "x".repeat(150_000);
    store.save(&map).unwrap();
    let out = nuri(&["up", "--dir", &space.dir()]);
    let why = format!("{}{}", text(&out.stderr), space.logs());
    assert!(!out.status.success() && why.contains("nuri doctor --repair"), "{why}");
    nuri(&["down", "--force", "--dir", &space.dir()]);
    let what = mended(&space);
    assert!(what.contains("no address"), "{what}");
    space.again();
    assert_eq!(fs::read_to_string(space.path("mnt/file")).unwrap(), "bytes");
    space.down();
    // A flipped bit: the map before is used.
    let path = node(&space).join("map.json");
    fs::write(&path, fs::read_to_string(&path).unwrap().replace("\"size\": ", "\"size\": 1"))
        .unwrap();
    let what = mended(&space);
    assert!(what.contains("map.json.old"), "{what}");
    space.again();
    assert_eq!(fs::read_to_string(space.path("mnt/file")).unwrap(), "bytes");
    space.down_clean();
}

#[test]
fn a_promise_for_ever_is_taken_back() {
    let space = Space::up(&["--targets", "2", "--shape", "mirror:2"]);
    let path = space.path("mnt/file");
    fs::write(&path, vec![1; 100_000]).unwrap();
    space.down();
    let map = FileStore::new(&node(&space).join("map.json")).load().unwrap().unwrap();
    let mut promised = 0;
    for target in &map.targets {
        let disk = open_disk(&store_path(target.path.as_ref()), OpenMode::Existing).unwrap();
        let store = ChunkStore::open(disk, BootId(1), Default::default()).unwrap();
        for group in map.groups.iter().filter(|group| group.shape.is_redundant()) {
            for (key, _) in store.changed(group.id, Epoch(0), None, 100) {
                store.promise(key, group.id, Version(u64::MAX)).unwrap();
                promised += 1;
            }
        }
        store.close().unwrap();
    }
    assert_eq!(promised, 2);
    let what = mended(&space);
    assert!(what.contains("took no writes"), "{what}");
    space.again();
    fs::write(&path, vec![2; 100_000]).unwrap();
    fs::File::open(&path).unwrap().sync_all().unwrap();
    space.down_clean();
    space.again();
    assert!(fs::read(&path).unwrap().iter().all(|byte| *byte == 2));
    space.down_clean();
}
