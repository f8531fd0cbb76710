//! Changes of one mount while another one changes the same file, at the border to the kernel: what
//! the kernel believes, keeps locked or holds back meanwhile.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nuri_proto::clock::RECALL;
use rustix::fs::{FallocateFlags, fallocate};

use crate::support::{NURI, SetAtEnd, Space, freeze, is_mounted, run, text, timed, wait};

const PUNCH: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);

fn open(path: &Path) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

/// Catches `broken!("grown_unseen")`. The mount that makes room looks how long the file is, waits,
/// and another mount writes behind that end meanwhile.
#[test]
fn room_that_is_made_cuts_nothing_off_that_was_written_elsewhere() {
    let mut space = Space::up(&[]);
    let a = space.mount_with("paused", &[("NURI_PAUSE", "grow")]);
    let b = space.mnt();
    for round in 0..60u64 {
        let name = format!("f{round}");
        let (here, there) = (open(&a.join(&name)), open(&b.join(&name)));
        let (barrier, end) = (Barrier::new(2), 20_000 + 1000 * round);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                barrier.wait();
                fallocate(&here, FallocateFlags::empty(), 0, 12_000).unwrap();
            });
            barrier.wait();
            std::thread::sleep(Duration::from_micros(100 * round));
            there.write_all_at(&[7; 100], end).unwrap();
        });
        for file in [&here, &there] {
            let mut found = [0; 100];
            assert_eq!(file.metadata().unwrap().len(), end + 100, "round {round}");
            file.read_exact_at(&mut found, end).unwrap();
            assert_eq!(found, [7; 100], "round {round}");
        }
    }
    space.down_clean();
}

/// Changes pages of a mapping and the size of the file in turns, and says how long the longest
/// change of the size took, in milliseconds.
const MAPPER: &str = "import mmap,os,sys,time
path,stop=sys.argv[1:3]
f=os.open(path,os.O_RDWR)
m=mmap.mmap(f,1<<20)
longest,i=0,0
while not os.path.exists(stop):
    i+=1
    for page in range(16): m[page*4096:page*4096+8]=i.to_bytes(8,'little')
    start=time.monotonic()
    os.ftruncate(f,(2<<20)-(i%2)*4096)
    longest=max(longest,time.monotonic()-start)
m.flush()
print(int(longest*1000),i)";

fn mapper(file: &Path, stop: &Path) -> Child {
    let args = ["-c", MAPPER, file.to_str().unwrap(), stop.to_str().unwrap()];
    Command::new("python3").args(args).stdout(Stdio::piped()).spawn().unwrap()
}

/// Catches `broken!("resize_waits_for_recall")`. While its size changes the kernel writes no page
/// of a file, and the recall of its lease waits for those pages.
#[test]
fn a_file_with_changed_pages_is_cut_beside_a_writer_elsewhere() {
    timed(|| {
        let mut space = Space::up(&[]);
        let (a, b) = (space.mnt().join("f"), space.mount("other").join("f"));
        let stop = space.path("stop");
        let there = open(&b);
        there.set_len(2 << 20).unwrap();
        let mapper = mapper(&a, &stop);
        let (end, mut written) = (Instant::now() + Duration::from_secs(5), 0u64);
        while Instant::now() < end {
            written += 1;
            there.write_all_at(&written.to_le_bytes(), 1 << 20).unwrap();
            std::thread::sleep(Duration::from_millis(written % 5));
        }
        fs::write(&stop, "").unwrap();
        let said = text(&mapper.wait_with_output().unwrap().stdout);
        let numbers: Vec<u64> = said.split_whitespace().map(|word| word.parse().unwrap()).collect();
        let &[longest, rounds] = numbers.as_slice() else { panic!("{said:?}") };
        println!("{rounds} changes of the size, the longest {longest} ms; {written} writes");
        assert!(rounds > 20 && written > 20);
        assert!(u128::from(longest) < RECALL.as_millis() / 3, "{longest} ms");
        for path in [&a, &b] {
            let (file, mut found) = (File::open(path).unwrap(), [0; 8]);
            for page in 0..16 {
                file.read_exact_at(&mut found, page * 4096).unwrap();
                assert_eq!(u64::from_le_bytes(found), rounds, "page {page}");
            }
            file.read_exact_at(&mut found, 1 << 20).unwrap();
            assert_eq!(u64::from_le_bytes(found), written);
        }
        space.down_clean();
    });
}

