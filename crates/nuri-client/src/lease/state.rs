//! What a client believes to hold of an inode: its lease, while grants and recalls come in any
//! order. Pure: the caller does what a recall asks for, and says when it is done.
//!
//! GRANT-1 A grant is void, even when its answer comes late, in three cases. It is of an earlier
//!    start of the server, or of a session that ended, or its number was recalled.
//! GRANT-2 While the client obeys a recall, nothing new is cached or journalled under the lease. A
//!    second recall may come because it takes more. Then this lasts until both are done: what the
//!    second recall emptied must stay empty when the first one ends.
//! GRANT-3 A recall of grants older than the last one takes nothing: the last grant stays.
//!
//! Callers: `inode/mod.rs`, `recall.rs`, and the simulator.

use nuri_proto::op::meta::{Grant, LeaseMode};
use nuri_rules::broken;

/// Tells a valid grant from a delayed one. Read it under the lock of the state that the grant
/// changes. Then the end of a session either finds the grant there or prevents it.
#[derive(Clone, Copy, Debug)]
pub struct GrantValidity {
    pub server_boot: u64,
    /// Grants up to this number belong to sessions that ended.
    pub void: u64,
}

impl GrantValidity {
    pub(crate) fn counts(self, grant: Grant) -> bool {
        self.counts_number(grant.number)
    }

    pub(crate) fn counts_number(self, number: u64) -> bool {
        Grant::is_number_of(number, self.server_boot) && number > self.void
    }
}

/// What the client holds of an inode: a lease, or none.
#[derive(Clone, Copy, Default, Debug)]
pub struct LeaseState {
    pub mode: Option<LeaseMode>,
    /// Of the last grant; 0 where the server did not say yet.
    pub number: u64,
    /// Grants up to this number were recalled.
    pub recalled: u64,
    /// A recall is being obeyed: nothing new is cached in the kernel.
    pub revoking: bool,
    /// How many are.
    pub obeying: u32,
    /// It was made here, and nobody else could open it since.
    pub is_private: bool,
}

/// What a recall asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recalled {
    /// Nothing: this is answered.
    Kept(Option<LeaseMode>),
    /// The lease, when everything under it is done.
    Lease,
}

impl LeaseState {
    /// The lease of an inode that was just made here, or that the server does not know yet.
    pub fn own() -> LeaseState {
        LeaseState { mode: Some(LeaseMode::Write), is_private: true, ..LeaseState::default() }
    }

    /// The lease of an inode that is not known here, and whose grants up to a number were recalled.
    pub(crate) fn none(recalled: u64) -> LeaseState {
        LeaseState { recalled, ..LeaseState::default() }
    }

    /// Whether an answer under the grant is still valid (GRANT-1).
    pub fn counts(&self, grant: Grant, standing: GrantValidity) -> bool {
        let is_recalled = grant.number <= self.recalled && !broken!("void_grant_counts");
        standing.counts(grant) && !is_recalled
    }

    /// Takes over a grant if it is valid; returns whether it is.
    pub fn take(&mut self, grant: Option<Grant>, standing: GrantValidity) -> bool {
        let Some(grant) = grant.filter(|grant| self.counts(*grant, standing)) else { return false };
        if grant.number > self.number {
            (self.mode, self.number) = (Some(grant.mode), grant.number);
        }
        true
    }

    /// The lease as the restarted server confirmed it.
    pub fn reclaimed(&mut self, grant: Grant) {
        (self.mode, self.number) = (Some(grant.mode), grant.number);
    }

    /// Notes a recall of the grants up to the number. `last` is the last grant of the inode, whole
    /// or of a range. `has_more` says that something besides the lease is kept under them.
    pub fn recall(&mut self, number: u64, last: u64, has_more: bool) -> Recalled {
        self.recalled = self.recalled.max(number);
        if last > number {
            return Recalled::Kept(self.mode);
        }
        if self.mode.is_none() && !has_more {
            return Recalled::Kept(None);
        }
        (self.revoking, self.obeying) = (true, self.obeying + 1);
        Recalled::Lease
    }

