//! Programs that move large reads and writes past the kernel, by `libnuri_preload`: the same bytes,
//! the same rights, the same coherence.

use std::fs::{self, File, OpenOptions, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rustix::io::Errno;

use crate::support::{Space, is_mounted, nuri, text, wait};
use crate::transport::{Foreground, TRANSPORTS};

const MIB: usize = 1 << 20;
/// A mount's process is gone for good.
const SECONDS: &str = "60";

/// The library, and a space to use it on.
struct Preload {
    space: Space,
    library: PathBuf,
}

/// What a program moved past the kernel.
#[derive(PartialEq, Eq, Debug, Clone, Copy)]
struct Moved {
    read: usize,
    written: usize,
}

impl Preload {
    fn new() -> Preload {
        let space = Space::up(&["--shape", "stripe"]);
        let library = space.path("libnuri_preload.so");
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/preload-library");
        assert!(Command::new(script).arg(&library).status().unwrap().success());
        Preload { space, library }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.space.mnt().join(name)
    }

    /// A program that will use the library.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("timeout");
        command.args(["-k", "5", SECONDS, "env"]);
        command.arg(format!("LD_PRELOAD={}", self.library.display())).arg("NURI_PRELOAD=verbose");
        command.args(words).stdin(Stdio::null());
        command
    }

    /// Runs a program that must succeed; says what it moved in all its processes.
    fn run(&self, words: &[&str]) -> Moved {
        let output = self.command(words).output().unwrap();
        let said = text(&output.stderr);
        assert!(output.status.success(), "{words:?}: {said}{}", text(&output.stdout));
        moved(&output)
    }

    fn python(&self, script: &str, file: &Path) -> Moved {
        self.run(&["python3", "-c", script, file.to_str().unwrap()])
    }
}

fn moved(output: &Output) -> Moved {
    let said = text(&output.stderr);
    let lines = said.lines().filter_map(|line| line.strip_prefix("nuri-preload: "));
    let number = |line: &str, at: usize| -> usize {
        line.split(' ').nth(at).and_then(|word| word.parse().ok()).unwrap()
    };
    let add = |sum: Moved, line| Moved {
        read: sum.read + number(line, 0),
        written: sum.written + number(line, 3),
    };
    lines.fold(Moved { read: 0, written: 0 }, add)
}

/// Bytes of which no two pages are alike.
fn bytes(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i >> 12) as u8 ^ (i as u8).wrapping_mul(31) ^ seed).collect()
}

/// What `nuri status` tells of a mount's programs is what they say themselves.
#[test]
fn what_programs_move_is_in_the_status() {
    let preload = Preload::new();
    let file = preload.file("a");
    let script = "import sys\n\
                  f=open(sys.argv[1],'w+b',buffering=0); f.write(bytes(4<<20))\n\
                  f.seek(0); f.truncate(3<<20); print(len(f.read(3<<20)))";
    let moved = preload.python(script, &file);
    assert_eq!((moved.written, moved.read > 0), (4 * MIB, true), "{moved:?}");
    let programs = || preload.space.status()["mounts"][0]["programs"].clone();
    wait("the mount reports", Duration::from_secs(20), || {
        let told = programs();
        told["bytes"] == moved.written + moved.read && told["connections"] == 0
    });
    assert_eq!(programs()["copies_per_byte"], 1.0, "whole blocks and reads are copied once");
    let plain = nuri(&["status", "--dir", &preload.space.dir()]);
    assert!(text(&plain.stdout).contains(" to 0 program connections  pipe "), "{plain:?}");
}

fn forget_pages() {
    fs::write("/proc/sys/vm/drop_caches", "1").unwrap();
}

