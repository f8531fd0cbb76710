//! Where exports are kept: small files beside the volumes, which no mount sees. Each file holds one
//! export, and is there as a whole or not at all. The key for handles is kept in the same way.

use std::net::Ipv4Addr;
use std::sync::Arc;

use nuri_client::{Access, Client, Position, Privileges, Sync};
use nuri_proto::Status;
use nuri_proto::id::Ino;
use nuri_proto::op::meta::{MakeUnnamed, RemoveKind, RenameMode};
use sha2::{Digest, Sha256};

use super::Export;
use crate::handle::HandleKey;

/// Names of exports begin so. No volume's does.
const PREFIX: &str = "%nfs-";
/// What takes the place of another one, for a moment.
const NEW: &str = "%new-";
const KEY: &str = "%nfs.key";
/// Whose lock says which server has an address that moves.
const ADDRESS: &str = "%at-";
/// Of one export.
const LONGEST: usize = 64 << 10;

/// Why something cannot be done with an export.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    #[error("{0:?} is no path of the space: it begins with / and is one of its directories")]
    Path(String),
    #[error("{0} is exported already; to change its clients: nuri nfs export set")]
    Exists(String),
    #[error("{0} is not exported: nuri nfs export list")]
    Unknown(String),
    #[error("{0} has more clients than an export can have")]
    TooLong(String),
    #[error("{what}: {status}")]
    Server { what: &'static str, status: Status },
    #[error("no random numbers: {0}")]
    Random(getrandom::Error),
}

fn at(what: &'static str) -> impl Fn(Status) -> ExportError {
    move |status| ExportError::Server { what, status }
}

/// The exports of a space.
#[derive(Clone)]
pub struct Store {
    client: Arc<Client>,
}

/// Every path has one name, however long it is.
fn name_of(path: &str) -> String {
    let sum = Sha256::digest(path.as_bytes());
    let words = sum[..16].iter().map(|byte| format!("{byte:02x}"));
    format!("{PREFIX}{}", words.collect::<String>())
}

/// `/a//b/` is `/a/b`.
pub(crate) fn normal(path: &str) -> Result<String, ExportError> {
    let no = || ExportError::Path(path.into());
    let rest = path.strip_prefix('/').ok_or_else(no)?;
    let parts: Vec<&str> = rest.split('/').filter(|part| !part.is_empty()).collect();
    let is_strange = |part: &&str| [".", ".."].contains(part);
    if parts.iter().any(is_strange) { Err(no()) } else { Ok(format!("/{}", parts.join("/"))) }
}

/// As it is kept.
fn written(export: &Export) -> Result<Vec<u8>, ExportError> {
    let text = serde_json::to_vec(export).ok().filter(|text| text.len() <= LONGEST);
    text.ok_or_else(|| ExportError::TooLong(export.path.clone()))
}

impl Store {
    pub fn new(client: Arc<Client>) -> Store {
        Store { client }
    }

    /// Exports a directory.
    ///
    /// # Errors
    /// Why it is not.
    pub fn add(&self, path: &str, clients: Vec<super::Client>) -> Result<Export, ExportError> {
        let path = normal(path)?;
        if self.resolve(&path)?.is_none() {
            return Err(ExportError::Path(path));
        }
        let id = getrandom::u64().map_err(ExportError::Random)?;
        let export = Export { id, path: path.clone(), clients };
        match self.put(&name_of(&path), &written(&export)?) {
            Ok(()) => Ok(export),
            Err(Status::EXIST) => Err(ExportError::Exists(path)),
            Err(status) => Err(at("it could not be exported")(status)),
        }
    }

    /// Gives an export other clients. Handles stay what they are.
    ///
    /// # Errors
    /// Why it keeps those that it has.
    pub fn set(&self, path: &str, clients: Vec<super::Client>) -> Result<Export, ExportError> {
        let path = normal(path)?;
        let name = name_of(&path);
        let failed = at("it keeps the clients that it has");
        let Some(text) = self.get(&name).map_err(&failed)? else {
            return Err(ExportError::Unknown(path));
        };
        let before: Export = serde_json::from_slice(&text).map_err(|_| failed(Status::CORRUPT))?;
        let export = Export { clients, ..before };
        let number = getrandom::u64().map_err(ExportError::Random)?;
        let new = format!("{NEW}{number:016x}");
        self.put(&new, &written(&export)?).map_err(&failed)?;
        let (from, to) = ((Ino::VOLUMES, new.as_bytes()), (Ino::VOLUMES, name.as_bytes()));
        let moved = self.client.rename(from, to, RenameMode::Replace);
        moved.and_then(|()| self.client.sync_directory(Ino::VOLUMES)).map_err(failed)?;
        Ok(export)
    }

    /// Ends an export: its handles mean nothing from then on.
    ///
    /// # Errors
    /// Where there is none.
    pub fn remove(&self, path: &str) -> Result<(), ExportError> {
        let path = normal(path)?;
        let removed = self.client.remove(Ino::VOLUMES, name_of(&path).as_bytes(), RemoveKind::File);
        match removed.and_then(|()| self.client.sync_directory(Ino::VOLUMES)) {
            Ok(()) => Ok(()),
            Err(Status::NOENT | Status::STALE) => Err(ExportError::Unknown(path)),
            Err(status) => Err(at("it is still exported")(status)),
        }
    }

