//! Gives back the space of blocks that hold nothing but zeros. No byte changes by it, so it may
//! come late, twice, or beside any other change.

use nuri_io::buf::AlignedBuf;
use nuri_io::disk::Disk;
use nuri_proto::id::ChunkKey;
use nuri_proto::limit::MAX_PAYLOAD;

use super::credits::{Need, Payer};
use super::error::StoreError;
use super::log::{Body, Record};
use super::write::check_range;
use super::{BLOCK, ChunkStore};

/// Whoever overtakes it so often writes there: the blocks are wanted.
const TRIES: usize = 3;

pub(super) fn is_zero(block: &[u8]) -> bool {
    block.iter().all(|byte| *byte == 0)
}

impl<D: Disk> ChunkStore<D> {
    /// Makes holes of the whole blocks within the range that hold nothing but zeros. Durable after
    /// a flush; a crash before leaves the zeros. Returns the bytes given back.
    ///
    /// # Errors
    /// Out of service; a block that cannot be read, which stays.
    pub fn trim_zeros(&self, key: ChunkKey, offset: u32, len: u32) -> Result<u64, StoreError> {
        check_range(offset, len as usize)?;
        let end = (offset + len) / BLOCK as u32 * BLOCK as u32;
        let start = offset.next_multiple_of(BLOCK as u32);
        let mut freed = 0;
        for (at, len) in self.extents(key) {
            let (mut from, to) = (at.max(start), (at + len).min(end));
            while from < to {
                let part = (to - from).min(MAX_PAYLOAD as u32);
                freed += self.trim_part(key, from, part)?;
                from += part;
            }
        }
        Ok(freed)
    }

    fn trim_part(&self, key: ChunkKey, at: u32, len: u32) -> Result<u64, StoreError> {
        let mut buf = AlignedBuf::zeroed(len as usize);
        for _ in 0..TRIES {
            let mut seen = self.read_versioned(key, at, &mut buf)?;
            let mut freed = 0;
            let mut block = at / BLOCK as u32;
            let blocks: Vec<&[u8]> = buf.chunks(BLOCK).collect();
            let mut is_overtaken = false;
            for run in blocks.chunk_by(|a, b| is_zero(a) == is_zero(b)) {
                let count = run.len() as u32;
                if is_zero(run[0]) {
                    let Some((blocks, version)) = self.punch_seen(key, block, count, seen)? else {
                        is_overtaken = true;
                        break;
                    };
                    (freed, seen) = (freed + blocks * BLOCK as u64, version);
                }
                block += count;
            }
            if !is_overtaken {
                return Ok(freed);
            }
        }
        Ok(0)
    }

    /// Makes a hole of blocks where the chunk is still of the version that was seen. The blocks
    /// given back, and the chunk's version then.
    fn punch_seen(
        &self,
        key: ChunkKey,
        at: u32,
        len: u32,
        seen: u64,
    ) -> Result<Option<(u64, u64)>, StoreError> {
        let body = Body::new(&Record::Punch { key, at, len });
        let mut guard = self.admit(Payer::Upkeep, body.log_len(), 0, |_| Need::NONE)?;
        let state = &mut *guard;
        if state.contents.index.version(key) != seen {
            return Ok(None);
        }
        let change = state.contents.punch(key, state.journal.next_seq(), at, len);
        let lost = change.lost;
        state.commit(&body, change);
        self.nudge(state);
        Ok(Some((lost, state.contents.index.version(key))))
    }
}
