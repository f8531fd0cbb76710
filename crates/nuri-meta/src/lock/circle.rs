//! Finds circles of waits: each owner in the circle waits for a lock that the next one holds.
//!
//! A wait is checked when it begins. It is checked again when a lock in its way goes to another
//! owner that waits too. Only waits that ask for it count as edges ([`Deadlock::Detect`]).

use std::collections::BTreeSet;

use nuri_proto::op::lock::{Deadlock, Granted, LockClass, LockEnd};
use nuri_rules::broken;

use super::{FileKey, LockTable, Owner, Told};

impl LockTable {
    /// Whether the wait can never end, because the owners that it waits for also wait for its
    /// owner.
    pub(super) fn closes_a_circle(&self, key: FileKey, at: usize) -> bool {
        let Some(file) = self.files.get(&key) else { return false };
        let wait = &file.queue[at];
        if key.1 != LockClass::Range
            || wait.deadlock == Deadlock::Ignore
            || broken!("lock_no_deadlock")
        {
            return false;
        }
        let mut seen = BTreeSet::new();
        let mut open: Vec<Owner> = file.blockers(at).into_iter().collect();
        while let Some(owner) = open.pop() {
            if owner == wait.owner {
                return true;
            }
            if seen.insert(owner) {
                self.wait_for(owner, &mut open);
            }
        }
        false
    }

    /// Adds those whom the owner's waits wait for.
    fn wait_for(&self, owner: Owner, open: &mut Vec<Owner>) {
        for request in self.waiting.get(&owner).into_iter().flatten() {
            let key = self.waits.get(&(owner.session, *request));
            let Some(file) = key.and_then(|key| self.files.get(key)) else { continue };
            let own = |w: &super::Wait| w.owner == owner && w.request == *request;
            let at = file.queue.iter().position(own);
            let counts = |at: &usize| file.queue[*at].deadlock == Deadlock::Detect;
            if let Some(at) = at.filter(counts) {
                open.extend(file.blockers(at));
            }
        }
    }

    /// Ends waits that the owners in `granted` now hold up, and whose owners they wait for. Returns
    /// whether there was one: then other waits may go on.
    pub(super) fn end_circles(
        &mut self,
        key: FileKey,
        granted: &[Owner],
        told: &mut Vec<Told>,
    ) -> bool {
        // Only who waits can be part of a circle.
        let waiting = granted.iter().filter(|owner| self.waiting.contains_key(owner));
        let waiting: Vec<_> = waiting.copied().collect();
        let mut at = 0;
        while let Some(wait) = self.files.get(&key).and_then(|f| f.queue.get(at)) {
            let held_up = waiting.iter().any(|owner| self.files[&key].holds_up(*owner, wait));
            if held_up && self.closes_a_circle(key, at) {
                if let Some(wait) = self.take_wait(key, at) {
                    self.next += 1;
                    let (request, number) = (wait.request, self.next);
                    let end = LockEnd { request, number, granted: Granted::Deadlock };
                    told.push(Told { session: wait.owner.session, end });
                }
                return true;
            }
            at += 1;
        }
        false
    }
}
