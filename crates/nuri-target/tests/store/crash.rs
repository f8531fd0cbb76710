//! Crash images: cut at every sync and at random moments, reopen, compare with the model.

use nuri_io::disk::Disk;
use nuri_io::rng::Rng;
use nuri_proto::op::data::Durability::{Memory, Stable};

use super::model::Model;
use super::*;

/// Runs random operations on a recording disk, then visits crashes of all of its life.
fn torture(seed: u64, ops: usize, capacity: u64, random_cuts: u64) {
    torture_within(seed, ops, capacity, random_cuts, u64::MAX);
}

/// The same on a file system that has so much room and no more. Returns the writes refused.
fn torture_within(seed: u64, ops: usize, capacity: u64, random_cuts: u64, room: u64) -> u64 {
    let (disk, store) = fresh_on(MemDisk::recording(), capacity);
    let room = disk.resident().saturating_add(room);
    disk.limit_space(room);
    let born = disk.events();
    let mut rng = Rng::new(seed);
    let mut model = Model::new();
    let mut after_sync = Vec::new();
    for _ in 0..ops {
        model.step(&store, &disk, &mut rng);
        after_sync.push(disk.events());
    }
    drop(store);
    let life = (disk.events() - born) as u64;
    let random = (0..random_cuts).map(|_| born + rng.below(life + 1) as usize);
    let mut cuts: Vec<usize> = after_sync.into_iter().chain(random).collect();
    cuts.sort_unstable();
    cuts.dedup();
    for cut in cuts {
        let what = format!("seed {seed}");
        let image = Arc::new(disk.image_at_event(cut, &mut rng));
        image.limit_space(image.resident().max(room));
        assert_clean(&image);
        let store = open(&image).unwrap_or_else(|e| panic!("{what}, cut {cut}: {e}"));
        model.verify(&store, cut, &what);
        drop(store);
        // The opening itself may crash, and what it wrote may be lost in part.
        let again = Arc::new(image.crash_image(&mut rng));
        again.limit_space(again.resident().max(room));
        let store = open(&again).unwrap_or_else(|e| panic!("{what}, cut {cut}, again: {e}"));
        model.verify(&store, cut, "after a second crash");
        store.close().unwrap();
        assert_clean(&again);
    }
    model.refused
}

#[test]
fn crashes_on_a_full_file_system() {
    // With free blocks in the store, and with few.
    for (capacity, room) in [(6 << 20, 400 << 10), (3 << 20, 300 << 10), (3 << 20, 900 << 10)] {
        let torture = |seed| torture_within(seed, 60, capacity, 40, room);
        let refused: u64 = (200..206).map(torture).sum();
        assert!(refused > 0, "no write was refused");
    }
}

#[test]
fn crashes_leave_old_or_new_and_all_that_was_synced() {
    for seed in 0..8 {
        torture(seed, 60, 6 << 20, 40);
    }
}

#[test]
fn crashes_of_a_nearly_full_store() {
    // Everything of the model fits, but blocks find new owners all the time.
    for seed in 100..104 {
        torture(seed, 60, 3 << 20, 40);
    }
}

/// Catches `ack_before_log`: nothing unsynced is kept, and what was stable is there.
#[test]
fn stable_write_needs_nothing_unsynced() {
    let (disk, store) = fresh_on(MemDisk::recording(), 8 << 20);
    for (i, len) in [4096, 100, 1 << 17, 70_001].into_iter().enumerate() {
        let (k, data) = (key(i as u64, 0), pattern(len, i as u64));
        store.write(k, 0, &data, Stable).unwrap();
        let image = Arc::new(disk.image_at_sync(disk.counters().syncs));
        let after = open(&image).unwrap();
        assert!(read(&after, k, 0, len) == data, "{len} bytes acknowledged as stable are lost");
    }
}

