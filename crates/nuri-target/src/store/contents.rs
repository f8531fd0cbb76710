//! What the store holds, apart from I/O: index and overlay, and how each record changes them.
//!
//! The same functions run when a request is accepted and when the log is replayed, so the two
//! cannot differ. Replay may begin before the index image was taken. So every change is idempotent:
//! it sets what it touches, regardless of what was there.

use std::collections::BTreeMap;
use std::sync::Arc;

use nuri_proto::id::{ChunkKey, ObjectId};
use nuri_proto::stripe::WriteId;

use super::BLOCK;
use super::alloc::Run;
use super::bytes::Fields;
use super::credits::Need;
use super::held::HeldTable;
use super::index::{Extent, Index};
use super::log::Record;
use super::shadow::{self, Kind};

/// One whole block of a small write that is durable in the log alone.
pub struct Small {
    pub sum: u64,
    pub data: Box<[u8; BLOCK]>,
}

/// A block of the overlay.
pub struct Overlaid {
    pub small: Arc<Small>,
    /// Nothing on the disk is set aside for it but a reserve of one free block.
    pub fresh: bool,
}

/// See the module's text.
#[derive(Default)]
pub struct Contents {
    pub index: Index,
    pub members: HeldTable,
    /// Installs under way: the write they belong to and where their newest part began.
    pub installing: BTreeMap<ChunkKey, (WriteId, u32)>,
    overlay: BTreeMap<(ChunkKey, u32), Overlaid>,
    fresh: u64,
}

/// What a change gave back and took.
#[derive(Default, Debug)]
pub struct Change {
    pub freed: Vec<Run>,
    /// Blocks of chunks that hold data now and did not before, and the reverse.
    pub gained: u64,
    pub lost: u64,
}

impl Contents {
    /// Bytes of the encoded image, at most.
    pub fn image_bytes(&self) -> u64 {
        self.index.image_bytes() + self.members.image_bytes()
    }

    /// The checkpoint's bytes: the index, then what is held of stripes; nothing of an empty store.
    pub fn encode(&self) -> Vec<u8> {
        if self.index.counts().0 == 0 && self.members.len() == 0 {
            return Vec::new();
        }
        let mut out = Vec::with_capacity(self.image_bytes() as usize);
        self.index.encode(&mut out);
        self.members.encode(&mut out);
        out
    }

    /// Nothing but what the image tells: `None` where it is none over `data_blocks` blocks. The
    /// image of a store that never had members ends behind the index.
    pub fn decode(bytes: &[u8], data_blocks: u64) -> Option<Contents> {
        let mut f = Fields::new(bytes);
        let index = Index::decode(&mut f, data_blocks)?;
        let members = if f.is_empty() { HeldTable::default() } else { HeldTable::decode(&mut f)? };
        f.is_empty().then(|| Contents { index, members, ..Contents::default() })
    }

    pub fn overlay_len(&self) -> usize {
        self.overlay.len()
    }

    /// Free blocks that the overlay will need when it is applied.
    pub fn reserved(&self) -> u64 {
        self.fresh
    }

    pub fn small(&self, key: ChunkKey, block: u32) -> Option<&Arc<Small>> {
        self.overlay.get(&(key, block)).map(|o| &o.small)
    }

    pub fn overlaid(&self, key: ChunkKey, block: u32) -> Option<&Overlaid> {
        self.overlay.get(&(key, block))
    }

    /// The overlay's blocks of a range of a chunk.
    pub fn smalls(
        &self,
        key: ChunkKey,
        at: u32,
        len: u32,
    ) -> impl Iterator<Item = (u32, &Arc<Small>)> {
        self.overlay.range((key, at)..(key, at + len)).map(|((_, b), o)| (*b, &o.small))
    }

    /// The whole overlay, ascending.
    pub fn all_smalls(&self) -> impl Iterator<Item = (ChunkKey, u32, &Overlaid)> {
        self.overlay.iter().map(|((key, block), o)| (*key, *block, o))
    }

    /// How many blocks of the range hold data.
    pub fn held(&self, key: ChunkKey, at: u32, len: u32) -> u64 {
        let mapped: u64 = self.index.lookup(key, at, len).map(|e| u64::from(e.len)).sum();
        let over = self.overlay.range((key, at)..(key, at + len));
        let only_over = over.filter(|((_, b), _)| self.index.block(key, *b).is_none());
        mapped + only_over.count() as u64
    }

