//! Targets and their places: how large they become, and what happens when a place is not what it
//! was. Nothing is made that nobody asked for.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::support::{NURI, Space, nuri, refused, run, text};
use crate::wire::Wire;

const MIB: u64 = 1 << 20;

/// A directory with a mount over it while the test wants it; gone with the test.
struct Disk(PathBuf);

impl Disk {
    fn memory(point: PathBuf, size: &str) -> Disk {
        let options = format!("size={size}");
        run("mount", &["-t", "tmpfs", "-o", &options, "nuri-it", &point.display().to_string()]);
        Disk(point)
    }

    /// What lies at `of` seems to lie at `point`.
    fn bound(of: &Path, point: &Path) -> Disk {
        run("mount", &["--bind", &of.display().to_string(), &point.display().to_string()]);
        Disk(point.to_owned())
    }

    fn str(&self) -> String {
        self.0.display().to_string()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Servers of the test may still use it.
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

fn target<'a>(status: &'a Value, path: &str) -> &'a Value {
    let mut targets = status["targets"].as_array().unwrap().iter();
    targets.find(|t| t["path"] == path).unwrap_or(&Value::Null)
}

fn is_failed(status: &Value, path: &str, why: &str) -> bool {
    let target = target(status, path);
    target["state"] == "failed" && target["reason"].as_str().is_some_and(|r| r.contains(why))
}

const SOON: Duration = Duration::from_secs(20);

/// What a target may take of its disk, in MiB: its own bookkeeping is in it.
fn size(path: &str) -> u64 {
    fs::metadata(Path::new(path).join("store")).unwrap().len() / MIB
}

#[test]
fn each_disk_gives_its_own_size() {
    let mut space = Space::bare();
    let disks = [("a", "200M"), ("b", "300M"), ("c", "200M"), ("d", "300M")];
    let [a, b, c, d] = disks.map(|(name, size)| Disk::memory(space.make_dir(name), size));
    let (dir, sharing) = (space.dir(), [format!("{}/1", b.str()), format!("{}/2", b.str())]);
    let up = ["up", "--create", "--dir", &dir, "--shape", "stripe", "--target", &a.str()];
    let more = ["--target", &sharing[0], "--target", &sharing[1], "--nodes", "3"];
    let out = nuri(&[&up[..], &more].concat());
    assert!(out.status.success(), "{}{}", text(&out.stderr), space.logs());
    let status = space.status();
    let near = |found: u64, wanted: u64| found.abs_diff(wanted) <= 4;
    assert!(near(size(&a.str()), 180), "{status}");
    sharing.iter().for_each(|path| assert!(near(size(path), 135), "{status}"));
    // The same for a node that was told by hand.
    let address = status["nodes"][0]["address"].as_str().unwrap().to_string();
    let (node, token) = (space.str("node"), format!("{dir}/token"));
    let mut command = std::process::Command::new(NURI);
    command.args(["node", "run", "--create", "--dir", &node, "--join", &address]);
    command.args(["--token-file", &token, "--target", &c.str(), "--target", &d.str()]);
    space.own_node(command);
    let status = space.status();
    assert!(near(size(&c.str()), 180), "{status}");
    assert!(near(size(&d.str()), 270), "{status}");
}

#[test]
fn nothing_is_made_without_the_word() {
    let space = Space::bare();
    let (dir, node) = (space.dir(), space.str("a node"));
    let out = nuri(&["up", "--dir", &dir, "--targets", "2"]);
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{said}");
    assert!(said.contains(&format!("nuri up --dir {dir} --targets 2 --create")), "{said}");
    assert!(said.contains(&format!("{dir}/target0, {dir}/target1")), "{said}");
    let out = nuri(&["node", "run", "--dir", &node]);
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{said}");
    assert!(said.contains(&format!("nuri node run --dir '{node}' --create")), "{said}");
    assert!(!Path::new(&dir).exists() && !Path::new(&node).exists());
    // The words are a command that does it.
    let make = format!("{NURI} up --dir {dir} --targets 2 --target-size 64M --create");
    run("sh", &["-c", &make]);
    // A further target wants the word too; the same node without it runs on.
    space.down();
    let (node, more) = (format!("{dir}/node0"), space.str("more"));
    let token = format!("{dir}/token");
    let out = nuri(&["node", "run", "--dir", &node, "--token-file", &token, "--target", &more]);
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{said}");
    assert!(said.contains("no target yet") && !Path::new(&more).exists(), "{said}");
    space.again();
    space.down_clean();
    // Its disk is not mounted: no new space begins there.
    fs::rename(&node, space.path("aside")).unwrap();
    refused(&["up", "--dir", &dir], "there is no node yet in");
    assert!(!Path::new(&node).exists());
    fs::rename(space.path("aside"), &node).unwrap();
    fs::rename(format!("{node}/map.json"), space.path("map")).unwrap();
    refused(&["up", "--dir", &dir], "the map.json of node 1 is missing");
    fs::rename(space.path("map"), format!("{node}/map.json")).unwrap();
    space.again();
    space.down_clean();
}

