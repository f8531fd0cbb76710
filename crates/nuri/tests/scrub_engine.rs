//! The engine of redundant stripes over real chunk stores on memory disks: what a scrub finds, what
//! it repairs and what it leaves alone; what is copied to a target that takes a place;
//! where a chunk holds data.

#![allow(clippy::unwrap_used)] // Helpers outside `#[test]` functions are tests too.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nuri_io::disk::Disk;
use nuri_io::mem::MemDisk;
use nuri_proto::id::{
    BootId, ChunkKey, ClusterId, Epoch, GroupId, Incarnation, ObjectId, SessionId, TargetId,
};
use nuri_proto::layout::Shape;
use nuri_proto::map::{Group, Member, Standing};
use nuri_proto::op::data::DataExtents;
use nuri_proto::op::member::{
    Install, MemberAbort, MemberChanged, MemberCommit, MemberForget, MemberHeld, MemberInstall,
    MemberRead, MemberReadReply, MemberStage, Reason,
};
use nuri_proto::op::{Call, Op};
use nuri_proto::stripe::{Change, Stage, Version, WriteId};
use nuri_proto::{Status, codec};
use nuri_target::store::{self, ChunkStore, FormatOptions, StoreConfig};
use nuri_volume::group::{Ask, Finding, Flaw, Groups, Guess, Move, Part, Port, Stripe, Verdict};
use parking_lot::{Mutex, RwLock};

type Store = ChunkStore<Arc<MemDisk>>;
type Hook = Box<dyn FnOnce(&[RwLock<Store>]) + Send>;

const LEN: usize = 256 << 10;
const PARITY: Shape = Shape::Parity { k: 3, m: 1 };
const MIRROR: Shape = Shape::Mirror(2);
const THREE: Shape = Shape::Mirror(3);
const ABSENT: Standing = Standing::Absent { since: Epoch(2) };
const ME: SessionId = SessionId(1);
const KEY: ChunkKey = ChunkKey { object: ObjectId(17), component: 0, stripe: 4 };

/// A group whose members are all live.
struct Bench {
    group: Mutex<Group>,
    /// By place; the last one is in no group.
    stores: Vec<RwLock<Store>>,
    /// Runs once, before the first call of this kind.
    before: Mutex<Option<(Op, Hook)>>,
    began: Instant,
}

#[derive(Clone)]
struct Here(Arc<Bench>);

fn open(disk: MemDisk) -> Store {
    ChunkStore::open(Arc::new(disk), BootId(1), StoreConfig::default()).unwrap()
}

fn made(place: usize) -> Store {
    let disk = Arc::new(MemDisk::new());
    let options = FormatOptions {
        cluster: ClusterId([7; 16]),
        target: Some(TargetId(place as u32 + 1)),
        incarnation: Incarnation(place as u64),
        capacity_bytes: 16 << 20,
        log_bytes: FormatOptions::LOG_BYTES,
    };
    ChunkStore::format(&disk, options).unwrap();
    ChunkStore::open(disk, BootId(1), StoreConfig::default()).unwrap()
}

fn answer<C: Call>(
    args: &[u8],
    f: impl FnOnce(C) -> Result<C::Reply, Status>,
) -> Result<Vec<u8>, Status> {
    f(codec::decode(args).unwrap()).map(|reply| codec::encode(&reply).unwrap())
}

fn serve(
    op: Op,
    args: &[u8],
    store: &Store,
    payload: &[u8],
    into: &mut [u8],
) -> Result<Vec<u8>, Status> {
    match op {
        Op::MemberStage => {
            answer::<MemberStage>(args, |c| Ok(store.stage(c.key, &c.stage, c.change, payload)?))
        }
        Op::MemberCommit => answer::<MemberCommit>(args, |c| {
            for (key, version) in c.decided {
                store.commit(key, version)?;
            }
            Ok(())
        }),
        Op::MemberAbort => {
            answer::<MemberAbort>(args, |c| Ok(store.abort(c.key, c.group, c.version)?))
        }
        Op::MemberHeld => answer::<MemberHeld>(args, |c| Ok(store.held(c.key)?)),
        Op::MemberInstall => {
            answer::<MemberInstall>(args, |c| Ok(store.install(c.key, &c.install, payload)?))
        }
        Op::MemberForget => answer::<MemberForget>(args, |c| {
            if store.forget(c.key, &c.covers, c.epoch)? { Ok(()) } else { Err(Status::RETRY) }
        }),
        Op::MemberChanged => answer::<MemberChanged>(args, |c| {
            Ok(store.changed(c.group, c.since, c.after, c.limit as usize))
        }),
        Op::DataExtents => answer::<DataExtents>(args, |c| Ok(store.extents(c.key))),
        Op::MemberRead => answer::<MemberRead>(args, |c| {
            match store.read_member(c.key, c.offset, into, c.decided, c.purpose)? {
                store::MemberRead::Read(covers) => Ok(MemberReadReply { covers }),
                store::MemberRead::Undecided => Err(Status::UNDECIDED),
            }
        }),
        _ => Err(Status::NOTSUP),
    }
}

