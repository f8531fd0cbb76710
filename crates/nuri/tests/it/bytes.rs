//! Files hold what was written last, whatever calls made them so.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::path::PathBuf;
use std::sync::Barrier;
use std::time::Duration;

use nuri_proto::clock::REQUEST;
use rustix::fs::{FallocateFlags, SeekFrom, fallocate};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Space, freeze, nuri, refused, run, stop, text, wait};

const PUNCH: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);

fn open(path: &Path) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

fn assert_zeros(file: &File, len: usize, what: &str) {
    let mut found = vec![1; len];
    file.read_exact_at(&mut found, 0).unwrap();
    let wrong = found.iter().position(|byte| *byte != 0);
    assert_eq!(wrong, None, "{what}");
}

/// Catches `broken!("sparse_has_nothing")`. Bytes reach the targets below a size that was set
/// before, so nobody was told of them.
#[test]
fn a_file_that_was_cut_to_nothing_shows_no_old_bytes() {
    let space = Space::up(&[]);
    for size in [5000, 8192, 100_000] {
        for begin in ["small", "sparse", "synced", "closed"] {
            let path = space.mnt().join(format!("{begin}{size}"));
            let file = open(&path);
            if begin == "small" {
                file.write_all_at(&[7; 5000], 0).unwrap();
            }
            file.set_len(2 << 20).unwrap();
            if begin != "small" {
                file.write_all_at(&[7; 100_000], 0).unwrap();
            }
            match begin {
                "synced" => file.sync_all().unwrap(),
                "closed" => drop(open(&path)),
                _ => fallocate(&file, PUNCH, 1 << 20, 4096).unwrap(),
            }
            file.set_len(0).unwrap();
            file.set_len(size).unwrap();
            assert_zeros(&file, size as usize, begin);
            file.set_len(2 << 20).unwrap();
            assert_zeros(&file, 2 << 20, begin);
        }
    }
    space.down_clean();
}

/// An empty file lies with its inode or on the targets: both sides must mean the same.
#[test]
fn a_file_that_was_empty_again_can_be_synced() {
    let mut space = Space::up(&[]);
    let (a, b) = (space.mnt(), space.mount("other"));
    for (i, len) in [5000, 100_000].into_iter().enumerate() {
        let name = format!("f{i}");
        let file = open(&b.join(&name));
        file.set_len(3272).unwrap();
        fallocate(&file, FallocateFlags::ZERO_RANGE, 9845, 512).unwrap();
        file.set_len(0).unwrap();
        fallocate(&file, PUNCH, 18092, 512).unwrap();
        assert_eq!(fs::metadata(a.join(&name)).unwrap().len(), 0);
        file.write_all_at(&vec![7; len], 0).unwrap();
        file.sync_all().unwrap();
        assert!(fs::read(a.join(&name)).unwrap() == vec![7; len]);
    }
    space.down_clean();
}

/// A small file grows beyond what lies with its inode; who reads it elsewhere moves nothing.
#[test]
fn a_small_file_that_grew_is_read_elsewhere() {
    let mut space = Space::up(&[]);
    let (a, b) = (space.mnt(), space.mount("other"));
    for size in [8193, 100_000, 5 << 20] {
        let name = format!("f{size}");
        fs::write(a.join(&name), "0123456789").unwrap();
        let file = open(&a.join(&name));
        file.set_len(5).unwrap();
        file.set_len(size).unwrap();
        let reader = File::open(b.join(&name)).unwrap();
        let mut found = vec![1; size as usize];
        reader.read_exact_at(&mut found, 0).unwrap();
        reader.sync_all().unwrap();
        assert!(found[..5] == *b"01234" && found[5..].iter().all(|byte| *byte == 0));
        assert_eq!(fs::copy(b.join(&name), space.path("copy")).unwrap(), size);
    }
    let log = fs::read_to_string(space.path("space/log/mount.log")).unwrap_or_default();
    assert!(!log.contains("lost"), "{log}");
    space.down_clean();
}

/// The file was closed without an error, so nobody else can be told.
#[test]
fn an_unmount_that_lost_bytes_says_so() {
    an_unmount_after_a_loss(false);
}

/// A program that only reads the file takes no error of those that wrote it.
#[test]
fn an_unmount_that_lost_bytes_says_so_beside_a_reader() {
    an_unmount_after_a_loss(true);
}

fn an_unmount_after_a_loss(is_read_meanwhile: bool) {
    let mut space = Space::up(&["--shape", "stripe"]);
    let (a, b) = (space.mnt(), space.mount("other"));
    wait("the mount is listed", Duration::from_secs(5), || {
        space.status()["mounts"].as_array().unwrap().len() == 2
    });
    let status = space.status();
    let mounts = status["mounts"].as_array().unwrap().clone();
    let mount = mounts.iter().find(|m| m["mountpoint"] == b.display().to_string()).unwrap();
    let daemon = Pid::from_raw(mount["pid"].as_i64().unwrap() as i32).unwrap();
    fs::write(a.join("f"), "old").unwrap();
    fs::write(b.join("f"), "new").unwrap();
    let reader = is_read_meanwhile.then(|| fs::File::open(b.join("f")).unwrap());
    stop(daemon);
    // Once the lease of the frozen mount ran out.
    assert!(fs::read(a.join("f")).is_ok());
    kill_process(daemon, Signal::CONT).unwrap();
    wait("a new session", Duration::from_secs(10), || fs::read(b.join("f")).is_ok());
    drop(reader);
    let point = b.display().to_string();
    refused(&["fs", "umount", &point], "lost");
    assert!(fs::read(b.join("f")).is_ok(), "it stays mounted");
    assert!(nuri(&["fs", "umount", &point]).status.success(), "it was said");
    space.down_clean();
}

