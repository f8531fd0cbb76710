//! Commits changes of the running server, and waits until they are durable.
//!
//! Every commit passes here under the server's lock. So an operation knows which commits the data
//! that it read comes from.

use std::collections::HashSet;
use std::time::Duration;

use nuri_kv::engine::{Batch, CommitId, Engine, KvError};
use nuri_proto::Status;
use nuri_rules::broken;

use crate::namespace::txn::kv_status;
use crate::server::{Core, MetaServer};

/// Between two looks whether the store's disk has room again.
const NO_ROOM_PAUSE: Duration = Duration::from_millis(50);

impl MetaServer {
    /// Makes the batch visible; `found` are keys that are known to have had a value before. Returns
    /// the commit to wait for before any client is told: none, for an empty batch.
    pub(crate) fn commit(
        &self,
        core: &mut Core,
        batch: Batch,
        found: &HashSet<Vec<u8>>,
    ) -> Result<CommitId, Status> {
        let is_empty = batch.is_empty();
        let changes = core.pending_commits.changes(&batch, found);
        // Also an empty one: a store that stopped refuses it.
        let id = self.engine.commit(batch).map_err(|e| kv_status(&e))?;
        if is_empty {
            return Ok(CommitId::default());
        }
        core.pending_commits.settle(self.engine.durable());
        core.pending_commits.note(id, &changes);
        Ok(id)
    }

    pub(crate) fn durable(&self, id: CommitId) -> Result<(), Status> {
        if broken!("reply_before_durable") {
            return Ok(());
        }
        loop {
            match self.engine.wait_durable(id) {
                // It was taken on, others may have seen it: it is told as soon as there is room.
                Err(KvError::NoSpace) => std::thread::sleep(NO_ROOM_PAUSE),
                outcome => return outcome.map_err(|e| kv_status(&e)),
            }
        }
    }
}
