//! Whether the rows of a shared file that a client writes are new.

use std::sync::atomic::{AtomicU32, Ordering};

/// So many new rows one after the other, and the next one is taken to be new.
const CONVINCED: u32 = 4;

/// What was found of the rows of a file that other clients write too. While the clients write the
/// file for the first time, each row is new, and need not be asked for before it is written. A
/// wrong guess costs more than asking.
#[derive(Default)]
pub(crate) struct FoundRows {
    /// Rows in a row that nobody had written.
    fresh: AtomicU32,
}

impl FoundRows {
    pub(super) fn are_fresh(&self) -> bool {
        self.fresh.load(Ordering::Relaxed) >= CONVINCED
    }

    pub(super) fn found(&self, fresh: bool) {
        match fresh {
            true => drop(self.fresh.fetch_add(1, Ordering::Relaxed)),
            false => self.fresh.store(0, Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_taken_to_be_new_after_several_that_were() {
        let rows = FoundRows::default();
        for _ in 0..CONVINCED {
            assert!(!rows.are_fresh());
            rows.found(true);
        }
        assert!(rows.are_fresh());
        rows.found(false);
        assert!(!rows.are_fresh());
    }
}
