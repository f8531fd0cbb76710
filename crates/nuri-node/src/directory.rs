//! The files in a node's directory, and how they are read and replaced.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nuri_io::disk::Disk;
use nuri_io::file::OpenMode;
use nuri_io::uring::open_disk;
use nuri_kv::embedded::{Embedded, KvConfig};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::any_path;
use crate::failure::{Failure, at};
use crate::metadata_copy::restore::refuse_unfinished;

/// Makes a directory the one of a whole space, with a directory in it for each node of `nuri up`.
pub const SPACE: &str = "space.json";
/// Where a node runs its metadata: its log and its tables.
pub const META_LOG: &str = "meta.log";
pub const META_TABLES: &str = "meta.tables";
pub const MAP: &str = "map.json";
pub const NODE: &str = "node.json";

/// `node.json`: what a node was told, and who it is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeSettings {
    pub format: u32,
    pub id: Option<u32>,
    /// Cluster id, hexadecimal.
    pub cluster: Option<String>,
    pub address: Option<String>,
    pub join: Option<String>,
    #[serde(default, with = "any_path::option")]
    pub token_file: Option<PathBuf>,
    #[serde(with = "any_path::list")]
    pub targets: Vec<PathBuf>,
    pub target_size: Option<u64>,
    /// Which raw disks other machines may use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub export_disks: Option<String>,
    /// Which target lies at which of these paths.
    #[serde(default, with = "any_path::keys")]
    pub target_ids: BTreeMap<PathBuf, u32>,
}

/// Reads a JSON file.
pub fn load_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, Failure> {
    match fs::read_to_string(path) {
        Ok(text) => {
            let wrong = |e| {
                let path = path.display();
                Failure(format!("{path} is damaged ({e}); restore it from a backup"))
            };
            serde_json::from_str(&text).map(Some).map_err(wrong)
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Failure(format!("cannot read {}: {e}", path.display()))),
    }
}

/// A directory that only its owner can use, made where it is not there.
pub fn private_dir(dir: &Path) -> Result<(), Failure> {
    let make = || -> std::io::Result<()> {
        if let Some(parent) = dir.parent() {
            fs::create_dir_all(parent)?;
        }
        match fs::DirBuilder::new().mode(0o700).create(dir) {
            Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => return Err(e),
            _ => {}
        }
        let meta = fs::metadata(dir)?;
        if meta.is_dir() && meta.mode() & 0o077 == 0 {
            return Ok(());
        }
        fs::set_permissions(dir, fs::Permissions::from_mode(0o700))
    };
    make().map_err(at(format!("cannot make {} for its owner alone", dir.display())))
}

/// Replaces a JSON file durably.
pub fn save_json<T: Serialize>(path: &Path, value: &T) -> Result<(), Failure> {
    let save = || -> std::io::Result<()> {
        let new = path.with_extension("json.new");
        let mut options = fs::OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(serde_json::to_string_pretty(value)?.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, path)?;
        fs::File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
    };
    save().map_err(at(format!("cannot write {}", path.display())))
}

/// Opens the metadata store of a node's directory; the caller holds the directory's lock.
pub fn open_engine(dir: &Path) -> Result<Embedded, Failure> {
    refuse_unfinished(dir)?;
    let [log, tables] = store_disks(dir)?;
    Embedded::open(log, tables, KvConfig::default()).map_err(Failure::new)
}

/// Log and tables of the metadata store of a node's directory.
pub fn store_disks(dir: &Path) -> Result<[Arc<dyn Disk>; 2], Failure> {
    let disk = |name: &str| {
        let path = dir.join(name);
        open_disk(&path, OpenMode::Create).map_err(at(format!("cannot open {}", path.display())))
    };
    Ok([disk(META_LOG)?, disk(META_TABLES)?])
}
