//! Lazy commits (rule MEMBER-4): how members learn that a write is decided.
//!
//! Members learn it from the next write of the stripe, from a read, or a little later from this
//! file. If a commit is lost, settling finds out what was decided.

use std::collections::BTreeMap;
use std::time::Duration;

use nuri_proto::id::{ChunkKey, SessionId, TargetId};
use nuri_proto::op::member::MemberCommit;
use nuri_proto::stripe::Version;
use parking_lot::{Condvar, Mutex};

use super::Groups;
use super::port::{Ask, Port};

/// Commits told in one call.
const BATCH: usize = 1024;

/// Decided writes that members were not told of yet, by member.
#[derive(Default)]
pub(super) struct Commits {
    /// In an order, so that the simulator plays the same again.
    waiting: Mutex<BTreeMap<TargetId, BTreeMap<ChunkKey, Version>>>,
    added: Condvar,
}

impl Commits {
    pub(super) fn add(&self, target: TargetId, key: ChunkKey, version: Version) {
        let mut waiting = self.waiting.lock();
        if waiting.is_empty() {
            self.added.notify_one();
        }
        waiting.entry(target).or_default().insert(key, version);
    }
}

impl<P: Port> Groups<P> {
    /// Waits until there is a decision to tell members, at most so long.
    pub fn wait_commits(&self, at_most: Duration) -> bool {
        let mut waiting = self.commits.waiting.lock();
        if waiting.is_empty() {
            self.commits.added.wait_for(&mut waiting, at_most);
        }
        !waiting.is_empty()
    }

    /// Tells members what was decided since the last call.
    pub fn tell_commits(&self) {
        let waiting = std::mem::take(&mut *self.commits.waiting.lock());
        for (target, decided) in waiting {
            let decided: Vec<_> = decided.into_iter().collect();
            for part in decided.chunks(BATCH) {
                let call = MemberCommit { target, decided: part.to_vec() };
                self.port.exchange(SessionId(0), vec![Ask::plain(target, call)]);
            }
        }
    }
}
