//! Turns the samples of one point into records, and records into samples where a run continues.

use nuri_watch::calendar;
use nuri_watch::normal::median_of_sorted;

use crate::measure::Sample;
use crate::plan;
use crate::record::{Costs, FORMAT, Host, Limit, Record, VERSION};
use crate::stats::{Interval, NOISY};
use crate::workload::{Phase, Workload};

/// How a warning begins that concerns all samples of a record.
const NOISE: &str = "noisy";

/// What all records of a run share.
pub struct Origin {
    pub run: String,
    pub study: String,
}

/// A point: what its records say besides figures.
pub struct Subject<'a> {
    pub point: &'a plan::Point,
    pub options: String,
    pub workload: &'a Workload,
    pub host: Host,
    /// The limit of a phase, as far as it is known.
    pub limit: &'a dyn Fn(&Sample) -> Option<Limit>,
}

/// One record for each figure of the workload, in the order of its phases. `partial` says why
/// samples are missing.
pub fn records(
    origin: &Origin,
    subject: &Subject,
    samples: &[Sample],
    partial: Option<&str>,
) -> Vec<Record> {
    let phases = subject.workload.phases().into_iter();
    let figures = phases.filter_map(|phase| Some((phase, phase.metric()?)));
    let record = |(phase, metric)| {
        let own: Vec<_> = samples.iter().filter(|sample| sample.phase == phase).collect();
        // What a tool has no figure for is no result.
        let is_one = !own.is_empty() || partial.is_some();
        is_one.then(|| record(origin, subject, (phase, metric), &own, partial))
    };
    figures.filter_map(record).collect()
}

fn record(
    origin: &Origin,
    subject: &Subject,
    (phase, metric): (Phase, &str),
    samples: &[&Sample],
    partial: Option<&str>,
) -> Record {
    let values: Vec<f64> = samples.iter().map(|sample| sample.value).collect();
    let interval = Interval::of(&values);
    let first = samples.first();
    Record {
        format: FORMAT,
        version: VERSION.into(),
        run: origin.run.clone(),
        study: origin.study.clone(),
        at: calendar::utc(calendar::unix_now()),
        point: subject.point.clone(),
        options: subject.options.clone(),
        metric: metric.into(),
        unit: phase.unit(),
        warnings: warnings(samples, &interval),
        samples: values,
        interval,
        limit: first.and_then(|sample| (subject.limit)(sample)),
        costs: costs(samples),
        partial: partial.map(String::from),
        caches: first.map(|sample| sample.caches.clone()).unwrap_or_default(),
        host: subject.host.clone(),
    }
}

/// The samples that records of one point have of rounds that were whole, and how many rounds those
/// are. Costs are known as medians only.
pub fn recalled(workload: &Workload, records: &[&Record]) -> (usize, Vec<Sample>) {
    let in_round = workload.repetitions() as usize;
    let phases = workload.phases().into_iter().filter(|phase| phase.metric().is_some());
    let of = |phase: Phase| records.iter().find(|r| phase.metric() == Some(&r.metric)).copied();
    let figures: Vec<_> = phases.map(|phase| (phase, of(phase))).collect();
    let count = |record: Option<&Record>| record.map_or(0, |r| r.samples.len() / in_round);
    let rounds = figures.iter().map(|(_, record)| count(*record)).min().unwrap_or(0);
    let samples = |(phase, record): (Phase, Option<&Record>)| -> Vec<Sample> {
        let values = record.into_iter().flat_map(|r| r.samples.iter().map(move |value| (r, value)));
        values.take(rounds * in_round).map(|(r, value)| recall(phase, r, *value)).collect()
    };
    (rounds, figures.into_iter().flat_map(samples).collect())
}

fn recall(phase: Phase, record: &Record, value: f64) -> Sample {
    let own = record.warnings.iter().filter(|warning| !warning.starts_with(NOISE));
    Sample {
        phase,
        value,
        costs: record.costs.clone(),
        caches: record.caches.clone(),
        warnings: own.cloned().collect(),
    }
}