/// Programs that people use, on bytes that are compared.
#[test]
fn programs_do_what_they_do_without() {
    let preload = Preload::new();
    let (outside, len) = (preload.space.path("outside"), 9 * MIB + 12345);
    fs::write(&outside, bytes(len, 1)).unwrap();
    let (out, a, b) = (outside.to_str().unwrap(), preload.file("a"), preload.file("b"));
    let (a, b) = (a.to_str().unwrap(), b.to_str().unwrap());
    let same = |path: &str| assert!(fs::read(path).unwrap() == bytes(len, 1), "{path}");

    let dd = preload.run(&["dd", &format!("if={out}"), &format!("of={a}"), "bs=1M"]);
    assert_eq!(dd, Moved { read: 0, written: 9 * MIB }, "the rest is small");
    forget_pages();
    let back = preload.space.str("back");
    let dd = preload.run(&["dd", &format!("if={a}"), &format!("of={back}"), "bs=1M"]);
    assert_eq!(dd.read, len);
    same(&back);
    // Now the kernel has them, and is faster.
    same(a);
    let dd = preload.run(&["dd", &format!("if={a}"), "of=/dev/null", "bs=1M"]);
    assert_eq!(dd.read, 0);

    let cp = preload.run(&["cp", "--sparse=never", "--reflink=never", out, b]);
    assert!(cp.written > 8 * MIB || cp.written == 0, "{cp:?}");
    same(b);
    let tar = preload.file("t.tar");
    let tar = tar.to_str().unwrap();
    let dir = preload.space.mnt();
    let dir = dir.to_str().unwrap();
    let packed = preload.run(&["tar", "-b", "2048", "-C", dir, "-cf", tar, "a", "b"]);
    assert!(packed.written > 17 * MIB, "{packed:?}");
    forget_pages();
    fs::create_dir(preload.file("x")).unwrap();
    let x = preload.file("x");
    let unpacked = preload.run(&["tar", "-b", "2048", "-C", x.to_str().unwrap(), "-xf", tar]);
    assert!(unpacked.read > 17 * MIB && unpacked.written > 17 * MIB, "{unpacked:?}");
    same(x.join("a").to_str().unwrap());
    same(x.join("b").to_str().unwrap());

    let script = "import os,sys,hashlib\n\
                  f=open(sys.argv[1],'r+b',buffering=0); d=f.read(3<<20); assert len(d)==3<<20\n\
                  assert f.tell()==3<<20; f.seek(-(1<<20),2); e=f.read(2<<20)\n\
                  assert len(e)==1<<20 and f.read(1<<20)==b''\n\
                  f.seek(5<<20); f.write(d); assert f.tell()==8<<20\n\
                  assert os.pread(f.fileno(),3<<20,5<<20)==d\n";
    forget_pages();
    let python = preload.python(script, Path::new(a));
    assert_eq!(python, Moved { read: 7 * MIB, written: 3 * MIB });
    let mut wanted = bytes(len, 1);
    wanted.copy_within(0..3 * MIB, 5 * MIB);
    assert!(fs::read(a).unwrap() == wanted);

    let job = ["--name=f", "--rw=randwrite", "--bs=1M", "--size=16M", "--ioengine=psync"];
    let more = [
        "--verify_state_save=0",
        "--verify=crc32c",
        "--do_verify=1",
        "--verify_fatal=1",
        "--thread",
    ];
    let name = format!("--directory={dir}");
    let fio = preload.run(&[&["fio"], &job[..], &more[..], &[&name]].concat());
    assert!(fio.written == 16 * MIB, "{fio:?}");
    preload.space.down_clean();
}

/// Ranks of an MPI program write one file by MPI-IO, each its own part, and read others' parts.
#[test]
fn ranks_share_a_file_by_mpi_io() {
    let preload = Preload::new();
    let program = preload.space.str("mpi_io");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/mpi_io.c");
    let args = ["-std=c11", "-Wall", "-O1", source, "-o", &program];
    assert!(Command::new("mpicc.mpich").args(args).status().unwrap().success());
    let file = preload.file("shared");
    let launch = ["mpiexec.mpich", "-n", "2", &program, file.to_str().unwrap()];
    let ranks = preload.run(&launch);
    assert!(ranks.written == 16 * MIB, "{ranks:?}");
    assert_eq!(fs::metadata(&file).unwrap().len() as usize, 16 * MIB);
    preload.space.down_clean();
}

