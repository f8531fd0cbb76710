//! Where the authority keeps its map: a trait, so that an external store can take its place.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use nuri_proto::checksum::crc64;
use nuri_proto::map::Map;
use serde::{Deserialize, Serialize};

use crate::sound::MapProblem;

/// Format of the map file.
const FORMAT: u32 = 1;

/// Keeps one map.
pub trait MapStore: Send + Sync + 'static {
    /// The stored map, if any.
    fn load(&self) -> Result<Option<Map>, StoreError>;
    /// Replaces it durably: after a crash the old or the new one is there, whole.
    fn save(&self, map: &Map) -> Result<(), StoreError>;
}

/// Why the map cannot be kept or read.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("cannot access the map {0}: {1}")]
    Io(String, std::io::Error),
    #[error("the map {0} is damaged; stop the space, then: nuri doctor --repair")]
    Damaged(String),
    #[error("the map cannot be used: {0}; stop the space, then: nuri doctor --repair")]
    Unsound(MapProblem),
    #[error("the map {0} has format {1}, this program knows {FORMAT}; use a newer nuri")]
    Version(String, u32),
}

impl StoreError {
    /// Whether the disk is full.
    pub fn is_no_space(&self) -> bool {
        let StoreError::Io(_, error) = self else { return false };
        error.kind() == std::io::ErrorKind::StorageFull
    }
}

/// A JSON file with a checksum, replaced by rename.
pub struct FileStore {
    path: PathBuf,
}

#[derive(Serialize, Deserialize)]
struct Stored {
    format: u32,
    crc64: String,
    map: serde_json::Value,
}

impl FileStore {
    pub fn new(path: &Path) -> FileStore {
        FileStore { path: path.into() }
    }

    fn fail(&self, error: std::io::Error) -> StoreError {
        StoreError::Io(self.path.display().to_string(), error)
    }
}

fn digest(map: &serde_json::Value) -> String {
    format!("{:016x}", crc64(map.to_string().as_bytes()))
}

impl MapStore for FileStore {
    fn load(&self) -> Result<Option<Map>, StoreError> {
        let text = match fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(self.fail(e)),
        };
        let damaged = || StoreError::Damaged(self.path.display().to_string());
        let stored: Stored = serde_json::from_str(&text).map_err(|_| damaged())?;
        if stored.format != FORMAT {
            return Err(StoreError::Version(self.path.display().to_string(), stored.format));
        }
        if digest(&stored.map) != stored.crc64 {
            return Err(damaged());
        }
        serde_json::from_value(stored.map).map(Some).map_err(|_| damaged())
    }

    fn save(&self, map: &Map) -> Result<(), StoreError> {
        let encode = || -> std::io::Result<String> {
            let map = serde_json::to_value(map)?;
            let crc64 = digest(&map);
            Ok(serde_json::to_string_pretty(&Stored { format: FORMAT, crc64, map })?)
        };
        let text = encode().map_err(|e| self.fail(e))?;
        let new = self.path.with_extension("json.new");
        let replace = || -> std::io::Result<()> {
            let mut file = fs::File::create(&new)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            if self.path.exists() {
                let old = self.path.with_extension("json.old");
                let _ = fs::remove_file(&old);
                fs::hard_link(&self.path, old)?;
            }
            fs::rename(&new, &self.path)?;
            let parent = self.path.parent().unwrap_or(Path::new("."));
            fs::File::open(parent)?.sync_all()
        };
        replace().map_err(|e| self.fail(e))
    }
}

#[cfg(test)]
mod tests {
    use nuri_proto::id::Epoch;

    use super::*;

    #[test]
    fn map_survives_and_damage_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("map.json");
        let store = FileStore::new(&path);
        assert_eq!(store.load().unwrap(), None);
        let map = Map { epoch: Epoch(4), ..Map::default() };
        store.save(&map).unwrap();
        store.save(&map).unwrap();
        assert_eq!(store.load().unwrap(), Some(map));
        let text = fs::read_to_string(&path).unwrap().replace("\"epoch\": 4", "\"epoch\": 5");
        fs::write(&path, text).unwrap();
        assert!(matches!(store.load(), Err(StoreError::Damaged(_))));
        fs::write(&path, r#"{"format": 9, "crc64": "", "map": {}}"#).unwrap();
        assert!(matches!(store.load(), Err(StoreError::Version(_, 9))));
    }
}
