//! Volumes by name, and served to the clients that people use.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::Value;

use crate::nbd::{Client, OVERLAPS, PRELUDE, PYTHON, Server, python};
use crate::support::{Space, has_ended, nuri, refused, run, text, wait};

fn serve(space: &Space, name: &str, more: &[&str]) -> Server {
    let dir = space.dir();
    Server::start(space, name, &[&["volume", "serve", "--dir", &dir], more].concat())
}

fn volume(space: &Space, args: &[&str]) -> Output {
    nuri(&[&["volume"], args, &["--dir", &space.dir()]].concat())
}

fn done(space: &Space, args: &[&str]) -> String {
    let out = volume(space, args);
    assert!(out.status.success(), "{args:?}: {}", text(&out.stderr));
    text(&out.stdout)
}

fn not_done(space: &Space, args: &[&str], words: &str) {
    refused(&[&["volume"], args, &["--dir", &space.dir()]].concat(), words);
}

/// A volume as `nuri volume list --json` shows it.
fn listed(space: &Space, name: &str) -> Option<Value> {
    let list: Value = serde_json::from_str(&done(space, &["list", "--json"])).unwrap();
    let volumes = list["volumes"].as_array().unwrap();
    volumes.iter().find(|volume| volume["name"] == name).cloned()
}

#[test]
fn volumes_are_made_listed_changed_and_removed_by_name() {
    let space = Space::up(&["--target-size", "1G"]);
    assert_eq!(done(&space, &["list"]).lines().count(), 1, "its heading");
    done(&space, &["create", "vm1", "--size", "256M"]);
    done(&space, &["create", "vm-2.x", "--size", "1G", "--shape", "mirror:2"]);
    let vm2 = listed(&space, "vm-2.x").unwrap();
    assert_eq!((&vm2["size"], &vm2["used"]), (&Value::from(1 << 30), &Value::from(0)));
    assert_eq!((&vm2["shape"], &vm2["in_use"]), (&"mirror:2".into(), &false.into()));
    for (args, words) in [
        (&["create", "vm1", "--size", "1M"][..], "there is a volume vm1 already"),
        (&["create", "a/b", "--size", "1M"], "cannot be a volume's name"),
        (&["create", "", "--size", "1M"], "cannot be a volume's name"),
        (&["create", ".x", "--size", "1M"], "cannot be a volume's name"),
        (&["create", "x", "--size", "0"], "a volume's size is a multiple of 4096 bytes"),
        (&["create", "x", "--size", "1000001"], "a volume's size is a multiple of 4096 bytes"),
        (&["create", "x", "--size", "900T"], "more than the whole space has"),
        (&["create", "x", "--size", "8M", "--shape", "parity:8+2"], "not targets enough for shape"),
        (&["resize", "vm1", "128M"], "would lose what lies beyond"),
        (&["resize", "vm1", "900T"], "more than the whole space has"),
        (&["resize", "none", "1G"], "there is no volume none; there are vm-2.x, vm1"),
        (&["rename", "vm1", "vm-2.x"], "there is a volume vm-2.x already"),
        (&["rename", "none", "x"], "there is no volume none"),
        (&["rename", "vm1", "x y"], "cannot be a volume's name"),
        (&["rm", "none"], "there is no volume none"),
        (&["serve", "none", "--listen", "127.0.0.1:0"], "there is no volume none; there are"),
    ] {
        not_done(&space, args, words);
    }
    done(&space, &["resize", "vm1", "512M"]);
    assert_eq!(listed(&space, "vm1").unwrap()["size"], 512 << 20);
    done(&space, &["resize", "vm1", "64M", "--force"]);
    done(&space, &["rename", "vm1", "vm3"]);
    assert_eq!(listed(&space, "vm3").unwrap()["size"], 64 << 20);
    done(&space, &["rm", "vm3"]);
    assert!(listed(&space, "vm3").is_none() && listed(&space, "x").is_none());
    space.down_clean();
    space.again();
    assert!(listed(&space, "vm-2.x").is_some());
    space.down_clean();
}

/// Opens inodes of a mount by their numbers, as who once had handles of them. Says what each gives.
const BY_NUMBER: &str = "
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
class Handle(ctypes.Structure):
    _fields_ = [('bytes', ctypes.c_uint), ('kind', ctypes.c_int), ('words', ctypes.c_uint * 3)]