/// Whoever writes by whatever way, everybody reads it at once by whatever way.
#[test]
fn both_ways_and_both_mounts_see_each_others_bytes() {
    let mut preload = Preload::new();
    let there = preload.space.mount("there");
    let (file, other) = (preload.file("f"), there.join("f"));
    fs::write(&file, bytes(4 * MIB, 1)).unwrap();
    // The kernel has the pages of both mounts, and one is mapped.
    assert!(fs::read(&file).unwrap() == bytes(4 * MIB, 1));
    assert!(fs::read(&other).unwrap() == bytes(4 * MIB, 1));
    let (old, new) = (bytes(4 * MIB, 1), bytes(4 * MIB, 2));
    fs::write(preload.space.path("new"), &new).unwrap();
    let script = format!(
        "import os,sys,mmap\n\
         new=open('{}','rb').read()\n\
         f=os.open(sys.argv[1],os.O_RDWR); k=os.open(sys.argv[1],os.O_RDWR)\n\
         m=mmap.mmap(k,4<<20); seen=m[:4096]; late=m[1<<20:(1<<20)+4096]\n\
         assert os.pwrite(f,new[:2<<20],0)==2<<20\n\
         assert m[:2<<20]==new[:2<<20], 'mapped'\n\
         assert os.pread(k,4096,8192)==new[8192:12288], 'small'\n\
         m[3<<20:(3<<20)+5]=b'later'\n\
         os.posix_fadvise(f,0,0,os.POSIX_FADV_DONTNEED)\n\
         assert os.pread(f,1<<20,3<<20)[:5]==b'later', 'changed by mapping'\n\
         assert os.fstat(f).st_size==4<<20\n\
         assert os.pwrite(f,new[:1<<20],4<<20)==1<<20 and os.fstat(k).st_size==5<<20\n\
         assert os.pread(k,10,(5<<20)-5)==new[(1<<20)-5:1<<20], 'grown'\n",
        preload.space.str("new")
    );
    let moved = preload.python(&script, &file);
    assert_eq!(moved.written, 3 * MIB);
    let mut wanted = [&new[..2 * MIB], &old[2 * MIB..], &new[..MIB]].concat();
    wanted[3 * MIB..3 * MIB + 5].copy_from_slice(b"later");
    assert!(fs::read(&other).unwrap() == wanted);
    // And what another mount writes is read here, past the kernel.
    let writer = OpenOptions::new().write(true).open(&other).unwrap();
    writer.write_all_at(b"from there", MIB as u64).unwrap();
    let script = "import os,sys; f=os.open(sys.argv[1],os.O_RDONLY)\n\
                  assert os.pread(f,1<<20,1<<20)[:10]==b'from there'";
    assert_eq!(preload.python(script, &file).read, MIB);
    preload.space.down_clean();
}

/// Descriptors stay what they are: shared positions, children, closed and reused numbers.
#[test]
fn descriptors_stay_the_kernels() {
    let preload = Preload::new();
    let script = "import os,sys\n\
        big=lambda c: bytes([c])*(1<<20)\n\
        f=os.open(sys.argv[1],os.O_RDWR|os.O_CREAT); g=os.dup(f)\n\
        os.write(f,big(1)); os.write(g,big(2)); assert os.lseek(f,0,os.SEEK_CUR)==2<<20\n\
        if os.fork()==0:\n\
        \x20 os.write(f,big(3)); os.write(f,b'tail'); os._exit(0)\n\
        os.wait(); assert os.lseek(g,0,os.SEEK_CUR)==(3<<20)+4\n\
        os.closerange(3,512); os.closerange(513,4096)\n\
        f=os.open(sys.argv[1],os.O_RDWR); p=[os.pipe() for _ in range(300)]\n\
        assert os.pwrite(f,big(4),3<<20)==1<<20\n\
        h=os.open(sys.argv[1]+'.other',os.O_RDWR|os.O_CREAT); os.dup2(h,f)\n\
        assert os.pwrite(f,big(5),0)==1<<20 and os.pread(h,1<<20,0)==big(5)\n\
        e=os.open(sys.argv[1],os.O_WRONLY|os.O_APPEND); os.write(e,big(6))\n\
        r=os.open(sys.argv[1],os.O_RDONLY)\n\
        try: os.pwrite(r,big(7),0); assert False\n\
        except OSError as x: assert x.errno==9\n\
        try: os.pread(e,1<<20,0); assert False\n\
        except OSError as x: assert x.errno==9\n";
    let moved = preload.python(script, &preload.file("f"));
    // The child tells nothing, and one goes by the kernel: its ticket was of the closed file.
    assert!(moved.written >= 3 * MIB, "{moved:?}");
    let found = fs::read(preload.file("f")).unwrap();
    let mark = |at: usize| found[at];
    assert_eq!(found.len(), 5 * MIB);
    assert_eq!([0, MIB, 2 * MIB, 3 * MIB, 4 * MIB].map(mark), [1, 2, 3, 4, 6]);
    assert_eq!(fs::read(preload.file("f.other")).unwrap(), vec![5; MIB]);
    preload.space.down_clean();
}

/// Rights are those of the open file, and a user's write takes privileges away.
#[test]
fn rights_are_those_of_the_open_file() {
    let preload = Preload::new();
    let file = preload.file("f");
    fs::write(&file, bytes(MIB, 1)).unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o6777)).unwrap();
    fs::set_permissions(preload.space.path("."), Permissions::from_mode(0o755)).unwrap();
    let script = "import os,sys; os.setgid(65534); os.setuid(65534)\n\
                  f=os.open(sys.argv[1],os.O_RDWR)\n\
                  assert os.pread(f,1<<20,0)[:4]==os.pread(f,4,0)\n\
                  assert os.pwrite(f,b'u'*(1<<20),0)==1<<20\n";
    forget_pages();
    let moved = preload.python(script, &file);
    assert_eq!(moved.written, MIB);
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o7777, 0o777);
    assert_eq!(fs::read(&file).unwrap(), vec![b'u'; MIB]);
    preload.space.down_clean();
}

