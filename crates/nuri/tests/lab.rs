//! `nuri lab` as a user runs it, on a plain directory and on spaces: real processes, real kills.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use support::{NURI, nuri, refused, text, wait};

#[path = "lab/hosts.rs"]
mod hosts;
#[path = "lab/postgres.rs"]
mod postgres;
#[path = "lab/remote.rs"]
mod remote;
#[allow(dead_code)]
#[path = "it/support.rs"]
mod support;
#[path = "lab/tune.rs"]
mod tune;

const PLAN: &str = r#"
    study = "tiny"
    question = "Does it work?"
    repeat = 2
    sweep = [
        { name = "place", values = ["local", "space"] },
        { name = "transfer", values = ["16k", "64k"] },
    ]
    workload = { name = "ior", options = "--np 2 -F -w -r -e -C -b 256k -t {transfer}" }
    report = { x = "transfer" }
"#;

/// Runs for hours, in phases of a fraction of a second, with the same ranks all the time.
const LONG: &str = r#"
    study = "long"
    question = "Does it end?"
    repeat = 2
    sweep = [{ name = "block", values = ["32m", "64m"] }]
    workload = { name = "ior", options = "--np 2 -F -w -r -t 64k -b {block} --warm -i 100000" }
    report = { x = "block" }
"#;

/// A directory to measure and one for results.
struct Bench {
    tmp: tempfile::TempDir,
}

impl Bench {
    fn new(plan: &str) -> Bench {
        let bench = Bench { tmp: tempfile::Builder::new().prefix("nuri-lab-").tempdir().unwrap() };
        fs::create_dir(bench.path("dir")).unwrap();
        fs::write(bench.path("plan.toml"), plan).unwrap();
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.tmp.path().join(name)
    }

