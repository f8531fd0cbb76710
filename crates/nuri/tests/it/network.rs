//! Nodes and a client as separate machines: network namespaces with a wire between them.

use std::fs;
use std::time::Duration;

use crate::support::{Space, is_mounted, nuri, run, text, wait};
use crate::wire::Wire;

#[test]
fn a_node_joins_and_a_client_mounts_across_a_wire() {
    let wire = Wire::new("join");
    let mut space = Space::bare();
    let (first, second) = (space.make_dir("first"), space.make_dir("second"));
    let token = first.join("token");
    fs::write(&token, format!("{}\n", "5a".repeat(32))).unwrap();
    run("chmod", &["600", &token.display().to_string()]);
    let (first, second) = (first.display().to_string(), second.display().to_string());
    let (t1, t2, tok) = (space.str("t1"), space.str("t2"), token.display().to_string());
    let size = ["--target-size", "1G"];
    let args =
        ["node", "run", "--create", "--dir", &first, "--listen", "10.77.0.1:7400", "--target", &t1];
    space.own_node(wire.command(0, &[&args[..], &size].concat()));
    let args =
        ["node", "run", "--create", "--dir", &second, "--listen", "10.77.0.2:7400", "--join"];
    let more = ["10.77.0.1:7400", "--token-file", &tok, "--target", &t2];
    space.own_node(wire.command(1, &[&args[..], &more, &size].concat()));

    let point = space.make_dir("mnt");
    let mnt = point.display().to_string();
    let wrong = space.str("wrong");
    fs::write(&wrong, format!("{}\n", "00".repeat(32))).unwrap();
    run("chmod", &["600", &wrong]);
    let out = wire
        .command(1, &["fs", "mount", "10.77.0.1:7400", &mnt, "--token-file", &wrong])
        .output()
        .unwrap();
    assert!(text(&out.stderr).contains("secret does not fit"), "{}", text(&out.stderr));

    let mount = ["fs", "mount", "--foreground", "10.77.0.1:7400", &mnt, "--token-file", &tok];
    let daemon = wire.command(1, &mount).spawn().unwrap();
    space.own_mount(point.clone());
    wait("the mount is there", Duration::from_secs(10), || is_mounted(&point));
    let data: Vec<u8> = (0..9_000_000u32).map(|i| (i / 9) as u8).collect();
    fs::write(point.join("f"), &data).unwrap();
    fs::File::open(point.join("f")).unwrap().sync_all().unwrap();
    assert_eq!(fs::read(point.join("f")).unwrap(), data);
    let layout = text(&nuri(&["fs", "layout", "get", &format!("{mnt}/f")]).stdout);
    assert!(layout.contains("width=2"), "both nodes store: {layout}");
    assert!(nuri(&["fs", "umount", &mnt]).status.success());
    let mut daemon = daemon;
    wait("the daemon ends", Duration::from_secs(10), || daemon.try_wait().unwrap().is_some());
    drop(space);
    drop(wire);
}
