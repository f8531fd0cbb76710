//! The services of a node behind its listener. The call's operation names the service.

use std::sync::Arc;

use nuri_cluster::authority::Authority;
use nuri_meta::server::MetaServer;
use nuri_proto::Status;
use nuri_proto::op::ServiceName;
use nuri_proto::op::cluster::NodeReach;
use nuri_rpc::{Reply, Request, Service, reply_to};
use nuri_target::server::TargetServer;

use crate::disks::{self, DiskService};
use crate::joining::reach;
use crate::metadata_copy::keeper::Keeper;
use crate::{resync, scrub};

/// Everything a node serves.
pub struct Services {
    pub authority: Option<Arc<Authority>>,
    pub meta: Option<Arc<MetaServer>>,
    pub targets: Arc<TargetServer>,
    pub resync: Arc<resync::Progress>,
    pub scrub: Arc<scrub::Progress>,
    pub copies: Keeper,
    pub disks: Option<Arc<dyn DiskService>>,
}

impl Service for Services {
    fn serve(&self, request: &Request<'_>) -> Reply {
        match request.op.service() {
            ServiceName::Authority => match &self.authority {
                Some(authority) => authority.serve(request),
                None => Reply::failed(Status::NOTSUP),
            },
            // It takes a while, and nothing of the authority's.
            ServiceName::Reach => match self.authority {
                Some(_) => reply_to::<NodeReach>(request.args, |call| reach(&call)),
                None => Reply::failed(Status::NOTSUP),
            },
            ServiceName::MetadataCopy => self.copies.serve(request),
            ServiceName::Disks => match &self.disks {
                Some(disks) => disks::serve(&**disks, request),
                None => Reply::failed(Status::NOTSUP),
            },
            ServiceName::Targets => self.targets.serve(request),
            ServiceName::Metadata | ServiceName::Connection => match &self.meta {
                Some(meta) => meta.serve(request),
                None => Reply::failed(Status::RETRY),
            },
        }
    }
}