    fn str(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// `nuri lab run` of the plan with more arguments.
    fn run(&self, more: &[&str]) -> std::process::Output {
        let (plan, dir) = (self.str("plan.toml"), self.str("dir"));
        nuri(&[&["lab", "run", &plan, "--dir", &dir], more].concat())
    }

    fn records(&self) -> Vec<serde_json::Value> {
        let lines = fs::read_to_string(self.path("out.jsonl")).unwrap();
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The plan under way with more arguments, its ranks at work.
    fn begun(&self, more: &[&str]) -> (Child, Vec<i32>) {
        let (plan, dir, out) = (self.str("plan.toml"), self.str("dir"), self.str("out.jsonl"));
        let mut command = Command::new(NURI);
        command.args(["lab", "run", &plan, "--dir", &dir, "-o", &out]).args(more);
        let run = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut processes = Vec::new();
        wait("ranks write", Duration::from_secs(20), || {
            processes = descendants(run.id() as i32);
            processes.len() == 3 && self.leftovers().iter().any(|name| name.contains("/data"))
        });
        (run, processes)
    }

    /// All files in the measured directory.
    fn leftovers(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut dirs = vec![self.path("dir")];
        while let Some(dir) = dirs.pop() {
            for path in fs::read_dir(&dir).into_iter().flatten().flatten().map(|e| e.path()) {
                found.push(path.display().to_string());
                dirs.extend(path.is_dir().then_some(path));
            }
        }
        found
    }

    fn is_clean(&self, processes: &[i32]) {
        wait("its files are gone", Duration::from_secs(10), || self.leftovers().is_empty());
        let all_ended = || processes.iter().all(|pid| support::has_ended(*pid));
        wait("its processes are gone", Duration::from_secs(10), all_ended);
    }
}

/// Children and theirs.
fn descendants(of: i32) -> Vec<i32> {
    let parent = |pid: i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit(") ").next()?.split(' ').nth(1)?.parse::<i32>().ok()
    };
    let all = fs::read_dir("/proc").unwrap().flatten();
    let pids: Vec<i32> = all.filter_map(|e| e.file_name().to_str()?.parse().ok()).collect();
    let mut found = vec![of];
    let mut i = 0;
    while i < found.len() {
        let own = Some(found[i]);
        found.extend(pids.iter().filter(|pid| parent(**pid) == own));
        i += 1;
    }
    found.split_off(1)
}

fn kill(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// The rank, not the process that commands it.
fn a_rank(processes: &[i32]) -> i32 {
    let is_rank = |pid: &&i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.ends_with(b"lab\0rank\0")
    };
    *processes.iter().find(is_rank).unwrap()
}

#[test]
fn a_run_writes_one_record_for_each_point_and_figure() {
    let bench = Bench::new(PLAN);
    let out = bench.str("out.jsonl");
    fs::create_dir(bench.path("local")).unwrap();
    let ran = bench.run(&["--local", &bench.str("local"), "-o", &out]);
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let said = text(&ran.stderr);
    assert!(
        said.contains("points: 4, rounds: 2;") && said.contains("round 2/2 point 4/4"),
        "{said}"
    );
    let records = bench.records();
    assert_eq!(records.len(), 8, "4 points, written and read");
    for record in &records {
        assert_eq!(record["samples"].as_array().unwrap().len(), 2);
        assert!(record["interval"]["median"].as_f64().unwrap() > 0.0);
        assert!(record["limit"]["value"].as_f64().unwrap() > 0.0, "{record}");
        let caches = if record["metric"] == "write" { "synced" } else { "cold" };
        assert_eq!(record["caches"], caches);
        assert!(record.get("partial").is_none());
    }
    assert!(bench.leftovers().is_empty());
}

#[test]
fn a_run_goes_on_where_it_ended() {
    let bench = Bench::new(PLAN);
    let out = bench.str("out.jsonl");
    let ran = bench.run(&["-o", &out]);
    assert!(text(&ran.stderr).contains("2 points with place=local are left out"));
    // As if the second round of the second point had not been, and the end were torn.
    let whole = bench.records();
    assert_eq!(whole.len(), 4);
    let mut cut = whole.clone();
    for record in &mut cut[2..] {
        record["samples"].as_array_mut().unwrap().pop();
        record["partial"] = "interrupted".into();
    }
    let lines: Vec<String> = cut.iter().map(serde_json::Value::to_string).collect();
    fs::write(&out, lines.join("\n") + "\n{\"torn").unwrap();
    let ran = bench.run(&["--resume", &out]);
    let said = text(&ran.stderr);
    assert!(ran.status.success(), "{said}");
    assert!(said.contains("points: 1, rounds: 2;"), "{said}");
    assert!(said.contains("round 2/2 point 2/2") && !said.contains("round 1/2"), "{said}");
    let records = bench.records();
    assert_eq!(records.len(), 4);
    for (record, earlier) in records.iter().zip(&whole) {
        assert!(record.get("partial").is_none());
        assert_eq!(record["samples"].as_array().unwrap().len(), 2);
        let first = |record: &serde_json::Value| record["samples"][0].as_f64().unwrap();
        // Read and written once more, the last digit may differ.
        assert!((first(record) / first(earlier) - 1.0).abs() < 1e-9, "{record}");
    }
}

#[test]
fn wrong_input_is_one_clear_sentence() {
    let bench = Bench::new(PLAN);
    let (dir, plan, none) = (bench.str("dir"), bench.str("plan.toml"), bench.str("none"));
    fs::write(bench.path("dir/mine"), "dear").unwrap();
    let run = |more: &[&str], words: &str| refused(&[&["lab", "run"], more].concat(), words);
    run(&["sequential", "--dir", &dir], "there are: block-paths, ");
    run(&["metadata", "--dir", &none], "none is no directory");
    run(&["metadata"], "--dir");
    run(&[&plan, "--dir", &dir, "--local", &dir], "different directories");
    run(&[&plan, "--dir", &dir, "--repeat", "0"], "0 is not in 1..");
    run(&[&plan, "--dir", &dir, "-o", &plan], "exists");
    run(&[&plan, "--dir", &dir, "--resume", &none], "No such file");
    let other = bench.str("other.jsonl");
    assert!(bench.run(&["-o", &other, "--repeat", "1"]).status.success());
    run(&["metadata", "--dir", &dir, "--resume", &other], "holds results of the study 'tiny'");
    let broken = |from: &str, to: &str, words: &str| {
        fs::write(&plan, PLAN.replace(from, to)).unwrap();
        run(&[&plan, "--dir", &dir, "-o", &none], words);
    };
    broken("repeat = 2", "repeat = \"often\"", "plan.toml: invalid type");
    broken("-b 256k", "-b 900t", "free, it has");
    broken("-b 256k", "-b 32k", "-t 64.0 KiB is larger than -b 32.0 KiB");
    broken("--np 2", "--np 0", "0 is not in 1..=4096");
    broken("-w -r", "-w -r -k -o x", "cannot name files");
    broken("\"space\"", "\"local\"", "all points need --local DIR");
    broken("\"ior\"", "\"iozone\"", "no workload is named 'iozone'");
    refused(&["lab", "ior", "-t", "2m", "-b", "1m", &dir], "is larger than -b");
    refused(&["lab", "ior", "-b", "900t", &dir], "free, it has");
    refused(&["lab", "ior", "-w", "-k", "-o", "mine", &dir], "mine exists");
    refused(&["lab", "ior", &none], "none is no directory");
    refused(&["lab", "ior", "--stripe-count", "2", &dir], "is not on a mounted space");
    refused(&["lab", "ior", "--stripe-size", "1m", "-w", "-o", "x", &dir], "leave out -o");
    refused(&["lab", "mdtest"], "DIR");
    refused(&["lab", "show", "x"], "no study is named 'x'");
    assert_eq!(bench.leftovers().len(), 1);
    assert_eq!(fs::read_to_string(bench.path("dir/mine")).unwrap(), "dear");
}

#[test]
fn a_killed_rank_ends_the_run_and_what_was_measured_stays() {
    let bench = Bench::new(LONG);
    let (run, processes) = bench.begun(&[]);
    kill(a_rank(&processes), Signal::KILL);
    let ended = run.wait_with_output().unwrap();
    let said = text(&ended.stderr);
    assert!(!ended.status.success());
    assert!(said.contains("was killed by signal 9") && said.contains("--resume"), "{said}");
    assert!(bench.records().iter().all(|r| r["partial"].as_str().unwrap().contains("signal 9")));
    bench.is_clean(&processes);
}

#[test]
fn a_rank_that_hangs_ends_the_run() {
    let bench = Bench::new(LONG);
    let (run, processes) = bench.begun(&["--patience", "3"]);
    kill(a_rank(&processes), Signal::STOP);
    let said = text(&run.wait_with_output().unwrap().stderr);
    assert!(said.contains("1 of 2 ranks did not answer for 3 s"), "{said}");
    bench.is_clean(&processes);
}

#[test]
fn however_a_run_is_ended_nothing_stays_but_its_records() {
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let bench = Bench::new(LONG);
        let (mut run, processes) = bench.begun(&[]);
        kill(run.id() as i32, signal);
        run.wait().unwrap();
        bench.is_clean(&processes);
        assert!(
            bench.records().iter().all(
                |r| r["partial"] == "write: interrupted" || r["partial"] == "read: interrupted"
            )
        );
        assert!(!bench.records().is_empty());
    }
    // The process that does the work.
    let bench = Bench::new(LONG);
    let (run, processes) = bench.begun(&[]);
    let rank = a_rank(&processes);
    kill(*processes.iter().find(|pid| **pid != rank).unwrap(), Signal::KILL);
    let said = text(&run.wait_with_output().unwrap().stderr);
    assert!(said.contains("killed by signal 9; its working directories were removed"), "{said}");
    bench.is_clean(&processes);
}