/// Three targets, one of them on a disk that can be taken away, and a file on all of them.
fn on_a_disk(space: &mut Space) -> ([String; 3], Disk) {
    let (real, point) = (space.make_dir("real"), space.make_dir("disk"));
    let disk = Disk::bound(&real, &point);
    let targets = [disk.str(), space.str("t1"), space.str("t2")];
    let (dir, mnt) = (space.dir(), space.make_dir("mnt"));
    let mnt_text = mnt.display().to_string();
    let mut args = vec!["up", "--create", "--dir", &dir, "--mount", &mnt_text];
    args.extend(["--shape", "mirror:2", "--target-size", "1G"]);
    targets.iter().for_each(|path| args.extend(["--target", path]));
    let out = nuri(&args);
    assert!(out.status.success(), "{}{}", text(&out.stderr), space.logs());
    space.own_mount(mnt.clone());
    fs::write(mnt.join("f"), vec![7; 9 << 20]).unwrap();
    fs::File::open(mnt.join("f")).unwrap().sync_all().unwrap();
    (targets, disk)
}

fn is_readable(space: &Space) -> bool {
    fs::read(space.mnt().join("f")).unwrap() == vec![7; 9 << 20]
}

#[test]
fn a_disk_that_is_not_mounted_is_told_and_left_alone() {
    let mut space = Space::bare();
    let (targets, disk) = on_a_disk(&mut space);
    space.down();
    drop(disk);
    // The space starts with what is there, and says what is not.
    let out = nuri(&["up", "--dir", &space.dir()]);
    let said = text(&out.stdout);
    assert!(out.status.success(), "{}{}", text(&out.stderr), space.logs());
    assert!(said.contains("is empty: is its disk mounted?"), "{said}");
    assert_eq!(fs::read_dir(&targets[0]).unwrap().count(), 0, "nothing is made there");
    space.wait_status("it is failed, with the reason", SOON, |status| {
        is_failed(status, &targets[0], "is empty") && status["health"]["state"] == "degraded"
    });
    assert!(is_readable(&space));
    space.down();
    // Another target's disk is there in its place.
    let disk = Disk::bound(Path::new(&targets[1]), Path::new(&targets[0]));
    let node = format!("{}/node0", space.dir());
    let settings = fs::read_to_string(format!("{node}/node.json")).unwrap();
    assert!(settings.contains(&format!("\"{}\": 1", targets[0])), "{settings}");
    drop(disk);
    let _disk = Disk::bound(&space.path("real"), Path::new(&targets[0]));
    space.again();
    space.wait_status("all is well again", SOON, |status| status["health"]["state"] == "ok");
    assert!(is_readable(&space));
    space.down_clean();
}

#[test]
fn a_place_that_holds_another_target_is_told() {
    let mut space = Space::bare();
    let (targets, disk) = on_a_disk(&mut space);
    space.down();
    drop(disk);
    // Somebody mounted the wrong one, and took its own place away.
    fs::rename(&targets[1], space.path("moved")).unwrap();
    let _disk = Disk::bound(&space.path("moved"), Path::new(&targets[0]));
    space.again();
    space.wait_status("both are failed", SOON, |status| {
        is_failed(status, &targets[0], "holds target 2, not target 1")
            && is_failed(status, &targets[1], "is not there")
    });
    assert!(!Path::new(&targets[1]).exists());
}

