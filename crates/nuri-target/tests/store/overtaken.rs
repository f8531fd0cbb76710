//! Staged writes and what comes in between: checkpoints, threads, full and failing disks, rot.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nuri_io::disk::Disk;
use nuri_io::rng::Rng;
use nuri_proto::id::{Epoch, ObjectId};
use nuri_proto::op::data::Durability::Stable;
use nuri_proto::op::member::Purpose;
use nuri_proto::stripe::{Earlier, Held, Stage, StageReply, Version};
use nuri_target::store::{MemberRead, StoreError};

use super::member::{GROUP, ask, at, base, covers, install, version};
use super::*;

type Hook = Box<dyn FnOnce() + Send>;

/// A disk that calls somebody in the middle of a write: the next one at or behind a place.
struct Hooked {
    disk: Arc<MemDisk>,
    from: AtomicU64,
    hook: Mutex<Option<Hook>>,
}

impl Disk for Hooked {
    fn len(&self) -> io::Result<u64> {
        self.disk.len()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.disk.set_len(len)
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.disk.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if offset >= self.from.load(Ordering::SeqCst) {
            let hook = self.hook.lock().unwrap().take();
            hook.into_iter().for_each(|hook| hook());
        }
        self.disk.write_at(offset, data)
    }
    fn sync(&self) -> io::Result<()> {
        self.disk.sync()
    }
    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.disk.punch(offset, len)
    }
    fn is_sparse(&self) -> bool {
        self.disk.is_sparse()
    }
    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.disk.allocate(offset, len)
    }
    fn next_written(&self, from: u64) -> io::Result<Option<Range<u64>>> {
        self.disk.next_written(from)
    }
}

/// Content of a chunk by its version.
type Known = BTreeMap<Version, Vec<u8>>;

const LEN: usize = 40 * BLOCK;

fn knows(known: &Known, counter: u64, from: u64, offset: usize, data: &[u8]) -> Known {
    let mut all = known.clone();
    let mut bytes = known[&covers(from).newest()].clone();
    bytes[offset..offset + data.len()].copy_from_slice(data);
    all.insert(version(counter), bytes);
    all
}

/// Base and staged write have the bytes of their versions. Returns those.
fn consistent(store: &Store, key: ChunkKey, known: &Known) -> (Version, Option<Version>) {
    let (bytes, covers) = base(store, key, LEN);
    assert!(bytes == known[&covers.newest()], "base of {}", covers.newest());
    let staged = store.held(key).unwrap().staged.map(|staged| staged.version);
    if let Some(staged) = staged {
        store.commit(key, staged).unwrap();
        assert!(base(store, key, LEN).0 == known[&staged], "staged {staged}");
    }
    (covers.newest(), staged)
}

/// What comes while a checkpoint is between its first and fourth step, and what is there then:
/// base and staged write.
const TURNS: [(&str, u64, u64); 7] = [
    ("commit", 3, 0),
    ("commit, stage", 3, 4),
    ("commit, stage, commit", 4, 0),
    ("commit, stage long, commit", 4, 0),
    ("abort, stage", 2, 4),
    ("instead", 2, 4),
    ("truncate", 0, 0),
];

fn turn(store: &ChunkStore<Arc<Hooked>>, what: &str, k: ChunkKey, offset: usize, data: &[u8]) {
    let data = if what.contains("long") { data } else { &data[..3 * BLOCK] };
    let stage = |ask: Stage| {
        let reply = store.stage(k, &ask, at(offset), data).unwrap();
        assert!(matches!(reply, StageReply::Staged { .. }), "{what}");
    };
    for word in what.split(", ") {
        match word {
            "commit" => {
                let staged = store.held(k).unwrap().staged.unwrap();
                store.commit(k, staged.version).unwrap();
            }
            "stage" | "stage long" if what.starts_with("abort") => stage(ask(2, 4)),
            "stage" | "stage long" => stage(ask(3, 4)),
            "instead" => stage(Stage { earlier: Earlier::Aborted(version(3)), ..ask(2, 4) }),
            "abort" => drop(store.abort(k, GROUP, version(3)).unwrap()),
            _ => drop(store.truncate(k.object, 0).unwrap()),
        }
    }
}

