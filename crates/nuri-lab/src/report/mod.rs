//! Reports what was measured, from records alone, as a page or as Markdown.

pub mod drawing;
pub mod html;
pub mod markdown;
mod plot;
mod verdict;

use std::collections::BTreeMap;

use nuri_watch::unit::Unit;

use crate::plan::{Against, Plan, Published, PublishedRatio, built_in};
use crate::record::Record;
use crate::{LabError, Result, score};

/// One study's results.
pub struct Chapter {
    pub study: String,
    /// Of a study that comes with Nuri; a user's own has none.
    pub plan: Option<Plan>,
    pub panels: Vec<Panel>,
    /// The machines and versions that the records name, one line each.
    pub hosts: Vec<String>,
    /// Of all metrics together, where a study makes one.
    pub scores: Vec<String>,
    /// What a reader should know, each once.
    pub warnings: Vec<String>,
}

/// One metric of a study: a table and a plot.
pub struct Panel {
    pub metric: String,
    pub unit: Unit,
    /// What varies along the plot; its values in the order in which they were measured.
    pub x: String,
    pub values: Vec<String>,
    pub series: Vec<Series>,
    pub published: Vec<Published>,
    /// Which lines are compared, and what the authors printed of that.
    pub against: Against,
    pub ratios: Vec<PublishedRatio>,
}

/// One line of a plot; a record for each of the panel's values, where there is one.
pub struct Series {
    pub name: String,
    pub cells: Vec<Option<Record>>,
}

impl Series {
    /// The records that have samples, with the place of their value.
    pub fn measured(&self) -> impl DoubleEndedIterator<Item = (usize, &Record)> {
        let cells = self.cells.iter().enumerate();
        cells.filter_map(|(i, cell)| Some((i, cell.as_ref().filter(|r| !r.samples.is_empty())?)))
    }
}

/// Sorts records into chapters, in the order in which studies appear.
pub fn chapters(records: Vec<Record>) -> Result<Vec<Chapter>> {
    if records.is_empty() {
        return Err(LabError::new("the runs hold no results"));
    }
    let plans = built_in()?;
    let mut by_study: Vec<(String, Vec<Record>)> = Vec::new();
    for record in records {
        match by_study.iter_mut().find(|(study, _)| *study == record.study) {
            Some((_, own)) => own.push(record),
            None => by_study.push((record.study.clone(), vec![record])),
        }
    }
    let plan_of = |study: &str| plans.iter().find(|plan| plan.study == study).cloned();
    Ok(by_study.into_iter().map(|(study, own)| chapter(plan_of(&study), study, own)).collect())
}

fn chapter(plan: Option<Plan>, study: String, records: Vec<Record>) -> Chapter {
    let mut hosts = Vec::new();
    let mut warnings = Vec::new();
    for record in &records {
        add_once(&mut hosts, host_line(record));
        // The tables show intervals, and the verdicts count the wide ones.
        for warning in record.warnings.iter().filter(|text| !text.starts_with("noisy")) {
            add_once(&mut warnings, format!("{}: {warning}", place(record)));
        }
        if let Some(why) = &record.partial {
            add_once(&mut warnings, format!("{}: not whole: {why}", place(record)));
        }
    }
    let x = plan.as_ref().map_or_else(|| widest_axis(&records), |plan| plan.report.x.clone());
    let mut metrics = Vec::new();
    for record in &records {
        add_once(&mut metrics, (record.metric.clone(), record.unit));
    }
    let several = records.iter().any(|record| record.run != records[0].run);
    let published = plan.as_ref().map_or(&[][..], |plan| &plan.published);
    let panels = metrics.into_iter().map(|(metric, unit)| {
        let own = records.iter().filter(|r| (&r.metric, r.unit) == (&metric, unit));
        let (values, series) = lines(&x, own, several);
        let mut published = published.to_vec();
        published.retain(|p| p.metric == metric && p.unit == unit);
        let mut ratios = plan.as_ref().map_or_else(Vec::new, |plan| plan.published_ratio.clone());
        ratios.retain(|ratio| ratio.metric == metric);
        let against = plan.as_ref().map_or_else(Against::default, |p| p.report.against.clone());
        Panel { metric, unit, x: x.clone(), values, series, published, against, ratios }
    });
    let panels = panels.collect();
    Chapter { panels, scores: score::lines(&records), study, plan, hosts, warnings }
}

