//! Exclusive rights to stripes, as the leases of the metadata server give them. The next client
//! gets the right when the one before gave it up, or is dead and fenced.

use std::collections::VecDeque;

/// See the module's text. Stripes and actors are numbers.
pub(super) struct Locks {
    held: Vec<Option<usize>>,
    waiting: Vec<VecDeque<usize>>,
}

impl Locks {
    pub(super) fn new(stripes: usize) -> Locks {
        Locks { held: vec![None; stripes], waiting: vec![VecDeque::new(); stripes] }
    }

    /// Whether the actor has it now; else it waits.
    pub(super) fn take(&mut self, stripe: usize, actor: usize) -> bool {
        let is_free = self.held[stripe].is_none();
        if is_free {
            self.held[stripe] = Some(actor);
        } else {
            self.waiting[stripe].push_back(actor);
        }
        is_free
    }

    /// Gives it to the next one, who is returned.
    pub(super) fn release(&mut self, stripe: usize) -> Option<usize> {
        self.held[stripe] = self.waiting[stripe].pop_front();
        self.held[stripe]
    }

    /// The actor waits for nothing any more; what it has stays taken. Returns that.
    pub(super) fn died(&mut self, actor: usize) -> Vec<usize> {
        self.waiting.iter_mut().for_each(|w| w.retain(|a| *a != actor));
        (0..self.held.len()).filter(|s| self.held[*s] == Some(actor)).collect()
    }
}
