//! Where the two cores are: one and the same, near each other, or far.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::{Duration, Instant};

/// A line goes over in less than this between cores that share a cache.
const NEAR: f64 = 130.0;
const ROUNDS: u32 = 500;
const BATCHES: u32 = 10;

/// How the cores lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    Near,
    Far,
    One,
}

impl Place {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Near => "two cores near each other",
            Self::Far => "two cores far from each other",
            Self::One => "one core",
        }
    }
}

/// Where they are now, and the nanoseconds in which a cache line goes over.
pub(super) fn look(cores: [usize; 2]) -> Result<(Place, f64), String> {
    if cores[0] == cores[1] {
        return Ok((Place::One, 0.0));
    }
    let line = hand_over(cores)?;
    Ok((if line < NEAR { Place::Near } else { Place::Far }, line))
}

/// Two threads pass a word back and forth; the fastest batch counts.
fn hand_over(cores: [usize; 2]) -> Result<f64, String> {
    let word = Arc::new(AtomicU32::new(0));
    let threads = cores.into_iter().zip(0..).map(|(core, first)| {
        let word = Arc::clone(&word);
        std::thread::spawn(move || {
            pin(core)?;
            let best = (0..BATCHES).map(|batch| pass(&word, 2 * ROUNDS * batch + first)).min();
            Ok(best.unwrap_or_default())
        })
    });
    let threads: Vec<_> = threads.collect();
    let ended =
        threads.into_iter().map(|t| t.join().map_err(|_| "the probe panicked".to_owned())?);
    let best = ended.collect::<Result<Vec<Duration>, String>>()?.into_iter().min();
    Ok(best.unwrap_or_default().as_nanos() as f64 / f64::from(2 * ROUNDS))
}

/// Waits for every second number from `first` on, and answers with the next.
fn pass(word: &AtomicU32, first: u32) -> Duration {
    let mut started = None;
    for turn in (first..).step_by(2).take(ROUNDS as usize) {
        while word.load(Acquire) != turn {
            std::hint::spin_loop();
        }
        started.get_or_insert_with(Instant::now);
        word.store(turn + 1, Release);
    }
    started.map(|s| s.elapsed()).unwrap_or_default()
}

fn pin(core: usize) -> Result<(), String> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core);
    rustix::thread::sched_setaffinity(None, &set).map_err(|e| format!("core {core}: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_core_is_not_measured_and_two_are() {
        assert_eq!(look([0, 0]), Ok((Place::One, 0.0)));
        if std::thread::available_parallelism().is_ok_and(|n| n.get() > 1) {
            let (place, line) = look([0, 1]).expect("two cores");
            assert!(line > 0.0 && place != Place::One, "{place:?} {line}");
        }
    }
}
