//! Writes a stripe: carries out rules WRITER-1 to WRITER-4 of `nuri_stripe::writer`.

use std::time::Duration;

use nuri_proto::Status;
use nuri_proto::clock::{COMMIT_DELAY, REQUEST};
use nuri_proto::id::SessionId;
use nuri_proto::layout::Shape;
use nuri_proto::map::Group;
use nuri_proto::op::data::Room;
use nuri_proto::op::member::{MemberStage, Reason};
use nuri_proto::stripe::{Covers, Earlier, Members, Stage, Version, WriteId};
use nuri_rpc::lock_within;
use nuri_stripe::writer::{Answer, Next, allocated, covers_at, next, participants};

use super::parity::{Share, data_shares, full_parity, is_full, parity_change};
use super::part::Part;
use super::port::{Ask, Port};
use super::repair::Anew;
use super::seen::{Knowledge, Seen};
use super::{FIRST_PAUSE, Groups, LONGEST_PAUSE, Stripe};

/// How often a write that found no room is tried again.
const FULL_TRIES: usize = 2;

/// What is known of a stripe before its first write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Guess {
    /// Nothing.
    Unknown,
    /// It was probably never written.
    Fresh,
}

/// What became of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Written {
    /// Bytes newly allocated.
    pub allocated: u64,
    /// Whether nobody had written the stripe; not of stripes that this client knew before.
    pub fresh: Option<bool>,
}

/// One try to write.
struct Attempt<'a> {
    session: SessionId,
    room: Room,
    stripe: &'a Stripe,
    group: Group,
    version: Version,
    id: WriteId,
    base: Covers,
    covers: Covers,
    participants: Members,
    /// When it is given up.
    end: Duration,
}

