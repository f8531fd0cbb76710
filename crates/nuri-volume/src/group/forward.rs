//! Gives members back what their disks lost with the power, stripe by stripe, while the members
//! serve nobody (rule SETTLE-5 of `nuri-stripe/src/settle.rs`).
//!
//! No member is right as a whole. One member lost an acknowledged write, and another one never got
//! a write that was under way. Nothing tells the two apart. So each stripe goes forward, for all
//! its members, in this order:
//!
//! - what was truncated and came back is dropped first;
//! - then a write is committed that some member has committed, or that all members have;
//! - then the members that stand for less get their content from the others;
//! - then a staged write is given to the members that lack it, where the others can. They commit it
//!   after that: until then, the stripe bears the loss of a member as it did before.
//!
//! A write that cannot go forward was never acknowledged, as long as no more disks lied than the
//! shape bears. It is settled as usual once all members have been compared.

use nuri_proto::Status;
use nuri_proto::id::SessionId;
use nuri_proto::map::Group;
use nuri_proto::stripe::{Held, Members};
use nuri_rules::broken;
use nuri_stripe::settle::{Decision, Lacking, decide, forward_in_doubt, is_cut_off};
use nuri_stripe::writer::{behind, stripe_covers};

use super::port::Port;
use super::{Groups, Stripe};

/// Steps after which a stripe is looked at another time.
const STEPS: usize = 16;

impl<P: Port> Groups<P> {
    /// Brings the stripe forward for all its live members. Members in `doubt` may have lost
    /// something.
    ///
    /// # Errors
    /// One of them does not answer; [`Status::RETRY`] where others change the stripe.
    pub(super) fn bring_forward(
        &self,
        group: &Group,
        stripe: &Stripe,
        doubt: Members,
    ) -> Result<(), Status> {
        for _ in 0..STEPS {
            let live = self.ask_live(group, stripe, true)?;
            if self.forget_cut_off(group, stripe, &live, doubt)? {
                continue;
            }
            match decide(stripe.shape, &live, group.live(), group.epoch) {
                Decision::Forward { version, on } => self.commit_on(group, stripe, version, on)?,
                _ if self.bring_those_behind(group, stripe, &live, doubt)? => {}
                _ => match forward_in_doubt(stripe.shape, &live, doubt, group.epoch) {
                    Some(write) => self.bring_staged(group, stripe, &write)?,
                    None => return Ok(()),
                },
            }
        }
        Err(Status::RETRY)
    }

    /// Brings the content of a staged write to those that lack it. Once they hold it, the others
    /// commit it.
    fn bring_staged(&self, group: &Group, stripe: &Stripe, write: &Lacking) -> Result<(), Status> {
        let is_whole = write.without == Members::default();
        if is_whole || broken!("commit_before_content") {
            return self.commit_on(group, stripe, write.version, write.on);
        }
        self.give_staged(group, stripe, write)
    }

    /// Drops what members in doubt still hold of the stripe although it was truncated.
    ///
    /// # Errors
    /// As [`Groups::bring_forward`].
    pub(super) fn keep_cut_off(
        &self,
        group: &Group,
        stripe: &Stripe,
        doubt: Members,
    ) -> Result<(), Status> {
        let live = self.ask_live(group, stripe, true)?;
        self.forget_cut_off(group, stripe, &live, doubt).map(|_| ())
    }

    /// Drops what members in doubt hold although it was cut off. Returns whether any did.
    fn forget_cut_off(
        &self,
        group: &Group,
        stripe: &Stripe,
        live: &[(usize, Held)],
        doubt: Members,
    ) -> Result<bool, Status> {
        let mut is_any = false;
        for (place, held) in live.iter().filter(|(place, _)| doubt.has(*place)) {
            if is_cut_off(stripe.shape, live, *place) {
                let target = group.members[*place].target;
                self.forget_chunk(group, target, stripe.key, held.covers.clone(), true)?;
                is_any = true;
            }
        }
        Ok(is_any)
    }

    /// Brings members in doubt that stand for less than the stripe their content. Returns whether
    /// there were any.
    fn bring_those_behind(
        &self,
        group: &Group,
        stripe: &Stripe,
        live: &[(usize, Held)],
        doubt: Members,
    ) -> Result<bool, Status> {
        let covers = stripe_covers(stripe.shape, live);
        let behind = behind(stripe.shape, live, &covers);
        let in_doubt = |(place, _): &&(usize, Held)| behind.has(*place) && doubt.has(*place);
        let mut is_any = false;
        for own in live.iter().filter(in_doubt) {
            self.bring_back(SessionId(0), group, stripe, own, &covers, behind)?;
            is_any = true;
        }
        Ok(is_any)
    }
}