/// Each once, whatever numbers are in them.
fn warnings(samples: &[&Sample], interval: &Interval) -> Vec<String> {
    let mut warnings: Vec<String> = Vec::new();
    let kind = |text: &str| text.split(char::is_numeric).next().map(String::from);
    for warning in samples.iter().flat_map(|sample| &sample.warnings) {
        if !warnings.iter().any(|known| kind(known) == kind(warning)) {
            warnings.push(warning.clone());
        }
    }
    if interval.is_noisy() {
        let percent = 100.0 * (interval.high - interval.low) / interval.median;
        let most = 100.0 * NOISY;
        warnings.push(format!(
            "{NOISE}: the interval is {percent:.0} % of the median wide, more than {most:.0} %"
        ));
    }
    warnings
}

fn costs(samples: &[&Sample]) -> Costs {
    let middle = |of: fn(&Costs) -> Option<f64>| {
        let mut values: Vec<f64> = samples.iter().filter_map(|s| of(&s.costs)).collect();
        values.sort_by(f64::total_cmp);
        (!values.is_empty()).then(|| median_of_sorted(&values))
    };
    Costs {
        cpu_seconds_per_gib: middle(|c| c.cpu_seconds_per_gib),
        cpu_us_per_op: middle(|c| c.cpu_us_per_op),
        wire_bytes_per_byte: middle(|c| c.wire_bytes_per_byte),
        straggling: middle(|c| c.straggling),
        memory_mib: middle(|c| c.memory_mib),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(phase: Phase, value: f64, straggling: f64) -> Sample {
        Sample {
            phase,
            value,
            costs: Costs { straggling: Some(straggling), ..Costs::default() },
            caches: "cold".into(),
            warnings: vec![format!("the host took {straggling} %")],
        }
    }

    fn of(samples: &[Sample], partial: Option<&str>) -> Vec<Record> {
        let workload = crate::workload::tests::parse("ior -w -r").unwrap();
        let origin = Origin { run: "r".into(), study: "s".into() };
        let limit = |_: &Sample| Some(Limit { name: "disk write".into(), value: 400.0 });
        let subject = Subject {
            point: &plan::Point::new(),
            options: "-w -r".into(),
            workload: &workload,
            host: Host::default(),
            limit: &limit,
        };
        records(&origin, &subject, samples, partial)
    }

    #[test]
    fn each_figure_has_its_samples_and_median_costs() {
        let write = |value, straggling| sample(Phase::Write, value, straggling);
        let samples = [write(100.0, 1.0), sample(Phase::Read, 9.0, 0.0), write(300.0, 3.0)];
        let records = of(&samples, None);
        assert_eq!((records[0].metric.as_str(), records[1].metric.as_str()), ("write", "read"));
        assert_eq!(records[0].samples, [100.0, 300.0]);
        assert_eq!(records[0].costs.straggling, Some(2.0));
        assert_eq!(records[0].fraction(), Some(0.5));
        assert_eq!(records[0].warnings.len(), 2, "{:?}", records[0].warnings);
        assert!(records[0].warnings[1].starts_with("noisy"), "{:?}", records[0].warnings);
    }

    #[test]
    fn whole_rounds_are_recalled() {
        let workload = crate::workload::tests::parse("ior -w -r").unwrap();
        let write = |value| sample(Phase::Write, value, 1.0);
        let read = |value| sample(Phase::Read, value, 1.0);
        let all = [write(100.0), read(9.0), write(300.0), read(8.0), write(200.0)];
        let records = of(&all, Some("interrupted"));
        let (rounds, samples) = recalled(&workload, &records.iter().collect::<Vec<_>>());
        assert_eq!(rounds, 2, "the third was not whole");
        assert_eq!(samples, [write(100.0), write(300.0), read(9.0), read(8.0)]);
        assert_eq!(recalled(&workload, &[&records[0]]), (0, Vec::new()));
    }

    #[test]
    fn what_has_no_samples_still_is_a_line_that_can_be_read() {
        let records = of(&[sample(Phase::Write, 1.0, 0.0)], Some("interrupted"));
        let read: Record = serde_json::from_str(&records[1].to_line().unwrap()).unwrap();
        assert!(read.samples.is_empty() && read.interval.median.is_nan());
        assert_eq!(read.partial.as_deref(), Some("interrupted"));
    }
}
