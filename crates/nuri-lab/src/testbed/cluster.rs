//! Nuri's processes on the machines of a testbed.
//!
//! Node 0 has the metadata, and its processes are run by `nuri up`. Each other machine runs one
//! node.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nuri_netns::Network;

use super::Testbed;
use crate::{LabError, Result, at};

const PORT: u16 = 7400;
const LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(100);

pub(super) fn address(node: u64) -> String {
    format!("{}:{PORT}", Network::address(node))
}

impl Testbed {
    fn log(&self, node: u64) -> PathBuf {
        self.settings.dir.join(format!("log/node{node}.log"))
    }

    /// Nuri on that node, with its words in the node's log.
    pub(super) fn command(&self, node: u64) -> Result<Command> {
        self.command_of(node, &self.settings.program)
    }

    /// Any program on that node, the same way.
    pub(super) fn command_of(&self, node: u64, program: impl AsRef<OsStr>) -> Result<Command> {
        let path = self.log(node);
        let log = std::fs::OpenOptions::new().append(true).create(true).open(&path);
        let log = log.map_err(at(path.display()))?;
        let enter = self.network.enter(node);
        let mut command = Command::new(&enter[0]);
        command.args(&enter[1..]).arg(program);
        // A group of its own: Ctrl-C at the terminal is not meant for the cluster.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).process_group(0);
        Ok(command)
    }

    pub(super) fn start_node(&self, node: u64) -> Result<()> {
        let mut command = self.command(node)?;
        if node > 0 {
            let target = self.settings.dir.join(format!("target{node}"));
            command.args(["node", "run", "--create", "--dir"]);
            command.arg(self.settings.dir.join(format!("node{node}"))).arg("--target").arg(target);
            command.args(["--target-size", &self.settings.target_size.to_string()]);
            command.args(["--listen", &address(node), "--join", &address(0), "--token-file"]);
            command.arg(self.space().join("token"));
            return command.spawn().map(drop).map_err(at(format!("node {node}")));
        }
        command.args(["up", "--create", "--dir"]).arg(self.space()).args(["--targets", "1"]);
        command.args([
            "--target-size",
            &self.settings.target_size.to_string(),
            "--listen",
            &address(0),
        ]);
        let status = command.status().map_err(at("node 0"))?;
        if status.success() { Ok(()) } else { Err(LabError(format!("node 0: nuri up: {status}"))) }
    }

    pub(super) fn mount(&self, node: u64) -> Result<()> {
        let point = self.mount_point(node);
        let mut command = self.command(node)?;
        command.args(["fs", "mount", "--foreground", &address(0)]).arg(&point);
        command.arg("--token-file").arg(self.space().join("token"));
        command.spawn().map_err(at(point.display()))?;
        self.wait(&format!("nothing is mounted at {}", point.display()), || Ok(is_mounted(&point)))
    }

    /// Whatever its process does.
    pub(super) fn detach_mount(&self, node: u64) {
        use rustix::mount::UnmountFlags;
        let flags = UnmountFlags::FORCE | UnmountFlags::DETACH;
        let _ = rustix::mount::unmount(self.mount_point(node), flags);
    }

    /// The space began with one target, where only stripes can be.
    pub(super) fn set_shape(&self) -> Result<()> {
        let mut command = self.command(0)?;
        command.args(["fs", "layout", "set"]).arg(self.mount_point(0));
        command.args(["--shape", &self.settings.shape]);
        let status = command.status().map_err(at("nuri fs layout"))?;
        let shape = &self.settings.shape;
        let failed = || LabError(format!("the files' shape cannot be {shape}"));
        status.success().then_some(()).ok_or_else(failed)
    }

    pub(super) fn wait_for_targets(&self, nodes: u64) -> Result<()> {
        self.wait(&format!("not all {nodes} targets serve"), || {
            let status = self.status()?;
            let targets = status["targets"].as_array().into_iter().flatten();
            Ok(targets.filter(|target| target["state"] == "up").count() as u64 == nodes)
        })
    }

    /// Another node has all the metadata: until then it is sent there, over cables that may be
    /// slow.
    pub(super) fn wait_for_copy(&self) -> Result<()> {
        let copies = self.settings.nodes.min(2);
        self.wait("no node has a copy of the metadata", || {
            Ok(self.status()?["metadata"]["copies"].as_u64() >= Some(copies))
        })
    }

    fn status(&self) -> Result<serde_json::Value> {
        let mut command = self.command(0)?;
        command.args(["status", "--json", "--dir"]).arg(self.space()).stdout(Stdio::piped());
        let out = command.output().map_err(at("nuri status"))?;
        Ok(serde_json::from_slice(&out.stdout).unwrap_or_default())
    }

    pub(super) fn wait(&self, what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
        let start = Instant::now();
        while !is_so()? {
            if start.elapsed() > LIMIT {
                return Err(LabError(format!("{what} after {} s", LIMIT.as_secs())));
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// The last words of its programs, for the report of a failure.
    pub(super) fn words(&self) -> String {
        let mut told = String::new();
        for node in 0..self.settings.nodes {
            let text = std::fs::read_to_string(self.log(node)).unwrap_or_default();
            let last: Vec<_> = text.lines().rev().take(3).collect();
            for line in last.into_iter().rev() {
                told.push_str(&format!("node {node}: {line}\n"));
            }
        }
        told
    }
}

fn is_mounted(point: &std::path::Path) -> bool {
    let mounts = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let mounts = String::from_utf8_lossy(&mounts);
    let shown = point.display().to_string();
    mounts.lines().any(|line| line.split(' ').nth(4) == Some(shown.as_str()))
}
