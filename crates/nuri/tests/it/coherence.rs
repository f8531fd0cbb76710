//! Two mounts show one truth.

use std::fs;
use std::io::{ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::time::{Duration, Instant};

use nuri_proto::clock::KERNEL_TTL;

use crate::support::{NURI, SetAtEnd, Space, freeze, in_time, run, stop, timed};

#[test]
fn what_one_mount_wrote_the_other_reads_at_once() {
    let mut space = Space::up(&[]);
    let (a, b) = (space.mnt(), space.mount("other"));
    for i in 0..100 {
        let (w, r) = if i % 2 == 0 { (&a, &b) } else { (&b, &a) };
        let value = format!("value {i} {}", "x".repeat(i * 300));
        fs::write(w.join("f"), &value).unwrap();
        assert_eq!(fs::metadata(r.join("f")).unwrap().len(), value.len() as u64);
        assert_eq!(fs::read_to_string(r.join("f")).unwrap(), value);
    }
    let open = fs::File::open(a.join("f")).unwrap();
    let writer = fs::OpenOptions::new().write(true).open(b.join("f")).unwrap();
    let mut got = [0; 8];
    for i in 0..100u64 {
        writer.write_all_at(&i.to_le_bytes(), 0).unwrap();
        open.read_exact_at(&mut got, 0).unwrap();
        assert_eq!(u64::from_le_bytes(got), i, "an open file keeps no stale page");
    }
    drop((open, writer));
    for i in 0..50 {
        let (w, r) = if i % 2 == 0 { (&a, &b) } else { (&b, &a) };
        let (old, new) = (format!("n{i}"), format!("m{i}"));
        assert!(!r.join(&old).exists());
        fs::write(w.join(&old), "").unwrap();
        assert!(r.join(&old).exists(), "a name made elsewhere is there, also if it was missed");
        fs::rename(r.join(&old), r.join(&new)).unwrap();
        assert!(!w.join(&old).exists() && w.join(&new).exists());
        fs::remove_file(w.join(&new)).unwrap();
        assert!(!r.join(&new).exists());
    }
    space.down_clean();
}

/// Each keeps a page locked in its kernel while it waits for the other's lease.
#[test]
fn writers_that_read_too_do_not_wait_for_each_other() {
    timed(|| {
        let mut space = Space::up(&[]);
        let mounts = [space.mnt(), space.mount("other")];
        fs::write(mounts[0].join("f"), vec![0; 64 << 10]).unwrap();
        let barrier = std::sync::Barrier::new(2);
        let longest = std::thread::scope(|scope| {
            let one = |who: usize| {
                let (path, barrier) = (mounts[who].join("f"), &barrier);
                scope.spawn(move || {
                    let file = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
                    let (mut longest, mut got) = (std::time::Duration::ZERO, [0; 8]);
                    for round in 1..=30u64 {
                        // In one page, and in different ones.
                        let apart = if round % 2 == 0 { 8 } else { 20_000 };
                        let [own, other] = [who, 1 - who].map(|side| 4096 + side as u64 * apart);
                        barrier.wait();
                        file.read_exact_at(&mut got, 60_000).unwrap();
                        barrier.wait();
                        let start = std::time::Instant::now();
                        file.write_all_at(&round.to_le_bytes(), own).unwrap();
                        longest = longest.max(start.elapsed());
                        barrier.wait();
                        file.read_exact_at(&mut got, other).unwrap();
                        assert_eq!(u64::from_le_bytes(got), round);
                    }
                    longest
                })
            };
            [one(0), one(1)].map(|thread| thread.join().unwrap()).into_iter().max().unwrap()
        });
        println!("longest write {longest:?}");
        in_time(longest, 4.0, "the longest write");
        space.down_clean();
    });
}

/// Who reads in a loop has its lease recalled in the middle of a read again and again, and asks for
/// the next one at once: neither may keep the writer waiting.
#[test]
fn a_writer_gets_its_turn_among_readers_in_a_loop() {
    timed(|| {
        let mut space = Space::up(&[]);
        let readers = ["one", "two", "three"].map(|name| space.mount(name));
        let path = space.mnt().join("f");
        fs::write(&path, "").unwrap();
        let writer = fs::OpenOptions::new().write(true).open(&path).unwrap();
        let (start, done) = (std::time::Instant::now(), std::sync::atomic::AtomicBool::new(false));
        std::thread::scope(|scope| {
            let ending = SetAtEnd(&done);
            for reader in &readers {
                scope.spawn(|| {
                    let mut before = 0;
                    while !done.load(std::sync::atomic::Ordering::SeqCst) {
                        let file = fs::File::open(reader.join("f")).unwrap();
                        let size = file.metadata().unwrap().len();
                        assert!(
                            size >= before && size.is_multiple_of(9000),
                            "{size} after {before}"
                        );
                        let mut tail = vec![0; size.min(9000) as usize];
                        file.read_exact_at(&mut tail, size.saturating_sub(9000)).unwrap();
                        assert!(tail.iter().all(|byte| *byte == (size / 9000) as u8));
                        before = size;
                    }
                });
            }
            let written = (0..60u8).try_for_each(|number| {
                writer.write_all_at(&[number + 1; 9000], u64::from(number) * 9000)
            });
            drop(ending);
            written.unwrap();
        });
        println!("60 writes took {:?}", start.elapsed());
        in_time(start.elapsed(), 10.0, "60 writes");
        drop(writer);
        space.down_clean();
    });
}

/// A target is slow to answer a read, and meanwhile another mount writes the file.
#[test]
fn a_read_that_takes_long_is_waited_for() {
    use std::os::unix::fs::OpenOptionsExt;
    let mut space = Space::up(&["--nodes", "2"]);
    let (a, b) = (space.mnt(), space.mount("other"));
    let old = vec![b'o'; 8 << 20];
    fs::write(a.join("f"), &old).unwrap();
    fs::File::open(a.join("f")).unwrap().sync_all().unwrap();
    let writer = fs::OpenOptions::new().write(true).open(b.join("f")).unwrap();
    let reader = fs::OpenOptions::new()
        .read(true)
        .custom_flags(rustix::fs::OFlags::DIRECT.bits() as i32)
        .open(a.join("f"))
        .unwrap();
    let frozen = freeze(&space, "node1");
    let pause = std::time::Duration::from_millis(600);
    std::thread::scope(|scope| {
        let read = scope.spawn(|| {
            let mut found = vec![0; old.len()];
            reader.read_exact_at(&mut found, 0).map(|()| found)
        });
        std::thread::sleep(pause / 2);
        let write = scope.spawn(|| writer.write_all_at(b"new", 0));
        std::thread::sleep(2 * pause);
        assert!(!read.is_finished() && !write.is_finished());
        drop(frozen);
        let found = read.join().unwrap().unwrap();
        assert!(found[3..] == old[3..]);
        write.join().unwrap().unwrap();
    });
    let mut found = [0; 4];
    reader.read_exact_at(&mut found, 0).unwrap();
    assert_eq!(&found, b"newo");
    drop((reader, writer));
    space.down_clean();
}

/// What is appended is read where it is, also by a mount that did not look where that is.
#[test]
fn pages_that_are_appended_lie_where_the_file_ended() {
    let mut space = Space::up(&[]);
    let (a, b) = (space.mnt().join("f"), space.mount("b").join("f"));
    let open = |path: &std::path::Path| {
        fs::OpenOptions::new().read(true).append(true).create(true).open(path).unwrap()
    };
    let (mut here, mut there) = (open(&a), open(&b));
    for round in 0..8u8 {
        here.write_all(&[2 * round; 4096]).unwrap();
        there.write_all(&[2 * round + 1; 4096]).unwrap();
    }
    for path in [&a, &b] {
        let found = fs::read(path).unwrap();
        let wanted: Vec<u8> = (0..16u8).flat_map(|i| [i; 4096]).collect();
        assert!(found == wanted, "{}", path.display());
    }
    drop((here, there));
    space.down_clean();
}

/// The kernel never asks for the root, and keeps names there as anywhere. Also where what a mount
/// did in it by itself was just told.
#[test]
fn names_in_the_root_are_recalled_as_others() {
    let mut space = Space::up(&[]);
    let (a, b) = (space.mnt(), space.mount("other"));
    let name = |mount: &std::path::Path, i: usize| mount.join(format!("f{i}"));
    for round in 0..5 {
        let files = round * 40..round * 40 + 40;
        files.clone().for_each(|i| fs::write(name(&a, i), "").unwrap());
        fs::File::open(&a).unwrap().sync_all().unwrap();
        for i in files {
            assert!(name(&a, i).exists());
            fs::remove_file(name(&b, i)).unwrap();
            assert!(!name(&a, i).exists(), "removed by the other mount: {i}");
        }
    }
    space.down_clean();
}

/// Names of a listing are not the kernel's: it would take them over in its own time.
#[test]
fn a_listing_brings_no_name_back_that_was_removed() {
    let mut space = Space::up(&[]);
    let mounts = [space.mnt(), space.mount("other")];
    let end = Instant::now() + Duration::from_secs(6);
    // Each makes a name here and removes it there, or the other way round, beside the others.
    let rounds = &|thread: usize| {
        let name = format!("n{thread}");
        for round in thread.. {
            let (own, other) = (&mounts[round % 2], &mounts[(round + 1) % 2]);
            fs::write(own.join(&name), "x").unwrap();
            assert!(other.join(&name).exists(), "{name} was made, round {round}");
            if round % 3 == 0 {
                assert!(fs::read_dir(other).unwrap().count() > 0);
            }
            fs::remove_file(own.join(&name)).unwrap();
            assert!(!other.join(&name).exists(), "{name} was removed, round {round}");
            if Instant::now() > end {
                assert!(round > 20, "{round}");
                return;
            }
        }
    };
    std::thread::scope(|scope| (0..4).for_each(|thread| _ = scope.spawn(move || rounds(thread))));
    space.down_clean();
}

#[test]
fn appends_of_two_mounts_do_not_overlap() {
    let mut space = Space::up(&[]);
    let mounts = [space.mnt(), space.mount("other")];
    std::thread::scope(|scope| {
        for (who, m) in mounts.iter().enumerate() {
            scope.spawn(move || {
                for i in 0..150 {
                    let mut f = fs::OpenOptions::new()
                        .append(true)
                        .create(true)
                        .open(m.join("log"))
                        .unwrap();
                    f.write_all(format!("{who}:{i:05}\n").as_bytes()).unwrap();
                }
            });
        }
    });
    let text = fs::read_to_string(mounts[0].join("log")).unwrap();
    for who in 0..2 {
        let mine: Vec<_> = text.lines().filter(|l| l.starts_with(&format!("{who}:"))).collect();
        assert_eq!(mine.len(), 150);
        assert!(mine.windows(2).all(|w| w[0] < w[1]));
    }
    assert_eq!(text.len(), 300 * 8);
    space.down_clean();
}

#[test]
fn a_file_removed_elsewhere_lives_while_it_is_open() {
    let mut space = Space::up(&[]);
    let (a, b) = (space.mnt(), space.mount("other"));
    fs::write(a.join("f"), vec![4; 200_000]).unwrap();
    let open = fs::File::open(a.join("f")).unwrap();
    fs::remove_file(b.join("f")).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(300));
    let mut all = vec![0; 200_000];
    open.read_exact_at(&mut all, 0).unwrap();
    assert_eq!(all, vec![4; 200_000]);
    drop(open);
    space.down_clean();
}

