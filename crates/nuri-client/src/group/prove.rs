//! Whether a member holds what the others say that it held, after its machine was started anew.
//!
//! A disk that said more than it kept lost its newest writes with the power, and shows an older
//! state that is whole in itself: nothing on it tells. The other members' lists do (rule E5 of
//! `nuri-target/src/epochs.rs`). The member takes no write meanwhile, so its own list is complete.
//!
//! Behind is who lacks what another one has. A stripe that nobody else has was truncated, if one
//! of the others never lost power; else it may be them who lack it. A write that was under way
//! makes members differ too: then one is brought up to date that was not behind. That is cheap.

use std::collections::HashMap;

use nuri_proto::Status;
use nuri_proto::id::{ChunkKey, Epoch, GroupId, TargetId};
use nuri_proto::layout::Shape;
use nuri_proto::map::Group;

use super::Groups;
use super::port::Port;
use super::resync::{List, should_hold};

/// Groups compared side by side.
const AT_ONCE: usize = 32;

/// What to do about members that do not answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unheard {
    /// They may come: the question is to be asked again.
    Waited,
    /// They had their time: those that answer decide.
    LeftOut,
}

/// What comparing one target with the others told so far. A group that was compared stays so while
/// its epoch does: the target takes no write, so no write of the group ends meanwhile.
#[derive(Default)]
pub struct Proof {
    compared: HashMap<GroupId, (Epoch, bool)>,
}

impl Proof {
    fn of(&self, group: &Group) -> Option<bool> {
        let (epoch, is_behind) = self.compared.get(&group.id)?;
        (*epoch == group.epoch).then_some(*is_behind)
    }

    fn note(&mut self, group: &Group, is_behind: bool) {
        self.compared.insert(group.id, (group.epoch, is_behind));
    }
}

impl<P: Port> Groups<P> {
    /// Those of the groups in which the target, a live member, is behind. `is_proven` tells of the
    /// others. What was compared before, with `proof`, is not compared again.
    ///
    /// # Errors
    /// One of those that are needed does not answer: the other groups were compared.
    pub fn prove(
        &self,
        proof: &mut Proof,
        target: TargetId,
        groups: &[Group],
        is_proven: impl Fn(TargetId) -> bool,
        unheard: Unheard,
    ) -> Result<Vec<GroupId>, Status> {
        let open: Vec<_> = groups
            .iter()
            .filter(|group| proof.of(group).is_none())
            .filter_map(|group| Comparison::of(group, target))
            .collect();
        let mut outcome = Ok(());
        for some in open.chunks(AT_ONCE) {
            let mut lists = self.lists(some.iter().flat_map(Comparison::asked)).into_iter();
            for comparison in some {
                let told = lists.by_ref().take(comparison.others.len() + 1).collect();
                match comparison.is_behind(told, &is_proven, unheard) {
                    Ok(is_behind) => proof.note(comparison.group, is_behind),
                    Err(status) => outcome = Err(status),
                }
            }
        }
        let is_behind = |group: &&Group| proof.of(group) == Some(true);
        outcome.map(|()| groups.iter().filter(is_behind).map(|group| group.id).collect())
    }
}

/// A live member that is to be compared with the other live members of its group.
struct Comparison<'g> {
    group: &'g Group,
    place: usize,
    others: Vec<usize>,
}

impl<'g> Comparison<'g> {
    fn of(group: &'g Group, target: TargetId) -> Option<Comparison<'g>> {
        let place = group.place(target).filter(|place| group.live().has(*place))?;
        let others = group.live().iter().filter(|other| *other != place).collect();
        Some(Comparison { group, place, others })
    }

    /// Who is to be asked: the others, then the member itself.
    fn asked(&self) -> impl Iterator<Item = (&'g Group, TargetId)> {
        let target = |place: &usize| (self.group, self.group.members[*place].target);
        self.others.iter().chain([&self.place]).map(target).collect::<Vec<_>>().into_iter()
    }

    fn is_behind(
        &self,
        mut told: Vec<Result<List, Status>>,
        is_proven: impl Fn(TargetId) -> bool,
        unheard: Unheard,
    ) -> Result<bool, Status> {
        let own = told.pop().ok_or(Status::IO)??;
        let mut others = Others { shape: self.group.shape, lists: Vec::new(), has_proven: false };
        for (place, list) in self.others.iter().zip(told) {
            match list {
                Ok(list) => {
                    others.lists.push((*place, list));
                    others.has_proven |= is_proven(self.group.members[*place].target);
                }
                Err(_) if unheard == Unheard::LeftOut => {}
                Err(status) => return Err(status),
            }
        }
        Ok(!others.lists.is_empty() && others.are_ahead_of(self.place, &own))
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
