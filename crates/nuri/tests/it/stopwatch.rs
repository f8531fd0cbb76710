//! Time as a promise counts it: without the moments in which the machine itself stood still.
//!
//! A test machine shares its processors; one that ran nothing for a second must not make a pause
//! of four into a broken promise of five.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_millis(5);
/// What a sleeper oversleeps on a machine that runs.
const USUAL: Duration = Duration::from_millis(5);

/// Microseconds that sleepers overslept so far.
fn stalled() -> &'static AtomicU64 {
    static STALLED: OnceLock<&'static AtomicU64> = OnceLock::new();
    STALLED.get_or_init(|| {
        let total: &'static AtomicU64 = Box::leak(Box::default());
        std::thread::spawn(move || {
            loop {
                let start = Instant::now();
                std::thread::sleep(TICK);
                let late = start.elapsed().saturating_sub(TICK + USUAL);
                total.fetch_add(late.as_micros() as u64, Ordering::Relaxed);
            }
        });
        total
    })
}

pub struct Stopwatch {
    start: Instant,
    stalled: u64,
}

impl Stopwatch {
    pub fn start() -> Stopwatch {
        let stalled = stalled().load(Ordering::Relaxed);
        Stopwatch { start: Instant::now(), stalled }
    }

    /// Since the start, less what the machine stood still.
    pub fn elapsed(&self) -> Duration {
        let stalled = stalled().load(Ordering::Relaxed) - self.stalled;
        self.start.elapsed().saturating_sub(Duration::from_micros(stalled))
    }
}
