//! Bringing a returned or new member of a group up to date, under live load.
//!
//! R1 Writes of the present epoch include the member; what it missed are stripes written from
//!    `since` on, and only those are looked at. Every chunk's version tells.
//! R2 A stripe is settled first where a writer of an earlier epoch left it undecided.
//! R3 What the member holds and no live member has was truncated meanwhile: it goes first, so that
//!    it is never taken for data again.
//! R4 The group's epoch is taken before the look: whoever wants to call the member live names it.

use std::collections::BTreeSet;

use nuri_proto::Status;
use nuri_proto::id::{ChunkKey, Epoch, GroupId, SessionId, TargetId};
use nuri_proto::map::{Group, Standing};
use nuri_proto::op::member::{MemberChanged, MemberForget};

use super::Groups;
use super::port::{Ask, Port};
use super::repair::Found;

/// Stripes listed in one call.
const PAGE: u32 = 2048;

/// What is left to do for one member of a group.
pub struct Missed {
    pub group: Group,
    pub target: TargetId,
    pub stripes: BTreeSet<ChunkKey>,
}

impl Missed {
    /// The epoch to name when all of it is done (R4).
    pub fn epoch(&self) -> Epoch {
        self.group.epoch
    }
}

impl<P: Port> Groups<P> {
    /// Lists the stripes that a `Syncing` member may have missed, and takes away what is no more
    /// (R3). `None` where it is not syncing.
    ///
    /// # Errors
    /// [`Status::RETRY`] and the like: ask again later.
    pub fn missed(&self, id: GroupId, target: TargetId) -> Result<Option<Missed>, Status> {
        let group = self.available(id)?;
        let place = group.place(target).ok_or(Status::NOENT)?;
        let Standing::Syncing { since } = group.members[place].standing else {
            return Ok(None);
        };
        let own = self.list(&group, target, Epoch(0))?;
        if !own.is_empty() {
            let all = self.list_live(&group, Epoch(0))?;
            for key in own.difference(&all).filter(|_| !cfg!(nuri_break = "keep_truncated")) {
                self.forget(&group, target, *key)?;
            }
        }
        let stripes = self.list_live(&group, since)?;
        Ok(Some(Missed { group, target, stripes }))
    }

    /// Brings one listed stripe to the member.
    ///
    /// # Errors
    /// As [`Groups::catch_up`].
    pub fn bring(&self, missed: &Missed, key: ChunkKey) -> Result<Found, Status> {
        self.catch_up(&self.stripe(&missed.group, key), missed.target)
    }

    fn list_live(&self, group: &Group, since: Epoch) -> Result<BTreeSet<ChunkKey>, Status> {
        let mut all = BTreeSet::new();
        for place in group.live().iter() {
            all.extend(self.list(group, group.members[place].target, since)?);
        }
        Ok(all)
    }

    fn list(
        &self,
        group: &Group,
        target: TargetId,
        since: Epoch,
    ) -> Result<BTreeSet<ChunkKey>, Status> {
        let (mut all, mut after) = (BTreeSet::new(), None);
        loop {
            let call = MemberChanged { target, group: group.id, since, after, limit: PAGE };
            let page = self.one(target, call)?;
            after = page.last().map(|(key, _)| *key);
            all.extend(page.into_iter().map(|(key, _)| key));
            if after.is_none() {
                return Ok(all);
            }
        }
    }

    fn forget(&self, group: &Group, target: TargetId, key: ChunkKey) -> Result<(), Status> {
        let call = MemberForget { target, key, group: group.id, epoch: group.epoch };
        self.one(target, call)
    }

    fn one<C: nuri_proto::op::Call>(&self, target: TargetId, call: C) -> Result<C::Reply, Status> {
        let reply = self.port.exchange(SessionId(0), vec![Ask::plain(target, call)]).pop();
        reply.ok_or(Status::IO)?
    }
}
