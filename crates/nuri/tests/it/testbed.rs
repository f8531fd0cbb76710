//! A cluster on one machine, as `nuri lab testbed` makes it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{NURI, is_mounted, nuri, refused, run, text, wait};

/// Taken away with the value, whatever state it is in.
struct Bed {
    tmp: tempfile::TempDir,
}

impl Bed {
    fn named(name: &str) -> Bed {
        Bed::within("/var/tmp", name)
    }

    /// Its targets are in memory, so that nothing but the cables can be slow.
    fn without_disks(name: &str) -> Bed {
        Bed::within("/dev/shm", name)
    }

    fn within(dir: &str, name: &str) -> Bed {
        Bed { tmp: tempfile::Builder::new().prefix(name).tempdir_in(dir).unwrap() }
    }

    fn dir(&self) -> PathBuf {
        self.tmp.path().join("bed")
    }

    fn str(&self) -> String {
        self.dir().display().to_string()
    }

    fn act(&self, words: &[&str]) {
        let dir = self.str();
        let out = nuri(&[&["lab", "testbed"], words, &["--dir", &dir]].concat());
        assert!(out.status.success(), "{words:?}: {}", text(&out.stderr));
    }

    /// What the machine has of it: namespaces whose processes or files are in its directory.
    fn namespaces(&self) -> Vec<String> {
        let listed = run("ip", &["netns", "list"]);
        let mut own = Vec::new();
        for name in listed.lines().filter_map(|line| line.split(' ').next()) {
            if name.starts_with("nuri-lab-") && self.entry().is_some_and(|id| name.contains(&id)) {
                own.push(name.to_string());
            }
        }
        own
    }

    /// What its first node says of it.
    fn status(&self, id: &str) -> serde_json::Value {
        let (net, dir) = (format!("--net=/run/netns/nuri-lab-{id}-0"), self.dir().join("space"));
        let status = [&net, NURI, "status", "--json", "--dir", &dir.display().to_string()];
        serde_json::from_str(&run("nsenter", &status)).unwrap()
    }

    /// Bytes that went out by the first node's cable.
    fn sent_by_first_node(&self) -> u64 {
        let net = format!("--net=/run/netns/nuri-lab-{}-0", self.entry().unwrap());
        let devices = run("nsenter", &[&net, "cat", "/proc/net/dev"]);
        let cable = devices.lines().find_map(|line| line.trim().strip_prefix("eth0:")).unwrap();
        cable.split_whitespace().nth(8).unwrap().parse().unwrap()
    }

    /// Its number, where it is written down.
    fn entry(&self) -> Option<String> {
        let entries = std::fs::read_dir("/run/nuri-lab").ok()?;
        let is_own = |path: &PathBuf| {
            std::fs::read_to_string(path).is_ok_and(|text| text.contains(&self.str()))
        };
        let own = entries.flatten().map(|entry| entry.path()).find(is_own)?;
        Some(own.file_stem()?.to_string_lossy().into_owned())
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        nuri(&["lab", "testbed", "down", "--dir", &self.str()]);
    }
}

fn copy(from: &Path, to: &Path) -> std::io::Result<Vec<u8>> {
    std::fs::write(from, b"seen by all")?;
    std::fs::read(to)
}

