//! Damage is told, and nothing is written over it.

use super::*;
use crate::log::{BLOCK, FORMAT, SegmentHead};
use nuri_proto::checksum::crc64;

fn dump(disk: &MemDisk) -> Vec<u8> {
    let mut all = vec![0; disk.len().unwrap() as usize];
    disk.read_at(0, &mut all).unwrap();
    all
}

/// A store with eight groups in its log that the tables do not have.
fn stored() -> (Arc<MemDisk>, Arc<MemDisk>) {
    let (log, tables) = disks();
    let engine = open(&log, &tables).unwrap();
    for i in 0..8u8 {
        let id = engine.commit(batch(&[(&[i], Some(&[i; 100]))])).unwrap();
        engine.wait_durable(id).unwrap();
    }
    drop(engine);
    (log, tables)
}

fn refused(log: &Arc<MemDisk>, tables: &Arc<MemDisk>, what: &str) -> KvError {
    let before = dump(log);
    let error = open(log, tables).err().unwrap_or_else(|| panic!("{what} was not noticed"));
    assert!(dump(log) == before, "{what}: the log was written");
    error
}

#[test]
fn a_flipped_bit_in_the_middle_of_the_log_is_damage_and_nothing_is_overwritten() {
    let (log, tables) = stored();
    for group in 1..8u64 {
        for at in [0, 5, 9, 17, 25, 40, 100] {
            let (log, tables) = (Arc::new(log.fork()), Arc::new(tables.fork()));
            log.flip_bit(group * BLOCK as u64 + at, 3);
            let what = format!("group {group} byte {at}");
            let error = refused(&log, &tables, &what);
            assert!(matches!(error, KvError::Damaged(_)), "{what}: {error}");
            // The bit is mended: everything is there again.
            log.flip_bit(group * BLOCK as u64 + at, 3);
            assert_eq!(all(&open(&log, &tables).unwrap()).len(), 8);
        }
    }
}

#[test]
fn a_damaged_head_is_damage_and_not_an_empty_log() {
    let (log, tables) = stored();
    for at in [0, 4, 8, 15, 16, 23] {
        let (log, tables) = (Arc::new(log.fork()), Arc::new(tables.fork()));
        log.flip_bit(at, 1);
        let error = refused(&log, &tables, "the head");
        assert!(matches!(error, KvError::Damaged(_)), "byte {at}: {error}");
    }
}

#[test]
fn an_unknown_format_is_told_with_both_numbers() {
    let (log, tables) = stored();
    let mut head = SegmentHead { generation: 9 }.encode();
    head[4..8].copy_from_slice(&77u32.to_le_bytes());
    let crc = crc64(&head[..16]);
    head[16..24].copy_from_slice(&crc.to_le_bytes());
    log.write_at(CONFIG.segment_bytes as u64, &head).unwrap();
    let error = refused(&log, &tables, "the format");
    assert_eq!(error, KvError::Version { found: 77, known: FORMAT });
}

#[test]
fn a_cut_or_missing_log_is_not_made_anew() {
    let (log, tables) = stored();
    log.set_len(CONFIG.segment_bytes as u64).unwrap();
    let error = refused(&log, &tables, "a cut log");
    assert!(matches!(error, KvError::Damaged(_)), "{error}");
    let none = Arc::new(MemDisk::new());
    let error = refused(&none, &tables, "a missing log");
    assert!(matches!(error, KvError::Damaged(_)), "{error}");
}

#[test]
fn a_log_without_its_tables_is_not_overwritten() {
    let (log, _) = stored();
    let error = refused(&log, &Arc::new(MemDisk::new()), "missing tables");
    assert!(matches!(error, KvError::Damaged(_)), "{error}");
}

/// The segments of an existing store keep their length, whatever the configuration says now.
#[test]
fn another_segment_length_in_the_configuration_loses_nothing() {
    for segment_bytes in [128 << 10, 1 << 20, 64 << 10] {
        let (log, tables) = stored();
        let config = KvConfig { segment_bytes, ..CONFIG };
        let engine = Embedded::open(log.clone(), tables.clone(), config).unwrap();
        assert_eq!(all(&engine).len(), 8, "{segment_bytes}");
        for i in 10..90u8 {
            let id = engine.commit(batch(&[(&[i], Some(&[i; 3000]))])).unwrap();
            engine.wait_durable(id).unwrap();
        }
        drop(engine);
        assert_eq!(all(&open(&log, &tables).unwrap()).len(), 88, "{segment_bytes}");
    }
}

#[test]
fn damaged_tables_never_panic() {
    let (log, tables) = stored();
    let engine = open(&log, &tables).unwrap();
    engine.checkpoint().unwrap();
    drop(engine);
    let mut rng = Rng::new(5);
    for _ in 0..30 {
        let (log, tables) = (Arc::new(log.fork()), Arc::new(tables.fork()));
        let at = rng.below(tables.len().unwrap().min(1 << 16));
        tables.flip_bit(at, rng.below(8) as u32);
        if let Ok(engine) = open(&log, &tables) {
            let _ = engine.scan(b"", b"", 100);
        }
    }
}
