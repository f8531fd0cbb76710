//! Staged writes against a model: random operations, and crash images cut at every disk operation.

use std::collections::BTreeMap;

use nuri_io::rng::Rng;
use nuri_proto::id::{Epoch, ObjectId, SessionId};
use nuri_proto::op::data::Durability::Stable;
use nuri_proto::op::member::{Install, Purpose, Reason};
use nuri_proto::stripe::{Change, Earlier, Held, Members, Stage, StageReply, Version, WriteId};
use nuri_stripe::member::{self, First, StageVerdict};
use nuri_target::store::{MemberRead, StoreError};

use super::member::{GROUP, at, covers, version};
use super::*;

const LEN: usize = 60 * BLOCK;

fn keys() -> impl Iterator<Item = ChunkKey> {
    (1..=2).flat_map(|object| (0..2).map(move |stripe| key(object, stripe)))
}

/// A stripe: what is held of it, and its bytes now and once the staged write is committed.
#[derive(Clone)]
struct Stripe {
    held: Held,
    base: Arc<Vec<u8>>,
    staged: Arc<Vec<u8>>,
}

struct Op {
    start: usize,
    end: usize,
    /// Durable when it ends, with all before it.
    durable: bool,
}

struct Model {
    ops: Vec<Op>,
    /// What each stripe was, with the operation that made it so.
    past: BTreeMap<ChunkKey, Vec<(usize, Stripe)>>,
    number: u64,
    /// Calls that found no space.
    refused: u64,
}

impl Model {
    fn new() -> Model {
        let zero = Arc::new(vec![0; LEN]);
        let empty = Stripe { held: Held::default(), base: zero.clone(), staged: zero };
        let past = keys().map(|key| (key, vec![(0, empty.clone())])).collect();
        Model { ops: Vec::new(), past, number: 0, refused: 0 }
    }

    fn now(&self, key: ChunkKey) -> Stripe {
        self.past[&key].last().unwrap().1.clone()
    }

    fn becomes(&mut self, key: ChunkKey, stripe: Stripe) {
        self.past.get_mut(&key).unwrap().push((self.ops.len(), stripe));
    }

    fn commit(&mut self, key: ChunkKey) {
        let now = self.now(key);
        let held = member::committed(&now.held);
        self.becomes(key, Stripe { held, base: now.staged.clone(), ..now });
    }

    fn id(&mut self) -> WriteId {
        self.number += 1;
        WriteId { session: SessionId(1), number: self.number }
    }

    /// A write that a member should take, or seldom one that it should not.
    fn ask(&mut self, held: &Held, rng: &mut Rng) -> Stage {
        let to = held.newest().next(Epoch(1));
        let staged = held.staged.as_ref();
        let before = staged.map_or(Version::NONE, |staged| staged.version);
        let (earlier, base) = match rng.below(6) {
            0 => (Earlier::Unknown, &held.covers),
            1 | 2 => (Earlier::Aborted(before), &held.covers),
            _ => (Earlier::Decided(before), staged.map_or(&held.covers, |s| &s.covers)),
        };
        let mut after = base.clone();
        after.set(rng.below(3) as usize, to);
        Stage {
            group: GROUP,
            version: to,
            id: self.id(),
            base: if rng.one_in(12) { covers(999) } else { base.clone() },
            covers: after,
            participants: Members(rng.below(8) as u32),
            earlier,
        }
    }

    /// Whether the call had space.
    fn had_space<T>(&mut self, outcome: Result<T, StoreError>) -> Option<T> {
        match outcome {
            Ok(value) => Some(value),
            Err(StoreError::NoSpace) => {
                self.refused += 1;
                None
            }
            Err(e) => panic!("{e}"),
        }
    }

