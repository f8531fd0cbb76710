//! Finds what became slower or faster between two runs, and tells it from noise.

use nuri_watch::unit::Unit;

use crate::record::Record;
use crate::stats::Interval;

/// Smaller changes are not told, however sure.
pub const LEAST_CHANGE: f64 = 0.05;
/// With fewer samples on either side nothing is sure.
pub const LEAST_SAMPLES: usize = 3;

/// What is said of one result that both runs have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    Slower,
    Faster,
    /// Their intervals meet, or the change is small.
    Same,
    /// Too few samples, though the figures differ.
    Unsure,
}

impl Verdict {
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Slower => "slower",
            Verdict::Faster => "faster",
            Verdict::Same => "same",
            Verdict::Unsure => "unsure",
        }
    }
}

/// One result in both runs.
pub struct Change {
    pub what: String,
    pub unit: Unit,
    pub before: Interval,
    pub after: Interval,
    /// How many times as fast as before: above 1 is better, for times too.
    pub speed: f64,
    pub verdict: Verdict,
}

/// All results of both, and the names of those that only one of them has.
pub struct Comparison {
    pub changes: Vec<Change>,
    pub only_before: Vec<String>,
    pub only_after: Vec<String>,
}

impl Comparison {
    pub fn has_regressions(&self) -> bool {
        self.changes.iter().any(|change| change.verdict == Verdict::Slower)
    }
}

/// Pairs the results of two runs by study, point, metric and unit.
pub fn compare(before: &[Record], after: &[Record]) -> Comparison {
    let has = |all: &[Record], one: &Record| partner(all, one).is_some();
    let lacking = |own: &[Record], other: &[Record]| {
        own.iter().filter(|record| !has(other, record)).map(name).collect()
    };
    let changes = before.iter().filter_map(|old| Some(change(old, partner(after, old)?)));
    Comparison {
        changes: changes.collect(),
        only_before: lacking(before, after),
        only_after: lacking(after, before),
    }
}

fn partner<'a>(all: &'a [Record], one: &Record) -> Option<&'a Record> {
    let key = |r: &Record| (r.study.clone(), r.metric.clone(), r.unit, r.point.clone());
    let measured = |r: &Record| !r.samples.is_empty();
    all.iter().find(|other| key(other) == key(one) && measured(other) && measured(one))
}

fn name(record: &Record) -> String {
    let point: Vec<_> =
        record.point.iter().map(|(name, value)| format!("{name} {value}")).collect();
    format!("{} {}: {}", record.study, record.metric, point.join(", "))
}

fn change(before: &Record, after: &Record) -> Change {
    let rates = after.interval.median / before.interval.median;
    let speed = if before.unit.is_rate() { rates } else { 1.0 / rates };
    let few = before.samples.len().min(after.samples.len()) < LEAST_SAMPLES;
    let verdict = match () {
        () if (speed - 1.0).abs() < LEAST_CHANGE => Verdict::Same,
        () if before.interval.meets(&after.interval) => Verdict::Same,
        () if few => Verdict::Unsure,
        () if speed < 1.0 => Verdict::Slower,
        () => Verdict::Faster,
    };
    Change {
        what: name(before),
        unit: before.unit,
        before: before.interval,
        after: after.interval,
        speed,
        verdict,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::sample;

    fn verdict(before: &[f64], after: &[f64]) -> Verdict {
        let of = |samples| vec![sample("s", &[("np", "1")], samples)];
        compare(&of(before), &of(after)).changes[0].verdict
    }

    #[test]
    fn noise_is_no_regression() {
        let base = [100.0, 101.0, 102.0];
        assert_eq!(verdict(&base, &[90.0, 99.0, 101.0]), Verdict::Same);
        assert_eq!(verdict(&base, &[80.0, 81.0, 82.0]), Verdict::Slower);
        assert_eq!(verdict(&base, &[97.0, 98.0, 99.0]), Verdict::Same);
        assert_eq!(verdict(&base, &[120.0, 121.0, 122.0]), Verdict::Faster);
        assert_eq!(verdict(&base, &[50.0, 50.0]), Verdict::Unsure);
    }

    #[test]
    fn longer_times_are_slower() {
        let of = |samples: &[f64]| {
            vec![Record { unit: Unit::Seconds, ..sample("s", &[("np", "1")], samples) }]
        };
        let comparison = compare(&of(&[1.0, 1.0, 1.0]), &of(&[2.0, 2.0, 2.0]));
        assert!(comparison.has_regressions());
        assert_eq!(comparison.changes[0].speed, 0.5);
    }

    #[test]
    fn what_only_one_run_has_is_named() {
        let one = vec![sample("s", &[("np", "1")], &[1.0])];
        let two = vec![sample("s", &[("np", "2")], &[1.0]), sample("s", &[("np", "1")], &[])];
        let comparison = compare(&one, &two);
        assert_eq!(comparison.only_before, ["s write: np 1"]);
        assert_eq!(comparison.only_after, ["s write: np 2", "s write: np 1"]);
    }
}