fn end_of(file: &File) -> u64 {
    rustix::fs::seek(file, SeekFrom::End(0)).unwrap()
}

/// Two mounts, one of which has the file open twice, extend it in turns and look at once.
fn extend_in_turns_and_look(mounts: &[PathBuf; 2], rounds: usize) {
    const RECORD: usize = 256;
    for round in 0..rounds {
        let name = format!("f{round}");
        fs::write(mounts[0].join(&name), vec![0; 20_000]).unwrap();
        let files = [0, 1, 0].map(|who| open(&mounts[who].join(&name)));
        let mut size = 20_000;
        for turn in 0..8 - round % 4 {
            files[turn % 3].write_all_at(&[7; RECORD], size).unwrap();
            size += RECORD as u64;
        }
        let barrier = Barrier::new(3);
        let look = |file: &File| {
            barrier.wait();
            let end = end_of(file);
            let mut tail = vec![0; 2 * RECORD];
            (end, file.read_at(&mut tail, size - RECORD as u64).unwrap())
        };
        let seen = std::thread::scope(|scope| {
            let looks = files.each_ref().map(|file| scope.spawn(|| look(file)));
            looks.map(|look| look.join().unwrap())
        });
        assert_eq!(seen, [(size, RECORD); 3], "round {round}");
    }
}

/// Catches `broken!("old_size_stays")`. Each look takes the other's parts back; the kernel
/// drops the answer to what it asked before.
#[test]
fn those_that_extend_a_file_in_turns_and_look_at_once_see_its_end() {
    let mut space = Space::up(&[]);
    let mounts = [space.mnt(), space.mount("other")];
    extend_in_turns_and_look(&mounts, 30);
    space.down_clean();
}

/// The same where a mount stops for long before it tells the kernel to forget, before it looks at a
/// request, and before it answers.
#[test]
fn those_that_extend_a_file_see_its_end_through_mounts_that_stop() {
    let mut space = Space::up(&[]);
    let mounts = ["slow", "other"]
        .map(|name| space.mount_with(name, &[("NURI_PAUSE", "notify,look,answer")]));
    extend_in_turns_and_look(&mounts, 60);
    space.down_clean();
}

/// Catches `broken!("last_end_counts")`. The kernel of the reader believes in the old size and
/// sends several reads at once; none finds a byte.
#[test]
fn a_file_that_was_cut_elsewhere_ends_there() {
    let mut space = Space::up(&["--shape", "stripe"]);
    let (a, b) = (space.mnt(), space.mount("other"));
    for round in 0..40 {
        let name = format!("f{round}");
        let (file, other) = (open(&a.join(&name)), open(&b.join(&name)));
        file.set_len(3 << 20).unwrap();
        other.write_all_at(&[7; 30_000], 2 << 20).unwrap();
        file.set_len(16384).unwrap();
        let mut found = vec![0; (1 << 20) + 1];
        assert_eq!(other.read_at(&mut found, 390_236).unwrap(), 0, "round {round}");
        assert_eq!(end_of(&other), 16384);
    }
    space.down_clean();
}

/// Tools that look for holes take a file without blocks for one.
#[test]
fn a_file_with_bytes_has_blocks() {
    let mut space = Space::up(&[]);
    let (a, b) = (space.mnt(), space.mount("other"));
    for len in [1, 5000, 100_000, 3 << 20] {
        let name = format!("f{len}");
        let file = open(&a.join(&name));
        file.write_all_at(&vec![7; len], 0).unwrap();
        let blocks = |path: &Path| fs::metadata(path).unwrap().blocks();
        let least = len.div_ceil(512) as u64;
        assert!(blocks(&a.join(&name)) >= least, "{len} bytes in the mount's memory");
        file.sync_all().unwrap();
        let whole = least.next_multiple_of(8);
        for path in [a.join(&name), b.join(&name)] {
            let found = blocks(&path);
            assert!((least..=whole).contains(&found), "{len} bytes, synced: {found}");
        }
    }
    let cut = open(&a.join("cut"));
    cut.write_all_at(&[7; 20_000], 0).unwrap();
    cut.write_all_at(&[7; 60_000], 12 << 20).unwrap();
    cut.set_len(8192).unwrap();
    assert!(cut.metadata().unwrap().blocks() >= 16, "what is left of one that was cut");
    drop(cut);
    // A small one, which lies with the metadata.
    let small = open(&a.join("small"));
    small.write_all_at(&[7; 5000], 0).unwrap();
    small.sync_all().unwrap();
    small.set_len(10).unwrap();
    let blocks = |path: &Path| fs::metadata(path).unwrap().blocks();
    assert_eq!([blocks(&a.join("small")), blocks(&b.join("small"))], [1, 1]);
    small.write_all_at(&[7; 5], 10).unwrap();
    small.sync_all().unwrap();
    assert_eq!([blocks(&a.join("small")), blocks(&b.join("small"))], [1, 1]);
    drop(small);
    space.down_clean();
}

