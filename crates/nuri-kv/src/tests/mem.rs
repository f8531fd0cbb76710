//! The simplest engine: a sorted map. The oracle that others are compared with.

use std::collections::BTreeMap;
use std::ops::Bound;

use parking_lot::Mutex;

use crate::engine::{Batch, CommitId, Engine, KvError, Pair};

pub type Map = BTreeMap<Vec<u8>, Vec<u8>>;

#[derive(Default)]
pub struct MemEngine {
    state: Mutex<(Map, u64)>,
}

pub fn apply(map: &mut Map, batch: &Batch) {
    for (key, value) in &batch.changes {
        match value {
            Some(value) => drop(map.insert(key.clone(), value.clone())),
            None => drop(map.remove(key)),
        }
    }
}

impl Engine for MemEngine {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, KvError> {
        Ok(self.state.lock().0.get(key).cloned())
    }

    fn scan(&self, prefix: &[u8], after: &[u8], limit: usize) -> Result<Vec<Pair>, KvError> {
        let from = if after < prefix || (after.is_empty() && prefix.is_empty()) {
            Bound::Included(prefix)
        } else {
            Bound::Excluded(after)
        };
        let state = self.state.lock();
        let range = state.0.range::<[u8], _>((from, Bound::Unbounded));
        let found = range.take_while(|(key, _)| key.starts_with(prefix)).take(limit);
        Ok(found.map(|(key, value)| (key.clone(), value.clone())).collect())
    }

    fn commit(&self, batch: Batch) -> Result<CommitId, KvError> {
        let mut state = self.state.lock();
        if !batch.is_empty() {
            state.1 += 1;
            apply(&mut state.0, &batch);
        }
        Ok(CommitId(state.1))
    }

    fn wait_durable(&self, _: CommitId) -> Result<(), KvError> {
        Ok(())
    }

    fn last_commit(&self) -> CommitId {
        CommitId(self.state.lock().1)
    }

    fn durable(&self) -> CommitId {
        self.last_commit()
    }
}
