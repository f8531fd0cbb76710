//! Raw disks, here loop devices, served to NBD clients.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use crate::nbd::{Client, OVERLAPS, Server, python};
use crate::support::{Space, nuri, refused, run, text, wait};

const SIZE: u64 = 64 << 20;

/// A file as a disk; detached when dropped.
struct Disk {
    file: PathBuf,
    path: String,
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("losetup").args(["-d", &self.path]).status();
    }
}

impl Disk {
    fn new(space: &Space, name: &str, options: &[&str]) -> Disk {
        let file = space.path(name);
        File::create(&file).unwrap().set_len(SIZE).unwrap();
        let shown = file.display().to_string();
        let path = run("losetup", &[&["-f", "--show"], options, &[&shown]].concat());
        Disk { file, path: path.trim().to_owned() }
    }

    fn file_is_written(&self, at: u64, bytes: &[u8]) {
        File::options().write(true).open(&self.file).unwrap().write_all_at(bytes, at).unwrap();
    }

    /// Whether nobody has it open for itself.
    fn is_free(&self) -> bool {
        let exclusive = rustix::fs::OFlags::EXCL.bits() as i32;
        File::options().read(true).custom_flags(exclusive).open(&self.path).is_ok()
    }

    /// The name under which it is served.
    fn name(&self) -> &str {
        self.path.strip_prefix("/dev/").unwrap()
    }

    /// As `nuri disk list --json` shows it.
    fn listed(&self) -> Value {
        let out = nuri(&["disk", "list", "--json"]);
        let list: Value = serde_json::from_slice(&out.stdout).unwrap();
        let disks = list["disks"].as_array().unwrap();
        disks.iter().find(|disk| disk["path"] == *self.path).unwrap().clone()
    }
}

#[test]
fn a_disk_is_listed_and_served_and_holds_what_clients_wrote() {
    let space = Space::bare();
    // Loop devices with blocks of 4 KiB and of 512 bytes.
    for block in [512, 4096] {
        let size = block.to_string();
        let disk = Disk::new(&space, &format!("disk{block}"), &["--sector-size", &size]);
        let listed = disk.listed();
        assert_eq!((&listed["size"], &listed["block"]), (&SIZE.into(), &block.into()));
        assert_eq!((&listed["used"], &listed["read_only"]), (&Value::Null, &false.into()));
        let shown = text(&nuri(&["disk", "list"]).stdout);
        assert!(shown.contains(&disk.path), "{shown}");

        let server = Server::start(&space, "serve", &["disk", "serve", &disk.path]);
        let script = "
for name in ('', sys.argv[2]):
    h = connect(sys.argv[1] + name + sys.argv[3])
    assert h.is_read_only() and h.get_size() == 64 << 20
    assert h.get_block_size(nbd.SIZE_MINIMUM) == int(sys.argv[4])
    h.set_strict_mode(0)
    refused(lambda: h.pwrite(b'x' * 4096, 0), 'EPERM')
    assert bytes(h.pread(10000, 77)) == bytes(10000)
    h.shutdown()
";
        let socket = format!("?socket={}", server.socket.display());
        python(script, &["nbd+unix:///", disk.name(), &socket, &size]);
        refused(&["disk", "serve", &disk.path], "is used: ");
        server.end();

        let args = ["disk", "serve", "--writable", &disk.path];
        let server = Server::start(&space, "serve", &args);
        let script = "
h = connect(sys.argv[1])
h.set_strict_mode(0)
# Whole blocks, parts of blocks, and what lies beside them.
h.pwrite(b'a' * 65536, 65536)
h.pwrite(b'b' * 1000, 66000, nbd.CMD_FLAG_FUA)
assert bytes(h.pread(1002, 65999)) == b'a' + b'b' * 1000 + b'a'
large = bytes(range(251)) * 20000
h.pwrite(large, 1 << 20)
assert bytes(h.pread(len(large), 1 << 20)) == large
h.zero(100000, (1 << 20) + 100)
found = bytes(h.pread(100002, (1 << 20) + 99))
assert found == large[99:100] + bytes(100000) + large[100100:100101]
h.zero(4096, 65536, nbd.CMD_FLAG_NO_HOLE)
assert bytes(h.pread(4097, 65536)) == bytes(4096) + b'a'
h.trim(1 << 20, 2 << 20)
h.flush()
refused(lambda: h.pread(1, 64 << 20), 'EINVAL')
refused(lambda: h.pwrite(b'x', 64 << 20), 'ENOSPC')
h.shutdown()
";
        python(script, &[&server.uri("")]);
        python(OVERLAPS, &[&server.uri("")]);
        server.end();
        let mut found = [0; 3];
        File::open(&disk.file).unwrap().read_exact_at(&mut found, (1 << 20) - 1).unwrap();
        assert_eq!(found, [0, 0, 1], "what was written is on the disk");
    }
}

