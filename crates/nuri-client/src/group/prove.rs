//! Whether a member holds what the others say that it held, after its machine was started anew.
//!
//! A disk that said more than it kept lost its newest writes with the power, and shows an older
//! state that is whole in itself: nothing on it tells. The other members' lists do (rule E5 of
//! `nuri-target/src/epochs.rs`). The member takes no write meanwhile, so its own list is complete.
//!
//! Behind is who lacks what another one has. A stripe that nobody else has was truncated, if one
//! of those that took part in writing it never lost power, or more of these lack it than can have
//! lost it; else it may be them who lack it. A write that was under way makes members differ too.
//!
//! Where all others are beyond doubt, who is behind leaves the group and is brought up to date:
//! programs go on meanwhile. Else nobody knows who lost something: the stripes that differ are
//! brought forward one by one (`forward.rs`), and nobody leaves.

use std::collections::{BTreeSet, HashMap};

use nuri_proto::Status;
use nuri_proto::id::{ChunkKey, Epoch, GroupId, TargetId};
use nuri_proto::layout::Shape;
use nuri_proto::map::Group;
use nuri_proto::stripe::{Covers, Members, Version};

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
                let differs = comparison.differs(told, &is_proven, unheard);
                match differs.and_then(|d| self.answer(comparison, &d, &is_proven, unheard)) {
                    Ok(is_behind) => proof.note(comparison.group, is_behind),
                    Err(status) => outcome = Err(status),
                }
            }
        }
        let is_behind = |group: &&Group| proof.of(group) == Some(true);
        outcome.map(|()| groups.iter().filter(is_behind).map(|group| group.id).collect())
    }
}

impl<P: Port> Groups<P> {
    /// Acts on what a comparison found. Returns whether the member is to leave.
    fn answer(
        &self,
        comparison: &Comparison<'_>,
        differs: &Differs,
        is_proven: &impl Fn(TargetId) -> bool,
        unheard: Unheard,
    ) -> Result<bool, Status> {
        let Comparison { group, place, others } = comparison;
        let is_behind = !differs.lacks.is_empty() || !differs.has_more.is_empty();
        let in_doubt = |place: &usize| !is_proven(group.members[*place].target);
        let may_leave = others.len() >= group.shape.data();
        if is_behind && may_leave && !others.iter().any(in_doubt) {
            return Ok(true);
        }
        let doubt = Members::of(group.live().iter().filter(in_doubt));
        let target = group.members[*place].target;
        for (key, covers) in &differs.has_more {
            self.keep_cut_off(group, &self.stripe(group, *key), doubt)?;
            match self.forget_chunk(group, target, *key, covers.clone(), false) {
                // It is gone, or a write is staged there alone, which is settled by who meets it.
                Ok(()) | Err(Status::RETRY) => {}
                Err(status) => return Err(status),
            }
        }
        for key in differs.lacks.iter().chain(&differs.is_ahead) {
            match self.bring_forward(group, &self.stripe(group, *key), doubt) {
                // Who is needed for that does not come, or a dead writer's write is in the way.
                Err(Status::UNREACHABLE | Status::RETRY) if unheard == Unheard::LeftOut => {
                    return Ok(may_leave);
                }
                outcome => outcome?,
            }
        }
        Ok(false)
    }
}

/// A live member that is to be compared with the other live members of its group.
struct Comparison<'g> {
    group: &'g Group,
    place: usize,
    others: Vec<usize>,
}

/// What a member has less of than the others, or more.
#[derive(PartialEq, Eq, Default, Debug)]
struct Differs {
    lacks: Vec<ChunkKey>,
    /// A write that did not reach the others, or one that was cut off there.
    is_ahead: Vec<ChunkKey>,
    /// Truncated at the others.
    has_more: Vec<(ChunkKey, Covers)>,
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

    fn differs(
        &self,
        mut told: Vec<Result<List, Status>>,
        is_proven: impl Fn(TargetId) -> bool,
        unheard: Unheard,
    ) -> Result<Differs, Status> {
        let own = told.pop().ok_or(Status::IO)??;
        let proven = self.others.iter().filter(|p| is_proven(self.group.members[**p].target));
        let proven = Members::of(proven.copied());
        let mut others = Others { shape: self.group.shape, lists: Vec::new(), proven };
        for (place, list) in self.others.iter().zip(told) {
            match list {
                Ok(list) => others.lists.push((*place, list)),
                Err(_) if unheard == Unheard::LeftOut => {}
                Err(status) => return Err(status),
            }
        }
        Ok(others.differ_from(self.place, &own))
    }
}

