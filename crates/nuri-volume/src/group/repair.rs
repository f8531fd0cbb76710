//! Brings one member's chunk to the content that it should have, from the other members.

use nuri_proto::Status;
use nuri_proto::clock::REQUEST;
use nuri_proto::id::{ChunkKey, SessionId, TargetId};
use nuri_proto::limit::{MAX_CHUNK, MAX_PAYLOAD};
use nuri_proto::map::Group;
use nuri_proto::op::data::DataExtents;
use nuri_proto::op::member::{Install, MemberInstall, Purpose, Reason};
use nuri_proto::stripe::{Covers, Held, Members};
use nuri_rules::broken;
use nuri_stripe::settle::Lacking;
use nuri_stripe::writer::{behind, covers_at, stripe_covers};

use super::part::Range;
use super::port::{Ask, Port};
use super::settle::Whose;
use super::{Groups, Stripe};

/// Looks at a stripe that is repaired, until it is found up to date.
const LOOKS: usize = 3;

/// What a look at one member of a stripe found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    UpToDate,
    /// It was behind, and has its content now: so many bytes.
    Repaired(u64),
}

/// A chunk that gets its whole content anew.
pub(super) struct Anew {
    pub(super) place: usize,
    /// Who takes it: the place's member, or one that is to have the place.
    pub(super) target: TargetId,
    pub(super) why: Reason,
    /// The members whose chunks say what it holds and how long it is.
    pub(super) from: Members,
}

impl Anew {
    /// The chunk of the place's member, from these sources.
    pub(super) fn of_member(group: &Group, place: usize, why: Reason, others: Members) -> Anew {
        let from = Members(others.0 | Members::of([place]).0);
        Anew { place, target: group.members[place].target, why, from }
    }
}

impl<P: Port> Groups<P> {
    /// Brings the stripe's chunk on `target` up to date, if it is not.
    ///
    /// # Errors
    /// [`Status::RETRY`] and the like: look again later.
    pub fn catch_up(&self, stripe: &Stripe, target: TargetId) -> Result<Found, Status> {
        let group = self.available(stripe.group)?;
        let place = group.place(target).ok_or(Status::NOENT)?;
        let mut found = Found::UpToDate;
        // It counts once a look says so: the stripe may have been truncated meanwhile.
        for _ in 0..LOOKS {
            let answers = self.settle(&group, stripe, Whose::Bygone)?;
            let is_live = |(p, _): &&(usize, Held)| group.live().has(*p);
            let live: Vec<_> = answers.iter().filter(is_live).cloned().collect();
            let covers = stripe_covers(stripe.shape, &live);
            let own = answers.iter().find(|(p, _)| *p == place).ok_or(Status::UNREACHABLE)?;
            let behind = behind(stripe.shape, &answers, &covers);
            if !behind.has(place) {
                return Ok(found);
            }
            // What it is ahead with may be a write that others have not committed yet.
            let is_ahead = !covers_at(stripe.shape, place, &covers).reaches(&own.1.covers);
            if is_ahead && answers.iter().any(|(_, held)| held.staged.is_some()) {
                return Err(Status::RETRY);
            }
            let bytes = self.bring_back(SessionId(0), &group, stripe, own, &covers, behind)?;
            found = Found::Repaired(bytes);
        }
        Err(Status::RETRY)
    }

    /// Brings its content to a member that is behind. A chunk from before a truncation is removed
    /// first: it is behind, although nothing newer will ever replace it. No member that is behind
    /// is a source: two such members that read each other would stay behind.
    pub(super) fn bring_back(
        &self,
        session: SessionId,
        group: &Group,
        stripe: &Stripe,
        (place, held): &(usize, Held),
        covers: &Covers,
        behind: Members,
    ) -> Result<u64, Status> {
        let leads_back = !covers_at(stripe.shape, *place, covers).reaches(&held.covers);
        let is_kept = group.live().has(*place) || broken!("keep_truncated");
        if leads_back && !is_kept {
            let target = group.members[*place].target;
            self.forget_chunk(group, target, stripe.key, held.covers.clone(), false)?;
        }
        let others = Members(group.live().0 & !behind.0);
        let anew = Anew::of_member(group, *place, Reason::Behind, others);
        self.rebuild(session, group, stripe, &anew)
    }

    /// Computes the chunk from the others and installs it. Returns the bytes moved to it.
    pub(super) fn rebuild(
        &self,
        session: SessionId,
        group: &Group,
        stripe: &Stripe,
        anew: &Anew,
    ) -> Result<u64, Status> {
        let read = |at: u32, out: &mut [u8]| {
            let range = Range { place: anew.place, offset: at, len: out.len() };
            self.read_from_others(group, stripe, range, anew.from, out, Purpose::Base)
        };
        self.replace(session, group, stripe, anew, read).map(|(bytes, _)| bytes)
    }

    /// Gives the members that lack a staged write the content that they are to have once the others
    /// commit it.
    ///
    /// # Errors
    /// [`Status::RETRY`] where one of them does not take it.
    pub(super) fn give_staged(
        &self,
        group: &Group,
        stripe: &Stripe,
        write: &Lacking,
    ) -> Result<(), Status> {
        let Lacking { version, id, from, .. } = *write;
        for place in write.without.iter() {
            let why = Reason::Undecided { version };
            let anew = Anew::of_member(group, place, why, from);
            let read = |at: u32, out: &mut [u8]| {
                let range = Range { place, offset: at, len: out.len() };
                let purpose = Purpose::After { version, id };
                let covers = self.read_from_others(group, stripe, range, from, out, purpose)?;
                if covers.newest() < version { Err(Status::RETRY) } else { Ok(covers) }
            };
            let (_, held) = self.replace(SessionId(0), group, stripe, &anew, read)?;
            if held.covers.newest() < version {
                return Err(Status::RETRY);
            }
        }
        Ok(())
    }

