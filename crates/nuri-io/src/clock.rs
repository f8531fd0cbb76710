//! Time, injected: services take a [`Clock`], tests and the simulator a [`ManualClock`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Wall time for stamps and a monotonic time for bounds.
pub trait Clock: Send + Sync + 'static {
    /// Time since 1970. May step back: whoever stamps must not.
    fn wall(&self) -> Duration;
    /// Time since some fixed moment of this process. Never steps back.
    fn monotonic(&self) -> Duration;
}

/// The machine's clocks.
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    pub fn shared() -> Arc<dyn Clock> {
        Arc::new(SystemClock { start: Instant::now() })
    }
}

impl Clock for SystemClock {
    fn wall(&self) -> Duration {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
    }
    fn monotonic(&self) -> Duration {
        self.start.elapsed()
    }
}

/// A clock that moves when told, wall and monotonic time apart.
#[derive(Default)]
pub struct ManualClock {
    wall_ns: AtomicU64,
    mono_ns: AtomicU64,
}

impl ManualClock {
    /// Advances both times.
    pub fn advance(&self, by: Duration) {
        self.wall_ns.fetch_add(by.as_nanos() as u64, Ordering::SeqCst);
        self.mono_ns.fetch_add(by.as_nanos() as u64, Ordering::SeqCst);
    }

    /// Steps the wall clock, backwards too.
    pub fn set_wall(&self, to: Duration) {
        self.wall_ns.store(to.as_nanos() as u64, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn wall(&self) -> Duration {
        Duration::from_nanos(self.wall_ns.load(Ordering::SeqCst))
    }
    fn monotonic(&self) -> Duration {
        Duration::from_nanos(self.mono_ns.load(Ordering::SeqCst))
    }
}
