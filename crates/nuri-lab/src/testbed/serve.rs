//! What a testbed serves beside its mounts: its space by NFS, volumes, file systems on volumes, raw
//! disks.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use nuri_netns::Network;

use super::Testbed;
use super::cluster::address;
use crate::server::{Served, Server};
use crate::{LabError, Result, at};

/// Of all machines of a testbed, which may do everything by NFS.
const CLIENTS: &str = "10.79.0.0/24(rw,no_root_squash)";

impl Testbed {
    /// What is served to each mount's machine, in their order.
    pub(crate) fn served(&self) -> Vec<Server> {
        let Some(served) = self.settings.serve else { return Vec::new() };
        let server = |mount| {
            let export = match served {
                Served::Nfs | Served::Disk => String::new(),
                Served::Volume | Served::Filesystem => volume(mount),
            };
            served.at(&Network::address(self.server_of(served, mount)), &export)
        };
        (0..self.settings.mounts).map(server).collect()
    }

    /// The same as a person names them.
    pub fn servers(&self) -> Vec<String> {
        self.served().iter().map(ToString::to_string).collect()
    }

    /// The node that serves it to a mount's machine.
    fn server_of(&self, served: Served, mount: u64) -> u64 {
        match served {
            Served::Nfs => 1 % self.settings.nodes,
            Served::Volume | Served::Filesystem => mount,
            Served::Disk => (mount + 1) % self.settings.nodes,
        }
    }

    /// Starts the servers and waits until they answer.
    pub(super) fn serve(&self, served: Served) -> Result<()> {
        match served {
            Served::Nfs => self.serve_space()?,
            Served::Volume | Served::Filesystem => {
                (0..self.settings.mounts).try_for_each(|m| self.serve_volume(m))?;
            }
            Served::Disk => (0..self.settings.mounts).try_for_each(|m| self.serve_disk(m))?,
        }
        for (mount, server) in self.served().into_iter().enumerate() {
            let to = (server.host.clone(), server.port);
            self.wait(&format!("{server} does not answer"), || {
                Ok(self.network.reaches(mount as u64, &to)?)
            })?;
            if served == Served::Filesystem {
                self.make_filesystem(mount as u64, &server)?;
            }
        }
        Ok(())
    }

    fn serve_space(&self) -> Result<()> {
        let node = self.server_of(Served::Nfs, 0);
        self.done(node, &["nfs", "export", "add", "/", CLIENTS])?;
        self.start(node, Served::Nfs, &["nfs", "serve"])
    }

    fn serve_volume(&self, mount: u64) -> Result<()> {
        let (name, size) = (volume(mount), self.settings.target_size.to_string());
        let shape = &self.settings.shape;
        self.done(mount, &["volume", "create", &name, "--size", &size, "--shape", shape])?;
        self.start(mount, Served::Volume, &["volume", "serve"])
    }

    fn serve_disk(&self, mount: u64) -> Result<()> {
        let path = self.disk(mount);
        let file = File::create_new(&path).and_then(|file| file.set_len(self.settings.target_size));
        file.map_err(at(path.display()))?;
        let device = run(Command::new("losetup").args(["--find", "--show"]).arg(&path))?;
        let node = self.server_of(Served::Disk, mount);
        let listen = server_address(Served::Disk, node);
        let mut command = self.command(node)?;
        command.args(["disk", "serve", "--writable", &device, "--listen", &listen]);
        command.spawn().map(drop).map_err(at(format!("node {node}")))
    }

    fn disk(&self, mount: u64) -> PathBuf {
        self.settings.dir.join(format!("disk{mount}"))
    }

    /// Takes the loop devices away from files that are about to be removed.
    pub(super) fn detach_disks(&self) -> Result<()> {
        for path in (0..self.settings.mounts).map(|mount| self.disk(mount)) {
            if !path.exists() {
                continue;
            }
            let mut list = Command::new("losetup");
            list.args(["--noheadings", "--output", "NAME", "-j"]).arg(&path);
            let devices = list.output().map_err(at("losetup"))?.stdout;
            for device in String::from_utf8_lossy(&devices).split_whitespace() {
                let detached = Command::new("losetup").args(["--detach", device]).status();
                if !detached.map_err(at("losetup"))?.success() {
                    return Err(LabError(format!("{device} is not taken away: in use?")));
                }
            }
        }
        Ok(())
    }

    /// A command of Nuri that ends.
    fn done(&self, node: u64, words: &[&str]) -> Result<()> {
        let mut command = self.command(node)?;
        command.args(words).args(["--at", &address(0), "--token-file"]);
        let status = command.arg(self.space().join("token")).status();
        let status = status.map_err(at(format!("node {node}")))?;
        let failed = || LabError(format!("node {node}: nuri {}: {status}", words.join(" ")));
        status.success().then_some(()).ok_or_else(failed)
    }

    /// A server that ends with the testbed.
    fn start(&self, node: u64, served: Served, words: &[&str]) -> Result<()> {
        let mut command = self.command(node)?;
        command.args(words).args(["--listen", &server_address(served, node)]);
        command.args(["--at", &address(0), "--token-file"]).arg(self.space().join("token"));
        command.stdout(Stdio::null()).spawn().map(drop).map_err(at(format!("node {node}")))
    }
}

/// What a command of the system says, if it does what it is to do.
pub(super) fn run(command: &mut Command) -> Result<String> {
    let line = format!("{command:?}").replace('"', "");
    let out = command.output().map_err(at(&line))?;
    if !out.status.success() {
        let said = String::from_utf8_lossy(&out.stderr);
        return Err(LabError(format!("{line}: {}", said.trim())));
    }
    Ok(String::from_utf8_lossy(&out.stdout).trim().to_string())
}

fn volume(mount: u64) -> String {
    format!("lab{mount}")
}

fn server_address(served: Served, node: u64) -> String {
    let server = served.at(&Network::address(node), "");
    format!("{}:{}", server.host, server.port)
}