#[test]
fn what_is_used_is_not_served_and_says_by_what() {
    let space = Space::up(&["--targets", "1", "--target-size", "64M"]);
    let disk = Disk::new(&space, "disk", &[]);
    let no = |words: &str| {
        refused(&["disk", "serve", "--writable", &disk.path], words);
        refused(&["disk", "serve", &disk.path], words);
    };
    let bytes = File::options().write(true).open(&disk.file).unwrap();
    let mark = |at: u64, mark: &[u8]| {
        bytes.write_all_at(mark, at).unwrap();
        run("blockdev", &["--flushbufs", &disk.path]);
    };
    for (at, words, what) in [
        (0, &b"NURI-TGT"[..], "a target of a Nuri space"),
        (512, b"LABELONE", "a member of LVM"),
        (4096, &[0xfc, 0x4e, 0x2b, 0xa9], "a member of an md array"),
    ] {
        mark(at, words);
        no(&format!("is used: {what}"));
        assert_eq!(disk.listed()["used"], what);
        mark(at, &[0; 8]);
    }
    run("mkfs.ext4", &["-q", &disk.path]);
    let point = space.make_dir("point").display().to_string();
    run("mount", &[&disk.path, &point]);
    no(&format!("is used: mounted at {point}"));
    run("umount", &[&point]);
    run("mkswap", &[&disk.path]);
    run("swapon", &[&disk.path]);
    let listed = disk.listed();
    run("swapoff", &[&disk.path]);
    assert_eq!(listed["used"], "swap");
    let file = space.str("a file");
    fs::write(&file, "x").unwrap();
    refused(&["disk", "serve", &file], "is no block device");
    refused(&["disk", "serve", &space.str("none")], "No such file or directory");
    space.down();
}

/// A disk that is pulled out: its export fails, and the other one goes on.
#[test]
fn a_disk_that_goes_away_fails_alone() {
    let space = Space::bare();
    let (gone, stays) = (Disk::new(&space, "gone", &[]), Disk::new(&space, "stays", &[]));
    let args = ["disk", "serve", "--writable", &gone.path, &stays.path];
    let server = Server::start(&space, "serve", &args);
    let script = "
import os
gone, stays = connect(sys.argv[1]), connect(sys.argv[2])
for h in (gone, stays): h.pwrite(b'a' * 4096, 4096)
os.truncate(sys.argv[3], 0)
refused(lambda: gone.pread(4096, 4096), 'EIO')
refused(lambda: gone.pread(4096, 1 << 20), 'EIO')
assert bytes(stays.pread(4096, 4096)) == b'a' * 4096
stays.pwrite(b'b' * 4096, 0)
stays.flush()
assert gone.get_size() == 64 << 20
";
    let file = gone.file.display().to_string();
    python(script, &[&server.uri(gone.name()), &server.uri(stays.name()), &file]);
    server.end();
}

/// Any machine reaches the disks of a node that the node gives away, and no others.
#[test]
fn disks_of_a_node_are_used_from_elsewhere() {
    let mut space = Space::bare();
    let (given, kept) = (Disk::new(&space, "given", &[]), Disk::new(&space, "kept", &[]));
    given.file_is_written(4096, b"from there");
    space.start(&["--targets", "1", "--target-size", "256M", "--export-disks", &given.path]);
    let dir = space.dir();
    let list = || -> Value {
        let out = nuri(&["disk", "list", "--nodes", "--json", "--dir", &dir]);
        assert!(out.status.success(), "{}", text(&out.stderr));
        serde_json::from_slice(&out.stdout).unwrap()
    };
    let listed = |disk: &Disk| {
        let all = list();
        let disks = all["disks"].as_array().unwrap();
        disks.iter().find(|one| one["path"] == *disk.path).unwrap().clone()
    };
    assert_eq!((&listed(&given)["node"], &listed(&given)["exported"]), (&1.into(), &true.into()));
    assert_eq!(listed(&kept)["exported"], false);

    let of_node = |disk: &Disk| format!("1:{}", disk.path);
    let serve = |name: &str, more: &[&str]| {
        let args = [&["disk", "serve", "--dir", &dir], more].concat();
        Server::start(&space, name, &args)
    };
    let refuses = |disk: &str, words: &str| {
        refused(&["disk", "serve", disk, "--listen", "127.0.0.1:0", "--dir", &dir], words);
    };
    refuses(&of_node(&kept), "is not given to other machines: start the node with --export-disks");
    refuses("1:/dev/none", "is not given to other machines");
    refuses(&format!("9:{}", given.path), "there is no node 9");

    // Read-only unless told; a second server shares the disk.
    let first = serve("first", &[&of_node(&given)]);
    let name = format!("1:{}", given.name());
    let mut reader = Client::connect(&first.uri(&name));
    reader.does("h.set_strict_mode(0); assert h.is_read_only() and h.get_size() == 64 << 20");
    reader.does("assert bytes(h.pread(10, 4096)) == b'from there'");
    refused(
        &["disk", "serve", "--writable", &of_node(&given), "--socket", "/x", "--dir", &dir],
        "is served to another machine already, and not for writing",
    );
    drop(reader);
    first.end();
    wait("the node lets the disk go", Duration::from_secs(20), || {
        nuri(&["disk", "list", "--json"]).status.success() && given.is_free()
    });
    let writer = serve("writer", &["--writable", &of_node(&given)]);
    python(OVERLAPS, &[&writer.uri(&name)]);
    let mut client = Client::connect(&writer.uri(&name));
    client.does("h.set_strict_mode(0); h.pwrite(b'from here' * 1000, 77); h.flush()");
    client.does("assert bytes(h.pread(9000, 77)) == b'from here' * 1000");
    client.does("h.zero(4096, 0); assert bytes(h.pread(77, 0)) == bytes(77)");
    // Its node is killed and comes back: requests wait, and nothing is told.
    space.kill("node0");
    client.does("h.pwrite(b'after it' * 512, 1 << 20); h.flush()");
    client.does("assert bytes(h.pread(4096, 1 << 20)) == b'after it' * 512");
    drop(client);
    writer.end();
    let mut found = [0; 8];
    File::open(&given.file).unwrap().read_exact_at(&mut found, 1 << 20).unwrap();
    assert_eq!(&found, b"after it");

    // What is given can be changed while the space runs.
    let out = nuri(&["up", "--dir", &dir, "--export-disks", "none"]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert_eq!(listed(&given)["exported"], false);
    refused(&["up", "--dir", &dir, "--export-disks", "sdb"], "is no path of a disk");
    space.down_clean();
}
