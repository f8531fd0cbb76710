//! What changes of a file's buffered and stored bytes when its size changes.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nuri_proto::Status;
use nuri_proto::layout::Layout;
use nuri_proto::limit::MAX_INLINE;
use nuri_proto::op::meta::{Attr, Extend};
use nuri_rules::broken;
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
    while state.file.as_ref().is_some_and(|f| f.buffer.has_flying()) {
        node.changed.wait_for(&mut state, Duration::from_millis(100));
    }
    state
}

impl FileData {
    /// Sets the size where nothing but what is buffered here changes: no target was given bytes
    /// beyond it. Returns bytes that are not buffered any more.
    fn resize_unsent(&mut self, size: u64) -> Option<u64> {
        let is_here = self.is_writable && self.beside.is_none() && !self.is_written_through;
        if !is_here || self.has_failed {
            return None;
        }
        let lies_inline = match &mut self.inline {
            Some(inline) if size <= MAX_INLINE => {
                inline.resize(size as usize, 0);
                true
            }
            Some(inline) if !inline.is_empty() => return None,
            _ => false,
        };
        let mut freed = 0;
        if !lies_inline && size < self.size {
            let sent_to = if broken!("cut_what_was_sent") { 0 } else { self.buffer.sent_to() };
            if size < sent_to {
                return None;
            }
            freed = self.buffer.cut(size);
        }
        if !lies_inline {
            self.inline = None;
        }
        self.size = size;
        Some(freed)
    }
}

impl Writeback {
    /// Sets the size of a file that is here alone, where that is a matter of what is buffered.
    /// `None`: others have to be asked.
    pub(crate) fn resize_buffered(&self, node: &Arc<Inode>, size: u64) -> Option<Attr> {
        let now = self.session.now();
        let (freed, attr) = {
            let mut state = node.state.lock();
            state.alone()?;
            let file = state.file.as_mut()?;
            let freed = file.resize_unsent(size)?;
            file.touch(now);
            (freed, state.view()?)
        };
        self.unreserve(freed);
        self.mark_dirty(node);
        Some(attr)
    }

    /// A file about to grow beyond the inline limit moves its bytes to the buffer. They are on the
    /// targets, and the server knows, before it grows: else others would look for them in vain.
    pub(crate) fn spill(&self, node: &Arc<Inode>, size: u64) {
        let mut used = 0;
        {
            let mut state = node.state.lock();
            let Some(file) = &mut state.file else { return };
            if size > MAX_INLINE
                && let Some(inline) = file.inline.take()
                && !inline.is_empty()
            {
                used = file.buffer.write(0, 0, &inline).0;
                file.version += 1;
                file.unpublished.get_or_insert_with(Instant::now);
            }
        }
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
        let freed = state.file.as_mut().map_or(0, |f| f.buffer.clear());
        drop(state);
        self.unreserve(freed);
    }

    /// Tells of a cut that no publication told: of what lies with the inode, none does.
    pub(crate) fn tell_cut(&self, node: &Arc<Inode>) -> Result<(), Status> {
        let untold = |file: &FileData| file.untold_cut;
        let Some(cut) = node.state.lock().file.as_deref().and_then(untold) else { return Ok(()) };
        self.session.change(&Extend { ino: node.ino, is_cut_done: true }, &[])?;
        if let Some(file) = &mut node.state.lock().file {
            file.cut_is_told(Some(cut));
        }
        Ok(())
    }

    /// Takes the data beyond a truncation off the targets. The server is told with the next
    /// publication, or before the file grows.
    pub(crate) fn punch_tail(&self, node: &Arc<Inode>, from: u64) -> Result<(), Status> {
        let (session, layout, object, losses) = {
            let state = node.state.lock();
            let file = state.file.as_ref().ok_or(Status::IO)?;
            (file.session, file.layout.clone(), file.object, state.losses)
        };
        let cut = self.data.truncate(session, &layout, object, from)?;
        let now = self.session.now();
        // What was taken over since knows of this cut what the server does.
        let mut state = node.state.lock();
        let is_same = state.losses == losses;
        if let Some(file) = state.file.as_mut().filter(|file| is_same && file.object == object) {
            file.buffer.note_cut(from);
            let beyond = match redundant_stripe(&file.layout) {
                // Members give back more than was counted: versions too.
                Some(stripe) => file.allocated.saturating_sub(file.size.next_multiple_of(stripe)),
                None => cut.stripes,
            };
            file.gave_back(beyond + cut.tail, (file.size, u64::MAX));
            file.touch(now);
            file.mtime = None;
            let cut = self.cuts.fetch_add(1, Ordering::Relaxed);
            file.untold_cut = Some(cut).filter(|_| !broken!("cut_stays_untold"));
        }
        drop(state);
        self.mark_dirty(node);
        Ok(())
    }
}
