//! Proves, after a member's machine was restarted, that the member still holds what the others say
//! it held.
//!
//! A disk may acknowledge a flush that it did not do. Then it loses its newest writes with the
//! power, and shows an older state that is consistent in itself. Nothing on the disk tells. The
//! lists of the other members can tell (rule EPOCH-5 of `nuri-target/src/epochs.rs`). The member
//! takes no write meanwhile, so its own list is complete.
//!
//! A member is behind if it lacks what another one has. A stripe that no other member has may have
//! been truncated, or the others may have lost it. It was truncated if one of the members that took
//! part in writing it never lost power. It was also truncated if more of these members lack it than
//! can have lost it. A list names a staged write in place of the base under it, in which other
//! members took part: both must be gone. A write that was under way makes members differ too.
//!
//! Where all other members are beyond doubt, the member that is behind leaves the group and is
//! brought up to date. Programs go on meanwhile. Otherwise nobody knows which member lost
//! something. Then the stripes that differ are brought forward one by one (`forward.rs`), and no
//! member leaves. A live member that does not answer may be the one that holds what was lost here.
//! So its answer is awaited, or the authority takes it out of the group. After a while the member
//! leaves instead, if the members that did answer hold all the data without it.

use std::collections::BTreeSet;

use nuri_proto::Status;
use nuri_proto::id::{ChunkKey, Epoch, GroupId, TargetId};
use nuri_proto::layout::Shape;
use nuri_proto::map::Group;
use nuri_proto::op::member::MemberHeld;
use nuri_proto::stripe::{Covers, Members, Version};
use nuri_rules::broken;

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
    /// They had their time. A member that cannot be compared leaves, if all others are beyond doubt
    /// and those that answered hold the data.
    LeftOut,
}

/// The groups in which one opening of a target was proven, each as it was in an epoch.
#[derive(Default)]
pub struct Proofs(BTreeSet<(GroupId, Epoch)>);

/// The result of comparing one target with the others, for the groups in which all answered.
#[derive(Default)]
pub struct Compared {
    /// It may answer for these.
    pub proven: Vec<(GroupId, Epoch)>,
    /// It is to leave these, and to be brought up to date.
    pub behind: Vec<(GroupId, Epoch)>,
}

impl<P: Port> Groups<P> {
    /// Compares the target with the other members, in the groups where it is live and unproven.
    ///
    /// What was proven before is proven again without a look: the authority may not have heard of
    /// it, or the map may not say so yet. Meanwhile the target may take writes, and those that are
    /// under way would look like differences.
    pub fn prove(
        &self,
        target: TargetId,
        groups: &[Group],
        (unheard, proofs): (Unheard, &mut Proofs),
    ) -> Compared {
        let open = groups.iter().filter_map(|group| Comparison::of(group, target));
        let is_known = |c: &Comparison<'_>| proofs.0.contains(&(c.group.id, c.group.epoch));
        let (known, open): (Vec<_>, Vec<_>) = open.partition(is_known);
        let known = known.iter().map(|c| (c.group.id, c.group.epoch));
        let mut compared = Compared { proven: known.collect(), behind: Vec::new() };
        for some in open.chunks(AT_ONCE) {
            let mut lists = self.lists(some.iter().flat_map(Comparison::asked)).into_iter();
            for comparison in some {
                let told: Vec<_> = lists.by_ref().take(comparison.asked().count()).collect();
                // The last one is the member's own.
                let others = told.len().saturating_sub(1);
                let heard = told.iter().take(others).filter(|list| list.is_ok()).count();
                let differs = comparison.differs(told);
                let found = (comparison.group.id, comparison.group.epoch);
                match differs.and_then(|differs| self.answer(comparison, &differs)) {
                    Ok(false) => compared.proven.push(found),
                    Ok(true) => compared.behind.push(found),
                    Err(_) if unheard == Unheard::LeftOut && comparison.may_leave_beside(heard) => {
                        compared.behind.push(found);
                    }
                    Err(_) => {}
                }
            }
        }
        proofs.0.extend(&compared.proven);
        compared
    }

