//! What lies beside the base of a chunk of a redundant group: a staged write, or parts of an
//! install.
//!
//! Each of them is a chunk of its own, under the base's key with a bit of the component set that no
//! layout uses. Its blocks have the numbers and checksums that they will have in the base. So the
//! blocks become the base by moving in memory. As in `contents.rs`, the functions here run live and
//! at replay.

use std::sync::Arc;

use nuri_proto::id::ChunkKey;
use nuri_proto::stripe::{Held, Version};
use nuri_stripe::member;

use super::CHUNK_BLOCKS;
use super::contents::{Change, Contents, Small};
use super::index::Extent;

const STAGED: u16 = 1 << 15;
const PARTS: u16 = 1 << 14;

pub fn staged_of(key: ChunkKey) -> ChunkKey {
    ChunkKey { component: key.component | STAGED, ..key }
}

pub fn parts_of(key: ChunkKey) -> ChunkKey {
    ChunkKey { component: key.component | PARTS, ..key }
}

pub fn base_of(key: ChunkKey) -> ChunkKey {
    ChunkKey { component: key.component & !(STAGED | PARTS), ..key }
}

/// Whether the key names a chunk of a file, nothing beside one.
pub fn is_base(key: ChunkKey) -> bool {
    base_of(key) == key
}

/// Whose blocks a key names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Base,
    Staged,
    Parts,
}

pub fn kind_of(key: ChunkKey) -> Kind {
    match key.component & (STAGED | PARTS) {
        0 => Kind::Base,
        STAGED => Kind::Staged,
        _ => Kind::Parts,
    }
}

impl Contents {
    /// These whole blocks are staged, instead of whatever was.
    pub fn stage(
        &mut self,
        key: ChunkKey,
        seq: u64,
        held: &Held,
        extents: &[Extent],
        smalls: Vec<(u32, Arc<Small>)>,
    ) -> Change {
        let shadow = staged_of(key);
        let change = self.punch(shadow, seq, 0, CHUNK_BLOCKS);
        self.put(shadow, seq, extents, smalls);
        self.members.set(key, held);
        change
    }

    /// The staged write becomes the base where it is of this version. At replay it may have done
    /// so already: nothing is staged then, or what was staged since, which is staged again.
    pub fn commit(&mut self, key: ChunkKey, seq: u64, version: Version) -> Change {
        let held = self.members.get(key);
        if !member::commits(&held, version) {
            return Change::default();
        }
        self.members.set(key, &member::committed(&held));
        self.take_over(key, staged_of(key), seq)
    }

    /// Sets what is held; a staged write that is not named goes.
    pub fn set_held(&mut self, key: ChunkKey, seq: u64, held: &Held) -> Change {
        self.members.set(key, held);
        if held.staged.is_some() {
            return Change::default();
        }
        self.punch(staged_of(key), seq, 0, CHUNK_BLOCKS)
    }

    /// The parts become the base, whole; a staged write goes. Not idempotent where parts came
    /// before the log's tail: with parts it is never done between the first and the fourth step of
    /// a checkpoint.
    pub fn install(&mut self, key: ChunkKey, seq: u64, held: &Held) -> Change {
        let mut change = self.set_held(key, seq, held);
        change.freed.extend(self.punch(key, seq, 0, CHUNK_BLOCKS).freed);
        change.freed.extend(self.take_over(key, parts_of(key), seq).freed);
        self.installing.remove(&key);
        change
    }

    /// What the shadow holds replaces what the base held there.
    fn take_over(&mut self, key: ChunkKey, shadow: ChunkKey, seq: u64) -> Change {
        let extents: Vec<Extent> = self.index.lookup(shadow, 0, CHUNK_BLOCKS).collect();
        let smalls = self.smalls(shadow, 0, CHUNK_BLOCKS);
        let smalls = smalls.map(|(block, small)| (block, small.clone())).collect();
        self.punch(shadow, seq, 0, CHUNK_BLOCKS);
        self.put(key, seq, &extents, smalls)
    }

    fn put(
        &mut self,
        key: ChunkKey,
        seq: u64,
        extents: &[Extent],
        smalls: Vec<(u32, Arc<Small>)>,
    ) -> Change {
        let mut change = Change::default();
        if !extents.is_empty() {
            change = self.write(key, seq, extents);
        }
        for (block, small) in smalls {
            self.data(key, seq, block, vec![small]);
        }
        change
    }

    /// Blocks beside the base that hold data where the base holds none.
    pub fn gained(&self, shadow: ChunkKey) -> u64 {
        let base = base_of(shadow);
        let extents = self.index.lookup(shadow, 0, CHUNK_BLOCKS);
        let large: u64 = extents.map(|e| self.needs(base, e.at, e.len)).sum();
        let smalls = self.smalls(shadow, 0, CHUNK_BLOCKS);
        let only = smalls.filter(|(block, _)| self.index.block(shadow, *block).is_none());
        large + only.map(|(block, _)| self.needs(base, block, 1)).sum::<u64>()
    }

    /// Where this very block of a chunk is now: beside the base, or in it since.
    pub fn whereabouts(&self, key: ChunkKey, block: u32, small: &Arc<Small>) -> ChunkKey {
        let base = base_of(key);
        let moved = self.small(base, block).is_some_and(|now| Arc::ptr_eq(now, small));
        if moved { base } else { key }
    }

    /// Forgets parts of installs: nobody will send the rest. Whether there were any.
    pub fn drop_parts(&mut self) -> bool {
        let keys = self.index.keys().filter(|key| kind_of(*key) == Kind::Parts);
        let keys: Vec<ChunkKey> = keys.collect();
        keys.iter().for_each(|key| drop(self.punch(*key, 0, 0, CHUNK_BLOCKS)));
        !keys.is_empty()
    }

    /// Chunks that have staged blocks and no staged write; there are none.
    pub fn lost_staged(&self) -> Vec<ChunkKey> {
        let staged = self.index.keys().filter(|key| kind_of(*key) == Kind::Staged);
        staged.map(base_of).filter(|key| self.members.get(*key).staged.is_none()).collect()
    }
}
