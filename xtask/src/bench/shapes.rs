//! The redundant shapes against `stripe` and the local file system, interleaved, in one run.
//!
//! One space of four nodes over TCP with a directory for each shape. Then one storage node is
//! stopped, and the reads are repeated without it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::measure::{Files, SyncKind, Transfer, synced};
use super::median;
use super::meter::Meter;
use crate::apps::Mounted;
use crate::shell::{Build, script};

/// More than three times what client and targets hold in memory.
const TOTAL: usize = 768 << 20;
const SYNCS: usize = 800;
const LIMIT: Duration = Duration::from_secs(60);
/// Between writing and reading.
const SETTLING: Duration = Duration::from_secs(4);
const SHAPES: [&str; 3] = ["stripe", "mirror:2", "parity:3+1"];

/// Where a measurement is made.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Local,
    Shape(usize),
}

const PLACES: [Place; 4] = [Place::Local, Place::Shape(0), Place::Shape(1), Place::Shape(2)];

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Write,
    Read,
    WriteCpu,
    DeviceBytes,
    Synced4,
    Synced8,
    DegradedRead,
}

const ROWS: [(What, &str); 7] = [
    (What::Write, "write 1 MiB, MiB/s"),
    (What::WriteCpu, "  processor seconds per GiB"),
    (What::DeviceBytes, "  device bytes per byte"),
    (What::Read, "read 1 MiB, cold, MiB/s"),
    (What::DegradedRead, "read, one node of four away"),
    (What::Synced4, "4 KiB write + fdatasync, op/s"),
    (What::Synced8, "8 KiB overwrite + fsync, op/s"),
];

type Rates = BTreeMap<(What, Place), Vec<f64>>;

struct Bench {
    dir: PathBuf,
    nuri: Mounted,
}

/// Measures and prints the table; fails only where something could not be measured.
pub(crate) fn run(rounds: usize, dir: &Path) -> Result<(), String> {
    let nuri = Mounted::up(Build::Release, dir, "--nodes 4 --target-size 8G --shape stripe")?;
    let bench = Bench { dir: dir.to_owned(), nuri };
    bench.prepare()?;
    let mut rates = Rates::new();
    for round in 0..rounds {
        for place in PLACES {
            bench.round(place, &mut rates)?;
        }
        bench.degraded(&mut rates)?;
        eprintln!("round {} of {rounds} done", round + 1);
    }
    print(&rates);
    Ok(())
}

fn sh(text: &str) -> Result<String, String> {
    script(text, LIMIT)
}

fn told<T>(outcome: std::io::Result<T>) -> Result<T, String> {
    outcome.map_err(|e| e.to_string())
}

impl Bench {
    fn prepare(&self) -> Result<(), String> {
        let (n, m) = (self.nuri.nuri.display(), self.nuri.mnt.display());
        sh(&format!("mkdir -p {}", self.path(Place::Local).display()))?;
        for (i, shape) in SHAPES.iter().enumerate() {
            sh(&format!("mkdir {m}/{i} && {n} fs layout set {m}/{i} --shape {shape}"))?;
        }
        Ok(())
    }

    fn path(&self, place: Place) -> PathBuf {
        match place {
            Place::Local => self.dir.join("local"),
            Place::Shape(i) => self.nuri.mnt.join(i.to_string()),
        }
    }

    fn round(&self, place: Place, rates: &mut Rates) -> Result<(), String> {
        let dir = self.path(place);
        sh(&format!("rm -f {}/*; sleep 0.5", dir.display()))?;
        let mut add = |what, rate| rates.entry((what, place)).or_default().push(rate);
        let transfer = Transfer { block: 1 << 20, jobs: 1, files: Files::Own, total: TOTAL };
        let mut meter = Meter::of(&self.dir);
        meter.look(&self.nuri.space);
        let (cpu, device) = (meter.cpu_seconds(), meter.device_bytes()[1]);
        add(What::Write, told(transfer.write(std::slice::from_ref(&dir)))?);
        meter.look(&self.nuri.space);
        if place != Place::Local {
            let gib = TOTAL as f64 / f64::from(1 << 30);
            add(What::WriteCpu, (meter.cpu_seconds() - cpu) / gib);
            add(What::DeviceBytes, (meter.device_bytes()[1] - device) as f64 / TOTAL as f64);
        }
        // The device still works on what was written: twice as much for mirrors.
        std::thread::sleep(SETTLING);
        self.nuri.cold()?;
        add(What::Read, told(transfer.read(std::slice::from_ref(&dir)))?);
        let written = dir.join("own0");
        add(What::Synced4, told(synced(&written, 4096, SyncKind::Data, SYNCS))?);
        add(What::Synced8, told(synced(&written, 8192, SyncKind::All, SYNCS))?);
        Ok(())
    }

    /// Stops one storage node, reads what is redundant, and lets it come back.
    fn degraded(&self, rates: &mut Rates) -> Result<(), String> {
        let (n, s) = (self.nuri.nuri.display(), self.nuri.space.display());
        let pid = sh(&format!("cat {s}/run/node2.lock"))?;
        let pid = pid.trim();
        sh(&format!("kill -STOP {pid}; sleep 5"))?;
        let measured = self.degraded_reads(rates);
        sh(&format!(
            "kill -CONT {pid}
             for i in $(seq 300); do
                 {n} status --dir {s} | grep -q 'health *ok' && exit 0; sleep 0.1
             done; {n} status --dir {s}; exit 1"
        ))?;
        measured
    }

    fn degraded_reads(&self, rates: &mut Rates) -> Result<(), String> {
        for place in [Place::Shape(1), Place::Shape(2)] {
            self.nuri.cold()?;
            let transfer = Transfer { block: 1 << 20, jobs: 1, files: Files::Own, total: TOTAL };
            let rate = told(transfer.read(&[self.path(place)]))?;
            rates.entry((What::DegradedRead, place)).or_default().push(rate);
        }
        Ok(())
    }
}

fn print(rates: &Rates) {
    let cell = |what, place| match rates.get(&(what, place)) {
        Some(all) => median(all.clone()),
        None => f64::NAN,
    };
    print!("{:<32} {:>9}", "", "local");
    SHAPES.iter().for_each(|shape| print!(" {shape:>11}"));
    println!("   of local / of stripe: mirror, parity");
    for (what, name) in ROWS {
        print!("{name:<32}");
        PLACES.iter().for_each(|place| print!(" {:>10.2}", cell(what, *place)));
        let ratio = |i, to| cell(what, Place::Shape(i)) / cell(what, to);
        let (l, s) = (Place::Local, Place::Shape(0));
        println!(
            "   {:.2}, {:.2} / {:.2}, {:.2}",
            ratio(1, l),
            ratio(2, l),
            ratio(1, s),
            ratio(2, s)
        );
    }
    let of = |a, b, i| cell(a, Place::Shape(i)) / cell(b, Place::Shape(i));
    println!(
        "degraded read of healthy: mirror {:.2}, parity {:.2}",
        of(What::DegradedRead, What::Read, 1),
        of(What::DegradedRead, What::Read, 2)
    );
    let latency = cell(What::Synced8, Place::Shape(1)) / cell(What::Synced8, Place::Shape(2));
    println!("8 KiB overwrite + fsync: parity takes {latency:.2} x as long as mirror");
}
