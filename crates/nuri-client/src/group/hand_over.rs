//! Moving a place of a group to another target while its present one still serves.
//!
//! H1 The new target gets a copy of every chunk before it is a member, read from the present one:
//!    the group keeps its redundancy.
//! H2 Then it takes the place as one that missed what was written since the copy began: that little
//!    is brought to it as to any returning member (`resync.rs`).

use nuri_proto::Status;
use nuri_proto::clock::REQUEST;
use nuri_proto::id::{Epoch, GroupId, SessionId, TargetId};
use nuri_proto::map::{Group, Member, Standing};
use nuri_proto::op::member::{MemberHeld, Reason};
use nuri_proto::stripe::Held;
use nuri_stripe::writer::{covers_at, stripe_covers};

use super::port::{Ask, Port};
use super::settle::Whose;
use super::{Groups, Stripe};

/// A place that moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Move {
    pub group: GroupId,
    pub from: TargetId,
    pub to: TargetId,
}

impl<P: Port> Groups<P> {
    /// Copies all chunks of the place (H1). Returns the first epoch whose writes the new target may
    /// have missed.
    ///
    /// # Errors
    /// [`Status::NOSPC`] at the new target; the group's, where it is not available for too long.
    pub fn copy_place(
        &self,
        step: Move,
        mut copied: impl FnMut(usize, usize),
    ) -> Result<Epoch, Status> {
        let group = self.available(step.group)?;
        let stripes = self.until(REQUEST, || {
            let group = self.available(step.group)?;
            self.list_live(&group, Epoch(0))
        })?;
        for (done, key) in stripes.iter().enumerate() {
            let stripe = self.stripe(&group, *key);
            self.until(REQUEST, || self.copy_chunk(step, &stripe))?;
            copied(done + 1, stripes.len());
        }
        Ok(group.epoch)
    }

    fn copy_chunk(&self, step: Move, stripe: &Stripe) -> Result<(), Status> {
        let group = self.available(step.group)?;
        let place = group.place(step.from).ok_or(Status::NOENT)?;
        let answers = self.settle(&group, stripe, Whose::Bygone)?;
        let live: Vec<_> = answers.into_iter().filter(|(p, _)| group.live().has(*p)).collect();
        let covers = stripe_covers(stripe.shape, &live);
        let held = self.held_outside(&group, stripe, step.to)?;
        let wanted = covers_at(stripe.shape, place, &covers);
        if held.covers.same(&wanted) {
            return Ok(());
        }
        if !wanted.reaches(&held.covers) {
            self.forget_chunk(&group, step.to, stripe.key, held.covers)?;
        }
        let mut with = group.clone();
        let standing = Standing::Absent { since: group.epoch };
        with.members[place] = Member { target: step.to, standing };
        let read = |at: u32, out: &mut [u8]| {
            self.read_base(&group, stripe, place, at, out, &covers).map(|()| covers.clone())
        };
        self.replace(SessionId(0), &with, stripe, place, Reason::Behind, read).map(drop)
    }

    fn held_outside(
        &self,
        group: &Group,
        stripe: &Stripe,
        target: TargetId,
    ) -> Result<Held, Status> {
        let (key, epoch, group) = (stripe.key, group.epoch, stripe.group);
        let ask = Ask::plain(target, MemberHeld { target, key, group, epoch });
        self.port.exchange(SessionId(0), vec![ask]).pop().ok_or(Status::IO)?
    }

    /// Takes away what a target that gave up its place still holds of the group.
    ///
    /// # Errors
    /// The target's.
    pub fn clear_place(&self, group: GroupId, target: TargetId) -> Result<(), Status> {
        // The target may obey the map in which it has no place a little later.
        self.until(REQUEST, || {
            let group = self.available(group)?;
            if group.place(target).is_some() {
                return Err(Status::BUSY);
            }
            for (key, covers) in self.list(&group, target, Epoch(0))? {
                match self.forget_chunk(&group, target, key, covers) {
                    // What somebody staged there last, in vain, is no harm.
                    Ok(()) | Err(Status::RETRY) => {}
                    Err(status) => return Err(status),
                }
            }
            Ok(())
        })
    }
}
