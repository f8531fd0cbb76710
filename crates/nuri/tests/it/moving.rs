//! Draining a target and giving it its share again, under programs that check every byte.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::{SetAtEnd, Space, freeze, nuri, refused, text, wait};
use crate::tagged::{MIX, Tagged};

fn target(space: &Space, id: u64) -> serde_json::Value {
    let status = space.status();
    let targets = status["targets"].as_array().unwrap().clone();
    targets.into_iter().find(|t| t["id"] == id).unwrap()
}

fn wait_state(space: &Space, state: &str) {
    space.wait_status(state, Duration::from_secs(30), |status| status["health"]["state"] == state);
}

/// Runs a command while the file is written and checked.
fn under_load(file: &mut Tagged, args: &[&str]) -> String {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let ending = SetAtEnd(&stop);
        let load = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                file.step(MIX).unwrap();
            }
            file.sync().unwrap();
        });
        let out = nuri(args);
        drop(ending);
        load.join().unwrap();
        assert!(out.status.success(), "{}{}", text(&out.stdout), text(&out.stderr));
        text(&out.stdout)
    })
}

#[test]
fn a_target_is_drained_and_gets_its_share_again() {
    let space = Space::up(&["--nodes", "5", "--targets", "5", "--shape", "parity:2+1"]);
    let dir = space.dir();
    let path = space.mnt().join("load");
    let mut file = Tagged::create(&path, 24 << 20, 7);
    let id = 3;
    let number = id.to_string();

    under_load(&mut file, &["target", "drain", &number, "--dir", &dir]);
    assert_eq!(target(&space, id)["places"], 0, "{}", target(&space, id));
    file.check_all(&path).unwrap();
    let frozen = freeze(&space, "node1");
    wait_state(&space, "degraded");
    file.check_all(&path).unwrap();
    drop(frozen);
    wait_state(&space, "ok");

    let undo = nuri(&["target", "drain", &number, "--undo", "--dir", &dir]);
    assert!(undo.status.success(), "{}", text(&undo.stderr));
    under_load(&mut file, &["target", "rebalance", "--dir", &dir]);
    assert!(target(&space, id)["places"].as_u64().unwrap() > 5, "{}", target(&space, id));
    let frozen = freeze(&space, "node2");
    wait_state(&space, "degraded");
    file.check_all(&path).unwrap();
    drop(frozen);
    wait_state(&space, "ok");

    refused(&["target", "drain", "77", "--dir", &dir], "there is no target 77");
    drop(file);
    space.down_clean();
}

/// A node that is away for a moment must not end a move of hours.
#[test]
fn a_drain_waits_for_a_node_that_comes_back() {
    let space = Space::up(&["--nodes", "5", "--targets", "5", "--shape", "parity:2+1"]);
    let dir = space.dir();
    let path = space.mnt().join("load");
    let mut file = Tagged::create(&path, 24 << 20, 11);
    let all = file.len();
    file.write(0..all).unwrap();
    file.sync().unwrap();
    let frozen = freeze(&space, "node1");
    wait_state(&space, "degraded");
    // Which number the node has depends on who joined first.
    let is_up = |id: &u64| target(&space, *id)["state"] == "up";
    let id = (2..=5).find(is_up).unwrap();
    let number = id.to_string();
    let out = std::thread::scope(|scope| {
        let drain = scope.spawn(|| nuri(&["target", "drain", &number, "--dir", &dir]));
        std::thread::sleep(Duration::from_secs(3));
        drop(frozen);
        drain.join().unwrap()
    });
    let said = text(&out.stdout);
    assert!(out.status.success(), "{said}{}", text(&out.stderr));
    assert!(said.contains("waits until the others of the group hold all its data"), "{said}");
    assert_eq!(target(&space, id)["places"], 0, "{}", target(&space, id));
    file.check_all(&path).unwrap();
    drop(file);
    space.down_clean();
}

#[test]
fn a_target_that_is_needed_is_not_drained() {
    let space = Space::up(&["--targets", "2"]);
    std::fs::write(space.mnt().join("mirrored"), vec![1; 100_000]).unwrap();
    refused(&["target", "drain", "1", "--dir", &space.dir()], "no other target can take");
    space.down_clean();
}

#[test]
fn a_target_that_is_down_is_drained_and_cleared_when_it_is_back() {
    let space = Space::up(&["--nodes", "4", "--targets", "4", "--shape", "mirror:2"]);
    let dir = space.dir();
    let path = space.mnt().join("load");
    let mut file = Tagged::create(&path, 16 << 20, 3);
    let all = file.len();
    file.write(0..all).unwrap();
    file.sync().unwrap();
    let frozen = freeze(&space, "node3");
    wait_state(&space, "degraded");
    let targets = space.status()["targets"].as_array().unwrap().clone();
    let down = targets.iter().find(|t| t["state"] == "down").unwrap();
    let (id, number) = (down["id"].as_u64().unwrap(), down["id"].to_string());
    let drain = || {
        let out = nuri(&["target", "drain", &number, "--dir", &dir]);
        assert!(out.status.success(), "{}{}", text(&out.stdout), text(&out.stderr));
        text(&out.stdout)
    };
    let out = drain();
    assert!(out.contains("does not answer"), "{out}");
    assert_eq!(target(&space, id)["places"], 0, "{}", target(&space, id));
    drop(frozen);
    let half_a_minute = Duration::from_secs(30);
    wait("it is back", half_a_minute, || target(&space, id)["state"] == "up");
    wait_state(&space, "ok");
    let used = || target(&space, id)["used"].as_u64().unwrap();
    wait("it tells what it holds", half_a_minute, || used() > 4 << 20);
    let out = drain();
    assert!(!out.contains("does not answer"), "{out}");
    wait("it is cleared", half_a_minute, || used() < 1 << 20);
    file.check_all(&path).unwrap();
    drop(file);
    space.down_clean();
}
