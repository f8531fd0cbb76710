//! Ratios against the local file system and a plain FUSE passthrough, interleaved, in one run.
//!
//! Servers, metadata server and mount are separate processes over TCP (`--nodes 4`); one process
//! for all servers is shown apart. Every value is the median of the rounds; before each read the
//! mount is made anew and caches are dropped.

pub(crate) mod block;
pub(crate) mod coherence;
pub(crate) mod ipc;
pub(crate) mod link;
mod measure;
mod meter;
mod mix;
pub(crate) mod near;
pub(crate) mod nfs;
pub(crate) mod ops;
mod peers;
pub(crate) mod rebuild;
pub(crate) mod shapes;

use std::collections::BTreeMap;
use std::path::Path;

use measure::{Case, Files};
use peers::{Peer, Peers};

/// What a row must reach: against the passthrough and against the local file system.
struct Row {
    name: &'static str,
    case: Case,
    passthrough: Option<f64>,
    local: Option<f64>,
}

const MIB: usize = 1 << 20;
const KIB: usize = 1 << 10;

fn row(name: &'static str, case: Case, passthrough: Option<f64>, local: Option<f64>) -> Row {
    Row { name, case, passthrough, local }
}

fn rows() -> Vec<Row> {
    let seq = |write, block, jobs, files| Case::Sequential { write, block, jobs, files };
    let (own, one) = (Files::Own, Files::Shared);
    vec![
        row("write 1 MiB, 1 process", seq(true, MIB, 1, own), Some(0.9), Some(0.5)),
        row("read 1 MiB, 1 process", seq(false, MIB, 1, own), Some(1.2), Some(0.7)),
        row("write 1 MiB, 4 own files", seq(true, MIB, 4, own), Some(0.9), Some(0.5)),
        row("read 1 MiB, 4 own files", seq(false, MIB, 4, own), Some(1.2), Some(0.7)),
        row("write 1 MiB, 4 one file", seq(true, MIB, 4, one), Some(0.9), Some(0.5)),
        row("read 1 MiB, 4 one file", seq(false, MIB, 4, one), Some(1.2), Some(0.7)),
        row("write 1 MiB, 8 own files", seq(true, MIB, 8, own), Some(0.9), Some(0.5)),
        row("write 4 KiB", seq(true, 4 * KIB, 1, own), Some(1.0), None),
        row("read 4 KiB", seq(false, 4 * KIB, 1, own), Some(1.0), None),
        row("write 16 KiB", seq(true, 16 * KIB, 1, own), Some(1.0), None),
        row("read 16 KiB", seq(false, 16 * KIB, 1, own), Some(1.0), None),
        row("tree: create", Case::TreeCreate, Some(1.0 / 3.0), None),
        row("tree: stat", Case::TreeStat, Some(1.0 / 3.0), None),
        row("tree: read", Case::TreeRead, Some(1.0 / 3.0), None),
        row("tree: remove", Case::TreeRemove, Some(1.0 / 3.0), None),
        row("O_DIRECT write 1 MiB", Case::Direct { write: true }, None, Some(0.75)),
        row("O_DIRECT read 1 MiB", Case::Direct { write: false }, None, Some(0.75)),
        row("4 KiB write + fdatasync", Case::Synced, None, Some(1.0 / 1.7)),
        row("8 KiB random read, 16 jobs", Case::RandomRead, None, Some(0.6)),
    ]
}

/// Measures the rows whose name contains `only` and prints the table; fails only where something
/// could not be measured. A row that reads needs the row before it, which writes.
pub(crate) fn run(rounds: usize, dir: &Path, only: &str) -> Result<(), String> {
    let rows: Vec<Row> = rows().into_iter().filter(|row| row.name.contains(only)).collect();
    if rows.is_empty() {
        return Err(format!("no row's name contains '{only}'"));
    }
    let peers = Peers::start(dir)?;
    println!("{}", peers.describe());
    let mut rates: BTreeMap<(usize, Peer), Vec<f64>> = BTreeMap::new();
    for round in 0..rounds {
        for (i, row) in rows.iter().enumerate() {
            for peer in Peer::ALL {
                let rate = row.case.run(&peers, peer).map_err(|e| format!("{}: {e}", row.name))?;
                rates.entry((i, peer)).or_default().push(rate);
            }
        }
        eprintln!("round {} of {rounds} done", round + 1);
    }
    println!(
        "\n{:<28} {:>10} {:>12} {:>10} {:>9} {:>12} {:>14}",
        "", "local", "passthrough", "nuri", "/pass", "/local", "one process"
    );
    for (i, row) in rows.iter().enumerate() {
        let median = |peer| median(rates.get(&(i, peer)).cloned().unwrap_or_default());
        let (l, p, n) = (median(Peer::Local), median(Peer::Passthrough), median(Peer::Nuri));
        let unit = row.case.unit();
        let verdict = |got: f64, want: Option<f64>| match want {
            Some(want) if got >= want => format!("{got:.2} ok"),
            Some(want) => format!("{got:.2} <{want:.2}"),
            None => format!("{got:.2}"),
        };
        let (pass, local) = (verdict(n / p, row.passthrough), verdict(n / l, row.local));
        let one = median(Peer::Embedded);
        println!(
            "{:<28} {l:>10.0} {p:>12.0} {n:>10.0} {pass:>12} {local:>12} {one:>11.0}  {unit}",
            row.name
        );
    }
    println!("\n{}", peers.costs());
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}
