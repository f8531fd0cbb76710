//! The metadata has a copy on another node: it survives the loss of the first node's disk, and
//! nobody notices when the copy's node dies.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::stopwatch::Stopwatch;
use crate::support::{
    SetAtEnd, Space, freeze, in_time, is_mounted, kill_all, nuri, refused, run, text, timed, wait,
};
use crate::wire::Wire;

fn wait_copies(space: &Space, wanted: u64) {
    space.wait_status("copies of the metadata", Duration::from_secs(20), |status| {
        status["metadata"]["copies"] == wanted
    });
}

fn write_synced(path: &Path, data: &[u8]) {
    let mut file = fs::File::create(path).unwrap();
    file.write_all(data).unwrap();
    file.sync_all().unwrap();
}

fn restore(space: &Space, more: &[&str]) -> String {
    let dir = space.dir();
    let out = nuri(&[&["doctor", "--restore-metadata", "--dir", &dir], more].concat());
    let said = format!("{}{}", text(&out.stdout), text(&out.stderr));
    assert!(out.status.success(), "{said}");
    said
}

/// Directories, renamed and removed files, small files and large ones.
fn fill(dir: &Path) {
    fs::create_dir(dir).unwrap();
    for i in 0..40usize {
        write_synced(&dir.join(format!("small{i}")), &vec![i as u8; 100 * i]);
    }
    for i in 0..6u8 {
        write_synced(&dir.join(format!("large{i}")), &vec![i; (3 << 20) + 7]);
    }
    for i in 0..10 {
        fs::rename(dir.join(format!("small{i}")), dir.join(format!("renamed{i}"))).unwrap();
    }
    fs::remove_file(dir.join("small39")).unwrap();
    fs::File::open(dir).unwrap().sync_all().unwrap();
}

fn check(dir: &Path) {
    assert_eq!(fs::read_dir(dir).unwrap().count(), 45);
    for i in 0..39usize {
        let name = if i < 10 { format!("renamed{i}") } else { format!("small{i}") };
        assert_eq!(fs::read(dir.join(name)).unwrap(), vec![i as u8; 100 * i], "file {i}");
    }
    for i in 0..6u8 {
        let body = fs::read(dir.join(format!("large{i}"))).unwrap();
        assert!(body == vec![i; (3 << 20) + 7], "large file {i}");
    }
}

#[test]
fn the_first_nodes_metadata_can_be_lost() {
    let space = Space::up(&["--nodes", "2", "--shape", "stripe"]);
    // Some of it is there before the copy is whole, some comes after.
    fill(&space.mnt().join("before"));
    wait_copies(&space, 2);
    let said = text(&nuri(&["status", "--dir", &space.dir()]).stdout);
    assert!(said.contains("metadata: 2 copies (nodes 1, 2)"), "{said}");
    fill(&space.mnt().join("after"));
    kill_all(&space, &["node0", "node1"]);
    let first = space.path("space/node0");
    let dir = space.dir();
    refused(&["doctor", "--restore-metadata", "--dir", &dir], "--force");
    fs::remove_dir_all(&first).unwrap();
    refused(&["up", "--dir", &dir], "--restore-metadata");
    let said = restore(&space, &[]);
    assert!(said.contains("generation 1") && said.contains("meta-copy.1"), "{said}");
    space.again();
    check(&space.mnt().join("before"));
    check(&space.mnt().join("after"));
    // It goes on, and is copied anew.
    wait_copies(&space, 2);
    fill(&space.mnt().join("later"));
    check(&space.mnt().join("later"));
    space.down_clean();
}

/// Writes small synced files, which live in the metadata alone, until told to stop. Returns how
/// many, and the longest wait.
fn load(dir: PathBuf, stop: &AtomicBool) -> (u64, Duration) {
    fs::create_dir(&dir).unwrap();
    let (mut done, mut worst) = (0u64, Duration::ZERO);
    while !stop.load(Ordering::Relaxed) {
        let start = Stopwatch::start();
        write_synced(&dir.join(done.to_string()), format!("file {done}").as_bytes());
        worst = worst.max(start.elapsed());
        done += 1;
    }
    (done, worst)
}

