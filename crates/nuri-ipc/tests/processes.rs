//! Real processes: this test binary starts itself again as the peers, and kills them.

#![allow(clippy::unwrap_used)]

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nuri_ipc::{Config, CrossMemory, Endpoint, Error, Selector};

const SOON: Option<Duration> = Some(Duration::from_secs(30));
/// A blocked call ends within 100 ms of a death; the rest is for a loaded machine.
const NOTICED: Duration = Duration::from_millis(1000);

/// A peer that dies with the test.
struct Peer(Child);

impl Peer {
    /// Starts `role` (a test of this file that does nothing unless it is asked by name).
    fn start(role: &str, dir: &Path) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([&format!("roles::{role}"), "--exact", "--nocapture", "--ignored"]);
        command.env("NURI_IPC_TEST_DIR", dir).stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().unwrap())
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        assert_eq!(self.0.wait().unwrap().signal(), Some(9));
    }

    fn ends_well(mut self) {
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn config(dir: &Path, rank: u32) -> Config {
    Config::new("processes", rank, 2).dir(dir.join("ipc"))
}

fn pattern(len: usize, seed: u64) -> Vec<u8> {
    (0..len).map(|i| (i as u64 * 31 + (i as u64 >> 8) + seed) as u8).collect()
}

/// What the started processes do. They are rank 1; rank 0 is the test.
mod roles {
    use super::*;

    fn open() -> Endpoint {
        let dir = std::env::var_os("NURI_IPC_TEST_DIR").expect("started by a test");
        Endpoint::open(config(Path::new(&dir), 1)).unwrap()
    }

    /// Sends back what it gets until an empty message comes.
    #[test]
    #[ignore = "a role"]
    fn echo() {
        let end = open();
        let mut bytes = vec![0; 8 << 20];
        loop {
            let status = end.recv(Selector::exact(0, 0).any_tag(), &mut bytes, SOON).unwrap();
            end.send(0, status.tag, &bytes[..status.len as usize]).unwrap();
            if status.len == 0 {
                return;
            }
        }
    }

    /// Sends messages of all sizes as fast as it can.
    #[test]
    #[ignore = "a role"]
    fn flood() {
        let end = open();
        for i in 0.. {
            let len = [8, 900, 5000, 100_000, 3_000_000][i as usize % 5];
            if end.send(0, i, &pattern(len, i)).is_err() {
                return;
            }
        }
    }

    /// Says that it is there, and receives nothing.
    #[test]
    #[ignore = "a role"]
    fn deaf() {
        let end = open();
        end.send(0, 0, b"here").unwrap();
        std::thread::sleep(Duration::from_secs(60));
    }

    /// Holds what is lent to it.
    #[test]
    #[ignore = "a role"]
    fn holder() {
        let end = open();
        end.send(0, 0, b"here").unwrap();
        let mut held = Vec::new();
        loop {
            held.push(end.recv_open(Selector::exact(0, 1), SOON).unwrap());
        }
    }

    /// Receives messages of any length as fast as it can.
    #[test]
    #[ignore = "a role"]
    fn sink() {
        let end = open();
        end.send(0, 0, b"here").unwrap();
        let mut bytes = vec![0; 3_000_000];
        while end.recv(Selector::exact(0, 0).any_tag(), &mut bytes, SOON).is_ok() {}
    }

    /// Waits for a message that does not come.
    #[test]
    #[ignore = "a role"]
    fn waiting() {
        let end = open();
        end.send(0, 0, b"here").unwrap();
        let error = end.recv(Selector::exact(0, 1), &mut [], SOON).unwrap_err();
        assert_eq!(error, Error::PeerGone { rank: 0 });
    }
}

#[test]
fn every_size_there_and_back() {
    let temp = tempfile::tempdir().unwrap();
    let end = Endpoint::open(config(temp.path(), 0)).unwrap();
    let peer = Peer::start("echo", temp.path());
    for (tag, len) in [1, 64, 1024, 1025, 20_000, 1 << 20, 5 << 20].into_iter().enumerate() {
        let sent = pattern(len, tag as u64);
        end.send(1, tag as u64, &sent).unwrap();
        let mut got = vec![0; len];
        end.recv(Selector::exact(1, tag as u64), &mut got, SOON).unwrap();
        assert!(got == sent, "of length {len}");
    }
    end.send(1, 0, &[]).unwrap();
    end.recv(Selector::ANY, &mut [], SOON).unwrap();
    peer.ends_well();
    drop(end);
    assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 0, "nothing stays behind");
}

/// Whoever sleeps is woken: a lost wake-up would cost 100 ms, and one in ten may be that unlucky.
#[test]
fn sleepers_are_woken() {
    let temp = tempfile::tempdir().unwrap();
    let end = Endpoint::open(config(temp.path(), 0)).unwrap();
    let peer = Peer::start("echo", temp.path());
    end.send(1, 1, b"first").unwrap();
    end.recv(Selector::ANY, &mut [0; 5], SOON).unwrap();
    let started = Instant::now();
    for pause in 0..400 {
        std::thread::sleep(Duration::from_micros(pause));
        end.send(1, 1, &[7]).unwrap();
        end.recv(Selector::ANY, &mut [0], SOON).unwrap();
    }
    assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
    end.send(1, 0, &[]).unwrap();
    end.recv(Selector::ANY, &mut [], SOON).unwrap();
    peer.ends_well();
}

