//! Skips numbers after an older state of the metadata was restored, because they may have been used
//! since that state.
//!
//! Targets may hold data of objects that the restored state never gave out. Mounts may hold such
//! inodes and sessions. A number is never used twice, so all of these numbers are left out. Caller:
//! the program that restored the state.

use nuri_kv::engine::{Batch, Engine, KvError};

use crate::namespace::schema::{self, Counters};

/// Numbers to skip: more than any server gives out between two copies.
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
