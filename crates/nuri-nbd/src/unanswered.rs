//! Requests of a client that were sent to an owner and have no answer. Pure.
//!
//! A client whose connection is closed repeats elsewhere all requests without an answer, and goes
//! on. Requests of the client that were sent to the owner may still arrive there, until their
//! deadline. So this server closes no connection before that (NBD-1). Example: a request waited for
//! 10 s and is not served any more. Another request of the same client came two seconds ago. It was
//! sent to the owner, whose cable was pulled just then. The connection is closed when this request
//! is answered or too old, at most 8 s later. Meanwhile nothing more of the client is sent on.

use std::collections::BTreeMap;
use std::time::Instant;

use nuri_rules::broken;

/// More than a client has under way: some were lost with their link.
const MANY: usize = 256;

/// See the module's text.
#[derive(Default, Debug)]
pub struct Unanswered {
    last: u64,
    deadlines: BTreeMap<u64, Instant>,
}

impl Unanswered {
    /// A request is sent, which is not served after its deadline; its number.
    pub fn sent(&mut self, deadline: Instant, now: Instant) -> u64 {
        if self.deadlines.len() >= MANY {
            self.deadlines.retain(|_, deadline| *deadline > now);
        }
        self.last += 1;
        self.deadlines.insert(self.last, deadline);
        self.last
    }

    /// It was answered. What was sent over a connection that is lost is not.
    pub fn answered(&mut self, number: u64) {
        self.deadlines.remove(&number);
    }

    /// Until when the client's connection must not be closed; `None`: it may be.
    pub fn until(&mut self, now: Instant) -> Option<Instant> {
        self.deadlines.retain(|_, deadline| *deadline > now);
        self.deadlines.values().max().copied().filter(|_| !broken!("nbd_left_early"))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Catches `broken!("nbd_left_early")`.
    #[test]
    fn a_client_is_left_when_nothing_of_it_can_be_served_any_more() {
        let (mut unanswered, now) = (Unanswered::default(), Instant::now());
        assert_eq!(unanswered.until(now), None);
        let at = |secs| now + Duration::from_secs(secs);
        let [first, last] = [2, 5].map(|secs| unanswered.sent(at(secs), now));
        assert_eq!(unanswered.until(now), Some(at(5)));
        unanswered.answered(last);
        assert_eq!(unanswered.until(at(1)), Some(at(2)));
        assert_eq!(unanswered.until(at(2)), None, "it is too old");
        unanswered.answered(first);
        let lost = unanswered.sent(at(9), now);
        assert_eq!((unanswered.until(at(8)), lost), (Some(at(9)), 3));
    }
}
