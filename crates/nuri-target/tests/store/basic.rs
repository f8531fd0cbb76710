//! What every call does when nothing goes wrong.

use nuri_io::rng::Rng;
use nuri_proto::Status;
use nuri_proto::id::{ClusterId, ObjectId, TargetId};
use nuri_proto::op::data::Durability::{Memory, Stable};
use nuri_target::store::{ChunkStore, FormatOptions, StoreError, WriteOutcome};

use super::*;

#[test]
fn round_trips_of_all_sizes_survive_reopening() {
    let (disk, _) = fresh(64 << 20);
    let cases = [(0, 1), (5, 4096), (4096, 4096), (100, 70_000), (8192, 1 << 20), (77, 1_500_000)];
    for reopened in [false, true] {
        let store = open(&disk).unwrap();
        for (i, (offset, len)) in cases.into_iter().enumerate() {
            let (k, data) = (key(i as u64 + 1, 9), pattern(len, i as u64));
            if !reopened {
                store.write(k, offset, &data, Stable).unwrap();
            }
            assert!(read(&store, k, offset, len) == data, "case {i}");
            let around = read(&store, k, 0, offset as usize + len + 5000);
            assert!(around[..offset as usize].iter().all(|&b| b == 0));
            assert!(around[offset as usize + len..].iter().all(|&b| b == 0));
        }
    }
    assert_clean(&disk);
}

#[test]
fn random_operations_match_a_vector() {
    let (disk, mut store) = fresh(8 << 20);
    let mut rng = Rng::new(1);
    let chunk = 400_000;
    let mut model = vec![vec![0u8; chunk]; 3];
    for step in 0..600u64 {
        let which = rng.below(3) as usize;
        let k = key(1 + which as u64 / 2, which as u32 % 2);
        let at = rng.below(chunk as u64) as usize;
        let max = if rng.one_in(3) { 200_000 } else { 9000 };
        let len = (rng.below(max) as usize).min(chunk - at);
        match rng.below(10) {
            0..=4 => {
                let data = pattern(len, step);
                store.write(k, at as u32, &data, Memory).unwrap();
                model[which][at..at + len].copy_from_slice(&data);
            }
            5 => {
                store.punch(k, at as u32, len as u32).unwrap();
                model[which][at..at + len].fill(0);
            }
            6 => store.checkpoint().unwrap(),
            7 if rng.one_in(8) => {
                store.close().unwrap();
                assert_clean(&disk);
                store = open(&disk).unwrap();
            }
            _ => {}
        }
        assert!(read(&store, k, at as u32, len) == model[which][at..at + len], "step {step}");
    }
    for (which, content) in model.iter().enumerate() {
        let k = key(1 + which as u64 / 2, which as u32 % 2);
        assert!(read(&store, k, 0, chunk) == *content);
    }
    store.close().unwrap();
    assert_clean(&disk);
}

#[test]
fn allocation_is_told_once_and_given_back_once() {
    let (_disk, store) = fresh(16 << 20);
    let k = key(1, 0);
    let took = |n: u64| WriteOutcome { allocated_bytes: n };
    assert_eq!(store.write(k, 0, &[1; 10], Memory).unwrap(), took(4096));
    assert_eq!(store.write(k, 10, &[1; 4096], Memory).unwrap(), took(4096));
    assert_eq!(store.write(k, 0, &[2; 65536], Memory).unwrap(), took(65536 - 8192));
    assert_eq!(store.write(k, 0, &[2; 65536], Memory).unwrap(), took(0));
    assert_eq!(store.extents(k), [(0, 65536)]);
    store.write(k, 131_072, &[3; 5], Memory).unwrap();
    assert_eq!(store.extents(k), [(0, 65536), (131_072, 4096)]);
    assert_eq!(store.punch(k, 4000, 4096 + 96).unwrap(), 4096);
    assert_eq!(store.extents(k), [(0, 4096), (8192, 57344), (131_072, 4096)]);
    assert!(read(&store, k, 3990, 20).iter().take(10).all(|&b| b == 2));
    assert!(read(&store, k, 4000, 4192).iter().all(|&b| b == 0));
    store.checkpoint().unwrap();
    assert_eq!(store.truncate(ObjectId(1), 0).unwrap(), 65536);
    assert_eq!(store.extents(k), []);
    assert_eq!(store.punch(k, 0, 8192).unwrap(), 0);
}

#[test]
fn truncate_and_delete_take_the_right_chunks() {
    let (disk, store) = fresh(16 << 20);
    for object in 1..=2 {
        for stripe in 0..4 {
            store.write(key(object, stripe), 0, &[9; 5000], Memory).unwrap();
        }
    }
    assert_eq!(store.truncate(ObjectId(1), 2).unwrap(), 2 * 8192);
    store.delete(&[ObjectId(2), ObjectId(77)]).unwrap();
    drop(store);
    let store = open(&disk).unwrap();
    let held: Vec<bool> = (1..=2)
        .flat_map(|object| (0..4).map(move |stripe| key(object, stripe)))
        .map(|k| !store.extents(k).is_empty())
        .collect();
    assert_eq!(held, [true, true, false, false, false, false, false, false]);
}