#[test]
fn what_one_mount_of_a_space_wrote_another_reads() {
    let mut space = support::Space::up(&[]);
    let other = space.mount("other").display().to_string();
    let mnt = space.mnt().display().to_string();
    let ior = ["lab", "ior", "--np", "3", "-C", "-R", "-e", "-t", "47008", "-b", "470080"];
    let ran = nuri(&[&ior[..], &["-s", "2", "--json", &mnt, &other]].concat());
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let read: serde_json::Value = text(&ran.stdout).lines().nth(1).unwrap().parse().unwrap();
    assert_eq!(read["caches"], "other node");
    assert_eq!(read["host"]["file_system"], "fuse.nuri");
    // Counted, and next to nothing: within a machine nothing goes over a network.
    assert!(read["costs"]["wire_bytes_per_byte"].is_f64(), "{read}");
    let mdtest = ["lab", "mdtest", "--np", "2", "-n", "50", "-w", "3901", "-e", "3901"];
    let ran = nuri(&[&mdtest[..], &[&mnt, &other]].concat());
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    assert_eq!(fs::read_dir(space.mnt()).unwrap().count(), 0);
}

/// Where the ranks of collective transfers meet.
fn meetings() -> usize {
    let all = fs::read_dir(std::env::temp_dir()).unwrap().flatten();
    all.filter(|entry| {
        let name = entry.file_name().display().to_string();
        name.starts_with(".nuri-lab-") && entry.path().join("lab/0.sock").exists()
    })
    .count()
}

#[test]
fn ranks_on_two_mounts_write_one_file_together() {
    let before = meetings();
    let mut space = support::Space::up(&[]);
    let other = space.mount("other").display().to_string();
    let mnt = space.mnt().display().to_string();
    let ior =
        ["lab", "ior", "--np", "4", "-z", "-i", "3", "-a", "collective", "-C", "-R", "-W", "-e"];
    let records = ["-t", "47008", "-b", "47008", "-s", "20", "--json"];
    let ran = nuri(&[&ior[..], &records, &[&mnt, &other]].concat());
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    assert_eq!(text(&ran.stdout).lines().count(), 2);
    assert_eq!(fs::read_dir(space.mnt()).unwrap().count(), 0);
    assert_eq!(meetings(), before);
    // However it ends.
    let plan = LONG.replace("-F", "-a collective");
    let bench = Bench::new(&plan);
    let (run, processes) = bench.begun(&[]);
    wait("they meet", Duration::from_secs(10), || meetings() == before + 1);
    kill(a_rank(&processes), Signal::KILL);
    let said = text(&run.wait_with_output().unwrap().stderr);
    assert!(said.contains("rank"), "{said}");
    bench.is_clean(&processes);
    let bench = Bench::new(&plan);
    let (mut run, processes) = bench.begun(&[]);
    kill(run.id() as i32, Signal::KILL);
    run.wait().unwrap();
    bench.is_clean(&processes);
    wait("the meeting place is gone", Duration::from_secs(10), || meetings() == before);
}

