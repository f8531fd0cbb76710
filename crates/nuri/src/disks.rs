//! Raw disks of nodes: the service with which a node gives its disks to other machines, and how
//! other machines ask for it.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nuri_nbd::disk::{
    self, Allowed, DiskView, GivenDisks, NodeError, OpenThere, OpenedThere, RemoteDisk,
    RemoteError, Use, Writes,
};
use nuri_nbd::peer::Token;
use nuri_node::bootstrap::machine;
use nuri_node::disks::DiskService;
use nuri_proto::Status;
use nuri_proto::id::NodeId;
use nuri_proto::op::Call;
use nuri_proto::op::disk::{
    DiskList, DiskListReply, DiskOpen, DiskOpenReply, NodeDisk, OpenedDisk,
};
use nuri_rpc::CallContext;
use nuri_volume::Cluster;

use crate::{Failure, at};

/// How long a node is waited for.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The service of a node's disks, of which it gives those away that the words say.
pub(crate) fn service(allowed: &str, ip: IpAddr) -> Result<Arc<dyn DiskService>, Failure> {
    let allowed: Allowed = allowed.parse().map_err(at("--export-disks"))?;
    Ok(Arc::new(NodeDisks(GivenDisks::new(allowed, ip))))
}

struct NodeDisks(GivenDisks);

impl DiskService for NodeDisks {
    fn list(&self) -> DiskListReply {
        let disks = disk::list().unwrap_or_else(|error| {
            tracing::warn!("the kernel lists no disks: {error}");
            Vec::new()
        });
        let told = |disk: DiskView| {
            let DiskView { path, size, model, block, read_only, used } = disk;
            let (is_exported, path) = (self.0.is_given(&path), path.display().to_string());
            let used = (used != Use::Nothing).then(|| used.to_string());
            NodeDisk { path, size, block, model, read_only, used, is_exported }
        };
        DiskListReply { disks: disks.into_iter().map(told).collect() }
    }

    fn open(&self, call: &DiskOpen) -> DiskOpenReply {
        let writes = if call.writable { Writes::Allowed } else { Writes::Refused };
        match self.0.open(Path::new(&call.path), writes) {
            Ok(given) => {
                let (size, block) = (given.about.size, given.about.block);
                let (port, token, boot) = (given.port, given.token.bits(), machine());
                DiskOpenReply::Opened(OpenedDisk { port, token, size, block, boot })
            }
            Err(error) => DiskOpenReply::Refused(error.to_string()),
        }
    }
}

/// Asks a node.
fn ask<C: Call>(cluster: &Cluster, node: NodeId, call: &C) -> Result<C::Reply, NodeError> {
    let known = cluster.with_map(|map| map.node(node).map(|node| node.address.clone()));
    let address = known.ok_or(NodeError::Unknown(node))?;
    let peer = cluster.fresh_peer(&address);
    let answer = peer.call(CallContext::default(), call, &[], &mut [], TIMEOUT);
    answer.map(|(reply, _)| reply).map_err(|status| match status {
        Status::PERM => NodeError::NotPermitted,
        Status::MALFORMED | Status::NOTSUP => NodeError::TooOld(node),
        status => NodeError::Call { node, status },
    })
}

/// The disks of a node.
pub(crate) fn of_node(cluster: &Cluster, node: NodeId) -> Result<Vec<NodeDisk>, NodeError> {
    ask(cluster, node, &DiskList {}).map(|reply| reply.disks)
}

/// A disk of a node, for a server on this machine.
pub(crate) fn open(
    cluster: &Arc<Cluster>,
    (node, path): (NodeId, &Path),
    writes: Writes,
) -> Result<RemoteDisk, RemoteError> {
    let shown = path.display().to_string();
    let name = format!("{node}:{}", shown.strip_prefix("/dev/").unwrap_or(&shown));
    let (cluster, writable) = (cluster.clone(), writes == Writes::Allowed);
    let there: OpenThere = Box::new(move || {
        // The node may have another address by now.
        let _ = cluster.refresh();
        match ask(&cluster, node, &DiskOpen { path: shown.clone(), writable })? {
            DiskOpenReply::Refused(why) => Err(NodeError::Refused { node, why }),
            DiskOpenReply::Opened(OpenedDisk { port, token, size, block, boot }) => {
                let of_node = cluster.with_map(|map| map.node(node).map(|n| n.address.clone()));
                let of_node = of_node.ok_or(NodeError::Gone)?;
                let host = of_node.rsplit_once(':').map_or(&*of_node, |(host, _)| host);
                let (address, token) = (format!("{host}:{port}"), Token::of(token));
                Ok(OpenedThere { address, token, size, block, boot })
            }
        }
    });
    RemoteDisk::open(name, !writable, there)
}
