//! Workloads at servers: volumes by NBD, the space by NFS.

use std::fs::{self, File};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::Bench;
use super::support::{NURI, Space, nuri, refused, text, wait};

/// A server of a space, at a port of this machine.
struct Server {
    child: Child,
    address: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    fn start(space: &Space, door: &str) -> Server {
        let log = space.path(&format!("{door}.log"));
        let mut serve = Command::new(NURI);
        serve.args([door, "serve", "--listen", "127.0.0.1:0", "--dir", &space.dir()]);
        serve.stdout(Stdio::null()).stderr(File::create(&log).unwrap());
        let child = serve.spawn().unwrap();
        let mut server = Server { child, address: String::new() };
        wait("it is served", Duration::from_secs(10), || {
            let said = fs::read_to_string(&log).unwrap();
            let Some((_, rest)) = said.split_once("127.0.0.1:") else { return Err(said) };
            let port: String = rest.chars().take_while(char::is_ascii_digit).collect();
            server.address = format!("127.0.0.1:{port}");
            Ok(())
        });
        server
    }
}

/// The figures' names.
fn figures(out: &std::process::Output) -> Vec<String> {
    assert!(out.status.success(), "{}", text(&out.stderr));
    let line = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap();
    text(&out.stdout).lines().map(|l| line(l)["metric"].as_str().unwrap().into()).collect()
}

/// A command of the laboratory at a server.
fn through<'a>(words: &[&'a str], export: &'a str) -> Vec<&'a str> {
    [&["lab"], words, &["--through", export]].concat()
}

fn volume(space: &Space, words: &[&str]) -> String {
    let dir = space.dir();
    let out = nuri(&[&["volume"], words, &["--dir", &dir]].concat());
    assert!(out.status.success(), "{}", text(&out.stderr));
    text(&out.stdout)
}

#[test]
fn a_volume_is_measured_and_left_empty() {
    let space = Space::up(&["--targets", "2"]);
    volume(&space, &["create", "v", "--size", "8M"]);
    let server = Server::start(&space, "volume");
    let export = format!("nbd://{}/v", server.address);
    let lab = |words| through(words, &export);
    let blocks = lab(&["block", "--np", "2", "-s", "2m", "-n", "40", "-x", "2", "--json"]);
    let all = ["write", "read", "random write", "synced write", "random read"];
    assert_eq!(figures(&nuri(&blocks)), all);
    let bonnie = lab(&["bonnie", "-s", "4m:16k", "--seeks", "50", "--json"]);
    assert_eq!(figures(&nuri(&bonnie)).len(), 6);
    refused(&lab(&["block", "--np", "2", "-s", "5m"]), "it has 8388608 bytes, and rank 1 needs");
    let wrong = format!("nbd://{}/w", server.address);
    refused(&["lab", "block", "--through", &wrong], "the server does not give it");
    refused(&["lab", "block", "--through", "nbd://127.0.0.1:1/v"], "Connection refused");
    refused(&["lab", "block"], "say where: nuri lab block DIR");
    refused(&["lab", "block", "--through", "volume", &space.dir()], "name a server");

    // Somebody's data is not written over.
    let image = space.path("image");
    fs::write(&image, vec![7; 1 << 20]).unwrap();
    let copied = Command::new("nbdcopy").arg(&image).arg(&export).status().unwrap();
    assert!(copied.success());
    let blocks = lab(&["block", "-s", "2m", "-n", "40", "--json"]);
    refused(&blocks, "it is not empty: with --overwrite all that it holds is lost");
    assert_eq!(figures(&nuri(&[&blocks[..], &["--overwrite"]].concat())).len(), 5);

    // A server that is killed is named.
    let blocks = lab(&["block", "-s", "8m", "-n", "1000000", "--overwrite"]);
    let run = Command::new(NURI).args(&blocks).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(1));
    drop(server);
    let out = run.wait_with_output().unwrap();
    assert!(!out.status.success());
    let said = text(&out.stderr);
    let words = ["the server ended the connection", "Connection refused"];
    assert!(said.contains(&export) && words.iter().any(|words| said.contains(words)), "{said}");
    space.down_clean();
}

#[test]
fn the_space_is_measured_by_nfs_and_left_as_it_was() {
    let space = Space::up(&["--targets", "2"]);
    let dir = space.dir();
    let export = ["nfs", "export", "add", "/", "127.0.0.1(rw,no_root_squash)", "--dir", &dir];
    assert!(nuri(&export).status.success());
    let mount = space.path("mnt");
    let server = Server::start(&space, "nfs");
    let export = format!("nfs://{}/", server.address);
    let bonnie = ["lab", "bonnie", "--np", "2", "-s", "4m:16k", "--seeks", "50", "--json"];
    assert_eq!(figures(&nuri(&[&bonnie[..], &["--through", &export]].concat())).len(), 6);
    let block = ["lab", "block", "-s", "2m", "-n", "40", "--json", "--through", &export];
    assert_eq!(figures(&nuri(&block)).len(), 5);
    assert_eq!(fs::read_dir(&mount).unwrap().count(), 0);
    let wrong = format!("nfs://{}/nowhere", server.address);
    refused(&["lab", "block", "--through", &wrong], "the server does not give it");
    drop(server);
    space.down_clean();
}

const PLACES: &str = r#"
    study = "places"
    question = "Does each byte pass the wire once?"
    repeat = 1
    sweep = [{ name = "place", values = ["nfs", "volume", "filesystem", "disk"] }]
    testbed = { nodes = "4", serve = "{place}" }
    workload = { name = "bonnie", options = "-f -s 24m:16k --seeks 0 --through {place}" }
    report = { x = "place" }
"#;

/// A quarter of a file or volume is on the node that reads it from the targets; NFS clients get all
/// from the server. What is read ahead is read once.
#[test]
fn what_a_testbed_serves_passes_the_wire_once() {
    let bench = Bench::new(PLACES);
    let (plan, bed, out) = (bench.str("plan.toml"), bench.str("bed"), bench.str("out.jsonl"));
    let run = nuri(&["lab", "run", &plan, "--testbed", &bed, "-o", &out]);
    assert!(run.status.success(), "{}", text(&run.stderr));
    let records = bench.records();
    assert_eq!(records.len(), 12, "four places, written, rewritten and read");
    for record in records.iter().filter(|record| record["metric"] == "read") {
        let place = record["point"]["place"].as_str().unwrap();
        let expected = [("nfs", 1.75), ("volume", 0.75), ("filesystem", 0.75), ("disk", 1.0)];
        let expected = expected.iter().find(|(name, _)| *name == place).unwrap().1;
        let passed = record["costs"]["wire_bytes_per_byte"].as_f64().unwrap();
        assert!((expected..expected + 0.25).contains(&passed), "{place}: {passed} for {expected}");
    }
    assert!(!bench.path("bed").exists());
    let loops = Command::new("losetup").arg("--list").output().unwrap();
    assert!(!text(&loops.stdout).contains(&bed), "its disks are gone");
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(&bed), "its file systems are gone: {mounts}");
}