root = os.open(sys.argv[1], os.O_RDONLY)
for counter in range(1, 20):
    number = (0xffff << 48) | counter
    for generation in range(3):
        handle = Handle(12, 0x81, (number >> 32, number & 0xffffffff, generation))
        fd = libc.open_by_handle_at(root, ctypes.byref(handle), os.O_RDONLY)
        print('opened' if fd >= 0 else os.strerror(ctypes.get_errno()))
";

/// Catches `broken!("volumes_by_number")`.
#[test]
fn no_mount_reaches_a_volume() {
    let space = Space::up(&["--target-size", "1G"]);
    done(&space, &["create", "vm", "--size", "64M"]);
    assert_eq!(fs::read_dir(space.mnt()).unwrap().count(), 0);
    let said = python(BY_NUMBER, &[&space.mnt().display().to_string()]);
    let is_stale = |line: &str| line == "Stale file handle";
    assert!(said.lines().count() == 57 && said.lines().all(is_stale), "{said}");
    space.down_clean();
}

/// nbdinfo, nbdcopy, qemu-img and qemu-io, on stripes and on a redundant shape.
#[test]
fn the_clients_that_people_use_find_what_they_wrote() {
    let space = Space::up(&["--target-size", "1G"]);
    let random = space.str("random");
    run("sh", &["-c", &format!("head -c 40000000 /dev/urandom > {random}")]);
    let image = space.str("image.qcow2");
    run("qemu-img", &["create", "-q", "-f", "qcow2", &image, "64M"]);
    run("qemu-io", &["-c", "write -P 7 1M 3M", "-c", "write -P 9 33M 100k", &image]);
    for shape in ["stripe", "parity:3+1"] {
        done(&space, &["create", "vm", "--size", "64M", "--shape", shape]);
        let server = serve(&space, "serve", &[]);
        let uri = &server.uri("vm");
        let info: Value = serde_json::from_str(&run("nbdinfo", &["--json", uri])).unwrap();
        let export = &info["exports"][0];
        assert_eq!(export["export-size"], 64 << 20);
        for can in ["can_fua", "can_flush", "can_multi_conn", "can_trim", "can_zero", "can_df"] {
            assert_eq!(export[can], true, "{can}");
        }
        assert!(run("nbdinfo", &["--list", &server.uri("")]).contains("export=\"vm\""));

        run("nbdcopy", &[&random, uri]);
        let back = space.str("back");
        run("nbdcopy", &[uri, &back]);
        run("cmp", &["-n", "40000000", &random, &back]);
        let map = run("nbdinfo", &["--map", uri]);
        assert!(map.lines().count() == 2 && map.contains("hole"), "{map}");
        let used = listed(&space, "vm").unwrap()["used"].as_u64().unwrap();
        assert!((40_000_000..42_000_000).contains(&used), "{used}");

        run("qemu-img", &["convert", "-n", "-f", "qcow2", "-O", "raw", &image, uri]);
        run("qemu-img", &["compare", "-f", "qcow2", "-F", "raw", &image, uri]);
        let checks = ["-c", "read -P 7 1M 3M", "-c", "discard 1M 2M", "-c", "read -P 0 1M 2M"];
        let zeros = ["-c", "write -z -u 3M 64k", "-c", "read -P 0 3M 64k", "-c", "flush"];
        let said = run("qemu-io", &[&["-f", "raw"], &checks[..], &zeros, &[uri]].concat());
        assert!(!said.contains("failed"), "{said}");
        let used = listed(&space, "vm").unwrap()["used"].as_u64().unwrap();
        assert!(used < 3 << 20, "what was discarded is given back: {used}");
        fio_verifies(uri);
        server.end();
        done(&space, &["rm", "vm"]);
    }
    space.down_clean();
}

/// Random writes of many sizes, many at a time; fio reads all of them back.
fn fio_verifies(uri: &str) {
    let uri = format!("--uri={uri}");
    let what = ["--ioengine=nbd", "--rw=randwrite", "--bsrange=512-64k", "--bs_unaligned"];
    let how = ["--iodepth=16", "--size=24M", "--verify=crc32c", "--verify_fatal=1"];
    let said = run("fio", &[&["--name=x"], &what[..], &[&uri], &how].concat());
    assert!(said.contains("err= 0"), "{said}");
}

