//! Strangers at a node's door, without the space's secret.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::support::{Space, nuri};

const STRANGERS: usize = 2000;

/// A number of a process, as `/proc` shows it.
pub fn figure(pid: i32, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    let words = line.trim_start_matches(':').split_whitespace().next();
    words.unwrap().parse().unwrap()
}

/// They have neither a thread nor a buffer each, and nobody else waits for them.
#[test]
fn idle_strangers_cost_nothing_and_keep_nobody_out() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    let space = Space::up(&[]);
    let (node, status) = (space.pid("node0"), space.status());
    let address = status["nodes"][0]["address"].as_str().unwrap().to_string();
    let (threads, memory) = (figure(node, "Threads"), figure(node, "VmRSS"));
    let strangers: Vec<TcpStream> =
        (0..STRANGERS).map(|_| TcpStream::connect(&address).unwrap()).collect();
    let start = Instant::now();
    let mut file = fs::File::create(space.mnt().join("f")).unwrap();
    for i in 0..20u8 {
        file.write_all(&[i; 4096]).unwrap();
        file.sync_all().unwrap();
    }
    let took = start.elapsed();
    assert!(took < Duration::from_secs(20), "20 small writes took {took:?}");
    let shown = nuri(&["status", "--dir", &space.dir()]);
    assert!(shown.status.success(), "who knows the secret is let in");
    let (more, grown) = (figure(node, "Threads"), figure(node, "VmRSS"));
    assert!(more < threads + 50, "{threads} threads before, {more} now");
    assert!(grown < memory + (60 << 10), "{memory} KiB before, {grown} now");
    drop((strangers, file));
    space.down_clean();
}
