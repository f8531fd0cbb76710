//! `nuri lab db-stress --engine postgres`: a server that the run starts, and that goes with it
//! however it ends.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;

use super::support::{NURI, nuri, text, wait};
use super::{Bench, a_rank, descendants, kill};

const PLAN: &str = r#"
    study = "db-stress-postgres"
    question = "What does it give up?"
    repeat = 1
    sweep = [{ name = "rows", values = ["300"] }]
    report = { x = "rows" }
    [workload]
    name = "db-stress"
    options = "--engine postgres --rows 3000 --touched {rows} --commits 5 --cache 1m -i 2"
"#;

/// Its first phase takes many seconds.
const LONG: [&str; 8] =
    ["lab", "db-stress", "--engine", "postgres", "--rows", "600000", "--commits", "5"];

/// The server is of another user where we are root.
fn bench() -> Bench {
    let bench = Bench::new(PLAN);
    fs::set_permissions(bench.tmp.path(), PermissionsExt::from_mode(0o755)).unwrap();
    bench
}

fn title(pid: &i32) -> String {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    text(&line).replace('\0', " ")
}

/// A run under way, where a process has these words in its title; all its processes.
fn begun(bench: &Bench, words: &str) -> (Child, Vec<i32>) {
    let mut command = Command::new(NURI);
    command.args(LONG).arg(bench.path("dir"));
    let run = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut processes = Vec::new();
    wait(&format!("a process is {words}"), Duration::from_secs(60), || {
        processes = descendants(run.id() as i32);
        processes.iter().any(|pid| title(pid).contains(words))
    });
    (run, processes)
}

/// Processes that work in the directory, however they came there.
fn within(dir: &Path) -> Vec<i32> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    let pids = all.filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
    let works =
        |pid: &i32| fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd.starts_with(dir));
    pids.filter(works).collect()
}

/// What processes of a run made beside the measured directory.
fn beside(processes: &[i32]) -> Vec<PathBuf> {
    let all = fs::read_dir(std::env::temp_dir()).unwrap().flatten().map(|entry| entry.path());
    let names: Vec<_> = processes.iter().map(|pid| format!("/.nuri-lab-{pid}-")).collect();
    let ours = |path: &PathBuf| names.iter().any(|name| path.display().to_string().contains(name));
    all.filter(ours).collect()
}

fn is_clean(bench: &Bench, processes: &[i32]) {
    bench.is_clean(processes);
    let nobody = || within(bench.tmp.path()).is_empty();
    wait("no server is left", Duration::from_secs(10), nobody);
    let nothing = || beside(processes).is_empty();
    wait("no socket is left", Duration::from_secs(10), nothing);
}

#[test]
fn a_server_does_what_the_embedded_database_does() {
    let bench = bench();
    let out = bench.str("out.jsonl");
    let ran = bench.run(&["-o", &out]);
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let records = bench.records();
    let metrics: Vec<_> = records.iter().map(|r| r["metric"].as_str().unwrap()).collect();
    let all = [
        "insert",
        "select",
        "select by index",
        "update",
        "update by index",
        "commit",
        "delete",
        "delete by index",
        "delete of a range",
    ];
    assert_eq!(metrics, all);
    for record in &records {
        assert!(record["unit"] == "op/s" && record["interval"]["median"].as_f64() > Some(0.0));
        assert_eq!(record["samples"].as_array().unwrap().len(), 2);
        let selects = record["metric"].as_str().unwrap().starts_with("select");
        assert_eq!(record["caches"], if selects { "cold" } else { "synced" });
    }
    is_clean(&bench, &[]);
    let embedded = nuri(&[
        "lab",
        "db-stress",
        "--rows",
        "100",
        "--touched",
        "9",
        "--commits",
        "1",
        "--json",
        &bench.str("dir"),
    ]);
    let lines = text(&embedded.stdout);
    assert_eq!(lines.lines().count(), all.len(), "{}", text(&embedded.stderr));
}

#[test]
fn whoever_is_killed_no_server_stays() {
    type Victim = fn(run: i32, processes: &[i32]) -> i32;
    let commander: Victim = |_, all| *all.iter().find(|pid| **pid != a_rank(all)).unwrap();
    let server: Victim =
        |_, all| *all.iter().find(|pid| title(pid).contains("/bin/postgres -D")).unwrap();
    let victims: [(&str, Victim, Signal); 5] = [
        ("what the user started, by Ctrl-C", |run, _| run, Signal::INT),
        ("what the user started", |run, _| run, Signal::KILL),
        ("the process that commands", commander, Signal::KILL),
        ("the rank", |_, all| a_rank(all), Signal::KILL),
        ("the server", server, Signal::KILL),
    ];
    for (who, victim, signal) in victims {
        let bench = bench();
        let (run, processes) = begun(&bench, "[local] INSERT");
        assert!(!within(bench.tmp.path()).is_empty() && !beside(&processes).is_empty(), "{who}");
        kill(victim(run.id() as i32, &processes), signal);
        let ended = run.wait_with_output().unwrap();
        assert!(!ended.status.success(), "{who}: {}", text(&ended.stderr));
        is_clean(&bench, &processes);
    }
}

#[test]
fn a_rank_that_is_killed_while_it_makes_the_cluster_leaves_nothing() {
    let bench = bench();
    let (run, processes) = begun(&bench, "/bin/initdb");
    kill(a_rank(&processes), Signal::KILL);
    assert!(!run.wait_with_output().unwrap().status.success());
    is_clean(&bench, &processes);
}

#[test]
fn a_directory_that_the_server_cannot_reach_is_named() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: the server is of the user who measures, and reaches what he does");
        return;
    }
    let bench = Bench::new(PLAN);
    fs::set_permissions(bench.tmp.path(), PermissionsExt::from_mode(0o700)).unwrap();
    let ran = bench.run(&["-o", &bench.str("out.jsonl")]);
    let said = text(&ran.stderr);
    assert!(!ran.status.success() && said.contains("cannot be reached by the user "), "{said}");
    is_clean(&bench, &[]);
}