    fn stage(&mut self, store: &Store, key: ChunkKey, rng: &mut Rng) -> bool {
        let now = self.now(key);
        let ask = self.ask(&now.held, rng);
        let first = rng.below(LEN as u64 - 1) as usize;
        let (offset, len) = match rng.below(4) {
            0 => (first, rng.below(9000) as usize),
            1 => (first / BLOCK * BLOCK, BLOCK),
            2 => (first / 2 / BLOCK * BLOCK, 30 * BLOCK),
            _ => (first / 3, 80_000),
        };
        let data = pattern(len.min(LEN - offset), rng.next());
        let is_sum = rng.one_in(4);
        let change = if is_sum { Change::Xor { offset: offset as u32 } } else { at(offset) };
        let verdict = member::stage(&now.held, &ask);
        let outcome = store.stage(key, &ask, change, &data);
        let Some(reply) = self.had_space(outcome) else {
            if verdict == StageVerdict::Accept(First::Commit) {
                self.commit(key);
            }
            return false;
        };
        let StageVerdict::Accept(first) = verdict else {
            assert_eq!(reply, StageReply::Refused(now.held));
            return true;
        };
        assert!(matches!(reply, StageReply::Staged { .. }));
        if first == First::Commit {
            self.commit(key);
        }
        let now = self.now(key);
        let mut staged = (*now.base).clone();
        let kept = if is_sum { 0xff } else { 0 };
        let range = &mut staged[offset..offset + data.len()];
        range.iter_mut().zip(&data).for_each(|(old, new)| *old = *old & kept ^ new);
        let held = member::staged(&now.held, &ask, First::Drop);
        self.becomes(key, Stripe { held, staged: Arc::new(staged), ..now });
        let again = store.stage(key, &ask, change, &data).unwrap();
        assert_eq!(again, reply, "the same again");
        true
    }

    fn install(&mut self, store: &Store, key: ChunkKey, rng: &mut Rng) -> bool {
        let now = self.now(key);
        let mut after = now.held.covers.clone();
        if !rng.one_in(4) {
            let newest = now.held.newest();
            let to = if rng.one_in(2) { newest.next(Epoch(1)) } else { newest.max(version(1)) };
            after.set(rng.below(3) as usize, to);
        }
        let mut content = pattern(LEN, rng.next());
        for _ in 0..rng.below(6) {
            let from = rng.below(59) as usize * BLOCK;
            let to = (from + rng.below(20) as usize * BLOCK).min(LEN);
            content[from..to].fill(0);
        }
        let end = rng.below(LEN as u64) as usize + 1;
        content[end..].fill(0);
        let reason = if rng.one_in(2) { Reason::Damaged } else { Reason::Behind };
        let id = self.id();
        let step = (rng.below(60) as usize + 1) * BLOCK;
        let gives_up = rng.one_in(5);
        let mut offset = 0;
        loop {
            let (part, last) = (&content[offset..end.min(offset + step)], offset + step >= end);
            let (group, covers) = (GROUP, after.clone());
            let install = Install { group, id, covers, reason, offset: offset as u32, last };
            if last && gives_up {
                return false;
            }
            let takes = member::installs(&now.held, &install);
            let outcome = store.install(key, &install, part);
            let Some(held) = self.had_space(outcome) else { return false };
            if last && takes {
                let next = member::installed(&now.held, &install);
                assert_eq!(held, next);
                self.becomes(key, Stripe { held, base: Arc::new(content), ..now });
                return true;
            }
            assert_eq!(held, now.held);
            if last {
                return true;
            }
            if rng.one_in(4) {
                store.checkpoint().unwrap();
            }
            offset += step;
        }
    }

    fn read(&mut self, store: &Store, key: ChunkKey, rng: &mut Rng) {
        let now = self.now(key);
        let offset = rng.below(LEN as u64) as usize;
        let mut buf = vec![0; rng.below((LEN - offset) as u64) as usize];
        self.read_after(store, key, offset, &mut buf);
        let staged = now.held.staged.as_ref().map_or(Version::NONE, |staged| staged.version);
        let decided = if rng.one_in(2) { staged } else { Version::NONE };
        let purpose = if rng.one_in(2) { Purpose::Use } else { Purpose::Base };
        let got = store.read_member(key, offset as u32, &mut buf, decided, purpose).unwrap();
        if staged != Version::NONE && decided == staged {
            self.commit(key);
        }
        let now = self.now(key);
        if now.held.staged.is_some() && purpose == Purpose::Use {
            assert_eq!(got, MemberRead::Undecided);
        } else {
            assert_eq!(got, MemberRead::Read(now.held.covers));
            assert!(buf == now.base[offset..offset + buf.len()]);
        }
    }