impl Port for Here {
    fn group(&self, _: GroupId) -> Option<Group> {
        Some(self.0.group.lock().clone())
    }

    fn refresh(&self) {}

    fn exchange<C: Call>(
        &self,
        _: SessionId,
        asks: Vec<Ask<'_, C>>,
    ) -> Vec<Result<C::Reply, Status>> {
        let due = self.0.before.lock().take_if(|(op, _)| *op == C::OP);
        if let Some((_, hook)) = due {
            hook(&self.0.stores);
        }
        let one = |ask: Ask<'_, C>| {
            let store = self.0.stores[ask.target.0 as usize - 1].read();
            let args = codec::encode(&ask.call).unwrap();
            let reply = serve(C::OP, &args, &store, ask.payload, ask.into)?;
            Ok(codec::decode(&reply).unwrap())
        };
        asks.into_iter().map(one).collect()
    }

    fn change<C: Call>(
        &self,
        session: SessionId,
        target: TargetId,
        call: &C,
        _: Duration,
    ) -> Result<C::Reply, Status> {
        let call = codec::decode(&codec::encode(call).unwrap()).unwrap();
        self.exchange(session, vec![Ask::<C>::plain(target, call)]).remove(0)
    }

    fn now(&self) -> Duration {
        self.0.began.elapsed()
    }

    fn pause(&self, time: Duration) {
        std::thread::sleep(time.min(Duration::from_millis(1)));
    }
}

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut data = vec![0; len];
    nuri_io::rng::Rng::new(seed).fill(&mut data);
    data
}

struct Case {
    bench: Here,
    groups: Groups<Here>,
    stripe: Stripe,
}

impl Case {
    fn new(shape: Shape) -> Case {
        let member = |i| Member::new(TargetId(i), Standing::Live);
        let members = (1..=shape.members() as u32).map(member).collect();
        let group = Group { id: GroupId(5), epoch: Epoch(2), shape, members };
        let stores = (0..=shape.members()).map(|place| RwLock::new(made(place))).collect();
        let (before, began) = (Mutex::new(None), Instant::now());
        let stripe = Stripe { group: group.id, shape, key: KEY };
        let group = Mutex::new(group);
        let bench = Here(Arc::new(Bench { group, stores, before, began }));
        let groups = Groups::new(bench.clone(), 0);
        Case { bench, groups, stripe }
    }

    /// A stripe whose data are the patterns of these seeds, committed everywhere.
    fn written(shape: Shape, seeds: &[u64]) -> Case {
        let case = Case::new(shape);
        case.write(seeds);
        case
    }

    fn write(&self, seeds: &[u64]) {
        let data: Vec<_> = seeds.iter().map(|seed| pattern(*seed, LEN)).collect();
        let part = |(place, data)| Part { place, offset: 0, data };
        let parts: Vec<_> = data.iter().map(Vec::as_slice).enumerate().map(part).collect();
        self.groups.write(ME, &self.stripe, &parts, Guess::Unknown).unwrap();
        self.groups.tell_commits();
    }

