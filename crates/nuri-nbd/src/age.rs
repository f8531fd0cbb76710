//! When the bytes of a connection came, as far as its reader can know.
//!
//! A request may lie in the kernel for long before it is read: the process stood still, or all its
//! threads were busy. So the reader looks from time to time how many bytes lie there. What comes
//! behind those came after the look. Example: at 5.0 s, 700 bytes are waiting. A request that
//! begins at the 701st byte is not older than that, whenever it is read.
//!
//! Pure.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// A look is made once the last one is so old.
const STALE: Duration = Duration::from_millis(100);
/// Most looks that are remembered.
const LOOKS: usize = 256;

pub(crate) struct Age {
    /// Bytes that were read.
    read: u64,
    /// The last one of them did not come before.
    since: Instant,
    looked: Instant,
    /// What is read from this byte on came after this look.
    marks: VecDeque<(u64, Instant)>,
}

impl Age {
    /// Nothing came before `start`.
    pub(crate) fn new(start: Instant) -> Age {
        Age { read: 0, since: start, looked: start, marks: VecDeque::new() }
    }

    /// Since when the byte that was read last can have been there.
    pub(crate) fn since(&self) -> Instant {
        self.since
    }

    /// Whether it is time to look.
    pub(crate) fn is_stale(&self, now: Instant) -> bool {
        now.duration_since(self.looked) >= STALE
    }

    /// At `now`, so many bytes lay there.
    pub(crate) fn look(&mut self, waiting: u64, now: Instant) {
        self.looked = now;
        let from = self.read + waiting;
        // Where nothing came between two looks the later one says more.
        while self.marks.back().is_some_and(|(known, _)| *known >= from) {
            self.marks.pop_back();
        }
        if self.marks.len() < LOOKS {
            self.marks.push_back((from, now));
        }
    }

    /// So many bytes more were read.
    pub(crate) fn took(&mut self, count: usize) {
        self.read += count as u64;
        while let Some((from, looked)) = self.marks.front().copied()
            && from < self.read
        {
            self.since = looked;
            self.marks.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_as_old_as_the_last_look_that_did_not_see_it() {
        let start = Instant::now();
        let at = |secs| start + Duration::from_secs(secs);
        let mut age = Age::new(start);
        assert!(!age.is_stale(start) && age.is_stale(at(1)));
        age.look(700, at(5));
        age.look(900, at(6));
        age.took(500);
        assert_eq!(age.since(), start, "it lay there at the look");
        age.took(200);
        assert_eq!(age.since(), start, "its last byte lay there too");
        age.took(1);
        assert_eq!(age.since(), at(5), "the 701st byte came later");
        age.took(199);
        assert_eq!(age.since(), at(5), "the 900th was there at the second look");
        age.look(0, at(9));
        age.look(0, at(20));
        assert_eq!(age.since(), at(5), "nothing came");
        age.took(1);
        assert_eq!(age.since(), at(20), "nothing lay there until then");
    }

    /// What was encrypted is somewhat longer on the wire: a look may count too much.
    #[test]
    fn a_look_that_counted_too_much_does_not_make_an_idle_client_old() {
        let start = Instant::now();
        let at = |secs| start + Duration::from_secs(secs);
        let mut age = Age::new(start);
        age.look(122, at(1));
        age.took(100);
        age.look(0, at(30));
        age.took(28);
        assert_eq!(age.since(), at(30));
    }
}
