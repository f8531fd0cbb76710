//! The search: one axis after the other. On each axis there is a race between the best choice so
//! far and the choices that differ from it there.
//!
//! A last race compares the settings from the start with the best ones found, with fresh
//! measurements. The reason: the best of many is partly the luckiest. Pure but for its [`Bench`].

use std::time::Duration;

use super::halving::{Outcome, Race};
use super::settings::{Axis, Choice, Of};
use crate::Result;

/// Measures.
pub(crate) trait Bench {
    /// How good a choice is; higher is better.
    fn measure(&mut self, choice: &Choice) -> Result<f64>;
    /// Since the search began.
    fn elapsed(&self) -> Duration;
    /// A line of the trail.
    fn tell(&self, line: &str);
}

/// What is searched.
pub(crate) struct Plan {
    pub(crate) before: Choice,
    pub(crate) axes: Vec<Axis>,
    pub(crate) of: Of,
    pub(crate) budget: Duration,
    pub(crate) unit: &'static str,
}

/// A race, and how it went.
pub(crate) struct Stage {
    /// None where what was found is measured once more.
    pub(crate) axis: Option<Axis>,
    /// The first was to be beaten.
    pub(crate) choices: Vec<Choice>,
    pub(crate) race: Race,
    /// Time was up before the race was over.
    pub(crate) is_cut: bool,
}

/// What was found.
pub(crate) struct Found {
    pub(crate) before: Choice,
    pub(crate) stages: Vec<Stage>,
    pub(crate) better: Option<(Choice, f64)>,
}

impl Stage {
    fn new(axis: Option<Axis>, choices: Vec<Choice>) -> Stage {
        let race = Race::new(choices.len());
        Stage { axis, choices, race, is_cut: false }
    }

    pub(crate) fn name(&self) -> &'static str {
        self.axis.map_or("all together", Axis::name)
    }

    /// What was clearly better than what was to be beaten, and how many times as good.
    pub(crate) fn better(&self) -> Option<(Choice, f64)> {
        match self.race.outcome() {
            Outcome::Better(i, times) => Some((self.choices[i], times)),
            Outcome::Stay => None,
        }
    }

    /// A choice in the words of this race.
    pub(crate) fn words(&self, choice: &Choice) -> String {
        match self.axis {
            Some(axis) => axis.words(choice),
            None => choice.words(&self.choices[1].differs(&self.choices[0])),
        }
    }
}

impl Found {
    pub(crate) fn is_cut(&self) -> bool {
        self.stages.iter().any(|stage| stage.is_cut)
    }
}

impl Plan {
    /// Settings and measurements, at most.
    pub(crate) fn size(&self) -> (usize, usize) {
        let counts = self.axes.iter().map(|axis| axis.choices(self.before, self.of).len());
        let settings: usize = counts.clone().map(|count| count - 1).sum();
        (settings + 1, counts.map(measurements).sum::<usize>() + measurements(2))
    }
}

/// Of a race between so many.
fn measurements(choices: usize) -> usize {
    Race::new(choices).ahead()
}

/// Searches.
///
/// # Errors
/// A measurement's.
pub(crate) fn search(plan: &Plan, bench: &mut dyn Bench) -> Result<Found> {
    let mut found = Found { before: plan.before, stages: Vec::new(), better: None };
    let (mut best, mut longest) = (plan.before, Duration::ZERO);
    for (i, axis) in plan.axes.iter().enumerate() {
        let stage = Stage::new(Some(*axis), axis.choices(best, plan.of));
        // The time that is left is shared by what is to come.
        let later = plan.axes[i + 1..].iter().map(|axis| axis.choices(best, plan.of).len());
        let later = later.map(measurements).sum::<usize>() + measurements(2);
        let own = measurements(stage.choices.len());
        let left = plan.budget.saturating_sub(bench.elapsed());
        let until = bench.elapsed() + left.mul_f64(own as f64 / (own + later) as f64);
        let stage = stage.run(bench, plan.unit, until, &mut longest)?;
        best = stage.better().map_or(best, |(choice, _)| choice);
        found.stages.push(stage);
    }
    if best != plan.before {
        let last = Stage::new(None, vec![plan.before, best]);
        let last = last.run(bench, plan.unit, plan.budget, &mut longest)?;
        found.better = last.better();
        found.stages.push(last);
    }
    Ok(found)
}

impl Stage {
    fn run(
        mut self,
        bench: &mut dyn Bench,
        unit: &str,
        until: Duration,
        longest: &mut Duration,
    ) -> Result<Stage> {
        bench.tell(&format!("{}: {} settings", self.name(), self.choices.len()));
        loop {
            let before = self.race.left().to_vec();
            let next = self.race.next();
            let gone = before.iter().filter(|i| !self.race.left().contains(i));
            gone.for_each(|i| bench.tell(&format!("  out: {}", self.words(&self.choices[*i]))));
            let Some(i) = next else { break };
            let begun = bench.elapsed();
            if begun + *longest > until {
                self.is_cut = true;
                break;
            }
            let score = bench.measure(&self.choices[i])?;
            *longest = (*longest).max(bench.elapsed().saturating_sub(begun));
            self.race.note(i, score);
            let (words, left) = (self.words(&self.choices[i]), self.race.ahead());
            bench.tell(&format!("  {words}: {score:.0} {unit}; {left} measurements left"));
        }
        bench.tell(&format!("  {}", self.verdict()));
        Ok(self)
    }