    fn store(&self, place: usize) -> parking_lot::RwLockReadGuard<'_, Store> {
        self.bench.0.stores[place].read()
    }

    fn bytes(&self, place: usize) -> Vec<u8> {
        let mut bytes = vec![0; LEN];
        self.store(place).read(KEY, 0, &mut bytes).unwrap();
        bytes
    }

    /// Flips a bit on the disk of the block that holds this place's bytes from `at` on.
    fn flip(&self, place: usize, at: usize) {
        let wanted = self.bytes(place)[at..at + 32].to_vec();
        let store = self.store(place);
        // What small writes wrote is in the log alone before.
        store.checkpoint().unwrap();
        let data = store.superblock().regions.data_at;
        let mut all = vec![0; (store.disk().len().unwrap() - data) as usize];
        store.disk().read_at(data, &mut all).unwrap();
        let is_there = |block: &usize| all[block * 4096 + at % 4096..].starts_with(&wanted);
        let found: Vec<_> = (0..all.len() / 4096).filter(is_there).collect();
        assert!(!found.is_empty());
        for block in found {
            store.disk().flip_bit(data + (block * 4096 + at % 4096) as u64, 3);
        }
    }

    fn scrub(&self) -> Result<Vec<Finding>, Status> {
        let mut verdict = Verdict::default();
        self.groups.scrub(&self.stripe, &mut verdict).map(|()| verdict.findings)
    }

    fn stands(&self, place: usize, standing: Standing) {
        self.bench.0.group.lock().members[place].standing = standing;
    }

    /// Copies a place to the target that is in no group.
    fn copy(&self, place: usize) -> Result<Epoch, Status> {
        let target = |store: usize| TargetId(store as u32 + 1);
        let (from, to) = (target(place), target(self.stripe.shape.members()));
        self.groups.copy_place(Move { group: self.stripe.group, from, to }, |_, _| {})
    }

    fn hook(&self, op: Op, hook: impl FnOnce(&[RwLock<Store>]) + Send + 'static) {
        *self.bench.0.before.lock() = Some((op, Box::new(hook)));
    }
}

fn found(place: usize, flaw: Flaw, repaired: bool) -> Finding {
    Finding { target: TargetId(place as u32 + 1), flaw, repaired }
}

#[test]
fn a_whole_stripe_gives_no_finding() {
    for (shape, seeds) in [(PARITY, &[1, 2, 3][..]), (PARITY, &[1]), (MIRROR, &[4])] {
        assert_eq!(Case::written(shape, seeds).scrub(), Ok(vec![]));
    }
    assert_eq!(Case::new(PARITY).scrub(), Ok(vec![]), "never written");
}

#[test]
fn a_flipped_bit_is_repaired_wherever_it_is() {
    for (shape, seeds, place) in
        [(PARITY, &[1, 2, 3][..], 1), (PARITY, &[1, 2, 3], 3), (MIRROR, &[4], 0), (MIRROR, &[4], 1)]
    {
        let case = Case::written(shape, seeds);
        let before = case.bytes(place);
        case.flip(place, 9000);
        assert_eq!(case.scrub(), Ok(vec![found(place, Flaw::Damaged, true)]));
        assert_eq!(case.bytes(place), before);
        assert_eq!(case.scrub(), Ok(vec![]));
    }
}

#[test]
fn flipped_bits_in_two_members_are_repaired_block_by_block() {
    let case = Case::written(PARITY, &[1, 2, 3]);
    let before = [case.bytes(0), case.bytes(2)];
    case.flip(0, 9000);
    case.flip(2, 100_000);
    let both = vec![found(0, Flaw::Damaged, true), found(2, Flaw::Damaged, true)];
    assert_eq!(case.scrub(), Ok(both));
    assert_eq!([case.bytes(0), case.bytes(2)], before);
    // The same block of both: nothing says what was there.
    let case = Case::written(PARITY, &[1, 2, 3]);
    case.flip(0, 9000);
    case.flip(2, 9000);
    let both = vec![found(0, Flaw::Damaged, false), found(2, Flaw::Damaged, false)];
    assert_eq!(case.scrub(), Ok(both));
}

#[test]
fn without_enough_others_nothing_is_repaired() {
    let case = Case::written(MIRROR, &[1]);
    case.flip(0, 9000);
    case.stands(1, ABSENT);
    assert_eq!(case.scrub(), Ok(vec![found(0, Flaw::Damaged, false)]));
    case.stands(1, Standing::Live);
    assert_eq!(case.scrub(), Ok(vec![found(0, Flaw::Damaged, true)]));
}

#[test]
fn a_lost_write_is_found_by_its_version() {
    for (shape, first, second, place) in [
        (PARITY, &[1, 2, 3][..], &[4][..], 0),
        (PARITY, &[1, 2, 3], &[4], 3),
        (MIRROR, &[5], &[6], 0),
        (MIRROR, &[5], &[6], 1),
    ] {
        let case = Case::written(shape, first);
        case.store(place).flush().unwrap();
        let older = case.store(place).disk().fork();
        case.write(second);
        let now = case.bytes(place);
        *case.bench.0.stores[place].write() = open(older);
        assert_ne!(case.bytes(place), now);
        assert_eq!(case.scrub(), Ok(vec![found(place, Flaw::Stale, true)]));
        assert_eq!(case.bytes(place), now);
        assert_eq!(case.scrub(), Ok(vec![]));
    }
}

