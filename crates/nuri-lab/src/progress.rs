//! Estimates how long a run takes, before it begins and while it runs.

use std::io::{IsTerminal, Write};
use std::time::Instant;

use crate::workload::Workload;

/// Guessed rates, until something was measured.
pub(crate) const MIB_PER_SECOND: f64 = 200.0;
const OPERATIONS_PER_SECOND: f64 = 3000.0;
/// Starting processes, dropping caches.
const PHASE: f64 = 0.2;

/// What a run of a workload takes by guess, in seconds.
pub(crate) fn guess(workload: &Workload, mib_per_second: f64) -> f64 {
    let amount = workload.amount();
    let phases = (workload.phases().len() as u64 * workload.repetitions()) as f64;
    let bytes = amount.bytes as f64 / f64::from(1 << 20) / mib_per_second;
    let operations = amount.operations as f64 / OPERATIONS_PER_SECOND;
    bytes + operations + workload.lasts() + PHASE * phases
}

/// Tells how far a run is.
pub(crate) struct Progress {
    start: Instant,
    /// In guessed seconds.
    all: f64,
    done: f64,
}

impl Progress {
    pub(crate) fn new(all: f64) -> Progress {
        Progress { start: Instant::now(), all, done: 0.0 }
    }

    pub(crate) fn advance(&mut self, guessed: f64) {
        self.done += guessed;
    }

    /// By the guess at first, then by how wrong the guess was so far.
    fn left(&self) -> f64 {
        let left = self.all - self.done;
        if self.done > 0.0 { left * self.start.elapsed().as_secs_f64() / self.done } else { left }
    }

    /// On a terminal each line replaces the one before.
    pub(crate) fn show(&self, what: &str) {
        let mut out = std::io::stderr();
        let left = duration(self.left());
        let (before, after) = if out.is_terminal() { ("\r\x1b[K", "") } else { ("", "\n") };
        // The terminal may be gone, which does not end the run.
        let _ = write!(out, "{before}{what}, {left} left{after}").and_then(|()| out.flush());
    }

    pub(crate) fn end(&self) {
        let mut out = std::io::stderr();
        if out.is_terminal() {
            let _ = writeln!(out);
        }
    }
}

/// A line on stderr, whether or not somebody reads it.
pub(crate) fn tell(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Seconds for people.
pub(crate) fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 100.0 => format!("about {s:.0} s"),
        s if s < 6000.0 => format!("about {:.0} min", s / 60.0),
        s => format!("about {:.1} h", s / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_left_follows_what_was_seen() {
        let mut progress = Progress::new(100.0);
        assert_eq!(progress.left(), 100.0);
        progress.start = Instant::now() - std::time::Duration::from_secs(20);
        progress.advance(10.0);
        assert!((179.0..190.0).contains(&progress.left()), "{}", progress.left());
        assert_eq!(duration(42.4), "about 42 s");
        assert_eq!(duration(600.0), "about 10 min");
        assert_eq!(duration(9000.0), "about 2.5 h");
    }

    #[test]
    fn guesses_count_what_is_moved() {
        let ior = crate::workload::tests::parse("ior -w -r --np 2 -b 100m -t 1m -i 3").unwrap();
        assert!((guess(&ior, 200.0) - (6.0 + 6.0 * PHASE)).abs() < 1e-9);
    }
}
