//! Bulk between the processes of one machine: one copy from the sender's memory against TCP over
//! loopback, and programs' large transfers past the kernel, by turns, in one run.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::measure::{SyncKind, synced};
use super::median;
use super::meter::Meter;
use crate::apps::Mounted;
use crate::shell::{Build, root};

const MIB: usize = 768;

/// How bytes go.
struct Way {
    name: &'static str,
    /// What the command that makes the space is preceded by.
    by: &'static str,
    /// The program uses `libnuri_preload`.
    preloads: bool,
}

const WAYS: [Way; 3] = [
    Way { name: "tcp, loopback", by: "env NURI_SAME_NODE=tcp", preloads: false },
    Way { name: "single copy", by: "", preloads: false },
    Way { name: "and preload", by: "", preloads: true },
];
const SHAPES: [&str; 2] = ["stripe", "parity:3+1"];
/// Processor seconds are those of the program, the mount and the servers.
const ROWS: [&str; 5] = [
    "write, cpu s/GiB",
    "read, cold, cpu s/GiB",
    "write and sync, MiB/s",
    "read, cold, MiB/s",
    "4 KiB + fdatasync /s",
];

/// By row, shape and way.
type Values = BTreeMap<(usize, usize, usize), Vec<f64>>;

/// Measures and prints the table.
pub(crate) fn run(rounds: usize, dir: &Path) -> Result<(), String> {
    let library = dir.join("libnuri_preload.so");
    let built = Command::new(root().join("scripts/preload-library")).arg(&library).status();
    if !built.is_ok_and(|status| status.success()) {
        return Err("scripts/preload-library failed".into());
    }
    let mut values = Values::new();
    for round in 0..rounds {
        for (shape, name) in SHAPES.iter().enumerate() {
            for (at, way) in WAYS.iter().enumerate() {
                let space = Mounted::up_by(
                    Build::Release,
                    dir,
                    way.by,
                    &format!("--nodes 4 --shape {name}"),
                )?;
                let preload = way.preloads.then_some(&library);
                for (row, value) in measure(dir, &space, preload)?.into_iter().enumerate() {
                    values.entry((row, shape, at)).or_default().push(value);
                }
                space.down_clean()?;
            }
        }
        eprintln!("round {} of {rounds} done", round + 1);
    }
    let _ = std::fs::remove_file(&library);
    print(&values);
    Ok(())
}

/// In the order of [`ROWS`].
fn measure(dir: &Path, nuri: &Mounted, preload: Option<&PathBuf>) -> Result<[f64; 5], String> {
    let file = nuri.mnt.join("file");
    let (of, from) = (format!("of={}", file.display()), format!("if={}", file.display()));
    let count = format!("count={MIB}");
    let write = ["if=/dev/zero", &of, "bs=1M", &count, "conv=notrunc,fsync"];
    let mut meter = Meter::of(dir);
    // Memory and places that are used for the first time cost more.
    dd(&write, preload)?;
    let mut metered = |work: &dyn Fn() -> Result<f64, String>| {
        meter.look(&nuri.space);
        let before = meter.cpu_seconds() + cpu_of_children();
        let seconds = work()?;
        meter.look(&nuri.space);
        let gib = MIB as f64 / 1024.0;
        let cpu = meter.cpu_seconds() + cpu_of_children() - before;
        Ok::<_, String>((cpu / gib, MIB as f64 / seconds))
    };
    let (write_cpu, write) = metered(&|| dd(&write, preload))?;
    std::thread::sleep(Duration::from_secs(2));
    nuri.cold()?;
    let (read_cpu, read) = metered(&|| dd(&[&from, "of=/dev/null", "bs=1M"], preload))?;
    let synced = synced(&file, 4096, SyncKind::Data, 800).map_err(|e| e.to_string())?;
    Ok([write_cpu, read_cpu, write, read, synced])
}

/// Runs `dd`; returns how long it took.
fn dd(args: &[&str], preload: Option<&PathBuf>) -> Result<f64, String> {
    let mut command = Command::new("dd");
    command.args(args).arg("status=none");
    if let Some(library) = preload {
        command.env("LD_PRELOAD", library);
    }
    let start = Instant::now();
    let status = command.status().map_err(|e| e.to_string())?;
    if status.success() { Ok(start.elapsed().as_secs_f64()) } else { Err("dd failed".into()) }
}

/// Processor seconds of the children that ended.
fn cpu_of_children() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.skip(13).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}

fn print(values: &Values) {
    let of = |row, shape, way| {
        values.get(&(row, shape, way)).map_or(f64::NAN, |all| median(all.clone()))
    };
    let [tcp, single, preload] = [0, 1, 2].map(|way| WAYS[way].name);
    println!("{:<34} {tcp:>14} {single:>14} {:>7} {preload:>14} {:>7}", "", "ratio", "ratio");
    for (shape, name) in SHAPES.iter().enumerate() {
        for (row, what) in ROWS.iter().enumerate() {
            let [tcp, single, preload] = [0, 1, 2].map(|way| of(row, shape, way));
            let what = format!("{name}: {what}");
            let (one, two) = (single / tcp, preload / tcp);
            println!("{what:<34} {tcp:>14.2} {single:>14.2} {one:>7.2} {preload:>14.2} {two:>7.2}");
        }
    }
    println!("asked: processor seconds of 1 MiB reads and writes at most 0.7 of those over TCP");
}
