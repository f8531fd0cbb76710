//! After an older state of the metadata came back: numbers that may have been given since.
//!
//! Targets may hold data of objects that this state never gave out, and mounts inodes and
//! sessions. A number is never used twice, so all of them are left out. Caller: whoever restored.

use nuri_kv::engine::{Batch, Engine, KvError};

use crate::namespace::schema::{self, Counters};

/// More than any server gives out between two copies.
pub(crate) const SKIP: u64 = 1 << 32;

/// Raises the next inode, object and session far above the stored ones, durably.
///
/// # Errors
/// As the store's; [`KvError::Damaged`] where the counters cannot be read.
pub fn skip_numbers(engine: &dyn Engine) -> Result<(), KvError> {
    let damaged = |_| KvError::Damaged("the counters cannot be read".into());
    // A store in which no server ever ran gave out nothing.
    let Some(bytes) = engine.get(&schema::counters_key())? else { return Ok(()) };
    let mut counters: Counters = schema::decode(&bytes).map_err(damaged)?;
    counters.next_ino += SKIP;
    counters.next_object += SKIP;
    counters.next_session += SKIP;
    let mut batch = Batch::new();
    batch.put(schema::counters_key(), schema::encode(&counters).map_err(damaged)?);
    engine.wait_durable(engine.commit(batch)?)
}
