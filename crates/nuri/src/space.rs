//! The contents of a space's directory: settings, secret, node directories, run files and log
//! files.

use std::fs;
use std::path::{Path, PathBuf};

use nuri_io::lock::{ExclusiveLock, LockError};
use nuri_node::any_path;
use nuri_node::directory::{NODE, NodeSettings, SPACE, load_json, private_dir, save_json};
use nuri_proto::layout::Shape;
use nuri_proto::map::Placement;
use nuri_rpc::Secret;
use serde::{Deserialize, Serialize};

use crate::{Failure, at};

/// What a machine needs that only mounts the space.
const MOUNT_TOKEN: &str = "mount.token";
const FORMAT: u32 = 1;
/// Targets of a new space.
const DEFAULT_TARGETS: u16 = 4;

/// `space.json`: what `up` was told.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Settings {
    pub(crate) format: u32,
    pub(crate) listen: String,
    #[serde(default, with = "any_path::option")]
    pub(crate) mount: Option<PathBuf>,
    /// `up` made the mount point: `down` removes it.
    #[serde(default)]
    pub(crate) made_mount: bool,
    /// As `nuri fs mount` has them.
    #[serde(default)]
    pub(crate) suid: bool,
    #[serde(default)]
    pub(crate) dev: bool,
    /// Targets of each node.
    #[serde(with = "any_path::lists")]
    pub(crate) nodes: Vec<Vec<PathBuf>>,
    /// As it was said; 0 where each target takes its share of its own file system.
    pub(crate) target_size: u64,
    /// What is not there may be made: until all of it was up once.
    #[serde(default)]
    pub(crate) creating: bool,
    /// Of each node's targets, where they are made.
    #[serde(default)]
    pub(crate) sizes: Vec<Vec<u64>>,
    /// What new files get where no directory says otherwise.
    #[serde(default)]
    pub(crate) shape: Shape,
    /// How stripe groups lie over targets.
    #[serde(default)]
    pub(crate) placement: Placement,
    /// Raw disks of this machine that others may use; as it was before where it is not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) export_disks: Option<String>,
}

/// A space's directory.
#[derive(Clone, Debug)]
pub(crate) struct Space {
    pub(crate) dir: PathBuf,
}

/// A process of a space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    Supervisor,
    Node(usize),
    Mount,
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Role::Supervisor => f.write_str("supervisor"),
            Role::Node(n) => write!(f, "node{n}"),
            Role::Mount => f.write_str("mount"),
        }
    }
}

impl Space {
    pub(crate) fn at(dir: &Path) -> Space {
        Space { dir: dir.to_owned() }
    }

    pub(crate) fn token_path(&self) -> PathBuf {
        self.dir.join("token")
    }

    fn settings_path(&self) -> PathBuf {
        self.dir.join(SPACE)
    }

    pub(crate) fn node_dir(&self, node: usize) -> PathBuf {
        self.dir.join(format!("node{node}"))
    }

    pub(crate) fn log_path(&self, role: Role) -> PathBuf {
        self.dir.join("log").join(format!("{role}.log"))
    }

    fn lock_path(&self, role: Role) -> PathBuf {
        self.dir.join("run").join(format!("{role}.lock"))
    }

    /// There while the space is being stopped: the supervisor restarts nothing.
    pub(crate) fn stop_path(&self) -> PathBuf {
        self.dir.join("run").join("stop")
    }

    /// The settings, `None` where there is no space.
    pub(crate) fn settings(&self) -> Result<Option<Settings>, Failure> {
        let settings: Option<Settings> = load_json(&self.settings_path())?;
        match settings {
            Some(s) if s.format != FORMAT => {
                let (path, found) = (self.settings_path(), s.format);
                let path = path.display();
                Err(Failure(format!("{path} has format {found}, this program knows {FORMAT}")))
            }
            settings => Ok(settings),
        }
    }

    pub(crate) fn existing(&self) -> Result<Settings, Failure> {
        let none = || {
            let dir = self.dir.display();
            Failure(format!("there is no space in {dir}; make one: nuri up --create --dir {dir}"))
        };
        self.settings()?.ok_or_else(none)
    }

    pub(crate) fn save(&self, settings: &Settings) -> Result<(), Failure> {
        save_json(&self.settings_path(), settings)
    }