/// Opens names, making them if they are not there, as a user without rights, while the parent makes
/// them on another mount: files that nobody may open, and links.
const OPENER: &str = "import os,sys
a,b,target=sys.argv[1:4]
go,went=os.pipe(),os.pipe()
child=os.fork()
for end in (go[1],went[0]) if child==0 else (go[0],went[1]): os.close(end)
if child==0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
    own=shut=linked=0
    for i in range(120):
        os.read(go[0],1)
        path='%s/%d'%(a,i)
        try:
            f=os.open(path,os.O_CREAT|os.O_RDONLY|(os.O_TRUNC if i%4==2 else 0),0o600)
            found=os.fstat(f); os.close(f)
            if i%2: linked+=found.st_size==6; own+=found.st_size==0
            elif found.st_uid==0: print('opened without a right:',i,oct(found.st_mode)); os._exit(1)
            else: own+=1
        except PermissionError: shut+=1
        except OSError as e: print(i,e); os._exit(1)
        os.write(went[1],b'.')
    print(own,shut,linked)
    os._exit(0)
for i in range(120):
    path='%s/%d'%(b,i)
    try: os.write(go[1],b'.')
    except BrokenPipeError: break
    try:
        if i%2: os.symlink(target,path)
        else: os.close(os.open(path,os.O_CREAT|os.O_EXCL|os.O_WRONLY,0))
    except FileExistsError: pass
    if os.read(went[0],1)!=b'.': break
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child,0)[1]))";

/// Catches `broken!("found_as_new")`. The kernel asks to make a name that it does not know of, and
/// takes what it gets for new.
#[test]
fn a_name_that_was_made_elsewhere_is_opened_as_what_it_is() {
    let mut space = Space::up(&[]);
    let (a, b) = (space.mount_with("paused", &[("NURI_PAUSE", "create")]), space.mnt());
    fs::create_dir(b.join("d")).unwrap();
    fs::set_permissions(b.join("d"), fs::Permissions::from_mode(0o777)).unwrap();
    fs::write(b.join("target"), "target").unwrap();
    fs::set_permissions(b.join("target"), fs::Permissions::from_mode(0o644)).unwrap();
    for dir in [space.path(""), a.clone(), b.clone()] {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let [from, to] = [&a, &b].map(|mount| mount.join("d").display().to_string());
    println!("{}", run("python3", &["-c", OPENER, &from, &to, "../target"]));
    space.down_clean();
}

/// Catches `broken!("zeros_at_the_end")`. The kernel's page in which the file ended is zeros from
/// there on until the append drops it, and others may be told of the new size before.
#[test]
fn a_reader_of_a_log_sees_no_zeros_where_it_is_just_appended() {
    let mut space = Space::up(&[]);
    let path = space.mount_with("paused", &[("NURI_PAUSE", "written")]).join("log");
    fs::write(&path, [7; 5000]).unwrap();
    let mut log = OpenOptions::new().append(true).open(&path).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let ending = SetAtEnd(&done);
        // Brings the page back that the append took out of the cache.
        scope.spawn(|| {
            let (file, mut page) = (File::open(&path).unwrap(), [0; 4096]);
            while !done.load(Ordering::SeqCst) {
                let end = file.metadata().unwrap().len();
                let _ = file.read_at(&mut page, end / 4096 * 4096).unwrap();
            }
        });
        let reader = scope.spawn(|| {
            let (file, mut seen, mut looks) = (File::open(&path).unwrap(), 0, 0);
            while !done.load(Ordering::SeqCst) {
                let end = file.metadata().unwrap().len();
                assert!(end >= seen, "{end} after {seen}");
                let mut found = vec![0; (end - seen) as usize];
                file.read_exact_at(&mut found, seen).unwrap();
                let zero = found.iter().position(|byte| *byte == 0);
                assert_eq!(zero, None, "of {} bytes from {seen} on", found.len());
                (seen, looks) = (end, looks + u32::from(end > seen));
            }
            looks
        });
        let end = Instant::now() + Duration::from_secs(3);
        while Instant::now() < end && !reader.is_finished() {
            log.write_all(&[7; 700]).unwrap();
        }
        drop(ending);
        assert!(reader.join().unwrap() > 100);
    });
    drop(log);
    space.down_clean();
}

