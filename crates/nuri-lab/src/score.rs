//! A score as IO500 makes it: the geometric mean of bandwidths in GiB/s, of rates in thousands of
//! operations a second, and of these two. The phases are our own, so the score compares with itself
//! only.

use nuri_watch::unit::Unit;

use crate::plan::Point;
use crate::record::Record;

/// Of all phases at one point.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Score {
    gib_per_second: f64,
    thousands: f64,
    whole: f64,
}

/// None where a phase was not measured.
fn score<'a>(records: impl Iterator<Item = &'a Record>) -> Option<Score> {
    let (mut bandwidths, mut rates) = (Vec::new(), Vec::new());
    for record in records.filter(|record| is_part(record)) {
        let median = record.interval.median;
        match record.unit {
            Unit::MibPerSecond => bandwidths.push(median / 1024.0),
            _ => rates.push(median / 1000.0),
        }
    }
    let (gib_per_second, thousands) = match (bandwidths.len(), rates.len()) {
        (4, 7) => (geometric(&bandwidths), geometric(&rates)),
        _ => return None,
    };
    let whole = (gib_per_second * thousands).sqrt();
    whole.is_finite().then_some(Score { gib_per_second, thousands, whole })
}

/// A line for each point that has a score, and what the space's is of the local one.
pub(crate) fn lines(records: &[Record]) -> Vec<String> {
    let mut points: Vec<(&str, &Point)> = Vec::new();
    for record in records {
        if !points.contains(&(&record.run, &record.point)) {
            points.push((&record.run, &record.point));
        }
    }
    let at = |(run, point): (&str, &Point)| {
        score(records.iter().filter(|r| r.run == run && r.point == *point))
    };
    let line = |(run, point): &(&str, &Point)| {
        let own = at((run, point))?;
        let mut local = (*point).clone();
        local.insert("place".into(), "local".into());
        let local = at((run, &local)).filter(|_| point.get("place").is_some_and(|p| p == "space"));
        let ratio =
            local.map(|local| format!("; {:.2} of the local one's", own.whole / local.whole));
        let words: Vec<_> = point.iter().map(|(name, value)| format!("{name} {value}")).collect();
        let place = if words.is_empty() { String::new() } else { words.join(", ") + ": " };
        Some(format!("{place}{}{}", told(&own), ratio.unwrap_or_default()))
    };
    points.iter().filter_map(line).collect()
}

fn is_part(record: &Record) -> bool {
    ["ior-", "mdtest-"].iter().any(|part| record.metric.starts_with(part))
}

fn geometric(values: &[f64]) -> f64 {
    (values.iter().map(|value| value.ln()).sum::<f64>() / values.len() as f64).exp()
}

/// In words.
fn told(score: &Score) -> String {
    let Score { gib_per_second, thousands, whole } = score;
    format!(
        "io500-like score {whole:.2} (no official score): {gib_per_second:.3} GiB/s, \
         {thousands:.2} thousand operations a second"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::sample;

    #[test]
    fn a_score_is_the_geometric_mean_of_all_phases() {
        let of = |metric: &str, unit, value: f64| {
            let mut record = sample("io500-like", &[], &[value]);
            (record.metric, record.unit) = (metric.into(), unit);
            record
        };
        let mut records = vec![of("write", Unit::MibPerSecond, 5.0)];
        for value in [1024.0, 4096.0, 1024.0, 4096.0] {
            records.push(of("ior-easy-write", Unit::MibPerSecond, value));
        }
        for value in [1000.0, 64_000.0, 8000.0, 8000.0, 8000.0, 8000.0, 8000.0] {
            records.push(of("mdtest-easy-stat", Unit::OpsPerSecond, value));
        }
        let found = score(records.iter()).unwrap();
        assert!((found.gib_per_second - 2.0).abs() < 1e-9, "{found:?}");
        assert!((found.thousands - 8.0).abs() < 1e-9 && (found.whole - 4.0).abs() < 1e-9);
        assert!(told(&found).contains("4.00 (no official score)"));
        assert_eq!(lines(&records).len(), 1);
        let at = |place: &str, factor: f64| {
            let mut records = records.clone();
            for record in &mut records {
                record.point.insert("place".into(), place.into());
                record.interval.median *= factor;
            }
            records
        };
        let both = lines(&[at("local", 1.0), at("space", 0.5)].concat());
        assert!(both[0].starts_with("place local: io500-like score 4.00"), "{both:?}");
        assert!(both[1].ends_with("; 0.50 of the local one's"), "{both:?}");
        assert_eq!(score(records[1..].iter().take(10)), None, "a phase is missing");
    }
}
