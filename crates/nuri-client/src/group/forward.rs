//! Giving members back what their disks lost with the power, stripe by stripe, while they serve
//! nobody (rule S5 of `nuri-stripe/src/settle.rs`).
//!
//! No member is right as a whole: one lost an acknowledged write, another one never got a write
//! that was under way, and nothing tells which is which. So each stripe goes forward, for all its
//! members: what somebody has committed or all have is committed first; then those that stand for
//! less get their content from the others; then what is staged goes forward where the others can
//! give it to those that lack it. What cannot go forward was never acknowledged, as long as no more
//! disks lied than the shape bears: it is settled as usual once all have been compared.

use nuri_proto::Status;
use nuri_proto::id::SessionId;
use nuri_proto::map::Group;
use nuri_proto::stripe::{Held, Members};
use nuri_stripe::settle::{Decision, decide, forward_in_doubt};
use nuri_stripe::writer::{behind, stripe_covers};

use super::port::Port;
use super::{Groups, Stripe};

/// Steps after which a stripe is looked at another time.
const STEPS: usize = 16;

impl<P: Port> Groups<P> {
    /// Brings the stripe forward for all of its live members, of which those in `doubt` may have
    /// lost something.
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
            let mut live = self.ask_all(group, stripe, true)?;
            live.retain(|(place, _)| group.live().has(*place));
            let forward = match decide(stripe.shape, &live, group.live(), group.epoch) {
                Decision::Forward { version, on } => Some((version, on)),
                _ if self.bring_those_behind(group, stripe, &live, doubt)? => continue,
                _ => forward_in_doubt(stripe.shape, &live, doubt, group.epoch),
            };
            let Some((version, on)) = forward else { return Ok(()) };
            self.commit_on(group, stripe, version, on)?;
        }
        Err(Status::RETRY)
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
