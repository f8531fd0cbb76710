//! A testbed: a cluster on one machine. It has a network namespace per node around a switch, links
//! with a rate, and one target per node.
//!
//! Each part is written down under [`REGISTRY`] before it is made. So another process can remove
//! the testbed, also after this process was killed.

mod cluster;
mod filesystem;
mod serve;

use std::path::{Path, PathBuf};

use nuri_netns::{Link, Network};
use serde::{Deserialize, Serialize};

use crate::server::Served;
use crate::{LabError, Result, at, limit};

/// Gone with a restart of the machine, as the namespaces are.
const REGISTRY: &str = "/run/nuri-lab";

/// What a testbed is made of.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Settings {
    /// Nuri's program.
    pub program: PathBuf,
    /// For the targets, the mounts and the logs; made by it, removed with it.
    pub dir: PathBuf,
    pub nodes: u64,
    /// How many of the first nodes mount the space.
    pub mounts: u64,
    pub link: Option<Link>,
    pub target_size: u64,
    /// How files are kept, as `nuri up` takes it.
    pub shape: String,
    /// What is served beside the mounts.
    #[serde(default)]
    pub serve: Option<Served>,
}

/// One that runs, or that somebody left behind.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Testbed {
    pub settings: Settings,
    pub(crate) network: Network,
}

/// What may be done to a node or its link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Harm {
    /// Its processes are killed.
    Kill,
    /// They run again after a kill.
    Start,
    /// They are stopped, as by a frozen machine.
    Pause,
    Resume,
    /// Its cable is pulled.
    Cut,
    Plug,
}

impl Testbed {
    /// Makes one and waits until all its nodes serve. What a failure leaves is taken away.
    pub fn up(settings: Settings, tell: &dyn Fn(&str)) -> Result<Testbed> {
        nuri_netns::check_tools()?;
        if settings.serve == Some(Served::Filesystem) {
            filesystem::check_tools()?;
        }
        check(&settings)?;
        let network = Network::named(std::process::id(), settings.nodes);
        let testbed = Testbed { settings, network };
        testbed.write_down()?;
        match testbed.start_all(tell) {
            Ok(()) => Ok(testbed),
            Err(error) => {
                let words = testbed.words();
                testbed.down()?;
                Err(LabError(format!("{error}\n{words}").trim_end().into()))
            }
        }
    }

    fn start_all(&self, tell: &dyn Fn(&str)) -> Result<()> {
        let make = |dir: PathBuf| std::fs::create_dir_all(&dir).map_err(at(dir.display()));
        make(self.settings.dir.join("log"))?;
        tell("making the network");
        self.network.make(self.settings.link)?;
        for node in 0..self.settings.nodes {
            tell(&format!("starting node {node} of {}", self.settings.nodes));
            self.start_node(node)?;
            // One after the other, so that Nuri gives them numbers in the same order.
            self.wait_for_targets(node + 1)?;
        }
        for node in 0..self.settings.mounts {
            make(self.mount_point(node))?;
            tell(&format!("mounting at {}", self.mount_point(node).display()));
            self.mount(node)?;
        }
        self.set_shape()?;
        self.wait_for_copy()?;
        if let Some(served) = self.settings.serve {
            tell(&format!("serving {served}"));
            self.serve(served)?;
        }
        Ok(())
    }

    /// The one with that directory; the only one where none is named.
    pub fn open(dir: Option<&Path>) -> Result<Testbed> {
        let mut all = list()?;
        if let Some(dir) = dir {
            all.retain(|testbed| testbed.settings.dir == dir);
        }
        match (all.len(), dir) {
            (1, _) => Ok(all.remove(0)),
            (0, Some(dir)) => Err(LabError(format!("no testbed runs in {}", dir.display()))),
            (0, None) => Err(LabError::new("no testbed runs; `nuri lab testbed` makes one")),
            _ => Err(LabError::new("several testbeds run; say which with --dir")),
        }
    }

    /// Where a node mounts the space, if it does.
    pub fn mount_point(&self, node: u64) -> PathBuf {
        self.settings.dir.join(format!("mnt{node}"))
    }

    /// The directories that the machines of its mounts work in: the mounts, or what stands in their
    /// place.
    pub fn views(&self) -> Vec<PathBuf> {
        let view = |mount| match self.settings.serve {
            Some(Served::Filesystem) => self.filesystem(mount),
            _ => self.mount_point(mount),
        };
        (0..self.settings.mounts).map(view).collect()
    }

    /// The directory of the space, as `nuri status --dir` takes it.
    pub fn space(&self) -> PathBuf {
        self.settings.dir.join("space")
    }

    /// What the cables of all mounts carry together, MiB/s. None where there is only one node.
    pub fn wire(&self) -> Result<Option<f64>> {
        if self.settings.nodes < 2 {
            return Ok(None);
        }
        let (listener, out) = self.network.connection()?;
        let one = limit::stream(&listener, out)?;
        Ok(Some(one * self.settings.mounts as f64))
    }

    /// What is typed before a command that is to run on that node.
    pub fn enter(&self, node: u64) -> String {
        self.network.enter(node).join(" ")
    }