/// The bytes of version 3 are in the log before the checkpoint's tail and become the base, or not,
/// behind it.
#[test]
fn what_comes_during_a_checkpoint_is_placed_where_it_belongs() {
    let cases = TURNS.into_iter().flat_map(|turn| [BLOCK + 100, 30 * BLOCK + 7].map(|o| (turn, o)));
    for ((what, end, staged), offset) in cases {
        let mem = Arc::new(MemDisk::recording());
        let (from, hook) = (AtomicU64::new(u64::MAX), Mutex::new(None));
        let disk = Arc::new(Hooked { disk: mem.clone(), from, hook });
        format(&disk, options(8 << 20));
        let store = Arc::new(ChunkStore::open(disk.clone(), BootId(1), config()).unwrap());
        let k = key(1, 0);
        let (one, two) = (pattern(32 * BLOCK, 1), pattern(2 * BLOCK, 2));
        let (three, four) = (pattern(3 * BLOCK, 3), pattern(20 * BLOCK, 4));
        let four = if offset < 20 * BLOCK { four } else { four[..5 * BLOCK].to_vec() };
        let known = Known::from([(Version::NONE, vec![0; LEN])]);
        let known = knows(&known, 1, 0, 0, &one);
        let known = knows(&known, 2, 1, BLOCK, &two);
        let known = knows(&known, 3, 2, offset, &three);
        let written = if what.contains("long") { &four[..] } else { &four[..3 * BLOCK] };
        let known = knows(&known, 4, if end == 2 { 2 } else { 3 }, offset, written);
        store.stage(k, &ask(0, 1), at(0), &one).unwrap();
        store.commit(k, version(1)).unwrap();
        store.checkpoint().unwrap();
        store.stage(k, &ask(1, 2), at(BLOCK), &two).unwrap();
        store.commit(k, version(2)).unwrap();
        store.stage(k, &ask(2, 3), at(offset), &three).unwrap();

        let begun = mem.events();
        let (then, bytes) = (store.clone(), four.clone());
        let hook: Hook = Box::new(move || turn(&then, what, k, offset, &bytes));
        *disk.hook.lock().unwrap() = Some(hook);
        disk.from.store(store.superblock().regions.data_at, Ordering::SeqCst);
        store.checkpoint().unwrap();
        assert!(disk.hook.lock().unwrap().is_none());
        store.flush().unwrap();
        for cut in begun..=mem.events() {
            let image = Arc::new(mem.image_at_event(cut, &mut Rng::new(cut as u64)));
            assert_clean(&image);
            let again = open(&image).unwrap();
            let found = consistent(&again, k, &known);
            if cut == mem.events() {
                let expected = |counter| Some(version(counter)).filter(|_| counter > 0);
                let end = expected(end).unwrap_or_default();
                assert_eq!(found, (end, expected(staged)), "{what} at {offset}");
            }
            again.close().unwrap();
            assert_clean(&image);
        }
        // Another checkpoint finds nothing that the first one left.
        store.checkpoint().unwrap();
        store.checkpoint().unwrap();
        let image = Arc::new(mem.image_at_event(mem.events(), &mut Rng::new(1)));
        assert_clean(&image);
        consistent(&open(&image).unwrap(), k, &known);
    }
}

