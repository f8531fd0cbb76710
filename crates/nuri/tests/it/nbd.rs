//! A server of block devices as a person starts it, and clients of it.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use crate::support::{NURI, Space, run, text, wait};

/// The one that Debian gives libnbd its module for.
pub const PYTHON: &str = "/usr/bin/python3";

/// What clients do by libnbd's Python module; every script begins so.
pub const PRELUDE: &str = "
import nbd, sys, struct, hashlib
def connect(uri):
    h = nbd.NBD()
    h.add_meta_context('base:allocation')
    h.connect_uri(uri)
    return h
def refused(act, errno):
    try:
        act()
    except nbd.Error as e:
        assert e.errno == errno, (e.errno, errno, e.string)
        return
    raise AssertionError('not refused: expected ' + errno)
";

/// Writes under way at the same time, also to parts of the same blocks: the later one stays.
pub const OVERLAPS: &str = "
import random
h = connect(sys.argv[1])
h.set_strict_mode(0)
draw, model, base = random.Random(7), bytearray(65536), 32 << 20
h.pwrite(bytes(model), base)
for round in range(100):
    begun = []
    for _ in range(16):
        at, count = draw.randrange(65000), draw.randrange(1, 500)
        data = bytes([draw.randrange(256)]) * count
        model[at:at + count] = data
        buffer = nbd.Buffer.from_bytearray(bytearray(data))
        begun.append((h.aio_pwrite(buffer, base + at), buffer))
    for cookie, _ in begun:
        while not h.aio_command_completed(cookie): h.poll(-1)
    assert bytes(h.pread(65536, base)) == model, round
h.shutdown()
";

/// A server of block devices, as a person starts it.
pub struct Server {
    child: Child,
    pub socket: PathBuf,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    /// `nuri` with these arguments, and a socket in the space's directory.
    pub fn start(space: &Space, name: &str, args: &[&str]) -> Server {
        let (socket, log) =
            (space.path(&format!("{name}.sock")), space.path(&format!("{name}.log")));
        let mut serve = Command::new(NURI);
        serve.args(args).arg("--socket").arg(&socket);
        let out = File::create(&log).unwrap();
        let child = serve.stdout(Stdio::null()).stderr(out).spawn().unwrap();
        wait("devices are served", Duration::from_secs(10), || {
            let said = fs::read_to_string(&log).unwrap();
            if said.contains("nbd: serves ") { Ok(()) } else { Err(said) }
        });
        Server { child, socket }
    }

    pub fn uri(&self, volume: &str) -> String {
        format!("nbd+unix:///{volume}?socket={}", self.socket.display())
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// As a person ends it; fails where it does not end well.
    pub fn end(mut self) {
        let pid = rustix::process::Pid::from_raw(self.pid()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(self.child.wait().unwrap().success());
        assert!(!self.socket.exists(), "its socket goes with it");
    }
}

pub fn python(script: &str, args: &[&str]) -> String {
    run(PYTHON, &[&["-c", &format!("{PRELUDE}{script}")], args].concat())
}

/// A client that does what it is told, line by line, until it is dropped.
pub struct Client {
    child: Child,
    words: ChildStdin,
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Client {
    pub fn connect(uri: &str) -> Client {
        let script = format!(
            "{PRELUDE}\nh = connect(sys.argv[1])\nprint('ready', flush=True)\n\
             for line in sys.stdin:\n    exec(line)\n    print('done', flush=True)\n"
        );
        let mut python = Command::new(PYTHON);
        python.args(["-c", &script, uri]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = python.spawn().unwrap();
        let words = child.stdin.take().unwrap();
        let mut client = Client { child, words };
        client.hear("ready");
        client
    }

    fn hear(&mut self, word: &str) {
        let mut heard = vec![0; word.len() + 1];
        self.child.stdout.as_mut().unwrap().read_exact(&mut heard).unwrap();
        assert_eq!(text(&heard).trim_end(), word);
    }

    pub fn does(&mut self, line: &str) {
        writeln!(self.words, "{line}").unwrap();
        self.hear("done");
    }
}