/// Catches `broken!("scrub_by_majority")`.
#[test]
fn what_does_not_fit_is_reported_and_left_alone() {
    for (shape, seeds, place) in [(PARITY, &[1, 2, 3][..], 3), (MIRROR, &[4], 1)] {
        let case = Case::written(shape, seeds);
        let held = case.store(place).held(KEY).unwrap();
        let install = Install {
            group: case.stripe.group,
            id: WriteId { session: SessionId(9), number: 1 },
            covers: held.covers,
            reason: Reason::Damaged,
            offset: 0,
            last: true,
        };
        let other = pattern(99, LEN);
        case.store(place).install(KEY, &install, &other).unwrap();
        assert_eq!(case.scrub(), Ok(vec![found(place, Flaw::Misfit, false)]));
        assert_eq!(case.bytes(place), other);
    }
}

#[test]
fn a_member_without_the_stripe_is_reported_and_left_alone() {
    let case = Case::written(PARITY, &[1, 2, 3]);
    case.store(1).delete(&[KEY.object]).unwrap();
    assert_eq!(case.scrub(), Ok(vec![found(1, Flaw::Missing, false)]));
    assert!(case.store(1).extents(KEY).is_empty(), "a deletion may be under way");
    // Of two members one knows of a first write: it was lost, or a truncation came after it.
    let case = Case::new(PARITY);
    let write = |place| {
        let parts = [Part { place, offset: 0, data: &pattern(place as u64, LEN) }];
        case.groups.write(ME, &case.stripe, &parts, Guess::Unknown).unwrap();
        case.groups.tell_commits();
        case.store(3).flush().unwrap();
    };
    write(1);
    let older = case.store(3).disk().fork();
    write(0);
    *case.bench.0.stores[3].write() = open(older);
    let before = case.bytes(3);
    assert_eq!(case.scrub(), Ok(vec![found(3, Flaw::Missing, false)]));
    assert_eq!(case.bytes(3), before);
}

#[test]
fn what_is_truncated_meanwhile_stays_away() {
    let case = Case::written(MIRROR, &[1]);
    case.flip(1, 9000);
    case.hook(Op::MemberInstall, |stores| {
        for store in stores {
            store.read().truncate(KEY.object, 0).unwrap();
        }
    });
    assert_eq!(case.scrub(), Err(Status::RETRY));
    assert!(case.store(1).extents(KEY).is_empty());
    assert_eq!(case.scrub(), Ok(vec![]));
}

#[test]
fn an_undecided_write_is_left_alone() {
    let case = Case::written(MIRROR, &[1]);
    let held = case.store(0).held(KEY).unwrap();
    let version = held.newest().next(Epoch(2));
    let stage = Stage {
        group: case.stripe.group,
        version,
        id: WriteId { session: SessionId(3), number: 1 },
        base: held.covers.clone(),
        covers: nuri_proto::stripe::Covers::one(version),
        participants: nuri_proto::stripe::Members::of([0, 1]),
        earlier: nuri_proto::stripe::Earlier::Unknown,
    };
    let change = Change::Bytes { offset: 0 };
    case.store(0).stage(KEY, &stage, change, &[7; 4096]).unwrap();
    assert_eq!(case.scrub(), Ok(vec![]));
    let floor = case.store(1).held(KEY).unwrap().floor;
    assert_eq!((case.store(0).held(KEY).unwrap().staged.is_some(), floor), (true, Version::NONE));
    // Now it is decided, whoever writes it.
    case.store(1).stage(KEY, &stage, change, &[7; 4096]).unwrap();
    assert_eq!(case.scrub(), Ok(vec![]));
    assert_eq!(case.store(1).held(KEY).unwrap().covers.newest(), version);
}