/// The first part is in the log before the checkpoint's tail.
#[test]
fn an_install_waits_for_a_checkpoint_to_pass() {
    let mem = Arc::new(MemDisk::recording());
    let (from, hook) = (AtomicU64::new(u64::MAX), Mutex::new(None));
    let disk = Arc::new(Hooked { disk: mem.clone(), from, hook });
    format(&disk, options(8 << 20));
    let store = Arc::new(ChunkStore::open(disk.clone(), BootId(1), config()).unwrap());
    let (k, new) = (key(1, 0), pattern(LEN, 2));
    store.stage(k, &ask(0, 1), at(0), &pattern(LEN, 1)).unwrap();
    store.commit(k, version(1)).unwrap();
    store.install(k, &install(2, 0, false), &new[..5 * BLOCK]).unwrap();
    store.install(k, &install(2, 5 * BLOCK, false), &new[5 * BLOCK..35 * BLOCK]).unwrap();
    let (started, starts) = std::sync::mpsc::channel();
    let (then, rest) = (store.clone(), new[35 * BLOCK..].to_vec());
    let hook: Hook = Box::new(move || {
        let last = install(2, 35 * BLOCK, true);
        let thread = std::thread::spawn(move || then.install(k, &last, &rest).unwrap());
        // Time enough to come in between, where nothing prevented it.
        std::thread::sleep(std::time::Duration::from_millis(50));
        started.send(thread).unwrap();
    });
    *disk.hook.lock().unwrap() = Some(hook);
    disk.from.store(store.superblock().regions.data_at, Ordering::SeqCst);
    store.checkpoint().unwrap();
    assert_eq!(starts.recv().unwrap().join().unwrap().covers, covers(2));
    let image = Arc::new(mem.image_at_event(mem.events(), &mut Rng::new(1)));
    assert_clean(&image);
    assert!(base(&open(&image).unwrap(), k, LEN) == (new, covers(2)));
}

/// Catches `stage_unflushed`: what was answered is there after a crash.
#[test]
fn an_answered_stage_is_durable() {
    for len in [100, 4096, 200_000] {
        let (disk, store) = fresh_on(MemDisk::recording(), 8 << 20);
        let data = pattern(len, 1);
        store.stage(key(1, 0), &ask(0, 1), at(0), &data).unwrap();
        let image = Arc::new(disk.image_at_sync(disk.counters().syncs));
        let store = open(&image).unwrap();
        store.commit(key(1, 0), version(1)).unwrap();
        assert!(base(&store, key(1, 0), len) == (data, covers(1)), "{len} bytes");
    }
}

/// Catches `commit_without_record`: a commit is durable with the next flush.
#[test]
fn a_commit_is_there_after_a_flush() {
    let (disk, store) = fresh_on(MemDisk::recording(), 8 << 20);
    store.stage(key(1, 0), &ask(0, 1), at(0), &pattern(200_000, 1)).unwrap();
    store.commit(key(1, 0), version(1)).unwrap();
    store.flush().unwrap();
    let image = Arc::new(disk.image_at_sync(disk.counters().syncs));
    let store = open(&image).unwrap();
    assert!(base(&store, key(1, 0), 200_000) == (pattern(200_000, 1), covers(1)));
}

/// Catches `abort_unflushed`: an answered abort is never undone.
#[test]
fn an_answered_abort_is_durable() {
    let (disk, store) = fresh_on(MemDisk::recording(), 8 << 20);
    store.stage(key(1, 0), &ask(0, 1), at(0), &pattern(200_000, 1)).unwrap();
    for k in [key(1, 0), key(2, 0)] {
        store.abort(k, GROUP, version(1)).unwrap();
        let image = Arc::new(disk.image_at_sync(disk.counters().syncs));
        let store = open(&image).unwrap();
        let aborted = Held { group: GROUP, floor: version(1), ..Held::default() };
        assert_eq!(store.held(k).unwrap(), aborted);
    }
}

