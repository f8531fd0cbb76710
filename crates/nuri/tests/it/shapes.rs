//! How files are kept, and what the status says of it: redundancy that could be had, targets that
//! are nearly full, a space that is stopped.

use std::fs;
use std::process::Command;
use std::time::Duration;

use crate::support::{NURI, Space, freeze, nuri, refused, text, wait};

const SOON: Duration = Duration::from_secs(20);

fn layout(space: &Space, name: &str) -> String {
    text(&nuri(&["fs", "layout", "get", &format!("{}/{name}", space.str("mnt"))]).stdout)
}

#[test]
fn the_default_shape_can_be_changed_later() {
    let space = Space::up(&["--nodes", "2", "--targets", "2", "--shape", "stripe"]);
    let dir = space.dir();
    let says_none = |status: &serde_json::Value| {
        let said = status["health"]["sentences"].to_string();
        said.contains("new files have no redundancy") && status["health"]["state"] == "ok"
    };
    space.wait_status("it says that there is no redundancy", SOON, says_none);
    fs::write(space.mnt().join("before"), vec![1; 1 << 20]).unwrap();
    let set = ["space", "set", "--dir", &dir, "--shape"];
    let out = nuri(&[&set[..], &["mirror:3"]].concat());
    assert!(text(&out.stdout).contains("mirror:3 needs 3 targets, and there are 2"));
    let out = nuri(&[&set[..], &["mirror:2"]].concat());
    assert!(out.status.success(), "{}", text(&out.stderr));
    fs::write(space.mnt().join("after"), vec![2; 1 << 20]).unwrap();
    assert!(layout(&space, "before").contains("shape=stripe"), "{}", layout(&space, "before"));
    assert!(layout(&space, "after").contains("shape=mirror:2"), "{}", layout(&space, "after"));
    assert!(!says_none(&space.status()));
    // It stays so.
    space.down_clean();
    space.again();
    fs::write(space.mnt().join("later"), vec![3; 1 << 20]).unwrap();
    assert!(layout(&space, "later").contains("shape=mirror:2"), "{}", layout(&space, "later"));
    assert_eq!(fs::read(space.mnt().join("before")).unwrap(), vec![1; 1 << 20]);
    space.down_clean();
}

/// Of two nodes one is gone: half of the chunks of a striped file, and no byte of a mirrored one.
#[test]
fn files_that_cannot_be_read_are_listed() {
    let space = Space::up(&["--nodes", "2", "--targets", "2", "--shape", "stripe"]);
    let (mnt, point) = (space.mnt(), space.str("mnt"));
    fs::create_dir(mnt.join("safe")).unwrap();
    let safe = format!("{point}/safe");
    let set = nuri(&["fs", "layout", "set", &safe, "--shape", "mirror:2"]);
    assert!(set.status.success(), "{}", text(&set.stderr));
    for (name, bytes) in [("small", 100), ("striped", 3 << 20), ("safe/mirrored", 3 << 20)] {
        fs::write(mnt.join(name), vec![1; bytes]).unwrap();
    }
    rustix::fs::syncfs(fs::File::open(&mnt).unwrap()).unwrap();
    fs::File::open(mnt.join("striped")).unwrap().sync_all().unwrap();
    fs::File::open(mnt.join("safe/mirrored")).unwrap().sync_all().unwrap();
    let list = || {
        let out = nuri(&["fs", "lost", &point]);
        (out.status.code(), text(&out.stdout))
    };
    assert_eq!(list(), (Some(0), "all 3 files can be read\n".into()));
    let node1 = freeze(&space, "node1");
    space.wait_status("it is missed", SOON, |status| status["nodes"][1]["state"] == "down");
    let (code, said) = list();
    assert!(code == Some(1) && said.contains("1 of 3 files"), "{said}");
    let row = said.lines().next().unwrap();
    assert!(row.contains("striped") && row.contains("of    3.0 MiB"), "{row}");
    assert!(row.contains("1.0 MiB of") || row.contains("2.0 MiB of"), "{row}");
    let listed = nuri(&["fs", "lost", "--json", &point]);
    let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    let health = space.status()["health"].clone();
    assert_eq!(health["out_of_reach"], listed[0]["bytes"], "{health}");
    assert!(health["sentences"][0].as_str().unwrap().contains("MiB of a file"), "{health}");
    // Of the mirrors one member is left.
    assert_eq!(health["at_risk"], 3 << 20, "{health}");
    drop(node1);
    space.wait_status("it is back", SOON, |status| status["nodes"][1]["state"] == "up");
    wait("all is there", SOON, || list().0 == Some(0));
    refused(&["fs", "lost", "/proc"], "is not on a mounted space");
    space.down_clean();
}

