//! Turns of sessions that change one directory together (`DirectoryDelegations`). Pure.
//!
//! A change that is sent to the server directly recalls the directory from all other clients'
//! caches. It also waits for the disk of the server's log. So a client that changes the directory
//! again and again takes it for a turn. It works in its own journal, and flushes everything at the
//! end of the turn. A turn protects from clients that ask for a turn, and from no others
//! (DELEGATION-1).

use std::collections::HashMap;
use std::time::Duration;

use nuri_proto::clock::TURN;
use nuri_proto::id::{Ino, SessionId};

/// DirectoryDelegations remembered before those that are over are dropped.
const MOST: usize = 1024;

/// Who has the whole directory to read first is given so much longer for each name.
const READING: Duration = Duration::from_micros(10);

/// A turn that begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Taken {
    pub(crate) dir: Ino,
    /// Names that the session has to read first.
    pub(crate) unread: u64,
}

/// Which session has its turn in each directory, and until when.
#[derive(Default)]
pub(crate) struct DirectoryDelegations(HashMap<Ino, (SessionId, Duration)>);

impl DirectoryDelegations {
    /// Begins a turn. A turn that goes on is made longer only for the names that have to be read.
    pub(crate) fn begin(&mut self, taken: Taken, session: SessionId, now: Duration) {
        if self.0.len() >= MOST {
            self.0.retain(|_, (_, end)| *end > now);
        }
        let unread = u32::try_from(taken.unread).unwrap_or(u32::MAX);
        let end = match self.current(taken.dir, now) {
            Some((holder, left)) if holder == session => now + left,
            _ => now + TURN,
        };
        self.0.insert(taken.dir, (session, end + READING.saturating_mul(unread)));
    }

    /// The session whose turn goes on, and how long it still lasts.
    pub(crate) fn current(&self, dir: Ino, now: Duration) -> Option<(SessionId, Duration)> {
        let (session, end) = *self.0.get(&dir)?;
        (end > now).then(|| (session, end - now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_ends_by_the_clock() {
        let (mut turns, dir, session) = (DirectoryDelegations::default(), Ino(5), SessionId(1));
        let now = Duration::from_secs(9);
        assert_eq!(turns.current(dir, now), None);
        turns.begin(Taken { dir, unread: 0 }, session, now);
        assert_eq!(turns.current(dir, now), Some((session, TURN)));
        assert_eq!(turns.current(Ino(6), now), None);
        assert_eq!(turns.current(dir, now + TURN), None);
        turns.begin(Taken { dir, unread: 1000 }, session, now);
        assert_eq!(turns.current(dir, now), Some((session, TURN + 1000 * READING)));
        let half = TURN / 2;
        turns.begin(Taken { dir, unread: 0 }, session, now);
        turns.begin(Taken { dir, unread: 0 }, SessionId(2), now);
        turns.begin(Taken { dir, unread: 0 }, SessionId(2), now + half);
        assert_eq!(turns.current(dir, now + half), Some((SessionId(2), half)));
    }

    #[test]
    fn turns_that_are_over_take_no_memory() {
        let mut turns = DirectoryDelegations::default();
        for i in 0..3 * MOST as u64 {
            let taken = Taken { dir: Ino(i), unread: 0 };
            turns.begin(taken, SessionId(1), i as u32 * TURN);
            assert!(turns.0.len() <= MOST);
        }
    }
}
