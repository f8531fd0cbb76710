//! Keeps changes of a file's size, and syncs, apart from writes that bypass the kernel.
//!
//! The kernel's lock of an inode excludes the kernel's own writes while a program truncates the
//! file. The kernel knows nothing of writes that bypass it (`Client::write_past`). This file counts
//! those writes once they have entered under their lease. A change of size waits for the counted
//! writes to end, and lets no new one begin. A counted write never waits for its lease. Otherwise
//! the recall of the lease might wait for the change of size (LEASE-4c), and the change of size for
//! the write.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Inode;

/// Much longer than a change of size takes; then it is looked at again.
const STEP: Duration = Duration::from_millis(20);

/// A write that was kept away for so long goes before changes that only wait: one sync after the
/// other would keep it away for ever.
const PRESSING: Duration = Duration::from_millis(100);

/// Counts the writes that bypass the kernel, and the changes of the size that keep them away.
#[derive(Default)]
pub(crate) struct SizeGate {
    /// Writes that were kept away for long.
    pressing: u32,
    /// Writes under way.
    writes: u32,
    /// Changes that are under way or wait for writes to end.
    changes: u32,
    is_changing: bool,
}

impl SizeGate {
    /// Whether a write may begin; then it has.
    fn begin_write(&mut self, is_pressing: bool) -> bool {
        let may_begin = self.changes == 0 || is_pressing && !self.is_changing;
        self.writes += u32::from(may_begin);
        may_begin
    }

    /// Whether a change that was announced may begin; then it has.
    fn begin_change(&mut self) -> bool {
        let may_begin = self.writes == 0 && self.pressing == 0 && !self.is_changing;
        self.is_changing |= may_begin;
        may_begin
    }
}

/// A write past the kernel; ends when dropped.
pub(crate) struct WritingPast(Arc<Inode>);

impl Drop for WritingPast {
    fn drop(&mut self) {
        self.0.state.lock().size_gate.writes -= 1;
        self.0.changed.notify_all();
    }
}

/// A write that changes of the size keep away, and since when; ends when dropped.
pub(crate) struct KeptAway {
    node: Arc<Inode>,
    since: Instant,
    presses: bool,
}

impl Drop for KeptAway {
    fn drop(&mut self) {
        if self.presses {
            self.node.state.lock().size_gate.pressing -= 1;
            self.node.changed.notify_all();
        }
    }
}

/// A change of the file's size, or a sync; ends when dropped.
pub(crate) struct SizeChange<'n>(&'n Inode);

impl Drop for SizeChange<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.size_gate.changes -= 1;
        state.size_gate.is_changing = false;
        drop(state);
        self.0.changed.notify_all();
    }
}

impl Inode {
    /// Begins a write past the kernel. `None`: the size is being changed, or will be.
    pub(crate) fn write_past(self: &Arc<Inode>, kept: Option<&KeptAway>) -> Option<WritingPast> {
        let is_pressing = kept.is_some_and(|kept| kept.presses);
        let has_begun = self.state.lock().size_gate.begin_write(is_pressing);
        has_begun.then(|| WritingPast(self.clone()))
    }

    /// Waits a little for the end of changes of the size.
    pub(crate) fn wait_for_size_change(self: &Arc<Inode>, kept: Option<KeptAway>) -> KeptAway {
        let (node, since, presses) = (self.clone(), Instant::now(), false);
        let mut kept = kept.unwrap_or(KeptAway { node, since, presses });
        let mut state = self.state.lock();
        if !kept.presses && kept.since.elapsed() > PRESSING {
            kept.presses = true;
            state.size_gate.pressing += 1;
        }
        if state.size_gate.changes > 0 {
            self.changed.wait_for(&mut state, STEP);
        }
        kept
    }

    /// Keeps writes past the kernel away until the guard goes.
    pub(crate) fn change_size(&self) -> SizeChange<'_> {
        let mut state = self.state.lock();
        state.size_gate.changes += 1;
        while !state.size_gate.begin_change() {
            self.changed.wait_for(&mut state, STEP);
        }
        SizeChange(self)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use nuri_proto::id::Ino;

    use super::*;

    #[test]
    fn changes_of_the_size_let_no_new_write_begin_and_wait_for_those_under_way() {
        let node = Arc::new(Inode::new(Ino(7), 0));
        let (first, second) = (node.write_past(None).unwrap(), node.write_past(None).unwrap());
        std::thread::scope(|scope| {
            let change = scope.spawn(|| drop(node.change_size()));
            while node.state.lock().size_gate.changes == 0 {
                std::thread::yield_now();
            }
            assert!(node.write_past(None).is_none(), "a change waits");
            drop(first);
            assert!(!change.is_finished());
            drop(second);
            change.join().unwrap();
        });
        let change = node.change_size();
        assert!(node.write_past(None).is_none());
        std::thread::scope(|scope| {
            let other = scope.spawn(|| drop(node.change_size()));
            drop(change);
            other.join().unwrap();
        });
        assert!(node.write_past(None).is_some());
    }

    #[test]
    fn syncs_one_after_the_other_keep_no_write_away_for_ever() {
        let node = Arc::new(Inode::new(Ino(7), 0));
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !done.load(Ordering::SeqCst) {
                        let _sync = node.change_size();
                        std::thread::sleep(Duration::from_millis(2));
                    }
                });
            }
            std::thread::sleep(Duration::from_millis(10));
            let (start, mut kept) = (Instant::now(), None);
            while node.write_past(kept.as_ref()).is_none() {
                kept = Some(node.wait_for_size_change(kept));
            }
            assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
            drop(kept);
            done.store(true, Ordering::SeqCst);
        });
        assert_eq!(node.state.lock().size_gate.pressing, 0);
    }
}
