//! When the bytes of a connection came, as far as its reader can know.
//!
//! A request may lie in the kernel for long before it is read: the process stood still, or all its
//! threads were busy. So the reader looks from time to time how many bytes lie there. What comes
//! behind those came after the look. Example: at 5.0 s, 700 bytes are waiting. A request that
//! begins at the 701st byte is not older than that, whenever it is read.
//!
//! Pure.

use std::time::{Duration, Instant};

/// A look is made once what was known is so old.
const STALE: Duration = Duration::from_millis(100);

pub(crate) struct Age {
    /// Bytes that were read.
    read: u64,
    /// What is read now did not come before.
    since: Instant,
    /// What is read from this byte on came after this look.
    mark: Option<(u64, Instant)>,
}

impl Age {
    pub(crate) fn new(now: Instant) -> Age {
        Age { read: 0, since: now, mark: None }
    }

    /// Since when the bytes that come next can have been there.
    pub(crate) fn since(&self) -> Instant {
        self.since
    }

    /// Whether it is time to look.
    pub(crate) fn is_stale(&self, now: Instant) -> bool {
        self.mark.is_none() && now.duration_since(self.since) >= STALE
    }

    /// At `now`, so many bytes lay there.
    pub(crate) fn look(&mut self, waiting: u64, now: Instant) {
        self.mark.get_or_insert((self.read + waiting, now));
        self.pass();
    }

    /// So many bytes more were read.
    pub(crate) fn took(&mut self, count: usize) {
        self.read += count as u64;
        self.pass();
    }

    fn pass(&mut self) {
        if let Some((from, looked)) = self.mark
            && self.read >= from
        {
            (self.since, self.mark) = (looked, None);
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
        assert!(!age.is_stale(at(6)), "what was seen is not read yet");
        age.look(900, at(6));
        age.took(500);
        assert_eq!(age.since(), start, "it lay there at the look");
        age.took(200);
        assert_eq!(age.since(), at(5), "the 701st byte came later");
        age.look(0, at(9));
        assert_eq!(age.since(), at(9), "nothing lay there");
    }
}
