//! The locks of one class on one file: the held locks, and the waits in their order.

use std::collections::{BTreeMap, BTreeSet};

use nuri_proto::op::lock::LockMode;
use nuri_proto::range_map::{RangeMap, Span};

use super::{Owner, Wait, passes};

/// The locks and waits of a file; see the module's text.
#[derive(Default)]
pub(super) struct LockFile {
    pub(super) held: BTreeMap<Owner, Held>,
    /// In the order in which they came.
    pub(super) queue: Vec<Wait>,
}

#[derive(Default)]
pub(super) struct Held {
    pub(super) pid: u32,
    pub(super) ranges: RangeMap<LockMode>,
}

/// Whether two owners cannot have both.
fn clash(one: LockMode, other: LockMode) -> bool {
    one == LockMode::Exclusive || other == LockMode::Exclusive
}

impl LockFile {
    pub(super) fn is_unused(&self) -> bool {
        self.held.is_empty() && self.queue.is_empty()
    }

    /// The locks of other owners in the way.
    pub(super) fn held_against(
        &self,
        owner: Owner,
        span: Span,
        mode: LockMode,
    ) -> impl Iterator<Item = (Owner, Span, LockMode)> + '_ {
        let others = self.held.iter().filter(move |(other, _)| **other != owner);
        others.flat_map(move |(other, held)| {
            let meeting = held.ranges.meeting(span).filter(move |(_, have)| clash(*have, mode));
            meeting.map(|(part, have)| (*other, part, have))
        })
    }

    /// Waits among the first `before` that must come first: those that were passed often enough.
    /// One that waits for the owner itself does not count: neither would ever go on.
    pub(super) fn queued_against(
        &self,
        owner: Owner,
        span: Span,
        mode: LockMode,
        before: usize,
    ) -> impl Iterator<Item = Owner> + '_ {
        let tired = self.queue[..before].iter().filter(move |w| {
            w.passed >= passes() && w.owner != owner && w.span.meets(span) && clash(w.mode, mode)
        });
        tired.filter(move |w| !self.holds_up(owner, w)).map(|w| w.owner)
    }

    /// Whether what `owner` holds is in the way of `wait`.
    pub(super) fn holds_up(&self, owner: Owner, wait: &Wait) -> bool {
        let held = self.held.get(&owner).filter(|_| owner != wait.owner);
        held.is_some_and(|h| h.ranges.meeting(wait.span).any(|(_, have)| clash(have, wait.mode)))
    }

    /// Whether the wait at `at` may become a lock now.
    pub(super) fn may_go(&self, at: usize) -> bool {
        let Wait { owner, span, mode, .. } = self.queue[at];
        self.held_against(owner, span, mode).next().is_none()
            && self.queued_against(owner, span, mode, at).next().is_none()
    }

    /// Notes that a lock is granted before those waits among the first `before` that it is in the
    /// way of.
    pub(super) fn pass(&mut self, owner: Owner, span: Span, mode: LockMode, before: usize) {
        for wait in &mut self.queue[..before] {
            if wait.owner != owner && wait.span.meets(span) && clash(wait.mode, mode) {
                wait.passed = wait.passed.saturating_add(1);
            }
        }
    }

    /// The owners that hold what the wait at `at` waits for. Waits that merely come first do not
    /// count, because that passes by itself (`LockTable::relax`).
    pub(super) fn blockers(&self, at: usize) -> BTreeSet<Owner> {
        let Wait { owner, span, mode, .. } = self.queue[at];
        self.held_against(owner, span, mode).map(|(other, ..)| other).collect()
    }
}