/// nbdkit as a client, with filters in front of it: requests are split and wait, some fail before
/// they reach the server, and nbdkit connects anew and repeats them.
#[test]
fn what_filters_of_nbdkit_delay_split_and_repeat_is_written_once() {
    let space = Space::up(&["--target-size", "1G"]);
    done(&space, &["create", "vm", "--size", "64M"]);
    let server = serve(&space, "serve", &[]);
    let random = space.str("random");
    run("sh", &["-c", &format!("head -c 24000000 /dev/urandom > {random}")]);
    let uri = format!("uri={}", server.uri("vm"));
    // The first filter is the client's; the last one is beside the server.
    let splits = ["--filter=blocksize", "--filter=delay"];
    let small = ["minblock=4096", "maxdata=65536", "maxlen=1M", "rdelay=3ms", "wdelay=3ms"];
    let fails = ["--filter=retry", "--filter=error"];
    let often = [
        "retry-delay=1",
        "retry-exponential=no",
        "error-pwrite=EIO",
        "error-pwrite-rate=2%",
        "error-pread=EIO",
        "error-pread-rate=2%",
    ];
    let nbdkit = |(filters, how): (&[&str], &[&str]), command: &str| {
        let server = ["nbd", &uri, "--run", command];
        run("nbdkit", &[&["-U", "-"], filters, &server[..2], how, &server[2..]].concat())
    };
    for filters in [(&splits[..], &small[..]), (&fails[..], &often[..])] {
        let back = space.str("back");
        nbdkit(filters, &format!("nbdcopy {random} \"$uri\" && nbdcopy \"$uri\" {back}"));
        run("cmp", &["-n", "24000000", &random, &back]);
        // Beside the filters: the server has it.
        run("nbdcopy", &[&server.uri("vm"), &back]);
        run("cmp", &["-n", "24000000", &random, &back]);
        python("h = connect(sys.argv[1]); h.trim(64 << 20, 0); h.flush()", &[&server.uri("vm")]);
    }
    server.end();
    space.down_clean();
}