#[test]
fn ranks_reach_a_space_without_the_kernel() {
    let space = support::Space::up(&[]);
    let (mnt, dir) = (space.mnt().display().to_string(), space.dir());
    let token = format!("{dir}/token");
    let run = |words: &[&str]| {
        let ran = nuri(&[&["lab", "ior"], words, &["--json", &mnt]].concat());
        assert!(ran.status.success(), "{words:?}: {}", text(&ran.stderr));
        text(&ran.stdout).lines().count()
    };
    let library = ["-a", "library", "--token-file", &token];
    let records = ["--np", "3", "-C", "-R", "-W", "-e", "-z", "-i", "2", "-t", "47008"];
    assert_eq!(run(&[&library[..], &records, &["-b", "94016", "-s", "20"]].concat()), 2);
    assert_eq!(fs::read_dir(space.mnt()).unwrap().count(), 0);
    // What one way wrote the other one reads, each byte.
    let shape = ["--np", "2", "-t", "2m", "-b", "6m", "-R"];
    run(&[&library[..], &shape, &["-w", "-k", "-o", "library"]].concat());
    run(&[&shape[..], &["-r", "-o", "library"]].concat());
    run(&[&shape[..], &["-w", "-k", "-o", "kernel", "-F"]].concat());
    run(&[&library[..], &shape, &["-r", "-o", "kernel", "-F"]].concat());
    let ior = |more: &[&str], words: &str| refused(&[&["lab", "ior"], more].concat(), words);
    ior(&["-a", "library", &mnt], "needs --token-file");
    ior(&["--token-file", &token, &mnt], "needs -a library");
    ior(&["-a", "library", "--token-file", "/no/token", &mnt], "cannot read the token file");
    ior(&[&library[..], &[&dir]].concat(), "is not on a mounted space");
    ior(&[&library[..], &["--warm", &mnt]].concat(), "goes without --warm");
    let wrong = format!("{dir}/wrong");
    fs::write(&wrong, "5a".repeat(32)).unwrap();
    support::run("chmod", &["600", &wrong]);
    ior(&["-a", "library", "--token-file", &wrong, &mnt], "cannot connect");
}

#[test]
fn files_are_striped_as_asked() {
    let mut space = support::Space::up(&[]);
    let mnt = space.mnt();
    let mut ior = Command::new(NURI);
    ior.args(["lab", "ior", "-w", "-e", "-t", "1m", "-b", "8m", "-i", "1000"]);
    ior.args(["--stripe-count", "1", "--stripe-size", "256k"]).arg(&mnt);
    space.own_child(ior.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap());
    wait("a file is striped as asked", Duration::from_secs(20), || {
        let dirs = fs::read_dir(&mnt).unwrap().flatten();
        let files = dirs.map(|dir| dir.path().join("data").display().to_string());
        let layout = |file: String| text(&nuri(&["fs", "layout", "get", &file]).stdout);
        files.map(layout).any(|text| text.contains("chunk_size=262144") && text.contains("width=1"))
    });
    refused(&["lab", "ior", "--stripe-size", "5", &mnt.display().to_string()], "--stripe-...: ");
}

fn flip(path: &Path, offset: u64) {
    let file = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], offset).unwrap();
}

#[test]
fn a_flipped_byte_is_found() {
    let bench = Bench::new(PLAN);
    let dir = bench.str("dir");
    let ior = |options: &str| {
        let words: Vec<_> = options.split(' ').collect();
        nuri(&[&["lab", "ior"], &words[..], &[&dir]].concat())
    };
    let shape = "--np 2 -t 64k -b 256k -o kept";
    let wrote = ior(&format!("{shape} -w -W -k"));
    assert!(wrote.status.success(), "{}", text(&wrote.stderr));
    assert!(ior(&format!("{shape} -r -R -C")).status.success());
    let place = 300_000;
    flip(&bench.path("dir/kept"), place);
    assert!(ior(&format!("{shape} -r")).status.success(), "the ends of transfers are right");
    let found = ior(&format!("{shape} -r -R -C"));
    let said = text(&found.stderr);
    let told = format!("does not hold what rank 1 wrote at byte {place}");
    assert!(!found.status.success() && said.contains(&told), "{said}");
    assert_eq!(bench.leftovers().len(), 1, "what was kept is still there");
}

