//! What a call that changes names, attributes, sizes or locks costs one mount that has its
//! directory alone, beside the local file system and a plain FUSE passthrough.

mod call;
pub(crate) mod turns;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use call::Call;

use super::measure::{Outcome, clear, told};
use super::median;
use super::peers::{Peer, Peers};
use crate::apps::Mounted;
use crate::shell::Build;

const PEERS: [Peer; 3] = [Peer::Local, Peer::Passthrough, Peer::Nuri];
/// How often each is done in a round.
const TIMES: usize = 300;
/// Done before, so that what a directory costs at first is not counted.
const WARM: usize = 30;

/// The calls whose name contains `only`.
fn chosen(only: &str) -> Result<Vec<Call>, String> {
    let calls: Vec<Call> = Call::ALL.into_iter().filter(|c| c.name().contains(only)).collect();
    let none = || format!("no call's name contains '{only}'");
    if calls.is_empty() { Err(none()) } else { Ok(calls) }
}

/// Measures the calls whose name contains `only` and prints the table.
pub(crate) fn run(rounds: usize, dir: &Path, only: &str) -> Result<(), String> {
    let calls = chosen(only)?;
    let peers = Peers::start(dir)?;
    println!("{}", peers.describe());
    let mut found: BTreeMap<(usize, Peer), Vec<f64>> = BTreeMap::new();
    let mut cpu: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    for round in 0..rounds {
        for (i, call) in calls.iter().enumerate() {
            for peer in PEERS {
                let before = peers.cpu_seconds();
                let each = measure(&peers, peer, *call);
                let each = each.map_err(|e| format!("{}: {peer:?}: {e}", call.name()))?;
                let millis = each.map_or(f64::NAN, |each| each.as_secs_f64() * 1e3);
                found.entry((i, peer)).or_default().push(millis);
                if peer == Peer::Nuri {
                    let used = (peers.cpu_seconds() - before) * 1e6 / (TIMES + WARM) as f64;
                    cpu.entry(i).or_default().push(used);
                }
            }
        }
        eprintln!("round {} of {rounds} done", round + 1);
    }
    print(&calls, &found, &cpu);
    Ok(())
}

/// How long one takes, where there is such a call.
fn measure(peers: &Peers, peer: Peer, call: Call) -> Outcome<Option<Duration>> {
    // passthrough_ll has no extended attributes.
    if peer == Peer::Passthrough && call.needs_xattrs() {
        return Ok(None);
    }
    let each = measure_in(&peers.path(peer), call)?;
    // What is left to be written must not be written while the next one is measured.
    peers.sync(peer)?;
    Ok(Some(each))
}

/// How long one takes in a new directory below an emptied one.
fn measure_in(root: &Path, call: Call) -> Outcome<Duration> {
    clear(root)?;
    let (warm, dir) = (root.join("warm"), root.join("dir"));
    for (dir, times) in [(&warm, WARM), (&dir, 0)] {
        told(std::fs::create_dir(dir))?;
        told(call.repeat(dir, "", times))?;
    }
    let start = Instant::now();
    told(call.repeat(&dir, "", TIMES))?;
    Ok(start.elapsed() / TIMES as u32)
}

/// Measures all calls on a small space of the build that tests use, in units of one that needs what
/// they need ([`Call::usual`]), and fails where one costs three times what it usually does. What
/// else the machine does only adds to a time: the shortest of the rounds counts.
pub(crate) fn run_short() -> Result<(), String> {
    const ROUNDS: usize = 3;
    const TOO_MUCH: f64 = 3.0;
    let base = std::env::temp_dir();
    let mounted = Mounted::up(Build::Tests, &base, "--nodes 2")?;
    let disk = tempfile::tempdir_in(&base).map_err(|e| format!("a directory on the disk: {e}"))?;
    let mut found = [Duration::MAX; Call::ALL.len()];
    let mut synced = Duration::MAX;
    for _ in 0..ROUNDS {
        synced = synced.min(measure_in(disk.path(), Call::WriteAndSync)?);
        for (call, found) in Call::ALL.into_iter().zip(&mut found) {
            let each =
                measure_in(&mounted.mnt, call).map_err(|e| format!("{}: {e}", call.name()))?;
            *found = each.min(*found);
        }
    }
    drop(mounted);
    // A disk that is memory syncs in no time, and the calls still ask servers.
    let synced = synced.max(Duration::from_micros(100));
    let taken = Call::ALL.into_iter().zip(found);
    let unit = taken.clone().find(|(call, _)| *call == Call::UNIT);
    let unit = unit.map_or(Duration::MAX, |(_, each)| each);
    println!("units: {unit:.1?}, {synced:.1?} with a sync\n{:<41} {:>8} {:>8}", "", "now", "usual");
    let mut slow = Vec::new();
    for (call, each) in taken {
        let unit = if call.waits_for_the_disk() { synced } else { unit };
        let (now, usual) = (each.as_secs_f64() / unit.as_secs_f64(), call.usual());
        println!("{:<41} {now:>8.1} {usual:>8.1}", call.name());
        if now > TOO_MUCH * usual {
            slow.push(format!("'{}' costs {now:.1}, usually {usual:.1}", call.name()));
        }
    }
    if slow.is_empty() { Ok(()) } else { Err(slow.join(", ")) }
}

fn print(
    calls: &[Call],
    found: &BTreeMap<(usize, Peer), Vec<f64>>,
    cpu: &BTreeMap<usize, Vec<f64>>,
) {
    println!(
        "\n{:<41} {:>8} {:>12} {:>8} {:>8} {:>8} {:>10}",
        "ms for one", "local", "passthrough", "nuri", "/pass", "aim", "cpu us"
    );
    for (i, call) in calls.iter().enumerate() {
        let value = |peer| median(found.get(&(i, peer)).cloned().unwrap_or_default());
        let (local, pass, nuri) = (value(Peer::Local), value(Peer::Passthrough), value(Peer::Nuri));
        let used = median(cpu.get(&i).cloned().unwrap_or_default());
        let verdict = if nuri <= call.aim() { "ok" } else { ">" };
        println!(
            "{:<41} {local:>8.3} {pass:>12.3} {nuri:>8.3} {:>8.2} {:>5.2} {verdict:<2} {:>10.0}",
            call.name(),
            nuri / pass,
            call.aim(),
            used,
        );
    }
}