#[test]
fn writers_at_work_are_no_finding() {
    for shape in [PARITY, MIRROR] {
        let case = Case::written(shape, &[1]);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for seed in 0..150 {
                    let part = pattern(seed, 8192);
                    let parts = [Part { place: 0, offset: seed as u32 * 512, data: &part }];
                    case.groups.write(ME, &case.stripe, &parts, Guess::Unknown).unwrap();
                    if seed % 3 == 0 {
                        case.groups.tell_commits();
                    }
                }
                done.store(true, Ordering::Relaxed);
            });
            let other = Groups::new(case.bench.clone(), 1 << 32);
            while !done.load(Ordering::Relaxed) {
                let mut verdict = Verdict::default();
                let _ = other.scrub(&case.stripe, &mut verdict);
                assert_eq!(verdict.findings, vec![]);
            }
        });
        case.groups.tell_commits();
        assert_eq!(case.scrub(), Ok(vec![]));
        let mut last = vec![0; 8192];
        case.groups.read(&case.stripe, 0, 149 * 512, &mut last).unwrap();
        assert_eq!(last, pattern(149, 8192));
    }
}

#[test]
fn reads_repair_in_passing() {
    let case = Case::written(PARITY, &[1, 2, 3]);
    case.flip(2, 9000);
    let mut bytes = vec![0; LEN];
    case.groups.read(&case.stripe, 2, 0, &mut bytes).unwrap();
    assert_eq!(bytes, pattern(3, LEN));
    assert!(case.groups.wait_damaged(Duration::ZERO));
    let repaired = case.groups.repair_damaged();
    assert_eq!(repaired[0].1.findings, vec![found(2, Flaw::Damaged, true)]);
    assert!(!case.groups.wait_damaged(Duration::ZERO));
    assert_eq!(case.scrub(), Ok(vec![]));
}

#[test]
fn a_place_is_copied_only_while_the_others_hold_the_data() {
    for (shape, seeds, place, other) in
        [(MIRROR, &[4][..], 0, 1), (PARITY, &[1, 2, 3], 1, 3), (PARITY, &[1], 0, 2)]
    {
        let case = Case::written(shape, seeds);
        let spare = shape.members();
        case.stands(other, ABSENT);
        assert_eq!(case.copy(place), Err(Status::BUSY), "{shape}");
        assert!(case.store(spare).held(KEY).unwrap().covers.0.is_empty(), "{shape}");
        case.stands(other, Standing::Live);
        assert_eq!(case.copy(place), Ok(Epoch(2)));
        assert_eq!(case.bytes(spare), case.bytes(place), "{shape}");
        // The place's own member may be the one that is away.
        let case = Case::written(shape, seeds);
        case.stands(place, ABSENT);
        assert_eq!(case.copy(place), Ok(Epoch(2)));
        assert_eq!(case.bytes(spare), case.bytes(place), "{shape}");
    }
}

#[test]
fn a_copy_that_is_too_short_is_made_again() {
    for (shape, seeds, place) in
        [(MIRROR, &[4][..], 0), (PARITY, &[1, 2, 3], 1), (PARITY, &[1, 2, 3], 3)]
    {
        for len in [0, LEN / 2] {
            let case = Case::written(shape, seeds);
            let (spare, held) = (shape.members(), case.store(place).held(KEY).unwrap());
            let install = Install {
                group: case.stripe.group,
                id: WriteId { session: SessionId(9), number: 1 },
                covers: held.covers,
                reason: Reason::Behind,
                offset: 0,
                last: true,
            };
            case.store(spare).install(KEY, &install, &case.bytes(place)[..len]).unwrap();
            assert_eq!(case.copy(place), Ok(Epoch(2)));
            assert_eq!(case.bytes(spare), case.bytes(place), "{shape}");
        }
    }
}

#[test]
fn what_lies_outside_of_the_group_goes_while_all_members_are_live() {
    let case = Case::written(PARITY, &[1, 2, 3]);
    let (spare, id) = (PARITY.members(), case.stripe.group);
    case.copy(1).unwrap();
    let clear = |place: usize| case.groups.clear_place(id, TargetId(place as u32 + 1));
    case.stands(1, ABSENT);
    assert_eq!(clear(spare), Err(Status::BUSY));
    assert_eq!(case.bytes(spare), pattern(2, LEN));
    case.stands(1, Standing::Live);
    assert_eq!(clear(1), Err(Status::BUSY));
    assert_eq!(case.bytes(1), pattern(2, LEN));
    assert_eq!(clear(spare), Ok(()));
    assert!(case.store(spare).extents(KEY).is_empty());
    // Nothing lies there: whoever is live.
    case.stands(1, ABSENT);
    assert_eq!(clear(spare), Ok(()));
}

