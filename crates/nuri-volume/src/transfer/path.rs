//! Measures what one direction of a path carries, and chooses the flow buffer that fits it.
//!
//! All buffers in flight together should pass in [`HOLD`]. On a slow path large buffers only make
//! everything else wait: a cached name, a lock, a proof of life of a group member. The reason:
//! nothing overtakes a call on a connection. On a fast path the largest buffers cost the least
//! processor time.

use std::time::Duration;

use nuri_rules::broken;

use super::{LARGEST, SMALLEST};

/// How long what is on its way may keep the path busy.
const HOLD: Duration = Duration::from_millis(200);
/// A rate is of so much time in which something was on its way, or of so many bytes.
const WINDOW: Duration = Duration::from_millis(250);
const WINDOW_BYTES: u64 = 16 << 20;
/// Before there is a rate: short enough for four of them to pass a path of 10 Mbit/s before
/// somebody loses patience.
const FIRST: u32 = 256 << 10;
const FIRST_BYTES: u64 = 2 << 20;

/// One direction of a mount's data.
pub(super) struct Path {
    /// Transfers on their way, and since when the time was not counted.
    active: u32,
    since: Duration,
    /// Of this window.
    busy: Duration,
    bytes: u64,
    has_failed: bool,
    /// Bytes per second.
    rate: Option<f64>,
    buffer: u32,
}

impl Default for Path {
    fn default() -> Path {
        let (since, busy) = (Duration::ZERO, Duration::ZERO);
        Path { active: 0, since, busy, bytes: 0, has_failed: false, rate: None, buffer: FIRST }
    }
}

impl Path {
    pub(super) fn buffer(&self) -> u32 {
        self.buffer
    }

    pub(super) fn rate(&self) -> Option<u64> {
        self.rate.map(|rate| rate as u64)
    }

    pub(super) fn begin(&mut self, now: Duration) {
        self.pass(now);
        self.active += 1;
    }

    /// Notes the end of a transfer; a failed transfer carried nothing.
    pub(super) fn end(&mut self, now: Duration, bytes: u64, streams: u8) {
        self.pass(now);
        self.active = self.active.saturating_sub(1);
        self.bytes += bytes;
        if bytes == 0 {
            // Perhaps it was too long for the path.
            self.has_failed = true;
            self.buffer = (self.buffer / 2).max(SMALLEST);
        }
        let enough = if self.rate.is_some() { WINDOW_BYTES } else { FIRST_BYTES };
        if self.busy >= WINDOW || self.bytes >= enough {
            self.learn(streams);
        }
    }

    fn pass(&mut self, now: Duration) {
        if self.active > 0 {
            self.busy += now.saturating_sub(self.since);
        }
        self.since = now;
    }

    /// A window is full. What a target that failed was waited for is no rate.
    fn learn(&mut self, streams: u8) {
        let seconds = self.busy.as_secs_f64();
        if !self.has_failed && seconds > 0.0 {
            let new = self.bytes as f64 / seconds;
            let rate = self.rate.map_or(new, |old| f64::midpoint(old, new));
            self.rate = Some(rate);
            self.fit(rate * HOLD.as_secs_f64() / f64::from(streams));
        }
        (self.busy, self.bytes, self.has_failed) = (Duration::ZERO, 0, false);
    }

    /// The power of two below `ideal` bytes; not to and fro where that is near one.
    fn fit(&mut self, ideal: f64) {
        if broken!("flow_never_fits") {
            return;
        }
        while self.buffer > SMALLEST && ideal < 0.8 * f64::from(self.buffer) {
            self.buffer /= 2;
        }
        while self.buffer < LARGEST && ideal >= 2.0 * f64::from(self.buffer) {
            self.buffer *= 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MBIT: f64 = 1e6 / 8.0;

    /// Four transfers at a time over a path of so many bytes per second, for so many rounds.
    fn carry(path: &mut Path, now: &mut Duration, rate: f64, rounds: u32) {
        for _ in 0..rounds {
            let bytes = path.buffer();
            (0..4).for_each(|_| path.begin(*now));
            for _ in 0..4 {
                *now += Duration::from_secs_f64(f64::from(bytes) / rate);
                path.end(*now, u64::from(bytes), 4);
            }
            // What the program does between counts for nothing.
            *now += Duration::from_millis(300);
        }
    }

    #[test]
    fn buffers_fit_the_path() {
        for (mbit, expected) in [(10.0, SMALLEST), (100.0, 512 << 10), (1000.0, LARGEST)] {
            let (mut path, mut now) = (Path::default(), Duration::ZERO);
            carry(&mut path, &mut now, mbit * MBIT, 40);
            assert_eq!(path.buffer(), expected, "{mbit} Mbit/s");
            let error = path.rate().unwrap() as f64 / (mbit * MBIT);
            assert!((0.99..1.01).contains(&error), "{error}");
        }
    }

    #[test]
    fn a_path_that_becomes_fast_again_gets_large_buffers_again() {
        let (mut path, mut now) = (Path::default(), Duration::ZERO);
        carry(&mut path, &mut now, 10.0 * MBIT, 40);
        assert_eq!(path.buffer(), SMALLEST);
        carry(&mut path, &mut now, 1e9, 100);
        assert_eq!(path.buffer(), LARGEST);
    }

    #[test]
    fn what_failed_is_no_rate() {
        let (mut path, mut now) = (Path::default(), Duration::ZERO);
        for _ in 0..9 {
            path.begin(now);
            now += Duration::from_secs(15);
            path.end(now, 0, 4);
        }
        assert_eq!((path.buffer(), path.rate()), (SMALLEST, None));
        carry(&mut path, &mut now, 1e9, 100);
        assert_eq!(path.buffer(), LARGEST);
    }

    proptest! {
        /// Whatever the rate, a steady one ends at one size, which passes in time.
        #[test]
        fn a_steady_path_comes_to_rest(mbit in 1.0f64..100_000.0) {
            let (mut path, mut now) = (Path::default(), Duration::ZERO);
            carry(&mut path, &mut now, mbit * MBIT, 60);
            let rest = path.buffer();
            for _ in 0..20 {
                carry(&mut path, &mut now, mbit * MBIT, 1);
                prop_assert_eq!(path.buffer(), rest);
            }
            let held = 4.0 * f64::from(rest) / (mbit * MBIT);
            prop_assert!(rest == SMALLEST || held <= 1.3 * HOLD.as_secs_f64());
        }
    }
}