fn add_once<T: PartialEq>(all: &mut Vec<T>, one: T) {
    if !all.contains(&one) {
        all.push(one);
    }
}

/// The name with most values, where no plan tells what to plot along.
fn widest_axis(records: &[Record]) -> String {
    let mut values: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, value) in records.iter().flat_map(|record| &record.point) {
        add_once(values.entry(name).or_default(), value);
    }
    let widest = values.into_iter().max_by_key(|(_, values)| values.len());
    widest.map_or_else(String::new, |(name, _)| name.to_string())
}

/// The values along the plot, and a line for each combination of what else was varied.
fn lines<'a>(
    x: &str,
    records: impl Iterator<Item = &'a Record>,
    several_runs: bool,
) -> (Vec<String>, Vec<Series>) {
    let (mut values, mut named): (Vec<String>, Vec<(String, &Record)>) = (Vec::new(), Vec::new());
    for record in records {
        add_once(&mut values, x_of(record, x));
        let mut words: Vec<&str> =
            record.point.iter().filter(|(name, _)| *name != x).map(|(_, v)| v.as_str()).collect();
        if several_runs {
            words.push(&record.run);
        }
        named.push((words.join(", "), record));
    }
    let mut series: Vec<Series> = Vec::new();
    for (name, record) in named {
        let cell = values.iter().position(|value| *value == x_of(record, x));
        if !series.iter().any(|own| own.name == name) {
            series.push(Series { name: name.clone(), cells: vec![None; values.len()] });
        }
        let own = series.iter_mut().find(|own| own.name == name);
        // The last word counts where one point was measured twice.
        if let (Some(own), Some(cell)) = (own, cell) {
            own.cells[cell] = Some(record.clone());
        }
    }
    (values, series)
}

fn x_of(record: &Record, x: &str) -> String {
    record.point.get(x).cloned().unwrap_or_default()
}

fn place(record: &Record) -> String {
    let words: Vec<_> =
        record.point.iter().map(|(name, value)| format!("{name} {value}")).collect();
    format!("{} at {}", record.metric, words.join(", "))
}

fn host_line(record: &Record) -> String {
    let host = &record.host;
    format!(
        "{}: {} x {}, {} MiB, {}; {} on {}; Nuri {}; {}",
        host.name,
        host.cores,
        host.cpu,
        host.memory_mib,
        host.kernel,
        host.file_system,
        host.device,
        record.version,
        record.at.get(..10).unwrap_or(&record.at),
    )
}