/// Kills a sender at any instruction, again and again, in the same session.
#[test]
fn senders_are_killed_in_mid_message() {
    let temp = tempfile::tempdir().unwrap();
    let end = Endpoint::open(config(temp.path(), 0)).unwrap();
    let mut bytes = vec![0; 3_000_000];
    for round in 0..12u64 {
        let mut peer = Peer::start("flood", temp.path());
        let mut killed = None;
        let mut count = 0;
        loop {
            match end.recv(Selector::exact(1, 0).any_tag(), &mut bytes, SOON) {
                Ok(status) => {
                    let len = status.len as usize;
                    assert!(bytes[..len] == pattern(len, status.tag), "message {}", status.tag);
                    assert_eq!(status.tag, count, "in order");
                    count += 1;
                }
                Err(Error::PeerGone { rank: 1 }) if killed.is_some() => break,
                Err(Error::PeerGone { rank: 1 }) if count == 0 => again(),
                Err(e) => panic!("{e}"),
            }
            if killed.is_none() && count > 3 * round {
                peer.kill();
                killed = Some(Instant::now());
            }
        }
    }
}

/// Kills a receiver at any instruction, by the ring and by the kernel's copy in turn.
#[test]
fn receivers_are_killed_in_mid_message() {
    let temp = tempfile::tempdir().unwrap();
    for round in 0..10u64 {
        let when = [CrossMemory::Never, CrossMemory::From(2000)][round as usize % 2];
        let end = Endpoint::open(config(temp.path(), 0).cross_memory(when)).unwrap();
        let mut peer = Peer::start("sink", temp.path());
        greeting(&end);
        let killer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_micros(700 * round));
            peer.kill();
            Instant::now()
        });
        let lengths = [8, 900, 5000, 100_000, 3_000_000].into_iter().cycle().zip(0..);
        let mut sends = lengths.map(|(len, tag)| end.send(1, tag, &pattern(len, tag)));
        let error = sends.find_map(Result::err).unwrap();
        let noticed = Instant::now();
        assert!(matches!(error, Error::PeerGone { rank: 1 }), "{error}");
        assert!(noticed.saturating_duration_since(killer.join().unwrap()) < NOTICED);
        assert_eq!(end.info().rings, 0, "its rings are given back");
    }
}

#[test]
fn what_a_killed_peer_held_returns() {
    let temp = tempfile::tempdir().unwrap();
    let end = Endpoint::open(config(temp.path(), 0).heap(1 << 20)).unwrap();
    for _ in 0..4 {
        let mut peer = Peer::start("holder", temp.path());
        greeting(&end);
        for _ in 0..16 {
            end.send_loan(1, 1, end.alloc(65536).unwrap()).unwrap();
        }
        assert_eq!(end.alloc(1).unwrap_err(), Error::HeapFull);
        peer.kill();
        let gone = end.recv(Selector::exact(1, 9), &mut [], SOON);
        assert_eq!(gone, Err(Error::PeerGone { rank: 1 }));
        let started = Instant::now();
        while end.alloc(1 << 20).is_err() {
            assert!(started.elapsed() < NOTICED);
            let _ = end.iprobe(Selector::ANY);
        }
    }
}

#[test]
fn waits_end_when_the_peer_is_killed() {
    let temp = tempfile::tempdir().unwrap();
    let end = Endpoint::open(config(temp.path(), 0)).unwrap();
    let gone = Error::PeerGone { rank: 1 };
    for round in 0..6 {
        let mut peer = Peer::start("deaf", temp.path());
        greeting(&end);
        let killer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(30));
            peer.kill();
            Instant::now()
        });
        let blocked = match round % 2 {
            0 => end.recv(Selector::exact(1, 0), &mut [], SOON).map(|_| ()),
            _ => end.send(1, 0, &vec![0; 32 << 20]),
        };
        let noticed = Instant::now();
        assert_eq!(blocked, Err(gone.clone()));
        let killed = killer.join().unwrap();
        assert!(noticed.saturating_duration_since(killed) < NOTICED);
    }
    drop(end);
    assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 0, "the dead leave nothing");
}

#[test]
fn a_waiting_process_uses_no_processor_and_sees_the_end() {
    let temp = tempfile::tempdir().unwrap();
    let end = Endpoint::open(config(temp.path(), 0)).unwrap();
    let peer = Peer::start("waiting", temp.path());
    greeting(&end);
    // A process that spins does so in each second; one that is still starting on a machine that is
    // busy, not.
    let least = (0..5).map(|_| ticks_in_a_second(peer.0.id())).find(|used| *used <= 2);
    assert!(least.is_some(), "hundredths of a second in each second of waiting");
    drop(end);
    peer.ends_well();
}

/// The peer's first message. Until the new process has opened its rank, the old one is gone.
fn greeting(end: &Endpoint) {
    while let Err(e) = end.recv(Selector::exact(1, 0), &mut [0; 4], SOON) {
        assert_eq!(e, Error::PeerGone { rank: 1 });
        again();
    }
}

fn again() {
    std::thread::sleep(Duration::from_millis(1));
}

fn ticks_in_a_second(pid: u32) -> u64 {
    let before = ticks(pid);
    std::thread::sleep(Duration::from_secs(1));
    ticks(pid) - before
}

/// Processor time of a process, in hundredths of a second.
fn ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}