/// Appends through pages, as a program does that asks for it after it opened the file.
const APPENDER: &str = "import fcntl,os,sys
files=[os.open(path,os.O_RDWR|os.O_CREAT) for path in sys.argv[1:]]
for f in files: fcntl.fcntl(f,fcntl.F_SETFL,os.O_APPEND)
for i in range(60):
    for f in files: os.pread(f,1<<20,0)
    for n,f in enumerate(files): os.write(f,bytes([2*i+n])*(4096 if i%3 else 1000))";

/// What is appended through pages goes where the file ended; the kernel may have believed that it
/// ends elsewhere.
#[test]
fn pages_of_appends_that_began_as_writes_do_not_stay() {
    let mut space = Space::up(&[]);
    let paths = [space.mnt().join("f"), space.mount("other").join("f")];
    run("python3", &["-c", APPENDER, paths[0].to_str().unwrap(), paths[1].to_str().unwrap()]);
    let piece = |i: u8| vec![i; if (i / 2).is_multiple_of(3) { 1000 } else { 4096 }];
    let wanted: Vec<u8> = (0..120).flat_map(piece).collect();
    for path in &paths {
        // Pages are dropped after the write was answered.
        wait("the file is as it was written", Duration::from_secs(5), || {
            fs::read(path).unwrap() == wanted
        });
    }
    space.down_clean();
}

/// Catches `broken!("punch_once")`.
#[test]
fn a_hole_is_punched_though_a_target_starts_anew() {
    let space = Space::up(&["--nodes", "2", "--shape", "stripe"]);
    let file = open(&space.mnt().join("f"));
    let len = 256 << 20;
    let block = vec![7; 4 << 20];
    for round in 0..3u64 {
        (0..len / (4 << 20)).for_each(|i| file.write_all_at(&block, i * (4 << 20)).unwrap());
        file.sync_all().unwrap();
        std::thread::scope(|scope| {
            let punched = scope.spawn(|| {
                // Block by block, but for the last: so that a hole is under way when it happens.
                fallocate(&file, PUNCH, 0, len - 4096)
            });
            std::thread::sleep(Duration::from_millis(1 + round));
            space.kill("node1");
            punched.join().unwrap().unwrap();
        });
        let mut found = vec![1; 4 << 20];
        for i in 0..len / (4 << 20) {
            file.read_exact_at(&mut found, i * (4 << 20)).unwrap();
            let left = found.iter().filter(|byte| **byte != 0).count();
            let last = i == len / (4 << 20) - 1;
            assert_eq!(left, if last { 4096 } else { 0 }, "piece {i}, round {round}");
        }
    }
    drop(file);
    space.down_clean();
}

/// Catches `broken!("cut_is_forgotten")`. The server cut the file, a target hangs for longer than
/// any call waits; then the file grows.
#[test]
fn what_was_cut_off_stays_gone_where_a_target_hung() {
    let space = Space::up(&["--nodes", "2", "--shape", "stripe"]);
    let file = open(&space.mnt().join("f"));
    file.write_all_at(&vec![7; 8 << 20], 0).unwrap();
    file.sync_all().unwrap();
    let frozen = freeze(&space, "node1");
    file.set_len(100_000).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 100_000);
    drop(frozen);
    file.set_len(8 << 20).unwrap();
    let mut found = vec![1; 8 << 20];
    file.read_exact_at(&mut found, 0).unwrap();
    let wrong =
        found.iter().enumerate().position(|(i, byte)| *byte != if i < 100_000 { 7 } else { 0 });
    assert_eq!(wrong, None);
    drop(file);
    space.down_clean();
}

/// One more mount, which `Space::end_children` kills.
fn mount_to_be_killed(space: &mut Space) -> PathBuf {
    let point = space.make_dir("killed");
    let mut mount = Command::new(NURI);
    mount.args(["fs", "mount", "--foreground", &space.dir()]).arg(&point);
    let log = fs::File::create(format!("{}/log/killed.log", space.dir())).unwrap();
    mount.stdout(Stdio::null()).stderr(log);
    space.own_child(mount.spawn().unwrap());
    wait("it is mounted", Duration::from_secs(20), || is_mounted(&point));
    space.own_mount(point.clone());
    point
}