    /// All exports, by path.
    ///
    /// # Errors
    /// The server's.
    pub fn list(&self) -> Result<Vec<Export>, ExportError> {
        let mut all = Vec::new();
        for name in self.names()? {
            let Some(text) = self.get(&name).map_err(at("an export cannot be read"))? else {
                continue;
            };
            match serde_json::from_slice(&text) {
                Ok(export) => all.push(export),
                Err(error) => tracing::error!("nfs: the export {name} is not understood: {error}"),
            }
        }
        all.sort_by(|a: &Export, b: &Export| a.path.cmp(&b.path));
        Ok(all)
    }

    fn names(&self) -> Result<Vec<String>, ExportError> {
        let all = self.client.all_names(Ino::VOLUMES);
        let all = all.map_err(at("the exports could not be listed"))?;
        let name = |name: Vec<u8>| String::from_utf8(name).ok();
        let own = |name: &String| name.starts_with(PREFIX);
        Ok(all.into_iter().filter_map(name).filter(own).collect())
    }

    /// The space's key for handles: the first that asks for it makes it.
    ///
    /// # Errors
    /// The server's.
    pub fn key(&self) -> Result<HandleKey, ExportError> {
        let failed = at("there is no key for handles");
        let mut new = [0; 32];
        getrandom::fill(&mut new).map_err(ExportError::Random)?;
        if self.get(KEY).map_err(&failed)?.is_none() {
            match self.put(KEY, &new) {
                Ok(()) | Err(Status::EXIST) => {}
                Err(status) => return Err(failed(status)),
            }
        }
        let found = self.get(KEY).map_err(&failed)?.and_then(|key| key.try_into().ok());
        found.map(HandleKey).ok_or_else(|| failed(Status::CORRUPT))
    }

    /// The file whose lock says who has an address.
    ///
    /// # Errors
    /// The server's.
    pub fn address(&self, address: Ipv4Addr) -> Result<Ino, ExportError> {
        let (name, failed) =
            (format!("{ADDRESS}{address}"), at("there is no lock for the address"));
        match self.put(&name, b"nfs") {
            Ok(()) | Err(Status::EXIST) => {}
            Err(status) => return Err(failed(status)),
        }
        let found = self.client.lookup(Ino::VOLUMES, name.as_bytes()).map_err(&failed)?;
        let entry = found.ok_or_else(|| failed(Status::NOENT))?;
        self.client.forget(entry.ino, 1);
        Ok(entry.ino)
    }

    /// The directory of a path, if it is one.
    ///
    /// # Errors
    /// The server's.
    pub fn resolve(&self, path: &str) -> Result<Option<Ino>, ExportError> {
        let mut ino = Ino::ROOT;
        for part in path.split('/').filter(|part| !part.is_empty()) {
            let found = match self.client.lookup(ino, part.as_bytes()) {
                Err(Status::NOTDIR | Status::NOENT | Status::STALE) => None,
                found => found.map_err(at("the directory could not be looked up"))?,
            };
            let Some(entry) = found else { return Ok(None) };
            ino = entry.ino;
            self.client.forget(ino, 1);
            if entry.attr.mode & 0o170_000 != 0o040_000 {
                return Ok(None);
            }
        }
        Ok(Some(ino))
    }

    /// Keeps bytes under a name that nobody has.
    fn put(&self, name: &str, bytes: &[u8]) -> Result<(), Status> {
        let make = MakeUnnamed { parent: Ino::VOLUMES, mode: 0o600, umask: 0, uid: 0, gid: 0 };
        let (entry, fh) = self.client.make_unnamed(&make, Access::Both)?;
        let ino = entry.ino;
        let (place, taken) = (Position::At(0), Privileges::Capabilities);
        let outcome = self
            .client
            .write((ino, fh), place, bytes, taken)
            .and_then(|wrote| {
                let is_whole = wrote.len == bytes.len() as u64;
                if is_whole { Ok(()) } else { Err(Status::NOSPC) }
            })
            .and_then(|()| self.client.fsync(fh, Sync::All))
            .and_then(|()| self.client.link(ino, Ino::VOLUMES, name.as_bytes()))
            .map(|_| self.client.forget(ino, 1));
        self.client.release(fh);
        self.client.forget(ino, 1);
        outcome.map(drop)
    }

    fn get(&self, name: &str) -> Result<Option<Vec<u8>>, Status> {
        let found = match self.client.lookup(Ino::VOLUMES, name.as_bytes()) {
            // There never was anything.
            Err(Status::STALE) => return Ok(None),
            found => found?,
        };
        let Some(entry) = found else { return Ok(None) };
        let mut bytes = vec![0; (entry.attr.size as usize).min(LONGEST)];
        let read = self.client.read(entry.ino, 0, &mut bytes);
        self.client.forget(entry.ino, 1);
        bytes.truncate(read?);
        Ok(Some(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_have_one_form() {
        assert_eq!(normal("/").unwrap(), "/");
        assert_eq!(normal("//a///b/").unwrap(), "/a/b");
        for path in ["", "a", "/a/../b", "/./a"] {
            assert!(matches!(normal(path), Err(ExportError::Path(_))), "{path}");
        }
        assert_ne!(name_of("/a"), name_of("/b"));
        assert!(name_of(&"/a".repeat(4000)).len() < 64);
    }
}
