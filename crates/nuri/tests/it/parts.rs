//! One file that two mounts write at the same time, each its parts of it.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::support::Space;

const RECORD: usize = 64 << 10;

fn write(file: &File, number: u64, value: u8) {
    file.write_all_at(&[value; RECORD], number * RECORD as u64).unwrap();
}

/// Writes its records of a file in turn with others that write theirs.
fn write_every_other(file: &File, who: u64, records: u64) {
    (0..records).filter(|number| number % 2 == who).for_each(|number| write(file, number, 1));
}

fn open(dir: &Path) -> File {
    File::options().read(true).write(true).open(dir.join("f")).unwrap()
}

/// Catches `broken!("part_unflushed")`: what was written under a part and not made durable when
/// it was taken away would be sent again after the target's restart.
#[test]
fn what_was_written_under_a_part_never_comes_back_over_newer_bytes() {
    const RECORDS: u64 = 64;
    let mut space = Space::up(&[]);
    let [a, b] = [space.mnt(), space.mount("other")];
    fs::write(a.join("f"), vec![0; RECORDS as usize * RECORD]).unwrap();
    let files = [open(&a), open(&b)];
    for round in 1..=4 {
        std::thread::scope(|scope| {
            for (who, file) in files.iter().enumerate() {
                scope.spawn(move || write_every_other(file, who as u64, RECORDS));
            }
        });
        // Of the first's parts.
        let taken: Vec<_> = (0..RECORDS).step_by(6).collect();
        taken.iter().for_each(|number| write(&files[0], *number, 10 + round));
        taken.iter().for_each(|number| write(&files[1], *number, 20 + round));
        files[1].sync_all().unwrap();
        space.kill("node0");
        files[0].sync_all().unwrap();
        for (dir, file) in [&a, &b].into_iter().zip(&files) {
            let mut got = vec![0; RECORD];
            for number in 0..RECORDS {
                file.read_exact_at(&mut got, number * RECORD as u64).unwrap();
                let wanted = if taken.contains(&number) { 20 + round } else { 1 };
                let wrong = got.iter().position(|byte| *byte != wanted);
                assert_eq!(wrong, None, "record {number} in {dir:?}, round {round}");
            }
        }
    }
    drop(files);
    space.down_clean();
}

/// Catches `broken!("parts_remember")`. Whoever cuts a file takes all parts of it back. Whoever
/// writes it after that knows nothing of it any more, neither its length nor its object.
#[test]
fn a_file_that_was_cut_stays_so_for_who_wrote_parts_of_it() {
    let mut space = Space::up(&[]);
    let [a, b] = [space.mnt(), space.mount("other")];
    for (round, size) in [8192, 0, 100_000, 0, 8192, 0].into_iter().enumerate() {
        let name = format!("f{round}");
        let open = |dir: &Path| {
            let mut options = File::options();
            options.read(true).write(true).create(true).truncate(false).open(dir.join(&name))
        };
        let (here, there) = (open(&a).unwrap(), open(&b).unwrap());
        here.write_all_at(&[1; 30_000], 8192).unwrap();
        there.write_all_at(&[2; 4096], 3 << 20).unwrap();
        here.write_all_at(&[3; 5000], 0).unwrap();
        there.write_all_at(&[4; 512], 0).unwrap();
        there.set_len(size).unwrap();
        here.write_all_at(&[5; 5860], 512).unwrap();
        for dir in [&a, &b] {
            let found = fs::read(dir.join(&name)).unwrap();
            assert_eq!(found.len() as u64, size.max(6372), "round {round}");
            assert!(found[512..6372] == [5; 5860], "round {round}");
            let head = if size == 0 { 0 } else { 4 };
            assert!(found[..512] == [head; 512], "round {round}");
        }
    }
    space.down_clean();
}