/// What was fetched ahead for `O_DIRECT` is never older than the last write, from whatever mount.
#[test]
fn direct_reads_see_what_was_written_ahead_of_them() {
    use std::os::unix::fs::OpenOptionsExt;
    const PIECE: usize = 256 << 10;
    let mut space = Space::up(&[]);
    let (a, b) = (space.mnt(), space.mount("other"));
    let mut stamps = [1u8; 64];
    fs::write(a.join("f"), vec![1; 64 * PIECE]).unwrap();
    let options = || fs::OpenOptions::new().read(true).write(true).to_owned();
    let direct =
        options().custom_flags(rustix::fs::OFlags::DIRECT.bits() as i32).open(a.join("f")).unwrap();
    let own = options().open(a.join("f")).unwrap();
    let other = options().open(b.join("f")).unwrap();
    let mut buf = nuri_io::buf::AlignedBuf::zeroed(PIECE);
    for round in 0..4u8 {
        for piece in 0..64usize {
            direct.read_exact_at(&mut buf, (piece * PIECE) as u64).unwrap();
            let want = stamps[piece];
            let wrong = buf.iter().position(|byte| *byte != want);
            let found = wrong.map(|at| (at, buf[at], buf.iter().filter(|b| **b != want).count()));
            assert_eq!(found, None, "round {round}, piece {piece}, wanted {want}");
            if piece % 9 == 8 {
                let victim = (piece + 1 + (piece * 7 + round as usize) % 16) % 64;
                stamps[victim] = stamps[victim].wrapping_add(1);
                let bytes = vec![stamps[victim]; PIECE];
                let writer = if (piece + round as usize).is_multiple_of(2) { &own } else { &other };
                writer.write_all_at(&bytes, (victim * PIECE) as u64).unwrap();
            }
        }
    }
    drop((direct, own, other));
    space.down_clean();
}

