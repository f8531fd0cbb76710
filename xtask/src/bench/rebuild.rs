//! Coming back: how fast a lost target is rebuilt, what programs keep of their speed meanwhile,
//! and how much a target is brought that was away for a while.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::measure::{Files, Transfer};
use super::median;
use super::mix::device_mix;
use crate::apps::Mounted;
use crate::shell::{Build, script};

const MIB: u64 = 1 << 20;
/// What the space holds before a target is lost.
const HELD: usize = 3 << 30;
/// One pass of the program beside the rebuild.
const PASS: usize = 192 << 20;
const AWAY: Duration = Duration::from_secs(30);
/// Written while a target is away.
const MISSED: usize = 512 << 20;
const LIMIT: Duration = Duration::from_secs(300);
/// Data members of the shape.
const DATA: f64 = 3.0;

/// Measures and prints; fails only where something could not be measured.
pub(crate) fn run(dir: &Path) -> Result<(), String> {
    let [read, write] = raw(dir)?;
    println!("device, O_DIRECT: reads {read:.0}, writes {write:.0} MiB/s");
    let space = Space::up(dir, 8)?;
    space.fill("held", HELD)?;
    let before = device_mix(dir)?;
    let rebuilt = space.rebuild("--rate 100G", |_| Ok(()))?;
    let after = device_mix(dir)?;
    // All targets share the device: of each rebuilt byte it reads three and writes one.
    let (in_turn, mixed) = (1.0 / (DATA / read + 1.0 / write), (before + after) / 2.0);
    println!(
        "rebuild of one target of eight: {:.0} MiB in {:.1} s, {:.0} MiB/s",
        rebuilt.mib,
        rebuilt.seconds,
        rebuilt.rate()
    );
    println!(
        "  {:.2} of what the device gives to the same mix of calls ({before:.0} MiB/s before, \
         {after:.0} after), {:.2} of its sequential rates put together ({in_turn:.0})",
        rebuilt.rate() / mixed,
        rebuilt.rate() / in_turn
    );
    println!("  read by each of the others, MiB: {:.0?}", rebuilt.read_by_others);
    space.foreground()?;
    drop(space);
    let space = Space::up(dir, 4)?;
    space.outage()
}

/// The device's own rates, reading and writing.
fn raw(dir: &Path) -> Result<[f64; 2], String> {
    let file = dir.join("raw");
    let f = file.display();
    let dd = |words: &str| -> Result<f64, String> {
        let start = Instant::now();
        sh(&format!("dd bs=1M count=1024 {words} 2>/dev/null"))?;
        Ok(1024.0 / start.elapsed().as_secs_f64())
    };
    std::fs::create_dir_all(dir).map_err(|e| e.to_string())?;
    sh(&format!("dd if=/dev/zero of={f} bs=1M count=1024 oflag=direct 2>/dev/null"))?;
    let write = dd(&format!("if=/dev/zero of={f} conv=notrunc,fsync oflag=direct"))?;
    let read = dd(&format!("if={f} of=/dev/null iflag=direct"))?;
    sh(&format!("rm {f}"))?;
    Ok([read, write])
}

fn sh(text: &str) -> Result<String, String> {
    script(text, LIMIT)
}

/// What a rebuild took.
struct Rebuilt {
    mib: f64,
    seconds: f64,
    read_by_others: Vec<f64>,
}

impl Rebuilt {
    fn rate(&self) -> f64 {
        self.mib / self.seconds
    }
}

struct Space(Mounted);

impl Space {
    fn up(dir: &Path, nodes: usize) -> Result<Space, String> {
        let args = format!("--nodes {nodes} --target-size 4G --shape parity:3+1");
        Mounted::up(Build::Release, dir, &args).map(Space)
    }

    fn fill(&self, name: &str, total: usize) -> Result<f64, String> {
        let dir = self.0.mnt.join(name);
        std::fs::create_dir_all(&dir).map_err(|e| e.to_string())?;
        let transfer = Transfer { block: 1 << 20, jobs: 1, files: Files::Own, total };
        transfer.write(std::slice::from_ref(&dir)).map_err(|e| e.to_string())
    }

    fn status(&self) -> Result<Value, String> {
        let (n, s, _) = self.0.names();
        let text = sh(&format!("{n} status --json --dir {s}"))?;
        serde_json::from_str(&text).map_err(|e| e.to_string())
    }

    fn pid(&self, role: &str) -> Result<String, String> {
        let path = self.0.space.join(format!("run/{role}.lock"));
        let text = std::fs::read_to_string(&path);
        text.map(|t| t.trim().into()).map_err(|e| format!("{}: {e}", path.display()))
    }

    /// The target of a node that is up.
    fn target_of(&self, role: &str) -> Result<u64, String> {
        let (status, pid) = (self.status()?, self.pid(role)?);
        let find = |list: &str, f: &dyn Fn(&Value) -> bool| {
            status[list].as_array().and_then(|all| all.iter().rfind(|v| f(v)).cloned())
        };
        let node = find("nodes", &|n| n["pid"].as_u64().is_some_and(|p| pid == p.to_string()))
            .ok_or("no such node")?;
        let own = find("targets", &|t| t["node"] == node["id"] && t["state"] == "up");
        own.and_then(|t| t["id"].as_u64()).ok_or_else(|| "no such target".into())
    }

