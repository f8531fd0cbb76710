//! The tables: a row for each size, a column for each peer, and what we reach of the best one.

use super::peers::{BARE, OWN, PEERS};
use super::place::Place;
use super::{Found, KIB, MIB, Sample};
use crate::bench::median;

/// What a table shows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Quantity {
    /// Microseconds one way: less is better.
    Latency,
    /// Messages or bytes one after the other: more is better.
    Throughput,
}

impl Quantity {
    /// The value, and its unit where that depends on the size.
    fn of(self, sample: Sample, size: usize) -> f64 {
        match self {
            Self::Latency => sample.micros,
            Self::Throughput if size < KIB => sample.rate * 1e3 / size as f64,
            Self::Throughput => sample.rate,
        }
    }

    fn unit(self, size: usize) -> &'static str {
        match self {
            Self::Latency => "us",
            Self::Throughput if size < KIB => "M/s",
            Self::Throughput => "GB/s",
        }
    }

    fn best(self, a: f64, b: f64) -> bool {
        if self == Self::Latency { a < b } else { a > b }
    }

    /// What ours is to be of the best peer's.
    fn target(self, place: Place, size: usize) -> Option<f64> {
        let by_place = |near, far| match place {
            Place::Near => Some(near),
            Place::Far => Some(far),
            Place::One => None,
        };
        match (self, size) {
            (Self::Latency, _) if place == Place::One => Some(0.9),
            (Self::Latency, ..=64) => by_place(0.65, 0.75),
            (Self::Latency, ..=512) => by_place(0.6, 0.7),
            (Self::Latency, ..KIB) => None,
            (Self::Latency, KIB) => by_place(0.85, 0.75),
            (Self::Latency, ..MIB) => by_place(0.5, 0.35),
            (Self::Latency, _) => by_place(0.65, 0.33),
            (Self::Throughput, ..=8) => by_place(2.5, 1.4),
            (Self::Throughput, ..=KIB) => by_place(1.5, 1.8),
            (Self::Throughput, ..=16_384) => by_place(3.0, 4.0),
            (Self::Throughput, _) => by_place(1.4, 1.8),
        }
    }

    fn verdict(self, got: f64, target: Option<f64>) -> String {
        match target {
            Some(want) if got == want || self.best(got, want) => format!("{got:.2} ok"),
            Some(want) => format!("{got:.2} aim {want:.2}"),
            None => format!("{got:.2}"),
        }
    }
}

/// Prints all places that were met, then who was not measured.
pub(super) fn print(found: &Found, sizes: &[usize]) {
    for place in [Place::Near, Place::Far, Place::One] {
        let met = found.samples.keys().any(|(p, ..)| *p == place);
        if !met {
            println!("\n{}: not met", place.name());
            continue;
        }
        println!("\n{}{}", place.name(), lines(found, place));
        for (what, quantity) in
            [("latency, one way", Quantity::Latency), ("throughput", Quantity::Throughput)]
        {
            let columns: String = PEERS.iter().map(|p| format!(" {:>10}", p.name)).collect();
            println!(
                "{what}\n{:>8} {:>5}{columns} {:>12}   nuri/best    single/best  runs: nuri, best",
                "bytes", "", "best peer"
            );
            sizes.iter().for_each(|size| println!("{}", row(found, place, *size, quantity)));
        }
    }
    println!("\ndata touched by all but ucx; runs during which the cores moved: {}", found.moved);
    for ((name, one_core, size), why) in &found.missing {
        let cores = if *one_core { "one core" } else { "two cores" };
        println!("MISSING {name}, {cores}, {size} bytes: {}", why.trim());
    }
}

fn lines(found: &Found, place: Place) -> String {
    let lines = found.lines.get(&place).filter(|_| place != Place::One);
    let Some(lines) = lines else { return String::new() };
    let (least, most) = lines.iter().fold((f64::MAX, 0.0_f64), |(a, b), l| (a.min(*l), b.max(*l)));
    format!(": a cache line in {:.0} ns [{least:.0}-{most:.0}]", median(lines.clone()))
}

fn row(found: &Found, place: Place, size: usize, quantity: Quantity) -> String {
    let value = |name: &'static str| {
        let samples = found.samples.get(&(place, name, size))?;
        Some(median(samples.iter().map(|s| quantity.of(*s, size)).collect()))
    };
    let cell = |name| value(name).map_or(format!(" {:>10}", "-"), |v| format!(" {v:>10.3}"));
    let cells: String = PEERS.iter().map(|p| cell(p.name)).collect();
    let others = PEERS.iter().filter(|p| !OWN.contains(&p.name) && p.name != BARE);
    let best = others.filter_map(|p| Some((p.name, value(p.name)?)));
    let best = best.reduce(|a, b| if quantity.best(b.1, a.1) { b } else { a });
    let Some((name, best)) = best else { return format!("{size:>8}{cells}") };
    let target = quantity.target(place, size);
    let ratio = |ours| value(ours).map_or(String::new(), |v| quantity.verdict(v / best, target));
    let unit = quantity.unit(size);
    let runs = |name| found.samples.get(&(place, name, size)).map_or(0, Vec::len);
    format!(
        "{size:>8} {unit:>5}{cells} {name:>12} {:>15} {:>14}  {}, {}",
        ratio(OWN[0]),
        ratio(OWN[1]),
        runs(OWN[0]),
        runs(name)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_held_against_the_best_peer() {
        let mut found = Found::default();
        let mut add = |name, micros, rate| {
            found.samples.insert((Place::Near, name, 4), vec![Sample { micros, rate }]);
        };
        add("nuri", 0.1, 0.08);
        add("single", 0.2, 0.04);
        add("cma", 0.01, 8.0);
        add("mpich", 0.25, 0.02);
        add("pipe", 9.0, 0.01);
        add("memcpy", 0.001, 9.0);
        let latency = row(&found, Place::Near, 4, Quantity::Latency);
        assert!(latency.contains("mpich") && latency.contains("0.40 ok"), "{latency}");
        assert!(latency.contains("0.80 aim 0.65"), "{latency}");
        let rate = row(&found, Place::Near, 4, Quantity::Throughput);
        assert!(rate.contains("M/s") && rate.contains("4.00 ok"), "{rate}");
    }
}
