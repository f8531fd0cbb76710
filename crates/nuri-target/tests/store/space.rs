//! Full stores: no space is said at the call, nothing is torn, and deleting helps.

use nuri_proto::id::{ObjectId, SessionId};
use nuri_proto::op::data::Durability::{Memory, Stable};
use nuri_target::store::{FormatError, Payer, StoreConfig, StoreError};

use super::*;

fn fill(store: &Store, piece: usize) -> u64 {
    let mut pieces = 0;
    loop {
        let k = key(1 + pieces / 8, (pieces % 8) as u32);
        match store.write(k, 0, &pattern(piece, pieces), Memory) {
            Ok(_) => pieces += 1,
            Err(StoreError::NoSpace) => return pieces,
            Err(e) => panic!("{e}"),
        }
    }
}

fn check_filled(store: &Store, piece: usize, pieces: u64) {
    for i in 0..pieces {
        let k = key(1 + i / 8, (i % 8) as u32);
        assert!(read(store, k, 0, piece) == pattern(piece, i), "piece {i}");
    }
}

#[test]
fn fill_delete_fill_again() {
    for piece in [1 << 17, 4096, 3000] {
        let (disk, store) = fresh(6 << 20);
        let empty = store.usage();
        assert_eq!(empty.used, 0);
        let pieces = fill(&store, piece);
        let stored = pieces * (piece as u64).next_multiple_of(4096);
        let full = store.usage();
        let slack = full.size / 100 + (1 << 17);
        assert!(full.size - full.used < slack, "{full:?}");
        assert!(full.used - stored < slack, "{full:?} {stored}");
        store.checkpoint().unwrap();
        check_filled(&store, piece, pieces);
        let objects: Vec<_> = (1..=pieces / 8 + 1).map(ObjectId).collect();
        store.delete(&objects).unwrap();
        store.checkpoint().unwrap();
        assert!(store.usage().used <= 4 * 4096, "{:?}", store.usage());
        let again = fill(&store, piece);
        assert!(again.abs_diff(pieces) <= pieces / 50 + 1, "{again} {pieces}");
        check_filled(&store, piece, again);
        store.close().unwrap();
        assert_clean(&disk);
    }
}

#[test]
fn full_store_can_be_reopened_and_punched() {
    let (disk, store) = fresh(4 << 20);
    let pieces = fill(&store, 4096);
    drop(store);
    let store = open(&disk).unwrap();
    // Without a flush the newest may be gone; none is garbage.
    for i in 0..pieces {
        let got = read(&store, key(1 + i / 8, (i % 8) as u32), 0, 4096);
        assert!(got == pattern(4096, i) || got.iter().all(|&b| b == 0));
    }
    store.punch(key(1, 0), 0, 4096).unwrap();
    store.flush().unwrap();
    store.checkpoint().unwrap();
    store.write(key(900, 0), 0, &[1; 4096], Stable).unwrap();
    drop(store);
    assert_clean(&disk);
}

#[test]
fn fragmented_space_is_used_to_the_end() {
    let (_disk, store) = fresh(4 << 20);
    let pieces = fill(&store, 4096);
    store.checkpoint().unwrap();
    for i in (0..pieces).step_by(2) {
        store.punch(key(1 + i / 8, (i % 8) as u32), 0, 4096).unwrap();
    }
    store.checkpoint().unwrap();
    let usage = store.usage();
    let free = (usage.size - usage.used) as usize / 2 / BLOCK * BLOCK;
    let data = pattern(free.min(1 << 20), 5);
    store.write(key(999, 0), 0, &data, Stable).unwrap();
    assert!(read(&store, key(999, 0), 0, data.len()) == data);
}

#[test]
fn full_file_system_under_the_store_is_no_space_for_large_writes() {
    let (disk, store) = fresh(64 << 20);
    disk.limit_space(disk.resident() + (1 << 20));
    let pieces = fill(&store, 1 << 18);
    assert_eq!(pieces, 4);
    store.flush().unwrap_or_else(|e| panic!("the log has its space: {e}"));
    check_filled(&store, 1 << 18, pieces);
    assert!(matches!(store.write(key(77, 0), 0, &[1; 1 << 18], Stable), Err(StoreError::NoSpace)));
    disk.heal();
    store.write(key(77, 0), 0, &[1; 1 << 18], Stable).unwrap();
}