#[test]
fn a_target_that_is_taken_away_while_it_serves_is_failed_at_once() {
    let mut space = Space::bare();
    let (targets, disk) = on_a_disk(&mut space);
    // A lazy unmount under the running node.
    drop(disk);
    space.wait_status("it is failed", SOON, |status| {
        is_failed(status, &targets[0], "is at") && status["health"]["state"] == "degraded"
    });
    assert!(is_readable(&space));
    assert!(space.logs().contains("out of service until its node is started anew"));
    assert_eq!(fs::read_dir(&targets[0]).unwrap().count(), 0);
    space.kill("node0");
    space.wait_status("its node started anew", SOON, |status| {
        is_failed(status, &targets[0], "is empty")
    });
    assert_eq!(fs::read_dir(&targets[0]).unwrap().count(), 0, "a restart makes nothing");
    // The operator says that a new one may be made there.
    let out = nuri(&["up", "--create", "--dir", &space.dir()]);
    assert!(out.status.success(), "{}{}", text(&out.stderr), space.logs());
    assert!(Path::new(&targets[0]).join("store").exists());
    let status = space.status();
    let new = status["targets"].as_array().unwrap().iter().rfind(|t| t["path"] == *targets[0]);
    assert_eq!(new.unwrap()["state"], "up", "{status}");
    assert!(is_readable(&space));
    space.down();
}

/// Copies a directory that is in use: a file that takes another one's place may go meanwhile.
fn copy_running(from: &str, to: &str) {
    let out = Command::new("cp").args(["-a", "--sparse=always", from, to]).output().unwrap();
    let words = text(&out.stderr);
    let is_replaced = |line: &str| line.contains(".new'") && line.contains("No such file");
    assert!(out.status.success() || words.lines().all(is_replaced), "{words}");
}

/// A copy of a node's directory and target, started beside it as on another machine.
#[test]
fn a_copy_of_a_node_is_refused_and_both_are_named() {
    let mut space = Space::up(&["--targets", "1", "--target-size", "64M"]);
    let (dir, node) = (space.dir(), space.str("node"));
    let (token, target) = (format!("{dir}/token"), space.str("target"));
    refused(&["node", "run", "--create", "--dir", &dir], "is the directory of a whole space");
    let first = space.status()["nodes"][0]["address"].as_str().unwrap().to_string();
    let mut command = std::process::Command::new(NURI);
    command.args(["node", "run", "--create", "--dir", &node, "--join", &first]);
    command.args(["--token-file", &token, "--target", &target, "--target-size", "64M"]);
    space.own_node(command);
    let [copy, other] = [space.str("copy"), space.str("target copy")];
    copy_running(&node, &copy);
    copy_running(&target, &other);
    let settings = format!("{copy}/node.json");
    let there = fs::read_to_string(&settings).unwrap().replace(&target, &other);
    fs::write(&settings, there).unwrap();
    let address = space.status()["nodes"][1]["address"].as_str().unwrap().to_string();
    let words = format!("node 2 runs at {address}, and this one at 127.0.0.1:");
    refused(&["node", "run", "--dir", &copy, "--listen", "127.0.0.1:0"], &words);
    let status = space.status();
    assert_eq!(status["nodes"][1]["address"], address.as_str(), "{status}");
    assert_eq!(status["health"]["state"], "ok", "{status}");
    fs::write(space.mnt().join("f"), vec![7; 9 << 20]).unwrap();
    fs::File::open(space.mnt().join("f")).unwrap().sync_all().unwrap();
    assert!(is_readable(&space));
}

/// The first node has all that a space is: two of them would be two spaces of one name.
#[test]
fn a_copy_of_the_first_node_is_refused_while_it_runs() {
    let space = Space::bare();
    let up = ["up", "--create", "--targets", "1", "--target-size", "64M", "--dir"];
    run(NURI, &[&up[..], &[&space.dir()]].concat());
    let address = space.status()["nodes"][0]["address"].as_str().unwrap().to_string();
    let copy = space.str("copy");
    copy_running(&space.dir(), &copy);
    fs::remove_dir_all(format!("{copy}/run")).unwrap();
    let words = format!("runs at {address}, and {copy} is a copy");
    refused(&["up", "--dir", &copy, "--listen", "127.0.0.2:0"], &words);
    refused(&["up", "--dir", &copy], &format!("{address} is taken by another program"));
    let [node, token] = ["node0", "token"].map(|name| format!("{copy}/{name}"));
    let alone = ["node", "run", "--dir", &node, "--token-file", &token, "--listen", "127.0.0.1:0"];
    refused(&alone, &format!("runs at {address}, and {node} is a copy"));
    assert_eq!(space.status()["health"]["state"], "ok");
    space.down_clean();
}