    /// Acts on what a comparison found. Returns whether the member is to leave.
    fn answer(&self, comparison: &Comparison<'_>, differs: &Differs) -> Result<bool, Status> {
        let Comparison { group, place, .. } = comparison;
        let is_behind = !differs.lacks.is_empty() || !differs.has_more.is_empty();
        if is_behind && comparison.may_leave() {
            return Ok(true);
        }
        let (target, doubt) = (group.members[*place].target, group.unproven());
        for (key, covers) in &differs.has_more {
            let stripe = self.stripe(group, *key);
            self.keep_cut_off(group, &stripe, doubt)?;
            if !self.is_base_gone(comparison, *key)? {
                self.bring_forward(group, &stripe, doubt)?;
                continue;
            }
            match self.forget_chunk(group, target, *key, covers.clone(), false) {
                // It is gone, or a write is staged there alone, which is settled by who meets it.
                Ok(()) | Err(Status::RETRY) => {}
                Err(status) => return Err(status),
            }
        }
        let differing = differs.lacks.iter().chain(&differs.is_ahead);
        for key in differing {
            self.bring_forward(group, &self.stripe(group, *key), doubt)?;
        }
        Ok(false)
    }

    /// Whether what the member holds beside a staged write would be known to the others, of whom
    /// none has the stripe.
    fn is_base_gone(&self, comparison: &Comparison<'_>, key: ChunkKey) -> Result<bool, Status> {
        let Comparison { group, place, .. } = comparison;
        let (target, id, epoch) = (group.members[*place].target, group.id, group.epoch);
        let ask = MemberHeld { target, key, group: id, epoch, in_doubt: true };
        let held = self.one(target, ask)?;
        let is_gone = comparison.witnesses().would_know(*place, &held.covers);
        let is_empty = held.covers.newest() == Version::NONE;
        Ok(is_empty || is_gone || broken!("base_unasked"))
    }
}

/// A live member that is to be compared with the other live members of its group.
struct Comparison<'g> {
    group: &'g Group,
    place: usize,
    others: Members,
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
    /// `None` where nobody doubts the target.
    fn of(group: &'g Group, target: TargetId) -> Option<Comparison<'g>> {
        let place = group.place(target).filter(|place| group.unproven().has(*place))?;
        let others = Members::of(group.live().iter().filter(|other| *other != place));
        Some(Comparison { group, place, others })
    }

    /// Who is to be asked: the others, then the member itself.
    fn asked(&self) -> impl Iterator<Item = (&'g Group, TargetId)> {
        let (group, place) = (self.group, self.place);
        let places = self.others.iter().chain([place]).collect::<Vec<_>>();
        places.into_iter().map(move |place| (group, group.members[place].target))
    }

    /// The others that never lost power, or were compared since.
    fn proven(&self) -> Members {
        Members(self.others.0 & !self.group.unproven().0)
    }

    fn witnesses(&self) -> Witnesses {
        Witnesses { shape: self.group.shape, all: self.others, proven: self.proven() }
    }

    /// Whether the others hold the data, for certain, without the member.
    fn may_leave(&self) -> bool {
        let proven = match broken!("silent_is_left_out") {
            true => self.others,
            false => self.proven(),
        };
        proven == self.others && self.others.iter().count() >= self.group.shape.data()
    }

    /// Whether the member may leave without a comparison, if `heard` of the others answered. A
    /// silent member may be gone for good. So the silent ones do not count.
    fn may_leave_beside(&self, heard: usize) -> bool {
        let is_enough = heard >= self.group.shape.data() || broken!("left_beside_silent");
        self.may_leave() && is_enough
    }

    fn differs(&self, mut told: Vec<Result<List, Status>>) -> Result<Differs, Status> {
        let own = told.pop().ok_or(Status::IO)??;
        let lists = self.others.iter().zip(told).map(|(place, list)| Ok((place, list?)));
        let lists = lists.collect::<Result<Vec<_>, Status>>()?;
        let others = Others { witnesses: self.witnesses(), lists };
        Ok(others.differ_from(self.place, &own))
    }
}