#[test]
fn a_testbed_serves_is_harmed_and_leaves_nothing() {
    let bed = Bed::named("nuri-bed-a");
    bed.act(&["--nodes", "3", "--mounts", "2", "--link", "100mbit", "--target-size", "256M"]);
    let id = bed.entry().unwrap();
    assert_eq!(bed.namespaces().len(), 4);
    let (first, second) = (bed.dir().join("mnt0"), bed.dir().join("mnt1"));
    assert_eq!(copy(&first.join("f"), &second.join("f")).unwrap(), b"seen by all");

    // Eight MiB over a wire of 100 Mbit/s take 0.67 s; two wires share them.
    let start = Instant::now();
    let to = format!("of={}", first.join("big").display());
    run("dd", &["if=/dev/zero", &to, "bs=1M", "count=8", "conv=fsync", "status=none"]);
    assert!(start.elapsed() > Duration::from_millis(300), "the links have no rate");

    // The first node's mount has one server beside it.
    wait("it is told how the bytes travelled", Duration::from_secs(20), || {
        let links = &bed.status(&id)["mounts"][0]["links"];
        let told = |i: usize| links[i]["bytes"].as_u64().is_some_and(|bytes| bytes > 1 << 20);
        let path = |i: usize| links[i]["path"].as_str().unwrap();
        let copies = |i: usize| links[i]["copies_per_byte"].as_f64().unwrap();
        if !(0..3).all(told) {
            return false;
        }
        assert_eq!([0, 1, 2].map(path), ["single-copy", "tcp", "tcp"], "{links}");
        assert!((1.0..1.3).contains(&copies(0)), "short ones are copied twice: {links}");
        assert_eq!([1, 2].map(copies), [2.0, 2.0], "{links}");
        true
    });

    bed.act(&["kill", "2"]);
    bed.act(&["start", "2"]);
    bed.act(&["pause", "1"]);
    bed.act(&["resume", "1"]);
    bed.act(&["cut", "1"]);
    bed.act(&["plug", "1"]);
    let again = || copy(&first.join("g"), &first.join("g")).is_ok_and(|data| !data.is_empty());
    wait("the testbed serves again", Duration::from_secs(20), again);

    refused(&["lab", "testbed", "kill", "3", "--dir", &bed.str()], "they go from 0 to 2");
    refused(&["lab", "testbed", "start", "1", "--dir", &bed.str()], "kill it first");
    refused(&["lab", "testbed", "--dir", &bed.str()], "not empty");
    bed.act(&["down"]);
    assert!(!bed.dir().exists() && bed.entry().is_none());
    assert!(!is_mounted(&first) && !is_mounted(&second));
    assert!(!run("ip", &["netns", "list"]).contains(&format!("nuri-lab-{id}-")));
}

/// Catches `broken!("flow_never_fits")`.
#[test]
fn flow_buffers_fit_a_slow_cable() {
    let bed = Bed::without_disks("nuri-bed-e");
    bed.act(&["--nodes", "3", "--link", "10mbit", "--target-size", "256M"]);
    let mnt = bed.dir().join("mnt0").display().to_string();
    let shown = || {
        // By its old name, too.
        let out = nuri(&["fs", "flow", "get", &mnt, "--json"]);
        serde_json::from_slice::<serde_json::Value>(&out.stdout).unwrap()
    };
    // Two of three targets are behind the cable of 1.25 MB/s.
    run("dd", &["if=/dev/zero", &format!("of={mnt}/f"), "bs=1M", "count=6", "conv=fsync"]);
    let told = shown();
    assert!(told["write_rate"].as_u64().is_some_and(|rate| rate < 5_000_000), "{told}");
    assert!(told["write_buffer"].as_u64().is_some_and(|bytes| bytes <= 128 << 10), "{told}");
}

/// A chunk takes longer to its node than a silent one is waited for.
/// Catches `broken!("slow_is_silent")`.
#[test]
fn a_slow_cable_is_no_lost_node() {
    let bed = Bed::without_disks("nuri-bed-f");
    bed.act(&["--nodes", "3", "--link", "4mbit", "--target-size", "256M"]);
    let mnt = bed.dir().join("mnt0").display().to_string();
    assert!(
        nuri(&["fs", "tune", "set", &mnt, "--buffer", "1m", "--streams", "8"]).status.success()
    );
    let before = bed.sent_by_first_node();
    run("dd", &["if=/dev/zero", &format!("of={mnt}/f"), "bs=1M", "count=4", "conv=fsync"]);
    let sent = bed.sent_by_first_node() - before;
    // 6.5 MB where nothing is sent twice, above 16 MB without the rule.
    assert!(sent < 11_000_000, "4 MiB and their parity took {sent} bytes of the cable");
}

/// One look at a mount, with its history there; what was said of links.
fn links_said(mnt: &str, history: &str) -> (Vec<String>, String) {
    let look = ["lab", "watch", "--once", "--size", "256k", "--history", history, mnt];
    let out = nuri(&look);
    let said = text(&out.stdout) + &text(&out.stderr);
    let of_links = said.lines().filter(|line| line.contains("link to node"));
    (of_links.map(String::from).collect(), said.clone())
}

