//! Changes a file's buffered and stored bytes when its size changes.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nuri_proto::Status;
use nuri_proto::layout::Layout;
use nuri_proto::op::meta::{Attr, Extend};
use parking_lot::MutexGuard;

use super::Writeback;
use crate::inode::{FileData, Inode, InodeState};

/// Bytes of a stripe, where the layout has redundancy.
fn redundant_stripe(layout: &Layout) -> Option<u64> {
    let component = layout.components.first().filter(|c| c.shape.is_redundant())?;
    Some(component.chunk_size.bytes() * component.shape.data() as u64)
}

/// The inode, once nothing of it is in flight.
fn without_flying(node: &Inode) -> MutexGuard<'_, InodeState> {
    let mut state = node.state.lock();
    while state.file.as_ref().is_some_and(|f| f.own.buffer.has_flying()) {
        node.changed.wait_for(&mut state, Duration::from_millis(100));
    }
    state
}

impl Writeback {
    /// Sets the size of a file that this client holds alone, where only buffered bytes change.
    /// `None`: the server or targets have to be asked.
    pub(crate) fn resize_buffered(&self, node: &Arc<Inode>, size: u64) -> Option<Attr> {
        let now = self.session.now();
        let (freed, attr) = {
            let mut state = node.state.lock();
            state.alone()?;
            let file = state.file.as_mut();
            let file = file.filter(|file| file.is_writable && !file.is_written_through)?;
            let freed = file.own.resize_unsent(size)?;
            file.own.touch(now, Instant::now());
            (freed, state.view()?)
        };
        self.unreserve(freed);
        self.mark_dirty(node);
        Some(attr)
    }

    /// Moves the bytes of a file that is about to grow beyond the inline limit to the buffer. They
    /// are on the targets, and the server knows it, before the file grows. Otherwise other clients
    /// would look for the bytes in vain.
    pub(crate) fn spill(&self, node: &Arc<Inode>, size: u64) {
        let used = match &mut node.state.lock().file {
            Some(file) => file.own.spill(size, Instant::now()),
            None => return,
        };
        self.overdraw(used);
        self.reservations.charge_again(node, 0, used);
        self.mark_dirty(node);
    }

    /// Waits until nothing that is buffered is in flight.
    pub(crate) fn wait_for_pushes(&self, node: &Arc<Inode>) {
        drop(without_flying(node));
    }

    /// Forgets what is buffered, once nothing of it is in flight.
    pub(crate) fn drop_buffer(&self, node: &Arc<Inode>) {
        let mut state = without_flying(node);
        let freed = state.file.as_mut().map_or(0, |f| f.own.buffer.clear());
        drop(state);
        self.unreserve(freed);
    }

    /// Tells the server of a truncation that no publication reported: for inline data, no
    /// publication does.
    pub(crate) fn tell_cut(&self, node: &Arc<Inode>) -> Result<(), Status> {
        let untold = |file: &FileData| file.own.untold_cut();
        let Some(cut) = node.state.lock().file.as_deref().and_then(untold) else { return Ok(()) };
        self.session.change(&Extend { ino: node.ino, is_cut_done: true }, &[])?;
        if let Some(file) = &mut node.state.lock().file {
            file.own.cut_is_told(Some(cut));
        }
        Ok(())
    }

    /// Removes the data beyond a truncation from the targets. The server is told with the next
    /// publication, or before the file grows.
    pub(crate) fn punch_tail(&self, node: &Arc<Inode>, from: u64) -> Result<(), Status> {
        let (session, layout, object, losses) = {
            let state = node.state.lock();
            let file = state.file.as_ref().ok_or(Status::IO)?;
            (file.session, file.layout.clone(), file.object, state.losses)
        };
        let cut = self.data.truncate(session, &layout, object, from)?;
        // What was taken over since knows of this cut what the server does.
        let mut state = node.state.lock();
        let is_same = state.losses == losses;
        if let Some(file) = state.file.as_mut().filter(|file| is_same && file.object == object) {
            let size = file.own.size();
            let beyond = match redundant_stripe(&file.layout) {
                // Members give back more than was counted: versions too.
                Some(stripe) => file.own.allocated().saturating_sub(size.next_multiple_of(stripe)),
                None => cut.stripes,
            };
            file.own.gave_back(beyond + cut.tail, (size, u64::MAX));
            let number = self.cuts.fetch_add(1, Ordering::Relaxed);
            file.own.cut_on_targets(from, number, Instant::now());
        }
        drop(state);
        self.mark_dirty(node);
        Ok(())
    }
}
