//! Which commit changed a key last, for commits that may not be durable yet. Pure.
//!
//! A reply shows data that was read, so it waits for the commits that the data comes from, and for
//! no others. Commits become durable in their order, so waiting for the last one is enough. A key
//! that is not in this table was not changed since the last durable commit, or not after `floor`.
//!
//! Keys are known by their hash. Where two keys have the same hash, readers wait for more than they
//! need.

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::BuildHasher;

use nuri_kv::engine::{Batch, CommitId};

use crate::namespace::schema::Family;

/// Changes that are remembered; beyond that everything waits for the last of them.
const LIMIT: usize = 1 << 16;

/// What a commit did to a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// There was a value before, and there is one now.
    Changed,
    /// Made or removed, as far as is known.
    Made,
}

/// The last commits that may not be durable, for one key.
#[derive(Clone, Copy, Default)]
struct Last {
    /// That did anything to it.
    changed: CommitId,
    /// That made or removed it.
    made: CommitId,
}

/// Changes of commits that may not be durable yet.
pub(crate) struct PendingCommits {
    hasher: RandomState,
    keys: HashMap<u64, Last>,
    /// What to forget when commits are durable, in their order.
    order: VecDeque<(CommitId, u64)>,
    /// Every key may have been changed by a commit up to this one.
    floor: CommitId,
    limit: usize,
}

impl PendingCommits {
    /// A table that knows no keys of the commits up to `floor`.
    pub(crate) fn new(floor: CommitId) -> PendingCommits {
        let (hasher, keys, order) = Default::default();
        PendingCommits { hasher, keys, order, floor, limit: LIMIT }
    }

    /// The changes that a batch is about to make; `found` are keys that are known to have a value
    /// before it.
    pub(crate) fn changes(&self, batch: &Batch, found: &HashSet<Vec<u8>>) -> Vec<(u64, Way)> {
        let change = |(key, value): (&[u8], Option<&[u8]>)| {
            let stays = value.is_some() && found.contains(key);
            (self.hasher.hash_one(key), if stays { Way::Changed } else { Way::Made })
        };
        batch.changes().filter(|(key, _)| !lives_in_memory(key)).map(change).collect()
    }

    /// Notes that the changes were committed, after all changes that were noted before.
    pub(crate) fn note(&mut self, id: CommitId, changes: &[(u64, Way)]) {
        if self.order.len() + changes.len() > self.limit {
            self.keys.clear();
            self.order.clear();
            self.floor = id;
            return;
        }
        for (key, way) in changes {
            let last = self.keys.entry(*key).or_default();
            last.changed = id;
            if *way == Way::Made {
                last.made = id;
            }
            self.order.push_back((id, *key));
        }
    }

    /// Forgets what is durable.
    pub(crate) fn settle(&mut self, durable: CommitId) {
        while let Some((_, key)) = self.order.pop_front_if(|(id, _)| *id <= durable) {
            if self.keys.get(&key).is_some_and(|last| last.changed <= durable) {
                self.keys.remove(&key);
            }
        }
    }

    /// The commit to wait for before a reply may tell the key's value, or that it has none.
    pub(crate) fn changed(&self, key: &[u8]) -> CommitId {
        self.last(key).changed.max(self.floor)
    }

    /// As `changed`, where the reply tells only whether the key has a value.
    pub(crate) fn made(&self, key: &[u8]) -> CommitId {
        self.last(key).made.max(self.floor)
    }

    fn last(&self, key: &[u8]) -> Last {
        debug_assert!(!lives_in_memory(key), "its commits are not noted");
        self.keys.get(&self.hasher.hash_one(key)).copied().unwrap_or_default()
    }
}