#[test]
fn a_node_joins_with_an_address_that_others_reach() {
    let wire = Wire::new("reach");
    let mut space = Space::bare();
    let (first, token) = (space.make_dir("first"), space.path("first/token"));
    fs::write(&token, format!("{}\n", "5a".repeat(32))).unwrap();
    run("chmod", &["600", &token.display().to_string()]);
    let (first, token) = (first.display().to_string(), token.display().to_string());
    let listen = ["--listen", "10.77.0.1:7400"];
    let args = ["node", "run", "--create", "--dir", &first, "--target", &space.str("t1")];
    let size = ["--target-size", "64M"];
    space.own_node(wire.command(0, &[&args[..], &listen, &size].concat()));
    wire.ip(1, &["addr", "add", "10.99.0.1/32", "dev", "lo"]);
    let (second, target) = (space.str("second"), space.str("t2"));
    let join = |address: &str| {
        let args = ["node", "run", "--create", "--dir", &second, "--target", &target];
        let more = ["--join", "10.77.0.1:7400", "--token-file", &token, "--listen", address];
        wire.command(1, &[&args[..], &more, &size].concat())
    };
    for (address, words) in [
        (
            "127.0.0.1:7400",
            "give an address that the other machines reach: --listen 10.77.0.2:7400",
        ),
        ("10.99.0.1:7400", "cannot connect to 10.99.0.1:7400, so nor can others"),
    ] {
        let out = join(address).output().unwrap();
        let said = text(&out.stderr);
        assert!(!out.status.success() && said.contains(words), "{address}: {said}");
    }
    space.own_node(join("10.77.0.2:7400"));
    // Any node's directory, an address or a mount tells of the space.
    let mnt = space.str("mnt");
    let mount = ["fs", "mount", "10.77.0.1:7400", &mnt, "--token-file", &token];
    let out = wire.command(1, &mount).output().unwrap();
    assert!(out.status.success(), "{}", text(&out.stderr));
    space.own_mount(space.path("mnt"));
    let secret = ["--token-file", &token];
    let ways = [
        vec!["--dir", &second],
        vec!["--dir", &first],
        [&["--at", "10.77.0.1:7400"][..], &secret].concat(),
        [&["--mount", &mnt][..], &secret].concat(),
    ];
    for way in ways {
        let args = [&["status", "--json"][..], &way].concat();
        let out = wire.command(1, &args).output().unwrap();
        let said = format!("{way:?}: {}{}", text(&out.stdout), text(&out.stderr));
        assert!(out.status.success(), "{said}");
        let status: Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(status["nodes"].as_array().unwrap().len(), 2, "{said}");
    }
    assert!(nuri(&["fs", "umount", &mnt]).status.success());
    drop(space);
    drop(wire);
}

/// Neither the space's directory nor its mount point nor its target is text.
#[test]
fn a_space_may_lie_in_directories_of_any_name() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let mut space = Space::bare();
    let odd = |name: &[u8]| space.path("x").with_file_name(OsStr::from_bytes(name));
    let (dir, mnt, target) = (odd(b"sp\xff \n'\""), odd(b"mnt\xff\t"), odd(b"\xfetarget"));
    let second = odd(b"second \xff");
    let done = |command: &mut Command| {
        let out = command.output().unwrap();
        assert!(out.status.success(), "{}", text(&out.stderr));
    };
    let up = |more: &[&str]| {
        let mut command = Command::new(NURI);
        command.arg("up").args(more).arg("--dir").arg(&dir);
        command
    };
    let create = ["--create", "--target-size", "64M"];
    done(up(&create).arg("--mount").arg(&mnt).arg("--target").arg(&target));
    fs::write(mnt.join("f"), "1").unwrap();
    done(Command::new(NURI).args(["fs", "mount"]).arg(&dir).arg(&second));
    assert_eq!(fs::read_to_string(second.join("f")).unwrap(), "1");
    done(Command::new(NURI).args(["fs", "umount"]).arg(&second));
    done(Command::new(NURI).args(["status", "--dir"]).arg(&dir));
    done(Command::new(NURI).args(["down", "--dir"]).arg(&dir));
    done(&mut up(&[]));
    assert_eq!(fs::read_to_string(mnt.join("f")).unwrap(), "1");
    done(Command::new(NURI).args(["down", "--dir"]).arg(&dir));
    done(Command::new(NURI).args(["doctor", "--dir"]).arg(&dir));
    space.own_mount(mnt);
}
