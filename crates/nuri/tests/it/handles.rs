//! Handles of inodes, as NFS servers and backup programs keep them.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::support::{NURI, Space, run};

/// Keeps handles and opens inodes by them; a line in, a line out.
const PROGRAM: &str = r"
import ctypes,os,sys
libc=ctypes.CDLL(None,use_errno=True)
class Handle(ctypes.Structure):
    _fields_=[('bytes',ctypes.c_uint),('kind',ctypes.c_int),('data',ctypes.c_char*128)]
kept={}
def check(got):
    if got<0: raise OSError(ctypes.get_errno(),os.strerror(ctypes.get_errno()))
    return got
def run(what,*rest):
    if what=='keep':
        handle=Handle(bytes=128); mount=ctypes.c_int()
        path,out=rest[1].encode(),ctypes.byref(mount)
        check(libc.name_to_handle_at(-100,path,ctypes.byref(handle),out,0))
        kept[rest[0]]=bytes(handle); return 'ok'
    root=os.open(rest[1],os.O_RDONLY)
    try:
        flags=0x200000 if what=='link' else os.O_RDONLY
        handle=Handle.from_buffer_copy(kept[rest[0]])
        fd=check(libc.open_by_handle_at(root,ctypes.byref(handle),flags))
    finally: os.close(root)
    try:
        if what=='link': return os.readlink('',dir_fd=fd)
        if what=='list': return ' '.join(sorted(os.listdir(fd)))
        if what=='above':
            up=os.open('..',os.O_RDONLY,dir_fd=fd)
            try: return ' '.join(sorted(os.listdir(up)))
            finally: os.close(up)
        return os.read(fd,100).decode()
    finally: os.close(fd)
for line in sys.stdin:
    try: said=run(*line.split())
    except OSError as e: said=f'error {e.errno}'
    print(said,flush=True)
";

struct Keeper(Child, BufReader<std::process::ChildStdout>);

impl Keeper {
    fn start() -> Keeper {
        let mut command = Command::new("python3");
        command.args(["-c", PROGRAM]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        Keeper(child, said)
    }

    fn ask(&mut self, what: &str, name: &str, path: &Path) -> String {
        let to = self.0.stdin.as_mut().unwrap();
        writeln!(to, "{what} {name} {}", path.display()).unwrap();
        let mut said = String::new();
        self.1.read_line(&mut said).unwrap();
        said.trim_end().to_owned()
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn handles_lead_to_inodes_for_as_long_as_they_are_there() {
    let mut space = Space::up(&[]);
    let (a, b) = (space.mnt(), space.mount("other"));
    fs::create_dir_all(a.join("top/d/below")).unwrap();
    fs::write(a.join("top/d/f"), "content").unwrap();
    std::os::unix::fs::symlink("f", a.join("top/d/l")).unwrap();
    let mut keeper = Keeper::start();
    for (name, path) in [("f", "top/d/f"), ("d", "top/d"), ("l", "top/d/l"), ("b", "top/d/below")] {
        assert_eq!(keeper.ask("keep", name, &a.join(path)), "ok");
    }
    let look = |keeper: &mut Keeper, mount: &Path, when: &str| {
        assert_eq!(keeper.ask("read", "f", mount), "content", "{when}");
        assert_eq!(keeper.ask("link", "l", mount), "f", "{when}");
        assert_eq!(keeper.ask("list", "d", mount), "below f l", "{when}");
        assert_eq!(keeper.ask("above", "b", mount), "below f l", "{when}");
    };
    look(&mut keeper, &a, "at once");
    look(&mut keeper, &b, "on a mount that never saw them");
    fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
    look(&mut keeper, &a, "without caches");
    let point = b.display().to_string();
    run(NURI, &["fs", "umount", &point]);
    run(NURI, &["fs", "mount", &space.dir(), &point]);
    look(&mut keeper, &b, "after a remount");
    fs::rename(a.join("top/d"), a.join("e")).unwrap();
    fs::rename(a.join("e/f"), a.join("e/g")).unwrap();
    fs::rename(a.join("e/g"), a.join("e/f")).unwrap();
    fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
    look(&mut keeper, &a, "after a rename");
    look(&mut keeper, &b, "after a rename elsewhere");
    fs::remove_file(a.join("e/f")).unwrap();
    fs::write(a.join("e/f"), "another").unwrap();
    fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
    for mount in [&a, &b] {
        assert_eq!(keeper.ask("read", "f", mount), "error 116", "it is gone");
        assert_eq!(keeper.ask("list", "d", mount), "below f l", "its directory is not");
    }
    drop(keeper);
    space.down_clean();
}
