//! What names cost, and what it costs that two mounts see the same.
//!
//! Two mounts of one space, each a process of its own, beside the local file system and a plain
//! passthrough. All take turns within a round; every value is the median of the rounds.

mod parts;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::measure::{Files, Outcome, clear, told};
use super::median;
use super::peers::{Peer, Peers};
use parts::Part;

/// Of the table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Column {
    Local,
    Passthrough,
    Nuri,
    /// What Nuri is held against where that is Nuri too.
    Base,
    /// Processor microseconds of servers and mounts per operation.
    Cpu,
}

/// What a row is held against, and what it must reach there.
#[derive(Clone, Copy)]
enum Want {
    Of(Column, Option<f64>),
    Rate(f64),
}

/// One line of the table: a part of the benchmark gives one or several.
struct Row {
    part: Part,
    /// Among those of the part.
    index: usize,
    what: String,
    unit: &'static str,
    /// What the base is.
    base: &'static str,
    wants: Vec<Want>,
}

/// How much to measure, and of what.
pub(crate) struct Extent<'a> {
    pub(crate) rounds: usize,
    /// A part of the rows' names.
    pub(crate) only: &'a str,
    /// A tenth of everything: shows that it runs.
    pub(crate) quick: bool,
}

const PEERS: [Peer; 3] = [Peer::Local, Peer::Passthrough, Peer::Nuri];
const AT_LEAST_CREATES: f64 = 12_000.0;

type Found = BTreeMap<(Part, usize, Column), Vec<f64>>;

fn column(peer: Peer) -> Column {
    match peer {
        Peer::Local => Column::Local,
        Peer::Passthrough => Column::Passthrough,
        Peer::Nuri | Peer::Embedded => Column::Nuri,
    }
}

/// Where it is measured.
struct Ground {
    peers: Peers,
    divisor: usize,
}

impl Ground {
    fn count(&self, count: usize) -> usize {
        count / self.divisor
    }

    /// An empty directory.
    fn fresh(&self, peer: Peer) -> Outcome<PathBuf> {
        let root = self.peers.path(peer);
        clear(&root)?;
        let dir = root.join("dir");
        told(std::fs::create_dir(&dir))?;
        Ok(dir)
    }

    /// The same empty directory, as each of the mounts shows it.
    fn fresh_on(&self, mounts: usize) -> Outcome<Vec<PathBuf>> {
        self.fresh(Peer::Nuri)?;
        Ok(self.peers.mounts().iter().take(mounts).map(|mnt| mnt.join("dir")).collect())
    }
}

fn parts() -> Vec<Part> {
    let shared = |jobs, mounts| Part::SharedDirectory { jobs, mounts };
    vec![
        Part::Warm,
        Part::Names,
        Part::Unpack,
        Part::TwoMakers,
        shared(1, 1),
        shared(4, 1),
        shared(8, 1),
        shared(4, 2),
        shared(8, 2),
        Part::OneFile(Files::Shared),
        Part::OneFile(Files::Strided),
        Part::PingPong,
    ]
}

/// Rows of a part, in the order in which it gives their values.
fn rows(part: Part) -> Vec<Row> {
    let row = |what: &str, unit, base, wants: &[Want]| Row {
        part,
        index: 0,
        what: what.into(),
        unit,
        base,
        wants: wants.to_vec(),
    };
    let op = |what, wants: &[Want]| row(what, "op/s", "", wants);
    let pass = |least| Want::Of(Column::Passthrough, Some(least));
    let local = |least| Want::Of(Column::Local, Some(least));
    let base = |least| Want::Of(Column::Base, least);
    let mut rows = match part {
        Part::Warm => vec![
            op("warm stat", &[pass(0.9)]),
            op("warm open+read+close, 4000 B", &[pass(0.9)]),
            op("warm readdir", &[pass(0.9)]),
        ],
        Part::Names => vec![
            op("create+close, one process", &[pass(3.0), local(0.8)]),
            op("remove, one process", &[pass(0.5)]),
        ],
        Part::Unpack => vec![row("unpack a tree, sync", "files/s", "", &[pass(1.0)])],
        Part::TwoMakers => {
            let alone = "own directories";
            vec![row("create, two mounts, one dir", "op/s", alone, &[base(Some(0.5))])]
        }
        Part::SharedDirectory { jobs, mounts } => shared_rows(part, jobs, mounts),
        Part::OneFile(files) => {
            let (what, least) = match files {
                Files::Strided => ("write one file, strided", 0.5),
                _ => ("write one file, segmented", 0.9),
            };
            vec![row(what, "MiB/s", "own files", &[base(Some(least))])]
        }
        Part::PingPong => vec![
            row("ping-pong of a page, median", "us", "two calls", &[base(None)]),
            row("ping-pong of a page, p99", "us", "two calls", &[base(None)]),
            row("one call of the server", "us", "", &[]),
        ],
    };
    rows.iter_mut().enumerate().for_each(|(index, row)| row.index = index);
    rows
}