/// Writes a file by `io_submit` with `O_DIRECT`, while two threads read it through pages; what is
/// read after a write has ended must be new. Here that needed unsafe code.
const SUBMITTER: &str = "import ctypes,mmap,os,platform,struct,sys,threading
libc=ctypes.CDLL(None,use_errno=True)
setup,events,submit={'x86_64':(206,208,209)}.get(platform.machine(),(0,4,2))
def call(number,*args):
    if libc.syscall(ctypes.c_long(number),*args)<0: sys.exit('call %d failed'%number)
path,length=sys.argv[1],65536
direct,pages=os.open(path,os.O_RDWR|os.O_DIRECT),os.open(path,os.O_RDONLY)
context=ctypes.c_ulong(0); call(setup,1,ctypes.byref(context))
data=mmap.mmap(-1,length); address=ctypes.addressof(ctypes.c_char.from_buffer(data))
ends=[]
def read():
    while not ends: os.pread(pages,length,0)
readers=[threading.Thread(target=read) for _ in range(2)]
for r in readers: r.start()
stale=0
for i in range(2000):
    data[:]=bytes([1+i%255])*length
    words=(0,0,0,1,0,direct,address,length,0,0,0,0)
    block=ctypes.create_string_buffer(struct.pack('QIIHhIQQqQII',*words))
    blocks,event=(ctypes.c_void_p*1)(ctypes.addressof(block)),ctypes.create_string_buffer(32)
    call(submit,context,ctypes.c_long(1),blocks)
    call(events,context,ctypes.c_long(1),ctypes.c_long(1),event,None)
    stale+=os.pread(pages,length,0)!=data[:]
ends.append(1)
for r in readers: r.join()
sys.exit('stale: %d'%stale if stale else 0)";

/// Catches `broken!("direct_beside_pages")`. Linux keeps the pages that were read between the
/// submission and the end of such a write.
#[test]
fn pages_that_were_read_during_a_submitted_write_are_not_kept() {
    let space = Space::up(&[]);
    let path = space.mnt().join("f");
    fs::write(&path, vec![0; 65536]).unwrap();
    run("python3", &["-c", SUBMITTER, &path.display().to_string()]);
    space.down_clean();
}

/// The one that wrote last closes a file without a name; another mount has it open still.
#[test]
fn what_was_written_to_a_removed_file_is_there_for_who_has_it_open() {
    let mut space = Space::up(&[]);
    let (a, b) = (space.mnt(), space.mount("other"));
    for len in [100, 5000, 100_000] {
        let name = format!("f{len}");
        let (file, other) = (open(&a.join(&name)), open(&b.join(&name)));
        fs::remove_file(a.join(&name)).unwrap();
        file.write_all_at(&vec![7; len], 0).unwrap();
        drop(file);
        let mut found = vec![0; len + 1];
        assert_eq!(other.read_at(&mut found, 0).unwrap(), len);
        assert!(found[..len] == vec![7; len]);
    }
    space.down_clean();
}

/// It hangs for longer than any call waits. Files with nothing on it are kept, and of those that
/// were removed nothing is missed.
#[test]
fn a_target_that_hangs_costs_no_file_of_the_others() {
    let space = Space::up(&["--nodes", "2", "--targets", "2", "--shape", "stripe"]);
    let dir = space.mnt().join("d");
    fs::create_dir(&dir).unwrap();
    let set = ["fs", "layout", "set", &dir.display().to_string(), "--width", "1"];
    assert!(nuri(&set).status.success());
    let files: Vec<_> = (0..12).map(|i| dir.join(format!("f{i}"))).collect();
    files.iter().for_each(|file| fs::write(file, vec![1; 100_000]).unwrap());
    let (mut kept, mut removed) = (Vec::new(), Vec::new());
    for file in &files {
        let get = ["fs", "layout", "get", &file.display().to_string()];
        let layout = text(&nuri(&get).stdout);
        match layout.trim().ends_with("groups=1") {
            true => kept.push(file),
            false => removed.push(file),
        }
    }
    assert!(kept.len() > 3 && removed.len() > 3, "{kept:?} {removed:?}");
    files.iter().for_each(|file| fs::write(file, vec![2; 150_000]).unwrap());
    let node1 = freeze(&space, "node1");
    removed.iter().for_each(|file| fs::remove_file(file).unwrap());
    std::thread::sleep(REQUEST + Duration::from_secs(4));
    drop(node1);
    space.down();
    space.again();
    for file in kept {
        assert!(fs::read(file).unwrap() == vec![2; 150_000], "{}", file.display());
    }
    space.down_clean();
}