    pub(crate) fn secret(&self) -> Result<Secret, Failure> {
        Secret::load_own(&self.token_path()).map_err(Failure::new)
    }

    /// Address of a node, as it listens or did last.
    pub(crate) fn node_address(&self, node: usize) -> Result<Option<String>, Failure> {
        let known: Option<NodeSettings> = load_json(&self.node_dir(node).join(NODE))?;
        Ok(known.and_then(|node| node.address))
    }

    /// Address of the first node, as it listens or did last.
    pub(crate) fn address(&self) -> Result<String, Failure> {
        let dir = self.dir.display();
        self.node_address(0)?.ok_or_else(|| {
            Failure(format!("the space in {dir} never ran; run: nuri up --dir {dir}"))
        })
    }

    /// The first node's address and the secret, from the directory of a space or of any node.
    pub(crate) fn way(&self) -> Result<(String, Secret), Failure> {
        let node: Option<NodeSettings> = load_json(&self.dir.join(NODE))?;
        let Some(node) = node.filter(|_| !self.settings_path().exists()) else {
            return Ok((self.address()?, self.secret()?));
        };
        let token = node.token_file.unwrap_or(self.token_path());
        let first = node.join.or(node.address);
        let never = || Failure(format!("the node in {} never ran", self.dir.display()));
        Ok((first.ok_or_else(never)?, Secret::load_own(&token).map_err(Failure::new)?))
    }

    /// Makes its directories where they are not there, and keeps other users out of them: locks and
    /// logs are there, and names of files.
    pub(crate) fn protect(&self) -> Result<(), Failure> {
        let dirs = [self.dir.clone(), self.dir.join("run"), self.dir.join("log")];
        dirs.iter().try_for_each(|dir| private_dir(dir))
    }

    /// Makes directories and secret. What is there already stays.
    pub(crate) fn prepare(&self) -> Result<(), Failure> {
        self.protect()?;
        if !self.token_path().exists() {
            Secret::create(&self.token_path()).map_err(Failure::new)?;
        }
        self.give_mounts_a_token()
    }

    /// Writes the token for mounts, if it is not there: a space may be older, or restored.
    pub(crate) fn give_mounts_a_token(&self) -> Result<(), Failure> {
        let path = self.dir.join(MOUNT_TOKEN);
        if path.exists() {
            return Ok(());
        }
        self.secret()?.for_mounts().write(&path).map_err(Failure::new)
    }

    /// Settings of a new space.
    pub(crate) fn plan(
        &self,
        targets: Option<u16>,
        paths: &[PathBuf],
        nodes: u16,
    ) -> Vec<Vec<PathBuf>> {
        let count = nodes as usize;
        let mut plan = vec![Vec::new(); count];
        if paths.is_empty() {
            let total = targets.unwrap_or(DEFAULT_TARGETS.max(nodes)) as usize;
            for i in 0..total {
                plan[i % count].push(self.dir.join(format!("target{i}")));
            }
        } else {
            paths.iter().enumerate().for_each(|(i, p)| plan[i % count].push(p.clone()));
        }
        plan
    }

    /// Takes a role's lock and writes our pid into its file.
    pub(crate) fn enter(&self, role: Role) -> Result<ExclusiveLock, Failure> {
        let path = self.lock_path(role);
        let file = fs::OpenOptions::new().create(true).append(true).open(&path);
        file.map_err(at(format!("cannot make {}", path.display())))?;
        let lock = ExclusiveLock::acquire_beside_lookers(&path).map_err(|e| match e {
            LockError::Held(_) => {
                let dir = self.dir.display();
                Failure(format!("another {role} process of the space in {dir} is running"))
            }
            e => Failure::new(e),
        })?;
        let written = fs::write(&path, std::process::id().to_string());
        written.map_err(at(format!("cannot write {}", path.display())))?;
        Ok(lock)
    }

    /// The pid of a role's process, if one holds the lock.
    pub(crate) fn running(&self, role: Role) -> Option<u32> {
        let path = self.lock_path(role);
        ExclusiveLock::is_held(&path).then(|| {
            let text = fs::read_to_string(&path).unwrap_or_default();
            // One that has not written its number yet runs, as number 0.
            text.trim().parse().unwrap_or(0)
        })
    }
}
