//! Resync: brings a returned or new member of a group up to date, under live load.
//!
//! RESYNC-1 Writes of the present epoch include the member. The member missed the stripes that were
//!    written from `since` on, and those that stand for something else at the other members. The
//!    reason for the second kind: a write of an earlier epoch that nobody finished while the member
//!    was there may have been settled without it. Every chunk's version tells, also the versions of
//!    staged writes. Only these stripes are looked at.
//! RESYNC-2 A stripe is settled first where a writer of an earlier epoch left it undecided.
//! RESYNC-3 What the member holds and no live member has was truncated meanwhile. It is removed
//!    first, so that it is never taken for data again. It is a stripe, or a chunk of a stripe that
//!    was written again.
//! RESYNC-4 The group's epoch is read before the stripes are looked at. A caller that wants to call
//!    the member live names that epoch. A member that is asked what it holds answers in that epoch
//!    only. So no write of an earlier epoch, in which the returning member took no part, comes
//!    after the answer.
//! RESYNC-5 A write of the present epoch is its writer's to end. Where nobody ends such a write and
//!    it keeps a stripe from the member, the group takes a new epoch. Then the write can be
//!    settled.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use nuri_proto::Status;
use nuri_proto::clock::REQUEST;
use nuri_proto::id::{ChunkKey, Epoch, GroupId, SessionId, TargetId};
use nuri_proto::layout::Shape;
use nuri_proto::limit::MAX_LISTED;
use nuri_proto::map::{Group, Standing};
use nuri_proto::op::member::{MemberChanged, MemberForget};
use nuri_proto::stripe::{Covers, Held, Version};
use nuri_rules::broken;
use nuri_stripe::writer::{covers_at, stripe_covers};

use super::Groups;
use super::port::{Ask, Port};
use super::repair::Found;

/// A writer ends its write, or gives it up, within this time.
const PATIENCE: Duration = REQUEST;

/// Groups in which an unfinished write keeps a stripe from a member, and since when.
#[derive(Default)]
pub struct Kept(HashMap<GroupId, (Epoch, Duration)>);

impl Kept {
    /// Notes that a round left something of the group, at that epoch. Returns whether the group
    /// should take a new epoch (RESYNC-5).
    pub fn is_for_long(&mut self, group: GroupId, epoch: Epoch, now: Duration) -> bool {
        let (of, since) = self.0.entry(group).or_insert((epoch, now));
        if *of != epoch {
            (*of, *since) = (epoch, now);
        }
        now.saturating_sub(*since) > PATIENCE
    }

    /// Notes that nothing of the group is left to do.
    pub fn forget(&mut self, group: GroupId) {
        self.0.remove(&group);
    }
}

/// Stripes by their keys, with what a member's bytes stand for.
pub(super) type List = BTreeMap<ChunkKey, Covers>;

/// What a member must hold of a stripe, according to the others.
pub(super) fn should_hold(
    shape: Shape,
    place: usize,
    lists: &[(usize, List)],
    key: &ChunkKey,
) -> (Covers, Version) {
    let at = |(place, list): &(usize, List)| {
        let covers = list.get(key).cloned().unwrap_or_default();
        (*place, Held { covers, ..Held::default() })
    };
    let stripe = stripe_covers(shape, &lists.iter().map(at).collect::<Vec<_>>());
    (covers_at(shape, place, &stripe), stripe.newest())
}

/// The stripes that one member of a group has missed.
pub struct Missed {
    pub group: Group,
    pub target: TargetId,
    pub stripes: BTreeSet<ChunkKey>,
}

impl Missed {
    /// The epoch to name when all stripes are done (RESYNC-4).
    pub fn epoch(&self) -> Epoch {
        self.group.epoch
    }
}

impl<P: Port> Groups<P> {
    /// Lists the stripes that a `Syncing` member may have missed, and removes those that exist no
    /// more (RESYNC-3). `None` where the member is not syncing.
    ///
    /// # Errors
    /// [`Status::RETRY`] and the like: ask again later.
    pub fn missed(&self, id: GroupId, target: TargetId) -> Result<Option<Missed>, Status> {
        let group = self.available(id)?;
        let place = group.place(target).ok_or(Status::NOENT)?;
        let Standing::Syncing { since } = group.members[place].standing else {
            return Ok(None);
        };
        if !group.unproven().is_empty() {
            // What they tell is no evidence before they were compared with each other.
            return Err(Status::RETRY);
        }
        let mut own = self.list(&group, target)?;
        let lists = self.lists_of_live(&group)?;
        let all: BTreeSet<ChunkKey> = lists.iter().flat_map(|(_, l)| l.keys()).copied().collect();
        let mut unclear = Vec::new();
        let gone: Vec<_> = own.keys().filter(|key| !all.contains(key)).copied().collect();
        for key in gone.into_iter().filter(|_| !broken!("keep_truncated")) {
            // Where it changed meanwhile it is looked at again: a write, or a truncation in which
            // the member took part, but maybe only the end of a write that is staged there.
            let covers = own.remove(&key).unwrap_or_default();
            match self.forget_chunk(&group, target, key, covers, false) {
                // A write that is staged there alone, maybe of a writer that died: it waits for
                // nobody here, and is looked at with the others.
                Err(Status::RETRY) => unclear.push(key),
                outcome => outcome?,
            }
        }
        let differs = |key: &ChunkKey| {
            let (wanted, newest) = should_hold(group.shape, place, &lists, key);
            let same = own.get(key).cloned().unwrap_or_default().same(&wanted);
            newest.epoch() >= since || !same
        };
        let stripes = all.into_iter().filter(differs).chain(unclear).collect();
        Ok(Some(Missed { group, target, stripes }))
    }

