//! Whether a member holds what the others say that it held, after its machine was started anew.
//!
//! A disk that said more than it kept lost its newest writes with the power, and shows an older
//! state that is whole in itself: nothing on it tells. The other members' lists do (rule E5 of
//! `nuri-target/src/epochs.rs`). The member takes no write meanwhile, so its own list is complete.
//!
//! Behind is who lacks what another one has. A stripe that nobody else has was truncated, if one
//! of the others never lost power; else it may be them who lack it. A write that was under way
//! makes members differ too: then one is brought up to date that was not behind. That is cheap.

use nuri_proto::Status;
use nuri_proto::id::{ChunkKey, Epoch, GroupId, TargetId};
use nuri_proto::layout::Shape;
use nuri_proto::map::Group;

use super::Groups;
use super::port::Port;
use super::resync::{List, should_hold};

/// What to do about members that do not answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unheard {
    /// They may come: the question is to be asked again.
    Waited,
    /// They had their time: those that answer decide.
    LeftOut,
}

impl<P: Port> Groups<P> {
    /// Those of the groups in which the target, a live member, is behind. `is_proven` tells of the
    /// others.
    ///
    /// # Errors
    /// One of those that are needed does not answer.
    pub fn prove(
        &self,
        target: TargetId,
        groups: impl IntoIterator<Item = GroupId>,
        is_proven: impl Fn(TargetId) -> bool,
        unheard: Unheard,
    ) -> Result<Vec<GroupId>, Status> {
        let mut behind = Vec::new();
        for id in groups {
            let group = self.port.group(id).ok_or(Status::NOENT)?;
            if self.is_behind(&group, target, &is_proven, unheard)? {
                behind.push(id);
            }
        }
        Ok(behind)
    }

    fn is_behind(
        &self,
        group: &Group,
        target: TargetId,
        is_proven: impl Fn(TargetId) -> bool,
        unheard: Unheard,
    ) -> Result<bool, Status> {
        let is_live = |place: &usize| group.live().has(*place);
        let Some(place) = group.place(target).filter(is_live) else { return Ok(false) };
        let mut others = Others { shape: group.shape, lists: Vec::new(), has_proven: false };
        for other in group.live().iter().filter(|other| *other != place) {
            let target = group.members[other].target;
            match self.list(group, target, Epoch(0)) {
                Ok(list) => {
                    others.lists.push((other, list));
                    others.has_proven |= is_proven(target);
                }
                Err(_) if unheard == Unheard::LeftOut => {}
                Err(status) => return Err(status),
            }
        }
        if others.lists.is_empty() {
            return Ok(false);
        }
        Ok(others.are_ahead_of(place, &self.list(group, target, Epoch(0))?))
    }
}

/// What the other members told.
struct Others {
    shape: Shape,
    lists: Vec<(usize, List)>,
    /// One of them never lost power.
    has_proven: bool,
}

impl Others {
    fn are_ahead_of(&self, place: usize, own: &List) -> bool {
        let has = |key: &ChunkKey| self.lists.iter().any(|(_, list)| list.contains_key(key));
        let lacks = |key: &ChunkKey| {
            let wanted = should_hold(self.shape, place, &self.lists, key).0;
            !own.get(key).cloned().unwrap_or_default().reaches(&wanted)
        };
        let is_truncated = |key: &ChunkKey| self.has_proven && !has(key);
        let listed = self.lists.iter().flat_map(|(_, list)| list.keys());
        own.keys().any(is_truncated) || listed.into_iter().any(lacks)
    }
}

#[cfg(test)]
mod tests {
    use nuri_proto::id::ObjectId;
    use nuri_proto::stripe::{Covers, Version};

    use super::*;

    fn list(stripes: &[(u32, u64)]) -> List {
        let key = |stripe| ChunkKey { object: ObjectId(1), component: 0, stripe };
        stripes.iter().map(|(stripe, v)| (key(*stripe), Covers(vec![Version(*v)]))).collect()
    }

    #[test]
    fn behind_is_who_lacks_what_another_has() {
        let others = |list, has_proven| Others {
            shape: Shape::Mirror(2),
            lists: vec![(1, list)],
            has_proven,
        };
        let newer = others(list(&[(0, 5), (1, 7)]), false);
        assert!(newer.are_ahead_of(0, &list(&[(0, 5), (1, 6)])));
        assert!(newer.are_ahead_of(0, &list(&[(0, 5)])));
        assert!(!newer.are_ahead_of(0, &list(&[(0, 5), (1, 7)])));
        assert!(!newer.are_ahead_of(0, &list(&[(0, 6), (1, 7), (2, 8)])), "they may lack it");
        let proven = others(list(&[(0, 5)]), true);
        assert!(proven.are_ahead_of(0, &list(&[(0, 5), (1, 7)])), "it was truncated");
        assert!(!proven.are_ahead_of(0, &list(&[(0, 6)])), "its writer did not reach the other");
    }
}
