//! Many threads on one store: nothing torn within a block, nothing falsely corrupt, all durable.

use std::sync::atomic::{AtomicBool, Ordering};

use nuri_io::rng::Rng;
use nuri_proto::op::data::Durability::{Memory, Stable};

use super::*;

#[test]
fn writers_readers_and_checkpoints_together() {
    let (disk, store) = fresh(24 << 20);
    let stop = AtomicBool::new(false);
    let blocks = 64;
    std::thread::scope(|scope| {
        let (store, stop) = (&store, &stop);
        let writers: Vec<_> = (0..3u64)
            .map(|t| {
                scope.spawn(move || {
                    let mut rng = Rng::new(t);
                    for i in 0..250 {
                        let k = key(1, rng.below(2) as u32);
                        let how = if rng.one_in(4) { Stable } else { Memory };
                        let fill = (t * 80 + i % 80) as u8 + 1;
                        if rng.one_in(3) {
                            store.write(k, 65536, &[fill; 131_072], how).unwrap();
                        } else {
                            let at = rng.below(blocks) as u32 * 4096;
                            store.write(k, at, &[fill; 4096], how).unwrap();
                        }
                    }
                })
            })
            .collect();
        for t in 0..2 {
            scope.spawn(move || {
                let mut rng = Rng::new(100 + t);
                while !stop.load(Ordering::Relaxed) {
                    let got = read(store, key(1, rng.below(2) as u32), 0, blocks as usize * BLOCK);
                    for block in got.chunks(BLOCK) {
                        assert!(block.iter().all(|b| *b == block[0]), "torn block");
                    }
                }
            });
        }
        scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                store.checkpoint().unwrap();
            }
        });
        scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                store.trim(1 << 20);
                std::thread::yield_now();
            }
        });
        writers.into_iter().for_each(|w| w.join().unwrap());
        stop.store(true, Ordering::Relaxed);
    });
    let before: Vec<_> = (0..2).map(|s| read(&store, key(1, s), 0, 64 * BLOCK)).collect();
    store.flush().unwrap();
    drop(store);
    let image = Arc::new(disk.crash_image(&mut Rng::new(1)));
    assert_clean(&image);
    let store = open(&image).unwrap();
    let after: Vec<_> = (0..2).map(|s| read(&store, key(1, s), 0, 64 * BLOCK)).collect();
    assert!(before == after);
}

#[test]
fn parts_of_one_block_from_many_threads_all_arrive() {
    let (_disk, store) = fresh(8 << 20);
    std::thread::scope(|scope| {
        for t in 0..4u32 {
            let store = &store;
            scope.spawn(move || {
                for i in 0..100 {
                    let at = t * 1024 + i * 10;
                    store.write(key(1, 0), at, &[t as u8 + 1; 10], Memory).unwrap();
                    if i == 50 {
                        store.checkpoint().unwrap();
                    }
                }
            });
        }
    });
    let got = read(&store, key(1, 0), 0, 4096);
    for t in 0..4 {
        assert!(got[t * 1024..t * 1024 + 1000].iter().all(|&b| b == t as u8 + 1));
    }
}
