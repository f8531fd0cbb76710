//! Finds the best of several settings, and measures the bad ones little: successive halving. After
//! each round over all settings that are left, the worse half drops out. Pure.

use nuri_watch::normal::median_of_sorted;

use crate::stats::Interval;

/// The setting to beat stays to the end.
const REFERENCE: usize = 0;
/// Fewer samples say nothing, where the race ended early.
const FEWEST: usize = 3;
/// Rounds over the last two.
const LAST: usize = 5;

/// A race between settings, by number; higher scores are better.
#[derive(Debug)]
pub(crate) struct Race {
    scores: Vec<Vec<f64>>,
    left: Vec<usize>,
}

/// How it ended.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Outcome {
    /// Nothing was clearly better than the reference.
    Stay,
    /// This setting, so many times as good as the reference.
    Better(usize, f64),
}

impl Race {
    /// Between at least one; number 0 is the reference.
    pub(crate) fn new(settings: usize) -> Race {
        Race { scores: vec![Vec::new(); settings], left: (0..settings).collect() }
    }

    pub(crate) fn scores(&self, setting: usize) -> &[f64] {
        &self.scores[setting]
    }

    /// Who may still win.
    pub(crate) fn left(&self) -> &[usize] {
        &self.left
    }

    /// Who is to be measured next; none where the race is over.
    pub(crate) fn next(&mut self) -> Option<usize> {
        loop {
            let rounds = self.rounds();
            let late = self.left.iter().find(|setting| self.scores[**setting].len() < rounds);
            match late {
                Some(setting) => return Some(*setting),
                None if self.left.len() <= 2 => return None,
                None => self.halve(),
            }
        }
    }

    pub(crate) fn note(&mut self, setting: usize, score: f64) {
        self.scores[setting].push(score);
    }

    /// Measurements that are still to come, at most.
    pub(crate) fn ahead(&self) -> usize {
        let mut race = Race { scores: self.scores.clone(), left: self.left.clone() };
        let mut count = 0;
        while let Some(setting) = race.next() {
            race.note(setting, 0.0);
            count += 1;
        }
        count
    }

    /// That those who are left have behind them before anybody goes.
    fn rounds(&self) -> usize {
        let mut rounds = 1;
        let mut left = self.scores.len();
        while left > self.left.len() {
            left = left.div_ceil(2).max(2);
            rounds += 1;
        }
        if self.left.len() <= 2 { rounds.max(LAST) } else { rounds }
    }

    fn halve(&mut self) {
        let keep = self.left.len().div_ceil(2).max(2);
        let mut others = self.left.clone();
        others.retain(|setting| *setting != REFERENCE);
        others.sort_by(|a, b| self.median(*b).total_cmp(&self.median(*a)));
        others.truncate(keep - 1);
        self.left = std::iter::once(REFERENCE).chain(others).collect();
    }

    pub(crate) fn median(&self, setting: usize) -> f64 {
        let mut sorted = self.scores[setting].clone();
        sorted.sort_by(f64::total_cmp);
        if sorted.is_empty() { f64::NAN } else { median_of_sorted(&sorted) }
    }

    /// Better is what is so beyond the noise of both.
    pub(crate) fn outcome(&self) -> Outcome {
        let others = self.left.iter().copied().filter(|setting| *setting != REFERENCE);
        let best = others.max_by(|a, b| self.median(*a).total_cmp(&self.median(*b)));
        let Some(best) = best else { return Outcome::Stay };
        let [reference, other] =
            [REFERENCE, best].map(|setting| Interval::of(&self.scores[setting]));
        let known = [REFERENCE, best].iter().all(|i| self.scores[*i].len() >= FEWEST);
        if known && other.low > reference.high {
            return Outcome::Better(best, other.median / reference.median);
        }
        Outcome::Stay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a race in which settings are as good as told, with noise of so many percent.
    fn run(good: &[f64], noise: f64) -> (Race, usize) {
        let mut race = Race::new(good.len());
        let mut rng = nuri_io::rng::Rng::new(7);
        let mut count = 0;
        while let Some(setting) = race.next() {
            let random = rng.below(2001) as f64 / 1000.0 - 1.0;
            race.note(setting, good[setting] * (1.0 + noise / 100.0 * random));
            count += 1;
        }
        (race, count)
    }

    #[test]
    fn the_best_is_found_with_few_measurements() {
        let good = [1.0, 0.5, 1.1, 0.9, 2.0, 0.2, 1.3, 1.0, 1.9, 0.7, 0.4, 1.0, 1.2];
        let expected = Race::new(good.len()).ahead();
        let (race, count) = run(&good, 3.0);
        let Outcome::Better(4, times) = race.outcome() else { panic!("{race:?}") };
        assert!((1.8..2.2).contains(&times), "{times}");
        assert_eq!(count, expected);
        assert!(count < 13 * LAST / 2, "{count}");
        assert_eq!(race.scores(5).len(), 1, "the worst is measured once");
    }

    #[test]
    fn what_is_not_clearly_better_is_not_chosen() {
        assert_eq!(run(&[1.0, 1.01, 0.99, 1.02], 10.0).0.outcome(), Outcome::Stay);
        assert_eq!(run(&[1.0, 0.5], 0.0).0.outcome(), Outcome::Stay);
        assert_eq!(run(&[1.0], 0.0).0.outcome(), Outcome::Stay);
        let mut cut = Race::new(2);
        (0..4).for_each(|i| cut.note(i % 2, [1.0, 9.0][i % 2]));
        assert_eq!(cut.outcome(), Outcome::Stay, "two samples each");
        (0..2).for_each(|i| cut.note(i, [1.0, 9.0][i]));
        assert_eq!(cut.outcome(), Outcome::Better(1, 9.0));
    }
}