#[test]
fn a_slow_link_is_named_and_no_other_one() {
    let bed = Bed::without_disks("nuri-bed-h");
    let make = ["--nodes", "3", "--link", "100mbit", "--target-size", "256M", "--shape", "stripe"];
    bed.act(&make);
    let mnt = bed.dir().join("mnt0").display().to_string();
    let history = bed.tmp.path().join("watch.jsonl").display().to_string();
    for _ in 0..8 {
        let (links, said) = links_said(&mnt, &history);
        assert!(links.is_empty(), "{said}");
    }
    // What the switch sends to the third node.
    let switch = format!("nuri-lab-{}-switch", bed.entry().unwrap());
    let rate = ["root", "tbf", "rate", "10mbit", "burst", "64kb", "latency", "50ms"];
    run("tc", &[&["-n", &switch, "qdisc", "replace", "dev", "p2"], &rate[..]].concat());
    let said: Vec<_> = (0..3).map(|_| links_said(&mnt, &history).0).collect();
    assert!(said[0].is_empty() && said[1].is_empty(), "one is noise: {said:?}");
    // Its empty calls may take longer too.
    let link = format!("{mnt}, link to node 3: ");
    assert!(said[2].iter().all(|words| words.starts_with(&link)), "{said:?}");
    let begin = format!("{link}sending ");
    let sending: Vec<_> = said[2].iter().filter(|words| words.starts_with(&begin)).collect();
    assert_eq!(sending.len(), 1, "{said:?}");
    assert!(sending[0].contains(" % slower than its 14-day normal since "), "{said:?}");
    println!("{}", sending[0]);

    // One that is silent is named, and not waited for.
    bed.act(&["pause", "1"]);
    let start = Instant::now();
    let (links, said) = links_said(&mnt, &history);
    let silent = format!("{mnt}, link to node 2: 10.79.0.11:7400 does not answer");
    assert!(links.contains(&silent), "{said}");
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
    bed.act(&["resume", "1"]);
}

/// Each rank in the network of one of its nodes, where it reaches the servers by itself.
#[test]
fn ranks_run_on_its_nodes() {
    let bed = Bed::named("nuri-bed-g");
    bed.act(&["--nodes", "3", "--target-size", "256M"]);
    let mnt = bed.dir().join("mnt0").display().to_string();
    let token = bed.dir().join("space/token").display().to_string();
    let launch = format!("nsenter --net=/run/netns/nuri-lab-{}-{{node}}", bed.entry().unwrap());
    let ior = ["lab", "ior", "-a", "library", "--token-file", &token, "--np", "3", "-C", "-R"];
    let shape = ["-e", "-t", "256k", "-b", "2m", "--node", "0,1,2", "--launch", &launch, &mnt];
    let out = nuri(&[&ior[..], &shape].concat());
    assert!(out.status.success(), "{}", text(&out.stderr));
}

#[test]
fn what_a_killed_command_left_is_taken_away() {
    let bed = Bed::named("nuri-bed-b");
    let mut up = Command::new(NURI);
    up.args(["lab", "testbed", "--nodes", "8", "--target-size", "256M", "--dir", &bed.str()]);
    let mut up = up.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let started = || bed.dir().join("node1").exists();
    wait("the first nodes run", Duration::from_secs(20), started);
    up.kill().unwrap();
    up.wait().unwrap();
    let id = bed.entry().unwrap();
    assert!(bed.namespaces().len() > 2);
    bed.act(&["down"]);
    assert!(!bed.dir().exists() && bed.entry().is_none());
    assert!(!run("ip", &["netns", "list"]).contains(&format!("nuri-lab-{id}-")));
    refused(&["lab", "testbed", "down", "--dir", &bed.str()], "no testbed runs in");
}

/// Varies the cluster itself.
const PLAN: &str = r#"
    study = "beds"
    question = "Does it work?"
    repeat = 1
    sweep = [{ name = "link", values = ["none", "20mbit"] }]
    testbed = { nodes = "3", mounts = "2", link = "{link}", target_size = "256m" }
    workload = { name = "ior", options = "--np 2 -F -e -w -r -C -t 256k -b 1m" }
    report = { x = "link" }
