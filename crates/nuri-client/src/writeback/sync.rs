//! Carries out a sync step by step. [`machine::FileSync`](super::machine) decides which step comes
//! next.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nuri_proto::Status;
use nuri_proto::clock::WRITE_BEHIND;
use nuri_proto::id::TargetId;
use nuri_rules::pause;

use super::Writeback;
use super::machine::{FileSync, Goal, Step, SyncScope};
use super::publish::Done;
use super::push_row::Rows;
use crate::inode::Inode;

impl Writeback {
    /// Makes the file's data and, where needed, its size and times durable: what was written before
    /// the call.
    pub(crate) fn sync_node(&self, node: &Arc<Inode>, scope: SyncScope) -> Result<(), Status> {
        self.sync_to(node, scope, Goal::Published)
    }

    /// As `sync_node`, for the background. If a redundant file is still being written, incomplete
    /// rows stay until they are full or old.
    pub(super) fn sync_old(&self, node: &Arc<Inode>) -> Result<(), Status> {
        let goal = {
            let state = node.state.lock();
            let file = state.file.as_ref().filter(|file| {
                file.is_redundant() && file.own.is_written_on(Instant::now(), WRITE_BEHIND / 4)
            });
            if file.is_some() && !self.budget.is_tight() { Goal::Aged } else { Goal::Published }
        };
        self.sync_to(node, SyncScope::All, goal)
    }

    fn sync_to(&self, node: &Arc<Inode>, scope: SyncScope, goal: Goal) -> Result<(), Status> {
        let _one_at_a_time = node.sync.lock();
        let Some(mut sync) = begin(node, goal) else { return Ok(()) };
        loop {
            match next(&mut sync, node) {
                Some(Step::Flush) => self.flush_targets_of(node)?,
                Some(Step::Publish { durable_to }) => {
                    pause!("publish");
                    if self.publish(node, scope, durable_to)? == Done::Yes {
                        return Ok(());
                    }
                }
                Some(step) => self.bring_out(node, step)?,
                None => return Ok(()),
            }
        }
    }

    /// Pushes the bytes of the file that were written before the call; returns when targets have
    /// them, or did not accept them.
    pub(crate) fn push_all(&self, node: &Arc<Inode>) {
        let Some(mut sync) = begin(node, Goal::Pushed) else { return };
        while let Some(step) = next(&mut sync, node) {
            let is_over = matches!(step, Step::Flush | Step::Publish { .. });
            if is_over || self.bring_out(node, step).is_err() {
                return;
            }
        }
    }

    /// Bytes leave, or are waited for.
    fn bring_out(&self, node: &Arc<Inode>, step: Step) -> Result<(), Status> {
        match step {
            Step::Place => self.place_before_push(node),
            Step::Push(blocks, durability) => {
                let (first, rest) = blocks.split_at(1);
                rest.iter().for_each(|block| self.queue_push(node, *block, Rows::All));
                if !self.push(node, first[0], durability, Rows::All) {
                    // Another block of its row is in flight.
                    node.changed.wait_for(&mut node.state.lock(), Duration::from_millis(10));
                }
                Ok(())
            }
            Step::Await => {
                let mut state = node.state.lock();
                if state.file.as_ref().is_some_and(|file| file.own.buffer.has_flying()) {
                    node.changed.wait_for(&mut state, Duration::from_millis(100));
                }
                Ok(())
            }
            Step::Flush | Step::Publish { .. } => Ok(()),
        }
    }

    /// Flushes the targets that hold bytes of this file: one that hangs must cost no other file.
    fn flush_targets_of(&self, node: &Arc<Inode>) -> Result<(), Status> {
        let targets = self.targets_with_bytes_of(node);
        if targets.is_empty() {
            // A push is between its reply and its entry in the table.
            std::thread::yield_now();
        }
        self.flush_targets(&targets)
    }

    /// Targets that hold bytes of the file which no flush settled yet.
    pub(super) fn targets_with_bytes_of(&self, node: &Arc<Inode>) -> Vec<TargetId> {
        self.unsynced.lock().targets_of(|token| Arc::ptr_eq(&token.node, node))
    }
}

fn begin(node: &Inode, goal: Goal) -> Option<FileSync> {
    node.state.lock().file.as_mut().map(|file| FileSync::begin(&mut file.own, goal))
}

/// `None`: nothing is known of the file any more.
fn next(sync: &mut FileSync, node: &Inode) -> Option<Step> {
    let state = node.state.lock();
    state.file.as_ref().map(|file| sync.next(&file.own, file.is_placed()))
}