/// Maps a file and writes one byte to each of its even pages; ends when told.
const MAPPER: &str = "import mmap,sys
f=open(sys.argv[1],'r+b'); m=mmap.mmap(f.fileno(),0)
for at in range(0,len(m),8192): m[at]=65
print('dirty',flush=True); sys.stdin.read()";

/// The kernel holds pages that a program changed through a mapping; nobody told the mount. Another
/// mount looks at the file (the lease is shared now), then writes it.
#[test]
fn dirty_mapped_pages_survive_another_mounts_write() {
    timed(|| {
        use std::io::{BufRead, BufReader};
        use std::process::{Command, Stdio};
        let mut space = Space::up(&[]);
        let (a, b) = (space.mnt(), space.mount("other"));
        // One file on the targets, one within the metadata.
        for (name, len) in [("large", 1 << 20), ("small", 8192)] {
            fs::write(a.join(name), vec![b'0'; len]).unwrap();
            let mut mapper = Command::new("python3");
            mapper.arg("-c").arg(MAPPER).arg(a.join(name));
            let mut child = mapper.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
            let mut said = String::new();
            BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
            assert_eq!(said, "dirty\n");
            assert_eq!(fs::metadata(b.join(name)).unwrap().len(), len as u64);
            fs::read(b.join(name)).unwrap();
            let start = std::time::Instant::now();
            let writer = fs::OpenOptions::new().write(true).open(b.join(name)).unwrap();
            writer.write_all_at(b"B", 4096).unwrap();
            writer.sync_all().unwrap();
            in_time(start.elapsed(), 5.0, &format!("{name}: giving back the lease"));
            drop(child.stdin.take());
            assert!(child.wait().unwrap().success());
            for mount in [&a, &b] {
                let bytes = fs::read(mount.join(name)).unwrap();
                assert_eq!((bytes[0], bytes[1], bytes[4096]), (b'A', b'0', b'B'), "{name}");
                assert!(bytes.iter().step_by(8192).all(|byte| *byte == b'A'), "{name}");
            }
        }
        space.down_clean();
    });
}

