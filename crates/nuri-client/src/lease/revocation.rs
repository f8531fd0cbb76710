//! How a lease, or a range of one, leaves once it is recalled. Pure: [`Revocation::next`] says what
//! to do, and the caller does it.
//!
//! GRANT-4 A lease leaves when nothing under it is left at the client. Everything that held
//!    something of it reported that it is drained, and nothing was written since. No operation is
//!    under way, and no read overlapped the emptying of the kernel's caches. A lease that cannot
//!    leave in time is given up, and the loss that this causes is reported.

use std::time::{Duration, Instant};

use nuri_proto::clock::RECALL;
use nuri_proto::op::meta::LeaseMode;
use nuri_rules::broken;

/// An operation that is under way is waited for in steps of so long; its end is told.
const STEP: Duration = Duration::from_millis(20);

/// What goes on under a lease at one moment.
#[derive(Clone, Copy, Default, Debug)]
pub struct Activity {
    /// Operations under way.
    pub active: u32,
    /// Reads that ever began.
    pub reads: u64,
    /// Something written is not at the servers.
    pub is_dirty: bool,
}

/// What to do next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Let everything that holds something of the lease drain it, and say how that went.
    Drain,
    /// Wait for the end of an operation, at most so long.
    Wait(Duration),
    /// Nothing is left: give the lease back, before anything else happens under it.
    GiveBack,
    /// It takes too long: the server would end the session.
    GiveUp,
}

#[derive(Clone, Copy, Debug)]
enum Extent {
    /// The lease of the inode, but for what may be kept of it.
    Whole { keep: Option<LeaseMode> },
    /// A range of the file: operations elsewhere in it go on.
    Range,
}

/// A recall of a lease, or of a range of one, that the client is obeying.
#[derive(Clone, Copy, Debug)]
pub struct Revocation {
    extent: Extent,
    until: Instant,
    /// Reads that had begun when draining began last.
    reads: u64,
    /// How draining went, until that is looked at.
    drained: Option<bool>,
}

impl Revocation {
    pub fn of_lease(keep: Option<LeaseMode>, now: Instant) -> Revocation {
        Revocation::new(Extent::Whole { keep }, now)
    }

    pub fn of_range(now: Instant) -> Revocation {
        Revocation::new(Extent::Range, now)
    }

    /// Operations under way may wait for a target. Well before the server ends the session.
    fn new(extent: Extent, now: Instant) -> Revocation {
        Revocation { extent, until: now + RECALL / 2, reads: 0, drained: None }
    }

    /// The next step, as the inode is now.
    pub fn next(&mut self, activity: Activity, now: Instant) -> Step {
        match self.drained.take() {
            Some(is_all) if is_all && self.is_gone(activity) => Step::GiveBack,
            Some(_) => {
                Step::Wait(if self.waits_for_operation(activity) { STEP } else { STEP / 10 })
            }
            None if now >= self.until => Step::GiveUp,
            None if self.begins_after(activity) => Step::Wait(STEP),
            None => {
                self.reads = activity.reads;
                Step::Drain
            }
        }
    }

    /// Notes that everything was asked to drain. `false`: some of it could not.
    pub fn drained(&mut self, is_all: bool) {
        self.drained = Some(is_all);
    }

    fn is_gone(&self, activity: Activity) -> bool {
        let Extent::Whole { keep } = self.extent else { return true };
        // Under a lease to read the kernel keeps what it has.
        let is_overlapped = keep.is_none() && activity.reads != self.reads;
        let is_overlapped = is_overlapped && !broken!("read_overlaps_recall");
        activity.active == 0 && !activity.is_dirty && !is_overlapped
    }

    fn waits_for_operation(&self, activity: Activity) -> bool {
        activity.active > 0 || matches!(self.extent, Extent::Range)
    }

    /// Writes of the range that began before may still be at it. Those of a whole lease may wait
    /// for the kernel, which draining tells.
    fn begins_after(&self, activity: Activity) -> bool {
        matches!(self.extent, Extent::Range) && activity.active > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Activity = Activity { active: 0, reads: 3, is_dirty: false };

    /// A revocation of which everything is drained.
    fn drained(keep: Option<LeaseMode>, now: Instant) -> Revocation {
        let mut revocation = Revocation::of_lease(keep, now);
        assert_eq!(revocation.next(IDLE, now), Step::Drain);
        revocation.drained(true);
        revocation
    }

    #[test]
    fn a_lease_leaves_when_nothing_under_it_is_left() {
        let now = Instant::now();
        assert_eq!(drained(None, now).next(IDLE, now), Step::GiveBack);
        let mut refused = Revocation::of_lease(None, now);
        assert_eq!(refused.next(IDLE, now), Step::Drain);
        refused.drained(false);
        assert_eq!(refused.next(IDLE, now), Step::Wait(STEP / 10));
        assert_eq!(refused.next(IDLE, now), Step::Drain, "once more");
        let busy = Activity { active: 1, ..IDLE };
        assert_eq!(drained(None, now).next(busy, now), Step::Wait(STEP));
        let written = Activity { is_dirty: true, ..IDLE };
        assert_eq!(drained(None, now).next(written, now), Step::Wait(STEP / 10));
    }

    /// Catches `broken!("read_overlaps_recall")`: the kernel may have kept what the read brought.
    #[test]
    fn a_read_beside_the_emptying_of_the_kernel_has_it_emptied_again() {
        let now = Instant::now();
        let read = Activity { reads: 4, ..IDLE };
        let mut revocation = drained(None, now);
        assert_eq!(revocation.next(read, now), Step::Wait(STEP / 10));
        assert_eq!(revocation.next(read, now), Step::Drain);
        revocation.drained(true);
        assert_eq!(revocation.next(read, now), Step::GiveBack);
        let keeps = Some(LeaseMode::Read);
        assert_eq!(drained(keeps, now).next(read, now), Step::GiveBack, "it may");
    }

    #[test]
    fn what_takes_too_long_is_given_up_before_the_server_ends_the_session() {
        let now = Instant::now();
        let late = now + RECALL / 2;
        let busy = Activity { active: 1, ..IDLE };
        let mut revocation = drained(None, now);
        assert_eq!(revocation.next(busy, late), Step::Wait(STEP));
        assert_eq!(revocation.next(busy, late), Step::GiveUp);
        let mut in_time = drained(None, now);
        assert_eq!(in_time.next(IDLE, late), Step::GiveBack, "it is drained");
    }

    #[test]
    fn a_range_is_drained_after_its_writes_and_leaves_beside_others() {
        let now = Instant::now();
        let busy = Activity { active: 1, is_dirty: true, reads: 3 };
        let mut revocation = Revocation::of_range(now);
        assert_eq!(revocation.next(busy, now), Step::Wait(STEP));
        assert_eq!(revocation.next(IDLE, now), Step::Drain);
        revocation.drained(true);
        assert_eq!(revocation.next(busy, now), Step::GiveBack);
        assert_eq!(revocation.next(busy, now + RECALL), Step::GiveUp);
    }
}
