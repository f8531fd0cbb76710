//! Makes a range of a file's bytes reach the targets, durable and published, whatever the state of
//! the rest of the file.

use std::sync::Arc;
use std::time::Duration;

use nuri_proto::Status;
use nuri_proto::op::data::Durability;
use nuri_proto::range_map::Span;

use crate::inode::Inode;
use crate::writeback::Writeback;
use crate::writeback::buffer::BLOCK;
use crate::writeback::machine::SyncScope;
use crate::writeback::push_row::Rows;

impl Writeback {
    /// Makes what was written of some bytes durable, and the file's size and times. Other bytes may
    /// be written meanwhile.
    pub(crate) fn sync_part(&self, node: &Arc<Inode>, bytes: Span) -> Result<(), Status> {
        self.settle_part(node, bytes)?;
        let _one_at_a_time = node.sync.lock();
        // What it is early for is told with the next sync: others may read these bytes.
        self.publish(node, SyncScope::All, u64::MAX).map(drop)
    }

    /// Pushes these bytes; returns when targets have all of them, or did not accept them.
    pub(crate) fn push_part(&self, node: &Arc<Inode>, bytes: Span) {
        let blocks = bytes.start / BLOCK..=bytes.end / BLOCK;
        loop {
            if self.place_before_push(node).is_err() {
                // The bytes stay, and are pushed later.
                return;
            }
            let ready: Vec<_> = {
                let mut state = node.state.lock();
                let Some(file) = &state.file else { return };
                if !file.own.buffer.has_unpushed(bytes.start, bytes.end) {
                    return;
                }
                let ready = file.own.buffer.pushable_within(blocks.clone());
                if ready.is_empty() {
                    node.changed.wait_for(&mut state, Duration::from_millis(10));
                    continue;
                }
                ready
            };
            let push = |block: &u64| self.push(node, *block, Durability::Memory, Rows::All);
            if ready.iter().filter(|block| push(block)).count() == 0 {
                // Other blocks of their rows are in flight.
                node.changed.wait_for(&mut node.state.lock(), Duration::from_millis(1));
            }
        }
    }

    /// Makes what was written of some bytes durable on the targets: nothing of them is buffered.
    pub(crate) fn settle_part(&self, node: &Arc<Inode>, bytes: Span) -> Result<(), Status> {
        let blocks = bytes.start / BLOCK..=bytes.end / BLOCK;
        loop {
            self.place_before_push(node)?;
            let ready = {
                let mut state = node.state.lock();
                let Some(file) = &state.file else { return Ok(()) };
                if !file.own.buffer.has_any(bytes.start, bytes.end) {
                    break;
                }
                let ready = file.own.buffer.pushable_within(blocks.clone());
                // Of these bytes: others may always be on their way.
                let flies = || file.own.buffer.has_unpushed(bytes.start, bytes.end);
                if ready.is_empty() && flies() {
                    node.changed.wait_for(&mut state, Duration::from_millis(10));
                    continue;
                }
                ready
            };
            let push = |block: &u64| self.push(node, *block, Durability::Memory, Rows::All);
            let began = ready.iter().filter(|block| push(block)).count();
            let targets = self.targets_with_bytes_of(node);
            self.flush_targets(&targets)?;
            if began == 0 && targets.is_empty() {
                // Other blocks of their rows are in flight.
                node.changed.wait_for(&mut node.state.lock(), Duration::from_millis(1));
            }
        }
        Ok(())
    }
}
