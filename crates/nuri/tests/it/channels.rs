//! Volumes that several servers serve at once: requests forwarded to the owner, and its loss.

use std::process::{Child, Command};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::nbd::{Client, OVERLAPS, PRELUDE, PYTHON, Server, python};
use crate::support::{Space, nuri, text};

fn space(shape: &str) -> Space {
    let space = Space::up(&["--nodes", "2", "--targets", "4", "--target-size", "1G"]);
    let dir = space.dir();
    let words = ["volume", "create", "vm", "--size", "64M", "--shape", shape, "--dir", &dir];
    let out = nuri(&words);
    assert!(out.status.success(), "{}", text(&out.stderr));
    space
}

fn serve(space: &Space, name: &str) -> Server {
    Server::start(space, name, &["volume", "serve", "--dir", &space.dir()])
}

fn signal(server: &Server, signal: Signal) {
    kill_process(Pid::from_raw(server.pid()).unwrap(), signal).unwrap();
}

#[test]
fn clients_of_all_servers_use_the_same_device() {
    let space = space("stripe");
    let (one, two) = (serve(&space, "one"), serve(&space, "two"));
    let mut owner = Client::connect(&one.uri("vm"));
    let mut other = Client::connect(&two.uri("vm"));
    owner.does("h.pwrite(b'a' * 8192, 0)");
    other.does("assert bytes(h.pread(8192, 0)) == b'a' * 8192");
    other.does("h.pwrite(b'b' * 4096, 4096)");
    owner.does("assert bytes(h.pread(8192, 0)) == b'a' * 4096 + b'b' * 4096");
    // More than is sent at once, holes, and what is refused.
    other.does("big = bytes(range(256)) * (20 << 12); h.pwrite(big, 1 << 20)");
    other.does("assert bytes(h.pread(20 << 20, 1 << 20)) == big");
    other.does("h.flush()");
    other.does("h.trim(4 << 20, 1 << 20); h.zero(65536, 8 << 20, nbd.CMD_FLAG_NO_HOLE)");
    owner.does("assert bytes(h.pread(4 << 20, 1 << 20)) == bytes(4 << 20)");
    other.does(
        "seen = []; h.block_status(64 << 20, 0, lambda c, at, found, e: seen.extend(found)); \
         assert sum(seen[::2]) == 64 << 20 and seen[1] == 0 and seen[-1] == 3, seen",
    );
    other.does("h.set_strict_mode(0); refused(lambda: h.pwrite(b'x', 64 << 20), 'ENOSPC')");
    python(OVERLAPS, &[&two.uri("vm")]);
    // Another client is served when the owner's clients are gone, and when the owner is.
    drop(owner);
    other.does("h.pwrite(b'c' * 512, 0); h.flush()");
    one.end();
    other.does("assert bytes(h.pread(1024, 0)) == b'c' * 512 + b'a' * 512");
    other.does("h.pwrite(b'd' * 512, 0); h.flush()");
    let again = serve(&space, "again");
    let mut client = Client::connect(&again.uri("vm"));
    client.does("assert bytes(h.pread(1024, 0)) == b'd' * 512 + b'a' * 512");
    // It grew: each server's clients see that when they connect.
    let out = nuri(&["volume", "resize", "vm", "96M", "--dir", &space.dir()]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let mut client = Client::connect(&again.uri("vm"));
    client.does("h.pwrite(b'end', (96 << 20) - 3)");
    client.does("assert bytes(h.pread(3, (96 << 20) - 3)) == b'end'");
    drop((client, other));
    again.end();
    two.end();
    space.down_clean();
}

/// Writes with a number in each block, on channels to several servers. A request whose channel
/// ended, or that had no answer in 12 s, is repeated on the next one. Says how long the longest
/// pause was.
const WRITER: &str = "
import threading, time
uris, channels, seconds = sys.argv[1].split(), int(sys.argv[2]), float(sys.argv[3])
until, longest, written, failed = time.time() + seconds, [0.0], {}, []
class Channel:
    def __init__(self, first):
        self.next, self.h = first, None
    def ask(self, act):
        begin = time.time()
        while True:
            assert time.time() - begin < 40, 'no server for 40 s'
            try:
                if self.h is None:
                    self.h = connect(uris[self.next % len(uris)])
                cookie = act(self.h)
                while not self.h.aio_command_completed(cookie):
                    if self.h.poll(1000) == 0 and time.time() - begin > 12:
                        raise nbd.Error('silent', 0)
                longest[0] = max(longest[0], time.time() - begin)
                return
            except nbd.Error as error:
                # An answer that is an error is one: only a lost channel is repeated.
                alive = self.h is not None and self.h.aio_is_ready()
                if alive and error.errno: raise
                self.h, self.next = None, self.next + 1
                time.sleep(0.05)
def write(who):
    channel, count = Channel(who), 0
    while time.time() < until:
        at = ((count * 7919 + who * 13) % 1024) * 8 + who
        data = bytearray(struct.pack('<QQ', who, count) * 256)
        try:
            channel.ask(lambda h: h.aio_pwrite(nbd.Buffer.from_bytearray(data), at * 4096))
            written[at] = data
            count += 1
            if count % 20 == 0: channel.ask(lambda h: h.aio_flush())
        except Exception as error:
            failed.append(repr(error))
            return
threads = [threading.Thread(target=write, args=(who,)) for who in range(channels)]
for t in threads: t.start()
for t in threads: t.join()
assert not failed, failed
def check(uri):
    begin = time.time()
    while True:
        try: h = connect(uri)
        except nbd.Error: return
        try:
            h.flush()
            wrong = [at for at, data in written.items() if h.pread(4096, at * 4096) != data]
            assert not wrong, (uri, wrong)
            return
        except nbd.Error:
            # A server that stood still has another session: its connections end, late maybe.
            if h.aio_is_ready() or time.time() - begin > 40: raise
for uri in uris: check(uri)
print(len(written), round(longest[0], 2))
";

fn write_on(uris: &str, channels: u32, seconds: u32) -> Child {
    let script = format!("{PRELUDE}{WRITER}");
    let (channels, seconds) = (channels.to_string(), seconds.to_string());
    let mut writer = Command::new(PYTHON);
    writer.args(["-c", &script, uris, &channels, &seconds]);
    writer.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    writer.spawn().unwrap()
}

/// Ends well; blocks that were written, and the longest pause in seconds.
fn wrote(writer: Child) -> (u64, f64) {
    let out = writer.wait_with_output().unwrap();
    assert!(out.status.success(), "{}", text(&out.stderr));
    let said = text(&out.stdout);
    let (blocks, pause) = said.trim().split_once(' ').unwrap();
    (blocks.parse().unwrap(), pause.parse().unwrap())
}

/// Under a writer the owner is lost in some way, then a server that forwards.
fn servers_are_lost(shape: &str, channels: u32, lose: impl FnOnce(Server)) {
    let space = space(shape);
    let first = serve(&space, "first");
    let mut taken = Client::connect(&first.uri("vm"));
    taken.does("h.pwrite(b'x', 0)");
    let (second, third) = (serve(&space, "second"), serve(&space, "third"));
    let uris = [first.uri("vm"), second.uri("vm"), third.uri("vm")].join(" ");
    let writer = write_on(&uris, channels, 22);
    std::thread::sleep(Duration::from_secs(3));
    lose(first);
    std::thread::sleep(Duration::from_secs(11));
    drop(third);
    let (blocks, pause) = wrote(writer);
    eprintln!("{shape}, {channels} channels: {blocks} blocks, longest pause {pause} s");
    assert!(blocks > 100, "{shape}: {blocks} blocks");
    assert!(pause < 15.0, "{pause} s without an answer");
    second.end();
    space.down();
}

#[test]
fn a_killed_server_costs_one_channel_a_pause_and_no_write() {
    servers_are_lost("mirror:2", 1, drop);
}

#[test]
fn a_killed_server_costs_four_channels_to_stripes_a_pause_and_no_write() {
    servers_are_lost("stripe", 4, drop);
}

/// The owner comes back to life when another one has taken its place.
#[test]
fn a_server_that_stands_still_costs_a_pause_and_no_write() {
    servers_are_lost("parity:3+1", 2, |owner| {
        signal(&owner, Signal::STOP);
        std::thread::sleep(Duration::from_secs(14));
        signal(&owner, Signal::CONT);
        std::thread::sleep(Duration::from_secs(2));
    });
}

/// NBD-1: what lay in a server that stood still is not served after what was sent later elsewhere.
#[test]
fn a_request_that_was_repeated_elsewhere_is_never_served_late() {
    let space = space("mirror:2");
    let (owner, forwarder) = (serve(&space, "owner"), serve(&space, "forwarder"));
    let mut direct = Client::connect(&owner.uri("vm"));
    direct.does("h.pwrite(b'0' * 4096, 0)");
    let mut late = Client::connect(&forwarder.uri("vm"));
    late.does("h.pwrite(b'1' * 4096, 0)");
    signal(&forwarder, Signal::STOP);
    late.does("b = nbd.Buffer.from_bytearray(bytearray(b'2' * 4096)); c = h.aio_pwrite(b, 0)");
    // Longer than a request may be old: a client repeats it on another channel, and goes on.
    std::thread::sleep(Duration::from_secs(12));
    direct.does("h.pwrite(b'2' * 4096, 0); h.pwrite(b'3' * 4096, 0)");
    signal(&forwarder, Signal::CONT);
    std::thread::sleep(Duration::from_secs(3));
    direct.does("assert bytes(h.pread(4096, 0)) == b'3' * 4096, h.pread(1, 0)");
    // Its channel was closed, so that nobody waits for an answer.
    late.does("\nwhile not h.aio_is_closed() and not h.aio_is_dead(): h.poll(1000)");
    let mut anew = Client::connect(&forwarder.uri("vm"));
    anew.does("assert bytes(h.pread(4096, 0)) == b'3' * 4096");
    drop((anew, late, direct));
    forwarder.end();
    owner.end();
    space.down_clean();
}

/// An owner that is cut off cannot know whether another server owns the volume by now.
#[test]
fn a_flush_that_nobody_can_vouch_for_is_not_answered() {
    let space = space("mirror:2");
    let owner = serve(&space, "owner");
    let script = "
import os, signal, time
h, first = connect(sys.argv[1]), int(sys.argv[2])
h.pwrite(b'1' * 4096, 0)
# Nothing is left to write then, so that a flush has nothing to ask anybody for.
for _ in range(3):
    h.flush()
    time.sleep(1)
os.kill(first, signal.SIGSTOP)
try:
    time.sleep(8)
    answered, cookie, begun = False, h.aio_flush(), time.time()
    try:
        while not answered and time.time() - begun < 12:
            h.poll(500)
            answered = h.aio_command_completed(cookie)
    except nbd.Error:
        pass
    assert not answered, time.time() - begun
finally:
    os.kill(first, signal.SIGCONT)
";
    python(script, &[&owner.uri("vm"), &space.pid("node0").to_string()]);
    let mut client = Client::connect(&owner.uri("vm"));
    client.does("assert bytes(h.pread(4096, 0)) == b'1' * 4096; h.flush()");
    drop(client);
    owner.end();
    space.down_clean();
}