/// By libnbd: what every request answers, also the wrong ones.
#[test]
fn requests_do_what_the_protocol_says_and_wrong_ones_say_what_is_wrong() {
    let space = Space::up(&["--target-size", "1G"]);
    done(&space, &["create", "vm", "--size", "64M", "--shape", "stripe"]);
    let server = serve(&space, "serve", &[]);
    let script = "
size = 64 << 20
h = connect(sys.argv[1])
assert h.get_size() == size and h.can_meta_context('base:allocation')
h.set_strict_mode(0)
h.pwrite(b'a' * 5, 3)
h.pwrite(b'b' * 512, size - 512, nbd.CMD_FLAG_FUA)
assert bytes(h.pread(10, 0)) == b'\\0\\0\\0aaaaa\\0\\0'
# Large ones, which go in pieces.
large = bytes(range(251)) * 100000
h.pwrite(large, 4097)
assert bytes(h.pread(len(large), 4097)) == large
refused(lambda: h.pread(len(large), 4097, nbd.CMD_FLAG_DF), 'EOVERFLOW')
assert len(h.pread(65536, 0, nbd.CMD_FLAG_DF)) == 65536
# Beyond the end.
refused(lambda: h.pread(512, size), 'EINVAL')
refused(lambda: h.pread(512, size - 511), 'EINVAL')
refused(lambda: h.pread(512, 2**64 - 512), 'EINVAL')
refused(lambda: h.pwrite(b'x' * 512, size - 511), 'ENOSPC')
refused(lambda: h.pwrite(b'x' * (3 << 20), size - 512), 'ENOSPC')
refused(lambda: h.zero(512, size), 'ENOSPC')
refused(lambda: h.trim(512, size), 'EINVAL')
assert bytes(h.pread(512, size - 512)) == b'b' * 512
# Flags that are not known for the command.
refused(lambda: h.pread(512, 0, 1 << 7), 'EINVAL')
refused(lambda: h.trim(512, 0, nbd.CMD_FLAG_NO_HOLE), 'EINVAL')
# Zeros.
h.zero(4096, 8192)
h.zero(100, 20000, nbd.CMD_FLAG_NO_HOLE)
h.zero(1 << 20, 1 << 20, nbd.CMD_FLAG_FAST_ZERO | nbd.CMD_FLAG_FUA)
refused(lambda: h.zero(4096, 0, nbd.CMD_FLAG_NO_HOLE | nbd.CMD_FLAG_FAST_ZERO), 'ENOTSUP')
for at, count in ((8192, 4096), (20000, 100), (1 << 20, 1 << 20)):
    assert bytes(h.pread(count, at)) == bytes(count)
assert bytes(h.pread(8, 8188))[:4] == large[8188 - 4097:8192 - 4097]
h.trim(size, 0)
h.flush()
h.cache(4096, 0)
seen = []
h.block_status(size, 0, lambda name, at, entries, err: seen.extend(entries))
assert seen == [size, 3], seen
h.pwrite(b'c' * 4096, 1 << 20)
seen.clear()
h.block_status(size, 0, lambda name, at, entries, err: seen.extend(entries))
assert seen == [1 << 20, 3, 4096, 0, size - (1 << 20) - 4096, 3], seen
seen.clear()
h.block_status(size, 0, lambda name, at, entries, err: seen.extend(entries), nbd.CMD_FLAG_REQ_ONE)
assert seen == [1 << 20, 3], seen
h.shutdown()
# Without structured replies.
h = nbd.NBD()
h.set_request_structured_replies(False)
h.connect_uri(sys.argv[1])
h.set_strict_mode(0)
h.pwrite(large, 77)
assert bytes(h.pread(len(large), 77)) == large
refused(lambda: h.pread(512, size), 'EINVAL')
h.shutdown()
try:
    connect(sys.argv[2])
    raise AssertionError('there is no such volume')
except nbd.Error as e:
    assert 'vm' in e.string or e.errno == 'ENOENT', e
";
    python(script, &[&server.uri("vm"), &server.uri("none")]);
    python(OVERLAPS, &[&server.uri("vm")]);
    server.end();
    let server = serve(&space, "read-only", &["vm", "--read-only"]);
    let script = "
h = connect(sys.argv[1])
assert h.is_read_only()
h.set_strict_mode(0)
refused(lambda: h.pwrite(b'x' * 512, 0), 'EPERM')
refused(lambda: h.trim(512, 0), 'EPERM')
assert len(h.pread(512, 0)) == 512
h.flush()
";
    python(script, &[&server.uri("")]);
    server.end();
    space.down_clean();
}

#[test]
fn a_volume_in_use_stays_as_it_is() {
    let space = Space::up(&["--target-size", "1G"]);
    done(&space, &["create", "vm", "--size", "64M"]);
    let server = serve(&space, "one", &[]);
    let mut client = Client::connect(&server.uri("vm"));
    client.does("h.pwrite(b'a' * 4096, 0)");
    let vm = listed(&space, "vm").unwrap();
    assert_eq!((&vm["in_use"], &vm["owner"]), (&true.into(), &"127.0.0.1".into()));
    assert!(done(&space, &["list"]).contains("served by 127.0.0.1"));
    not_done(&space, &["rm", "vm"], "volume vm is in use");
    not_done(&space, &["rename", "vm", "x"], "volume vm is in use");
    not_done(&space, &["resize", "vm", "32M", "--force"], "volume vm is in use");
    done(&space, &["resize", "vm", "128M"]);
    client.does("h.pwrite(b'b' * 4096, 4096)");
    // Another connection of the same server is of the same device, and of the new size.
    let mut more = Client::connect(&server.uri("vm"));
    more.does("assert bytes(h.pread(8192, 0)) == b'a' * 4096 + b'b' * 4096");
    let other = serve(&space, "two", &[]);
    // Killed: what was answered is on the targets, and another server takes over.
    let pid = server.pid();
    drop(server);
    wait("the server is gone", Duration::from_secs(5), || has_ended(pid));
    let mut client = Client::connect(&other.uri("vm"));
    client.does("assert bytes(h.pread(8192, 0)) == b'a' * 4096 + b'b' * 4096");
    client.does("assert h.get_size() == 128 << 20");
    drop((client, more));
    other.end();
    done(&space, &["rm", "vm"]);
    space.down_clean();
}

