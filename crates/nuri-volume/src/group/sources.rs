//! Reads one range from several members at once, and uses what is kept of them (`rows.rs`).

use std::sync::Arc;

use nuri_io::buf::PooledBuf;
use nuri_proto::Status;
use nuri_proto::id::SessionId;
use nuri_proto::map::Group;
use nuri_proto::op::member::Purpose;
use nuri_proto::stripe::Covers;

use super::part::Range;
use super::port::{Ask, Port};
use super::rows::{Claim, Frame, Reading, Span};
use super::{Groups, Stripe};

/// A range of one member's chunk.
pub(super) enum Source {
    Read(PooledBuf, Covers),
    Frame { frame: Arc<Frame>, kept: bool },
}

/// The result of reading from several members.
pub(super) enum Sources {
    /// By place.
    All(Vec<(usize, Source)>),
    /// Without these places, and why.
    Without(Vec<usize>, Status),
}

/// How the range of one place is read.
enum Way<'a> {
    Kept(Reading<'a>),
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
            Source::Frame { frame, .. } => frame.part(range.offset, range.len),
        }
    }

    pub(super) fn covers(&self) -> &Covers {
        match self {
            Source::Read(_, covers) => covers,
            Source::Frame { frame, .. } => &frame.covers,
        }
    }
}

impl<P: Port> Groups<P> {
    /// Reads the range of these places at once, except for what is kept of them. A caller that uses
    /// kept bytes must know that they are of the present state, from a member that says for what
    /// all stand.
    pub(super) fn read_sources(
        &self,
        group: &Group,
        stripe: &Stripe,
        range: Range,
        places: &[usize],
        purpose: Purpose,
    ) -> Result<Sources, Status> {
        let (mut kept, mut own, mut others) = (Vec::new(), Vec::new(), Vec::new());
        for place in places {
            // Parity is wanted once.
            let keep = purpose == Purpose::Use && *place < stripe.shape.data();
            match keep.then(|| self.rows.claim(span(stripe, range, *place))) {
                None => own.push((*place, Way::Unkept)),
                Some(Claim::Mine(reading)) => own.push((*place, Way::Kept(reading))),
                Some(Claim::Kept(frame)) => {
                    kept.push((*place, Source::Frame { frame, kept: true }))
                }
                Some(Claim::Another) => others.push(*place),
            }
        }
        let mut found = self.read_ways(group, stripe, range, own, purpose)?;
        // What lacks something is of no use, whatever the others read.
        if !others.is_empty() && matches!(found, Sources::All(_)) {
            let mut missed = Vec::new();
            for place in others {
                match self.rows.wait(span(stripe, range, place)) {
                    Some(frame) => kept.push((place, Source::Frame { frame, kept: true })),
                    None => missed.push((place, Way::Unkept)),
                }
            }
            found.add(self.read_ways(group, stripe, range, missed, purpose)?);
        }
        found.add(Sources::All(kept));
        Ok(found)
    }

    fn read_ways(
        &self,
        group: &Group,
        stripe: &Stripe,
        range: Range,
        ways: Vec<(usize, Way<'_>)>,
        purpose: Purpose,
    ) -> Result<Sources, Status> {
        let mut bytes: Vec<_> = ways.iter().map(|_| self.buffer(range.len)).collect();
        let asks = ways.iter().zip(&mut bytes).map(|((place, _), into)| {
            let call = self.read_call(group, stripe, *place, range.offset, into.len(), purpose);
            Ask { target: call.target, call, payload: &[], into }
        });
        let asked = self.port.now();
        let replies = self.port.exchange(SessionId(0), asks.collect());
        let mut read = Vec::new();
        let mut without: Option<(Vec<usize>, Status)> = None;
        for (((place, way), bytes), reply) in ways.into_iter().zip(bytes).zip(replies) {
            match reply {
                Ok(reply) => read.push((place, way.source(bytes, reply.covers))),
                Err(Status::UNDECIDED) => return Err(Status::UNDECIDED),
                Err(status) => {
                    if status == Status::UNREACHABLE {
                        self.note_unreachable(group.members[place].target, asked);
                    }
                    let (failed, why) = without.get_or_insert((Vec::new(), status));
                    failed.push(place);
                    *why = status;
                }
            }
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
        let read = match self.read_sources(group, stripe, range, &[place], Purpose::Use)? {
            Sources::Without(_, status) => return Err(status),
            Sources::All(read) => read,
        };
        for (_, source) in &read {
            if let Source::Frame { kept: true, frame } = source {
                self.ask_for_state(group, stripe, range, &frame.covers)?;
            }
            out.copy_from_slice(source.bytes(range));
        }
        Ok(())
    }

    /// Asks the member whether what it holds still stands for this: a reply without bytes.
    fn ask_for_state(
        &self,
        group: &Group,
        stripe: &Stripe,
        range: Range,
        kept: &Covers,
    ) -> Result<(), Status> {
        let Range { place, offset, .. } = range;
        let now = self.read_one(group, stripe, place, offset, &mut [], Purpose::Use)?;
        if now == *kept {
            return Ok(());
        }
        self.rows.forget(stripe.key.object);
        Err(Status::RETRY)
    }
}

impl Way<'_> {
    fn source(self, bytes: PooledBuf, covers: Covers) -> Source {
        match self {
            Way::Kept(reading) => Source::Frame { frame: reading.keep(bytes, covers), kept: false },
            Way::Unkept => Source::Read(bytes, covers),
        }
    }
}

fn span(stripe: &Stripe, range: Range, place: usize) -> Span {
    Span { key: stripe.key, place, offset: range.offset, len: range.len }
}