/// What a program may do as its owner or by capabilities goes when its file is written; the mount
/// does that for the kernel, and knows under its lease when there is nothing to do.
#[test]
fn privileges_set_elsewhere_are_taken_away_by_a_write() {
    let mut space = Space::up(&[]);
    let (a, b) = (space.mnt(), space.mount("other"));
    let name = "security.capability";
    // Version 2, cap_net_raw permitted and effective.
    let value = [1u32 | 2 << 24, 1 << 13, 0, 0, 0].map(u32::to_le_bytes).concat();
    let mut file = fs::File::create(a.join("f")).unwrap();
    file.write_all(b"program").unwrap();
    for (setter, round) in [(&b, 1), (&a, 2), (&b, 3)] {
        let path = setter.join("f");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o6755)).unwrap();
        rustix::fs::setxattr(&path, name, &value, rustix::fs::XattrFlags::empty()).unwrap();
        let mut got = [0; 64];
        assert_eq!(rustix::fs::getxattr(a.join("f"), name, &mut got).unwrap(), value.len());
        file.write_all(b"changed").unwrap();
        for mount in [&a, &b] {
            let left = rustix::fs::getxattr(mount.join("f"), name, &mut got);
            assert_eq!(left, Err(rustix::io::Errno::NODATA), "round {round}");
            let mode = fs::metadata(mount.join("f")).unwrap().mode();
            assert_eq!(mode & 0o7777, 0o6755, "root may keep the bits");
        }
    }
    drop(file);
    // Somebody else writes, truncates; root gives the file to another owner.
    let (top, f) = (space.path(""), a.join("f"));
    fs::set_permissions(&top, fs::Permissions::from_mode(0o755)).unwrap();
    let path = f.display();
    let nobody = "setpriv --reuid=65534 --regid=65534 --clear-groups sh -c";
    for how in [
        format!("{nobody} 'printf x >> {path}'"),
        format!("{nobody} 'printf x 1<> {path}'"),
        format!("{nobody} 'truncate -s 3 {path}'"),
        format!("chown 1:1 {path}"),
    ] {
        fs::set_permissions(&f, fs::Permissions::from_mode(0o6777)).unwrap();
        crate::support::run("sh", &["-c", &how]);
        let mode = fs::metadata(b.join("f")).unwrap().mode();
        assert_eq!(mode & 0o7777, 0o777, "{how}");
    }
    space.down_clean();
}