/// What the other members told.
struct Others {
    shape: Shape,
    lists: Vec<(usize, List)>,
    /// Those that never lost power, or were compared since.
    proven: Members,
}

impl Others {
    fn differ_from(&self, place: usize, own: &List) -> Differs {
        if self.lists.is_empty() {
            return Differs::default();
        }
        let wanted = |key: &ChunkKey| should_hold(self.shape, place, &self.lists, key).0;
        let lacks =
            |key: &ChunkKey| !own.get(key).cloned().unwrap_or_default().reaches(&wanted(key));
        let listed: BTreeSet<_> = self.lists.iter().flat_map(|(_, list)| list.keys()).collect();
        let is_gone = |key: &ChunkKey, covers: &Covers| {
            !listed.contains(key) && self.would_know(place, covers)
        };
        let has_more = own.iter().filter(|(key, covers)| is_gone(key, covers));
        let is_ahead = own.iter().filter(|(key, covers)| {
            !is_gone(key, covers) && !wanted(key).reaches(covers) && !lacks(key)
        });
        Differs {
            is_ahead: is_ahead.map(|(key, _)| *key).collect(),
            has_more: has_more.map(|(key, covers)| (*key, covers.clone())).collect(),
            lacks: listed.iter().filter(|key| lacks(key)).map(|key| **key).collect(),
        }
    }

    /// Whether a stripe that none of them has cannot have been lost by those that took part in what
    /// the place's member holds of it.
    fn would_know(&self, place: usize, covers: &Covers) -> bool {
        let data = self.shape.data();
        let took_part = |other: usize| match self.shape {
            Shape::Parity { .. } if other >= data => true,
            Shape::Parity { .. } => place >= data && covers.get(other) != Version::NONE,
            Shape::Stripe | Shape::Mirror(_) => true,
        };
        let places = self.lists.iter().map(|(other, _)| *other);
        let witnesses = Members::of(places.filter(|other| took_part(*other)));
        let may_have_lost = self.shape.members() - data;
        witnesses.0 & self.proven.0 != 0 || witnesses.iter().count() > may_have_lost
    }
}

#[cfg(test)]
mod tests {
    use nuri_proto::id::ObjectId;

    use super::*;

    fn list(stripes: &[(u32, u64)]) -> List {
        let key = |stripe| ChunkKey { object: ObjectId(1), component: 0, stripe };
        stripes.iter().map(|(stripe, v)| (key(*stripe), Covers(vec![Version(*v)]))).collect()
    }

    #[test]
    fn behind_is_who_lacks_what_another_has() {
        let of = |stripes: &[u32]| -> Vec<_> {
            list(&stripes.iter().map(|s| (*s, 1)).collect::<Vec<_>>()).into_keys().collect()
        };
        let differs = |shape, others: &[List], proven, own: &[(u32, u64)]| {
            let lists = others.iter().cloned().enumerate().map(|(at, list)| (at + 1, list));
            let others = Others { shape, lists: lists.collect(), proven: Members(proven) };
            let Differs { lacks, has_more, .. } = others.differ_from(0, &list(own));
            (lacks, has_more.into_iter().map(|(key, _)| key).collect::<Vec<_>>())
        };
        let mirror = Shape::Mirror(2);
        let newer = [list(&[(0, 5), (1, 7)])];
        let other = |own| differs(mirror, &newer, 0, own);
        assert_eq!(other(&[(0, 5), (1, 6)]), (of(&[1]), vec![]));
        assert_eq!(other(&[(0, 5)]), (of(&[1]), vec![]));
        assert_eq!(other(&[(0, 5), (1, 7)]), (vec![], vec![]));
        assert_eq!(other(&[(0, 6), (1, 7), (2, 8)]), (vec![], vec![]), "it may lack them");
        let proven = |own| differs(mirror, &[list(&[(0, 5)])], 0b10, own);
        assert_eq!(proven(&[(0, 5), (1, 7)]), (vec![], of(&[1])), "it was truncated");
        assert_eq!(proven(&[(0, 6)]), (vec![], vec![]), "its writer did not reach the other");
        assert_eq!(differs(mirror, &[], 0, &[(0, 6)]), (vec![], vec![]), "nobody else is there");
        let (three, none) = (Shape::Mirror(3), [list(&[]), list(&[])]);
        assert_eq!(differs(three, &none, 0, &[(3, 1)]), (vec![], vec![]), "two may have lied");
        let parity = Shape::Parity { k: 2, m: 1 };
        let gone = |proven| differs(parity, &none, proven, &[(3, 1)]).1;
        assert_eq!(gone(0b010), of(&[]), "the other data member took no part");
        assert_eq!(gone(0b100), of(&[3]), "parity did");
    }
}
