//! A model of what a crash may leave, block by block, and a run of random operations against it.

use std::collections::BTreeMap;
use std::sync::Arc;

use nuri_io::rng::Rng;
use nuri_proto::id::{ChunkKey, ObjectId};
use nuri_proto::op::data::Durability;
use nuri_target::store::StoreError;

use super::*;

pub const BLOCKS: usize = 48;
const OBJECTS: u64 = 3;
const STRIPES: u32 = 2;

type Content = Arc<Vec<u8>>;

/// One operation: when it began and was acknowledged, in events of the disk.
struct Op {
    start: usize,
    end: usize,
    /// Makes its own change durable, or all before it too.
    stable: bool,
    flush: bool,
}

/// What was done, and what each block held after each operation that touched it.
pub struct Model {
    ops: Vec<Op>,
    blocks: BTreeMap<(ChunkKey, usize), Vec<(usize, Content)>>,
    zero: Content,
    /// Writes that found no space.
    pub refused: u64,
}

pub fn keys() -> impl Iterator<Item = ChunkKey> {
    (1..=OBJECTS).flat_map(|object| (0..STRIPES).map(move |stripe| key(object, stripe)))
}

impl Model {
    pub fn new() -> Model {
        Model {
            ops: Vec::new(),
            blocks: BTreeMap::new(),
            zero: Arc::new(vec![0; BLOCK]),
            refused: 0,
        }
    }

    fn now(&self, key: ChunkKey, block: usize) -> Content {
        let last = self.blocks.get(&(key, block)).and_then(|all| all.last());
        last.map_or(self.zero.clone(), |(_, content)| content.clone())
    }

    fn set(&mut self, key: ChunkKey, block: usize, content: Content) {
        let op = self.ops.len();
        self.blocks.entry((key, block)).or_default().push((op, content));
    }

    fn put(&mut self, key: ChunkKey, offset: usize, data: &[u8]) {
        let (mut at, mut rest) = (offset, data);
        while !rest.is_empty() {
            let skip = at % BLOCK;
            let take = rest.len().min(BLOCK - skip);
            let mut content = (*self.now(key, at / BLOCK)).clone();
            content[skip..skip + take].copy_from_slice(&rest[..take]);
            self.set(key, at / BLOCK, Arc::new(content));
            at += take;
            rest = &rest[take..];
        }
    }

    fn wipe(&mut self, object: ObjectId, from: u32) {
        for key in keys().filter(|k| k.object == object && k.stripe >= from) {
            (0..BLOCKS).for_each(|block| self.set(key, block, self.zero.clone()));
        }
    }

    /// Whether there was space. Where there was not, a part of the write may have been made.
    fn wrote<T>(&mut self, store: &Store, outcome: Result<T, StoreError>) -> bool {
        match outcome {
            Ok(_) => return true,
            Err(StoreError::NoSpace) => {}
            Err(e) => panic!("{e}"),
        }
        self.refused += 1;
        for key in keys() {
            let got = read(store, key, 0, BLOCKS * BLOCK);
            for (block, bytes) in got.chunks(BLOCK).enumerate() {
                if self.now(key, block)[..] != *bytes {
                    self.set(key, block, Arc::new(bytes.to_vec()));
                }
            }
        }
        false
    }

    /// Runs one random operation on store and model.
    pub fn step(&mut self, store: &Store, disk: &MemDisk, rng: &mut Rng) {
        let start = disk.events();
        let k = key(1 + rng.below(OBJECTS), rng.below(u64::from(STRIPES)) as u32);
        let stable = rng.one_in(3);
        let how = if stable { Durability::Stable } else { Durability::Memory };
        let mut op = Op { start, end: 0, stable, flush: false };
        let at = rng.below((BLOCKS * BLOCK) as u64 - 1) as usize;
        let room = BLOCKS * BLOCK - at;
        match rng.below(16) {
            0..=3 => {
                let len = (rng.below(12_000) as usize + 1).min(room);
                let data = pattern(len, rng.next());
                self.put(k, at, &data);
                op.stable &= self.wrote(store, store.write(k, at as u32, &data, how));
            }
            4..=6 => {
                let (at, room) = (at / BLOCK * BLOCK, BLOCKS * BLOCK - at / BLOCK * BLOCK);
                let data = pattern(BLOCK.min(room), rng.next());
                self.put(k, at, &data);
                op.stable &= self.wrote(store, store.write(k, at as u32, &data, how));
            }
            7..=10 => {
                let first = rng.below(BLOCKS as u64 - 16) as usize;
                let len = ((16 + rng.below(32)) as usize).min(BLOCKS - first) * BLOCK;
                let data = pattern(len, rng.next());
                self.put(k, first * BLOCK, &data);
                let at = (first * BLOCK) as u32;
                op.stable &= self.wrote(store, store.write(k, at, &data, how));
            }
            11 => {
                let len = (rng.below(60_000) as usize).min(room);
                self.put(k, at, &vec![0; len]);
                op.stable = false;
                self.wrote(store, store.punch(k, at as u32, len as u32));
            }
            12 => {
                op.stable = true;
                self.wipe(k.object, k.stripe);
                store.truncate(k.object, k.stripe).unwrap();
            }
            13 if rng.one_in(2) => {
                op.stable = true;
                self.wipe(k.object, 0);
                store.delete(&[k.object]).unwrap();
            }
            14 => {
                op.flush = true;
                store.flush().unwrap();
            }
            13 => drop(store.trim(1 << 20)),
            _ => store.checkpoint().unwrap(),
        }
        op.end = disk.events();
        self.ops.push(op);
    }

    /// What the block may hold after a crash when `cut` events had happened.
    fn allowed(&self, key: ChunkKey, block: usize, cut: usize) -> Vec<Content> {
        let acked = |op: &Op| op.end <= cut;
        let flushed = self.ops.iter().rposition(|op| op.flush && acked(op)).unwrap_or(0);
        let durable = |i: usize| i < flushed || (self.ops[i].stable && acked(&self.ops[i]));
        let mut all = vec![self.zero.clone()];
        for (i, content) in self.blocks.get(&(key, block)).into_iter().flatten() {
            if self.ops.get(*i).is_none_or(|op| op.start > cut) {
                break;
            }
            if durable(*i) {
                all.clear();
            }
            all.push(content.clone());
        }
        all
    }

    /// Everything that is allowed after that crash and nothing else is in the store.
    pub fn verify(&self, store: &Store, cut: usize, what: &str) {
        for key in keys() {
            let got = read(store, key, 0, BLOCKS * BLOCK);
            for (block, bytes) in got.chunks(BLOCK).enumerate() {
                let ok = self.allowed(key, block, cut).iter().any(|c| c[..] == *bytes);
                assert!(ok, "{what}, cut {cut}: {key:?} block {block} is neither old nor new");
            }
        }
    }
}
