//! Proves chunks while the store is in use: reads every block and verifies its checksum.

use nuri_io::buf::AlignedBuf;
use nuri_io::disk::Disk;
use nuri_proto::id::{ChunkKey, ObjectId};
use nuri_proto::limit::MAX_PAYLOAD;
use nuri_proto::stripe::Held;

use super::error::StoreError;
use super::shadow::is_base;
use super::{BLOCK, ChunkStore};

/// Chunks looked at under the lock at once.
const LOOK: usize = 4096;

/// What reading a whole chunk found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Proof {
    /// Read.
    pub bytes: u64,
    /// Blocks of the chunk that fail their checksum or cannot be read.
    pub bad: Vec<u32>,
}

impl<D: Disk> ChunkStore<D> {
    /// Chunks that belong to no redundant group: nobody else has what they hold.
    pub fn plain_chunks(&self) -> Vec<ChunkKey> {
        let mut all = Vec::new();
        let mut next = Some(ChunkKey { object: ObjectId(0), component: 0, stripe: 0 });
        while let Some(from) = next {
            let state = self.state.lock();
            let mut keys = state.contents.index.keys_from(from);
            let plain = |key: &ChunkKey| {
                is_base(*key) && state.contents.members.get(*key) == Held::default()
            };
            all.extend(keys.by_ref().take(LOOK).filter(plain));
            next = keys.next();
        }
        all
    }

    /// Reads all that the chunk holds.
    ///
    /// # Errors
    /// Out of service.
    pub fn prove(&self, key: ChunkKey) -> Result<Proof, StoreError> {
        let mut buf = AlignedBuf::zeroed(MAX_PAYLOAD);
        let mut proof = Proof::default();
        for (start, len) in self.extents(key) {
            let (mut at, end) = (start, start + len);
            while at < end {
                let part = (end - at).min(MAX_PAYLOAD as u32);
                match self.read(key, at, &mut buf[..part as usize]) {
                    Ok(()) => at += part,
                    Err(StoreError::Corrupt(_, block)) => {
                        proof.bad.push(block);
                        at = (block + 1) * BLOCK as u32;
                    }
                    Err(error) => return Err(error),
                }
            }
            proof.bytes += u64::from(len);
        }
        Ok(proof)
    }
}
