//! Messages between two processes of this machine: `nuri-ipc` beside other libraries.
//!
//! A run measures one peer at one size and lies between two measurements of how far the cores are
//! from each other: virtual cores move, and without that a table would compare places and not
//! libraries. Runs during which they moved are made again. Peers take turns at each size; every
//! value is the median of the runs of one place.

mod peers;
mod place;
mod table;

use std::collections::BTreeMap;

use peers::{PEERS, Workshop};
use place::Place;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const SIZES: [usize; 10] = [4, 64, 256, KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB];
const QUICK: [usize; 3] = [4, 4 * KIB, 256 * KIB];
/// How often a run is made until the cores stay where they are.
const TRIES: usize = 3;

/// How much to measure.
pub(crate) struct Extent {
    pub(crate) rounds: usize,
    /// One short round of three sizes: shows that it runs.
    pub(crate) quick: bool,
}

impl Extent {
    fn rounds(&self) -> usize {
        if self.quick { 1 } else { self.rounds }
    }

    fn sizes(&self) -> &'static [usize] {
        if self.quick { &QUICK } else { &SIZES }
    }

    /// Seconds for the latency, and as many for the throughput.
    fn seconds(&self) -> f64 {
        if self.quick { 0.005 } else { 0.02 }
    }
}

/// One way: the time of one message, and of many.
#[derive(Clone, Copy)]
struct Sample {
    micros: f64,
    /// Bytes per nanosecond.
    rate: f64,
}

/// Measurements by place, peer and size.
#[derive(Default)]
struct Found {
    samples: BTreeMap<(Place, &'static str, usize), Vec<Sample>>,
    /// Nanoseconds in which a cache line went over, by place.
    lines: BTreeMap<Place, Vec<f64>>,
    /// What could not be measured, whether on one core, and why.
    missing: BTreeMap<(&'static str, bool, usize), String>,
    moved: usize,
}

/// Measures and prints the tables; a peer that is not there is named.
pub(crate) fn run(extent: &Extent) -> Result<(), String> {
    let workshop = Workshop::open()?;
    let mut found = Found::default();
    let outcome = measure_all(&workshop, extent, &mut found);
    table::print(&found, extent.sizes());
    outcome
}

fn measure_all(workshop: &Workshop, extent: &Extent, found: &mut Found) -> Result<(), String> {
    for round in 0..extent.rounds() {
        for cores in [[0, 1], [0, 0]] {
            for size in extent.sizes() {
                for peer in PEERS {
                    measure(workshop, peer, cores, *size, extent.seconds(), found)?;
                }
            }
        }
        eprintln!("round {} of {} done", round + 1, extent.rounds());
    }
    Ok(())
}

/// Makes one run that counts. Our own peers must be measured, others may be missing.
fn measure(
    workshop: &Workshop,
    peer: &peers::Peer,
    cores: [usize; 2],
    size: usize,
    seconds: f64,
    found: &mut Found,
) -> Result<(), String> {
    let cell = (peer.name, cores[0] == cores[1], size);
    for _ in 0..TRIES {
        if found.missing.contains_key(&cell) {
            break;
        }
        let (before, _) = place::look(cores)?;
        match workshop.run(peer, cores, seconds, size) {
            Err(why) if peer.is_ours() => return Err(format!("{}: {why}", peer.name)),
            Err(why) => {
                found.missing.insert(cell, why);
            }
            Ok(sample) => {
                let (after, line) = place::look(cores)?;
                if before == after {
                    found.lines.entry(after).or_default().push(line);
                    found.samples.entry((after, peer.name, size)).or_default().push(sample);
                    break;
                }
                found.moved += 1;
            }
        }
    }
    Ok(())
}