/// A hole is a hole from the moment that `fallocate` returned, also for a reader whose next blocks
/// were fetched while it was being made. One of two nodes stands still to stretch that time.
#[test]
fn direct_reads_see_holes_that_were_made_meanwhile() {
    use rustix::fs::FallocateFlags;
    use rustix::process::{Pid, Signal, kill_process};
    use std::os::unix::fs::OpenOptionsExt;
    const BLOCK: u64 = 1 << 20;
    const PART: usize = 64 << 10;
    let space = Space::up(&["--nodes", "2"]);
    let path = space.mnt().join("f");
    fs::write(&path, vec![7; 24 << 20]).unwrap();
    let file = fs::File::open(&path).unwrap();
    file.sync_all().unwrap();
    let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
    let open = || fs::OpenOptions::new().read(true).custom_flags(direct).open(&path).unwrap();
    let node1 = Pid::from_raw(space.pid("node1")).unwrap();
    stop(node1);
    std::thread::scope(|scope| {
        let punched = scope.spawn(|| {
            let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
            let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(&file, mode, 0, 24 * BLOCK).unwrap();
        });
        std::thread::sleep(std::time::Duration::from_millis(300));
        // Blocks go round over four targets: two of these wait for the node that stands still.
        let read = (16..20).find(|block| {
            let (file, block) = (open(), *block);
            let reader = scope.spawn(move || {
                let mut buf = nuri_io::buf::AlignedBuf::zeroed(PART);
                for part in 0..4 {
                    file.read_exact_at(&mut buf, block * BLOCK + part * PART as u64).unwrap();
                }
            });
            std::thread::sleep(std::time::Duration::from_millis(200));
            reader.is_finished()
        });
        kill_process(node1, Signal::CONT).unwrap();
        punched.join().unwrap();
        // On the same target, four blocks ahead: fetched before its hole was made.
        let ahead = read.expect("one of the nodes answers") + 4;
        let mut buf = nuri_io::buf::AlignedBuf::zeroed(PART);
        open().read_exact_at(&mut buf, ahead * BLOCK).unwrap();
        assert!(buf.iter().all(|byte| *byte == 0), "block {ahead} shows what was punched");
    });
    drop(file);
    space.down_clean();
}

/// The kernel asks for a name again after some seconds. That costs no call while leases are held:
/// here it is answered while the server stands still.
#[test]
fn names_that_were_found_are_answered_here_and_change_when_they_change() {
    // Nothing runs beside it: others drop the kernel's caches, and the mount then forgets names.
    timed(found_names_need_no_server);
}

