//! A client of the space within a command, or a server that is no mount.

use std::sync::Arc;

use nuri_client::{Client, ClientConfig};
use nuri_volume::Cluster;

use crate::cli::Whence;
use crate::{Failure, at};

/// How the space is reached: what a mount needs, and no more.
pub(super) fn connect(whence: &Whence) -> Result<Cluster, Failure> {
    let (address, secret) = super::status::way(whence)?;
    Cluster::connect(&address, &secret.for_mounts()).map_err(Failure::new)
}

/// This machine.
pub(super) fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Opens a session under the host's name and `name`.
pub(super) fn start(
    cluster: &Cluster,
    name: &str,
    config: ClientConfig,
) -> Result<Arc<Client>, Failure> {
    let config = ClientConfig { name: format!("{}:{name}", host()), ..config };
    Client::start(cluster, &config).map(Arc::new).map_err(at("no session"))
}

/// Does something by a client of its own, and makes it durable.
pub(super) fn with(
    whence: &Whence,
    (name, config): (&str, ClientConfig),
    act: impl FnOnce(Arc<Client>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let client = start(&connect(whence)?, name, config)?;
    let outcome = act(client.clone());
    client.close().map_err(at("what was changed may be lost"))?;
    outcome
}
