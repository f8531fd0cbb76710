//! What changes of a file's buffered and stored bytes when its size changes.

use std::sync::Arc;
use std::time::Instant;

use nuri_proto::Status;
use nuri_proto::layout::Layout;
use nuri_proto::limit::MAX_INLINE;
use nuri_proto::op::meta::TruncateDone;

use super::Writeback;
use crate::inode::Inode;

/// Bytes of a stripe, where the layout has redundancy.
fn redundant_stripe(layout: &Layout) -> Option<u64> {
    let component = layout.components.first().filter(|c| c.shape.is_redundant())?;
    Some(component.chunk_size.bytes() * component.shape.data() as u64)
}

impl Writeback {
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

    /// Forgets what is buffered, once nothing of it is in flight.
    pub(crate) fn drop_buffer(&self, node: &Arc<Inode>) {
        let mut state = node.state.lock();
        while state.file.as_ref().is_some_and(|f| f.buffer.has_flying()) {
            node.changed.wait_for(&mut state, std::time::Duration::from_millis(100));
        }
        let freed = state.file.as_mut().map_or(0, |f| f.buffer.clear());
        drop(state);
        self.unreserve(freed);
    }

    /// Takes the data beyond a truncation off the targets, then tells the server.
    pub(crate) fn punch_tail(&self, node: &Arc<Inode>, from: u64) -> Result<(), Status> {
        let (session, layout, object) = {
            let state = node.state.lock();
            let file = state.file.as_ref().ok_or(Status::IO)?;
            (file.session, file.layout.clone(), file.object)
        };
        let cut = self.data.truncate(session, &layout, object, from)?;
        self.session.change(&TruncateDone { ino: node.ino }, &[])?;
        let now = self.session.now();
        if let Some(file) = &mut node.state.lock().file {
            let beyond = match redundant_stripe(&file.layout) {
                // Members give back more than was counted: versions too.
                Some(stripe) => file.allocated.saturating_sub(file.size.next_multiple_of(stripe)),
                None => cut.stripes,
            };
            file.gave_back(beyond + cut.tail, (file.size, u64::MAX));
            file.touch(now);
            file.mtime = None;
        }
        self.mark_dirty(node);
        Ok(())
    }
}