#[test]
fn full_file_system_at_a_checkpoint_is_no_hindrance() {
    let (disk, store) = fresh(64 << 20);
    store.write(key(1, 0), 0, &pattern(9000, 1), Stable).unwrap();
    disk.limit_space(disk.resident());
    store.checkpoint().unwrap();
    assert_eq!(read(&store, key(1, 0), 0, 9000), pattern(9000, 1));
    store.close().unwrap();
    assert_clean(&disk);
    let store = open(&disk).unwrap();
    assert_eq!(read(&store, key(1, 0), 0, 9000), pattern(9000, 1));
}

#[test]
fn full_file_system_takes_small_writes_as_far_as_they_have_their_room() {
    let (disk, store) = fresh(256 << 20);
    for round in 0..4 {
        disk.limit_space(disk.resident() + (3 << 20));
        let mut pieces = 0;
        let piece = |i: u64| key(1000 * (round + 1) + i, 0);
        loop {
            match store.write(piece(pieces), 8192, &pattern(4096, pieces), Memory) {
                Ok(_) => pieces += 1,
                Err(StoreError::NoSpace) => break,
                Err(e) => panic!("{e}"),
            }
        }
        assert!(pieces >= 512, "round {round}: {pieces}");
        // Overwriting, deleting and the log going round need no new room.
        for i in 0..3 * pieces {
            let (k, data) = (piece(i % pieces), pattern(4096, i));
            store.write(k, 8192, &data, Memory).unwrap();
        }
        let check = |store: &Store| {
            for i in 0..pieces {
                let want = pattern(4096, 2 * pieces + i);
                assert!(read(store, piece(i), 8192, 4096) == want, "round {round} piece {i}");
            }
        };
        store.flush().unwrap();
        // A crash on the full disk; the image has the limit too.
        let image = Arc::new(disk.fork());
        image.limit_space(image.resident());
        let again = open(&image).unwrap();
        check(&again);
        again.write(piece(0), 8192, &pattern(4096, 2 * pieces), Stable).unwrap();
        again.delete(&[piece(1).object]).unwrap();
        again.write(piece(1), 8192, &pattern(4096, 2 * pieces + 1), Stable).unwrap();
        again.close().unwrap();
        assert_clean(&image);
        store.checkpoint().unwrap();
        check(&store);
        disk.heal();
        store.write(key(77, round as u32), 0, &[1; 1 << 18], Stable).unwrap();
    }
    store.close().unwrap();
    assert_clean(&disk);
}

#[test]
fn what_is_deleted_makes_room_on_a_full_file_system_at_once() {
    // Long runs and short ones, the latter with neighbours that stay.
    for (piece, step) in [(1 << 18, 1), (1 << 16, 2)] {
        let (disk, store) = fresh(64 << 20);
        disk.limit_space(disk.resident() + (4 << 20));
        let pieces = fill(&store, piece);
        let gone = |i: &u64| i.is_multiple_of(step);
        for i in (0..pieces).filter(gone) {
            store.punch(key(1 + i / 8, (i % 8) as u32), 0, piece as u32).unwrap();
        }
        store.flush().unwrap();
        let data = pattern(1 << 20, 77);
        store.write(key(99, 0), 0, &data, Stable).unwrap();
        assert!(read(&store, key(99, 0), 0, 1 << 20) == data);
        for i in (0..pieces).filter(|i| !gone(i)) {
            let got = read(&store, key(1 + i / 8, (i % 8) as u32), 0, piece);
            assert!(got == pattern(piece, i), "piece {i}");
        }
        store.close().unwrap();
        assert_clean(&disk);
    }
}

