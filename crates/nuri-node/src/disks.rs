//! Raw disks of this node, for NBD servers on other machines.
//!
//! This file does not open or serve them: the program gives a [`DiskService`] to its node.

use std::net::IpAddr;
use std::sync::Arc;

use nuri_proto::Status;
use nuri_proto::op::Op;
use nuri_proto::op::disk::{DiskList, DiskListReply, DiskOpen, DiskOpenReply};
use nuri_rpc::{Reply, Request, reply_to};

use crate::failure::Failure;

/// The disks of this machine.
pub trait DiskService: Send + Sync + 'static {
    fn list(&self) -> DiskListReply;

    fn open(&self, call: &DiskOpen) -> DiskOpenReply;
}

/// Makes the service of a node: of those disks that it gives away, and at this address of it.
///
/// # Errors
/// What is wrong with the words that say which.
pub type MakeDisks = fn(&str, IpAddr) -> Result<Arc<dyn DiskService>, Failure>;

pub(crate) fn serve(disks: &dyn DiskService, request: &Request<'_>) -> Reply {
    match request.op {
        Op::DiskList => reply_to::<DiskList>(request.args, |_| Ok(disks.list())),
        Op::DiskOpen => reply_to::<DiskOpen>(request.args, |call| Ok(disks.open(&call))),
        _ => Reply::failed(Status::MALFORMED),
    }
}
