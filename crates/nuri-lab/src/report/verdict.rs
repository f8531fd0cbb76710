//! A panel in plain words: ratios within one run. Ratios count, because absolute figures drift.

use super::{Panel, Series};
use crate::plan::{Against, PublishedRatio};
use crate::record::Record;

/// One sentence each; none where nothing was measured.
pub(super) fn sentences(panel: &Panel) -> Vec<String> {
    let mut all = Vec::new();
    all.extend(against(panel));
    all.extend(panel.series.iter().filter_map(|series| along(panel, series)));
    all.extend(published(panel));
    all.extend(limits(panel));
    all.extend(noise(panel));
    all
}

fn ratio(of: &Record, to: &Record) -> f64 {
    of.interval.median / to.interval.median
}

/// What is studied beside what it is compared with, at the same points.
fn against(panel: &Panel) -> Vec<String> {
    let Against { name: axis, of, to } = &panel.against;
    let mut told = Vec::new();
    for own in panel.series.iter().filter(|series| value(series, axis) == Some(of.as_str())) {
        for to in to {
            let other = panel.series.iter().find(|other| is_counterpart(panel, other, own, to));
            let Some(pair) = other.and_then(|other| compared(panel, own, other)) else { continue };
            let (metric, name, x) = (&panel.metric, &own.name, &panel.x);
            let Extremes { least, most } = pair;
            let whose = if to == "local" { "the local file system" } else { to };
            let words = |end: (f64, &str)| format!("{:.2} ({x} {})", end.0, end.1);
            let range = match least.1 == most.1 {
                true => words(least),
                false => format!("{} to {}", words(least), words(most)),
            };
            told.push(format!("{metric} of {name} is {range} of {whose}'s."));
            let published = panel.ratios.iter().find(|ratio| ratio.of == *of && ratio.to == *to);
            told.extend(published.map(|ratio| judged(panel, ratio, least.0, most.0)));
        }
    }
    told
}

/// Ratios with the values at which they were found.
struct Extremes<'a> {
    least: (f64, &'a str),
    most: (f64, &'a str),
}

fn compared<'a>(panel: &'a Panel, own: &Series, other: &Series) -> Option<Extremes<'a>> {
    let mut ratios: Vec<(f64, &str)> = own
        .measured()
        .filter_map(|(i, own)| Some((i, own, other.cells[i].as_ref()?)))
        .filter(|(_, _, other)| !other.samples.is_empty())
        .map(|(i, own, other)| (ratio(own, other), panel.values[i].as_str()))
        .collect();
    ratios.sort_by(|a, b| a.0.total_cmp(&b.0));
    Some(Extremes { least: *ratios.first()?, most: *ratios.last()? })
}

/// The authors' ratio, and whether ours is as good.
fn judged(panel: &Panel, published: &PublishedRatio, least: f64, most: f64) -> String {
    let PublishedRatio { low, high, .. } = published;
    let range = high.map_or(format!("{low:.2} or more"), |high| format!("{low:.2} to {high:.2}"));
    let (worst, best) = if panel.unit.is_rate() { (least, most) } else { (-most, -least) };
    let limit = if panel.unit.is_rate() { *low } else { -high.unwrap_or(*low) };
    let verdict = match () {
        () if worst >= limit => "reached here",
        () if best >= limit => "reached here in part",
        () => "not reached here",
    };
    format!("Published for the same ratio: {range}, on the machines of that study; {verdict}.")
}

/// Where a line stands on an axis that it does not run along.
fn value<'a>(series: &'a Series, axis: &str) -> Option<&'a str> {
    series.measured().find_map(|(_, record)| record.point.get(axis).map(String::as_str))
}

/// Whether it is the line of `to` where all else is the same.
fn is_counterpart(panel: &Panel, other: &Series, own: &Series, to: &str) -> bool {
    let axis = &panel.against.name;
    let rest = |series: &Series| {
        let (_, record) = series.measured().next()?;
        let mut point = record.point.clone();
        point.retain(|name, _| name != axis && *name != panel.x);
        Some((point, record.run.clone()))
    };
    value(other, axis) == Some(to) && rest(other) == rest(own)
}