/// A self-checking writer on three connections; its server is killed, then a node.
#[test]
fn what_was_answered_is_there_after_a_kill() {
    for shape in ["stripe", "mirror:2"] {
        let space = Space::up(&["--nodes", "2", "--targets", "4", "--target-size", "1G"]);
        done(&space, &["create", "vm", "--size", "64M", "--shape", shape]);
        let server = serve(&space, "first", &[]);
        let log = space.str("written");
        let writer = "
import threading
def write(who):
    h = connect(sys.argv[1])
    out = open(sys.argv[2] + str(who), 'w')
    count = 0
    try:
        while True:
            at = ((count * 7919 + who * 13) % 4096) * 3 + who
            h.pwrite(struct.pack('<QQ', who, count) * 256, at * 4096)
            out.write('%d %d\\n' % (at, count)); out.flush()
            count += 1
            if count % 50 == 0: h.flush()
    except nbd.Error:
        pass
threads = [threading.Thread(target=write, args=(who,)) for who in range(3)]
for t in threads: t.start()
for t in threads: t.join()
";
        let mut child = Command::new(PYTHON)
            .args(["-c", &format!("{PRELUDE}{writer}"), &server.uri("vm"), &log])
            .spawn()
            .unwrap();
        let lines =
            |who| fs::read_to_string(format!("{log}{who}")).map_or(0, |s| s.lines().count());
        wait("much is written", Duration::from_secs(60), || (0..3).all(|who| lines(who) > 150));
        drop(server);
        child.wait().unwrap();
        if shape != "stripe" {
            space.kill("node1");
        }
        let again = serve(&space, "second", &[]);
        let reader = "
h = connect(sys.argv[1])
checked = 0
for who in range(3):
    lines = [line for line in open(sys.argv[2] + str(who)) if line.endswith('\\n')]
    last = dict(map(int, line.split()) for line in lines)
    for at, count in last.items():
        found = bytes(h.pread(4096, at * 4096))
        # The write that was under way when the server ended may be there.
        newer = struct.unpack('<QQ', found[:16])
        assert found == found[:16] * 256, ('torn', who, at)
        assert newer[0] == who and newer[1] >= count, (who, at, count, newer)
        checked += 1
print(checked)
";
        let checked: u64 = python(reader, &[&again.uri("vm"), &log]).trim().parse().unwrap();
        assert!(checked > 300, "{shape}: {checked} blocks");
        again.end();
        space.down();
    }
}

/// Answered and not flushed, on stripes: the next server makes it durable, or says that it is lost.
#[test]
fn what_a_target_forgot_while_nobody_served_fails_each_flush_until_it_is_accepted() {
    let space = Space::up(&["--nodes", "2", "--targets", "2", "--target-size", "1G"]);
    done(&space, &["create", "vm", "--size", "64M", "--shape", "stripe"]);
    let write = |server: &Server, byte: char| {
        let mut client = Client::connect(&server.uri("vm"));
        client.does(&format!("for at in range(64): h.pwrite(b'{byte}' * 8192, at << 20)"));
        client
    };
    let check = "for at in range(64): assert bytes(h.pread(8192, at << 20)) == b'BYTE' * 8192, at";
    let is_doubtful = || listed(&space, "vm").unwrap()["doubtful"] == true;
    let forget = || {
        let pids = ["node0", "node1"].map(|node| (node, space.pid(node)));
        for (node, pid) in pids {
            space.kill(node);
            wait("it is gone", Duration::from_secs(10), || has_ended(pid));
        }
        space.wait_status("all is up again", Duration::from_secs(30), |status| {
            status["health"]["state"] == "ok"
        });
    };

    // The server dies alone: the next one makes durable what the targets have, before they die.
    let server = serve(&space, "one", &[]);
    let client = write(&server, 'a');
    drop((server, client));
    let server = serve(&space, "two", &[]);
    let mut client = Client::connect(&server.uri("vm"));
    forget();
    client.does(&check.replace("BYTE", "a"));
    client.does("h.flush()");
    assert!(!is_doubtful());
    drop(client);

    // The server dies, then the targets: no flush succeeds any more, by whatever server.
    let client = write(&server, 'b');
    drop((server, client));
    forget();
    for name in ["three", "four"] {
        let server = serve(&space, name, &[]);
        let mut client = Client::connect(&server.uri("vm"));
        client.does("refused(h.flush, 'EIO')");
        client.does("refused(lambda: h.pwrite(b'x' * 512, 0, nbd.CMD_FLAG_FUA), 'EIO')");
        assert!(is_doubtful());
        drop(client);
        server.end();
    }
    done(&space, &["accept-loss", "vm"]);
    assert!(!is_doubtful());
    let server = serve(&space, "five", &[]);
    let mut client = write(&server, 'c');
    client.does("h.flush()");
    drop(client);
    server.end();
    // All was made durable: nothing is asked of the next start.
    forget();
    let server = serve(&space, "six", &[]);
    let mut client = Client::connect(&server.uri("vm"));
    client.does(&check.replace("BYTE", "c"));
    client.does("h.flush()");
    drop(client);
    server.end();
    space.down_clean();
}

