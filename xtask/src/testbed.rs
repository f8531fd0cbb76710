//! A space over machines with a cable each, as network namespaces around a switch.
//!
//! The first machine has the metadata, one target and the mount, and looks after itself
//! (`nuri up`); the others run one node each, started again by whoever ends them.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nuri_netns::{Link, Network};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::apps::{Mounted, end_mount, wait_mounted};
use crate::shell::{Build, root, script};

const LIMIT: Duration = Duration::from_secs(120);
const STARTING: Duration = Duration::from_secs(30);
const PORT: u16 = 7400;

/// Gone with the value.
struct OwnNetwork {
    network: Network,
    /// With a node.
    machines: u64,
}

/// See the module's text.
pub(crate) struct Testbed {
    // In this order they end.
    mounts: Vec<(PathBuf, Child)>,
    nodes: Vec<Child>,
    pub(crate) mounted: Mounted,
    network: OwnNetwork,
}

fn sh(text: &str) -> Result<String, String> {
    script(text, LIMIT)
}

impl OwnNetwork {
    /// Machines with nodes, and others.
    fn new(machines: u64, others: u64, link: Option<Link>) -> Result<OwnNetwork, String> {
        let network = Network::named(std::process::id(), machines + others);
        let own = OwnNetwork { network, machines };
        own.network.make(link).map_err(|e| e.to_string())?;
        Ok(own)
    }

    fn enter(&self, machine: u64) -> String {
        self.network.enter(machine).join(" ")
    }
}

impl Drop for OwnNetwork {
    fn drop(&mut self) {
        let _ = self.network.remove();
    }
}

fn address(machine: u64) -> String {
    format!("{}:{PORT}", Network::address(machine))
}

impl Testbed {
    /// Starts nodes on so many machines.
    pub(crate) fn up(base: &std::path::Path, machines: u64) -> Result<Testbed, String> {
        Testbed::beside(base, machines, 0, None)
    }

    /// The same with more machines, which run no node, and links of that rate.
    pub(crate) fn beside(
        base: &std::path::Path,
        machines: u64,
        others: u64,
        link: Option<Link>,
    ) -> Result<Testbed, String> {
        let network = OwnNetwork::new(machines, others, link)?;
        let more = format!("--targets 1 --target-size 2G --listen {}", address(0));
        let mounted = Mounted::up_by(Build::Tests, base, &network.enter(0), &more)?;
        let mut testbed = Testbed { mounts: Vec::new(), nodes: Vec::new(), mounted, network };
        for machine in 1..machines {
            let node = testbed.spawn(machine)?;
            testbed.nodes.push(node);
        }
        testbed.wait("its machines", |status| {
            let up = |t: &&Value| t["state"] == "up";
            let targets = status["targets"].as_array().into_iter().flatten();
            targets.filter(up).count() as u64 == machines
        })?;
        Ok(testbed)
    }

    /// Of its first node.
    pub(crate) fn first(&self) -> String {
        address(0)
    }

    /// Where a machine is.
    pub(crate) fn address(&self, machine: u64) -> String {
        Network::address(machine)
    }

    /// The words that enter a machine.
    pub(crate) fn enter(&self, machine: u64) -> Vec<String> {
        self.network.network.enter(machine)
    }

    fn file(&self, name: &str, machine: u64) -> PathBuf {
        self.mounted.space.with_file_name(format!("{name}{machine}"))
    }

    pub(crate) fn target(&self, machine: u64) -> PathBuf {
        match machine {
            0 => self.mounted.space.join("target0"),
            _ => self.file("target", machine),
        }
    }