/// What a program says to the mount without the library: nothing that the kernel would not allow.
#[test]
fn a_ticket_gives_no_more_than_its_descriptor() {
    let preload = Preload::new();
    let file = preload.file("f");
    fs::write(&file, bytes(MIB, 1)).unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/bypass.py");
    let output = Command::new("timeout")
        .args([SECONDS, "python3", script, file.to_str().unwrap()])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    assert!(fs::read(&file).unwrap() == bytes(MIB, 1));
    preload.space.down_clean();
}

/// A mount's process that dies, and one that ends, on both transports: errors as the kernel's, no
/// signal, no hang, and programs go on with the next mount.
#[test]
fn a_mount_that_is_gone_is_an_error() {
    let mut preload = Preload::new();
    for transport in TRANSPORTS {
        let mount = Foreground::new(&mut preload.space, &format!("m-{transport}"), transport);
        let file = mount.point.join("f");
        let script = "import os,sys,time\n\
            f=os.open(sys.argv[1],os.O_RDWR|os.O_CREAT); os.pwrite(f,b'x'*(4<<20),0)\n\
            open(sys.argv[2],'w').close()\n\
            while True:\n\
            \x20 try: os.pwrite(f,b'y'*(4<<20),0); time.sleep(0.01)\n\
            \x20 except OSError as e: print(e.errno); break\n";
        let flag = preload.space.str(&format!("began-{transport}"));
        let words = ["python3", "-c", script, file.to_str().unwrap(), &flag];
        let mut command = preload.command(&words);
        let program = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        wait("the program writes", Duration::from_secs(20), || Path::new(&flag).exists());
        mount.signal(rustix::process::Signal::KILL);
        let output = program.wait_with_output().unwrap();
        let said = text(&output.stdout);
        assert!(output.status.success(), "{said}{}", text(&output.stderr));
        let errors = [Errno::NOTCONN, Errno::CONNABORTED, Errno::CANCELED, Errno::IO]
            .map(|e| e.raw_os_error().to_string());
        assert!(errors.iter().any(|e| said.trim() == e), "{said}");
        drop(mount);
    }
    assert!(is_mounted(&preload.space.mnt()));
    preload.space.down_clean();
}

/// A program maps, copies and appends to what another way just made longer.
#[test]
fn the_kernel_knows_where_a_file_ends() {
    let preload = Preload::new();
    let program = preload.space.str("file_end");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/file_end.c");
    let args = ["-std=c11", "-D_GNU_SOURCE", "-Wall", "-O1", source, "-o", &program];
    assert!(Command::new("cc").args(args).status().unwrap().success());
    let (file, copy) = (preload.file("f"), preload.file("copy"));
    let words = [&program[..], file.to_str().unwrap(), copy.to_str().unwrap()];
    let moved = preload.run(&words);
    assert_eq!(moved.written, 5 * MIB, "{moved:?}");
    preload.space.down_clean();
}

/// A file that is made longer beforehand, and one that is cut, while others write to it: at any
/// moment of the time that the last call took.
#[test]
fn changes_of_the_size_and_writes_do_not_mix() {
    let mut preload = Preload::new();
    let paused = preload.space.mount_with("paused", &[("NURI_PAUSE", "grow")]);
    let script = "import os,sys,threading,time\n\
        b=b'w'*(1<<20); took=.01; start=time.time()\n\
        def late(): time.sleep(i%16/15*took); os.pwrite(f,b,8<<20)\n\
        for i in range(150):\n\
        \x20 if time.time()>start+45: break\n\
        \x20 f=os.open(sys.argv[1]+str(i),os.O_RDWR|os.O_CREAT)\n\
        \x20 t=threading.Thread(target=late); t.start()\n\
        \x20 began=time.time(); os.posix_fallocate(f,0,4<<20)\n\
        \x20 ended=time.time(); t.join(); took=min(ended-began,.1)\n\
        \x20 assert os.fstat(f).st_size==9<<20, (i, os.fstat(f).st_size)\n\
        \x20 assert os.pread(f,1<<20,8<<20)==b, i\n\
        \x20 t=threading.Thread(target=lambda: os.pwrite(f,b,1<<20)); t.start()\n\
        \x20 os.ftruncate(f,0); t.join(); end=os.fstat(f).st_size\n\
        \x20 assert end in (0,2<<20), (i, end)\n\
        \x20 os.ftruncate(f,3<<20); d=os.pread(f,3<<20,0)\n\
        \x20 assert d==(bytes(1<<20)+b+bytes(1<<20) if end else bytes(3<<20)), (i, end)\n\
        \x20 os.close(f); os.unlink(sys.argv[1]+str(i))\n";
    let moved = preload.python(script, &paused.join("f"));
    assert!(moved.written > 100 * MIB, "{moved:?}");
    preload.space.down_clean();
}

