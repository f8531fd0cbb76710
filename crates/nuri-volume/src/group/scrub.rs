//! The scrub of one stripe: reads all that its members hold, and compares the members with each
//! other.
//!
//! SCRUB-1 A checksum or a version says which member is bad; both are kept apart from the bytes.
//!    Then the other members repair it. Where all checksums and versions are right and the bytes
//!    still do not fit, nobody knows which member is bad. This is reported, and nothing is changed.
//! SCRUB-2 A finding does not count while a client writes: what the members hold must be the same
//!    before and after the look. A repair happens only on the very write that was looked at (rule
//!    MEMBER-8).
//! SCRUB-3 A member that knows no version at all where others know one is reported and left alone.
//!    What looks like a loss may be a truncation or a deletion, which a repair would undo.

use nuri_proto::Status;
use nuri_proto::id::{ChunkKey, SessionId, TargetId};
use nuri_proto::limit::{BLOCK, MAX_PAYLOAD};
use nuri_proto::map::{Group, Standing};
use nuri_proto::op::member::{Purpose, Reason};
use nuri_proto::stripe::{Covers, Held, Members, Version};
use nuri_rules::broken;
use nuri_stripe::writer::{behind, covers_at, stripe_covers};

use super::parity::misfits;
use super::port::{Ask, Port};
use super::repair::Anew;
use super::settle::Whose;
use super::{Groups, Stripe};

/// What is wrong with a member's chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flaw {
    /// A block fails its checksum: flipped bits, a misdirected write.
    Damaged,
    /// Older than what the others prove: a lost write.
    Stale,
    /// It knows nothing of bytes that others know of (SCRUB-3).
    Missing,
    /// All checksums and versions are right, and it does not fit the others.
    Misfit,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Finding {
    pub target: TargetId,
    pub flaw: Flaw,
    pub repaired: bool,
}

impl Finding {
    /// The flaw as a sentence for people.
    pub fn sentence(&self, key: ChunkKey) -> String {
        let ChunkKey { object, stripe, .. } = key;
        let what = match self.flaw {
            Flaw::Damaged => "had blocks that fail their checksum",
            Flaw::Stale => "had lost a write",
            Flaw::Missing => "knows nothing of bytes that others know of",
            Flaw::Misfit => "does not fit the others, though every checksum is right",
        };
        let end = match (self.repaired, self.flaw) {
            (true, _) => "repaired from the others",
            (false, Flaw::Damaged | Flaw::Stale) => "too few others are whole to repair it",
            (false, Flaw::Missing | Flaw::Misfit) => "nothing was changed",
        };
        format!("target {}: stripe {stripe} of object {object} {what}: {end}", self.target)
    }
}

/// What the looks at a stripe found so far.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Verdict {
    pub findings: Vec<Finding>,
    /// Read for it.
    pub bytes: u64,
}

/// A stripe as its live members describe it.
struct Look {
    group: Group,
    held: Vec<(usize, Held)>,
    covers: Covers,
}

impl<P: Port> Groups<P> {
    /// Proves that the chunks of the live members are whole and of one state, and repairs those
    /// that are not. Repairs are in the verdict even where the look did not end.
    ///
    /// # Errors
    /// [`Status::RETRY`] and the like, also where somebody writes the stripe: look again later.
    pub fn scrub(&self, stripe: &Stripe, verdict: &mut Verdict) -> Result<(), Status> {
        let look = self.look(stripe)?;
        let lacking = behind(stripe.shape, &look.held, &look.covers);
        let sound = Members(look.group.live().0 & !lacking.0);
        let (damaged, misfit) = self.read_all(stripe, &look, sound, &mut verdict.bytes)?;
        if lacking.0 | damaged.0 | misfit.0 == 0 {
            return Ok(());
        }
        let writing = lacking.0 != 0 && look.held.iter().any(|(_, held)| held.staged.is_some());
        if writing || self.ask_live(&look.group, stripe, false)? != look.held {
            return Err(Status::RETRY);
        }
        let mut left = Vec::new();
        for (place, held) in &look.held {
            let flaw = match () {
                () if damaged.has(*place) => Flaw::Damaged,
                () if misses_any(&covers_at(stripe.shape, *place, &look.covers), held) => {
                    Flaw::Missing
                }
                () if lacking.has(*place) => Flaw::Stale,
                () if misfit.has(*place) => Flaw::Misfit,
                () => continue,
            };
            let knows = matches!(flaw, Flaw::Damaged | Flaw::Stale);
            let repairs = knows || broken!("scrub_by_majority");
            let repaired = repairs && self.mend(stripe, &look, lacking, *place, flaw)?;
            let target = look.group.members[*place].target;
            let findings = if repaired { &mut verdict.findings } else { &mut left };
            findings.push(Finding { target, flaw, repaired });
        }
        verdict.findings.append(&mut left);
        Ok(())
    }