/// What the other members told.
struct Others {
    witnesses: Witnesses,
    lists: Vec<(usize, List)>,
}

/// The other members, all of which told what they hold.
struct Witnesses {
    shape: Shape,
    all: Members,
    /// Those that never lost power, or were compared since.
    proven: Members,
}

impl Others {
    fn differ_from(&self, place: usize, own: &List) -> Differs {
        if self.lists.is_empty() {
            return Differs::default();
        }
        let wanted = |key: &ChunkKey| should_hold(self.witnesses.shape, place, &self.lists, key).0;
        let lacks =
            |key: &ChunkKey| !own.get(key).cloned().unwrap_or_default().reaches(&wanted(key));
        let listed: BTreeSet<_> = self.lists.iter().flat_map(|(_, list)| list.keys()).collect();
        let is_gone = |key: &ChunkKey, covers: &Covers| {
            !listed.contains(key) && self.witnesses.would_know(place, covers)
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
}

impl Witnesses {
    /// Whether a stripe that none of them has cannot have been lost by those that took part in what
    /// the place's member holds of it.
    fn would_know(&self, place: usize, covers: &Covers) -> bool {
        let data = self.shape.data();
        let took_part = |other: usize| match self.shape {
            Shape::Parity { .. } if other >= data => true,
            Shape::Parity { .. } => place >= data && covers.get(other) != Version::NONE,
            Shape::Stripe | Shape::Mirror(_) => true,
        };
        let witnesses = Members::of(self.all.iter().filter(|other| took_part(*other)));
        let may_have_lost = self.shape.members() - data;
        witnesses.0 & self.proven.0 != 0 || witnesses.iter().count() > may_have_lost
    }
}

#[cfg(test)]
mod tests {
    use nuri_proto::id::ObjectId;
    use nuri_proto::map::{Member, Standing};

    use super::*;

    /// Catches `broken!("silent_is_left_out")` and `broken!("left_beside_silent")`.
    #[test]
    fn who_leaves_does_so_beside_members_beyond_doubt() {
        let compared = |unproven: &[u32], absent: &[u32], heard: usize| {
            let standing = |i| match absent.contains(&i) {
                true => Standing::Absent { since: Epoch(1) },
                false => Standing::Live,
            };
            let member = |i| Member {
                unproven: unproven.contains(&i),
                ..Member::new(TargetId(i), standing(i))
            };
            let members = (0..4).map(member).collect();
            let shape = Shape::Parity { k: 2, m: 2 };
            let group = Group { id: GroupId(1), epoch: Epoch(1), shape, members };
            let comparison = Comparison::of(&group, TargetId(0))?;
            Some((comparison.may_leave(), comparison.may_leave_beside(heard)))
        };
        let may_leave =
            |unproven: &[u32], absent: &[u32]| compared(unproven, absent, 2).map(|may| may.0);
        let beside = |heard| compared(&[0], &[], heard).map(|may| may.1);
        assert_eq!([1, 2, 3].map(beside), [false, true, true].map(Some), "those that answered");
        assert_eq!(may_leave(&[], &[]), None, "nobody doubts it");
        assert_eq!(may_leave(&[0], &[0]), None, "it takes no part");
        assert_eq!(may_leave(&[0], &[]), Some(true));
        assert_eq!(may_leave(&[0], &[1]), Some(true));
        assert_eq!(may_leave(&[0], &[1, 2]), Some(false), "it is needed");
        assert_eq!(may_leave(&[0, 3], &[]), Some(false), "the other one may have lost something");
    }

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
            let (lists, proven) = (lists.collect::<Vec<_>>(), Members(proven));
            let all = Members::of(lists.iter().map(|(place, _)| *place));
            let others = Others { witnesses: Witnesses { shape, all, proven }, lists };
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