fn found_names_need_no_server() {
    let mut space = Space::up(&[]);
    let (dir, there) = (space.mnt().join("d"), space.mount("other").join("d"));
    fs::create_dir(&dir).unwrap();
    let name = |i: u32| format!("f{i}");
    (0..200).for_each(|i| fs::write(dir.join(name(i)), format!("{i}")).unwrap());
    let len = |i: u32| fs::metadata(there.join(name(i))).map(|m| m.len());
    let ask_all = || (0..200).all(|i| len(i).is_ok_and(|len| len == name(i).len() as u64 - 1));
    let older_than_the_kernel_trusts =
        || std::thread::sleep(KERNEL_TTL + Duration::from_millis(200));
    assert!(ask_all() && ask_all());
    for round in 0..2 {
        older_than_the_kernel_trusts();
        let frozen = freeze(&space, "node0");
        let asked = Instant::now();
        let all = ask_all();
        in_time(asked.elapsed(), 2.0, "what needs no server");
        assert!(all, "in round {round}");
        drop(frozen);
    }
    fs::rename(dir.join(name(0)), dir.join("moved")).unwrap();
    fs::remove_file(dir.join(name(1))).unwrap();
    fs::rename(dir.join(name(3)), dir.join(name(2))).unwrap();
    let is_gone = |i| len(i).is_err_and(|e| e.kind() == ErrorKind::NotFound);
    let content = |i| fs::read_to_string(there.join(name(i))).unwrap();
    let changes = || {
        assert!(is_gone(0) && is_gone(1) && is_gone(3));
        assert_eq!(content(2), "3");
    };
    changes();
    older_than_the_kernel_trusts();
    changes();
    // Own changes, of names that are known from before.
    fs::remove_file(there.join(name(4))).unwrap();
    fs::rename(there.join(name(6)), there.join(name(5))).unwrap();
    let own_changes = || {
        assert!(is_gone(4) && is_gone(6));
        assert_eq!(content(5), "6");
    };
    own_changes();
    older_than_the_kernel_trusts();
    own_changes();
    space.down_clean();
}

/// Files are replaced as editors and package managers do it, while programs open them: there is
/// always one under the name, and the kernel asks only twice.
/// Whoever replaced it may answer late; the file is not given up meanwhile. Catches
/// `broken!("orphan_while_opened")`.
#[test]
fn a_file_that_was_just_replaced_is_opened_by_who_found_it_before() {
    let mut space = Space::up(&[]);
    let (here, there) = (space.mnt(), space.mount("there"));
    fs::create_dir(here.join("d")).unwrap();
    // A replaced file stays for 200 ms. A round in which the machine was slower tells nothing.
    let (mut rounds, mut slow) = (0, 0);
    while rounds < 5 {
        assert!(slow < 50, "the machine is too slow: {slow} rounds, {rounds} told something");
        fs::write(here.join("d/name"), "old").unwrap();
        let found = fs::File::options()
            .read(true)
            .custom_flags(rustix::fs::OFlags::PATH.bits() as i32)
            .open(there.join("d/name"))
            .unwrap();
        // Often enough for turns, under which it has the old file to itself.
        (0..12).for_each(|i| fs::write(here.join(format!("d/{i}")), "new").unwrap());
        let start = Instant::now();
        fs::rename(here.join("d/11"), here.join("d/name")).unwrap();
        fs::File::open(here.join("d")).unwrap().sync_all().unwrap();
        let frozen = freeze(&space, "mount");
        let path = format!("/proc/self/fd/{}", found.as_raw_fd());
        let opened = std::thread::spawn(move || (start.elapsed(), fs::read_to_string(path)));
        // How late the other mount and the server are: an open may reach them as late.
        let looked = Instant::now();
        rustix::fs::statfs(&there).unwrap();
        let late = looked.elapsed();
        std::thread::sleep(Duration::from_millis(700));
        drop(frozen);
        let (begun, opened) = opened.join().unwrap();
        let is_slow = begun + 2 * late > Duration::from_millis(100);
        *(if is_slow { &mut slow } else { &mut rounds }) += 1;
        if !is_slow {
            assert_eq!(opened.unwrap(), "old", "round {rounds}");
        }
        assert_eq!(fs::read_to_string(there.join("d/name")).unwrap(), "new");
    }
    space.down_clean();
}

/// Catches `broken!("gone_when_closed")`.
#[test]
fn a_file_that_was_just_replaced_and_closed_is_opened_by_who_found_it_before() {
    let space = Space::up(&[]);
    let name = space.mnt().join("name");
    for round in 0..5 {
        fs::write(&name, "old").unwrap();
        let open = |flags: rustix::fs::OFlags| {
            fs::File::options().read(true).custom_flags(flags.bits() as i32).open(&name).unwrap()
        };
        let found = open(rustix::fs::OFlags::PATH);
        let other = open(rustix::fs::OFlags::empty());
        fs::write(space.mnt().join("new"), "new").unwrap();
        fs::rename(space.mnt().join("new"), &name).unwrap();
        drop(other);
        // The kernel tells of the close a little later.
        std::thread::sleep(Duration::from_millis(20));
        let opened = fs::read_to_string(format!("/proc/self/fd/{}", found.as_raw_fd()));
        assert_eq!(opened.unwrap(), "old", "round {round}");
    }
    space.down_clean();
}

