//! A bounded cache of what a client knows of stripes that it wrote or read. The entries are hints:
//! a member refuses a call that rests on a wrong or missing one.

use std::collections::BTreeMap;
use std::sync::Arc;

use nuri_proto::id::{ChunkKey, ObjectId};
use nuri_proto::stripe::{Covers, Version};
use parking_lot::{Mutex, RwLock};

/// Stripes remembered.
const MOST: usize = 16 << 10;

/// One stripe.
#[derive(Default)]
pub(super) struct Seen {
    /// Held by whoever writes or settles the stripe, in this client.
    pub(super) state: Mutex<Knowledge>,
    /// By place: the version that was staged there last, if it is decided.
    decided: RwLock<Vec<Version>>,
}

#[derive(Default)]
pub(super) struct Knowledge {
    /// `covers` and `newest` are what the members hold.
    pub(super) known: bool,
    pub(super) covers: Covers,
    /// Highest version that any member has seen.
    pub(super) newest: Version,
}

impl Seen {
    pub(super) fn decided(&self, place: usize) -> Version {
        self.decided.read().get(place).copied().unwrap_or_default()
    }

    pub(super) fn note_decided(&self, place: usize, version: Version) {
        let mut decided = self.decided.write();
        if decided.len() <= place {
            decided.resize(place + 1, Version::NONE);
        }
        decided[place] = version;
    }
}

#[derive(Default)]
pub(super) struct SeenTable {
    stripes: Mutex<BTreeMap<ChunkKey, Arc<Seen>>>,
}

impl SeenTable {
    pub(super) fn entry(&self, key: ChunkKey) -> Arc<Seen> {
        let mut stripes = self.stripes.lock();
        if stripes.len() >= MOST {
            // A quarter of those that nobody uses now.
            let mut excess = MOST / 4;
            stripes.retain(|_, seen| {
                let goes = excess > 0 && Arc::strong_count(seen) == 1;
                excess -= usize::from(goes);
                !goes
            });
        }
        stripes.entry(key).or_default().clone()
    }

    /// Forgets what is known of an object's stripes. The knowledge belongs to the right to the
    /// file, which other clients had since. (Versions begin anew where they truncated the file.)
    pub(super) fn forget(&self, object: ObjectId) {
        let first = ChunkKey { object, component: 0, stripe: 0 };
        let end = ChunkKey { object: ObjectId(object.0 + 1), component: 0, stripe: 0 };
        let mut stripes = self.stripes.lock();
        let own: Vec<_> = stripes.range(first..end).map(|(key, _)| *key).collect();
        own.iter().for_each(|key| drop(stripes.remove(key)));
    }

    /// The version that is known as decided at a place of the stripe.
    pub(super) fn decided(&self, key: ChunkKey, place: usize) -> Version {
        self.stripes.lock().get(&key).map_or(Version::NONE, |seen| seen.decided(place))
    }
}
