//! What every [`Disk`] must do. The tests of each implementation run these checks.
//!
//! The checks panic where the disk is wrong. They are test code, public so that other crates can
//! check their disks.

use crate::buf::AlignedBuf;
use crate::disk::{Disk, DiskOp};
use crate::rng::Rng;

/// Runs all checks, each on a fresh empty disk.
///
/// # Panics
/// Where a check fails.
pub fn suite<D: Disk>(open: impl Fn() -> D) {
    lengths(&open());
    round_trip_any_alignment(&open());
    short_reads_are_errors(&open());
    batches(&open());
    random_against_vec(&open());
    parallel_writers(&open());
    room(&open());
}

fn must<T>(result: std::io::Result<T>) -> T {
    result.unwrap_or_else(|e| panic!("disk failed: {e}"))
}

fn pattern(len: usize, seed: u64) -> AlignedBuf {
    let mut buf = AlignedBuf::zeroed(len);
    Rng::new(seed).fill(&mut buf);
    buf
}

fn lengths(disk: &impl Disk) {
    assert!(must(disk.is_empty()));
    must(disk.set_len(1 << 20));
    assert_eq!(must(disk.len()), 1 << 20);
    let mut buf = AlignedBuf::zeroed(8192);
    buf[5] = 1;
    must(disk.read_at(4096, &mut buf));
    assert!(buf.iter().all(|&b| b == 0), "grown space reads as zeros");
    must(disk.set_len(5000));
    assert_eq!(must(disk.len()), 5000);
    must(disk.write_at(4990, &[7; 20]));
    assert_eq!(must(disk.len()), 5010, "a write past the end grows by what it wrote");
}

fn round_trip_any_alignment(disk: &impl Disk) {
    must(disk.set_len(4 << 20));
    for (offset, len) in [(0, 4096), (4096, 1 << 20), (511, 3), (4095, 4098), (777, 1_100_000)] {
        let data = pattern(len, offset);
        must(disk.write_at(offset, &data));
        let mut back = vec![0; len + 1];
        must(disk.read_at(offset, &mut back[1..]));
        assert!(back[1..] == data[..], "offset {offset} length {len}");
    }
    must(disk.sync());
    must(disk.punch(4096, 8192));
}

fn short_reads_are_errors(disk: &impl Disk) {
    must(disk.set_len(8192));
    let mut buf = AlignedBuf::zeroed(8192);
    assert!(disk.read_at(4096, &mut buf).is_err());
    assert!(disk.read_at(8190, &mut buf[..3]).is_err());
    must(disk.read_at(8190, &mut buf[..2]));
}

fn batches(disk: &impl Disk) {
    must(disk.set_len(4 << 20));
    let data = pattern(200 * 4096, 3);
    let mut ops: Vec<_> = data
        .chunks(4096)
        .enumerate()
        .map(|(i, part)| DiskOp::Write { offset: (199 - i as u64) * 4096, data: part })
        .collect();
    must(disk.submit(&mut ops));
    let mut back = AlignedBuf::zeroed(200 * 4096);
    let mut ops: Vec<_> = back
        .chunks_mut(4096)
        .enumerate()
        .map(|(i, buf)| DiskOp::Read { offset: (199 - i as u64) * 4096, buf })
        .collect();
    must(disk.submit(&mut ops));
    assert!(back[..] == data[..]);
    must(disk.submit(&mut []));
    let (a, b) = back.split_at_mut(4096);
    let mut ops = [
        DiskOp::Read { offset: 64 << 20, buf: a },
        DiskOp::Read { offset: 4096, buf: &mut b[..4096] },
    ];
    assert!(disk.submit(&mut ops).is_err(), "one bad part fails the batch");
    assert!(b[..4096] == data[198 * 4096..199 * 4096], "and the others still ran");
}

fn random_against_vec(disk: &impl Disk) {
    let mut model = vec![0u8; 300_000];
    must(disk.set_len(model.len() as u64));
    let mut rng = Rng::new(11);
    for _ in 0..200 {
        let at = rng.below(model.len() as u64) as usize;
        let len = (rng.below(9000) as usize).min(model.len() - at);
        if rng.one_in(2) {
            rng.fill(&mut model[at..at + len]);
            must(disk.write_at(at as u64, &model[at..at + len]));
        } else {
            let mut back = vec![1; len];
            must(disk.read_at(at as u64, &mut back));
            assert!(back == model[at..at + len]);
        }
    }
    assert_eq!(must(disk.len()), model.len() as u64);
}

fn parallel_writers(disk: &impl Disk) {
    must(disk.set_len(4 << 20));
    std::thread::scope(|scope| {
        for t in 0..4u64 {
            scope.spawn(move || {
                for i in 0..16 {
                    must(disk.write_at((t + 4 * i) << 16, &pattern(1 << 16, t + 4 * i)));
                }
            });
        }
    });
    let mut back = AlignedBuf::zeroed(1 << 16);
    for i in 0..64 {
        must(disk.read_at(i << 16, &mut back));
        assert!(back[..] == pattern(1 << 16, i)[..]);
    }
}

/// Room is known where it was taken, and not where it was given back.
fn room(disk: &impl Disk) {
    if !disk.is_sparse() {
        return;
    }
    let written = |from| must(disk.next_written(from));
    must(disk.set_len(8 << 20));
    must(disk.allocate(0, 1 << 20));
    must(disk.write_at(2 << 20, &pattern(1 << 20, 1)));
    must(disk.sync());
    assert_eq!(written(1 << 20), Some(2 << 20..3 << 20));
    assert_eq!(written(0x21_0000), Some(0x21_0000..3 << 20));
    assert_eq!(written(3 << 20), None);
    must(disk.punch(0x24_0000, 0x8_0000));
    assert_eq!(written(2 << 20), Some(2 << 20..0x24_0000));
    assert_eq!(written(0x24_0000), Some(0x2c_0000..3 << 20));
    let mut back = AlignedBuf::zeroed(1 << 20);
    must(disk.read_at(2 << 20, &mut back));
    let want = pattern(1 << 20, 1);
    assert!(back[..0x4_0000] == want[..0x4_0000] && back[0xc_0000..] == want[0xc_0000..]);
    assert!(back[0x4_0000..0xc_0000].iter().all(|b| *b == 0), "a hole reads as zeros");
}
