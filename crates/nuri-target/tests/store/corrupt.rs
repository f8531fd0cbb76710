//! Flipped bits anywhere are told, never returned as data and never formatted away.

use nuri_io::disk::Disk;
use nuri_proto::Status;
use nuri_proto::op::data::Durability::{Memory, Stable};
use nuri_target::store::check::check;
use nuri_target::store::{OpenError, StoreError};

use super::*;

fn stored() -> (Arc<MemDisk>, nuri_target::store::Superblock) {
    let (disk, store) = fresh(8 << 20);
    store.write(key(1, 0), 0, &pattern(1 << 17, 1), Stable).unwrap();
    store.write(key(1, 1), 0, &pattern(5000, 2), Stable).unwrap();
    store.close().unwrap();
    let store = open(&disk).unwrap();
    let superblock = store.superblock();
    (disk, superblock)
}

/// Everything on the disk, to prove that nothing was written.
fn dump(disk: &MemDisk) -> Vec<u8> {
    let mut all = vec![0; disk.len().unwrap() as usize];
    disk.read_at(0, &mut all).unwrap();
    all
}

/// Catches `skip_verify`.
#[test]
fn flipped_data_bit_is_corrupt_and_not_returned() {
    let (disk, superblock) = stored();
    let store = open(&disk).unwrap();
    let at = superblock.regions.data_at + 3 * 4096 + 100;
    disk.flip_bit(at, 2);
    let mut buf = vec![0; 1 << 17];
    let error = store.read(key(1, 0), 0, &mut buf).unwrap_err();
    assert!(matches!(error, StoreError::Corrupt(k, 3) if k == key(1, 0)), "{error}");
    assert_eq!(Status::from(error), Status::CORRUPT);
    store.read(key(1, 0), 4 * 4096, &mut buf[..8192]).unwrap();
    let part = store.write(key(1, 0), 3 * 4096 + 5, &[1], Memory).unwrap_err();
    assert!(matches!(part, StoreError::Corrupt(_, 3)), "no merge with rotten bytes");
    store.write(key(1, 0), 3 * 4096, &[1; 4096], Memory).unwrap();
    store.read(key(1, 0), 0, &mut buf).unwrap();
    drop(store);
    assert_eq!(check(&disk).problem_count, 1);
}

#[test]
fn a_chunk_is_proved_while_the_store_is_in_use() {
    let (disk, superblock) = stored();
    let store = open(&disk).unwrap();
    assert_eq!(store.plain_chunks(), [key(1, 0), key(1, 1)]);
    assert_eq!(store.prove(key(1, 0)).unwrap().bad, []);
    for block in [3, 4, 31] {
        disk.flip_bit(superblock.regions.data_at + block * 4096 + 100, 2);
    }
    let proof = store.prove(key(1, 0)).unwrap();
    assert_eq!((proof.bytes, proof.bad), (1 << 17, vec![3, 4, 31]));
}

#[test]
fn flipped_checksum_bit_is_corrupt() {
    let (disk, superblock) = stored();
    disk.flip_bit(superblock.regions.sums_at + 8 * 5, 0);
    let store = open(&disk).unwrap();
    let error = store.read(key(1, 0), 0, &mut vec![0; 1 << 17]).unwrap_err();
    assert!(matches!(error, StoreError::Corrupt(_, 5)), "{error}");
}

#[test]
fn misdirected_block_is_corrupt() {
    let (disk, superblock) = stored();
    let mut block = vec![0; 4096];
    let at = superblock.regions.data_at;
    disk.read_at(at, &mut block).unwrap();
    disk.write_at(at + 4096, &block).unwrap();
    let mut entry = vec![0; 8];
    disk.read_at(superblock.regions.sums_at, &mut entry).unwrap();
    disk.write_at(superblock.regions.sums_at + 8, &entry).unwrap();
    let store = open(&disk).unwrap();
    let error = store.read(key(1, 0), 4096, &mut [0; 10]).unwrap_err();
    assert!(matches!(error, StoreError::Corrupt(_, 1)), "block and checksum moved together");
}

