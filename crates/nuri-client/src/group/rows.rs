//! What was read of groups that miss a member: in a stream the chunks of a row are wanted twice,
//! for themselves and to decode the lost one. A few frames, never believed without asking: a member
//! says with a reply of no bytes whether they are still what it holds.

use std::collections::VecDeque;
use std::sync::Arc;

use nuri_io::buf::PooledBuf;
use nuri_proto::id::{ChunkKey, ObjectId};
use nuri_proto::stripe::Covers;
use parking_lot::Mutex;

/// Frames kept.
pub(super) const MOST: usize = 24;

/// Bytes of a data member, with what they stood for.
pub(super) struct Frame {
    pub(super) key: ChunkKey,
    pub(super) place: usize,
    pub(super) offset: u32,
    pub(super) bytes: PooledBuf,
    pub(super) covers: Covers,
}

impl Frame {
    /// The part of it that lies at `offset` of the chunk.
    pub(super) fn part(&self, offset: u32, len: usize) -> &[u8] {
        let from = (offset - self.offset) as usize;
        &self.bytes[from..from + len]
    }
}

#[derive(Default)]
pub(super) struct Rows {
    frames: Mutex<VecDeque<Arc<Frame>>>,
}

impl Rows {
    pub(super) fn keep(&self, frame: Frame) {
        let mut frames = self.frames.lock();
        frames.retain(|f| (f.key, f.place, f.offset) != (frame.key, frame.place, frame.offset));
        if frames.len() >= MOST {
            frames.pop_front();
        }
        frames.push_back(Arc::new(frame));
    }

    pub(super) fn forget(&self, object: ObjectId) {
        self.frames.lock().retain(|f| f.key.object != object);
    }

    pub(super) fn find(
        &self,
        key: ChunkKey,
        place: usize,
        offset: u32,
        len: usize,
    ) -> Option<Arc<Frame>> {
        let frames = self.frames.lock();
        let holds = |f: &&Arc<Frame>| {
            let from = f.offset as usize;
            f.key == key
                && f.place == place
                && (offset as usize) >= from
                && offset as usize + len <= from + f.bytes.len()
        };
        frames.iter().rev().find(holds).cloned()
    }
}
