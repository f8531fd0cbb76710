//! A mount that cannot be reached neither shows nor writes anything of old.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Space, is_mounted, run, stop, wait};
use crate::wire::Wire;

const BLOCK: usize = 1 << 20;

fn daemon_of(space: &Space, point: &Path) -> Pid {
    let status = space.status();
    let mounts = status["mounts"].as_array().unwrap().clone();
    let mount = mounts.iter().find(|m| m["mountpoint"] == point.display().to_string()).unwrap();
    Pid::from_raw(mount["pid"].as_i64().unwrap() as i32).unwrap()
}

/// The mount is frozen with written bytes that never left it. Another one takes over the file;
/// when the first one wakes, its bytes come too late.
#[test]
fn late_writes_of_an_evicted_mount_are_refused_and_told() {
    let mut space = Space::up(&["--nodes", "2"]);
    let (a, b) = (space.mnt(), space.mount("other"));
    fs::write(a.join("f"), vec![b'1'; 4 * BLOCK]).unwrap();
    space.wait_status("the mount is listed", Duration::from_secs(5), |status| {
        status["mounts"].as_array().unwrap().len() == 2
    });
    let daemon = daemon_of(&space, &b);
    let late = fs::OpenOptions::new().read(true).write(true).open(b.join("f")).unwrap();
    for block in 0..4 {
        late.write_all_at(&vec![b'2'; BLOCK / 2], (block * BLOCK) as u64).unwrap();
    }
    stop(daemon);
    let new = vec![b'3'; 4 * BLOCK];
    let start = Instant::now();
    let writer = fs::OpenOptions::new().write(true).open(a.join("f")).unwrap();
    writer.write_all_at(&new, 0).unwrap();
    writer.sync_all().unwrap();
    assert!(start.elapsed() > Duration::from_secs(4), "its lease had to run out first");
    kill_process(daemon, Signal::CONT).unwrap();
    wait("the loss is told", Duration::from_secs(10), || late.sync_all().is_err());
    assert!(late.sync_all().is_ok(), "once");
    assert!(fs::read(a.join("f")).unwrap() == new);
    assert!(fs::read(b.join("f")).unwrap() == new);
    drop((late, writer));
    space.down_clean();
}

struct Machines {
    space: Space,
    wire: Wire,
    /// Mounts on the machine with the servers, and on the other one.
    near: PathBuf,
    far: PathBuf,
}

fn machines() -> Machines {
    let wire = Wire::new("cut");
    let mut space = Space::bare();
    let (node, target) = (space.make_dir("node"), space.str("t1"));
    let token = node.join("token");
    fs::write(&token, format!("{}\n", "5a".repeat(32))).unwrap();
    let (node, tok) = (node.display().to_string(), token.display().to_string());
    run("chmod", &["600", &tok]);
    let address = "10.77.0.1:7400";
    let args =
        ["node", "run", "--create", "--dir", &node, "--listen", address, "--target", &target];
    let more = ["--target-size", "1G"];
    space.own_node(wire.command(0, &[&args[..], &more].concat()));
    let mut mounts = Vec::new();
    for (side, name) in ["near", "far"].into_iter().enumerate() {
        let point = space.make_dir(name);
        let mnt = point.display().to_string();
        let args = ["fs", "mount", "--foreground", address, &mnt, "--token-file", &tok];
        space.own_child(wire.command(side, &args).spawn().unwrap());
        space.own_mount(point.clone());
        wait("the mount is there", Duration::from_secs(10), || is_mounted(&point));
        mounts.push(point);
    }
    let (far, near) = (mounts.remove(1), mounts.remove(0));
    Machines { space, wire, near, far }
}

/// Reads in a thread: a read that waits for the server must not stop the test.
fn read_within(path: &Path, time: Duration) -> Option<std::io::Result<Vec<u8>>> {
    let (tell, told) = std::sync::mpsc::channel();
    let path = path.to_owned();
    std::thread::spawn(move || tell.send(fs::read(path)));
    told.recv_timeout(time).ok()
}

/// Its kernel holds the file's pages, its attributes and names; nobody can tell it to drop them.
/// Catches `broken!("trust_for_ever")`.
#[test]
fn a_mount_cut_off_shows_nothing_stale() {
    let Machines { space, wire, near, far } = machines();
    let old = vec![b'o'; 3 * BLOCK];
    fs::write(far.join("f"), &old).unwrap();
    fs::File::open(far.join("f")).unwrap().sync_all().unwrap();
    let open = fs::File::open(far.join("f")).unwrap();
    let mut byte = [0];
    open.read_exact_at(&mut byte, 0).unwrap();
    wire.set("down");
    fs::write(near.join("f"), "new").unwrap();
    // From here on nothing of old may be seen there.
    let cut = read_within(&far.join("f"), Duration::from_secs(2));
    assert!(!matches!(&cut, Some(Ok(bytes)) if *bytes == old), "stale: {:?}", cut.is_some());
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let read = open.read_exact_at(&mut byte, 0);
        tell.send(read.map(|()| byte[0]))
    });
    let cut = told.recv_timeout(Duration::from_secs(2)).ok();
    assert!(!matches!(cut, Some(Ok(b'o'))), "stale page of an open file");
    wire.set("up");
    wait("the mount is back", Duration::from_secs(20), || {
        read_within(&far.join("f"), Duration::from_secs(10))
            .is_some_and(|read| read.is_ok_and(|bytes| bytes == b"new"))
    });
    let made = fs::write(far.join("g"), "again");
    assert!(made.is_ok() || made.is_err_and(|e| e.kind() != ErrorKind::NotFound));
    drop(space);
    drop(wire);
}
