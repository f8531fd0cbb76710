//! What may run beyond the budget: while the processors idle, more jobs that wait.

use std::time::{Duration, Instant};

/// Between two looks.
pub(super) const LOOK: Duration = Duration::from_secs(1);
/// More jobs are started above this share of idle time, and fewer below that one.
const IDLE: f64 = 0.35;
const BUSY: f64 = 0.15;
/// Of a job that waits.
const STEP: u32 = 2;

/// Ticks since the machine started: those without work, and all.
type Ticks = (u64, u64);

/// Shares beyond the budget.
pub(super) struct Spare {
    most: u32,
    shares: u32,
    looked: Instant,
    ticks: Option<Ticks>,
}

impl Spare {
    pub(super) fn new(most: u32) -> Spare {
        Spare { most, shares: 0, looked: Instant::now(), ticks: ticks() }
    }

    pub(super) fn shares(&self) -> u32 {
        self.shares
    }

    /// Looks at the processors, once a second at most.
    pub(super) fn look(&mut self) {
        if self.looked.elapsed() < LOOK {
            return;
        }
        let now = ticks();
        if let (Some(before), Some(now)) = (self.ticks, now) {
            self.adapt(idle(before, now));
        }
        (self.looked, self.ticks) = (Instant::now(), now);
    }

    fn adapt(&mut self, idle: f64) {
        if idle > IDLE {
            self.shares = (self.shares + STEP).min(self.most);
        } else if idle < BUSY {
            self.shares = self.shares.saturating_sub(STEP);
        }
    }
}

fn idle(before: Ticks, now: Ticks) -> f64 {
    let all = now.1.saturating_sub(before.1);
    if all == 0 { 0.0 } else { now.0.saturating_sub(before.0) as f64 / all as f64 }
}

/// Of all processors together. A processor that waits for a disk has work: more jobs would only
/// make the disk's queue longer.
fn ticks() -> Option<Ticks> {
    of_stat(&std::fs::read_to_string("/proc/stat").ok()?)
}

/// The first line is `cpu user nice system idle iowait irq softirq steal guest guest_nice`.
fn of_stat(text: &str) -> Option<Ticks> {
    let words = text.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
    let ticks = words.map(|word| word.parse().ok()).collect::<Option<Vec<u64>>>()?;
    // A guest's time is counted as a user's already.
    Some((*ticks.get(3)?, ticks.iter().take(8).sum()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_is_read_without_that_of_disks_and_guests() {
        let stat = "cpu  10 20 30 400 500 6 7 8 9 9\ncpu0 1 1 1 1 1 1 1 1 1 1\n";
        assert_eq!(of_stat(stat), Some((400, 981)));
        assert_eq!(of_stat("intr 5\n"), None);
        assert_eq!(idle((400, 981), (450, 1081)), 0.5);
        assert_eq!(idle((400, 981), (400, 981)), 0.0);
    }

    #[test]
    fn shares_grow_while_processors_idle_and_go_when_they_are_busy() {
        let mut spare = Spare::new(5);
        let mut shares = |idle| {
            spare.adapt(idle);
            spare.shares()
        };
        assert_eq!([0.5, 0.5, 0.5, 0.5].map(&mut shares), [2, 4, 5, 5]);
        assert_eq!([0.3, 0.1, 0.1, 0.1].map(&mut shares), [5, 3, 1, 0]);
    }
}
