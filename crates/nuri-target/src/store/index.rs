//! Where each chunk's blocks lie: chunk key to extents, in memory, written out at checkpoints.
//!
//! Extents of a chunk are ascending and never overlap. An extent is at most 1 MiB. An extent costs
//! at most 64 bytes of memory; for a chunk with only one extent, this includes all that belongs to
//! the chunk (`leaves.rs`). A chunk's version is the sequence number of the last record that
//! touched it.

use nuri_proto::id::{ChunkKey, ObjectId};
use smallvec::SmallVec;

use super::alloc::{MAX_RUN, Run};
use super::bytes::{Fields, Put};
use super::leaves::LeafMap;

/// Blocks of a chunk that lie together on the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// First block within the chunk.
    pub at: u32,
    pub len: u32,
    /// First data block.
    pub block: u64,
    /// Never used twice for the same data block by records that both became durable.
    pub birth: u64,
}

impl Extent {
    pub fn end(&self) -> u32 {
        self.at + self.len
    }

    pub fn run(&self) -> Run {
        Run { start: self.block, len: self.len }
    }

    /// The part from `from` (a block of the chunk) to `to`.
    fn part(&self, from: u32, to: u32) -> Extent {
        let block = self.block + u64::from(from - self.at);
        Extent { at: from, len: to - from, block, birth: self.birth }
    }
}

/// Births stay below this.
pub const BIRTH_END: u64 = 1 << 56;

/// An extent as the index keeps it: `at` (16 bits) over `block`, `len - 1` (8 bits) over `birth`.
#[derive(Clone, Copy)]
struct Packed(u64, u64);

const _: () = assert!(super::CHUNK_BLOCKS <= 1 << 16 && MAX_RUN <= 1 << 8);

impl Packed {
    fn new(e: Extent) -> Packed {
        debug_assert!(e.block < 1 << 48 && e.birth < BIRTH_END && e.len > 0);
        Packed(u64::from(e.at) << 48 | e.block, u64::from(e.len - 1) << 56 | e.birth)
    }

    fn get(self) -> Extent {
        Extent {
            at: (self.0 >> 48) as u32,
            len: (self.1 >> 56) as u32 + 1,
            block: self.0 & ((1 << 48) - 1),
            birth: self.1 & (BIRTH_END - 1),
        }
    }
}

/// Bytes of an encoded extent and of an encoded chunk's head.
pub const EXTENT_BYTES: u64 = 24;
pub const CHUNK_BYTES: u64 = 32;

#[derive(Default)]
struct Chunk {
    version: u64,
    extents: SmallVec<[Packed; 1]>,
}

const _: () = assert!(size_of::<(ChunkKey, Chunk)>() == 48);

/// See the module's text.
#[derive(Default)]
pub struct Index {
    chunks: LeafMap<ChunkKey, Chunk>,
    extents: u64,
    blocks: u64,
}

impl Index {
    /// 0 for a chunk that is not there.
    pub fn version(&self, key: ChunkKey) -> u64 {
        self.chunks.get(&key).map_or(0, |chunk| chunk.version)
    }

    pub fn set_version(&mut self, key: ChunkKey, version: u64) {
        self.chunks.get_or_default(key).version = version;
    }

    /// Forgets a chunk that has no extents left.
    pub fn drop_if_empty(&mut self, key: ChunkKey) {
        if self.chunks.get(&key).is_some_and(|chunk| chunk.extents.is_empty()) {
            self.chunks.remove(&key);
        }
    }