#[test]
fn a_name_that_is_replaced_all_the_time_is_always_opened() {
    let mut space = Space::up(&[]);
    let (here, there) = (space.mnt(), space.mount("there"));
    fs::create_dir(here.join("d")).unwrap();
    let replace = |mount: &std::path::Path, i: usize| {
        let own = mount.join("d/own");
        fs::write(&own, [i as u8; 900]).unwrap();
        fs::rename(&own, mount.join("d/name")).unwrap();
    };
    replace(&here, 0);
    for reader in [&here, &there] {
        let end = Instant::now() + Duration::from_secs(4);
        let opened = std::thread::scope(|scope| {
            scope.spawn(|| {
                (1..).take_while(|_| Instant::now() < end).for_each(|i| replace(&here, i))
            });
            let read = |_| {
                let start = Instant::now();
                let data = fs::read(reader.join("d/name"));
                let words =
                    |error| format!("{}: {error} after {:?}", reader.display(), start.elapsed());
                data.map(|data| data.len()).map_err(words)
            };
            let lengths: Result<Vec<_>, _> =
                (0..).take_while(|_| Instant::now() < end).map(read).collect();
            let lengths = lengths.expect("a file is there");
            assert!(lengths.iter().all(|len| *len == 900));
            lengths.len()
        });
        assert!(opened > 20, "{opened}");
    }
    // Nothing stays behind.
    let inodes = |mount| rustix::fs::statvfs(mount).map(|s| s.f_files - s.f_ffree).unwrap();
    crate::support::wait("the replaced ones are gone", Duration::from_secs(20), || {
        inodes(&here) <= 4
    });
    space.down_clean();
}

/// Names that move while a directory is listed: each file comes at most once, and the listing ends.
#[test]
fn a_listing_ends_while_files_are_renamed_to_and_fro() {
    let mut space = Space::up(&[]);
    let (a, b) = (space.mnt(), space.mount("other"));
    for dir in ["d", "e"] {
        fs::create_dir(a.join(dir)).unwrap();
    }
    (0..3).for_each(|i| fs::write(a.join(format!("d/f{i}")), "").unwrap());
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let ending = SetAtEnd(&done);
        scope.spawn(|| {
            let mut to = 1;
            while !done.load(std::sync::atomic::Ordering::SeqCst) {
                let name = |i: usize, side: usize| match (i, side) {
                    // One of them leaves the directory and comes back.
                    (2, 1) => b.join("e/f2"),
                    (_, 0) => b.join(format!("d/f{i}")),
                    _ => b.join(format!("d/g{i}")),
                };
                (0..3).for_each(|i| fs::rename(name(i, 1 - to), name(i, to)).unwrap());
                to = 1 - to;
            }
        });
        let end = Instant::now() + Duration::from_secs(5);
        let mut listings = 0;
        while Instant::now() < end {
            let mut seen = std::collections::HashMap::new();
            for entry in fs::read_dir(a.join("d")).unwrap() {
                let entry = entry.unwrap();
                *seen.entry(std::os::unix::fs::DirEntryExt::ino(&entry)).or_insert(0) += 1;
                if seen.values().sum::<i32>() > 9 {
                    break;
                }
                // A program that does something with each.
                std::thread::sleep(Duration::from_millis(3));
            }
            let most = seen.values().max().copied().unwrap_or(0);
            assert!(most <= 1, "a file is listed {most} times");
            assert!(seen.len() >= 2, "what stays in the directory is listed: {seen:?}");
            listings += 1;
        }
        drop(ending);
        assert!(listings > 20, "{listings}");
    });
    // Its last renames are to be flushed: a mount whose servers are gone tries that for 30 s.
    run(NURI, &["fs", "umount", &b.display().to_string()]);
    space.down_clean();
}