/// Cuts a file that targets have, and writes behind the new end.
fn cut_and_write_behind(mount: &Path, name: &str) {
    let file = open(&mount.join(name));
    file.write_all_at(&vec![7; 8 << 20], 0).unwrap();
    file.sync_all().unwrap();
    file.set_len(100_000).unwrap();
    file.write_all_at(&vec![8; 1 << 20], 3 << 20).unwrap();
    file.sync_all().unwrap();
}

/// Catches `broken!("cut_stays_untold")`. Whoever writes the file next finishes no cut that is
/// finished: what was written since would go.
#[test]
fn what_was_written_behind_a_cut_stays_when_another_mount_goes_on() {
    for shape in ["stripe", "parity:2+1"] {
        let mut space = Space::up(&["--nodes", "3", "--shape", shape]);
        let (a, b) = (space.mnt(), mount_to_be_killed(&mut space));
        let mut wanted = vec![0; 8 << 20];
        wanted[..100_000].fill(7);
        wanted[3 << 20..4 << 20].fill(8);
        wanted[7 << 20..].fill(9);
        cut_and_write_behind(&a, "alive");
        cut_and_write_behind(&b, "dead");
        let there = open(&b.join("alive"));
        there.write_all_at(&vec![9; 1 << 20], 7 << 20).unwrap();
        assert!(fs::read(a.join("alive")).unwrap() == wanted, "{shape}");
        drop(there);
        space.end_children();
        let here = open(&a.join("dead"));
        here.write_all_at(&vec![9; 1 << 20], 7 << 20).unwrap();
        assert!(fs::read(a.join("dead")).unwrap() == wanted, "{shape}");
        drop(here);
        space.down();
    }
}

/// Catches `broken!("cut_is_not_recorded")`. The mount dies after the server cut the file and
/// before all targets did.
#[test]
fn what_was_cut_off_stays_gone_where_the_mount_dies() {
    let mut space = Space::up(&["--nodes", "2", "--shape", "stripe"]);
    let file = open(&mount_to_be_killed(&mut space).join("f"));
    file.write_all_at(&vec![7; 8 << 20], 0).unwrap();
    file.sync_all().unwrap();
    let frozen = freeze(&space, "node1");
    std::thread::scope(|scope| {
        let cut = scope.spawn(|| file.set_len(100_000));
        std::thread::sleep(Duration::from_secs(1));
        let is_early = cut.is_finished();
        space.end_children();
        let outcome = cut.join().unwrap();
        assert!(!is_early && outcome.is_err(), "a target hangs: {outcome:?}\n{}", space.logs());
    });
    drop((frozen, file));
    let file = open(&space.mnt().join("f"));
    assert_eq!(file.metadata().unwrap().len(), 100_000);
    file.set_len(8 << 20).unwrap();
    let mut found = vec![1; 8 << 20];
    file.read_exact_at(&mut found, 0).unwrap();
    assert!(found[..100_000].iter().all(|byte| *byte == 7));
    assert_eq!(found[100_000..].iter().position(|byte| *byte != 0), None);
    drop(file);
    space.down();
}

/// Attributes that one mount changes again and again, while another one looks.
#[test]
fn attributes_of_a_file_that_others_look_at_are_theirs_too() {
    let mut space = Space::up(&[]);
    let (a, b) = (space.mnt().join("f"), space.mount("other").join("f"));
    fs::write(&a, "x").unwrap();
    // The times that follow are later ones.
    open(&a).set_modified(std::time::UNIX_EPOCH).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let ending = SetAtEnd(&done);
        scope.spawn(|| {
            let mut last = 0;
            while !done.load(Ordering::SeqCst) {
                let seen = fs::metadata(&b).unwrap();
                assert!(seen.mtime() >= last, "{} after {last}", seen.mtime());
                last = seen.mtime();
            }
        });
        for round in 1..=400u32 {
            fs::set_permissions(&a, fs::Permissions::from_mode(0o600 | (round % 8))).unwrap();
            let time = std::time::UNIX_EPOCH + Duration::from_secs(u64::from(round));
            File::options().write(true).open(&a).unwrap().set_modified(time).unwrap();
            let seen = fs::metadata(&b).unwrap();
            assert_eq!(seen.mode() & 0o777, 0o600 | (round % 8), "round {round}");
            assert_eq!(seen.mtime(), i64::from(round));
        }
        drop(ending);
    });
    space.down_clean();
}
