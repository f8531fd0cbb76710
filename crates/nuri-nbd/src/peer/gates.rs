//! Which connections of forwarders may ask something of a device. Pure.
//!
//! Of each forwarder, only the connection with the highest attempt may ask. Otherwise, what an
//! older connection left behind would be served after something newer (NBD-1). Example: forwarder 7
//! lost its first connection with a write under way. It opens a second connection, which has to
//! wait, because the write still runs. When the write ends, nothing of the first connection is let
//! in any more, and the second one may ask.

use std::collections::BTreeMap;

use nuri_rules::broken;

/// A connection of one who forwards.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Way {
    pub forwarder: u64,
    pub attempt: u64,
}

/// See the module's text.
#[derive(Default, Debug)]
pub struct Gates {
    known: BTreeMap<Way, Gate>,
}

#[derive(Default, Debug)]
struct Gate {
    /// Requests that were let in and did not end.
    inside: usize,
    /// There was a newer connection, perhaps one that is closed by now.
    is_shut: bool,
}

impl Gates {
    /// A new connection. False: a later one is known.
    pub fn open(&mut self, way: Way) -> bool {
        let all = Way { attempt: 0, ..way }..=Way { attempt: u64::MAX, ..way };
        if self.known.range(all.clone()).next_back().is_some_and(|(last, _)| *last >= way) {
            return false;
        }
        self.known.range_mut(all).for_each(|(_, gate)| gate.is_shut = true);
        self.known.insert(way, Gate::default());
        true
    }

    /// Whether nothing of the forwarder's older connections is inside any more. Until then the
    /// connection is not told that it is open.
    pub fn is_clear(&self, way: Way) -> bool {
        let older = Way { attempt: 0, ..way }..way;
        self.known.range(older).all(|(_, gate)| gate.inside == 0)
    }

    /// A request; to be told when it ends. False: there was a newer connection.
    pub fn enter(&mut self, way: Way) -> bool {
        let Some(gate) = self.known.get_mut(&way) else { return false };
        let may = !gate.is_shut || broken!("nbd_attempts");
        gate.inside += usize::from(may);
        may
    }

    /// A request that was let in ended.
    pub fn leave(&mut self, way: Way) {
        if let Some(gate) = self.known.get_mut(&way) {
            gate.inside = gate.inside.saturating_sub(1);
        }
    }

    /// The connection is closed, and nothing of it is inside.
    pub fn close(&mut self, way: Way) {
        self.known.remove(&way);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(forwarder: u64, attempt: u64) -> Way {
        Way { forwarder, attempt }
    }

    /// Catches `broken!("nbd_attempts")`.
    #[test]
    fn what_is_left_of_an_older_connection_is_refused() {
        let (mut gates, first, second) = (Gates::default(), way(7, 1), way(7, 2));
        assert!(gates.open(first) && gates.is_clear(first));
        assert!(gates.enter(first));
        assert!(gates.open(second));
        assert!(!gates.open(second) && !gates.open(first), "not the last");
        assert!(!gates.is_clear(second), "a request of the first one runs");
        assert!(!gates.enter(first));
        gates.leave(first);
        assert!(gates.is_clear(second) && !gates.enter(first) && gates.enter(second));
        assert!(gates.open(way(8, 1)) && gates.is_clear(way(8, 1)), "another one who forwards");
    }

    #[test]
    fn a_connection_stays_shut_when_the_newer_one_is_closed() {
        let mut gates = Gates::default();
        assert!(gates.open(way(7, 1)) && gates.open(way(7, 2)) && gates.enter(way(7, 2)));
        gates.leave(way(7, 2));
        gates.close(way(7, 2));
        assert!(!gates.enter(way(7, 1)));
        gates.close(way(7, 1));
        assert!(gates.known.is_empty(), "of those who went nothing is kept");
    }
}