    /// How many blocks of the range would need a reserve for a small write.
    pub fn needs(&self, key: ChunkKey, at: u32, len: u32) -> u64 {
        u64::from(len) - self.held(key, at, len)
    }

    /// What a write of these blocks to new places takes.
    pub fn need(&self, key: ChunkKey, at: u32, len: u32) -> Need {
        Need { blocks: len.into(), gained: self.needs(key, at, len) }
    }

    /// Large write: new extents replace whatever the range held.
    pub fn write(&mut self, key: ChunkKey, seq: u64, extents: &[Extent]) -> Change {
        let mut change = Change::default();
        for extent in extents {
            let held = self.held(key, extent.at, extent.len);
            change.gained += u64::from(extent.len) - held;
            self.forget_smalls(key, extent.at, extent.len);
            change.freed.extend(self.index.unmap(key, extent.at, extent.len));
            self.index.map(key, *extent);
        }
        self.index.set_version(key, seq);
        change
    }

    /// Small write: whole blocks shadow what the index says.
    pub fn data(&mut self, key: ChunkKey, seq: u64, first: u32, smalls: Vec<Arc<Small>>) -> Change {
        let mut change = Change::default();
        for (i, small) in smalls.into_iter().enumerate() {
            let block = first + i as u32;
            if let Some(there) = self.overlay.get_mut(&(key, block)) {
                there.small = small;
                continue;
            }
            let fresh = self.index.block(key, block).is_none();
            self.fresh += u64::from(fresh);
            change.gained += u64::from(fresh);
            self.overlay.insert((key, block), Overlaid { small, fresh });
        }
        self.index.set_version(key, seq);
        change
    }

    pub fn punch(&mut self, key: ChunkKey, seq: u64, at: u32, len: u32) -> Change {
        let lost = self.held(key, at, len);
        self.forget_smalls(key, at, len);
        let freed = self.index.unmap(key, at, len);
        if self.index.version(key) != 0 {
            self.index.set_version(key, seq);
        }
        self.drop_if_empty(key);
        Change { freed, gained: 0, lost }
    }

    /// Whether anything is known of the object's chunks from there on.
    pub fn knows(&self, object: ObjectId, from: u32) -> bool {
        let own = |key: &ChunkKey| key.object == object && key.stripe >= from;
        self.index.has_chunk_of(object, from)
            || self.members.has_any_of(object, from)
            || self.installing.keys().any(own)
    }

    pub fn truncate(&mut self, object: ObjectId, seq: u64, from: u32) -> Change {
        let mut change = Change::default();
        // What lies beside a base comes behind it in the index.
        for key in self.index.chunks_of(object, from).into_iter().rev() {
            let gained = self.gained(key);
            let one = self.punch(key, seq, 0, super::CHUNK_BLOCKS);
            change.freed.extend(one.freed);
            change.lost += match shadow::kind_of(key) {
                Kind::Base => one.lost,
                Kind::Staged => gained,
                Kind::Parts => 0,
            };
        }
        self.members.truncate(object, from);
        self.installing.retain(|key, _| key.object != object || key.stripe < from);
        change
    }

    /// Redoes one record. Freed blocks are of no interest: the free map is built afterwards.
    pub fn replay(&mut self, seq: u64, record: &Record<'_>) {
        match record {
            Record::Write { key, extents, .. } => {
                self.write(*key, seq, extents);
            }
            Record::Data { key, first, sums, data } => {
                self.data(*key, seq, *first, smalls(sums, data));
            }
            Record::Punch { key, at, len } => {
                self.punch(*key, seq, *at, *len);
            }
            Record::Truncate { object, from } => {
                self.truncate(*object, seq, *from);
            }
            Record::Delete { objects } => {
                objects.iter().for_each(|object| drop(self.truncate(*object, seq, 0)));
            }
            Record::Stage { key, held, extents, blocks, raw, data, .. } => {
                let at = blocks.iter().map(|block| *block as u32);
                let smalls = at.zip(smalls(raw, data)).collect();
                self.stage(*key, seq, held, extents, smalls);
            }
            Record::Commit { key, version } => {
                self.commit(*key, seq, *version);
            }
            Record::Held { key, held } => {
                self.set_held(*key, seq, held);
            }
            Record::Install { key, held } => {
                self.install(*key, seq, held);
            }
        }
    }

