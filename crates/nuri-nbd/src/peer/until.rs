//! Until when a forwarded request may be served (NBD-1).
//!
//! A client that gets no answer repeats its request on another channel, and goes on. What it sent
//! on the first channel must not be served after that. So a request that is older than
//! [`crate::AGE`] is never served. A client repeats a request only when it is older than that, or
//! when the first channel was closed.
//!
//! A forwarded request says until when it may be served, in milliseconds of the owner's clock. The
//! forwarder knows that clock by *stamps*, which it asks for twice a second. Example: the forwarder
//! was told 70,000 when its own clock showed 5.0 s. A request that came at 4.2 s may be served
//! until 14.2 s. That is 79,200 of the owner's clock, or somewhat more, because the stamp was under
//! way. The owner compares the number with its clock just before it serves the request. So it does
//! not matter how long the request was under way, or how long either process stood still.

use std::time::Instant;

use nuri_rules::broken;

/// The clock of a server that owns volumes.
pub struct ServerClock(Instant);

impl Default for ServerClock {
    fn default() -> ServerClock {
        ServerClock(Instant::now())
    }
}

impl ServerClock {
    /// Milliseconds; after 49 days it begins anew.
    pub fn stamp(&self) -> u32 {
        self.stamp_at(Instant::now())
    }

    pub fn stamp_at(&self, now: Instant) -> u32 {
        now.saturating_duration_since(self.0).as_millis() as u32
    }

    /// One that begins at a moment.
    pub fn from(start: Instant) -> ServerClock {
        ServerClock(start)
    }
}

/// A moment of the owner's clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Until(u32);

impl Until {
    /// For a request with that deadline, where the owner's clock showed `stamp` at `told` or
    /// before.
    pub fn of(deadline: Instant, (stamp, told): (u32, Instant)) -> Until {
        let ahead = deadline.saturating_duration_since(told).as_millis() as u32;
        let behind = told.saturating_duration_since(deadline).as_millis() as u32;
        Until(stamp.wrapping_add(ahead).wrapping_sub(behind))
    }

    /// A request's number, with this in its upper half.
    pub(crate) fn cookie(self, number: u32) -> u64 {
        u64::from(self.0) << 32 | u64::from(number)
    }

    pub(crate) fn of_cookie(cookie: u64) -> Until {
        Until((cookie >> 32) as u32)
    }

    /// Whether it is over when the owner's clock shows this.
    pub fn is_over(self, stamp: u32) -> bool {
        !broken!("nbd_late") && (stamp.wrapping_sub(self.0) as i32) > 0
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::age::AGE;

    /// Catches `broken!("nbd_late")`.
    #[test]
    fn a_request_is_served_for_ten_seconds_after_it_came() {
        let told = Instant::now() + Duration::from_secs(100);
        let at = |millis: i64| match millis {
            0.. => told + Duration::from_millis(millis as u64),
            _ => told - Duration::from_millis(millis.unsigned_abs()),
        };
        // Also where the clock begins anew meanwhile.
        for stamp in [70_000, u32::MAX - 3] {
            for since in [-30_000, -10_000, -800, 0, 400] {
                let until = Until::of(at(since) + AGE, (stamp, told));
                assert_eq!(Until::of_cookie(until.cookie(u32::MAX)), until);
                let shows = |millis: i64| stamp.wrapping_add(millis as u32);
                assert!(!until.is_over(shows(since + 10_000)), "{since}");
                assert!(until.is_over(shows(since + 10_001)), "{since}");
            }
        }
    }
}