#[test]
fn nobody_notices_when_the_copys_node_dies() {
    timed(|| {
        let space = Space::up(&["--nodes", "2", "--shape", "stripe"]);
        wait_copies(&space, 2);
        let end = AtomicBool::new(false);
        let dir = space.mnt().join("load");
        let (done, worst) = std::thread::scope(|scope| {
            let ending = SetAtEnd(&end);
            let loader = scope.spawn(|| load(dir.clone(), &end));
            std::thread::sleep(Duration::from_millis(500));
            // Killed, and not restarted for a while.
            let supervisor = freeze(&space, "supervisor");
            space.kill("node1");
            wait_copies(&space, 1);
            let said = text(&nuri(&["status", "--dir", &space.dir()]).stdout);
            assert!(said.contains("metadata: 1 copy"), "{said}");
            drop(supervisor);
            wait_copies(&space, 2);
            // Frozen: the copy does not answer, and nobody says why.
            let copy = freeze(&space, "node1");
            wait_copies(&space, 1);
            drop(copy);
            wait_copies(&space, 2);
            drop(ending);
            loader.join().unwrap()
        });
        in_time(worst, 5.0, "the longest pause");
        assert!(done > 100, "{done}");
        for i in 0..done {
            assert_eq!(fs::read(dir.join(i.to_string())).unwrap(), format!("file {i}").as_bytes());
        }
        // The copy that was made under load is worth as much as the first one.
        kill_all(&space, &["node0", "node1"]);
        fs::remove_dir_all(space.path("space/node0")).unwrap();
        restore(&space, &[]);
        space.again();
        for i in 0..done {
            assert_eq!(fs::read(dir.join(i.to_string())).unwrap(), format!("file {i}").as_bytes());
        }
        space.down_clean();
    });
}