    /// In one sentence.
    pub(crate) fn verdict(&self) -> String {
        let now = self.words(&self.choices[0]);
        match self.better() {
            Some((choice, times)) => {
                format!("{}: {times:.2} times as fast as {now}", self.words(&choice))
            }
            None if self.axis.is_none() => {
                format!("{} is not clearly better than {now}", self.words(&self.choices[1]))
            }
            None => format!("nothing is clearly better than {now}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use nuri_io::rng::Rng;

    use super::super::settings::tests::{plain, with};
    use super::*;

    const ALL: [Axis; 5] =
        [Axis::Layout, Axis::Buffer, Axis::Streams, Axis::ReadAhead, Axis::WriteBehind];

    /// As good as told, with noise of so many percent; each measurement takes a second.
    struct Fake<F> {
        good: F,
        noise: f64,
        rng: Rng,
        seconds: u64,
        told: RefCell<Vec<String>>,
    }

    impl<F: Fn(&Choice, u64) -> f64> Bench for Fake<F> {
        fn measure(&mut self, choice: &Choice) -> Result<f64> {
            self.seconds += 1;
            let random = self.rng.below(2001) as f64 / 1000.0 - 1.0;
            Ok((self.good)(choice, self.seconds) * (1.0 + self.noise / 100.0 * random))
        }

        fn elapsed(&self) -> Duration {
            Duration::from_secs(self.seconds)
        }

        fn tell(&self, line: &str) {
            self.told.borrow_mut().push(line.into());
        }
    }

    fn fake<F: Fn(&Choice, u64) -> f64>(noise: f64, good: F) -> Fake<F> {
        Fake { good, noise, rng: Rng::new(7), seconds: 0, told: RefCell::default() }
    }

    fn plan(before: Choice, seconds: u64) -> Plan {
        let budget = Duration::from_secs(seconds);
        Plan { before, axes: ALL.to_vec(), of: Of::Data, budget, unit: "MiB/s" }
    }

    #[test]
    fn what_is_bad_on_two_axes_is_bettered_on_both() {
        let mut before = with(Axis::WriteBehind, 4 << 20);
        before.layout.chunk = 64 << 10;
        let good = |choice: &Choice, _| {
            let slow = [Axis::Layout, Axis::WriteBehind].map(|axis| {
                let is_bad = axis.words(choice) == axis.words(&before);
                if is_bad { 0.5 } else { 1.0 }
            });
            100.0 * slow[0] * slow[1]
        };
        let mut bench = fake(5.0, good);
        let plan = plan(before, 1000);
        let found = search(&plan, &mut bench).unwrap();
        let (choice, times) = found.better.unwrap();
        assert_eq!(choice.differs(&before), [Axis::Layout, Axis::WriteBehind]);
        assert!((3.5..4.5).contains(&times), "{times}");
        assert!(!found.is_cut());
        assert_eq!(found.stages.len(), ALL.len() + 1);
        assert!(bench.seconds as usize <= plan.size().1, "{} measurements", bench.seconds);
        let told = bench.told.borrow().join("\n");
        assert!(
            told.contains("layout: 13 settings") && told.contains("  out: chunks of"),
            "{told}"
        );
        assert!(told.contains("all together: 2 settings"), "{told}");
        assert!(told.contains("nothing is clearly better than streams auto"), "{told}");
    }

    #[test]
    fn noise_alone_finds_nothing() {
        let found = search(&plan(plain(), 1000), &mut fake(20.0, |_, _| 100.0)).unwrap();
        assert!(found.better.is_none());
    }

    /// Luck of one stage does not last.
    #[test]
    fn what_is_not_better_once_more_is_not_taken() {
        let lucky = with(Axis::Streams, 8);
        let good = |choice: &Choice, seconds| {
            if *choice == lucky && seconds < 60 { 150.0 } else { 100.0 }
        };
        let mut plan = plan(plain(), 1000);
        plan.axes = vec![Axis::Streams];
        let mut bench = fake(1.0, good);
        bench.seconds = 40;
        let found = search(&plan, &mut bench).unwrap();
        assert_eq!(found.stages[0].better().map(|(choice, _)| choice), Some(lucky));
        assert!(found.better.is_none());
        let told = found.stages[1].verdict();
        assert_eq!(told, "streams 8 is not clearly better than streams auto");
    }

    /// Later axes and the last comparison get their part.
    #[test]
    fn time_is_shared() {
        let bad = with(Axis::WriteBehind, 4 << 20);
        let good = |choice: &Choice, _| if choice.mount == bad.mount { 50.0 } else { 100.0 };
        let mut bench = fake(1.0, good);
        let found = search(&plan(bad, 60), &mut bench).unwrap();
        assert!(bench.seconds <= 60, "{}", bench.seconds);
        assert!(found.is_cut());
        assert!(found.stages.iter().all(|stage| !stage.race.scores(0).is_empty()));
    }
}