#[test]
fn deleted_data_is_given_back_and_the_rest_stays() {
    let (disk, store) = fresh(128 << 20);
    let before = disk.resident();
    let objects: u64 = 80;
    for object in 1..=objects {
        store.write(key(object, 0), 0, &pattern(1 << 20, object), Memory).unwrap();
        store.write(key(object, 1), 0, &pattern(20_000, object), Memory).unwrap();
    }
    store.checkpoint().unwrap();
    assert_eq!(store.trim(u64::MAX), 0, "all that was written is held, or too short");
    let full = disk.resident();
    assert!(full > before + (80 << 20));
    let gone: Vec<_> = (1..=objects).filter(|o| o % 10 != 0).map(ObjectId).collect();
    store.delete(&gone).unwrap();
    store.checkpoint().unwrap();
    let usage = store.usage();
    // A crash before it was given back: the next opening finds it.
    let image = Arc::new(disk.fork());
    let again = open(&image).unwrap();
    for (disk, store) in [(&disk, &store), (&image, &again)] {
        assert!(store.trim(1 << 20) <= 2 << 20, "no more than was asked for, or nearly");
        let given = store.trim(u64::MAX) >> 20;
        assert!((70..=76).contains(&given), "{given} MiB");
        assert!(disk.resident() < before + (14 << 20), "{} MiB", disk.resident() >> 20);
        assert_eq!(store.trim(u64::MAX), 0);
        for object in (10..=objects).step_by(10) {
            assert!(read(store, key(object, 0), 0, 1 << 20) == pattern(1 << 20, object));
            assert!(read(store, key(object, 1), 0, 20_000) == pattern(20_000, object));
        }
    }
    assert_eq!(store.usage(), usage, "what is free in the store does not change");
    store.write(key(500, 0), 0, &pattern(1 << 20, 500), Stable).unwrap();
    assert!(read(&store, key(500, 0), 0, 1 << 20) == pattern(1 << 20, 500));
    store.close().unwrap();
    again.close().unwrap();
    assert_clean(&disk);
    assert_clean(&image);
}

#[test]
fn too_little_room_for_a_new_store_is_told_and_nothing_left() {
    for room in [0u64, 1 << 20, 4 << 20, 8 << 20] {
        let disk = Arc::new(MemDisk::new());
        disk.limit_space(room);
        let error = ChunkStore::format(&disk, options(64 << 20)).unwrap_err();
        assert!(matches!(error, FormatError::NoRoom(9)), "{error}");
        assert_eq!((disk.resident(), nuri_io::disk::Disk::len(&disk).unwrap()), (0, 0));
    }
}

#[test]
fn log_goes_round_many_times() {
    let (disk, store) = fresh(4 << 20);
    for i in 0..2000u64 {
        let k = key(1 + i % 5, (i % 7) as u32);
        store.write(k, (i % 11) as u32 * 4096, &pattern(4096, i), Memory).unwrap();
    }
    store.flush().unwrap();
    drop(store);
    let store =
        nuri_target::store::ChunkStore::open(disk, BootId(2), StoreConfig::default()).unwrap();
    for i in 1615..2000u64 {
        let k = key(1 + i % 5, (i % 7) as u32);
        assert!(read(&store, k, (i % 11) as u32 * 4096, 4096) == pattern(4096, i));
    }
}

#[test]
fn full_store_with_a_large_index_can_still_overwrite_and_reopen() {
    let (disk, mut store) = fresh(12 << 20);
    // One extent per block makes the index as large as it can be.
    let mut filled = 0u64;
    while store.write(key(filled, 0), 4096, &[1; 4096], Memory).is_ok() {
        filled += 1;
    }
    for round in 2..6u8 {
        for i in 0..filled {
            store.write(key(i, 0), 4096, &[round; 4096], Memory).unwrap();
        }
        store.flush().unwrap();
        drop(store);
        assert_clean(&disk);
        store = open(&disk).unwrap();
        assert_eq!(read(&store, key(filled - 1, 0), 4096, 1), [round]);
    }
}