    /// Does it to a node.
    pub fn harm(&self, node: u64, harm: Harm) -> Result<()> {
        if node >= self.settings.nodes {
            let last = self.settings.nodes - 1;
            return Err(LabError(format!("there is no node {node}: they go from 0 to {last}")));
        }
        match harm {
            Harm::Kill => self.network.signal(node, rustix::process::Signal::KILL)?,
            Harm::Pause => self.network.signal(node, rustix::process::Signal::STOP)?,
            Harm::Resume => self.network.signal(node, rustix::process::Signal::CONT)?,
            Harm::Cut => self.network.cable(node, "down")?,
            Harm::Plug => self.network.cable(node, "up")?,
            Harm::Start => self.start_again(node)?,
        }
        Ok(())
    }

    fn start_again(&self, node: u64) -> Result<()> {
        if !self.network.processes(node)?.is_empty() {
            return Err(LabError(format!("node {node} runs; kill it first")));
        }
        self.detach_mount(node);
        self.start_node(node)?;
        if node < self.settings.mounts { self.mount(node) } else { Ok(()) }
    }

    /// Takes it away: processes, mounts, namespaces, files.
    pub fn down(&self) -> Result<()> {
        self.leave_filesystems();
        for node in 0..self.settings.nodes {
            self.network.signal(node, rustix::process::Signal::KILL)?;
        }
        for node in 0..self.settings.nodes {
            self.detach_mount(node);
            self.detach_filesystem(node);
        }
        self.network.remove()?;
        self.detach_disks()?;
        let dir = &self.settings.dir;
        match std::fs::remove_dir_all(dir) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(at(dir.display())(e)),
            _ => {}
        }
        let entry = self.entry();
        std::fs::remove_file(&entry).map_err(at(entry.display()))
    }

    fn entry(&self) -> PathBuf {
        Path::new(REGISTRY).join(format!("{}.json", self.network.id))
    }

    fn write_down(&self) -> Result<()> {
        std::fs::create_dir_all(REGISTRY).map_err(at(REGISTRY))?;
        let text = serde_json::to_string(self).map_err(at("the testbed"))?;
        let (entry, part) = (self.entry(), self.entry().with_extension("part"));
        std::fs::write(&part, text).map_err(at(part.display()))?;
        std::fs::rename(&part, &entry).map_err(at(entry.display()))
    }
}

/// Sane numbers, and a directory that nobody else's files are in.
fn check(settings: &Settings) -> Result<()> {
    if !(1..=64).contains(&settings.nodes) {
        return Err(LabError(format!("{} nodes: 1 to 64 can be made", settings.nodes)));
    }
    if !(1..=settings.nodes).contains(&settings.mounts) {
        let (mounts, nodes) = (settings.mounts, settings.nodes);
        return Err(LabError(format!("{mounts} mounts: 1 to {nodes}, one per node, can be made")));
    }
    check_place(&settings.dir)
}

/// A testbed can be made, and in that directory.
pub(crate) fn check_place(dir: &Path) -> Result<()> {
    if !dir.is_absolute() {
        return Err(LabError(format!("{}: name the whole path", dir.display())));
    }
    let full = std::fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some());
    if dir.is_file() || full {
        let words = "is there and not empty; name a new directory, or clean up what ran there: \
                     nuri lab testbed clean";
        return Err(LabError(format!("{} {words}", dir.display())));
    }
    Ok(())
}

/// Takes away what a process that was killed made.
pub(crate) fn sweep(pid: u32) -> Result<()> {
    let left = list()?.into_iter().filter(|testbed| testbed.network.id == pid);
    left.into_iter().try_for_each(|testbed| testbed.down())
}

/// All that run, and all that were left behind.
pub fn list() -> Result<Vec<Testbed>> {
    let entries = match std::fs::read_dir(REGISTRY) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(at(REGISTRY)(e)),
    };
    let mut all = Vec::new();
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.extension().is_some_and(|end| end == "json") {
            let text = std::fs::read_to_string(&path).map_err(at(path.display()))?;
            all.push(serde_json::from_str(&text).map_err(at(path.display()))?);
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(dir: &Path) -> Settings {
        Settings {
            program: "nuri".into(),
            dir: dir.into(),
            nodes: 4,
            mounts: 1,
            link: None,
            target_size: 1 << 30,
            shape: "parity:3+1".into(),
            serve: None,
        }
    }

    #[test]
    fn nonsense_is_refused_before_anything_is_made() {
        let tmp = tempfile::tempdir().unwrap();
        let good = settings(&tmp.path().join("new"));
        check(&good).unwrap();
        let told = |settings: Settings| check(&settings).unwrap_err().to_string();
        assert!(told(Settings { nodes: 65, ..good.clone() }).contains("1 to 64"));
        assert!(told(Settings { mounts: 5, ..good.clone() }).contains("1 to 4, one per node"));
        assert!(told(Settings { dir: "here".into(), ..good.clone() }).contains("whole path"));
        std::fs::write(tmp.path().join("mine"), "").unwrap();
        assert!(told(settings(tmp.path())).contains("not empty"));
    }
}