#[test]
fn studies_are_listed_and_shown() {
    let list = nuri(&["lab", "list", "--json"]);
    let studies: serde_json::Value = serde_json::from_slice(&list.stdout).unwrap();
    for study in studies.as_array().unwrap() {
        let name = study["study"].as_str().unwrap();
        assert!(text(&nuri(&["lab", "list"]).stdout).contains(name));
        let shown = text(&nuri(&["lab", "show", name]).stdout);
        assert!(shown.contains(&format!("study = \"{name}\"")), "{shown}");
    }
}

#[test]
fn mdtest_counts_each_kind_of_operation() {
    let bench = Bench::new(PLAN);
    let options = ["--np", "2", "--total", "100", "-w", "3901", "-e", "3901", "--json"];
    let ran = nuri(&[&["lab", "mdtest"], &options[..], &[&bench.str("dir")]].concat());
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let lines: Vec<serde_json::Value> =
        text(&ran.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let metrics: Vec<_> = lines.iter().map(|r| r["metric"].as_str().unwrap()).collect();
    let directory = ["create directory", "stat directory", "remove directory"];
    assert_eq!(metrics, [&directory[..], &["create", "stat", "read", "remove"]].concat());
    assert!(
        lines.iter().all(|r| r["unit"] == "op/s" && r["interval"]["median"].as_f64() > Some(0.0))
    );
    assert!(bench.leftovers().is_empty());
}

#[test]
fn bonnie_measures_characters_blocks_and_seeks() {
    let bench = Bench::new(PLAN);
    let options = ["--np", "2", "-s", "1m:8k", "--seeks", "50"];
    let ran = nuri(&[&["lab", "bonnie"], &options[..], &[&bench.str("dir")]].concat());
    let table = text(&ran.stdout);
    for phase in ["character write", "write", "rewrite", "character read", "read", "seek"] {
        assert!(table.lines().any(|row| row.starts_with(&format!("{phase}  "))), "{table}");
    }
    assert!(bench.leftovers().is_empty());
}

const DATABASE: &str = r#"
    study = "db-stress"
    question = "What does it give up?"
    repeat = 1
    sweep = [
        { name = "place", values = ["local", "space"] },
        { name = "rows", values = ["100"] },
    ]
    report = { x = "rows" }
    [workload]
    name = "db-stress"
    options = "--rows 600 --touched {rows} --commits 3 --journal truncate"
"#;

#[test]
fn a_database_is_put_under_stress_on_two_mounts_of_a_space() {
    let mut space = support::Space::up(&[]);
    let (first, other) = (space.mnt(), space.mount("other"));
    let bench = Bench::new(DATABASE);
    let [mnt, other, plan, local, out] =
        [first.clone(), other, bench.path("plan.toml"), bench.path("dir"), bench.path("out.jsonl")]
            .map(|path| path.display().to_string());
    let run = ["lab", "run", &plan, "--dir", &mnt, "--dir", &other, "--local", &local, "-o", &out];
    let ran = nuri(&run);
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let records = bench.records();
    let metrics: Vec<_> = records[..9].iter().map(|r| r["metric"].as_str().unwrap()).collect();
    let keyed = |what: &str| [what.to_string(), format!("{what} by index")];
    let all = [
        vec!["insert".to_string()],
        [keyed("select"), keyed("update")].concat(),
        vec!["commit".to_string()],
        keyed("delete").to_vec(),
        vec!["delete of a range".to_string()],
    ];
    assert_eq!(metrics, all.concat());
    assert_eq!(records.len(), 18);
    for record in &records {
        assert!(record["unit"] == "op/s" && record["interval"]["median"].as_f64() > Some(0.0));
        let selects = record["metric"].as_str().unwrap().starts_with("select");
        assert_eq!(record["caches"], if selects { "cold" } else { "synced" });
    }
    let told = text(&nuri(&["lab", "report", &out]).stdout);
    assert!(told.contains("- update of space is ") && told.contains("of the local file"), "{told}");
    assert!(told.contains("Published for the same ratio: 0.80 to 0.85"), "{told}");
    assert!(bench.leftovers().is_empty());
    assert_eq!(fs::read_dir(&first).unwrap().count(), 0);
    refused(&["lab", "db-stress", "--rows", "10", "--touched", "9", &mnt], "at most a fifth");
    refused(&["lab", "db-stress", "--rows", "100000000", &mnt], "free, it has");
}

#[test]
fn easy_and_hard_phases_make_a_score() {
    let mut space = support::Space::up(&[]);
    let [mnt, other] = [space.mnt(), space.mount("other")].map(|path| path.display().to_string());
    let io500 = ["lab", "io500-like", "--easy", "4m", "--records", "20", "--empty", "30"];
    let ran = nuri(&[&io500[..], &["--small", "20", &mnt, &other]].concat());
    let told = text(&ran.stdout);
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let phases = [
        ("ior-easy", &["write", "read"][..]),
        ("ior-hard", &["write", "read"]),
        ("mdtest-easy", &["write", "stat", "delete"]),
        ("mdtest-hard", &["write", "stat", "read", "delete"]),
    ];
    for (part, step) in phases.iter().flat_map(|(part, s)| s.iter().map(move |s| (part, s))) {
        let name = format!("{part}-{step} ");
        assert!(told.lines().any(|row| row.starts_with(&name)), "{name}: {told}");
    }
    assert!(told.contains("io500-like score ") && told.contains("(no official score)"), "{told}");
    assert_eq!(fs::read_dir(&mnt).unwrap().count(), 0);
    refused(&["lab", "io500-like", "--easy", "5k", &mnt], "is not a multiple of 1 MiB");
}

const MESSAGES: &str = r#"
    study = "ipc-latency"
    question = "How fast?"
    repeat = 1
    sweep = [
        { name = "through", values = ["nuri", "unix", "pipe", "memcpy"] },
        { name = "size", values = ["4", "64k"] },
    ]
    workload = { name = "ipc", options = "-t {size} --through {through} --seconds 0.01" }
    report = { x = "size", against = { name = "through", of = "nuri", to = ["unix"] } }
"#;

#[test]
fn messages_between_processes_need_no_directory() {
    let bench = Bench::new(MESSAGES);
    let (plan, out) = (bench.str("plan.toml"), bench.str("out.jsonl"));
    let temporary = bench.path("dir");
    let lab = |args: &[&str]| {
        let mut command = Command::new(NURI);
        command.arg("lab").args(args).env("TMPDIR", &temporary).output().unwrap()
    };
    let ran = lab(&["run", &plan, "-o", &out]);
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let records = bench.records();
    assert_eq!(records.len(), 16);
    for record in &records {
        let unit = if record["metric"] == "latency" { "us" } else { "MiB/s" };
        assert_eq!(record["unit"], unit);
        assert!(record["interval"]["median"].as_f64() > Some(0.0), "{record}");
    }
    let told = text(&nuri(&["lab", "report", &out]).stdout);
    assert!(told.contains("- latency of nuri is ") && told.contains(" of pipe's."), "{told}");
    let once = ["ipc", "-t", "8k", "--cores", "one", "--latency", "--seconds", "0.05", "--json"];
    let ran = lab(&once);
    let record: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!(record["metric"], "latency", "{}", text(&ran.stderr));
    assert!(bench.leftovers().is_empty());
    refused(&["lab", "ipc", "-t", "1"], "-t: at least 4 bytes");
    refused(&["lab", "ipc", "--cores", "0,5000"], "processor 5000 may not be used");
    refused(&["lab", "ipc", "--cores", "seven"], "two numbers such as 0,3");
}

/// The figures of a workload's phases by name.
fn figures(bench: &Bench, words: &str) -> BTreeMap<String, f64> {
    let words: Vec<&str> = words.split(' ').collect();
    let ran = nuri(&[&["lab"], &words[..], &["--json", &bench.str("dir")]].concat());
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    figures_of(&text(&ran.stdout))
}

fn figures_of(records: &str) -> BTreeMap<String, f64> {
    let figure = |line: &str| {
        let record: serde_json::Value = serde_json::from_str(line).unwrap();
        let median = record["interval"]["median"].as_f64().unwrap();
        (record["metric"].as_str().unwrap().to_owned(), median)
    };
    records.lines().map(figure).collect()
}

/// The same workload by our processes and by the tool: figures of these phases are within twice of
/// each other. The machine may do something else meanwhile: the best of a few, by turns.
fn agree(workload: &str, tool: &str, phases: &[&str]) {
    let bench = Bench::new(PLAN);
    let mut best = vec![(0.0f64, 0.0f64); phases.len()];
    for _ in 0..6 {
        let own = figures(&bench, workload);
        let other = figures(&bench, &format!("{workload} --tool {tool}"));
        for (best, phase) in best.iter_mut().zip(phases) {
            let value = |of: &BTreeMap<String, f64>| of.get(*phase).copied().unwrap_or(0.0);
            *best = (best.0.max(value(&own)), best.1.max(value(&other)));
        }
        if best.iter().all(|(own, tool)| own < &(2.0 * tool) && tool < &(2.0 * own)) {
            assert!(bench.leftovers().is_empty());
            return;
        }
    }
    panic!("{workload}, {phases:?}: by us and by {tool} {best:?}");
}

#[test]
fn transfers_agree_with_fio() {
    // Phases of a few ms would be as long as the start of their processes.
    agree("ior -w -r -e -t 1m -b 256m", "fio", &["write", "read"]);
    agree("ior --np 2 -w -r -e -C -F -t 64k -b 128m", "fio", &["write", "read"]);
}

#[test]
fn blocks_agree_with_bonnie() {
    // It tells no figure of what took less than half a second: a gigabyte may be too little.
    agree("bonnie -f --warm -s 3g:16k", "bonnie++", &["write", "rewrite"]);
}

#[test]
fn a_tool_that_is_not_there_is_named() {
    let bench = Bench::new(PLAN);
    let dir = bench.str("dir");
    let mut command = Command::new(NURI);
    command.args(["lab", "ior", "--tool", "fio", &dir]).env("PATH", bench.path("bin"));
    fs::create_dir(bench.path("bin")).unwrap();
    let found = Command::new("sh").args(["-c", "command -v setpriv"]).output().unwrap();
    let setpriv = text(&found.stdout);
    std::os::unix::fs::symlink(setpriv.trim(), bench.path("bin/setpriv")).unwrap();
    let said = text(&command.output().unwrap().stderr);
    assert!(said.contains("fio is not installed: install it"), "{said}");
    assert!(bench.leftovers().is_empty());
    refused(&["lab", "bonnie", "--tool", "bonnie++", &dir], "say --warm");
    refused(&["lab", "ior", "--tool", "iozone", &dir], "possible values: fio");
}

/// Programs in the place of those of MPI, which print what those do.
#[test]
fn programs_of_mpi_are_started_and_read() {
    let bench = Bench::new(PLAN);
    let bin = bench.path("bin");
    fs::create_dir(&bin).unwrap();
    let make = |name: &str, script: &str| {
        let path = bin.join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    };
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let run = |line: &str| {
        let mut command = Command::new(NURI);
        command.arg("lab").args(line.split(' ')).args(["--json", &bench.str("dir")]);
        let ran = command.env("PATH", &path).output().unwrap();
        (text(&ran.stdout), text(&ran.stderr))
    };
    let lines = "ior --tool ior --np 2 -t 1m -b 4m -F -e";
    assert!(run(lines).1.contains("ior is not installed: build it"));
    make("mpiexec", "[ \"$1 $2\" = '-n 2' ] && shift 2 && exec \"$@\"");
    make(
        "ior",
        "for last; do :; done\n\
         echo 'access    bw(MiB/s)  IOPS  Latency(s)  block(KiB) xfer(KiB)  total(s)   iter'\n\
         case \"$*\" in\n\
         *' -w '*) : > \"$last.00000000\"; : > \"$last.00000001\"; echo 'write 400 1 1 1 1 1 0';;\n\
         *) [ -e \"$last.00000001\" ] && echo 'read 800 1 1 1 1 1 0';;\nesac",
    );
    make(
        "mdtest",
        "echo 'SUMMARY rate: (of 1 iterations)'\n\
         case \"$*\" in\n\
         '-F -C '*) echo '   File creation  5000.000 5000.000 5000.000 0.000';;\n\
         '-F -T '*) echo '   File stat  9000.000 9000.000 9000.000 0.000';;\n\
         *) echo '   File removal  7000.000 7000.000 7000.000 0.000';;\nesac",
    );
    let rates = |line: &str| {
        let (out, err) = run(line);
        let rates = figures_of(&out);
        assert!(!rates.is_empty(), "{err}");
        rates.iter().map(|(name, rate)| format!("{name} {rate:.0}")).collect::<Vec<_>>()
    };
    assert_eq!(rates(lines), ["read 800", "write 400"]);
    let metadata = rates("mdtest --tool mdtest --np 2 -n 10 -F");
    assert_eq!(metadata, ["create 5000", "remove 7000", "stat 9000"]);
    make("ior", "echo broken");
    assert!(run(lines).1.contains("ior printed no bw(MiB/s) for write"));
    assert!(bench.leftovers().is_empty());
}

/// Looks at a directory once more; what was said, and whether all is as usual.
fn look(bench: &Bench, more: &[&str]) -> (String, bool) {
    let (dir, space) = (bench.str("dir"), bench.str("space"));
    let ran = nuri(&[&["lab", "watch", "--space", &space, "--size", "1m", &dir], more].concat());
    (text(&ran.stdout) + &text(&ran.stderr), ran.status.success())
}

/// A history in which a figure is many times what any disk reaches.
fn fast_history(bench: &Bench, looks: u64) {
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
    let line = |i: u64| {
        let look = serde_json::json!({
            "time": now - (looks - i) * 600, "dir": bench.str("dir"), "what": "small synced writes",
            "unit": "op/s", "value": 1e9,
        });
        format!("{look}\n")
    };
    let text: String = (0..looks).map(line).collect();
    fs::write(bench.path("space/watch.jsonl"), text).unwrap();
}

#[test]
fn what_became_slow_is_told_with_its_time() {
    let bench = Bench::new(PLAN);
    let (said, _) = look(&bench, &["--once"]);
    assert!(said.contains("is no directory for the history: give --space DIR"), "{said}");
    fs::create_dir(bench.path("space")).unwrap();
    let (said, _) = look(&bench, &["--last"]);
    assert!(said.contains("holds no looks yet"), "{said}");

    let (said, fine) = look(&bench, &["--once"]);
    assert!(fine && said.contains("figures: 0 slow, 0 as usual, 4 not known"), "{said}");
    fast_history(&bench, 10);
    for _ in 0..2 {
        let (said, fine) = look(&bench, &["--once"]);
        assert!(fine && said.contains("figures: 0 slow, 1 as usual"), "{said}");
    }
    let (said, fine) = look(&bench, &["--once"]);
    let wanted = "dir: small synced writes 100 % slower than its 14-day normal since ";
    assert!(!fine && said.contains(wanted), "{said}");
    assert!(said.contains("figures: 1 slow, 0 as usual, 3 not known"), "{said}");
    let (said, fine) = look(&bench, &["--last", "--json"]);
    let told: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert!(!fine && told["slow"][0].as_str().unwrap().contains(wanted), "{said}");
    let figures = told["figures"].as_array().unwrap();
    assert!(figures.iter().any(|f| f["state"] == "slow" && f["since"].is_string()), "{said}");
    assert!(bench.leftovers().is_empty());
}

#[test]
fn a_watch_goes_on_until_it_is_ended() {
    let bench = Bench::new(PLAN);
    fs::create_dir(bench.path("space")).unwrap();
    fast_history(&bench, 10);
    let (dir, space) = (bench.str("dir"), bench.str("space"));
    let mut command = Command::new(NURI);
    command.args(["lab", "watch", "--every", "1", "--size", "1m", "--space", &space, &dir]);
    let mut watch = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines = || fs::read_to_string(bench.path("space/watch.jsonl")).unwrap().lines().count();
    wait("five looks", Duration::from_secs(30), || lines() >= 10 + 5 * 4);
    kill_process(Pid::from_child(&watch), Signal::INT).unwrap();
    let mut said = String::new();
    watch.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    watch.wait().unwrap();
    assert_eq!(said.matches("slower than its 14-day normal").count(), 1, "told once: {said}");
    wait("its files are gone", Duration::from_secs(10), || bench.leftovers().is_empty());
    // A directory that cannot be looked at is an error.
    let gone = bench.str("gone");
    refused(&["lab", "watch", "--once", "--space", &space, &gone], "gone");
    refused(&["lab", "watch", "--once", "--size", "1000t", "--space", &space, &dir], "are free");
}

/// Each group of a space is looked at, and `nuri status` tells what is slow.
#[test]
fn a_space_is_watched_group_by_group() {
    let space = support::Space::up(&["--shape", "stripe"]);
    let (dir, mnt) = (space.dir(), space.str("mnt"));
    let ran = nuri(&["lab", "watch", "--once", "--size", "1m", "--space", &dir, "--json", &mnt]);
    let told: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap();
    let parts: Vec<_> =
        told["figures"].as_array().unwrap().iter().map(|f| f["part"].clone()).collect();
    let groups = parts.iter().filter(|part| part.as_str().unwrap().starts_with("group ")).count();
    assert_eq!(groups, 2 * 4, "each of four targets, writing and reading: {told}");
    let history = space.path("space/watch.jsonl");
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
    let line = |i: u64, value: u64| {
        let look = serde_json::json!({
            "time": now - 6000 + i * 600, "dir": mnt, "part": "group 2", "what": "writing",
            "unit": "MiB/s", "value": value,
        });
        format!("{look}\n")
    };
    let looks: String = (0..10).map(|i| line(i, if i < 8 { 200 } else { 100 })).collect();
    fs::write(&history, looks + &line(10, 100)).unwrap();
    let status = text(&nuri(&["status", "--dir", &dir]).stdout);
    assert!(status.contains("group 2: writing 50 % slower than its 14-day normal"), "{status}");
    space.down_clean();
}