/// A figure with three digits that count.
fn figure(value: f64) -> String {
    if !value.is_finite() {
        return "-".into();
    }
    match value.abs() {
        0.0 => "0".into(),
        v if v >= 100.0 => thousands(value.round()),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

fn thousands(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = if value < 0.0 { String::from("-") } else { String::new() };
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The table of a panel: names of columns, then rows; the same for both kinds of report.
fn table(panel: &Panel) -> (Vec<String>, Vec<Vec<String>>) {
    let line = if panel.series.iter().all(|s| s.name.is_empty()) { "" } else { "of" };
    let unit = panel.unit.name();
    let mut head: Vec<String> =
        [panel.x.as_str(), line, unit, "interval", "of limit", "CPU", "wire"]
            .map(String::from)
            .to_vec();
    if !panel.published.is_empty() {
        head.push("published".into());
    }
    let mut rows = Vec::new();
    for (i, value) in panel.values.iter().enumerate() {
        for series in &panel.series {
            let Some(record) = &series.cells[i] else { continue };
            rows.push(row(panel, value, series, record));
        }
    }
    (head, rows)
}

fn row(panel: &Panel, value: &str, series: &Series, record: &Record) -> Vec<String> {
    let interval = &record.interval;
    let limit = match (record.fraction(), &record.limit) {
        (Some(fraction), Some(limit)) => format!("{fraction:.2} {}", limit.name),
        _ => "-".into(),
    };
    let costs = &record.costs;
    let cpu = match (costs.cpu_seconds_per_gib, costs.cpu_us_per_op) {
        (Some(seconds), _) => format!("{seconds:.2} s/GiB"),
        (None, Some(micros)) => format!("{micros:.0} us/op"),
        (None, None) => "-".into(),
    };
    // What passed in other network namespaces was not seen.
    let wire = costs.wire_bytes_per_byte.filter(|bytes| *bytes >= 0.005);
    let wire = wire.map_or("-".into(), |bytes| format!("{bytes:.2}"));
    let mut cells = vec![
        value.to_string(),
        series.name.clone(),
        figure(interval.median),
        format!("{} to {}", figure(interval.low), figure(interval.high)),
        limit,
        cpu,
        wire,
    ];
    if !panel.published.is_empty() {
        let own = panel.published.iter().find(|p| p.at.iter().all(|at| is_at(record, at)));
        cells.push(own.map_or("-".into(), |p| figure(p.value)));
    }
    cells
}

fn is_at(record: &Record, (name, value): (&String, &String)) -> bool {
    record.point.get(name) == Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::sample;

    fn records() -> Vec<Record> {
        let at = |place, transfer, samples: &[f64]| {
            sample("transfer-size", &[("place", place), ("transfer", transfer)], samples)
        };
        vec![
            at("local", "16k", &[90.0, 100.0, 110.0]),
            at("local", "2m", &[190.0, 200.0, 210.0]),
            at("space", "16k", &[49.0, 50.0, 51.0]),
            at("space", "2m", &[180.0]),
        ]
    }

    #[test]
    fn records_become_lines_along_the_plans_axis() {
        let chapters = chapters(records()).unwrap();
        let panel = &chapters[0].panels[0];
        assert_eq!(
            (panel.x.as_str(), &panel.values[..]),
            ("transfer", &["16k", "2m"].map(String::from)[..])
        );
        let names: Vec<_> = panel.series.iter().map(|s| s.name.as_str()).collect();
        assert_eq!(names, ["local", "space"]);
        let (head, rows) = table(panel);
        assert_eq!(rows.len(), 4);
        assert_eq!(rows[1][..5], ["16k", "space", "50.0", "49.0 to 51.0", "0.25 disk write"]);
        assert_eq!((head[7].as_str(), rows[0][7].as_str()), ("published", "400"));
    }

    #[test]
    fn runs_of_one_study_stand_side_by_side() {
        let mut both = records();
        both.extend(records().into_iter().map(|record| Record { run: "r2".into(), ..record }));
        let chapters = chapters(both).unwrap();
        let names: Vec<_> = chapters[0].panels[0].series.iter().map(|s| s.name.as_str()).collect();
        assert_eq!(names, ["local, r1", "space, r1", "local, r2", "space, r2"]);
    }

    #[test]
    fn an_own_study_is_plotted_along_what_varies_most() {
        let own = |np: &str| sample("own", &[("np", np), ("place", "space")], &[1.0]);
        let chapters = chapters(vec![own("1"), own("2"), own("4")]).unwrap();
        assert_eq!(chapters[0].panels[0].x, "np");
        assert!(super::chapters(Vec::new()).is_err());
    }

    #[test]
    fn figures_have_three_digits_that_count() {
        let told = [0.0, 0.123, 1.234, 12.34, 123.4, 1234.0, 1_234_567.0, f64::NAN].map(figure);
        assert_eq!(told, ["0", "0.12", "1.23", "12.3", "123", "1,234", "1,234,567", "-"]);
    }
}