#[test]
fn cutting_off_what_is_not_there_costs_no_record() {
    let (disk, store) = fresh(16 << 20);
    store.write(key(1, 0), 0, &[9; 5000], Memory).unwrap();
    let counted = || (disk.counters().writes, disk.counters().syncs);
    let before = counted();
    assert_eq!(store.truncate(ObjectId(1), 1).unwrap(), 0);
    let flushed = counted();
    assert!(flushed > before, "what came before is durable too");
    store.truncate(ObjectId(1), 1).unwrap();
    store.truncate(ObjectId(2), 0).unwrap();
    assert_eq!(counted(), flushed);
}

#[test]
fn identity_is_given_once() {
    let disk = Arc::new(MemDisk::new());
    let new = FormatOptions { target: None, cluster: ClusterId([0; 16]), ..options(8 << 20) };
    ChunkStore::format(&disk, new).unwrap();
    let store = open(&disk).unwrap();
    assert_eq!((store.target(), store.boot()), (None, BootId(1)));
    store.assign(ClusterId([1; 16]), TargetId(5)).unwrap();
    store.assign(ClusterId([1; 16]), TargetId(5)).unwrap();
    let other = store.assign(ClusterId([2; 16]), TargetId(5)).unwrap_err();
    assert!(matches!(other, StoreError::Assigned(_, TargetId(5))));
    drop(store);
    let store = open(&disk).unwrap();
    assert_eq!((store.target(), store.cluster()), (Some(TargetId(5)), ClusterId([1; 16])));
    assert_eq!(store.incarnation(), Incarnation(0xfeed));
}

#[test]
fn ranges_beyond_the_largest_chunk_are_refused() {
    let (_disk, store) = fresh(8 << 20);
    let far = (64 << 20) - 10;
    let refused = store.write(key(1, 0), far, &[0; 11], Memory).unwrap_err();
    assert_eq!(Status::from(refused), Status::INVAL);
    assert!(store.read(key(1, 0), u32::MAX, &mut [0; 9]).is_err());
    store.write(key(1, 0), far, &[4; 10], Stable).unwrap();
    assert_eq!(read(&store, key(1, 0), far, 10), [4; 10]);
}

#[test]
fn small_stable_write_is_one_write_and_one_sync() {
    let (disk, store) = fresh(16 << 20);
    store.write(key(1, 0), 0, &[1; 4096], Stable).unwrap();
    let before = disk.counters();
    store.write(key(1, 0), 4096, &[1; 4096], Stable).unwrap();
    let after = disk.counters();
    assert_eq!((after.writes - before.writes, after.syncs - before.syncs), (1, 1));
    assert_eq!(after.bytes_written - before.bytes_written, 8192);
}

#[test]
fn memory_stays_within_its_bounds() {
    let (_disk, store) = fresh(256 << 20);
    let mut rng = Rng::new(2);
    let config = config();
    let bound = config.overlay_bytes + config.checksum_cache_bytes + 16 * BLOCK;
    for i in 0..3000u64 {
        let k = key(rng.below(30), rng.below(200) as u32);
        let at = rng.below(200) as u32 * 4096;
        store.write(k, at, &[i as u8; 4096], Memory).unwrap();
        if i % 10 == 0 {
            store.write(k, 0, &vec![i as u8; 1 << 16], Memory).unwrap();
        }
        assert!(store.cached_bytes() <= bound, "{} at {i}", store.cached_bytes());
    }
}

#[test]
fn a_real_file_works_like_memory() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let data = nuri_io::buf::AlignedBuf::zeroed(1 << 20);
    for round in 0..2u32 {
        let disk = nuri_io::uring::open_disk(&path, nuri_io::file::OpenMode::Create).unwrap();
        if round == 0 {
            ChunkStore::format(&disk, options(32 << 20)).unwrap();
        }
        let store = ChunkStore::open(disk, BootId(1), config()).unwrap();
        if round == 0 {
            store.write(key(1, 0), 0, &data, Memory).unwrap();
            store.write(key(1, 0), 777, &pattern(70_000, 1), Memory).unwrap();
            store.write(key(1, 1), 5, b"hello", Stable).unwrap();
        }
        let mut buf = vec![1; 1 << 20];
        store.read(key(1, 0), 0, &mut buf).unwrap();
        assert!(buf[777..70_777] == pattern(70_000, 1)[..]);
        assert!(buf[..777].iter().chain(&buf[70_777..]).all(|&b| b == 0));
        store.read(key(1, 1), 5, &mut buf[..5]).unwrap();
        assert_eq!(&buf[..5], b"hello");
        if round == 1 {
            store.close().unwrap();
        }
    }
    let disk = nuri_io::file::FileDisk::open(&path, nuri_io::file::OpenMode::Existing).unwrap();
    let report = nuri_target::store::check::check(&disk);
    assert!(report.is_clean() && report.chunks == 2, "{report:?}");
}

#[test]
fn a_thread_that_waits_for_work_is_woken() {
    let (_disk, store) = fresh(16 << 20);
    assert!(!store.wait_for_work(std::time::Duration::ZERO));
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| store.wait_for_work(std::time::Duration::from_secs(30)));
        for i in 0..60 {
            store.write(key(1, 0), i * 4096, &[1; 4096], Memory).unwrap();
        }
        assert!(waiter.join().unwrap());
    });
    store.checkpoint().unwrap();
    assert!(!store.wait_for_work(std::time::Duration::ZERO));
}
