//! The exports as a server knows them. The server reads them again every second, so a change by any
//! machine counts everywhere within a second.

use std::collections::HashMap;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nuri_proto::id::Ino;
use parking_lot::{Mutex, RwLock};

use super::{Client, Export, ExportError, Store};

/// How long the addresses of a host's name are believed.
const NAMED: Duration = Duration::from_secs(60);

/// An export and the directory that its path leads to now, if there is one.
#[derive(Clone, Debug)]
pub struct Known {
    pub export: Arc<Export>,
    pub root: Option<Ino>,
}

/// See the module's text.
pub struct Table {
    store: Store,
    known: RwLock<Arc<Vec<Known>>>,
    named: Mutex<HashMap<String, (Instant, Vec<IpAddr>)>>,
    /// Where a server gives only some of them.
    only: Vec<String>,
}

impl Table {
    /// Of all exports, or of those with the paths `only`.
    pub fn new(store: Store, only: Vec<String>) -> Table {
        Table { store, known: RwLock::default(), named: Mutex::default(), only }
    }

    /// Reads the exports again. Says in the log what changed.
    ///
    /// # Errors
    /// The server's; what was known stays.
    pub fn refresh(&self) -> Result<(), ExportError> {
        let mut known = Vec::new();
        for export in self.store.list()? {
            if self.only.is_empty() || self.only.contains(&export.path) {
                let root = self.store.resolve(&export.path)?;
                known.push(Known { export: Arc::new(export), root });
            }
        }
        self.resolve_names(&known);
        let before = std::mem::replace(&mut *self.known.write(), Arc::new(known));
        let now = self.all();
        for gone in missing(&before, &now) {
            tracing::info!("nfs: {} is not exported any more: its handles are stale", gone);
        }
        for new in missing(&now, &before) {
            tracing::info!("nfs: {new} is exported");
        }
        Ok(())
    }

    /// All of them, by path.
    pub fn all(&self) -> Arc<Vec<Known>> {
        self.known.read().clone()
    }

    /// Those paths that a server was told to give and that are not exported.
    pub fn missing(&self) -> Vec<String> {
        let all = self.all();
        let is_there = |path: &&String| all.iter().any(|known| known.export.path == **path);
        self.only.iter().filter(|path| !is_there(path)).cloned().collect()
    }

    pub(crate) fn find(&self, id: u64) -> Option<Known> {
        self.all().iter().find(|known| known.export.id == id).cloned()
    }

    /// NFS-5: what the client at an address may, of an export.
    pub(crate) fn client<'e>(&self, export: &'e Export, peer: IpAddr) -> Option<&'e Client> {
        export.clients.iter().find(|client| client.host.covers(peer, |name| self.addresses(name)))
    }

    /// Of a host's name, as they were when the exports were read. No call waits for an answer of
    /// who knows names.
    fn addresses(&self, name: &str) -> Vec<IpAddr> {
        self.named.lock().get(name).map_or_else(Vec::new, |(_, found)| found.clone())
    }

    fn resolve_names(&self, known: &[Known]) {
        let clients = known.iter().flat_map(|known| &known.export.clients);
        for name in clients.filter_map(|client| client.host.name()) {
            let is_fresh = |(since, _): &(Instant, Vec<IpAddr>)| since.elapsed() < NAMED;
            if self.named.lock().get(name).is_some_and(is_fresh) {
                continue;
            }
            match (name, 0).to_socket_addrs() {
                Ok(all) => {
                    let all = all.map(|address| address.ip().to_canonical()).collect();
                    self.named.lock().insert(name.into(), (Instant::now(), all));
                }
                // What was known stays.
                Err(error) => tracing::warn!("nfs: no address of the client {name}: {error}"),
            }
        }
    }
}

/// Paths of those of `some` that `others` do not have.
fn missing(some: &[Known], others: &[Known]) -> Vec<String> {
    let is_there = |id: u64| others.iter().any(|other| other.export.id == id);
    let gone = some.iter().filter(|known| !is_there(known.export.id));
    gone.map(|known| known.export.path.clone()).collect()
}