#[test]
fn no_space_in_mid_stage_leaves_the_base_and_releases_everything() {
    // In the store, and in the file system under it.
    for (capacity, room) in [(3 << 20, None), (32 << 20, Some(600 << 10))] {
        let (disk, store) = fresh(capacity);
        let (k, data) = (key(1, 0), pattern(300_000, 1));
        store.stage(k, &ask(0, 1), at(0), &data).unwrap();
        store.commit(k, version(1)).unwrap();
        store.checkpoint().unwrap();
        let mut objects = 5;
        while room.is_none() && store.write(key(objects, 0), 0, &data, Stable).is_ok() {
            objects += 1;
        }
        if let Some(room) = room {
            disk.limit_space(disk.resident() + room);
        }
        let used = store.usage();
        for offset in [0, 100] {
            let refused = store.stage(k, &ask(1, 2), at(offset), &[7; 1 << 20]).unwrap_err();
            assert!(matches!(refused, StoreError::NoSpace));
            assert!(base(&store, k, 300_000) == (data.clone(), covers(1)));
            assert_eq!(store.held(k).unwrap().staged, None);
            assert_eq!(store.usage(), used);
        }
        let parts = store.install(k, &install(2, 0, false), &pattern(1 << 19, 3));
        if parts.is_ok() {
            let refused = store.install(k, &install(2, 1 << 19, true), &pattern(1 << 20, 3));
            assert!(matches!(refused, Err(StoreError::NoSpace)));
        }
        assert!(base(&store, k, 300_000) == (data.clone(), covers(1)));
        store.checkpoint().unwrap();
        disk.heal();
        store.delete(&[ObjectId(5)]).unwrap();
        store.stage(k, &ask(1, 2), at(100), &[7; 100_000]).unwrap();
        drop(store);
        assert_clean(&disk);
    }
}

#[test]
fn rot_beside_the_base_is_found_when_it_is_read() {
    let (disk, store) = fresh(8 << 20);
    let k = key(1, 0);
    let data_at = store.superblock().regions.data_at;
    store.stage(k, &ask(0, 1), at(0), &pattern(200_000, 1)).unwrap();
    store.commit(k, version(1)).unwrap();
    store.checkpoint().unwrap();
    let mut before = vec![0; 2 << 20];
    disk.read_at(data_at, &mut before).unwrap();
    let new = pattern(131_072, 2);
    store.stage(k, &ask(1, 2), at(0), &new).unwrap();
    let mut after = vec![0; 2 << 20];
    disk.read_at(data_at, &mut after).unwrap();
    let place = after.windows(64).step_by(BLOCK).position(|w| *w == new[..64]).unwrap();
    assert!(before[place * BLOCK..][..64] != new[..64]);
    disk.flip_bit(data_at + (place + 2) as u64 * BLOCK as u64 + 9, 3);
    assert_eq!(base(&store, k, 200_000).0, pattern(200_000, 1));
    let report = nuri_target::store::check::check(&Arc::new(disk.fork()));
    assert_eq!(report.problem_count, 1, "{report:#?}");
    let mut buf = vec![0; 200_000];
    let read = store.read_member(k, 0, &mut buf, version(2), Purpose::Use);
    assert!(matches!(read, Err(StoreError::Corrupt(bad, 2)) if bad == k), "{read:?}");
    let part = store.stage(k, &ask(2, 3), at(2 * BLOCK + 1), &[1]).unwrap_err();
    assert!(matches!(part, StoreError::Corrupt(..)), "no merge with rotten bytes");
    let mut all = new.clone();
    all.extend_from_slice(&pattern(200_000, 1)[131_072..]);
    let repair = nuri_proto::op::member::Install {
        reason: nuri_proto::op::member::Reason::Damaged,
        ..install(2, 0, true)
    };
    store.install(k, &repair, &all).unwrap();
    assert!(base(&store, k, 200_000) == (all, covers(2)));
}

