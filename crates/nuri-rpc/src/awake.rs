//! Time for which this process ran.
//!
//! A process that is stopped, and a machine that is paused, wait for nobody meanwhile. The clocks
//! of the operating system go on. A caller that counts by them gives up, right after it was
//! resumed, what it never had the time to wait for. So patience with others is counted by this
//! clock: a thread looks at the time every [`TICK`], and of a longer gap between two looks at most
//! [`MOST`] counts.
//!
//! Example: a call has 30 s. The process is stopped after 2 s and resumed 35 s later. The call then
//! has 27 s left, 28 less the second that counts of the gap.
//!
//! Leases are counted by the clock of the operating system: others take them away meanwhile.

use std::ops::Add;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use nuri_rules::broken;
use parking_lot::{Mutex, MutexGuard};

const TICK: Duration = Duration::from_millis(250);
/// A busy machine delays a thread by less.
const MOST: Duration = Duration::from_secs(1);

/// A moment, counted by the time for which this process ran.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Awake(Duration);

impl Awake {
    pub fn now() -> Awake {
        let counted = *clock().lock();
        Awake(counted.at(Instant::now()))
    }

    pub fn elapsed(self) -> Duration {
        Awake::now().since(self)
    }

    /// Zero where `earlier` is later.
    pub fn since(self, earlier: Awake) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Awake {
    type Output = Awake;

    fn add(self, time: Duration) -> Awake {
        Awake(self.0.saturating_add(time))
    }
}

/// Locks, within so much of the time for which this process runs.
pub fn lock_within<T>(lock: &Mutex<T>, limit: Duration) -> Option<MutexGuard<'_, T>> {
    let begin = Awake::now();
    loop {
        let left = limit.saturating_sub(begin.elapsed());
        match lock.try_lock_for(left.min(MOST)) {
            None if !left.is_zero() => {}
            outcome => return outcome,
        }
    }
}

/// What was counted up to the last look.
#[derive(Clone, Copy)]
struct Counted {
    looked: Instant,
    time: Duration,
}

impl Counted {
    fn at(&self, now: Instant) -> Duration {
        let gap = now.saturating_duration_since(self.looked);
        let counts = if broken!("standstill_counts") { gap } else { gap.min(MOST) };
        self.time + counts
    }

    fn look(&mut self, now: Instant) {
        *self = Counted { looked: now, time: self.at(now) };
    }
}

fn clock() -> &'static Mutex<Counted> {
    static CLOCK: OnceLock<&'static Mutex<Counted>> = OnceLock::new();
    CLOCK.get_or_init(|| {
        let counted = Counted { looked: Instant::now(), time: Duration::ZERO };
        let clock: &'static Mutex<Counted> = Box::leak(Box::new(Mutex::new(counted)));
        thread::Builder::new()
            .name("nuri-awake".into())
            .spawn(move || {
                loop {
                    thread::sleep(TICK);
                    clock.lock().look(Instant::now());
                }
            })
            .expect("a thread that looks at the time");
        clock
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches `broken!("standstill_counts")`.
    #[test]
    fn a_standstill_hardly_counts() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_millis(seconds);
        let mut counted = Counted { looked: begin, time: Duration::ZERO };
        let millis = |counted: Counted, now| counted.at(at(now)).as_millis();
        (1..=8).for_each(|tick| counted.look(at(tick * 250)));
        assert_eq!(millis(counted, 2_100), 2_100, "it ran");
        assert_eq!(millis(counted, 37_000), 3_000, "it was stopped for 35 s");
        counted.look(at(37_000));
        assert_eq!(millis(counted, 37_200), 3_200, "it goes on");
    }

    #[test]
    fn time_goes_on() {
        let begin = Awake::now();
        let real = Instant::now();
        while begin.elapsed() < Duration::from_millis(600) {
            thread::sleep(Duration::from_millis(10));
        }
        assert!(real.elapsed() >= Duration::from_millis(600));
        assert!(begin < Awake::now() && begin + Duration::from_secs(3600) > Awake::now());
    }
}