/// Processes that share a position write one after the other, and none over another one's bytes.
#[test]
fn a_shared_position_moves_for_all() {
    let preload = Preload::new();
    let script = "import os,sys\n\
        f=os.open(sys.argv[1],os.O_RDWR|os.O_CREAT)\n\
        for c in range(1,5):\n\
        \x20 if os.fork()==0:\n\
        \x20\x20 for i in range(8): assert os.write(f,bytes([c])*(1<<20))==1<<20\n\
        \x20\x20 os._exit(0)\n\
        for c in range(1,5): assert os.wait()[1]==0\n\
        assert os.lseek(f,0,os.SEEK_CUR)==32<<20\n\
        seen=[os.pread(f,1<<20,i<<20) for i in range(32)]\n\
        assert all(len(set(s))==1 for s in seen), 'torn'\n\
        assert sorted(s[0] for s in seen)==[c for c in range(1,5) for i in range(8)]\n";
    preload.python(script, &preload.file("f"));
    preload.space.down_clean();
}

/// Bytes of a mapping beside those that are written, in the same page, and an impostor at a name.
#[test]
fn parts_of_pages_are_the_kernels() {
    let preload = Preload::new();
    let script = "import os,sys,mmap,threading\n\
        f=os.open(sys.argv[1],os.O_RDWR|os.O_CREAT); os.ftruncate(f,4<<20)\n\
        m=mmap.mmap(f,4<<20); stop=[]; n=[0]\n\
        def stores():\n\
        \x20 while not stop: n[0]=(n[0]+1)%250; m[50]=n[0]\n\
        t=threading.Thread(target=stores,daemon=True); t.start()\n\
        for i in range(200):\n\
        \x20 b=bytes([i+1])*(1<<20); assert os.pwrite(f,b,100)==len(b)\n\
        \x20 assert m[100:100+(1<<20)]==b, i\n\
        stop.append(1); t.join(); assert m[50]==n[0]\n";
    let moved = preload.python(script, &preload.file("f"));
    assert!(moved.written > 150 * MIB, "{moved:?}");
    preload.space.down_clean();
}

/// In another network somebody else may have the mount's name: nothing is said to anybody but root.
#[test]
fn an_impostor_is_told_nothing() {
    let preload = Preload::new();
    let file = preload.file("f");
    fs::write(&file, bytes(MIB, 1)).unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/impostor.py");
    let library = preload.library.to_str().unwrap();
    let words = [SECONDS, "unshare", "-n", "python3", script, file.to_str().unwrap(), library];
    let output = Command::new("timeout").args(words).output().unwrap();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    assert_eq!(fs::read(&file).unwrap(), vec![b'n'; MIB]);
    preload.space.down_clean();
}

/// More threads than there are connections, each with its own part of a file.
#[test]
fn many_threads_write_their_parts() {
    let preload = Preload::new();
    let file = preload.file("f");
    let script = "import os,sys,threading\n\
        f=os.open(sys.argv[1],os.O_RDWR|os.O_CREAT)\n\
        def part(i):\n\
        \x20 b=bytes([i])*(512<<10)\n\
        \x20 for j in range(4): assert os.pwrite(f,b,(j*96+i)*(512<<10))==len(b)\n\
        t=[threading.Thread(target=part,args=(i,)) for i in range(96)]\n\
        [x.start() for x in t]; [x.join() for x in t]\n";
    let moved = preload.python(script, &file);
    assert!(moved.written > 0, "{moved:?}");
    let found = File::open(&file).unwrap();
    let mut part = vec![0; 512 << 10];
    for i in 0..4 * 96 {
        found.read_exact_at(&mut part, (i << 19) as u64).unwrap();
        assert!(part.iter().all(|b| usize::from(*b) == i % 96), "part {i}");
    }
    drop(found);
    preload.space.down_clean();
}
