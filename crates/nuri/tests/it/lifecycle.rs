//! up, down, again, status, layouts, df, check.

use std::time::Duration;

use crate::support::{NURI, Space, is_mounted, nuri, text};

#[test]
fn data_survives_down_and_up_and_status_tells_all() {
    let space = Space::up(&[]);
    let big: Vec<u8> = (0..5_000_000u32).map(|i| (i * 7) as u8).collect();
    std::fs::write(space.mnt().join("big"), &big).unwrap();
    std::fs::write(space.mnt().join("small"), b"few bytes").unwrap();
    let status = space.status();
    assert_eq!(status["format"], 1);
    assert_eq!(status["health"]["state"], "ok");
    assert_eq!(status["targets"].as_array().unwrap().len(), 4);
    for key in ["id", "node", "path", "state", "size", "used"] {
        assert!(!status["targets"][0][key].is_null(), "{key}");
    }
    for key in ["id", "pid", "address", "state"] {
        assert!(!status["nodes"][0][key].is_null(), "{key}");
    }
    assert!(status["nodes"][0]["address"].as_str().unwrap().starts_with("127.0.0.1:"));
    assert!(status["pools"][0]["groups"].is_number());
    space.wait_status("the mount is listed", Duration::from_secs(5), |status| {
        status["mounts"][0]["mountpoint"] == space.str("mnt")
    });
    space.down_clean();
    assert!(!is_mounted(&space.mnt()));
    assert!(!nuri(&["status", "--dir", &space.dir()]).status.success());
    space.again();
    assert_eq!(std::fs::read(space.mnt().join("big")).unwrap(), big);
    assert_eq!(std::fs::read(space.mnt().join("small")).unwrap(), b"few bytes");
    // Twice is once.
    space.again();
    space.down_clean();
    space.down();
}

#[test]
fn several_nodes_and_layouts() {
    let space = Space::up(&["--nodes", "3", "--targets", "6"]);
    let status = space.status();
    assert_eq!(status["nodes"].as_array().unwrap().len(), 3);
    let dir = space.mnt().join("narrow");
    std::fs::create_dir(&dir).unwrap();
    let path = dir.display().to_string();
    let set = ["fs", "layout", "set", &path, "--chunk-size", "64K", "--width", "2"];
    assert!(nuri(&set).status.success());
    std::fs::write(dir.join("f"), vec![3; 1 << 20]).unwrap();
    let file = format!("{path}/f");
    let shown = text(&nuri(&["fs", "layout", "get", &file]).stdout);
    assert!(shown.contains("chunk_size=65536 width=2"), "{shown}");
    let json = text(&nuri(&["fs", "layout", "get", "--json", &file]).stdout);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["chunk_size"], "65536");
    let refused = nuri(&["fs", "layout", "set", &file, "--width", "1"]);
    assert!(text(&refused.stderr).contains("has data, which lies as it does"));
    assert_eq!(std::fs::read(dir.join("f")).unwrap(), vec![3; 1 << 20]);
    space.down_clean();
}

#[test]
fn a_loop_device_is_a_target() {
    let mut space = Space::bare();
    let image = space.path("disk.img");
    std::fs::File::create(&image).unwrap().set_len(600 << 20).unwrap();
    let device = crate::support::run("losetup", &["-f", "--show", &image.display().to_string()]);
    let device = device.trim().to_string();
    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let point = space.make_dir("mnt");
        let (dir, mnt, other) = (space.dir(), point.display().to_string(), space.str("plain"));
        let args = [
            "up", "--create", "--dir", &dir, "--mount", &mnt, "--target", &device, "--target",
            &other,
        ];
        let out = nuri(&[&args[..], &["--target-size", "500M"]].concat());
        assert!(out.status.success(), "{}\n{}", text(&out.stderr), space.logs());
        space.own_mount(point.clone());
        std::fs::write(point.join("x"), vec![9; 8 << 20]).unwrap();
        space.down_clean();
        space.again();
        assert_eq!(std::fs::read(point.join("x")).unwrap(), vec![9; 8 << 20]);
        space.down_clean();
    }));
    drop(space);
    crate::support::run("losetup", &["-d", &device]);
    done.unwrap();
}

/// A package manager puts another file in the program's place while a space runs. The space goes on
/// as it is, also where one of its processes ends.
#[test]
fn a_space_goes_on_where_its_program_was_replaced() {
    let mut space = Space::bare();
    let program = space.path("nuri");
    if std::fs::hard_link(NURI, &program).is_err() {
        std::fs::copy(NURI, &program).unwrap();
    }
    let point = space.make_dir("mnt");
    let (dir, mnt) = (space.dir(), point.display().to_string());
    let mut up = std::process::Command::new(&program);
    up.args(["up", "--create", "--dir", &dir, "--mount", &mnt, "--targets", "1"]);
    let out = up.args(["--target-size", "64M"]).output().unwrap();
    assert!(out.status.success(), "{}\n{}", text(&out.stderr), space.logs());
    space.own_mount(point.clone());
    std::fs::write(point.join("before"), "bytes").unwrap();
    std::fs::write(space.path("new"), "another version").unwrap();
    std::fs::rename(space.path("new"), &program).unwrap();
    space.kill("node0");
    std::fs::write(point.join("replaced"), "bytes").unwrap();
    std::fs::remove_file(&program).unwrap();
    space.kill("node0");
    std::fs::write(point.join("removed"), "bytes").unwrap();
    for name in ["before", "replaced", "removed"] {
        assert_eq!(std::fs::read(point.join(name)).unwrap(), b"bytes", "{name}");
    }
    space.down_clean();
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let space = Space::up(&[]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut status = std::process::Command::new(NURI);
    status.args(["status", "--dir", &space.dir()]).stdout(writer);
    let out = status.stderr(std::process::Stdio::piped()).output().unwrap();
    assert_eq!((out.status.code(), text(&out.stderr)), (Some(0), String::new()));
}

#[test]
fn a_mount_that_is_just_being_made_is_taken_down_too() {
    let space = Space::up(&[]);
    for round in 0..12 {
        let mnt = space.mnt().display().to_string();
        assert!(nuri(&["fs", "umount", &mnt]).status.success());
        // Its supervisor makes it again meanwhile.
        std::thread::sleep(Duration::from_millis(25 * round));
        space.down();
        assert!(!is_mounted(&space.mnt()), "round {round}");
        space.again();
    }
    space.down_clean();
}

#[test]
fn a_forced_stop_leaves_no_mount_behind_that_is_just_being_made() {
    let space = Space::up(&["--targets", "1", "--target-size", "64M"]);
    for round in 0..8 {
        let mnt = space.mnt().display().to_string();
        assert!(nuri(&["fs", "umount", &mnt]).status.success());
        // Its supervisor makes it again meanwhile.
        std::thread::sleep(Duration::from_millis(25 * round));
        let out = nuri(&["down", "--force", "--dir", &space.dir()]);
        assert!(out.status.success(), "{}", text(&out.stderr));
        assert!(!is_mounted(&space.mnt()), "round {round}");
        space.again();
    }
    space.down_clean();
}
