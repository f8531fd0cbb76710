//! Finds by trying which of two ways through the cache copies the chunks of a stream faster.
//!
//! The answer differs by processor and by the side of the ring. The string instruction takes whole
//! lines without reading them first. That saves a fifth on some processors and costs a multiple on
//! others, and nothing that a processor reports of itself tells which. So from time to time pairs
//! of chunks are copied either way and timed, with each way first as often as second. The way that
//! wins most pairs is used from there on.

use std::time::{Duration, Instant};

use crate::copy::CHUNK;
use crate::copy::Stores;

/// Chunks before the first trial, in which memory is met for the first time.
const WARM: u32 = 64;
/// Chunks between two trials: a lost one costs nothing that is seen.
const PAUSE: u32 = 8 << 10;
/// Pairs of chunks in a trial, and by how many of them a way leads that wins it.
const PAIRS: u32 = 16;
const LEAD: i32 = 8;

/// One end's choice.
#[derive(Debug)]
pub(crate) struct Trial {
    strings: bool,
    /// Chunks until the next trial.
    pause: u32,
    /// Chunks of this trial so far, and by how many pairs strings lead.
    chunks: u32,
    lead: i32,
    /// What the first chunk of the pair took.
    first: Duration,
}

impl Trial {
    pub(crate) fn new() -> Self {
        Self { strings: false, pause: WARM, chunks: 0, lead: 0, first: Duration::ZERO }
    }

    /// Copies a piece the better way.
    #[inline]
    pub(crate) fn run(&mut self, len: usize, copy: impl FnOnce(Stores)) {
        if len < CHUNK {
            // Vectors are as fast with these.
            return copy(Stores::Cached);
        }
        if self.pause > 0 {
            self.pause -= 1;
            return copy(if self.strings { Stores::Strings } else { Stores::Cached });
        }
        let strings = self.is_turn_of_strings();
        let began = Instant::now();
        copy(if strings { Stores::Strings } else { Stores::Cached });
        self.took(began.elapsed());
    }

    /// Of the pairs by turns first and second.
    fn is_turn_of_strings(&self) -> bool {
        matches!(self.chunks % 4, 1 | 2)
    }

    fn took(&mut self, time: Duration) {
        let strings = self.is_turn_of_strings();
        self.chunks += 1;
        if self.chunks % 2 == 1 {
            self.first = time;
            return;
        }
        let (with, without) = if strings { (time, self.first) } else { (self.first, time) };
        self.lead += without.cmp(&with) as i32;
        if self.chunks == 2 * PAIRS {
            if self.lead.abs() >= LEAD {
                self.strings = self.lead > 0;
            }
            (self.pause, self.chunks, self.lead) = (PAUSE, 0, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A trial in which either way takes so many nanoseconds for its n-th chunk.
    fn trial(on: &mut Trial, strings: impl Fn(u32) -> u64, vectors: impl Fn(u32) -> u64) {
        for chunk in 0..2 * PAIRS {
            let took = if on.is_turn_of_strings() { strings(chunk) } else { vectors(chunk) };
            on.took(Duration::from_nanos(took));
        }
        assert_eq!((on.pause, on.chunks), (PAUSE, 0));
    }

    #[test]
    fn the_faster_way_is_taken_and_left_again() {
        let mut on = Trial::new();
        trial(&mut on, |_| 400, |_| 300);
        assert!(!on.strings);
        trial(&mut on, |_| 300, |_| 400);
        assert!(on.strings);
        trial(&mut on, |_| 400, |_| 300);
        assert!(!on.strings);
    }

    #[test]
    fn what_interrupts_some_chunks_and_what_is_no_difference_change_nothing() {
        let mut on = Trial::new();
        trial(&mut on, |n| if n % 11 == 1 { 90_000 } else { 300 }, |_| 310);
        assert!(on.strings);
        trial(&mut on, |n| 300 + u64::from(n / 4 % 2) * 10, |_| 305);
        assert!(on.strings);
        // The second chunk of a pair is always faster.
        let second = |n| if n % 2 == 1 { 200 } else { 300 };
        trial(&mut on, second, second);
        assert!(on.strings);
    }

    #[test]
    fn a_trial_is_of_whole_chunks_and_seldom() {
        let mut on = Trial::new();
        let mut tried = 0;
        for _ in 0..WARM + 2 * PAIRS + PAUSE {
            let before = on.chunks;
            on.run(CHUNK, |_| ());
            tried += u32::from(on.chunks != before);
        }
        assert_eq!(tried, 2 * PAIRS);
        on.run(CHUNK - 1, |stores| assert_eq!(stores, Stores::Cached));
        assert_eq!(on.chunks, 0);
    }
}