#[test]
fn a_target_lost_with_the_metadata_is_named_and_made_anew() {
    let space = Space::up(&["--nodes", "2", "--shape", "stripe"]);
    wait_copies(&space, 2);
    let old = space.mnt().join("old");
    write_synced(&old, b"with the metadata");
    kill_all(&space, &["node0", "node1"]);
    fs::remove_dir_all(space.path("space/node0")).unwrap();
    let targets = ["space/target0", "space/target2"].map(|name| space.path(name));
    targets.iter().for_each(|path| fs::remove_dir_all(path).unwrap());
    let said = restore(&space, &[]);
    for path in &targets {
        assert!(said.contains(&format!("lost      target {}", path.display())), "{said}");
    }
    let dir = space.dir();
    refused(&["up", "--dir", &dir], "there is no target yet at");
    let out = nuri(&["up", "--create", "--dir", &dir]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert_eq!(fs::read(&old).unwrap(), b"with the metadata");
    let new = space.mnt().join("new");
    write_synced(&new, &vec![5; 9 << 20]);
    assert!(fs::read(&new).unwrap() == vec![5; 9 << 20]);
    space.down_clean();
}

#[test]
fn the_copy_moves_on_and_the_newest_one_is_restored() {
    let space = Space::up(&["--nodes", "3", "--shape", "stripe"]);
    wait_copies(&space, 2);
    // Nodes get their ids in the order in which they join.
    let has = |role: &str| space.path(&format!("space/{role}/meta-copy.1/whole.json")).exists();
    let (older, newer) = if has("node1") { ("node1", "node2") } else { ("node2", "node1") };
    write_synced(&space.mnt().join("first"), b"both copies have it");
    // Not restarted: the copy that it keeps is older from now on, and stays whole.
    let _supervisor = freeze(&space, "supervisor");
    space.kill(older);
    space.wait_status("a copy elsewhere", Duration::from_secs(20), |status| {
        status["metadata"]["nodes"] == serde_json::json!([1, 3])
    });
    write_synced(&space.mnt().join("second"), b"only the newer copy has it");
    kill_all(&space, &["node0", newer]);
    fs::remove_dir_all(space.path("space/node0")).unwrap();
    assert!(has(older));
    let said = restore(&space, &[]);
    assert!(said.contains(&format!("{newer}/meta-copy.")), "{said}");
    space.again();
    assert_eq!(fs::read(space.mnt().join("first")).unwrap(), b"both copies have it");
    assert_eq!(fs::read(space.mnt().join("second")).unwrap(), b"only the newer copy has it");
    space.down_clean();
}

/// The first machine is lost with its disk. The second one does what
/// docs/operate/lose-a-machine.md says.
#[test]
fn another_machine_takes_the_first_ones_place() {
    let wire = Wire::new("restore");
    let mut space = Space::bare();
    let done = |side: usize, args: &[&str]| {
        let out = wire.command(side, args).output().unwrap();
        let said = format!("{}{}", text(&out.stdout), text(&out.stderr));
        assert!(out.status.success(), "{args:?}: {said}");
        said
    };
    let (dir, mnt) = (space.dir(), space.str("mnt"));
    let size = ["--target-size", "256M", "--shape", "stripe"];
    let up = ["up", "--create", "--dir", &dir, "--listen", "10.77.0.1:7400", "--targets", "1"];
    done(0, &[&up[..], &size].concat());
    let token = space.str("token");
    run("cp", &["-p", &format!("{dir}/token"), &token]);
    let (node, target) = (space.str("node"), space.str("target"));
    let args = ["node", "run", "--create", "--dir", &node, "--listen", "10.77.0.2:7400"];
    let more = ["--join", "10.77.0.1:7400", "--token-file", &token, "--target", &target];
    let second = wire.command(1, &[&args[..], &more, &size[..2]].concat());
    space.own_node(second);
    done(0, &["space", "set", "--dir", &dir, "--shape", "mirror:2"]);
    done(0, &["fs", "mount", &dir, &mnt]);
    space.own_mount(space.path("mnt"));
    fill(&space.mnt().join("files"));
    let seen = || {
        let out = wire.command(0, &["status", "--json", "--dir", &dir]).output().unwrap();
        let status: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
        let is_whole = status["metadata"]["copies"] == 2;
        if is_whole { Ok(()) } else { Err(status.to_string()) }
    };
    wait("two copies", Duration::from_secs(20), seen);
    done(0, &["fs", "umount", &mnt]);
    done(0, &["down", "--force", "--dir", &dir]);
    fs::remove_dir_all(&dir).unwrap();
    space.end_children();

    let restored = space.str("restored");
    let restore = ["doctor", "--restore-metadata", "--dir", &restored, "--from", &node];
    let said = done(1, &[&restore[..], &["--token-file", &token]].concat());
    assert!(said.contains(&format!("nuri up --dir {restored}")), "{said}");
    let said = done(1, &["up", "--dir", &restored, "--listen", "10.77.0.2:7500"]);
    assert!(said.contains("--join 10.77.0.2:7500"), "{said}");
    let again = ["node", "run", "--dir", &node, "--join", "10.77.0.2:7500"];
    space.own_node(wire.command(1, &again));
    done(1, &["fs", "mount", "10.77.0.2:7500", &mnt, "--token-file", &token]);
    wait("it is mounted", Duration::from_secs(5), || is_mounted(&space.mnt()));
    check(&space.mnt().join("files"));
    fill(&space.mnt().join("later"));
    check(&space.mnt().join("later"));
    done(1, &["fs", "umount", &mnt]);
    done(1, &["down", "--dir", &restored]);
    done(1, &["up", "--dir", &restored]);
    done(1, &["down", "--dir", &restored]);
    drop(space);
    drop(wire);
}