#[test]
fn room_that_was_promised_to_one_is_refused_to_others() {
    let (_disk, store) = fresh(64 << 20);
    let [one, other] = [SessionId(1), SessionId(2)];
    let usage = store.usage();
    let (promised, left) = store.promise_room(one, 20 << 20, 20 << 20);
    assert_eq!((promised, left), (20 << 20, usage.size - usage.used));
    let write = |session, object, piece: usize| {
        let payer = if session == one { Payer::Session(session) } else { Payer::Nobody };
        store.write_for(payer, key(object, 0), 0, &pattern(piece, object), Memory)
    };
    // Large and small ones of another session leave it.
    let mut objects = 0..;
    for piece in [1 << 20, 4096] {
        while write(other, objects.next().unwrap(), piece).is_ok() {}
    }
    let usage = store.usage();
    let free = usage.size - usage.used;
    assert!((20 << 20..25 << 20).contains(&free), "{free}");
    assert_eq!(store.promise_room(other, 1, 1).0, 0);
    for _ in 0..19 {
        write(one, objects.next().unwrap(), 1 << 20).unwrap();
    }
    store.flush().unwrap();
    // What is left of it ends with the session.
    store.keep_promises(|session| session == other);
    write(other, objects.next().unwrap(), 512 << 10).unwrap();
}

/// Fills the store as programs do that were promised nothing; the chunks are one block each.
fn fill_for_programs(store: &Store) -> u32 {
    for i in 0.. {
        match store.write_for(Payer::Nobody, key(50, i), 0, &pattern(4096, i.into()), Memory) {
            Ok(_) => {}
            Err(StoreError::NoSpace) => return i,
            Err(error) => panic!("{error}"),
        }
    }
    unreachable!("a store is never full")
}

/// Catches `broken!("margin_filled")`.
#[test]
fn what_is_there_can_be_written_over_in_a_full_store() {
    let (disk, store) = fresh(64 << 20);
    let (large, staged) = (key(1, 0), key(2, 0));
    store.write(large, 0, &vec![0; 1 << 20], Stable).unwrap();
    let stage = |from, to, byte| {
        let (ask, data) = (super::member::ask(from, to), vec![byte; 1 << 20]);
        store.stage_for(Payer::Nobody, staged, &ask, super::member::at(0), &data)
    };
    stage(0, 1, 0).unwrap();
    store.commit(staged, super::member::version(1)).unwrap();
    let blocks = fill_for_programs(&store);
    for round in 1..4 {
        let data = pattern(1 << 20, round);
        store.write_for(Payer::Nobody, large, 0, &data, Stable).unwrap();
        assert!(read(&store, large, 0, data.len()) == data);
        stage(round, round + 1, round as u8).unwrap();
        store.commit(staged, super::member::version(round + 1)).unwrap();
        let small = store.write_for(Payer::Nobody, key(50, 0), 0, &[round as u8; 4096], Stable);
        small.unwrap();
    }
    let new = store.write_for(Payer::Nobody, key(50, blocks), 0, &[1; 4096], Stable);
    assert!(matches!(new, Err(StoreError::NoSpace)));
    store.close().unwrap();
    assert_clean(&disk);
}

#[test]
fn zeros_give_their_room_back_and_nothing_else_does() {
    let (disk, store) = fresh(16 << 20);
    let k = key(1, 0);
    let mut data = pattern(1 << 20, 7);
    data[8192..40_000].fill(0);
    store.write(k, 0, &data, Stable).unwrap();
    store.write(k, 512 << 10, &[0; 4096], Stable).unwrap();
    data[512 << 10..][..4096].fill(0);
    let used = store.usage().used;
    assert_eq!(store.trim_zeros(k, 0, 16_000).unwrap(), 4096, "one whole block of the range");
    assert_eq!(store.trim_zeros(k, 0, 1 << 20).unwrap(), 7 * 4096);
    assert_eq!(store.trim_zeros(k, 0, 1 << 20).unwrap(), 0);
    store.flush().unwrap();
    assert_eq!(used - store.usage().used, 8 * 4096);
    assert!(read(&store, k, 0, 1 << 20) == data);
    drop(store);
    let store = open(&disk).unwrap();
    assert!(read(&store, k, 0, 1 << 20) == data);
    assert_eq!(store.extents(k).len(), 3);
    store.close().unwrap();
    assert_clean(&disk);
}