    /// Nuri on that machine, with its words in the machine's log.
    fn command(&self, machine: u64) -> Result<Command, String> {
        let log = self.file("log", machine);
        let log = std::fs::OpenOptions::new().append(true).create(true).open(log);
        let log = log.map_err(|e| e.to_string())?;
        let enter = self.network.enter(machine);
        let mut words = enter.split(' ');
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words).arg(&self.mounted.nuri);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        Ok(command)
    }

    fn spawn(&self, machine: u64) -> Result<Child, String> {
        let mut command = self.command(machine)?;
        command.args(["node", "run", "--create", "--dir"]);
        command.arg(self.file("node", machine)).arg("--target").arg(self.target(machine));
        command.args(["--target-size", "2G", "--listen", &address(machine)]);
        command.args(["--join", &address(0), "--token-file"]);
        command.arg(self.mounted.space.join("token"));
        command.spawn().map_err(|e| format!("node {machine}: {e}"))
    }

    /// One more mount, on that machine.
    pub(crate) fn mount(&mut self, machine: u64) -> Result<PathBuf, String> {
        let point = self.file("mnt", machine);
        std::fs::create_dir_all(&point).map_err(|e| format!("{}: {e}", point.display()))?;
        let mut command = self.command(machine)?;
        command.args(["fs", "mount", "--foreground", &address(0)]).arg(&point);
        command.arg("--token-file").arg(self.mounted.space.join("token"));
        let daemon = command.spawn().map_err(|e| format!("mount {machine}: {e}"))?;
        self.mounts.push((point.clone(), daemon));
        wait_mounted(&point)?;
        Ok(point)
    }

    pub(crate) fn signal(&self, machine: u64, signal: Signal) -> Result<(), String> {
        let pid = match machine {
            0 => self.first_pid()?,
            _ => Pid::from_child(&self.nodes[machine as usize - 1]),
        };
        kill_process(pid, signal).map_err(|e| format!("{signal:?} to {pid:?}: {e}"))
    }

    fn first_pid(&self) -> Result<Pid, String> {
        let path = self.mounted.space.join("run/node0.lock");
        let start = Instant::now();
        loop {
            // A process that is just starting has taken the lock and not yet written its pid.
            let text =
                std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
            if let Some(pid) = text.trim().parse().ok().and_then(Pid::from_raw) {
                return Ok(pid);
            }
            if start.elapsed() > STARTING {
                return Err(format!("{} names no process", path.display()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Keeps the logs of all its processes, which go with the testbed otherwise. Returns where.
    pub(crate) fn keep_logs(&self, name: &str) -> String {
        let (to, space) = (root().join("target/ci").join(name), &self.mounted.space);
        let (to, from) = (to.display(), space.display());
        match sh(&format!("mkdir -p {to}; cp -r {from}/log {from}/../log* {to}")) {
            Ok(_) => format!("its logs are in {to}"),
            Err(words) => format!("its logs are lost: {words}"),
        }
    }

    /// Kills a node. The first one is restarted by its supervisor, the others here, after `act`.
    pub(crate) fn restart(
        &mut self,
        machine: u64,
        act: impl FnOnce(&Testbed) -> Result<(), String>,
    ) -> Result<(), String> {
        self.signal(machine, Signal::KILL)?;
        if machine > 0 {
            let ended = self.nodes[machine as usize - 1].wait();
            ended.map_err(|e| e.to_string())?;
            act(self)?;
            self.nodes[machine as usize - 1] = self.spawn(machine)?;
        }
        Ok(())
    }

    /// Loses a machine's disk; a new one takes its place.
    pub(crate) fn wipe(&mut self, machine: u64) -> Result<(), String> {
        let old = self.target_of(&self.status()?, machine).ok_or("it has no target")?;
        self.restart(machine, |testbed| {
            let target = testbed.target(machine);
            std::fs::remove_dir_all(&target).map_err(|e| format!("{}: {e}", target.display()))
        })?;
        let mut new = None;
        self.wait("the new target", |status| {
            new = self.target_of(status, machine).filter(|id| *id != old);
            new.is_some()
        })?;
        let new = new.unwrap_or_default();
        let (n, s, _) = self.mounted.names();
        // The old one goes once it was silent for too long.
        self.wait("the replacement", |_| {
            let replace = format!("{n} target replace {old} {new} --dir {s}");
            sh(&self.by_first(&replace)).is_ok()
        })?;
        self.wait("the removal", |_| {
            // Groups that still needed the old one waited.
            let _ = sh(&self.by_first(&format!("{n} target replace {old} {new} --dir {s}")));
            let remove = format!("{n} target remove {old} --force --dir {s}");
            sh(&self.by_first(&remove)).is_ok()
        })
    }

    /// The number of the machine's target that is up.
    fn target_of(&self, status: &Value, machine: u64) -> Option<u64> {
        let path = self.target(machine).display().to_string();
        let mut targets = status["targets"].as_array()?.iter();
        let own = targets.rfind(|t| t["path"] == path.as_str() && t["state"] == "up");
        own.and_then(|t| t["id"].as_u64())
    }

    /// Pulls a machine's cable, or puts it in again.
    pub(crate) fn cable(&self, machine: u64, state: &str) -> Result<(), String> {
        self.network.network.cable(machine, state).map_err(|e| e.to_string())
    }

    fn by_first(&self, command: &str) -> String {
        format!("{} {command}", self.network.enter(0))
    }

    pub(crate) fn status(&self) -> Result<Value, String> {
        let (n, s, _) = self.mounted.names();
        let text = sh(&self.by_first(&format!("{n} status --json --dir {s} || true")))?;
        Ok(serde_json::from_str(&text).unwrap_or_default())
    }

    /// Waits until the status says so.
    pub(crate) fn wait(
        &self,
        what: &str,
        mut is_so: impl FnMut(&Value) -> bool,
    ) -> Result<(), String> {
        let start = Instant::now();
        loop {
            let status = self.status()?;
            if is_so(&status) {
                return Ok(());
            }
            if start.elapsed() > LIMIT {
                return Err(format!("{what}: not after {LIMIT:?}: {}", status["health"]));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// What its programs said, for the report of a failure.
    pub(crate) fn words(&self) -> String {
        let (_, s, _) = self.mounted.names();
        let own = self.file("log", 1).with_file_name("log*").display().to_string();
        sh(&format!("tail -n 20 {s}/log/*.log {own} 2>/dev/null || true")).unwrap_or_default()
    }

    /// Ends all of it and checks what is on the disks.
    pub(crate) fn down_clean(mut self) -> Result<(), String> {
        let (n, s, _) = self.mounted.names();
        for (point, _) in &self.mounts {
            sh(&format!("{n} fs umount {}", point.display()))?;
        }
        self.end_mounts();
        sh(&self.by_first(&format!("{n} down --dir {s}")))?;
        self.end_nodes();
        sh(&format!("{n} doctor --dir {s}"))?;
        for machine in 1..self.network.machines {
            sh(&format!("{n} target check {}", self.target(machine).display()))?;
        }
        Ok(())
    }

    fn end_mounts(&mut self) {
        for (point, mut daemon) in self.mounts.drain(..) {
            end_mount(&point, &mut daemon);
        }
    }

    fn end_nodes(&mut self) {
        for node in &mut self.nodes {
            let _ = node.kill();
            let _ = node.wait();
        }
        self.nodes.clear();
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        self.end_mounts();
        self.end_nodes();
    }
}
