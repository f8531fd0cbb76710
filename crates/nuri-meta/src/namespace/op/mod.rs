//! The operations: each names the leases it needs and runs in one transaction.

use nuri_proto::Status;
use nuri_proto::op::Call;

use crate::lease::Claim;
use crate::namespace::txn::Txn;

mod apply;
mod attr;
mod hold;
mod layout;
mod lookup;
mod make;
mod once;
mod publish;
mod readdir;
mod remove;
mod rename;
mod xattr;

/// An operation of the metadata server.
pub(crate) trait MetaOp: Call {
    /// Leases that must not be held elsewhere while the operation runs.
    fn claims(&self, txn: &Txn<'_>) -> Result<Vec<Claim>, Status>;

    /// Whether it makes the store larger, and is refused while the store's disk is nearly full.
    /// What programs were already answered, and what makes room, goes on.
    fn grows(&self) -> bool {
        false
    }

    /// Runs under the server's lock; `payload` is the frame's.
    fn run(self, txn: &mut Txn<'_>, payload: &[u8]) -> Result<Self::Reply, Status>;
}

pub(crate) use remove::reap;