    fn look(&self, stripe: &Stripe) -> Result<Look, Status> {
        let group = self.available(stripe.group)?;
        let mut held = self.settle(&group, stripe, Whose::Bygone)?;
        held.retain(|(place, _)| group.live().has(*place));
        let covers = stripe_covers(stripe.shape, &held);
        Ok(Look { group, held, covers })
    }

    /// Reads all that these members hold. Says which are damaged, and which of those that are all
    /// whole do not fit the others.
    fn read_all(
        &self,
        stripe: &Stripe,
        look: &Look,
        members: Members,
        bytes: &mut u64,
    ) -> Result<(Members, Members), Status> {
        let (mut damaged, mut misfit) = (Members::default(), Members::default());
        let end = self.chunk_end(&look.group, stripe, members)? as usize;
        for at in (0..end).step_by(MAX_PAYLOAD) {
            let len = (end - at).min(MAX_PAYLOAD);
            let mut parts: Vec<_> = members.iter().map(|place| (place, vec![0; len])).collect();
            let asks = parts.iter_mut().map(|(place, into)| {
                let purpose = Purpose::Base;
                let call = self.read_call(&look.group, stripe, *place, at as u32, len, purpose);
                Ask { target: call.target, call, payload: &[], into }
            });
            let replies = self.port.exchange(SessionId(0), asks.collect());
            let mut whole = Vec::new();
            for ((place, part), reply) in parts.iter().zip(replies) {
                let wanted = covers_at(stripe.shape, *place, &look.covers);
                match reply {
                    Ok(reply) if reply.covers.same(&wanted) => whole.push((*place, &part[..])),
                    Ok(_) => return Err(Status::RETRY),
                    Err(Status::CORRUPT) => damaged.0 |= Members::of([*place]).0,
                    Err(status) => return Err(status),
                }
            }
            misfit.0 |= misfits(stripe.shape, &whole)?.0;
            *bytes += (len * parts.len()) as u64;
        }
        Ok((damaged, misfit))
    }

    /// Whether the others had what it takes to repair the member.
    fn mend(
        &self,
        stripe: &Stripe,
        look: &Look,
        lacking: Members,
        place: usize,
        flaw: Flaw,
    ) -> Result<bool, Status> {
        // Those that lack something, the member itself among them, are no source.
        let since = look.group.epoch;
        let mut group = look.group.clone();
        lacking.iter().for_each(|p| group.members[p].standing = Standing::Absent { since });
        if flaw == Flaw::Misfit {
            group.members[place].standing = Standing::Absent { since };
        }
        let sources = group.live().iter().filter(|p| *p != place).count();
        if sources < stripe.shape.data() {
            return Ok(false);
        }
        let own = look.held.iter().find(|(p, _)| *p == place);
        let last = own.map(|(_, held)| held.last).unwrap_or_default();
        let read = |at: u32, out: &mut [u8]| {
            self.read_whole(&group, stripe, look, place, at, out).map(|()| look.covers.clone())
        };
        let why = Reason::Found { last };
        let anew = Anew::of_member(&group, place, why, group.live());
        match self.replace(SessionId(0), &group, stripe, &anew, read) {
            Ok((_, held)) => {
                let wanted = covers_at(stripe.shape, place, &look.covers);
                let taken = held.staged.is_none() && held.covers.same(&wanted);
                if taken { Ok(true) } else { Err(Status::RETRY) }
            }
            Err(Status::CORRUPT | Status::IO | Status::NOSPC) => Ok(false),
            Err(status) => Err(status),
        }
    }

    /// Reads a part of a member's chunk: its own bytes where they are whole, else from the others;
    /// block by block where none of both is whole.
    fn read_whole(
        &self,
        group: &Group,
        stripe: &Stripe,
        look: &Look,
        place: usize,
        at: u32,
        out: &mut [u8],
    ) -> Result<(), Status> {
        match self.read_base(group, stripe, place, at, out, &look.covers) {
            Err(Status::CORRUPT | Status::IO) => {}
            outcome => return outcome,
        }
        let blocks = (at..).step_by(BLOCK as usize).zip(out.chunks_mut(BLOCK as usize));
        for (at, block) in blocks {
            self.read_base(group, stripe, place, at, block, &look.covers)?;
        }
        Ok(())
    }
}

/// Whether the member knows no version where there should be one.
fn misses_any(wanted: &Covers, held: &Held) -> bool {
    (0..wanted.0.len())
        .any(|i| wanted.get(i) > Version::NONE && held.covers.get(i) == Version::NONE)
}