    /// Blocks that extents hold.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    pub fn counts(&self) -> (u64, u64) {
        (self.chunks.len(), self.extents)
    }

    /// Bytes of the encoded image, at most.
    pub fn image_bytes(&self) -> u64 {
        self.chunks.len() * CHUNK_BYTES + self.extents * EXTENT_BYTES + 8
    }

    /// The extents that touch the range, cut to it.
    pub fn lookup(&self, key: ChunkKey, at: u32, len: u32) -> impl Iterator<Item = Extent> + '_ {
        let extents = self.chunks.get(&key).map_or(&[][..], |chunk| &chunk.extents);
        let first = extents.partition_point(|e| e.get().end() <= at);
        let end = at + len;
        extents[first..]
            .iter()
            .map(|e| e.get())
            .take_while(move |e| e.at < end)
            .map(move |e| e.part(e.at.max(at), e.end().min(end)))
    }

    /// The extent of one block, cut to it.
    pub fn block(&self, key: ChunkKey, block: u32) -> Option<Extent> {
        self.lookup(key, block, 1).next()
    }

    /// Makes the range a hole and returns the data blocks it had.
    pub fn unmap(&mut self, key: ChunkKey, at: u32, len: u32) -> Vec<Run> {
        let gone: Vec<Extent> = self.lookup(key, at, len).collect();
        let (Some(chunk), false) = (self.chunks.get_mut(&key), gone.is_empty()) else {
            return Vec::new();
        };
        let end = at + len;
        let first = chunk.extents.partition_point(|e| e.get().end() <= at);
        let last = first + gone.len();
        let mut keep = SmallVec::<[Packed; 2]>::new();
        let (head, tail) = (chunk.extents[first].get(), chunk.extents[last - 1].get());
        if head.at < at {
            keep.push(Packed::new(head.part(head.at, at)));
        }
        if tail.end() > end {
            keep.push(Packed::new(tail.part(end, tail.end())));
        }
        self.extents = self.extents + keep.len() as u64 - gone.len() as u64;
        chunk.extents.drain(first..last);
        chunk.extents.insert_many(first, keep);
        if chunk.extents.capacity() > 4 * chunk.extents.len() {
            chunk.extents.shrink_to_fit();
        }
        self.blocks -= gone.iter().map(|e| u64::from(e.len)).sum::<u64>();
        gone.iter().map(Extent::run).collect()
    }

    /// Maps a hole. Joins a neighbour that continues it on the disk with the same birth.
    pub fn map(&mut self, key: ChunkKey, extent: Extent) {
        let chunk = self.chunks.get_or_default(key);
        self.blocks += u64::from(extent.len);
        let next = chunk.extents.partition_point(|e| e.get().at < extent.at);
        debug_assert!(chunk.extents.get(next).is_none_or(|e| e.get().at >= extent.end()));
        if let Some(last) = next.checked_sub(1).and_then(|i| chunk.extents.get_mut(i)) {
            let prev = last.get();
            debug_assert!(prev.end() <= extent.at);
            let joins = prev.end() == extent.at
                && prev.block + u64::from(prev.len) == extent.block
                && prev.birth == extent.birth
                && prev.len + extent.len <= MAX_RUN;
            if joins {
                *last = Packed::new(Extent { len: prev.len + extent.len, ..prev });
                return;
            }
        }
        chunk.extents.insert(next, Packed::new(extent));
        self.extents += 1;
    }

    /// The chunks of an object from `from_stripe` on.
    pub fn chunks_of(&self, object: ObjectId, from_stripe: u32) -> Vec<ChunkKey> {
        self.iter_of(object, from_stripe).collect()
    }

    pub fn has_chunk_of(&self, object: ObjectId, from_stripe: u32) -> bool {
        self.iter_of(object, from_stripe).next().is_some()
    }

    fn iter_of(&self, object: ObjectId, from_stripe: u32) -> impl Iterator<Item = ChunkKey> + '_ {
        let first = ChunkKey { object, component: 0, stripe: 0 };
        let last = ChunkKey { object, component: u16::MAX, stripe: u32::MAX };
        let keys = self.chunks.range(first).map(|(key, _)| *key).take_while(move |k| *k <= last);
        keys.filter(move |key| key.stripe >= from_stripe)
    }

    /// Chunks from this one on, ascending.
    pub fn keys_from(&self, first: ChunkKey) -> impl Iterator<Item = ChunkKey> + '_ {
        self.chunks.range(first).map(|(key, _)| *key)
    }

    pub fn keys(&self) -> impl Iterator<Item = ChunkKey> + '_ {
        self.chunks.iter().map(|(key, _)| *key)
    }

    /// Every extent with its chunk.
    pub fn iter(&self) -> impl Iterator<Item = (ChunkKey, Extent)> + '_ {
        self.chunks.iter().flat_map(|(key, chunk)| chunk.extents.iter().map(|e| (*key, e.get())))
    }

    /// The checkpoint's bytes: count of chunks, then each chunk with its extents.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.chunks.len());
        for (key, chunk) in self.chunks.iter() {
            put_key(out, *key);
            out.put_u64(chunk.version);
            out.put_u64(chunk.extents.len() as u64);
            chunk.extents.iter().for_each(|e| put_extent(out, &e.get()));
        }
    }

    /// `None` where the bytes begin with no index over `data_blocks` blocks.
    pub fn decode(f: &mut Fields<'_>, data_blocks: u64) -> Option<Index> {
        let mut index = Index::default();
        let mut last = None;
        for _ in 0..f.u64()? {
            let key = take_key(f)?;
            let version = f.u64()?;
            let count = f.u64()?;
            let mut chunk = Chunk { version, extents: SmallVec::new() };
            let mut end = 0;
            for _ in 0..count {
                let extent = take_extent(f, data_blocks)?;
                if extent.at < end {
                    return None;
                }
                end = extent.end();
                index.blocks += u64::from(extent.len);
                index.extents += 1;
                chunk.extents.push(Packed::new(extent));
            }
            if last.replace(key).is_some_and(|last| last >= key) {
                return None;
            }
            *index.chunks.get_or_default(key) = chunk;
        }
        Some(index)
    }
}