#[test]
fn a_failing_disk_leaves_old_or_new() {
    for n in 0..40 {
        let (disk, store) = fresh(8 << 20);
        let k = key(1, 0);
        store.stage(k, &ask(0, 1), at(0), &vec![1; LEN]).unwrap();
        store.commit(k, version(1)).unwrap();
        store.flush().unwrap();
        disk.fail_after(n);
        let next = Stage { earlier: Earlier::Decided(version(2)), ..ask(2, 3) };
        let mut answered = 0;
        let outcome = (|| {
            store.stage(k, &ask(1, 2), at(4000), &[2; 100_000])?;
            answered = 2;
            store.stage(k, &next, at(9000), &[3; 50])?;
            answered = 3;
            store.checkpoint()?;
            store.install(k, &install(4, 0, true), &vec![4; LEN])
        })();
        drop(store);
        disk.heal();
        let image = Arc::new(disk.crash_image(&mut Rng::new(n)));
        assert_clean(&image);
        let store = open(&image).unwrap();
        let known = Known::from([(Version::NONE, vec![0; LEN]), (version(1), vec![1; LEN])]);
        let known = knows(&known, 2, 1, 4000, &[2; 100_000]);
        let known = knows(&known, 3, 2, 9000, &[3; 50]);
        let known = knows(&known, 4, 3, 0, &vec![4; LEN]);
        let (committed, staged) = consistent(&store, k, &known);
        let newest = staged.unwrap_or(committed);
        assert!(newest >= version(answered) && (outcome.is_err() || newest == version(4)));
    }
}

/// Stages on many chunks by several threads beside checkpoints and readers; then a crash.
#[test]
fn threads_stage_commit_and_read_together() {
    let (disk, store) = fresh(48 << 20);
    let stop = AtomicBool::new(false);
    let fill = |counter: u64| counter as u8;
    let last: Vec<u64> = std::thread::scope(|scope| {
        let (store, stop) = (&store, &stop);
        let writer = |t: u32| {
            scope.spawn(move || {
                let mut rng = Rng::new(u64::from(t));
                let (mut counter, k) = (0, key(1, t));
                for _ in 0..120 {
                    let earlier = Earlier::Decided(version(counter));
                    let next = Stage { earlier, ..ask(counter, counter + 1) };
                    let len = if rng.one_in(3) { LEN } else { 3 * BLOCK + 5 };
                    // All of the chunk has one fill at any time: short writes come after long ones.
                    let data = vec![fill(counter / 4 * 4 + 1); len];
                    let data = if counter % 4 == 0 { vec![fill(counter + 1); LEN] } else { data };
                    store.stage(k, &next, at(0), &data).unwrap();
                    counter += 1;
                    if rng.one_in(2) {
                        store.commit(k, version(counter)).unwrap();
                    }
                }
                counter
            })
        };
        let writers: Vec<_> = (0..4).map(writer).collect();
        scope.spawn(move || {
            let mut rng = Rng::new(100);
            while !stop.load(Ordering::Relaxed) {
                let k = key(1, rng.below(4) as u32);
                let (bytes, covers) = base(store, k, LEN);
                let counter = covers.newest().0 & 0xff;
                let expected = counter.checked_sub(1).map_or(0, |c| fill(c / 4 * 4 + 1));
                assert!(bytes.iter().all(|b| *b == expected), "bytes of another version");
            }
        });
        scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                store.checkpoint().unwrap();
            }
        });
        let last = writers.into_iter().map(|w| w.join().unwrap()).collect();
        stop.store(true, Ordering::Relaxed);
        last
    });
    drop(store);
    let image = Arc::new(disk.crash_image(&mut Rng::new(1)));
    assert_clean(&image);
    let store = open(&image).unwrap();
    for (stripe, counter) in last.into_iter().enumerate() {
        let k = key(1, stripe as u32);
        let mut buf = vec![0; LEN];
        let read = store.read_member(k, 0, &mut buf, version(counter), Purpose::Use).unwrap();
        assert_eq!(read, MemberRead::Read(covers(counter)), "what was answered is there");
        assert!(buf.iter().all(|b| *b == fill((counter - 1) / 4 * 4 + 1)));
    }
}