/// Every commit writes these, and no operation reads them from the store: the server has them.
fn lives_in_memory(key: &[u8]) -> bool {
    let family = key.first().copied();
    [Family::Counters, Family::Slot].into_iter().any(|f| family == Some(f as u8))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namespace::schema::{counters_key, inode_key, slot_key};
    use nuri_proto::id::{Ino, SessionId};

    const NONE: CommitId = CommitId(0);
    const ONE: CommitId = CommitId(1);
    const TWO: CommitId = CommitId(2);
    const THREE: CommitId = CommitId(3);

    fn key(ino: u64) -> Vec<u8> {
        inode_key(Ino(ino))
    }

    fn put(pending_commits: &mut PendingCommits, id: CommitId, ino: u64, found: &[u64]) {
        let mut batch = Batch::new();
        batch.put(key(ino), vec![1]);
        note(pending_commits, id, &batch, found);
    }

    fn note(pending_commits: &mut PendingCommits, id: CommitId, batch: &Batch, found: &[u64]) {
        let found = found.iter().map(|ino| key(*ino)).collect();
        let changes = pending_commits.changes(batch, &found);
        pending_commits.note(id, &changes);
    }

    #[test]
    fn a_key_waits_for_its_own_last_commit_until_that_is_durable() {
        let mut pending_commits = PendingCommits::new(NONE);
        put(&mut pending_commits, ONE, 1, &[]);
        put(&mut pending_commits, TWO, 2, &[]);
        put(&mut pending_commits, THREE, 1, &[]);
        let changed = |u: &PendingCommits| [1, 2, 3].map(|ino| u.changed(&key(ino)));
        assert_eq!(changed(&pending_commits), [THREE, TWO, NONE]);
        pending_commits.settle(ONE);
        assert_eq!(changed(&pending_commits), [THREE, TWO, NONE], "the first is overwritten");
        pending_commits.settle(TWO);
        assert_eq!(changed(&pending_commits), [THREE, NONE, NONE]);
        pending_commits.settle(THREE);
        assert_eq!(changed(&pending_commits), [NONE; 3]);
        assert!(pending_commits.keys.is_empty() && pending_commits.order.is_empty());
    }

    #[test]
    fn a_removed_key_is_waited_for_like_a_value() {
        let mut pending_commits = PendingCommits::new(NONE);
        let mut batch = Batch::new();
        batch.delete(key(1));
        note(&mut pending_commits, ONE, &batch, &[1]);
        assert_eq!((pending_commits.changed(&key(1)), pending_commits.made(&key(1))), (ONE, ONE));
    }

    #[test]
    fn a_change_of_what_was_there_does_not_make_it() {
        let mut pending_commits = PendingCommits::new(NONE);
        put(&mut pending_commits, ONE, 1, &[]);
        put(&mut pending_commits, TWO, 1, &[1]);
        put(&mut pending_commits, TWO, 2, &[2]);
        let made = |u: &PendingCommits| [1, 2].map(|ino| u.made(&key(ino)));
        assert_eq!(made(&pending_commits), [ONE, NONE]);
        assert_eq!([1, 2].map(|ino| pending_commits.changed(&key(ino))), [TWO; 2]);
        pending_commits.settle(ONE);
        assert!(made(&pending_commits).into_iter().all(|id| id <= ONE));
    }

    #[test]
    fn what_is_removed_and_put_again_in_one_batch_is_made() {
        let mut pending_commits = PendingCommits::new(NONE);
        let mut batch = Batch::new();
        batch.delete(key(1));
        batch.put(key(1), vec![2]);
        note(&mut pending_commits, ONE, &batch, &[1]);
        assert_eq!(pending_commits.made(&key(1)), ONE);
    }

    #[test]
    fn beyond_the_limit_every_key_waits_for_the_last() {
        let mut pending_commits = PendingCommits { limit: 2, ..PendingCommits::new(NONE) };
        put(&mut pending_commits, ONE, 1, &[1]);
        put(&mut pending_commits, TWO, 2, &[2]);
        assert_eq!(pending_commits.changed(&key(9)), NONE);
        put(&mut pending_commits, THREE, 3, &[3]);
        assert_eq!([1, 2, 3, 9].map(|ino| pending_commits.changed(&key(ino))), [THREE; 4]);
        assert_eq!([1, 9].map(|ino| pending_commits.made(&key(ino))), [THREE; 2]);
        pending_commits.settle(THREE);
        put(&mut pending_commits, CommitId(4), 1, &[1]);
        assert_eq!([1, 2].map(|ino| pending_commits.changed(&key(ino))), [CommitId(4), THREE]);
    }

    #[test]
    fn nothing_is_known_of_what_was_committed_before() {
        assert_eq!(PendingCommits::new(TWO).changed(&key(1)), TWO);
    }

    #[test]
    fn what_every_commit_writes_takes_no_room() {
        let mut pending_commits = PendingCommits::new(NONE);
        let mut batch = Batch::new();
        batch.put(counters_key(), vec![1]);
        batch.put(slot_key(SessionId(1), 2), vec![1]);
        note(&mut pending_commits, ONE, &batch, &[]);
        assert!(pending_commits.keys.is_empty() && pending_commits.order.is_empty());
    }
}