/// Machines with one target each, that join one after the other.
#[test]
fn a_shape_may_be_said_before_there_are_targets_enough() {
    let mut space = Space::up(&["--targets", "1", "--target-size", "256M", "--shape", "mirror:2"]);
    let words = "mirror:2 needs 2 targets, and there are 1";
    let waits =
        |status: &serde_json::Value| status["health"]["sentences"].to_string().contains(words);
    assert!(waits(&space.status()));
    fs::write(space.mnt().join("early"), vec![1; 1 << 20]).unwrap();
    assert!(layout(&space, "early").contains("shape=stripe"), "{}", layout(&space, "early"));
    let first = space.status()["nodes"][0]["address"].as_str().unwrap().to_string();
    let [node, target, token] = ["node", "more", "space/token"].map(|name| space.str(name));
    let mut join = Command::new(NURI);
    join.args(["node", "run", "--create", "--dir", &node, "--target", &target]);
    join.args(["--target-size", "256M", "--join", &first, "--token-file", &token]);
    space.own_node(join);
    space.wait_status("there are targets enough", SOON, |status| !waits(status));
    fs::write(space.mnt().join("late"), vec![2; 1 << 20]).unwrap();
    assert!(layout(&space, "late").contains("shape=mirror:2"), "{}", layout(&space, "late"));
    let list = |noun: &str| {
        let out = nuri(&[noun, "list", "--dir", &node]);
        assert!(out.status.success(), "{}", text(&out.stderr));
        text(&out.stdout)
    };
    let (nodes, targets) = (list("node"), list("target"));
    let version = env!("CARGO_PKG_VERSION");
    assert!(nodes.lines().count() == 3 && nodes.matches(version).count() == 2, "{nodes}");
    assert!(targets.lines().count() == 3 && targets.contains(&target), "{targets}");
}

#[test]
fn a_stopped_space_is_not_damaged() {
    let space = Space::up(&["--targets", "1", "--target-size", "64M"]);
    space.down();
    let status = space.status();
    assert_eq!(status["health"]["state"], "stopped", "{status}");
    refused(&["fs", "df", &space.dir()], "the space is stopped");
    let token = space.str("space/mount.token");
    refused(&["fs", "df", "127.0.0.1:1", "--token-file", &token], "does not answer");
    let said = status["health"]["sentences"].to_string();
    assert!(
        said.contains(&format!("the space is stopped: nuri up --dir {}", space.dir())),
        "{said}"
    );
    space.again();
    space.down_clean();
}