    /// Reads what the base will be once its staged write is committed, and asks where it has data
    /// then.
    fn read_after(&self, store: &Store, key: ChunkKey, offset: usize, buf: &mut [u8]) {
        let now = self.now(key);
        let Some(staged) = &now.held.staged else { return };
        let mut read = |id| {
            let purpose = Purpose::After { version: staged.version, id };
            store.read_member(key, offset as u32, buf, Version::NONE, purpose).unwrap()
        };
        let another = WriteId { number: staged.id.number + 1, ..staged.id };
        assert_eq!(read(another), MemberRead::Read(now.held.covers.clone()));
        assert_eq!(read(staged.id), MemberRead::Read(staged.covers.clone()));
        assert!(buf == &now.staged[offset..offset + buf.len()]);
        let end = store.extents_with_staged(key).last().map_or(0, |(at, len)| at + len);
        assert!(now.staged[end as usize..].iter().all(|byte| *byte == 0));
    }

    fn truncate(&mut self, object: ObjectId, from: u32) {
        let empty = self.past[&key(1, 0)][0].1.clone();
        for key in keys().filter(|key| key.object == object && key.stripe >= from) {
            let held = self.now(key).held;
            let was_held = from > 0 && held != Held::default();
            let held = if was_held { member::cut_off(&held) } else { Held::default() };
            self.becomes(key, Stripe { held, ..empty.clone() });
        }
    }

    /// Runs one random operation on store and model.
    fn step(&mut self, store: &Store, disk: &MemDisk, rng: &mut Rng) {
        let start = disk.events();
        let k = keys().nth(rng.below(4) as usize).unwrap();
        let now = self.now(k);
        let durable = match rng.below(20) {
            0..=8 => self.stage(store, k, rng),
            9 | 10 => {
                if let Some(staged) = &now.held.staged {
                    store.commit(k, Version(staged.version.0 - 1)).unwrap();
                    store.commit(k, staged.version).unwrap();
                    self.commit(k);
                }
                false
            }
            11 => {
                let version = Version(now.held.newest().0 + 1 - rng.below(3).min(1));
                let outcome = store.abort(k, GROUP, version);
                let held = self.had_space(outcome);
                if let Some(held) = &held {
                    let next = Held { group: GROUP, ..member::aborted(&now.held, version) };
                    assert_eq!(*held, next);
                    self.becomes(k, Stripe { held: next, ..now });
                }
                held.is_some()
            }
            12 | 13 => self.install(store, k, rng),
            14 | 15 => {
                self.read(store, k, rng);
                false
            }
            16 if rng.one_in(3) => {
                store.truncate(k.object, k.stripe).unwrap();
                self.truncate(k.object, k.stripe);
                true
            }
            16 if rng.one_in(2) => {
                let saw = store.held(k).unwrap().covers;
                assert!(store.forget(k, &saw, Epoch(u64::MAX)).unwrap());
                let empty = self.past[&k][0].1.clone();
                self.becomes(k, empty);
                true
            }
            16 => {
                store.delete(&[k.object]).unwrap();
                self.truncate(k.object, 0);
                true
            }
            17 => {
                assert_eq!(store.held(k).unwrap(), now.held);
                true
            }
            18 => {
                store.flush().unwrap();
                true
            }
            _ => {
                store.checkpoint().unwrap();
                store.trim(1 << 20);
                false
            }
        };
        self.ops.push(Op { start, end: disk.events(), durable });
    }

