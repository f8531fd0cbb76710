//! Objects whose data is to be deleted. The metadata server lists them here, the nodes
//! (`nuri-node`) delete their data, and then they are struck off the list.

use std::collections::HashSet;

use nuri_kv::engine::{Batch, Engine};
use nuri_proto::Status;
use nuri_proto::id::ObjectId;
use nuri_proto::layout::Layout;

use crate::namespace::schema::{self, Family, GarbageRecord};
use crate::namespace::txn::kv_status;
use crate::server::MetaServer;

impl MetaServer {
    /// Up to `limit` objects above `after` whose deletion is durable in the namespace, ascending.
    ///
    /// # Errors
    /// As the store's.
    pub fn garbage(
        &self,
        after: ObjectId,
        limit: usize,
    ) -> Result<Vec<(ObjectId, Layout)>, Status> {
        let (prefix, after) = (schema::family_prefix(Family::Garbage), schema::garbage_key(after));
        let pairs = self.engine.scan(&prefix, &after, limit).map_err(|e| kv_status(&e))?;
        if pairs.is_empty() {
            return Ok(Vec::new());
        }
        // A crash must not bring back a name whose data is gone.
        let last = self.engine.last_commit();
        self.engine.wait_durable(last).map_err(|e| kv_status(&e))?;
        let object = |(key, value): (Vec<u8>, Vec<u8>)| {
            let record: GarbageRecord = schema::decode(&value)?;
            Ok((ObjectId(schema::key_id(&key).ok_or(Status::CORRUPT)?), record.layout))
        };
        pairs.into_iter().map(object).collect()
    }

    /// Notes that the objects' data is gone from all targets.
    ///
    /// # Errors
    /// As the store's.
    pub fn garbage_done(&self, objects: &[ObjectId]) -> Result<(), Status> {
        let mut batch = Batch::new();
        objects.iter().for_each(|object| batch.delete(schema::garbage_key(*object)));
        self.commit(&mut self.core.lock(), batch, &HashSet::new()).map(|_| ())
    }
}
