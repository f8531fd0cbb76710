//! Ranks on other machines: here each has a clock of its own (a time namespace, whose monotonic
//! clock is as many seconds ahead as the machine's name says).

use rustix::process::Signal;

use super::support::{nuri, refused, text};
use super::{Bench, LONG, PLAN, a_rank, kill};

const MACHINES: [&str; 4] =
    ["--node", "100,100000", "--launch", "unshare --time --monotonic {node}"];

#[test]
fn clocks_of_several_machines_are_one() {
    let bench = Bench::new(PLAN);
    let dir = bench.str("dir");
    for work in [
        &["ior", "--np", "4", "-F", "-C", "-W", "-R", "-e", "-t", "64k", "-b", "2m"][..],
        &["mdtest", "--np", "4", "-n", "50", "-N", "1"],
    ] {
        let ran = nuri(&[&["lab"], work, &MACHINES, &["--json", &dir]].concat());
        assert!(ran.status.success(), "{work:?}: {}", text(&ran.stderr));
        for line in text(&ran.stdout).lines() {
            let record: serde_json::Value = serde_json::from_str(line).unwrap();
            assert_eq!(record["host"]["nodes"], serde_json::json!(["100", "100000"]));
            // By clocks that differ by a day it would take a day, or no time at all.
            let rate = record["interval"]["median"].as_f64().unwrap();
            assert!((0.5..1e7).contains(&rate), "{record}");
            assert!(record["costs"]["straggling"].as_f64().unwrap() < 60.0, "{record}");
            let is_read = record["metric"] == "read" && work[0] == "ior";
            assert!(!is_read || record["caches"] == "other node", "{record}");
        }
    }
    let (local, out) = (bench.str("local"), bench.str("out.jsonl"));
    std::fs::create_dir(&local).unwrap();
    let ran = bench.run(&[&MACHINES[..], &["--local", &local, "-o", &out]].concat());
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    for record in bench.records() {
        let is_local = record["point"]["place"] == "local";
        assert_eq!(record["host"]["nodes"].is_null(), is_local, "{record}");
    }
    assert!(bench.leftovers().is_empty());
}

#[test]
fn machines_that_fail_are_named() {
    let bench = Bench::new(PLAN);
    let dir = bench.str("dir");
    let ior = |more: &[&str], words: &str| {
        refused(&[&["lab", "ior", "--np", "2", &dir], more].concat(), words);
        assert!(bench.leftovers().is_empty());
    };
    ior(&["--node", "a", "--launch", "false {node}"], "on a ended by itself");
    ior(&["--node", "a,b", "--launch", "/no/such {node}"], "cannot start a process");
    ior(&["--node", "a,a"], "is given twice");
    ior(&["--node", "a", "--launch", "ssh"], "must say which machine");
    ior(&["--launch", "ssh {node}"], "--node");
    ior(&["--node", "a", "-a", "collective"], "without -a collective");
    refused(&["lab", "db-stress", "--node", "a", &dir], "--node goes with");
    let bed = bench.str("bed");
    refused(&["lab", "run", "sios-nodes", "--node", "a", "--testbed", &bed], "without --testbed");
}

#[test]
fn ranks_end_with_the_run_wherever_they_are() {
    for inner in [true, false] {
        let bench = Bench::new(LONG);
        let (mut run, processes) = bench.begun(&MACHINES);
        let victim = if inner { a_rank(&processes) } else { run.id() as i32 };
        kill(victim, Signal::KILL);
        run.wait().unwrap();
        bench.is_clean(&processes);
    }
}
