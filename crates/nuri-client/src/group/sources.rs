//! Reading one range of several members at once, with what is kept of them (`rows.rs`).

use std::sync::Arc;

use nuri_io::buf::PooledBuf;
use nuri_proto::Status;
use nuri_proto::id::SessionId;
use nuri_proto::map::Group;
use nuri_proto::op::member::Purpose;
use nuri_proto::stripe::Covers;

use super::degraded::Range;
use super::port::{Ask, Port};
use super::rows::{Claim, Frame, Span};
use super::{Groups, Stripe};

/// A range of one member's chunk.
pub(super) enum Source {
    Read(PooledBuf, Covers),
    Kept(Arc<Frame>),
}

/// What a look at several members gave.
pub(super) enum Sources {
    /// By place.
    All(Vec<(usize, Source)>),
    /// Without these places, and why.
    Without(Vec<usize>, Status),
}

/// How the range of one place is had.
enum Way<'a> {
    Claimed(Claim<'a>),
    /// Read, and not kept.
    Unkept,
}

impl Sources {
    fn add(&mut self, more: Sources) {
        match (&mut *self, more) {
            (Sources::All(read), Sources::All(more)) => {
                read.extend(more);
                read.sort_by_key(|(place, _)| *place);
            }
            (Sources::Without(failed, _), Sources::Without(more, _)) => failed.extend(more),
            (Sources::All(_), more) => *self = more,
            (Sources::Without(..), Sources::All(_)) => {}
        }
    }
}

impl Source {
    pub(super) fn bytes(&self, range: Range) -> &[u8] {
        match self {
            Source::Read(bytes, _) => bytes,
            Source::Kept(frame) => frame.part(range.offset, range.len),
        }
    }

    pub(super) fn covers(&self) -> &Covers {
        match self {
            Source::Read(_, covers) => covers,
            Source::Kept(frame) => &frame.covers,
        }
    }
}

impl<P: Port> Groups<P> {
    /// Reads the range of these places at once; of what is kept, only what it stands for.
    pub(super) fn read_sources(
        &self,
        group: &Group,
        stripe: &Stripe,
        range: Range,
        places: &[usize],
        purpose: Purpose,
    ) -> Result<Sources, Status> {
        let claim = |place: &usize| (*place, self.claim(stripe, range, *place, purpose));
        let (others, own): (Vec<_>, Vec<_>) = places
            .iter()
            .map(claim)
            .partition(|(_, way)| matches!(way, Way::Claimed(Claim::Another)));
        let mut found = self.read_ways(group, stripe, range, own, purpose)?;
        // What lacks something is of no use, whatever the others read.
        if !others.is_empty() && matches!(found, Sources::All(_)) {
            let after = |(place, _): (usize, Way<'_>)| {
                let kept = self.rows.wait(span(stripe, range, place));
                (place, kept.map_or(Way::Unkept, |frame| Way::Claimed(Claim::Kept(frame))))
            };
            let others = others.into_iter().map(after).collect();
            found.add(self.read_ways(group, stripe, range, others, purpose)?);
        }
        Ok(found)
    }

    fn claim(&self, stripe: &Stripe, range: Range, place: usize, purpose: Purpose) -> Way<'_> {
        // Parity is wanted once.
        match purpose == Purpose::Use && place < stripe.shape.data() {
            true => Way::Claimed(self.rows.claim(span(stripe, range, place))),
            false => Way::Unkept,
        }
    }

    fn read_ways(
        &self,
        group: &Group,
        stripe: &Stripe,
        range: Range,
        ways: Vec<(usize, Way<'_>)>,
        purpose: Purpose,
    ) -> Result<Sources, Status> {
        let len = |way: &Way<'_>| match way {
            Way::Claimed(Claim::Kept(_)) => 0,
            _ => range.len,
        };
        let mut bytes: Vec<_> = ways.iter().map(|(_, way)| self.buffer(len(way))).collect();
        let asks = ways.iter().zip(&mut bytes).map(|((place, _), into)| {
            let call = self.read_call(group, stripe, *place, range.offset, into.len(), purpose);
            Ask { target: call.target, call, payload: &[], into }
        });
        let asked = self.port.now();
        let replies = self.port.exchange(SessionId(0), asks.collect());
        let mut read = Vec::new();
        let mut without: Option<(Vec<usize>, Status)> = None;
        for (((place, way), bytes), reply) in ways.into_iter().zip(bytes).zip(replies) {
            let covers = match reply {
                Ok(reply) => reply.covers,
                Err(Status::UNDECIDED) => return Err(Status::UNDECIDED),
                Err(status) => {
                    if status == Status::UNREACHABLE {
                        self.note_unreachable(group.members[place].target, asked);
                    }
                    let (failed, why) = without.get_or_insert((Vec::new(), status));
                    failed.push(place);
                    *why = status;
                    continue;
                }
            };
            let source = match way {
                Way::Claimed(Claim::Kept(frame)) if frame.covers != covers => {
                    self.rows.forget(stripe.key.object);
                    return Err(Status::RETRY);
                }
                Way::Claimed(Claim::Kept(frame)) => Source::Kept(frame),
                Way::Claimed(Claim::Mine(reading)) => Source::Kept(reading.keep(bytes, covers)),
                Way::Claimed(Claim::Another) | Way::Unkept => Source::Read(bytes, covers),
            };
            read.push((place, source));
        }
        Ok(match without {
            None => Sources::All(read),
            Some((failed, why)) => Sources::Without(failed, why),
        })
    }

    pub(super) fn buffer(&self, len: usize) -> PooledBuf {
        let mut buffer = self.buffers.take();
        buffer.set_len(len);
        buffer
    }

    /// Reads a data chunk of a group that misses a member: it may be wanted again, to decode.
    pub(super) fn read_and_keep(
        &self,
        group: &Group,
        stripe: &Stripe,
        place: usize,
        offset: u32,
        out: &mut [u8],
    ) -> Result<(), Status> {
        let range = Range { place, offset, len: out.len() };
        match self.read_sources(group, stripe, range, &[place], Purpose::Use)? {
            Sources::Without(_, status) => Err(status),
            Sources::All(read) => {
                read.iter().for_each(|(_, source)| out.copy_from_slice(source.bytes(range)));
                Ok(())
            }
        }
    }
}

fn span(stripe: &Stripe, range: Range, place: usize) -> Span {
    Span { key: stripe.key, place, offset: range.offset, len: range.len }
}