    /// Gives the lease back, except for what may be kept, after everything under it is done.
    pub fn give_back(&mut self, keep: Option<LeaseMode>) -> Option<LeaseMode> {
        self.obeying = self.obeying.saturating_sub(1);
        let others = self.obeying > 0 && !broken!("first_recall_ends_all");
        (self.mode, self.revoking) = (self.mode.min(keep), others);
        self.is_private &= self.is_alone();
        self.mode
    }

    /// Notes that the lease was lost without a recall. A recall that is being obeyed ends by
    /// itself.
    pub fn lose(&mut self) {
        (self.mode, self.is_private) = (None, false);
    }

    /// Downgrades the lease to reads without a recall.
    pub fn step_down(&mut self) {
        (self.mode, self.is_private) = (Some(LeaseMode::Read), false);
    }

    /// Whether this client alone holds the inode, and keeps it for now (GRANT-2).
    pub fn is_alone(&self) -> bool {
        self.mode == Some(LeaseMode::Write) && !self.revoking
    }

    /// Whether what the lease covers may be cached (GRANT-2).
    pub fn is_cacheable(&self) -> bool {
        self.mode.is_some() && !self.revoking
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: GrantValidity = GrantValidity { server_boot: 0, void: 0 };

    fn grant(mode: LeaseMode, number: u64) -> Option<Grant> {
        Some(Grant { mode, number })
    }

    /// Catches `broken!("void_grant_counts")`.
    #[test]
    fn a_grant_that_its_recall_overtook_is_void() {
        let mut hold = LeaseState::default();
        assert_eq!(hold.recall(5, 0, false), Recalled::Kept(None));
        assert!(!hold.take(grant(LeaseMode::Write, 5), HERE));
        assert!(hold.take(grant(LeaseMode::Read, 6), HERE));
        assert_eq!(hold.mode, Some(LeaseMode::Read));
    }

    /// Catches `broken!("first_recall_ends_all")`.
    #[test]
    fn nothing_is_cached_until_the_last_of_two_recalls_is_done() {
        let mut hold = LeaseState::default();
        hold.take(grant(LeaseMode::Write, 7), HERE);
        assert_eq!(hold.recall(7, hold.number, false), Recalled::Lease, "a reader asks");
        assert_eq!(hold.recall(7, hold.number, false), Recalled::Lease, "and then a writer");
        assert_eq!(hold.give_back(Some(LeaseMode::Read)), Some(LeaseMode::Read));
        assert!(!hold.is_cacheable(), "what the second one emptied stays empty");
        assert_eq!(hold.give_back(None), None);
        assert!(!hold.revoking);
        hold.take(grant(LeaseMode::Read, 8), HERE);
        assert!(hold.is_cacheable());
        hold.recall(8, hold.number, false);
        hold.lose();
        assert!(hold.revoking, "its recall has not ended");
        hold.give_back(None);
        assert!(!hold.revoking);
    }

    #[test]
    fn a_recall_takes_what_was_granted_before_it() {
        let mut hold = LeaseState::default();
        hold.take(grant(LeaseMode::Write, 7), HERE);
        assert_eq!(hold.recall(6, hold.number, false), Recalled::Kept(Some(LeaseMode::Write)));
        assert!(hold.is_alone());
        assert_eq!(hold.recall(7, hold.number, false), Recalled::Lease);
        assert!(!hold.is_alone() && !hold.is_cacheable());
        assert_eq!(hold.give_back(Some(LeaseMode::Read)), Some(LeaseMode::Read));
        assert!(hold.is_cacheable() && !hold.is_alone());
        assert_eq!(hold.recall(7, hold.number, false), Recalled::Lease);
        assert_eq!(hold.give_back(None), None);
        assert_eq!(hold.recall(7, hold.number, true), Recalled::Lease, "parts are kept");
    }
}
