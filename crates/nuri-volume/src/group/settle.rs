//! Finds out what a stripe stands for, and settles writes that nobody finished.
//!
//! A staged write goes forward where it is committed somewhere, or where all members that take part
//! hold it. Otherwise the members that lack it promise never to take it, and then it is dropped.
//! Who may settle what:
//!
//! | who asks | staged in an epoch that is over | in the present one |
//! |---|---|---|
//! | [`Whose::Anyones`]: its writer, a reader that found it | yes | yes |
//! | [`Whose::Bygone`]: who repairs, copies or scrubs | yes | forward only |
//!
//! A member that takes part and does not answer may hold or have committed anything. Where its
//! answer would decide, [`Whose::Anyones`] waits for it. [`Whose::Bygone`] looks only at writes of
//! epochs that are over.

use nuri_proto::Status;
use nuri_proto::id::{Epoch, SessionId};
use nuri_proto::map::Group;
use nuri_proto::op::member::{MemberAbort, MemberCommit, MemberHeld};
use nuri_proto::stripe::{Held, Members, Version};
use nuri_stripe::settle::{Decision, decide, needs};
use nuri_stripe::writer::{behind, stripe_covers};

use super::port::{Ask, Port};
use super::seen::Knowledge;
use super::{Groups, Stripe};

/// Steps after which a stripe that others keep changing is tried again later.
const STEPS: usize = 16;

/// Which writes may be settled.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    /// All: who asks knows that nobody else writes.
    Anyones,
    /// Those that are decided already, and those of epochs that are over: their writers cannot end
    /// them.
    Bygone,
}

impl<P: Port> Groups<P> {
    /// Settles the stripe and learns what it stands for. Members that are behind are brought up
    /// to date.
    pub(super) fn learn(
        &self,
        session: SessionId,
        stripe: &Stripe,
        knowledge: &mut Knowledge,
    ) -> Result<(), Status> {
        knowledge.known = false;
        let group = self.available(stripe.group)?;
        let answers = self.settle(&group, stripe, Whose::Anyones)?;
        let live: Vec<_> = answers.iter().filter(|(p, _)| group.live().has(*p)).cloned().collect();
        let covers = stripe_covers(stripe.shape, &live);
        let behind = behind(stripe.shape, &answers, &covers);
        for own in answers.iter().filter(|(place, _)| behind.has(*place)) {
            self.bring_back(session, &group, stripe, own, &covers, behind)?;
        }
        let newest = answers.iter().map(|(_, held)| held.newest()).max();
        knowledge.newest = newest.unwrap_or_default();
        knowledge.covers = covers;
        knowledge.known = true;
        Ok(())
    }

    /// Settles; returns what the members that take part hold then.
    pub(super) fn settle(
        &self,
        group: &Group,
        stripe: &Stripe,
        whose: Whose,
    ) -> Result<Vec<(usize, Held)>, Status> {
        for _ in 0..STEPS {
            let answers = self.ask_all(group, stripe, false)?;
            let decision = decide_on(group, stripe, whose, &answers)?;
            let (on, version, drops) = match decision {
                Decision::Clean => return Ok(answers),
                Decision::Forward { version, on } => {
                    self.commit_on(group, stripe, version, on)?;
                    continue;
                }
                Decision::Promise { version, on } => (on, version, false),
                Decision::Drop { version, on } => (on, version, true),
            };
            self.abort_on(group, stripe, version, on, drops)?;
        }
        Err(Status::RETRY)
    }

    /// Asks all members that take part what they hold. Every live one must answer (rule SETTLE-1).
    /// Unless `in_doubt`, each one must be beyond doubt (rule SETTLE-5).
    pub(super) fn ask_all(
        &self,
        group: &Group,
        stripe: &Stripe,
        in_doubt: bool,
    ) -> Result<Vec<(usize, Held)>, Status> {
        let ask = |place: usize| {
            let target = group.members[place].target;
            let (key, group, epoch) = (stripe.key, stripe.group, group.epoch);
            Ask::plain(target, MemberHeld { target, key, group, epoch, in_doubt })
        };
        let places: Vec<usize> = group.writable().iter().collect();
        let answers =
            self.port.exchange(SessionId(0), places.iter().map(|place| ask(*place)).collect());
        let mut all = Vec::new();
        for (place, answer) in places.into_iter().zip(answers) {
            match answer {
                Ok(held) => all.push((place, held)),
                Err(status) if group.live().has(place) => return Err(status),
                // What it missed is brought to it later.
                Err(_) => {}
            }
        }
        Ok(all)
    }

    /// Asks the live members what they hold; as [`Groups::ask_all`].
    pub(super) fn ask_live(
        &self,
        group: &Group,
        stripe: &Stripe,
        in_doubt: bool,
    ) -> Result<Vec<(usize, Held)>, Status> {
        let mut held = self.ask_all(group, stripe, in_doubt)?;
        held.retain(|(place, _)| group.live().has(*place));
        Ok(held)
    }

    pub(super) fn commit_on(
        &self,
        group: &Group,
        stripe: &Stripe,
        version: Version,
        on: Members,
    ) -> Result<(), Status> {
        let ask = |place: usize| {
            let target = group.members[place].target;
            Ask::plain(target, MemberCommit { target, decided: vec![(stripe.key, version)] })
        };
        let asks = on.iter().map(ask).collect();
        self.port.exchange(SessionId(0), asks).into_iter().collect::<Result<Vec<()>, _>>()?;
        Ok(())
    }

    fn abort_on(
        &self,
        group: &Group,
        stripe: &Stripe,
        version: Version,
        on: Members,
        drops: bool,
    ) -> Result<(), Status> {
        let ask = |place: usize| {
            let target = group.members[place].target;
            let (key, epoch, group) = (stripe.key, group.epoch, stripe.group);
            Ask::plain(target, MemberAbort { target, key, epoch, group, version, drops })
        };
        let asks = on.iter().map(ask).collect();
        self.port.exchange(SessionId(0), asks).into_iter().collect::<Result<Vec<Held>, _>>()?;
        Ok(())
    }
}

/// The next step. What a writer of the present epoch may still end is left to it, unless it is
/// decided already: then anybody may say so, and its writer may be gone.
fn decide_on(
    group: &Group,
    stripe: &Stripe,
    whose: Whose,
    answers: &[(usize, Held)],
) -> Result<Decision, Status> {
    let heard = Members::of(answers.iter().map(|(place, _)| *place));
    let unheard = Members(group.writable().0 & !heard.0);
    let (shape, live, epoch) = (stripe.shape, group.live(), group.epoch);
    let is_unsure = needs(answers, unheard, epoch);
    let decision = decide(shape, answers, live, epoch);
    let runs = match decision {
        Decision::Promise { version, .. } | Decision::Drop { version, .. } => {
            version.epoch() >= epoch
        }
        Decision::Clean | Decision::Forward { .. } => false,
    };
    match whose {
        Whose::Anyones if is_unsure => Err(Status::UNREACHABLE),
        Whose::Bygone if is_unsure || runs => {
            let mut bygone = answers.to_vec();
            bygone.iter_mut().for_each(|(_, held)| forget_running(held, epoch));
            Ok(decide(shape, &bygone, live, epoch))
        }
        _ => Ok(decision),
    }
}

/// Leaves out what a writer of the present epoch may still end.
fn forget_running(held: &mut Held, epoch: Epoch) {
    held.staged.take_if(|s| s.version.epoch() >= epoch);
}
