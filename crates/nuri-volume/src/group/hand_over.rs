//! Moves a place of a group to another target while the present target still serves.
//!
//! MOVE-1 The new target gets a copy of every chunk before it is a member. The copy is read from
//!    the present target, so the group keeps its redundancy. This happens only while the other
//!    members hold the data too: the group has to go on without the present target when the place
//!    moves.
//! MOVE-2 Then the new target takes the place, as a member that missed what was written since the
//!    copy began. These few writes are brought to it as to any returning member (`resync.rs`).
//! MOVE-3 What a target holds of a group in which it has no place is removed, whatever left it
//!    there. This happens only while all members are live.

use nuri_proto::Status;
use nuri_proto::clock::REQUEST;
use nuri_proto::id::{Epoch, GroupId, SessionId, TargetId};
use nuri_proto::map::Group;
use nuri_proto::op::member::{MemberHeld, Reason};
use nuri_proto::stripe::{Held, Members, Version};
use nuri_stripe::writer::{covers_at, stripe_covers};

use super::port::{Ask, Port};
use super::repair::Anew;
use super::settle::Whose;
use super::{Groups, Stripe};

/// A place of a group that moves to another target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Move {
    pub group: GroupId,
    pub from: TargetId,
    pub to: TargetId,
}

impl<P: Port> Groups<P> {
    /// Copies all chunks of the place (MOVE-1). Returns the first epoch whose writes the new target
    /// may have missed.
    ///
    /// # Errors
    /// [`Status::NOSPC`] at the new target; [`Status::BUSY`] where too few others are live; the
    /// group's, where it is not available for too long.
    pub fn copy_place(
        &self,
        step: Move,
        mut copied: impl FnMut(usize, usize),
    ) -> Result<Epoch, Status> {
        let (group, _) = self.movable(step)?;
        let stripes = self.until(REQUEST, || {
            let group = self.available(step.group)?;
            self.stripes_of(&group)
        })?;
        for (done, key) in stripes.iter().enumerate() {
            let stripe = self.stripe(&group, *key);
            self.until(REQUEST, || self.copy_chunk(step, &stripe))?;
            copied(done + 1, stripes.len());
        }
        Ok(group.epoch)
    }

    fn copy_chunk(&self, step: Move, stripe: &Stripe) -> Result<(), Status> {
        let (group, place) = self.movable(step)?;
        let answers = self.settle(&group, stripe, Whose::Bygone)?;
        let live: Vec<_> = answers.into_iter().filter(|(p, _)| group.live().has(*p)).collect();
        let covers = stripe_covers(stripe.shape, &live);
        let held = self.held_outside(&group, stripe, step.to)?;
        let wanted = covers_at(stripe.shape, place, &covers);
        let is_same = held.covers.same(&wanted);
        let is_empty = wanted.newest() == Version::NONE;
        if is_same && (is_empty || !self.is_short(&group, stripe, place, step.to)?) {
            return Ok(());
        }
        if !wanted.reaches(&held.covers) {
            self.forget_chunk(&group, step.to, stripe.key, held.covers, false)?;
        }
        let why = if is_same { Reason::Damaged } else { Reason::Behind };
        // The present member among them: it may be the only one that says where the data ends.
        let anew = Anew { place, target: step.to, why, from: group.live() };
        let read = |at: u32, out: &mut [u8]| {
            self.read_base(&group, stripe, place, at, out, &covers).map(|()| covers.clone())
        };
        self.replace(SessionId(0), &group, stripe, &anew, read).map(drop)
    }

    /// The group and the place, if the group can go on without the place's present member.
    fn movable(&self, step: Move) -> Result<(Group, usize), Status> {
        let group = self.available(step.group)?;
        let place = group.place(step.from).ok_or(Status::NOENT)?;
        let others = group.live().iter().filter(|p| *p != place).count();
        if others < group.shape.data() {
            return Err(Status::BUSY);
        }
        Ok((group, place))
    }

    /// Whether a copy of the right versions ends before its source does. Such copies were made
    /// while only other members said where the data ends.
    fn is_short(
        &self,
        group: &Group,
        stripe: &Stripe,
        place: usize,
        copy: TargetId,
    ) -> Result<bool, Status> {
        let live = group.live();
        let source = if live.has(place) { Members::of([place]) } else { live };
        let end = self.longest(stripe.key, std::iter::once(copy))?;
        Ok(end < self.chunk_end(group, stripe, source)?)
    }

    fn held_outside(
        &self,
        group: &Group,
        stripe: &Stripe,
        target: TargetId,
    ) -> Result<Held, Status> {
        let (key, epoch, group) = (stripe.key, group.epoch, stripe.group);
        let ask = Ask::plain(target, MemberHeld { target, key, group, epoch, in_doubt: false });
        self.port.exchange(SessionId(0), vec![ask]).pop().ok_or(Status::IO)?
    }

    /// Removes what a target without a place in the group holds of the group (MOVE-3).
    ///
    /// # Errors
    /// [`Status::BUSY`] where it has a place, or holds something while a member is not live; the
    /// target's.
    pub fn clear_place(&self, group: GroupId, target: TargetId) -> Result<(), Status> {
        // The target may obey the map in which it has no place a little later.
        self.until(REQUEST, || {
            let group = self.port.group(group).ok_or(Status::NOENT)?;
            let left = self.list(&group, target)?;
            let is_whole = group.live().iter().count() == group.members.len();
            if group.place(target).is_some() || (!is_whole && !left.is_empty()) {
                return Err(Status::BUSY);
            }
            for (key, covers) in left {
                match self.forget_chunk(&group, target, key, covers, false) {
                    // What somebody staged there last, in vain, is no harm.
                    Ok(()) | Err(Status::RETRY) => {}
                    Err(status) => return Err(status),
                }
            }
            Ok(())
        })
    }
}
