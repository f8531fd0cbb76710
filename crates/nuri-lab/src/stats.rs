//! Medians and intervals of a few noisy samples.

use nuri_watch::normal::median_of_sorted;
use serde::{Deserialize, Deserializer, Serialize};

/// The median of samples and an interval that holds the true one.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Interval {
    #[serde(deserialize_with = "number_or_null")]
    pub low: f64,
    #[serde(deserialize_with = "number_or_null")]
    pub median: f64,
    #[serde(deserialize_with = "number_or_null")]
    pub high: f64,
}

/// JSON writes what is not a number as null.
fn number_or_null<'de, D: Deserializer<'de>>(source: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(source)?.unwrap_or(f64::NAN))
}

/// Samples whose interval is wider than this share of the median are called noisy.
pub const NOISY: f64 = 0.25;

impl Interval {
    /// From order statistics: the narrowest pair around the median that holds it with 95 %, all
    /// samples where there are fewer than six. Without samples all are not a number.
    pub fn of(samples: &[f64]) -> Interval {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        if sorted.is_empty() {
            return Interval { low: f64::NAN, median: f64::NAN, high: f64::NAN };
        }
        let (low, high) = ranks(sorted.len());
        Interval { low: sorted[low], median: median_of_sorted(&sorted), high: sorted[high] }
    }

    pub fn is_noisy(&self) -> bool {
        self.high - self.low > NOISY * self.median
    }

    /// Whether the two could be the same.
    pub fn meets(&self, other: &Interval) -> bool {
        self.low <= other.high && other.low <= self.high
    }
}

/// Places of the interval's ends among so many sorted samples: the number of samples below the
/// true median follows a binomial distribution with one half.
fn ranks(n: usize) -> (usize, usize) {
    let mut exactly = 0.5f64.powi(n as i32);
    let (mut at_most, mut low) = (exactly, 0);
    for k in 1..n / 2 {
        exactly *= (n - k + 1) as f64 / k as f64;
        at_most += exactly;
        if at_most > 0.025 {
            break;
        }
        low = k;
    }
    (low, n - 1 - low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_lies_in_the_middle() {
        assert_eq!(Interval::of(&[3.0, 1.0, 2.0]).median, 2.0);
        assert_eq!(Interval::of(&[4.0, 1.0, 2.0, 3.0]).median, 2.5);
        assert!(Interval::of(&[]).median.is_nan());
        assert_eq!(Interval::of(&[7.0]), Interval { low: 7.0, median: 7.0, high: 7.0 });
    }

    #[test]
    fn an_interval_without_samples_survives_json() {
        let text = serde_json::to_string(&Interval::of(&[])).unwrap();
        let back: Interval = serde_json::from_str(&text).unwrap();
        assert!(back.low.is_nan() && back.median.is_nan() && back.high.is_nan());
        assert!(!back.is_noisy() && !back.meets(&back));
        assert!(serde_json::from_str::<Interval>("{}").is_err());
    }

    /// The places in tables of confidence intervals for medians, counted from 0.
    #[test]
    fn intervals_are_those_of_the_tables() {
        assert_eq!(ranks(5), (0, 4));
        assert_eq!(ranks(6), (0, 5));
        assert_eq!(ranks(8), (0, 7));
        assert_eq!(ranks(9), (1, 7));
        assert_eq!(ranks(10), (1, 8));
        assert_eq!(ranks(20), (5, 14));
    }

    #[test]
    fn noise_is_a_wide_interval() {
        assert!(!Interval::of(&[100.0, 101.0, 102.0]).is_noisy());
        assert!(Interval::of(&[80.0, 100.0, 120.0]).is_noisy());
        assert!(Interval::of(&[1.0, 2.0]).meets(&Interval::of(&[2.0, 3.0])));
        assert!(!Interval::of(&[1.0, 2.0]).meets(&Interval::of(&[2.1, 3.0])));
    }
}