#[test]
fn two_copies_that_are_behind_are_no_source_for_each_other() {
    for stale in [[0, 1], [0, 2], [1, 2]] {
        let case = Case::written(THREE, &[1]);
        let older = stale.map(|place| {
            case.store(place).flush().unwrap();
            case.store(place).disk().fork()
        });
        case.write(&[2]);
        for (place, disk) in stale.into_iter().zip(older) {
            *case.bench.0.stores[place].write() = open(disk);
        }
        let groups = Groups::new(case.bench.clone(), 1 << 32);
        let part = pattern(3, 4096);
        let parts = [Part { place: 0, offset: 8192, data: &part }];
        groups.write(ME, &case.stripe, &parts, Guess::Unknown).unwrap();
        groups.tell_commits();
        let mut now = pattern(2, LEN);
        now[8192..8192 + 4096].copy_from_slice(&part);
        assert!((0..3).all(|place| case.bytes(place) == now), "{stale:?}");
    }
}

#[test]
fn what_a_lost_member_holds_is_told_by_all_others() {
    // The parity of equal blocks is zero, which a rebuilt chunk keeps as a hole.
    let case = Case::written(PARITY, &[1, 1]);
    let whole = vec![(0, LEN as u32)];
    *case.bench.0.stores[3].write() = made(3);
    case.stands(3, Standing::Syncing { since: Epoch(2) });
    case.groups.catch_up(&case.stripe, TargetId(4)).unwrap();
    case.stands(3, Standing::Live);
    assert!(case.store(3).extents(KEY).is_empty());
    assert_eq!(case.groups.extents(&case.stripe, 2), Ok(vec![]));
    assert_eq!(case.groups.extents(&case.stripe, 0), Ok(whole.clone()));
    case.stands(0, ABSENT);
    assert_eq!(case.groups.extents(&case.stripe, 0), Ok(whole));
}

/// Random writes, truncations and flipped bits: a scrub finds nothing but what
/// was flipped, and afterwards the stripe is what was written.
#[test]
fn nothing_but_what_was_broken_is_ever_found() {
    let mut repaired = 0;
    for seed in 0..20 {
        let shape = [PARITY, MIRROR][seed as usize % 2];
        let case = Case::new(shape);
        let mut rng = nuri_io::rng::Rng::new(seed);
        let mut model = vec![vec![0; LEN]; shape.data()];
        let mut broken = None;
        for step in 0..60 {
            let place = rng.below(shape.data() as u64) as usize;
            match rng.below(8) {
                0..4 => {
                    let offset = rng.below(LEN as u64 - 1) as usize;
                    let len = (1 + rng.below(90_000) as usize).min(LEN - offset);
                    let data = pattern(seed * 1000 + step, len);
                    model[place][offset..offset + len].copy_from_slice(&data);
                    let parts = [Part { place, offset: offset as u32, data: &data }];
                    case.groups.write(ME, &case.stripe, &parts, Guess::Unknown).unwrap();
                }
                4 => case.groups.tell_commits(),
                5 if broken.is_none() && step % 3 == 0 => {
                    case.groups.tell_commits();
                    for store in &case.bench.0.stores {
                        store.read().delete(&[KEY.object]).unwrap();
                    }
                    case.groups.forget_object(KEY.object);
                    model.iter_mut().for_each(|chunk| chunk.fill(0));
                }
                6 if broken.is_none() => {
                    let member = rng.below(shape.members() as u64) as usize;
                    let bytes = case.bytes(member);
                    let at = rng.below((LEN / 4096) as u64) as usize * 4096 + 64;
                    if bytes[at..at + 32].iter().any(|b| *b != 0) {
                        case.flip(member, at);
                        broken = Some(TargetId(member as u32 + 1));
                    }
                }
                _ => {
                    // The first look may meet frames that reads kept, and throw them away.
                    let found = case.scrub().or_else(|_| case.scrub());
                    let found = found.unwrap_or_else(|s| panic!("seed {seed} step {step}: {s}"));
                    let broken = broken.take();
                    let is_it = |f: &Finding| f.repaired && Some(f.target) == broken;
                    assert!(found.iter().all(is_it), "seed {seed} step {step}: {found:?}");
                    assert_eq!(case.scrub(), Ok(vec![]), "seed {seed} step {step}");
                    repaired += found.len();
                }
            }
            for (place, chunk) in model.iter().enumerate() {
                let mut read = vec![0; LEN];
                case.groups.read(&case.stripe, place, 0, &mut read).unwrap();
                assert!(read == *chunk, "seed {seed} step {step}: place {place}");
            }
        }
    }
    assert!(repaired > 20, "{repaired} are too few to tell");
}
