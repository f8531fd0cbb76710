//! What is normal for a figure, and since when the figure is not normal. Pure.
//!
//! The normal value is the median of the measurements of the last days. The spread is the median
//! distance from it. A figure that was slow for long is no part of either. A figure is slow once
//! several measurements in a row were below the spread, because one alone is noise.

use nuri_rules::broken;

/// How far back the normal looks, in seconds.
pub const WINDOW: u64 = 14 * 86_400;
/// Looks from which on there is a normal.
pub const LEARNING: usize = 8;
/// Looks in a row that make slowness.
const CONFIRM: usize = 3;
/// A clock that was set back leaves looks of later times.
const LATER: u64 = 3600;

/// Below the median by less is never slow, and by more always.
const LEAST: f64 = 0.15;
const MOST: f64 = 0.6;
/// Spreads below the median that are slow; 1.48 medians of distance are a standard deviation.
const SPREADS: f64 = 4.0 * 1.48;

/// A look: when, in seconds since 1970, and a rate.
pub type Point = (u64, f64);

/// How a figure stands.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Verdict {
    /// Too few looks yet.
    Learning(usize),
    Normal {
        median: f64,
        low: f64,
    },
    Slow {
        since: u64,
        median: f64,
        /// Of the looks since.
        now: f64,
    },
}

impl Verdict {
    /// With its figures in another measure.
    pub fn map(self, measure: impl Fn(f64) -> f64) -> Verdict {
        match self {
            Verdict::Learning(looks) => Verdict::Learning(looks),
            Verdict::Normal { median, low } => {
                Verdict::Normal { median: measure(median), low: measure(low) }
            }
            Verdict::Slow { since, median, now } => {
                Verdict::Slow { since, median: measure(median), now: measure(now) }
            }
        }
    }
}

/// Judges a figure from its looks, in their order.
pub fn judge(looks: &[Point]) -> Verdict {
    let (mut normal, mut slow): (Vec<Point>, Vec<Point>) = Default::default();
    for &(time, value) in looks {
        normal.retain(|(then, _)| *then + WINDOW >= time && *then <= time + LATER);
        let is_low = normal.len() >= LEARNING && value < low(&normal);
        if is_low && !broken!("never_slow") {
            slow.push((time, value));
            continue;
        }
        // What began to be slow and did not stay so was noise, and as normal as the rest.
        if slow.len() < CONFIRM {
            normal.append(&mut slow);
        }
        slow.clear();
        normal.push((time, value));
    }
    if normal.len() < LEARNING {
        return Verdict::Learning(normal.len() + slow.len());
    }
    let median = median(normal.iter().map(|(_, value)| *value));
    match slow.first() {
        Some((since, _)) if slow.len() >= CONFIRM => {
            let now = self::median(slow.iter().map(|(_, value)| *value));
            Verdict::Slow { since: *since, median, now }
        }
        _ => Verdict::Normal { median, low: low(&normal) },
    }
}

/// Below it is slow.
fn low(normal: &[Point]) -> f64 {
    let values = || normal.iter().map(|(_, value)| *value);
    let middle = median(values());
    let spread = median(values().map(|value| (value - middle).abs()));
    (middle - SPREADS * spread).clamp((1.0 - MOST) * middle, (1.0 - LEAST) * middle)
}

/// Of at least one.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    median_of_sorted(&sorted)
}

/// Of at least one sample.
pub fn median_of_sorted(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    match sorted.len() % 2 {
        1 => sorted[middle],
        _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3600;

    /// Looks an hour apart.
    fn hourly(values: &[f64]) -> Vec<Point> {
        values.iter().enumerate().map(|(i, value)| (i as u64 * HOUR, *value)).collect()
    }

    fn steady(value: f64, count: usize) -> Vec<f64> {
        (0..count).map(|i| value * (1.0 + 0.02 * (i % 3) as f64)).collect()
    }

    #[test]
    fn a_normal_is_learnt_first() {
        assert_eq!(judge(&[]), Verdict::Learning(0));
        assert_eq!(judge(&hourly(&steady(100.0, 7))), Verdict::Learning(7));
        let Verdict::Normal { median, low } = judge(&hourly(&steady(100.0, 8))) else { panic!() };
        assert!((100.0..105.0).contains(&median) && (80.0..90.0).contains(&low), "{median} {low}");
    }

    /// Catches `broken!("never_slow")`.
    #[test]
    fn slow_is_what_stays_slow() {
        let mut values = steady(100.0, 20);
        values.extend([50.0, 60.0]);
        assert!(matches!(judge(&hourly(&values)), Verdict::Normal { .. }), "it may be noise");
        values.push(55.0);
        let Verdict::Slow { since, median, now } = judge(&hourly(&values)) else { panic!() };
        assert_eq!((since, now), (20 * HOUR, 55.0));
        assert!((100.0..105.0).contains(&median));
        values.push(101.0);
        assert!(matches!(judge(&hourly(&values)), Verdict::Normal { .. }), "it is back");
    }

    #[test]
    fn noise_widens_what_is_normal_but_not_without_end() {
        let noisy: Vec<f64> = (0..30).map(|i| 100.0 + 40.0 * f64::from(i % 3 - 1)).collect();
        let then = |more: f64| judge(&hourly(&[&noisy[..], &[more; 3]].concat()));
        assert!(matches!(then(60.0), Verdict::Normal { .. }));
        assert!(matches!(then(30.0), Verdict::Slow { .. }));
    }

    #[test]
    fn what_stays_slow_for_long_becomes_normal() {
        let values = [steady(100.0, 24), steady(50.0, 24 * 16)].concat();
        let Verdict::Normal { median, .. } = judge(&hourly(&values)) else { panic!() };
        assert!(median < 60.0);
    }

    #[test]
    fn a_clock_that_jumps_changes_no_verdict_for_long() {
        let mut looks = hourly(&steady(100.0, 20));
        // A day with a clock a year ahead, then the right time again.
        let later = |i: u64| (366 * 86_400 + i * HOUR, 100.0);
        looks.extend((0..10).map(later));
        looks.extend((20..40).map(|i| (i * HOUR, 100.0)));
        assert!(matches!(judge(&looks), Verdict::Normal { .. }));
    }
}