"#;

impl Bed {
    /// `nuri lab run` of a plan that makes its clusters here.
    fn study(&self, plan: &str, more: &[&str]) -> Command {
        let file = self.tmp.path().join("plan.toml");
        std::fs::write(&file, plan).unwrap();
        let mut command = Command::new(NURI);
        command.args(["lab", "run"]).arg(file).args(["--testbed", &self.str()]);
        command.arg("-o").arg(self.tmp.path().join("out.jsonl")).args(more);
        command.stdin(Stdio::null());
        command
    }

    fn is_gone(&self) -> bool {
        !self.dir().exists() && self.entry().is_none()
    }
}

#[test]
fn a_study_makes_its_clusters_and_takes_them_away() {
    let bed = Bed::named("nuri-bed-c");
    let out = bed.study(PLAN, &["--local", &bed.tmp.path().display().to_string()]).output();
    let out = out.unwrap();
    assert!(out.status.success(), "{}", text(&out.stderr));
    let told = text(&out.stderr);
    assert!(told.contains("clusters that are made: 2, in "), "{told}");
    assert!(bed.is_gone());
    let records = std::fs::read_to_string(bed.tmp.path().join("out.jsonl")).unwrap();
    let records: Vec<serde_json::Value> =
        records.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(records.len(), 4);
    for record in records.iter().filter(|record| record["point"]["link"] == "20mbit") {
        assert_eq!(record["host"]["file_system"], "fuse.nuri");
        // Two cables of 20 Mbit/s; a third of the bytes stays on a node.
        let (limit, rate) = (&record["limit"], record["interval"]["median"].as_f64().unwrap());
        let wire = limit["value"].as_f64().unwrap();
        assert!(limit["name"] == "wire" && (2.0..4.8).contains(&wire), "{record}");
        assert!(rate < 2.0 * wire, "{record}");
        let passed = record["costs"]["wire_bytes_per_byte"].as_f64().unwrap();
        assert!((0.4..2.0).contains(&passed), "{record}");
    }
    let fast = records.iter().find(|record| record["point"]["link"] == "none").unwrap();
    assert!(fast["limit"]["name"].is_string(), "{fast}");

    let plan = bed.tmp.path().join("plan.toml").display().to_string();
    let dir = bed.tmp.path().display().to_string();
    refused(&["lab", "run", &plan], "--testbed DIR makes the clusters of beds");
    refused(&["lab", "run", &plan, "--dir", &dir], "say what yours has with --at link=VALUE");
    refused(&["lab", "run", &plan, "--dir", &dir, "--at", "nodes=3"], "does not vary 'nodes'");
    let new = bed.str();
    refused(&["lab", "run", &plan, "--testbed", &new, "--at", "link=1"], "\"1\" is not a rate");
    let twice = ["--at", "link=none", "--at", "link=20mbit"];
    refused(&[&["lab", "run", &plan, "--testbed", &new][..], &twice].concat(), "one value");
    refused(&["lab", "run", &plan, "--testbed", &dir], "is there and not empty");
    assert!(!Path::new("runs").exists(), "what is refused leaves no results");
}

/// The process that works, and the one that waits for it.
#[test]
fn a_study_that_is_killed_leaves_no_cluster() {
    let long = PLAN.replace("-b 1m", "-b 64m -i 1000");
    for inner in [true, false] {
        let bed = Bed::named("nuri-bed-d");
        let mut run = bed.study(&long, &[]).stderr(Stdio::null()).spawn().unwrap();
        wait("it runs", Duration::from_secs(40), || {
            let named = |entry: std::fs::DirEntry| {
                entry.file_name().to_string_lossy().starts_with(".nuri-lab-")
            };
            let entries = std::fs::read_dir(bed.dir().join("mnt0"));
            entries.is_ok_and(|mut entries| entries.any(|entry| entry.is_ok_and(named)))
        });
        let working: i32 = bed.entry().unwrap().parse().unwrap();
        let pid = if inner { working } else { run.id() as i32 };
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        assert!(!run.wait().unwrap().success());
        wait("its cluster is gone", Duration::from_secs(20), || bed.is_gone());
    }
}