    fn pace(&self, words: &str) -> Result<(), String> {
        let (n, s, _) = self.0.names();
        sh(&format!("{n} target resync {words} --dir {s}")).map(drop)
    }

    /// Wipes a node's target, puts its new one in the place of the old one, and waits until it has
    /// everything; `beside` is called again and again meanwhile.
    fn rebuild(
        &self,
        pace: &str,
        mut beside: impl FnMut(&Space) -> Result<(), String>,
    ) -> Result<Rebuilt, String> {
        let (n, s, _) = self.0.names();
        let (old, pid) = (self.target_of("node3")?, self.pid("node3")?);
        let supervisor = self.pid("supervisor")?;
        sh(&format!(
            "kill -STOP {supervisor}; kill -9 {pid}
             while grep -qs '^State:.[^Z]*$' /proc/{pid}/status; do sleep 0.02; done
             rm -rf {s}/target3; kill -CONT {supervisor}; sleep 6"
        ))?;
        let new = self.target_of("node3")?;
        self.pace(pace)?;
        let before = self.read_by_others()?;
        let start = Instant::now();
        sh(&format!("{n} target replace {old} {new} --dir {s}"))?;
        let mut stripes = 0;
        loop {
            beside(self)?;
            let status = self.status()?;
            let resyncs = status["health"]["resyncs"].as_array().into_iter().flatten();
            stripes = resyncs.filter_map(|r| r["bytes"].as_u64()).fold(stripes, u64::max);
            let mut targets = status["targets"].as_array().into_iter().flatten();
            if targets.any(|t| t["id"] == new && t["behind"] == 0 && t["places"] != 0) {
                break;
            }
            if start.elapsed() > LIMIT {
                return Err("the rebuild does not end".into());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let after = self.read_by_others()?;
        let read_by_others = after.iter().zip(&before).map(|(a, b)| (a - b) / MIB as f64);
        Ok(Rebuilt {
            mib: stripes as f64 / MIB as f64,
            seconds: start.elapsed().as_secs_f64(),
            read_by_others: read_by_others.collect(),
        })
    }

    fn read_by_others(&self) -> Result<Vec<f64>, String> {
        let others = (0..8).filter(|i| *i != 3);
        others.map(|i| Ok(io_of(&self.pid(&format!("node{i}"))?)?[0] as f64)).collect()
    }

    /// The speed of a program beside a rebuild at the default pace, of its speed alone.
    fn foreground(&self) -> Result<(), String> {
        let mut alone = Vec::new();
        for _ in 0..5 {
            alone.push(self.fill("foreground", PASS)?);
        }
        let mut beside = Vec::new();
        let rebuilt = self.rebuild("--gentle", |space| {
            beside.push(space.fill("foreground", PASS)?);
            Ok(())
        })?;
        // The last one may have been alone for a part.
        beside.pop();
        let passes = beside.len();
        println!(
            "writer beside the rebuild ({:.0} MiB, {:.1} s, {passes} passes): {:.2} of alone",
            rebuilt.mib,
            rebuilt.seconds,
            median(beside) / median(alone)
        );
        Ok(())
    }

    /// Stops a node while programs write, and counts what is written at it once it is back.
    fn outage(&self) -> Result<(), String> {
        self.fill("load", MISSED)?;
        let pid = self.pid("node2")?;
        let start = Instant::now();
        sh(&format!("kill -STOP {pid}; sleep 5"))?;
        self.fill("missed", MISSED)?;
        std::thread::sleep(AWAY.saturating_sub(start.elapsed()));
        let before = io_of(&pid)?;
        sh(&format!("kill -CONT {pid}; sleep 1"))?;
        let back = Instant::now();
        while self.status()?["health"]["state"] != "ok" {
            if back.elapsed() > LIMIT {
                return Err("the target does not come back".into());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        let wrote = (io_of(&pid)?[1] - before[1]) as f64 / MIB as f64;
        let missed = (MISSED as u64 / MIB) as f64 / DATA;
        println!(
            "after {} s away: {missed:.0} MiB were its share meanwhile, {wrote:.0} MiB written at \
             it until it had all, {:.2} times that, in {:.1} s",
            AWAY.as_secs(),
            wrote / missed,
            back.elapsed().as_secs_f64()
        );
        Ok(())
    }
}

/// Bytes that a process read from and wrote to disks.
fn io_of(pid: &str) -> Result<[u64; 2], String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/io")).map_err(|e| e.to_string())?;
    let field = |name: &str| {
        let mut lines = text.lines().filter_map(|l| l.strip_prefix(name));
        lines.next().and_then(|v| v.trim().parse().ok()).unwrap_or(0)
    };
    Ok([field("read_bytes:"), field("write_bytes:")])
}