/// How a line goes from its first value to its last.
fn along(panel: &Panel, series: &Series) -> Option<String> {
    let (first, from) = series.measured().next()?;
    let (last, to) = series.measured().next_back().filter(|(last, _)| *last != first)?;
    let (metric, x) = (&panel.metric, &panel.x);
    let name = if series.name.is_empty() { String::new() } else { format!(" of {}", series.name) };
    let change = match ratio(to, from) {
        _ if from.interval.meets(&to.interval) => "stays within the noise".into(),
        ratio if ratio >= 1.0 => format!("grows {ratio:.2} times"),
        ratio => format!("falls to {ratio:.2}"),
    };
    let (first, last) = (&panel.values[first], &panel.values[last]);
    Some(format!("{metric}{name} {change} from {x} {first} to {last}."))
}

/// What the authors saw along the same axis.
fn published(panel: &Panel) -> Option<String> {
    let at = |value: &String| panel.published.iter().find(|p| p.at.get(&panel.x) == Some(value));
    let from = at(panel.values.first()?)?;
    let to = at(panel.values.last()?).filter(|to| *to != from)?;
    let ratio = to.value / from.value;
    Some(format!("Published for the same step: {ratio:.2} times, on the machines of that study."))
}

/// The best fraction of what the machine can do.
fn limits(panel: &Panel) -> Option<String> {
    let records = panel.series.iter().flat_map(|series| series.measured());
    let fractions = records.filter_map(|(_, record)| Some((record.fraction()?, record)));
    let (fraction, record) = fractions.max_by(|a, b| a.0.total_cmp(&b.0))?;
    let limit = record.limit.as_ref()?;
    let unit = panel.unit.name();
    let most = super::figure(limit.value);
    Some(format!("The best reaches {fraction:.2} of the limit \"{}\" ({most} {unit}).", limit.name))
}

fn noise(panel: &Panel) -> Option<String> {
    let all: Vec<_> = panel.series.iter().flat_map(|series| series.measured()).collect();
    let noisy = all.iter().filter(|(_, record)| record.interval.is_noisy()).count();
    let metric = &panel.metric;
    let words = "intervals wider than a quarter of their median: measure again, more often";
    (noisy > 0).then(|| format!("{noisy} of {} results of {metric} have {words}.", all.len()))
}

#[cfg(test)]
mod tests {
    use crate::record::tests::sample;
    use crate::report::chapters;

    #[test]
    fn ratios_growth_limits_and_noise_are_told() {
        let at = |place, transfer, samples: &[f64]| {
            sample("transfer-size", &[("place", place), ("transfer", transfer)], samples)
        };
        let records = vec![
            at("local", "16k", &[99.0, 100.0, 101.0]),
            at("local", "2m", &[90.0, 100.0, 150.0]),
            at("space", "16k", &[49.0, 50.0, 51.0]),
            at("space", "2m", &[80.0]),
        ];
        let chapters = chapters(records).unwrap();
        let told = super::sentences(&chapters[0].panels[0]);
        assert_eq!(
            told,
            [
                "write of space is 0.50 (transfer 16k) to 0.80 (transfer 2m) of the local file \
                 system's.",
                "write of local stays within the noise from transfer 16k to 2m.",
                "write of space grows 1.60 times from transfer 16k to 2m.",
                "Published for the same step: 1.28 times, on the machines of that study.",
                "The best reaches 0.50 of the limit \"disk write\" (200 MiB/s).",
                "1 of 4 results of write have intervals wider than a quarter of their median: \
                 measure again, more often.",
            ]
        );
    }

    #[test]
    fn published_ratios_are_judged() {
        let at = |place, rows, samples: &[f64]| {
            let mut record = sample("db-stress", &[("place", place), ("rows", rows)], samples);
            record.metric = "update".into();
            record
        };
        let told = |space: [f64; 2]| {
            let records = vec![
                at("local", "1", &[100.0]),
                at("local", "2", &[100.0]),
                at("space", "1", &[space[0]]),
                at("space", "2", &[space[1]]),
            ];
            super::sentences(&chapters(records).unwrap()[0].panels[0])[1].clone()
        };
        let published = "Published for the same ratio: 0.80 to 0.85, on the machines of that study";
        assert_eq!(told([80.0, 90.0]), format!("{published}; reached here."));
        assert_eq!(told([79.0, 90.0]), format!("{published}; reached here in part."));
        assert_eq!(told([79.0, 70.0]), format!("{published}; not reached here."));
    }
}