#[test]
fn new_files_avoid_nearly_full_targets() {
    let mut space = Space::bare();
    let (dir, mnt) = (space.dir(), space.make_dir("mnt"));
    let (small, large) = (space.str("small"), space.str("large"));
    let start = |path: &str, size: &str, more: &[&str]| {
        let args = ["node", "run", "--create", "--target", path, "--target-size", size];
        let mut node = Command::new(NURI);
        node.args(args).args(more);
        node
    };
    let point = mnt.display().to_string();
    let up = ["up", "--create", "--dir", &dir, "--mount", &point, "--target", &small];
    let out = nuri(&[&up[..], &["--target-size", "128M", "--shape", "stripe"]].concat());
    assert!(out.status.success(), "{}", text(&out.stderr));
    space.own_mount(mnt.clone());
    let room = space.status()["targets"][0]["size"].as_u64().unwrap();
    let big = room / 100 * 92;
    fs::write(mnt.join("big"), vec![1; big as usize]).unwrap();
    fs::File::open(mnt.join("big")).unwrap().sync_all().unwrap();
    let status = space.status();
    let first = status["nodes"][0]["address"].as_str().unwrap().to_string();
    let (node, token) = (space.str("node"), format!("{dir}/token"));
    let more = ["--dir", &node, "--join", &first, "--token-file", &token];
    space.own_node(start(&large, "1G", &more));
    let used =
        |status: &serde_json::Value, n: usize| status["targets"][n]["used"].as_u64().unwrap();
    space.wait_status("the full one is named", SOON, |status| {
        let said = status["health"]["sentences"].to_string();
        let is_named = said.contains(&format!("target 1 ({small}) is 9"));
        is_named && said.contains("% full: new files") && used(status, 0) >= big
    });
    let before = used(&space.status(), 0);
    for i in 0..4 {
        fs::write(mnt.join(format!("new{i}")), vec![2; 8 << 20]).unwrap();
        fs::File::open(mnt.join(format!("new{i}"))).unwrap().sync_all().unwrap();
    }
    space.wait_status("they are on the other one", SOON, |status| used(status, 1) >= 32 << 20);
    let after = used(&space.status(), 0);
    // The last heartbeat before may have missed some blocks of the large file.
    assert!(after < before + (1 << 20), "{before} bytes, and now {after}");
}

#[test]
fn who_uses_a_mount_is_named_and_unmounting_ends_the_session() {
    let mut space = Space::up(&["--targets", "1", "--target-size", "64M"]);
    let point = space.mount("second");
    let mnt = point.display().to_string();
    let mut user = Command::new("sleep").arg("600").current_dir(&point).spawn().unwrap();
    let words = format!("is in use by sleep ({})", user.id());
    refused(&["fs", "umount", &mnt], &words);
    user.kill().unwrap();
    user.wait().unwrap();
    let listed = |status: &serde_json::Value| {
        let mounts = status["mounts"].as_array().unwrap();
        mounts.iter().find(|m| m["mountpoint"] == mnt.as_str()).map(|m| m["pid"].as_i64().unwrap())
    };
    let mut pid = None;
    space.wait_status("the mount is listed", SOON, |status| {
        pid = listed(status);
        pid.is_some()
    });
    let mut out = None;
    // The kernel may still be busy with the end of the program.
    wait("it is unmounted", SOON, || {
        let now = nuri(&["fs", "umount", &mnt]);
        let is_done = now.status.success();
        out = Some(now);
        is_done
    });
    assert_eq!(text(&out.unwrap().stderr), "");
    assert!(crate::support::has_ended(pid.unwrap() as i32), "its process still ran");
    space.down_clean();
}

#[test]
fn a_stop_asks_where_other_machines_have_mounts() {
    let mut space = Space::up(&["--targets", "1", "--target-size", "64M"]);
    let (dir, other) = (space.dir(), space.make_dir("other"));
    let mnt = other.display().to_string();
    // A machine is another one by its name.
    let script = format!("hostname another && exec {NURI} fs mount --foreground {dir} {mnt}");
    let daemon = Command::new("unshare").args(["-u", "sh", "-c", &script]).spawn().unwrap();
    space.own_child(daemon);
    space.own_mount(other);
    space.wait_status("the mount is listed", SOON, |status| {
        status["mounts"].as_array().unwrap().iter().any(|m| m["host"] == "another")
    });
    refused(&["down", "--dir", &dir], &format!("another:{mnt}"));
    assert_eq!(space.status()["health"]["state"], "ok", "nothing was stopped");
    let out = nuri(&["fs", "umount", &mnt]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    space.wait_status("it is listed no longer", SOON, |status| {
        !status["mounts"].as_array().unwrap().iter().any(|m| m["host"] == "another")
    });
    space.down_clean();
}
