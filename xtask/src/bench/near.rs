//! Bulk between the processes of one machine: one copy from the sender's memory against TCP over
//! loopback, by turns, in one run.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use super::measure::{Files, SyncKind, Transfer, synced};
use super::median;
use super::meter::Meter;
use crate::apps::Mounted;

const TOTAL: usize = 768 << 20;
/// What the command that makes the space is preceded by.
const PATHS: [(&str, &str); 2] = [("tcp, loopback", "env NURI_SAME_NODE=tcp"), ("single copy", "")];
const SHAPES: [&str; 2] = ["stripe", "parity:3+1"];
const ROWS: [&str; 4] =
    ["write, cpu s/GiB", "read, cold, cpu s/GiB", "write, MiB/s", "read, cold, MiB/s"];

/// By row, shape and path.
type Values = BTreeMap<(usize, usize, usize), Vec<f64>>;

/// Measures and prints the table.
pub(crate) fn run(rounds: usize, dir: &Path) -> Result<(), String> {
    let mut values = Values::new();
    for round in 0..rounds {
        for (shape, name) in SHAPES.iter().enumerate() {
            for (path, (_, by)) in PATHS.iter().enumerate() {
                let space = Mounted::up_by(dir, by, &format!("--nodes 4 --shape {name}"))?;
                for (row, value) in measure(dir, &space)?.into_iter().enumerate() {
                    values.entry((row, shape, path)).or_default().push(value);
                }
                space.down_clean()?;
            }
        }
        eprintln!("round {} of {rounds} done", round + 1);
    }
    print(&values);
    Ok(())
}

/// In the order of [`ROWS`].
fn measure(dir: &Path, nuri: &Mounted) -> Result<[f64; 5], String> {
    let told = |outcome: std::io::Result<f64>| outcome.map_err(|e| e.to_string());
    let transfer = Transfer { block: 1 << 20, jobs: 1, files: Files::Own, total: TOTAL };
    let at = std::slice::from_ref(&nuri.mnt);
    let mut meter = Meter::of(dir);
    // Memory that is used for the first time costs more.
    told(transfer.write(at))?;
    let mut metered = |work: &dyn Fn() -> std::io::Result<f64>| {
        meter.look(&nuri.space);
        let before = meter.cpu_seconds();
        let rate = told(work())?;
        meter.look(&nuri.space);
        let gib = TOTAL as f64 / f64::from(1 << 30);
        Ok::<_, String>(((meter.cpu_seconds() - before) / gib, rate))
    };
    let (write_cpu, write) = metered(&|| transfer.write(at))?;
    std::thread::sleep(Duration::from_secs(2));
    nuri.cold()?;
    let (read_cpu, read) = metered(&|| transfer.read(at))?;
    let synced = told(synced(&nuri.mnt.join("own0"), 4096, SyncKind::Data, 800))?;
    Ok([write_cpu, read_cpu, write, read, synced])
}

fn print(values: &Values) {
    let of = |row, shape, path| {
        values.get(&(row, shape, path)).map_or(f64::NAN, |all| median(all.clone()))
    };
    println!("{:<34} {:>14} {:>14} {:>7}", "", PATHS[0].0, PATHS[1].0, "ratio");
    for (shape, name) in SHAPES.iter().enumerate() {
        for (row, what) in ROWS.iter().enumerate() {
            let (tcp, copy) = (of(row, shape, 0), of(row, shape, 1));
            println!(
                "{:<34} {tcp:>14.2} {copy:>14.2} {:>7.2}",
                format!("{name}: {what}"),
                copy / tcp
            );
        }
    }
    println!("asked: processor seconds of 1 MiB reads and writes at most 0.7 of those over TCP");
}