/// Those who send nothing, half of something, or take no answers.
#[test]
fn strangers_and_the_slow_stop_nobody() {
    let space = Space::up(&["--target-size", "1G"]);
    done(&space, &["create", "vm", "--size", "64M"]);
    let server = serve(&space, "serve", &["--max-connections", "40"]);
    let connect = || UnixStream::connect(&server.socket).unwrap();
    let idle: Vec<_> = (0..400).map(|_| connect()).collect();
    let mut client = Client::connect(&server.uri("vm"));
    client.does("h.pwrite(b'a' * 4096, 0)");
    let mut odd: Vec<UnixStream> = Vec::new();
    for words in
        [&b"\0\0\0\x03IHAVEOPT\0\0\0\x07\xff\xff\xff\xff"[..], b"GET / HTTP/1.1\r\n\r\n", b"\0"]
    {
        let mut stream = connect();
        stream.write_all(words).unwrap();
        odd.push(stream);
    }
    // Agreed on, then: half a write of the block that others use; reads of which nobody takes the
    // answers; a write that says it is 4 GiB.
    let request = |command: u16, at: u64, len: u32| {
        let head = [&0x2560_9513u32.to_be_bytes()[..], &[0, 0], &command.to_be_bytes()].concat();
        [head, vec![0; 8], at.to_be_bytes().to_vec(), len.to_be_bytes().to_vec()].concat()
    };
    let agreed = || {
        let mut stream = connect();
        let go = b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\x02vm";
        stream.write_all(go).unwrap();
        let mut greeting = [0; 18 + 10];
        stream.read_exact(&mut greeting).unwrap();
        stream
    };
    for request in [request(1, 0, 1 << 20), request(1, 0, u32::MAX)] {
        let mut stream = agreed();
        stream.write_all(&request).unwrap();
        odd.push(stream);
    }
    let mut slow = agreed();
    (0..64).for_each(|_| slow.write_all(&request(0, 0, 32 << 20)).unwrap());
    let resident = || {
        let status = fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
    };
    for _ in 0..20 {
        client.does("h.pwrite(b'b' * 4096, 0); assert bytes(h.pread(4096, 0)) == b'b' * 4096");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(resident() < 300, "{} MiB", resident());
    // As many as are served at once, and one more.
    let many: Vec<_> = (0..40).map(|_| connect()).collect();
    drop((idle, odd, slow, many));
    drop(client);
    server.end();
    space.down_clean();
}

#[test]
fn a_full_space_refuses_a_write_as_a_whole() {
    let space = Space::up(&["--targets", "2", "--target-size", "128M", "--shape", "stripe"]);
    done(&space, &["create", "vm", "--size", "192M"]);
    let server = serve(&space, "serve", &[]);
    fs::write(space.mnt().join("filler"), vec![1; 120 << 20]).unwrap();
    let script = "
h = connect(sys.argv[1])
wrote = 0
try:
    while wrote < 192 << 20:
        h.pwrite(b'x' * 65536, wrote)
        wrote += 65536
    raise AssertionError('it has no end')
except nbd.Error as e:
    assert e.errno == 'ENOSPC', e
h.flush()
assert bytes(h.pread(65536, wrote - 65536)) == b'x' * 65536
h.trim(wrote, 0)
h.pwrite(b'y' * 65536, 0)
h.flush()
";
    python(script, &[&server.uri("vm")]);
    server.end();
    space.down_clean();
}
