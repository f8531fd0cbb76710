//! How far away the peer's core is. The distance decides which stores write long messages.
//!
//! The sender asks for an echo with a record, then bounces a word back and forth. A hand-over of a
//! cache line takes tens of nanoseconds between cores that share a cache, and hundreds between
//! others. A virtual machine's cores move, so the distance is measured again under traffic. A peer
//! that does not echo at once is busy elsewhere and is asked again soon. Until then the distance
//! counts as far: streaming stores between near cores cost a factor of two, cached ones between far
//! cores seven.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

use crate::link::{PING, PONG, Records};

/// One hand-over takes less than this between near cores.
const NEAR: Duration = Duration::from_nanos(130);
/// A measurement counts this long.
const FRESH: Duration = Duration::from_millis(100);
/// After a measurement that failed.
const RETRY: Duration = Duration::from_millis(5);
/// How long either end waits for the other one.
const PATIENCE: Duration = Duration::from_micros(30);

/// Batches, of which the fastest counts, and round trips in each.
const BATCHES: u32 = 8;
const ROUNDS: u32 = 8;

const DONE: u64 = u64::MAX;

/// Where the peer's core is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cores {
    /// Not measured yet.
    #[default]
    Unknown,
    /// It is the same one.
    Same,
    /// They share a cache.
    Near,
    /// They share none.
    Far,
}

/// The sender's knowledge of it.
#[derive(Debug, Default)]
pub(crate) struct Distance {
    cores: Cores,
    due: Option<Instant>,
    sent: u64,
}

impl Distance {
    /// What was measured last.
    pub(crate) fn cores(&self) -> Cores {
        self.cores
    }

    /// Whether stores should go around the cache.
    pub(crate) fn is_far(&self) -> bool {
        matches!(self.cores, Cores::Unknown | Cores::Far)
    }

    /// Whether it should be measured now. On one core there is nothing to measure.
    pub(crate) fn due(&mut self, same_core: bool) -> bool {
        if same_core {
            self.cores = Cores::Same;
            self.due = None;
            return false;
        }
        if self.cores == Cores::Same {
            self.cores = Cores::Unknown;
        }
        self.due.is_none_or(|due| Instant::now() >= due)
    }

    /// Measures; the peer was asked for an echo.
    pub(crate) fn measure(&mut self, link: &Records) {
        let best = self.bounce(link);
        link.data().word(PING).store(DONE, Release);
        let (cores, wait) = match best {
            Some(one_way) if one_way < NEAR => (Cores::Near, FRESH),
            Some(_) => (Cores::Far, FRESH),
            None => (self.cores, RETRY),
        };
        (self.cores, self.due) = (cores, Some(Instant::now() + wait));
    }

    fn bounce(&mut self, link: &Records) -> Option<Duration> {
        let mut best = Duration::MAX;
        self.once(link)?;
        for _ in 0..BATCHES {
            let started = Instant::now();
            for _ in 0..ROUNDS {
                self.once(link)?;
            }
            best = best.min(started.elapsed() / (2 * ROUNDS));
        }
        Some(best)
    }

    fn once(&mut self, link: &Records) -> Option<()> {
        self.sent += 1;
        link.data().word(PING).store(self.sent, Release);
        let (pong, sent) = (link.back().word(PONG), self.sent);
        wait_for(|| (pong.load(Acquire) == sent).then_some(()))
    }
}

/// The receiver's part: echoes until the sender is done or slow.
pub(crate) fn echo(link: &Records) {
    let (ping, pong) = (link.data().word(PING), link.back().word(PONG));
    let mut seen = pong.load(Relaxed);
    for _ in 0..2 * BATCHES * ROUNDS {
        match wait_for(|| Some(ping.load(Acquire)).filter(|now| *now != seen)) {
            None | Some(DONE) => return,
            Some(now) => seen = now,
        }
        pong.store(seen, Release);
    }
}

#[inline]
fn wait_for<T>(mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let mut started = None;
    for looks in 1u32.. {
        if let Some(found) = look() {
            return Some(found);
        }
        std::hint::spin_loop();
        if looks.is_multiple_of(64) && started.get_or_insert_with(Instant::now).elapsed() > PATIENCE
        {
            return None;
        }
    }
    None
}
