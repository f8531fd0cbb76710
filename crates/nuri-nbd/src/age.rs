//! When the bytes of a connection came, as far as its reader can know. Pure.
//!
//! A request may lie in the kernel for long before it is read: the process stood still, or all its
//! threads were busy. So the reader looks from time to time how many bytes lie there. Bytes behind
//! those came after the look. Example: at 5.0 s, 700 bytes are waiting. A request that begins at
//! the 701st byte is not older than that, whenever it is read.
//!
//! The request may have been long on its way: a network that is cut delivers later what was sent
//! long before. But then nothing else comes either. Not even answers come to the probes that this
//! machine sends each second to a client that is idle. So a request was not sent before its
//! client's machine was heard last. After a silence, the sender takes up to as long again until it
//! tries once more (TCP doubles the time between tries). So what comes within that time counts as
//! sent when the silence began. Example: a cable is pulled at 5.0 s and put back at 8.0 s. What
//! comes until 11.0 s counts as sent at 5.0 s. A silence of less than [`SILENCE`] is not noticed: a
//! request may be older by twice that.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use nuri_rules::broken;

/// How old a request may be when it is served: longer than another server needs to take a volume
/// over.
pub const AGE: Duration = Duration::from_secs(10);

/// Whether a request with that deadline is too old to be served.
pub fn is_over(deadline: Instant, now: Instant) -> bool {
    now >= deadline && !broken!("nbd_late")
}

/// A look is made once the last one is so old.
const STALE: Duration = Duration::from_millis(100);
/// A machine that is not heard for so long was cut off. One that is idle is asked each second, and
/// looked at as often.
const SILENCE: Duration = Duration::from_millis(2200);
/// Most looks that are remembered.
const LOOKS: usize = 256;

/// See the module's text.
pub struct Age {
    /// Bytes that were read.
    read: u64,
    /// The last one of them did not come before.
    since: Instant,
    looked: Instant,
    /// When the client's machine was heard last.
    heard: Instant,
    /// The last time that it was not heard for long: from when to when.
    silence: Option<(Instant, Instant)>,
    /// What is read from this byte on was sent after this moment.
    marks: VecDeque<(u64, Instant)>,
}

impl Age {
    /// Nothing came before `start`.
    pub fn new(start: Instant) -> Age {
        let (looked, heard, marks) = (start, start, VecDeque::new());
        Age { read: 0, since: start, looked, heard, silence: None, marks }
    }

    /// Since when the byte that was read last can have been there.
    pub fn since(&self) -> Instant {
        self.since
    }

    /// Whether it is time to look.
    pub fn is_stale(&self, now: Instant) -> bool {
        now.duration_since(self.looked) >= STALE
    }

    /// At `now`, so many bytes lay there, and the client's machine was heard last at `heard`.
    pub fn look(&mut self, waiting: u64, now: Instant, heard: Instant) {
        self.note_heard(heard.min(now));
        self.looked = now;
        let from = self.read + waiting;
        // Where nothing came between two looks the later one says more.
        while self.marks.back().is_some_and(|(known, _)| *known >= from) {
            self.marks.pop_back();
        }
        if self.marks.len() < LOOKS {
            self.marks.push_back((from, self.sent_after(now)));
        }
    }

    fn note_heard(&mut self, heard: Instant) {
        if heard.saturating_duration_since(self.heard) >= SILENCE {
            self.silence = Some((self.heard, heard));
        }
        self.heard = self.heard.max(heard);
    }

    /// When the oldest byte can have been sent that comes now.
    fn sent_after(&self, now: Instant) -> Instant {
        match self.silence {
            Some((began, ended)) if now < ended + (ended - began) => began,
            _ => self.heard,
        }
    }

    /// So many bytes more were read.
    pub fn took(&mut self, count: usize) {
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

    /// Looks each second at a client that sends nothing.
    fn idle(age: &mut Age, start: Instant, seconds: std::ops::RangeInclusive<u64>) {
        for at in seconds.map(|secs| start + Duration::from_secs(secs)) {
            age.look(0, at, at);
        }
    }

    #[test]
    fn a_request_is_as_old_as_the_last_look_that_did_not_see_it() {
        let start = Instant::now();
        let at = |secs| start + Duration::from_secs(secs);
        let mut age = Age::new(start);
        assert!(!age.is_stale(start) && age.is_stale(at(1)));
        idle(&mut age, start, 1..=4);
        age.look(700, at(5), at(5));
        age.look(900, at(6), at(6));
        age.took(500);
        assert_eq!(age.since(), at(4), "it lay there at the look");
        age.took(200);
        assert_eq!(age.since(), at(4), "its last byte lay there too");
        age.took(1);
        assert_eq!(age.since(), at(5), "the 701st byte came later");
        age.took(199);
        assert_eq!(age.since(), at(5), "the 900th was there at the second look");
        idle(&mut age, start, 7..=20);
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
        age.look(122, at(1), at(1));
        age.took(100);
        idle(&mut age, start, 2..=30);
        age.took(28);
        assert_eq!(age.since(), at(30));
    }

    #[test]
    fn what_comes_after_a_cable_was_put_back_is_as_old_as_the_cut() {
        let start = Instant::now();
        let at = |secs| start + Duration::from_secs(secs);
        let mut age = Age::new(start);
        let mut take = |now, heard| {
            age.look(0, at(now), at(heard));
            age.took(28);
            age.since()
        };
        assert_eq!((take(1, 1), take(2, 2)), (at(1), at(2)));
        assert_eq!(take(4, 2), at(2), "it is not heard");
        assert_eq!(take(5, 5), at(2), "it is heard again: this may have been sent before");
        assert_eq!(take(7, 7), at(2));
        assert_eq!(take(8, 7), at(7), "by now all that was is sent again");
    }
}