fn shared_rows(part: Part, jobs: usize, mounts: usize) -> Vec<Row> {
    let row = |what: &str| {
        let wants = match (what, jobs) {
            ("create", 4) => vec![Want::Rate(AT_LEAST_CREATES)],
            _ => Vec::new(),
        };
        let s = if mounts == 1 { "" } else { "s" };
        let what = format!("mdtest {what}, {jobs} on {mounts} mount{s}");
        Row { part, index: 0, what, unit: "op/s", base: "", wants }
    };
    ["create", "stat", "remove"].map(row).into()
}

/// Measures the rows whose name contains `only` and prints the table; fails only where something
/// could not be measured.
pub(crate) fn run(dir: &Path, extent: &Extent<'_>) -> Result<(), String> {
    let rows: Vec<Row> = parts().into_iter().flat_map(rows).collect();
    let rows: Vec<Row> = rows.into_iter().filter(|r| r.what.contains(extent.only)).collect();
    let mut parts = parts();
    parts.retain(|part| rows.iter().any(|row| row.part == *part));
    if parts.is_empty() {
        return Err(format!("no row's name contains '{}'", extent.only));
    }
    let mut peers = Peers::start(dir)?;
    peers.mount_second()?;
    println!("{}\nnuri's second mount: one more process", peers.describe());
    let ground = Ground { peers, divisor: if extent.quick { 10 } else { 1 } };
    let mut found = Found::new();
    for round in 0..extent.rounds {
        for part in &parts {
            let mut add = |index, column, value| {
                found.entry((*part, index, column)).or_default().push(value);
            };
            let first = rows.iter().find(|row| row.part == *part);
            let name = first.map_or("", |row| &row.what);
            part.run(&ground, &mut add).map_err(|e| format!("{name}: {e}"))?;
        }
        eprintln!("round {} of {} done", round + 1, extent.rounds);
    }
    print(&rows, &found);
    Ok(())
}

fn print(rows: &[Row], found: &Found) {
    println!(
        "\n{:<37} {:>9} {:>12} {:>9} {:>9}   ratio (wanted)",
        "", "local", "passthrough", "nuri", "cpu us/op"
    );
    for row in rows {
        let value = |column| {
            let all = found.get(&(row.part, row.index, column));
            all.map_or(f64::NAN, |all| median(all.clone()))
        };
        let cell = |column| match value(column) {
            missing if missing.is_nan() => "-".to_string(),
            value => format!("{value:.0}"),
        };
        println!(
            "{:<37} {:>9} {:>12} {:>9} {:>9}   {}",
            format!("{}, {}", row.what, row.unit),
            cell(Column::Local),
            cell(Column::Passthrough),
            cell(Column::Nuri),
            cell(Column::Cpu),
            row.verdicts(value)
        );
    }
}

impl Row {
    fn verdicts(&self, value: impl Fn(Column) -> f64) -> String {
        let nuri = value(Column::Nuri);
        let verdict = |got: f64, least: f64| if got >= least { "ok" } else { "<" };
        let one = |want: &Want| match *want {
            Want::Rate(least) => format!("({least:.0}) {}", verdict(nuri, least)),
            Want::Of(column, least) => {
                let ratio = nuri / value(column);
                let against = match column {
                    Column::Passthrough => "/pass".to_string(),
                    Column::Local => "/local".to_string(),
                    _ => format!("/{} {:.0}:", self.base, value(column)),
                };
                match least {
                    Some(least) => {
                        format!("{against} {ratio:.2} ({least}) {}", verdict(ratio, least))
                    }
                    None => format!("{against} {ratio:.2}"),
                }
            }
        };
        self.wants.iter().map(one).collect::<Vec<_>>().join("  ")
    }
}
