//! Rule DATA-8 at the writer: bytes that a target acknowledged from memory are kept until a flush.
//! If the flush answers with the same boot id, they are durable and dropped. If it answers with
//! another boot id, they are sent again.
//!
//! There is one table per client. `T` names kept bytes; the table never looks inside.

use std::collections::HashMap;

use nuri_proto::id::{BootId, TargetId};
use nuri_rules::broken;

/// Kept bytes by target, in the order of their acknowledgements.
pub struct Unsynced<T> {
    targets: HashMap<TargetId, Vec<Kept<T>>>,
    clock: u64,
}

struct Kept<T> {
    at: u64,
    boot: BootId,
    token: T,
}

/// A flush under way: it covers what was acknowledged before it began.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlushTicket {
    target: TargetId,
    before: u64,
}

/// What a flush settled.
#[derive(PartialEq, Eq, Debug)]
pub struct Settled<T> {
    /// On stable storage: may be forgotten.
    pub durable: Vec<T>,
    /// Lost with the target's memory: to be sent again.
    pub lost: Vec<T>,
}

impl<T> Default for Unsynced<T> {
    fn default() -> Self {
        Unsynced { targets: HashMap::new(), clock: 0 }
    }
}

impl<T> Unsynced<T> {
    /// The target holds the bytes in memory, under `boot`.
    pub fn acknowledged(&mut self, target: TargetId, boot: BootId, token: T) {
        self.clock += 1;
        let at = self.clock;
        self.targets.entry(target).or_default().push(Kept { at, boot, token });
    }

    /// Targets that hold unsynced bytes, ascending.
    pub fn targets(&self) -> Vec<TargetId> {
        self.targets_of(|_| true)
    }

    /// Targets that hold unsynced bytes of these names, ascending.
    pub fn targets_of(&self, are_meant: impl Fn(&T) -> bool) -> Vec<TargetId> {
        let holds = |(target, kept): (&TargetId, &Vec<Kept<T>>)| {
            kept.iter().any(|kept| are_meant(&kept.token)).then_some(*target)
        };
        let mut out: Vec<_> = self.targets.iter().filter_map(holds).collect();
        out.sort();
        out
    }

    /// A flush is about to be sent.
    pub fn begin_flush(&self, target: TargetId) -> FlushTicket {
        FlushTicket { target, before: self.clock }
    }

    /// The flush answered under `boot`.
    pub fn end_flush(&mut self, ticket: FlushTicket, boot: BootId) -> Settled<T> {
        let mut settled = Settled { durable: Vec::new(), lost: Vec::new() };
        let Some(kept) = self.targets.get_mut(&ticket.target) else {
            return settled;
        };
        for entry in std::mem::take(kept) {
            if entry.at > ticket.before {
                kept.push(entry);
            } else if entry.boot == boot || broken!("flush_ignores_boot") {
                settled.durable.push(entry.token);
            } else {
                settled.lost.push(entry.token);
            }
        }
        settled
    }

    /// The target answered something else under `boot`: what it held under another one is lost.
    pub fn restarted(&mut self, target: TargetId, boot: BootId) -> Vec<T> {
        let is_lost = |kept: &mut Kept<T>| kept.boot != boot && !broken!("restart_unnoticed");
        let kept = self.targets.get_mut(&target);
        kept.map_or_else(Vec::new, |kept| kept.extract_if(.., is_lost).map(|k| k.token).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T1: TargetId = TargetId(1);

    /// Catches `broken!("flush_ignores_boot")`.
    #[test]
    fn a_restarted_target_lost_what_it_held() {
        let mut unsynced = Unsynced::default();
        unsynced.acknowledged(T1, BootId(1), 'a');
        unsynced.acknowledged(T1, BootId(2), 'b');
        let ticket = unsynced.begin_flush(T1);
        let settled = unsynced.end_flush(ticket, BootId(2));
        assert_eq!(settled, Settled { durable: vec!['b'], lost: vec!['a'] });
        assert!(unsynced.targets().is_empty());
    }

    /// Catches `broken!("restart_unnoticed")`.
    #[test]
    fn any_answer_tells_of_a_restart() {
        let mut unsynced = Unsynced::default();
        assert_eq!(unsynced.restarted(T1, BootId(1)), []);
        unsynced.acknowledged(T1, BootId(1), 'a');
        unsynced.acknowledged(T1, BootId(2), 'b');
        assert_eq!(unsynced.restarted(T1, BootId(2)), ['a']);
        assert_eq!(unsynced.restarted(T1, BootId(2)), []);
        assert_eq!(unsynced.targets(), [T1]);
    }

    #[test]
    fn a_flush_does_not_cover_what_came_after_it_began() {
        let mut unsynced = Unsynced::default();
        unsynced.acknowledged(T1, BootId(1), 'a');
        let ticket = unsynced.begin_flush(T1);
        unsynced.acknowledged(T1, BootId(1), 'b');
        assert_eq!(unsynced.end_flush(ticket, BootId(1)).durable, ['a']);
        assert_eq!(unsynced.targets(), [T1]);
    }
}