pub fn put_key(out: &mut Vec<u8>, key: ChunkKey) {
    out.put_u64(key.object.0);
    out.put_u32(key.stripe);
    out.put_u16(key.component);
    out.put_u16(0);
}

pub fn take_key(f: &mut Fields<'_>) -> Option<ChunkKey> {
    let object = ObjectId(f.u64()?);
    let stripe = f.u32()?;
    let component = f.u16()?;
    f.u16()?;
    Some(ChunkKey { object, component, stripe })
}

pub fn put_extent(out: &mut Vec<u8>, extent: &Extent) {
    out.put_u32(extent.at);
    out.put_u32(extent.len);
    out.put_u64(extent.block);
    out.put_u64(extent.birth);
}

/// Checks the bounds that every user of an extent relies on.
pub fn take_extent(f: &mut Fields<'_>, data_blocks: u64) -> Option<Extent> {
    let extent = Extent { at: f.u32()?, len: f.u32()?, block: f.u64()?, birth: f.u64()? };
    let end = extent.block.checked_add(u64::from(extent.len))?;
    let chunk_end = extent.at.checked_add(extent.len)?;
    let sane = (1..=MAX_RUN).contains(&extent.len)
        && end <= data_blocks
        && extent.birth < BIRTH_END
        && chunk_end <= super::CHUNK_BLOCKS;
    sane.then_some(extent)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: ChunkKey = ChunkKey { object: ObjectId(9), component: 0, stripe: 1 };

    fn extent(at: u32, len: u32, block: u64) -> Extent {
        Extent { at, len, block, birth: 1 }
    }

    #[test]
    fn unmap_cuts_both_ends() {
        let mut index = Index::default();
        index.map(KEY, extent(0, 10, 100));
        index.map(KEY, extent(10, 10, 110));
        index.map(KEY, extent(30, 10, 300));
        assert_eq!(index.counts(), (1, 2), "neighbours joined");
        let freed = index.unmap(KEY, 5, 30);
        assert_eq!(freed, [Run { start: 105, len: 15 }, Run { start: 300, len: 5 }]);
        let left: Vec<_> = index.lookup(KEY, 0, 100).collect();
        assert_eq!(left, [extent(0, 5, 100), extent(35, 5, 305)]);
        assert_eq!((index.blocks(), index.counts()), (10, (1, 2)));
        index.map(KEY, extent(6, 2, 7));
        assert_eq!(index.unmap(KEY, 7, 1), [Run { start: 8, len: 1 }]);
        assert_eq!(index.unmap(KEY, 7, 1), []);
        assert_eq!(index.block(KEY, 36), Some(extent(36, 1, 306)));
    }

    /// Resident bytes of this process.
    fn resident() -> u64 {
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        pages.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
    }

    fn stripe(n: u64) -> ChunkKey {
        ChunkKey { object: ObjectId(n / 8), component: 0, stripe: (n % 8) as u32 }
    }

    /// Makes an index of `chunks` chunks of `extents` extents and tells its bytes per extent.
    fn bytes_per_extent(chunks: u64, extents: u32, shuffle: bool) -> f64 {
        let mut order: Vec<u64> = (0..chunks).collect();
        let mut rng = nuri_io::rng::Rng::new(1);
        for i in (1..chunks).rev().filter(|_| shuffle) {
            order.swap(i as usize, rng.below(i + 1) as usize);
        }
        let before = resident();
        let mut index = Index::default();
        for &n in &order {
            for i in 0..extents {
                let block = n * u64::from(extents) + u64::from(i) * 7;
                index.map(stripe(n), extent(2 * i, 1, block));
            }
            index.set_version(stripe(n), n + 1);
        }
        let all = chunks * u64::from(extents);
        assert_eq!(index.counts(), (chunks, all));
        (resident() - before) as f64 / all as f64
    }

    /// Each index has a process of its own, so that nothing else counts.
    #[test]
    fn an_extent_takes_at_most_64_bytes_of_memory() {
        const CHILD: &str = "NURI_MEASURES_MEMORY";
        let cases =
            [(400_000, 1, false), (400_000, 1, true), (200_000, 2, true), (40_000, 9, true)];
        let Some(case) = std::env::var_os(CHILD) else {
            let name = "store::index::tests::an_extent_takes_at_most_64_bytes_of_memory";
            for case in 0..cases.len() {
                let mut child = std::process::Command::new(std::env::current_exe().unwrap());
                child.args(["--exact", name, "--nocapture"]).env(CHILD, case.to_string());
                assert!(child.status().unwrap().success());
            }
            return;
        };
        let (chunks, extents, shuffle) = cases[case.to_str().unwrap().parse::<usize>().unwrap()];
        let bytes = bytes_per_extent(chunks, extents, shuffle);
        println!("{chunks} chunks of {extents}, shuffled {shuffle}: {bytes:.1} bytes per extent");
        assert!(bytes <= 64.0, "{bytes:.1}");
    }

    #[test]
    fn image_round_trip_and_bounds() {
        let mut index = Index::default();
        for stripe in 0..5 {
            let key = ChunkKey { stripe, ..KEY };
            index.map(key, extent(stripe, 3, u64::from(stripe) * 10));
            index.set_version(key, 77);
        }
        let mut image = Vec::new();
        index.encode(&mut image);
        assert!(image.len() as u64 <= index.image_bytes());
        let decode = |image, blocks| Index::decode(&mut Fields::new(image), blocks);
        let back = decode(&image, 43).unwrap();
        assert!(back.iter().eq(index.iter()));
        assert_eq!((back.version(KEY), back.blocks()), (77, 15));
        assert!(decode(&image, 42).is_none(), "extent beyond the data region");
        assert!(decode(&image[..image.len() - 1], 43).is_none());
        assert_eq!(index.chunks_of(ObjectId(9), 3).len(), 2);
    }
}