/// Two writers of one stripe: the rules let one of them through, and its bytes are whole.
#[test]
fn writers_of_one_stripe_do_not_mix() {
    let (_disk, store) = fresh(32 << 20);
    let k = key(1, 0);
    for round in 0..30 {
        let taken = std::thread::scope(|scope| {
            let store = &store;
            let writer = |t: u64| {
                scope.spawn(move || {
                    let mut one = ask(round, round + 1);
                    one.id.number = 100 * round + t;
                    let len = if t == 0 { LEN } else { 5000 };
                    let data = vec![(t + 1) as u8; len];
                    let reply = store.stage(k, &one, at(0), &data).unwrap();
                    matches!(reply, StageReply::Staged { .. })
                })
            };
            let writers: Vec<_> = (0..3).map(writer).collect();
            writers.into_iter().map(|w| w.join().unwrap()).filter(|taken| *taken).count()
        });
        assert_eq!(taken, 1);
        let by = store.held(k).unwrap().staged.unwrap().id.number - 100 * round;
        store.commit(k, version(round + 1)).unwrap();
        let bytes = base(&store, k, LEN).0;
        let len = if by == 0 { LEN } else { 5000 };
        assert!(bytes[..len].iter().all(|b| u64::from(*b) == by + 1));
    }
}

/// Everything on few stripes at once. Every version of one has bytes of its own all over, so any
/// mixture shows.
#[test]
fn stages_installs_aborts_and_truncations_at_once_never_mix() {
    let fill = |version: Version| (version.0 & 0xff) as u8;
    let uniform = |store: &Store, k| {
        let (bytes, covers) = base(store, k, LEN);
        assert!(bytes.iter().all(|b| *b == fill(covers.newest())), "of another version");
    };
    for seed in 0..3 {
        let (disk, store) = fresh(24 << 20);
        std::thread::scope(|scope| {
            for t in 0..4 {
                let store = &store;
                scope.spawn(move || {
                    let mut rng = Rng::new(seed * 10 + t);
                    for number in 0..150 {
                        let k = key(1, rng.below(2) as u32);
                        let held = store.held(k).unwrap();
                        let to = held.newest().next(nuri_proto::id::Epoch(1));
                        let counter = to.0 & 0xffff;
                        let staged = held.staged.map_or(Version::NONE, |staged| staged.version);
                        match rng.below(10) {
                            0..=4 => {
                                let from = if staged > Version::NONE {
                                    staged
                                } else {
                                    held.covers.newest()
                                };
                                let mut one = ask(from.0 & 0xffff, counter);
                                one.id.number = number * 10 + t;
                                one.earlier = Earlier::Decided(staged);
                                store.stage(k, &one, at(0), &vec![fill(to); LEN]).unwrap();
                            }
                            5 => store.commit(k, staged).unwrap(),
                            6 if rng.one_in(3) => {
                                let saw = store.held(k).unwrap().covers;
                                let _ = store.forget(k, &saw, Epoch(u64::MAX)).unwrap();
                            }
                            6 => drop(store.abort(k, GROUP, staged).unwrap()),
                            7 => {
                                let mut one = install(counter, 0, false);
                                one.id.number = number * 10 + t;
                                let bytes = vec![fill(to); LEN];
                                store.install(k, &one, &bytes[..LEN / 2]).unwrap();
                                (one.offset, one.last) = (LEN as u32 / 2, true);
                                store.install(k, &one, &bytes[LEN / 2..]).unwrap();
                            }
                            8 if rng.one_in(4) => drop(store.truncate(k.object, k.stripe).unwrap()),
                            8 => store.checkpoint().unwrap(),
                            _ => uniform(store, k),
                        }
                    }
                });
            }
        });
        for image in [disk.fork(), disk.crash_image(&mut Rng::new(seed))].map(Arc::new) {
            assert_clean(&image);
            let again = open(&image).unwrap();
            for k in [key(1, 0), key(1, 1)] {
                uniform(&again, k);
                let staged = again.held(k).unwrap().staged;
                again.commit(k, staged.map_or(Version::NONE, |staged| staged.version)).unwrap();
                uniform(&again, k);
            }
            again.close().unwrap();
            assert_clean(&image);
        }
    }
}
