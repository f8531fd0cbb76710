//! A panel in plain words: ratios within one run, which count, where absolute figures drift.

use super::{Panel, Series};
use crate::record::Record;

/// One sentence each; none where nothing was measured.
pub(super) fn sentences(panel: &Panel) -> Vec<String> {
    let mut all = Vec::new();
    all.extend(against_local(panel));
    all.extend(panel.series.iter().filter_map(|series| along(panel, series)));
    all.extend(published(panel));
    all.extend(limits(panel));
    all.extend(noise(panel));
    all
}

fn ratio(of: &Record, to: &Record) -> f64 {
    of.interval.median / to.interval.median
}

/// The space beside the local file system, at the same point.
fn against_local(panel: &Panel) -> Vec<String> {
    let mut told = Vec::new();
    for space in panel.series.iter().filter(|series| is_of(series, "space")) {
        let local = panel.series.iter().find(|series| is_counterpart(series, space));
        let Some(local) = local else { continue };
        let mut ratios: Vec<(f64, &str)> = space
            .measured()
            .filter_map(|(i, own)| Some((i, own, local.cells[i].as_ref()?)))
            .filter(|(_, _, local)| !local.samples.is_empty())
            .map(|(i, own, local)| (ratio(own, local), panel.values[i].as_str()))
            .collect();
        ratios.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (Some(least), Some(most)) = (ratios.first(), ratios.last()) else { continue };
        let (metric, name, x) = (&panel.metric, &space.name, &panel.x);
        told.push(format!(
            "{metric} of {name} is {:.2} ({x} {}) to {:.2} ({x} {}) of the local file system's.",
            least.0, least.1, most.0, most.1
        ));
    }
    told
}

fn place(series: &Series) -> Option<&str> {
    series.measured().find_map(|(_, record)| record.point.get("place").map(String::as_str))
}

fn is_of(series: &Series, name: &str) -> bool {
    place(series) == Some(name)
}

/// Whether it is the local line where all else is the same.
fn is_counterpart(series: &Series, space: &Series) -> bool {
    let rest = |series: &Series| series.name.replace("local", "space");
    is_of(series, "local") && rest(series) == rest(space)
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
}