    fn lists_of_live(&self, group: &Group) -> Result<Vec<(usize, List)>, Status> {
        let live: Vec<_> = group.live().iter().collect();
        let lists = self.lists(live.iter().map(|place| (group, group.members[*place].target)));
        live.into_iter().zip(lists).map(|(place, list)| Ok((place, list?))).collect()
    }

    /// Brings one listed stripe to the member.
    ///
    /// # Errors
    /// As [`Groups::catch_up`].
    pub fn bring(&self, missed: &Missed, key: ChunkKey) -> Result<Found, Status> {
        self.catch_up(&self.stripe(&missed.group, key), missed.target)
    }

    /// All stripes of the group, as its live members know them.
    ///
    /// # Errors
    /// One of them does not answer.
    pub fn stripes_of(&self, group: &Group) -> Result<BTreeSet<ChunkKey>, Status> {
        let lists = self.lists_of_live(group)?.into_iter();
        Ok(lists.flat_map(|(_, list)| list.into_keys()).collect())
    }

    pub(super) fn list(&self, group: &Group, target: TargetId) -> Result<List, Status> {
        self.lists([(group, target)]).pop().ok_or(Status::IO)?
    }

    /// Asks targets side by side what they hold of groups.
    pub(super) fn lists<'g>(
        &self,
        of: impl IntoIterator<Item = (&'g Group, TargetId)>,
    ) -> Vec<Result<List, Status>> {
        let mut listings: Vec<_> = of.into_iter().map(Listing::new).collect();
        loop {
            let mut open: Vec<_> = listings.iter_mut().filter(|l| !l.ended).collect();
            if open.is_empty() {
                return listings.into_iter().map(|l| l.found).collect();
            }
            let asks = open.iter().map(|listing| listing.next()).collect();
            let pages = self.port.exchange(SessionId(0), asks);
            open.iter_mut().zip(pages).for_each(|(listing, page)| listing.add(page));
        }
    }

    /// Drops a chunk from before a truncation, if it is still the chunk that was seen.
    pub(super) fn forget_chunk(
        &self,
        group: &Group,
        target: TargetId,
        key: ChunkKey,
        covers: Covers,
        was_cut_off: bool,
    ) -> Result<(), Status> {
        let (group, epoch) = (group.id, group.epoch);
        self.one(target, MemberForget { target, key, group, epoch, covers, was_cut_off })
    }

    pub(super) fn one<C: nuri_proto::op::Call>(
        &self,
        target: TargetId,
        call: C,
    ) -> Result<C::Reply, Status> {
        let reply = self.port.exchange(SessionId(0), vec![Ask::plain(target, call)]).pop();
        reply.ok_or(Status::IO)?
    }
}

/// A target's list of a group on its way, page by page.
struct Listing<'g> {
    group: &'g Group,
    target: TargetId,
    found: Result<List, Status>,
    after: Option<ChunkKey>,
    ended: bool,
}

impl<'g> Listing<'g> {
    fn new((group, target): (&'g Group, TargetId)) -> Listing<'g> {
        Listing { group, target, found: Ok(List::new()), after: None, ended: false }
    }

    fn next(&self) -> Ask<'static, MemberChanged> {
        let (group, epoch, since) = (self.group.id, self.group.epoch, Epoch(0));
        let (target, after, limit) = (self.target, self.after, MAX_LISTED);
        Ask::plain(target, MemberChanged { target, group, epoch, since, after, limit })
    }

    fn add(&mut self, page: Result<Vec<(ChunkKey, Covers)>, Status>) {
        self.ended = page.as_ref().map_or(true, |page| page.len() < MAX_LISTED as usize);
        match (page, &mut self.found) {
            (Ok(page), Ok(found)) => {
                self.after = page.last().map(|(key, _)| *key);
                found.extend(page);
            }
            (Err(status), found) => *found = Err(status),
            (Ok(_), Err(_)) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_for_long_is_noticed_by_epoch() {
        let (group, mut kept) = (GroupId(1), Kept::default());
        let second = Duration::from_secs;
        assert!(!kept.is_for_long(group, Epoch(1), second(0)));
        assert!(!kept.is_for_long(group, Epoch(2), second(60)), "it is another epoch");
        assert!(kept.is_for_long(group, Epoch(2), second(100)));
        kept.forget(group);
        assert!(!kept.is_for_long(group, Epoch(2), second(200)));
    }
}