    /// Installs what `read` returns, all of one state of the stripe, as the chunk. Returns the
    /// bytes moved to the chunk's target, and what the target holds then, which tells whether it
    /// accepted them.
    pub(super) fn replace(
        &self,
        session: SessionId,
        group: &Group,
        stripe: &Stripe,
        anew: &Anew,
        read: impl Fn(u32, &mut [u8]) -> Result<Covers, Status>,
    ) -> Result<(u64, Held), Status> {
        let len = self.chunk_end(group, stripe, anew.from)?;
        let id = self.next_id(session);
        let mut buf = vec![0; MAX_PAYLOAD.min(len as usize)];
        let (mut at, mut state): (u32, Option<Covers>) = (0, None);
        loop {
            let part = (len - at).min(MAX_PAYLOAD as u32);
            let out = &mut buf[..part as usize];
            let covers = read(at, out)?;
            if state.get_or_insert_with(|| covers.clone()) != &covers {
                return Err(Status::RETRY);
            }
            let install = Install {
                group: stripe.group,
                id,
                covers: covers_at(stripe.shape, anew.place, &covers),
                reason: anew.why,
                offset: at,
                last: at + part >= len,
            };
            // Committed meanwhile, the chunks may have become longer than was read.
            if install.last && self.chunk_end(group, stripe, anew.from)? > len {
                return Err(Status::RETRY);
            }
            at += part;
            let last = install.last;
            let held = self.install(group, stripe, anew.target, install, out)?;
            if last {
                return Ok((u64::from(len), held));
            }
        }
    }

    fn install(
        &self,
        group: &Group,
        stripe: &Stripe,
        target: TargetId,
        install: Install,
        data: &[u8],
    ) -> Result<Held, Status> {
        let call = MemberInstall { target, key: stripe.key, epoch: group.epoch, install };
        let ask = Ask { target, call, payload: data, into: &mut [] };
        self.port.exchange(SessionId(0), vec![ask]).pop().ok_or(Status::IO)?
    }

    /// Where the data of these members' chunks ends.
    pub(super) fn chunk_end(
        &self,
        group: &Group,
        stripe: &Stripe,
        of: Members,
    ) -> Result<u32, Status> {
        self.longest(stripe.key, of.iter().map(|place| group.members[place].target))
    }

    /// Where the data of these targets' chunks ends.
    pub(super) fn longest(
        &self,
        key: ChunkKey,
        targets: impl Iterator<Item = TargetId>,
    ) -> Result<u32, Status> {
        let all = self.extents_at(key, targets)?;
        let end = all.into_iter().map(|(at, len)| at + len).max();
        Ok(end.unwrap_or(0).min(MAX_CHUNK))
    }

    /// Ranges that hold data of any of these targets' chunks.
    fn extents_at(
        &self,
        key: ChunkKey,
        targets: impl Iterator<Item = TargetId>,
    ) -> Result<Vec<(u32, u32)>, Status> {
        let ask = |target| Ask::plain(target, DataExtents { target, key });
        let answers = self.port.exchange(SessionId(0), targets.map(ask).collect());
        let all: Vec<_> = answers.into_iter().collect::<Result<_, _>>()?;
        Ok(all.concat())
    }

    /// Ranges of the place's chunk that hold data, ascending. Where its member is not live, these
    /// are ranges of which any other member holds some. One other member alone does not tell,
    /// because the parity of equal data is zero, and installed zeros are holes.
    ///
    /// # Errors
    /// One of those that are asked does not answer for too long.
    pub fn extents(&self, stripe: &Stripe, place: usize) -> Result<Vec<(u32, u32)>, Status> {
        // What is staged may yet be dropped.
        self.settle_for_read(stripe, REQUEST)?;
        self.until(REQUEST, || {
            let group = self.available(stripe.group)?;
            let live = group.live();
            let asked = if live.has(place) { Members::of([place]) } else { live };
            let targets = asked.iter().map(|place| group.members[place].target);
            self.extents_at(stripe.key, targets).map(joined)
        })
    }

    /// A stripe of the group, by its key.
    pub fn stripe(&self, group: &Group, key: ChunkKey) -> Stripe {
        Stripe { group: group.id, shape: group.shape, key }
    }
}

/// The same ranges, ascending and apart from each other.
fn joined(mut ranges: Vec<(u32, u32)>) -> Vec<(u32, u32)> {
    ranges.sort_unstable();
    let mut all: Vec<(u32, u32)> = Vec::new();
    for (at, len) in ranges {
        match all.last_mut() {
            Some((start, held)) if *start + *held >= at => {
                *held = (*held).max(at + len - *start);
            }
            _ => all.push((at, len)),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_touch_or_overlap_are_one() {
        assert_eq!(
            joined(vec![(8, 4), (0, 4), (4, 2), (9, 1), (20, 1)]),
            [(0, 6), (8, 4), (20, 1)]
        );
        assert_eq!(joined(vec![]), []);
    }
}