impl<P: Port> Groups<P> {
    /// As [`Groups::write_into`], into space that is promised to nobody.
    ///
    /// # Errors
    /// The same.
    pub fn write(
        &self,
        session: SessionId,
        stripe: &Stripe,
        parts: &[Part<'_>],
        guess: Guess,
    ) -> Result<u64, Status> {
        let written = self.write_into(Room::Unpromised, session, stripe, parts, guess);
        written.map(|written| written.allocated)
    }

    /// Writes parts of a stripe, at most one per data member. When it returns, every member that
    /// takes part holds them durably.
    ///
    /// # Errors
    /// No space; [`Status::IO`] and the like where the group is not available for too long.
    pub fn write_into(
        &self,
        room: Room,
        session: SessionId,
        stripe: &Stripe,
        parts: &[Part<'_>],
        guess: Guess,
    ) -> Result<Written, Status> {
        let seen = self.seen.entry(stripe.key);
        let end = self.port.now() + REQUEST;
        // Another write of the stripe may wait for its members as long.
        let knowledge = lock_within(&seen.state, REQUEST);
        let mut knowledge = knowledge.ok_or(Status::UNREACHABLE)?;
        let was_known = knowledge.known;
        if !was_known && guess == Guess::Fresh {
            *knowledge = Knowledge { known: true, ..Knowledge::default() };
        }
        let mut attempt = || {
            self.until(end.saturating_sub(self.port.now()), || {
                self.attempt((session, room), stripe, parts, &seen, (&mut knowledge, end))
            })
        };
        let mut outcome = attempt();
        for _ in 0..FULL_TRIES {
            if outcome != Err(Status::NOSPC) {
                break;
            }
            // What was written before may still lie beside what it replaces.
            self.tell_commits();
            self.port.pause(COMMIT_DELAY);
            outcome = attempt();
        }
        if outcome.is_err() {
            knowledge.known = false;
        }
        outcome.map(|(allocated, base)| {
            let fresh = (!was_known).then(|| base.same(&Covers::default()));
            Written { allocated, fresh }
        })
    }

    fn attempt(
        &self,
        (session, room): (SessionId, Room),
        stripe: &Stripe,
        parts: &[Part<'_>],
        seen: &Seen,
        (knowledge, end): (&mut Knowledge, Duration),
    ) -> Result<(u64, Covers), Status> {
        let group = self.available(stripe.group)?;
        if !knowledge.known {
            self.learn(session, stripe, knowledge)?;
        }
        let attempt = self.plan((session, room), stripe, group, parts, (knowledge, end));
        // What the members hold counts as unknown until all have answered well: others may have
        // written since.
        knowledge.known = false;
        let shares = self.shares(&attempt, parts)?;
        let allocated = self.stage_all(&attempt, &shares, seen, knowledge)?;
        for share in &shares {
            seen.note_decided(share.place, attempt.version);
            let target = attempt.group.members[share.place].target;
            self.commits.add(target, stripe.key, attempt.version);
        }
        knowledge.covers = attempt.covers;
        knowledge.newest = attempt.version;
        knowledge.known = true;
        Ok((allocated, attempt.base))
    }

    fn plan<'a>(
        &self,
        (session, room): (SessionId, Room),
        stripe: &'a Stripe,
        group: Group,
        parts: &[Part<'_>],
        (knowledge, end): (&Knowledge, Duration),
    ) -> Attempt<'a> {
        let touched = match stripe.shape {
            Shape::Parity { .. } => Members::of(parts.iter().map(|p| p.place)),
            Shape::Stripe | Shape::Mirror(_) => Members::of([0]),
        };
        let id = self.next_id(session);
        let version = knowledge.newest.next_of(group.epoch, id);
        let mut covers = knowledge.covers.clone();
        touched.iter().for_each(|place| covers.set(place, version));
        Attempt {
            session,
            room,
            stripe,
            version,
            id,
            base: knowledge.covers.clone(),
            covers,
            participants: participants(stripe.shape, touched, group.writable()),
            end,
            group,
        }
    }

    fn shares<'a>(
        &self,
        attempt: &Attempt<'_>,
        parts: &[Part<'a>],
    ) -> Result<Vec<Share<'a>>, Status> {
        let (shape, participants) = (attempt.stripe.shape, attempt.participants);
        let mut shares = data_shares(shape, parts, participants);
        if let Shape::Parity { .. } = shape {
            shares.extend(match is_full(shape, parts) {
                true => full_parity(&self.buffers, shape, parts, participants)?,
                false => {
                    let (group, stripe) = (&attempt.group, attempt.stripe);
                    let old = self.read_old(group, stripe, parts, &attempt.base, participants)?;
                    parity_change(&self.buffers, shape, parts, old, participants)?
                }
            });
        }
        Ok(shares)
    }

    /// Stages on all participants, asking again those that do not answer (WRITER-3).
    fn stage_all(
        &self,
        attempt: &Attempt<'_>,
        shares: &[Share<'_>],
        seen: &Seen,
        knowledge: &mut Knowledge,
    ) -> Result<u64, Status> {
        let (stripe, session) = (attempt.stripe, attempt.session);
        let mut answers: Vec<(usize, Answer)> = Vec::new();
        let (mut todo, mut pause) = (attempt.participants, FIRST_PAUSE);
        loop {
            let asked: Vec<_> = shares.iter().filter(|s| todo.has(s.place)).collect();
            let asks = asked.iter().map(|share| attempt.ask(share, seen)).collect();
            let replies = self.port.exchange(session, asks);
            answers.retain(|(place, _)| !todo.has(*place));
            let places = asked.iter().map(|share| share.place);
            answers.extend(places.zip(replies.into_iter().map(Answer::of)));
            match next(&answers) {
                Next::Decided => return Ok(allocated(stripe.shape, &answers)),
                Next::AskAgain(members) => {
                    self.port.pause(pause);
                    self.port.refresh();
                    let same = |g: Group| g.epoch == attempt.group.epoch;
                    if !self.port.group(stripe.group).is_some_and(same) {
                        return Err(Status::EPOCH);
                    }
                    if self.port.now() > attempt.end {
                        return Err(Status::UNREACHABLE);
                    }
                    (todo, pause) = (members, (pause * 2).min(LONGEST_PAUSE));
                }
                Next::Rebase => return Err(Status::RETRY),
                Next::Repair(place) => {
                    self.learn(session, stripe, knowledge)?;
                    let group = &attempt.group;
                    let anew = Anew::of_member(group, place, Reason::Damaged, group.live());
                    self.rebuild(session, group, stripe, &anew)?;
                    return Err(Status::RETRY);
                }
                Next::GiveUp(status) => {
                    // Aborts it; what cannot be reached now is settled by whoever comes next.
                    let _ = self.learn(session, stripe, knowledge);
                    return Err(status);
                }
            }
        }
    }
}

impl Attempt<'_> {
    fn ask<'s>(&self, share: &'s Share<'_>, seen: &Seen) -> Ask<'s, MemberStage> {
        let target = self.group.members[share.place].target;
        let (shape, place) = (self.stripe.shape, share.place);
        let earlier = match seen.decided(place) {
            Version::NONE => Earlier::Unknown,
            version => Earlier::Decided(version),
        };
        let stage = Stage {
            group: self.stripe.group,
            version: self.version,
            id: self.id,
            base: covers_at(shape, place, &self.base),
            covers: covers_at(shape, place, &self.covers),
            participants: self.participants,
            earlier,
        };
        let (key, epoch, change) = (self.stripe.key, self.group.epoch, share.change);
        let call = MemberStage { target, key, epoch, stage, change, room: self.room };
        Ask { target, call, payload: &share.payload, into: &mut [] }
    }
}