#[test]
fn one_superblock_is_enough_two_damaged_are_an_error() {
    let (disk, _) = stored();
    for first in [0, 4096] {
        let image = Arc::new(disk.fork());
        image.flip_bit(first + 60, 1);
        assert_eq!(check(&image).notes.len(), 1);
        let store = open(&image).unwrap();
        assert_eq!(read(&store, key(1, 1), 0, 5000), pattern(5000, 2));
        drop(store);
        assert_clean(&image);
    }
    disk.flip_bit(60, 1);
    disk.flip_bit(4096 + 70, 1);
    let before = dump(&disk);
    assert!(matches!(open(&disk).err(), Some(OpenError::SuperblocksDamaged)));
    assert!(!check(&disk).is_clean());
    assert!(dump(&disk) == before, "nothing was overwritten");
}

#[test]
fn unknown_version_and_features_say_what_to_do() {
    let (disk, _) = stored();
    let reseal = |disk: &MemDisk, at: u64, value: u8| {
        for copy in [0, 4096] {
            disk.write_at(copy + at, &[value]).unwrap();
            let mut block = vec![0; 4096];
            disk.read_at(copy, &mut block).unwrap();
            let crc = nuri_proto::checksum::crc64(&block[..4088]);
            disk.write_at(copy + 4088, &crc.to_le_bytes()).unwrap();
        }
    };
    let image = Arc::new(disk.fork());
    reseal(&image, 8, 2);
    let error = open(&image).err().unwrap();
    assert!(matches!(error, OpenError::Version(2, 1)), "{error}");
    assert!(error.to_string().contains("newer program"));
    let image = Arc::new(disk.fork());
    reseal(&image, 32, 4);
    assert!(matches!(open(&image).err(), Some(OpenError::Features(4))));
    let image = Arc::new(disk.fork());
    reseal(&image, 16, 1);
    open(&image).unwrap();
    let blank = Arc::new(MemDisk::new());
    assert!(matches!(open(&blank).err(), Some(OpenError::NotAStore)));
    blank.set_len(1 << 20).unwrap();
    assert!(matches!(open(&blank).err(), Some(OpenError::NotAStore)));
}

#[test]
fn damaged_index_image_is_an_error() {
    let (disk, superblock) = stored();
    let at = superblock.regions.block_at(superblock.checkpoint.first);
    disk.flip_bit(at + 200, 3);
    let before = dump(&disk);
    assert!(matches!(open(&disk).err(), Some(OpenError::IndexDamaged(_))));
    assert!(check(&disk).problems[0].contains("index"));
    assert!(dump(&disk) == before);
}

#[test]
fn damage_inside_the_log_is_an_error_and_a_torn_end_is_not() {
    let (disk, store) = fresh(8 << 20);
    let log_at = store.superblock().regions.log_at;
    for i in 0..4 {
        store.write(key(1, i), 0, &[1; 4096], Stable).unwrap();
    }
    drop(store);
    for batch in 0..4 {
        let image = Arc::new(disk.fork());
        image.flip_bit(log_at + batch * 8192 + 500, 0);
        let before = dump(&image);
        if batch < 3 {
            assert!(matches!(open(&image).err(), Some(OpenError::LogDamaged { .. })));
            assert!(check(&image).problems[0].contains("log is damaged"));
            assert!(dump(&image) == before);
        } else {
            assert_clean(&image);
            let store = open(&image).unwrap();
            assert_eq!(read(&store, key(1, 2), 0, 10), [1; 10]);
            assert_eq!(read(&store, key(1, 3), 0, 10), [0; 10]);
        }
    }
}

#[test]
fn cut_file_is_told() {
    let (disk, _) = stored();
    disk.set_len(7 << 20).unwrap();
    assert!(matches!(open(&disk).err(), Some(OpenError::Short(..))));
}