    /// What the stripe may be after a crash when `cut` events had happened.
    fn allowed(&self, key: ChunkKey, cut: usize) -> &[(usize, Stripe)] {
        let past = &self.past[&key];
        let durable = self.ops.iter().rposition(|op| op.durable && op.end <= cut);
        let until = durable.map_or(0, |op| op + 1);
        let first = past.partition_point(|(op, _)| *op < until).max(1) - 1;
        let begun = |op: &usize| self.ops.get(*op).is_none_or(|op| op.start <= cut);
        let end = past.partition_point(|(op, _)| begun(op));
        &past[first..end.max(first + 1)]
    }

    /// Each stripe is as it was at one moment of those allowed. With `finish` its staged write is
    /// committed and looked at too.
    fn verify(&self, store: &Store, cut: usize, what: &str, finish: bool) {
        for key in keys() {
            let held = store.held(key).unwrap();
            let mut buf = vec![0xee; LEN];
            store.read_member(key, 0, &mut buf, Version::NONE, Purpose::Base).unwrap();
            let allowed = self.allowed(key, cut).iter().map(|(_, stripe)| stripe);
            let same = |s: &&Stripe| s.held == held && *s.base == buf;
            let Some(found) = allowed.clone().find(same) else {
                let all: Vec<_> = allowed.map(|s| (&s.held, *s.base == buf)).collect();
                panic!("{what}, cut {cut}: {key:?} holds {held:?}, none of {all:#?}");
            };
            if let Some(staged) = held.staged.filter(|_| finish) {
                let read = store.read_member(key, 0, &mut buf, staged.version, Purpose::Use);
                assert_eq!(read.unwrap(), MemberRead::Read(staged.covers));
                assert!(*found.staged == buf, "{what}, cut {cut}: {key:?} staged other bytes");
            }
        }
    }
}

#[test]
fn random_operations_match_the_model() {
    for seed in 0..6 {
        let (disk, mut store) = fresh(16 << 20);
        let (mut rng, mut model) = (Rng::new(seed), Model::new());
        for step in 0..120 {
            model.step(&store, &disk, &mut rng);
            model.verify(&store, usize::MAX, &format!("seed {seed} step {step}"), false);
            if rng.one_in(10) {
                store.flush().unwrap();
                drop(store);
                assert_clean(&disk);
                store = open(&disk).unwrap();
            }
        }
        assert_eq!(model.refused, 0);
        store.close().unwrap();
        assert_clean(&disk);
    }
}

/// Runs random operations on a recording disk, then visits crashes at each of its operations.
/// So many bytes are taken already. Returns the calls that found no space.
fn torture(seed: u64, ops: usize, capacity: u64, taken: usize) -> u64 {
    let (disk, store) = fresh_on(MemDisk::recording(), capacity);
    store.write(key(9, 0), 0, &pattern(taken, 1), Stable).unwrap();
    let born = disk.events();
    let (mut rng, mut model) = (Rng::new(seed), Model::new());
    for _ in 0..ops {
        model.step(&store, &disk, &mut rng);
    }
    drop(store);
    for cut in born..=disk.events() {
        let image = Arc::new(disk.image_at_event(cut, &mut rng));
        assert_clean(&image);
        let what = format!("seed {seed}");
        let store = open(&image).unwrap_or_else(|e| panic!("{what}, cut {cut}: {e}"));
        model.verify(&store, cut, &what, false);
        drop(store);
        // The opening itself may crash, and what it wrote may be lost in part.
        let again = Arc::new(image.crash_image(&mut rng));
        let store = open(&again).unwrap_or_else(|e| panic!("{what}, cut {cut}, again: {e}"));
        model.verify(&store, cut, "after a second crash", true);
        store.close().unwrap();
        assert_clean(&again);
    }
    model.refused
}

#[test]
fn crashes_leave_one_moment_and_all_that_was_answered() {
    for seed in 0..5 {
        torture(seed, 60, 8 << 20, 0);
    }
}

#[test]
fn crashes_of_a_nearly_full_store_with_staged_writes() {
    let refused: u64 = (100..105).map(|seed| torture(seed, 60, 2 << 20, 800_000)).sum();
    assert!(refused > 0, "nothing was refused");
}
