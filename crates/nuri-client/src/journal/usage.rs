//! How a client uses a directory, and whether the directory is worth holding exclusively.

use std::time::{Duration, Instant};

/// Own changes of a directory before it is worth having it alone.
const WORTH: u32 = 4;
/// Own changes, none long after the one before, before it is worth a turn.
const WORTH_A_TURN: u32 = 8;
const PAUSE: Duration = Duration::from_millis(200);
/// After somebody else asked for it, it is left to be shared for so long.
const SHARED_FOR: Duration = Duration::from_secs(1);

/// How this client used a directory lately.
#[derive(Default)]
pub(crate) struct DirUsage {
    /// Changes asked of the server directly: under way, and begun ever.
    pub(super) direct: u32,
    pub(super) begun: u64,
    /// Those since it was asked for elsewhere.
    own: u32,
    /// Own changes, direct or not, without a pause, and when the last was.
    running: u32,
    changed: Option<Instant>,
    /// Its change counter after some direct change, and those begun that it surely counts.
    pub(super) counted: Option<(u64, u64)>,
    asked_elsewhere: Option<Instant>,
    /// It has too many names, or too many attributes to know what it hands down.
    pub(super) is_unfit: bool,
}

/// How a directory is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Take {
    /// For as long as nobody else wants it.
    Exclusive,
    /// While others want it too.
    Turn,
}

impl DirUsage {
    /// Notes that another client asked for the directory.
    pub(crate) fn asked_elsewhere(&mut self) {
        (self.own, self.asked_elsewhere) = (0, Some(Instant::now()));
        self.counted = None;
    }

    pub(super) fn begin(&mut self) {
        self.direct += 1;
        self.begun += 1;
        self.own += 1;
        self.note_change();
    }

    /// Notes a change by this client, direct or journalled.
    pub(super) fn note_change(&mut self) {
        let now = Instant::now();
        let goes_on = self.changed.is_some_and(|at| now - at < PAUSE);
        self.running = if goes_on { self.running.saturating_add(1) } else { 1 };
        self.changed = Some(now);
    }

    /// Notes the answer to a direct change, with the directory's change counter at that time. What
    /// the counter counts beyond this client's changes comes from other clients.
    pub(crate) fn answered(&mut self, change: u64) {
        let Some((known, begun)) = self.counted else {
            let ended = self.begun - u64::from(self.direct.saturating_sub(1));
            self.counted = Some((change, ended));
            return;
        };
        if change.saturating_sub(known) > self.begun - begun {
            self.asked_elsewhere();
        }
    }

    /// Whether and how to ask for the directory.
    pub(super) fn wanted(&self) -> Option<Take> {
        if self.takes_turns() {
            return Some(Take::Turn);
        }
        let is_alone = self.own >= WORTH && !self.is_shared() && self.direct == 0;
        (is_alone && !self.is_unfit).then_some(Take::Exclusive)
    }

    /// Whether the directory is changed again and again by this client, and by others too.
    pub(super) fn takes_turns(&self) -> bool {
        let goes_on = self.changed.is_some_and(|at| at.elapsed() < PAUSE);
        goes_on && self.running >= WORTH_A_TURN && self.is_shared() && !self.is_unfit
    }

    pub(super) fn is_shared(&self) -> bool {
        self.asked_elsewhere.is_some_and(|at| at.elapsed() < SHARED_FOR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_taken_after_some_changes_and_left_when_others_want_it() {
        let mut usage = DirUsage::default();
        for _ in 0..WORTH {
            assert_eq!(usage.wanted(), None);
            usage.begin();
            assert_eq!(usage.wanted(), None, "a direct change is under way");
            usage.direct -= 1;
        }
        assert_eq!(usage.wanted(), Some(Take::Exclusive));
        usage.asked_elsewhere();
        (0..WORTH).for_each(|_| usage.begin());
        usage.direct = 0;
        assert_eq!(usage.wanted(), Some(Take::Turn), "somebody asked for it just now");
        usage.asked_elsewhere = Instant::now().checked_sub(SHARED_FOR);
        assert_eq!(usage.wanted(), Some(Take::Exclusive));
    }

    #[test]
    fn a_directory_that_others_change_too_is_left_to_be_shared() {
        let mut usage = DirUsage::default();
        let change = |usage: &mut DirUsage, to| {
            usage.begin();
            usage.answered(to);
            usage.direct -= 1;
        };
        (1..=WORTH.into()).for_each(|to| change(&mut usage, to));
        assert_eq!(usage.wanted(), Some(Take::Exclusive));
        // Two at once, of which the second is answered first.
        usage.begin();
        usage.begin();
        usage.answered(u64::from(WORTH) + 2);
        usage.answered(u64::from(WORTH) + 1);
        usage.direct = 0;
        assert_eq!(usage.wanted(), Some(Take::Exclusive));
        change(&mut usage, u64::from(WORTH) + 4);
        assert!(usage.is_shared(), "one of these was not ours");
    }

    #[test]
    fn changes_under_way_at_the_first_answer_are_our_own() {
        let mut usage = DirUsage::default();
        (0..WORTH).for_each(|_| usage.begin());
        (1..=WORTH.into()).for_each(|to| usage.answered(to));
        usage.direct = 0;
        assert_eq!(usage.wanted(), Some(Take::Exclusive));
    }

    #[test]
    fn a_directory_that_others_change_all_the_time_is_taken_for_turns() {
        let mut usage = DirUsage::default();
        usage.asked_elsewhere();
        (0..WORTH_A_TURN - 1).for_each(|_| usage.note_change());
        assert_eq!(usage.wanted(), None, "not often enough");
        usage.note_change();
        assert_eq!(usage.wanted(), Some(Take::Turn));
        usage.asked_elsewhere();
        assert_eq!(usage.wanted(), Some(Take::Turn), "it goes on");
        usage.changed = Instant::now().checked_sub(PAUSE);
        assert_eq!(usage.wanted(), None, "nothing was done here for a while");
        usage.note_change();
        assert_eq!(usage.wanted(), None, "and it begins anew");
    }
}