    /// A place was found for a fresh block: its reserve is used up.
    pub fn placed(&mut self, key: ChunkKey, block: u32) {
        if let Some(over) = self.overlay.get_mut(&(key, block))
            && std::mem::take(&mut over.fresh)
        {
            self.fresh -= 1;
        }
    }

    /// Takes a block off the overlay if it is still this very one.
    pub fn settle(&mut self, key: ChunkKey, block: u32, small: &Arc<Small>) {
        if self.small(key, block).is_some_and(|now| Arc::ptr_eq(now, small)) {
            self.forget_smalls(key, block, 1);
        }
    }

    fn forget_smalls(&mut self, key: ChunkKey, at: u32, len: u32) {
        let gone: Vec<u32> = self.smalls(key, at, len).map(|(block, _)| block).collect();
        for block in gone {
            let over = self.overlay.remove(&(key, block));
            self.fresh -= u64::from(over.is_some_and(|o| o.fresh));
        }
    }

    fn drop_if_empty(&mut self, key: ChunkKey) {
        if self.smalls(key, 0, super::CHUNK_BLOCKS).next().is_none() {
            self.index.drop_if_empty(key);
        }
    }
}

/// Overlay blocks of whole blocks of bytes and their checksums.
pub fn smalls(sums: &[u64], data: &[u8]) -> Vec<Arc<Small>> {
    let blocks = data.as_chunks::<BLOCK>().0;
    let pair = sums.iter().zip(blocks);
    pair.map(|(sum, block)| Arc::new(Small { sum: *sum, data: Box::new(*block) })).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: ChunkKey = ChunkKey { object: ObjectId(1), component: 0, stripe: 0 };

    #[test]
    fn reserve_follows_the_overlay() {
        let mut c = Contents::default();
        let block = vec![1; 2 * BLOCK];
        assert_eq!(c.data(KEY, 1, 4, smalls(&[1, 2], &block)).gained, 2);
        assert_eq!((c.reserved(), c.overlay_len(), c.held(KEY, 0, 10)), (2, 2, 2));
        let extent = Extent { at: 5, len: 2, block: 0, birth: 1 };
        let change = c.write(KEY, 2, &[extent]);
        assert_eq!((change.gained, c.reserved(), c.overlay_len()), (1, 1, 1));
        c.data(KEY, 3, 5, smalls(&[3], &block));
        assert_eq!((c.reserved(), c.index.blocks()), (1, 2));
        let change = c.punch(KEY, 4, 0, 100);
        assert_eq!((change.lost, c.reserved(), c.index.blocks()), (3, 0, 0));
        assert_eq!((c.index.counts(), c.index.version(KEY)), ((0, 0), 0));
    }

    #[test]
    fn replay_twice_is_once() {
        let extent = |at, block| Extent { at, len: 2, block, birth: 1 };
        let data = vec![1; BLOCK];
        let records = [
            Record::Write { key: KEY, extents: vec![extent(0, 10)], sums: vec![] },
            Record::Data { key: KEY, first: 1, sums: vec![1], data: &data },
            Record::Punch { key: KEY, at: 0, len: 1 },
            Record::Write { key: KEY, extents: vec![extent(6, 10)], sums: vec![] },
        ];
        let mut c = Contents::default();
        let run = |c: &mut Contents| {
            records.iter().enumerate().for_each(|(i, r)| c.replay(i as u64 + 1, r));
            let index: Vec<_> = c.index.iter().collect();
            (index, c.overlay_len(), c.reserved())
        };
        let once = run(&mut c);
        assert_eq!(run(&mut c), once);
    }

    #[test]
    fn an_image_without_members_is_one_of_a_store_that_had_none() {
        let mut c = Contents::default();
        c.write(KEY, 1, &[Extent { at: 0, len: 2, block: 7, birth: 1 }]);
        let mut image = Vec::new();
        c.index.encode(&mut image);
        let back = Contents::decode(&image, 100).unwrap();
        assert_eq!((back.index.blocks(), back.members.len()), (2, 0));
        assert!(Contents::decode(&[&image[..], &[1]].concat(), 100).is_none());
        assert_eq!(c.encode().len() as u64, image.len() as u64 + 8);
    }
}