/// Catches `log_before_data`: the record must not outlive the data it names.
#[test]
fn record_is_durable_only_after_its_data() {
    let (disk, store) = fresh_on(MemDisk::recording(), 8 << 20);
    let (k, old, new) = (key(1, 0), pattern(1 << 17, 1), pattern(1 << 17, 2));
    store.write(k, 0, &old, Stable).unwrap();
    let start = disk.events();
    store.write(k, 0, &new, Stable).unwrap();
    for cut in start..=disk.events() {
        for seed in 0..20 {
            let image = Arc::new(disk.image_at_event(cut, &mut Rng::new(seed)));
            let got = read(&open(&image).unwrap(), k, 0, 1 << 17);
            assert!(got == old || got == new, "cut {cut} seed {seed}");
        }
    }
}

/// Catches `free_before_durable`: freed blocks hold the only durable copy until their record is.
#[test]
fn freed_blocks_are_not_reused_before_the_record_is_durable() {
    let (disk, store) = fresh(2 << 20);
    let len = 1 << 17;
    let mut objects = 0;
    while store.write(key(objects, 0), 0, &pattern(len, objects), Stable).is_ok() {
        objects += 1;
    }
    // Fill what is left, so that only freed blocks can serve the next writes.
    let mut rest = 0;
    while store.write(key(500, 0), rest, &[5; 4096], Memory).is_ok() {
        rest += 4096;
    }
    store.checkpoint().unwrap();
    store.punch(key(0, 0), 0, len as u32).unwrap();
    // Overwriting takes other blocks each time, so soon those that were freed; the index image has
    // taken some of what was freed, so the pieces are half as long.
    for i in 0..20 {
        store.write(key(600, 0), 0, &pattern(len / 2, 600 + i), Memory).unwrap();
    }
    for seed in 0..40 {
        let image = Arc::new(disk.crash_image(&mut Rng::new(seed)));
        let after = open(&image).unwrap();
        for object in 1..objects {
            assert!(read(&after, key(object, 0), 0, len) == pattern(len, object));
        }
        let got = read(&after, key(0, 0), 0, len);
        let gone = got.iter().all(|&b| b == 0);
        assert!(gone || got == pattern(len, 0), "seed {seed}");
    }
}

#[test]
fn failed_sync_takes_the_store_out_of_service_until_reopened() {
    let (disk, store) = fresh(8 << 20);
    store.write(key(1, 0), 0, &[1; 4096], Stable).unwrap();
    store.write(key(1, 0), 4096, &[2; 4096], Memory).unwrap();
    disk.fail_next_sync();
    assert!(store.flush().is_err());
    for _ in 0..2 {
        let status = store.write(key(1, 0), 0, &[3; 4096], Memory).unwrap_err();
        assert_eq!(nuri_proto::Status::from(status), nuri_proto::Status::OUT_OF_SERVICE);
        assert!(store.flush().is_err() && store.checkpoint().is_err());
        assert!(store.read(key(1, 0), 0, &mut [0; 10]).is_err());
    }
    drop(store);
    let store = open(&disk).unwrap();
    assert_eq!(read(&store, key(1, 0), 0, 4096), [1; 4096]);
}

#[test]
fn failing_disk_never_loses_what_was_stable() {
    for n in 0..60 {
        let (disk, store) = fresh(4 << 20);
        store.write(key(1, 0), 0, &pattern(1 << 17, 1), Stable).unwrap();
        store.write(key(1, 1), 0, &pattern(5000, 2), Stable).unwrap();
        disk.fail_after(n);
        let failed = (|| {
            store.write(key(2, 0), 0, &pattern(1 << 17, 3), Stable)?;
            store.write(key(2, 1), 3, &pattern(5000, 4), Memory)?;
            store.checkpoint()?;
            store.delete(&[nuri_proto::id::ObjectId(2)])
        })();
        drop(store);
        disk.heal();
        let image = Arc::new(disk.crash_image(&mut Rng::new(n)));
        assert_clean(&image);
        let store = open(&image).unwrap();
        assert!(read(&store, key(1, 0), 0, 1 << 17) == pattern(1 << 17, 1));
        assert!(read(&store, key(1, 1), 0, 5000) == pattern(5000, 2));
        let end = read(&store, key(2, 0), 0, 1 << 17);
        assert!(failed.is_err() || end.iter().all(|&b| b == 0));
        assert!(image.len().unwrap() >= 4 << 20);
    }
}
