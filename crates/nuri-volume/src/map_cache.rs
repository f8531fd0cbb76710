//! The map as a client knows it, and the connections to the nodes in it.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use nuri_proto::Status;
use nuri_proto::id::{GroupId, TargetId};
use nuri_proto::map::{Group, Map};
use nuri_proto::op::Call;
use nuri_proto::op::cluster::{ClusterState, ClusterStatus, Link, MapGet, MountReport};
use nuri_rpc::{CallContext, Carried, Deadline, HandshakeError, Peer, Secret};
use parking_lot::{Mutex, RwLock};

const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// A node that is there and does not answer in time may be busy: it is asked again.
const TRIES: u32 = 4;

/// Why a space cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("cannot connect to {0}: {1}")]
    Handshake(String, HandshakeError),
    #[error("{0} gave no map: {1}")]
    Map(String, Status),
}

fn is_late(error: &HandshakeError) -> bool {
    let HandshakeError::Io(error) = error else { return false };
    matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock)
}

/// A space, seen from a client. Cheap to clone.
#[derive(Clone)]
pub struct Cluster {
    inner: Arc<Inner>,
}

struct Inner {
    secret: Secret,
    authority: Peer,
    map: RwLock<Map>,
    peers: Mutex<HashMap<String, Peer>>,
}

impl Cluster {
    /// Connects to the node at `address` and fetches the map.
    ///
    /// # Errors
    /// Says which address and why.
    pub fn connect(address: &str, secret: &Secret) -> Result<Cluster, ConnectError> {
        let authority = Peer::new(address, secret);
        let mut tries = 1..TRIES;
        while let Err(error) = authority.probe() {
            if !is_late(&error) || tries.next().is_none() {
                return Err(ConnectError::Handshake(address.into(), error));
            }
        }
        let inner = Inner {
            secret: secret.clone(),
            authority,
            map: RwLock::default(),
            peers: Mutex::default(),
        };
        let cluster = Cluster { inner: Arc::new(inner) };
        cluster.refresh().map_err(|e| ConnectError::Map(address.into(), e))?;
        Ok(cluster)
    }

    /// The address of the node that the client connected to.
    pub fn authority(&self) -> &str {
        self.inner.authority.address()
    }

    /// Calls the authority once.
    ///
    /// # Errors
    /// As [`Peer::call`].
    pub fn ask<C: Call>(&self, call: &C) -> Result<C::Reply, Status> {
        self.ask_within(CALL_TIMEOUT, call)
    }

    fn ask_within<C: Call>(&self, timeout: Duration, call: &C) -> Result<C::Reply, Status> {
        let context = CallContext::default();
        let reply = self.inner.authority.call(context, call, &[], &mut [], timeout);
        reply.map(|(reply, _)| reply)
    }

    /// Fetches the map anew.
    ///
    /// # Errors
    /// Where the authority does not answer.
    pub fn refresh(&self) -> Result<(), Status> {
        let map = self.ask(&MapGet {})?;
        *self.inner.map.write() = map;
        Ok(())
    }

    /// The map as last fetched.
    pub fn map(&self) -> Map {
        self.inner.map.read().clone()
    }

    /// The state for status displays.
    ///
    /// # Errors
    /// Where the authority does not answer.
    pub fn state(&self) -> Result<ClusterState, Status> {
        self.ask(&ClusterStatus {})
    }

    /// The state, unless it takes longer.
    ///
    /// # Errors
    /// Where the authority does not answer in time.
    pub fn state_by(&self, deadline: Deadline) -> Result<ClusterState, Status> {
        self.ask_within(deadline.left().min(CALL_TIMEOUT), &ClusterStatus {})
    }

    /// Tells the authority of a mount.
    ///
    /// # Errors
    /// Where the authority does not answer.
    pub fn report_mount(&self, report: MountReport) -> Result<(), Status> {
        self.ask(&report)
    }

    fn peer(&self, address: &str) -> Peer {
        let mut peers = self.inner.peers.lock();
        let new = || Peer::new(address, &self.inner.secret);
        peers.entry(address.into()).or_insert_with(new).clone()
    }

    /// A server with connections of its own, whose traffic is not counted with the others.
    pub fn fresh_peer(&self, address: &str) -> Peer {
        Peer::new(address, &self.inner.secret)
    }

    /// The traffic to and from the servers so far, by address.
    pub fn links(&self) -> Vec<Link> {
        let peers = self.inner.peers.lock();
        let link = |peer: &Peer| {
            let Carried { path, bytes, copied } = peer.carried();
            Link { address: peer.address().into(), path, bytes, copied }
        };
        let mut links: Vec<_> = peers.values().map(link).collect();
        links.sort_by(|a, b| a.address.cmp(&b.address));
        links
    }

    /// The metadata server.
    ///
    /// # Errors
    /// [`Status::UNREACHABLE`] where the map names none.
    pub fn meta(&self) -> Result<Peer, Status> {
        let address = self.inner.map.read().meta_address().map(str::to_owned);
        Ok(self.peer(&address.ok_or(Status::UNREACHABLE)?))
    }

    /// The node that serves a target.
    ///
    /// # Errors
    /// [`Status::UNREACHABLE`] where the map does not know it.
    pub fn target(&self, target: TargetId) -> Result<Peer, Status> {
        let address = self.inner.map.read().target_address(target).map(str::to_owned);
        Ok(self.peer(&address.ok_or(Status::UNREACHABLE)?))
    }

    /// A group as last heard.
    pub fn group(&self, id: GroupId) -> Option<Group> {
        self.inner.map.read().group(id).cloned()
    }

    /// Calls `look` with the map as last fetched.
    pub fn with_map<R>(&self, look: impl FnOnce(&Map) -> R) -> R {
        look(&self.inner.map.read())
    }

    /// The target that holds a `stripe` group.
    ///
    /// # Errors
    /// [`Status::UNREACHABLE`] where the map does not know it.
    pub fn member(&self, group: GroupId) -> Result<TargetId, Status> {
        let map = self.inner.map.read();
        let member = map.group(group).and_then(|g| g.members.first().map(|m| m.target));
        member.ok_or(Status::UNREACHABLE)
    }

    /// Repeats `attempt` while its status says to retry later and time is left, with a fresh map
    /// each time.
    ///
    /// # Errors
    /// The last status.
    pub fn until<R>(
        &self,
        deadline: Deadline,
        mut attempt: impl FnMut(Duration) -> Result<R, Status>,
    ) -> Result<R, Status> {
        let mut pause = Duration::from_millis(5);
        loop {
            match attempt(deadline.left()) {
                Err(status)
                    if status.retry() == nuri_proto::status::RetryClass::Later
                        && !deadline.passed() =>
                {
                    std::thread::sleep(pause.min(deadline.left()));
                    pause = (pause * 2).min(Duration::from_millis(200));
                    // Without an authority the old map is the best there is.
                    let _ = self.refresh();
                }
                outcome => return outcome,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// The first connections are taken by the kernel and stay unanswered.
    #[test]
    fn a_busy_node_is_asked_again() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let secret = Secret::from_bytes([7; 32]);
        let asked = std::thread::spawn(move || Cluster::connect(&address, &secret).err());
        let held: Vec<_> = (0..TRIES).map(|_| listener.accept().unwrap()).collect();
        let error = asked.join().unwrap().unwrap().to_string();
        assert!(error.starts_with("cannot connect"), "{error}");
        drop(held);
    }
}
