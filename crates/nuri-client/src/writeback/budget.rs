//! How many bytes a mount buffers for writing. A write takes budget before it is accepted, and
//! gives it back once its bytes are durable. `writeback/mod.rs` flushes when a third is in use.
//!
//! A write that finds nothing buffered always goes on, so no limit stops it.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use nuri_volume::transfer::WRITE_BEHIND;

/// Bytes that may be buffered.
pub(crate) struct Budget {
    state: Mutex<State>,
    freed: Condvar,
    /// Somebody wants bytes flushed.
    wanted: Condvar,
}

struct State {
    used: u64,
    limit: u64,
}

#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Pressure {
    Low,
    High,
}

impl Default for Budget {
    fn default() -> Self {
        let state = Mutex::new(State { used: 0, limit: WRITE_BEHIND });
        Budget { state, freed: Condvar::new(), wanted: Condvar::new() }
    }
}

impl State {
    fn pressure(&self) -> Pressure {
        if self.used > self.limit / 3 { Pressure::High } else { Pressure::Low }
    }
}

impl Budget {
    /// Sets the limit. Bytes beyond a lower limit stay buffered, and new writes wait until they
    /// left.
    pub(crate) fn limit_to(&self, bytes: u64) {
        self.state.lock().limit = bytes;
        self.wanted.notify_one();
        self.freed.notify_all();
    }

    #[cfg(test)]
    fn used(&self) -> u64 {
        self.state.lock().used
    }

    /// Waits until `bytes` may be buffered.
    pub(crate) fn take(&self, bytes: u64) {
        let mut state = self.state.lock();
        while state.used + bytes > state.limit && state.used > 0 {
            self.wanted.notify_one();
            self.freed.wait_for(&mut state, Duration::from_millis(100));
        }
        state.used += bytes;
        if state.pressure() == Pressure::High {
            self.wanted.notify_one();
        }
    }

    /// Counts bytes that were buffered without asking.
    pub(crate) fn overdraw(&self, bytes: u64) {
        self.state.lock().used += bytes;
    }

    pub(crate) fn give(&self, bytes: u64) {
        if bytes > 0 {
            let mut state = self.state.lock();
            state.used = state.used.saturating_sub(bytes);
            drop(state);
            self.freed.notify_all();
        }
    }

    /// Whether little is left.
    pub(crate) fn is_tight(&self) -> bool {
        let state = self.state.lock();
        state.used > state.limit / 6 * 5
    }

    /// Waits until a third is in use, or a timeout.
    pub(crate) fn wait_wanted(&self, timeout: Duration) -> Pressure {
        let mut state = self.state.lock();
        if state.pressure() == Pressure::Low {
            self.wanted.wait_for(&mut state, timeout);
        }
        state.pressure()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    const NOW: Duration = Duration::from_millis(1);

    #[test]
    fn pressure_follows_the_limit() {
        let budget = Budget::default();
        budget.take(30 << 20);
        assert_eq!(budget.wait_wanted(NOW), Pressure::Low);
        budget.limit_to(16 << 20);
        assert_eq!(budget.wait_wanted(NOW), Pressure::High);
        assert!(budget.is_tight());
        budget.limit_to(256 << 20);
        assert_eq!((budget.wait_wanted(NOW), budget.used()), (Pressure::Low, 30 << 20));
    }

    #[test]
    fn a_write_waits_for_room_and_one_alone_does_not() {
        let budget = Budget::default();
        budget.limit_to(4 << 20);
        budget.take(8 << 20);
        let (send, taken) = channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                budget.take(1 << 20);
                send.send(()).unwrap();
            });
            assert!(taken.recv_timeout(Duration::from_millis(50)).is_err(), "there is no room");
            budget.give(8 << 20);
            taken.recv_timeout(Duration::from_secs(10)).unwrap();
        });
        assert_eq!(budget.used(), 1 << 20);
    }
}
