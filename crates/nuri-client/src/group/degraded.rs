//! Reading one member's bytes from the others.

use std::sync::Arc;

use nuri_io::buf::PooledBuf;
use nuri_proto::Status;
use nuri_proto::id::SessionId;
use nuri_proto::layout::Shape;
use nuri_proto::map::Group;
use nuri_proto::op::member::{MemberRead, Purpose};
use nuri_proto::stripe::Covers;
use nuri_stripe::writer::covers_at;

use super::parity::{code, code_status};
use super::port::{Ask, Port};
use super::rows::Frame;
use super::{Groups, Stripe};

/// A range of the chunk of one place.
#[derive(Clone, Copy)]
pub(super) struct Range {
    pub(super) place: usize,
    pub(super) offset: u32,
    pub(super) len: usize,
}

impl<P: Port> Groups<P> {
    /// Reads what a place holds where the stripe stands for `covers`, from itself or from others.
    pub(super) fn read_base(
        &self,
        group: &Group,
        stripe: &Stripe,
        place: usize,
        offset: u32,
        out: &mut [u8],
        covers: &Covers,
    ) -> Result<(), Status> {
        if group.live().has(place) {
            let wanted = covers_at(stripe.shape, place, covers);
            match self.read_one(group, stripe, place, offset, out, Purpose::Base) {
                Ok(found) if found.same(&wanted) => return Ok(()),
                Ok(_) => return Err(Status::RETRY),
                Err(Status::CORRUPT | Status::UNREACHABLE | Status::RETRY) => {}
                Err(status) => return Err(status),
            }
        }
        let range = Range { place, offset, len: out.len() };
        let found = self.read_from_others(group, stripe, range, out, Purpose::Base)?;
        if found.same(covers) { Ok(()) } else { Err(Status::RETRY) }
    }

    pub(super) fn read_one(
        &self,
        group: &Group,
        stripe: &Stripe,
        place: usize,
        offset: u32,
        out: &mut [u8],
        purpose: Purpose,
    ) -> Result<Covers, Status> {
        let call = self.read_call(group, stripe, place, offset, out.len(), purpose);
        let ask = Ask { target: call.target, call, payload: &[], into: out };
        let reply = self.port.exchange(SessionId(0), vec![ask]).pop();
        Ok(reply.ok_or(Status::IO)??.covers)
    }

    pub(super) fn read_call(
        &self,
        group: &Group,
        stripe: &Stripe,
        place: usize,
        offset: u32,
        len: usize,
        purpose: Purpose,
    ) -> MemberRead {
        MemberRead {
            target: group.members[place].target,
            key: stripe.key,
            group: stripe.group,
            offset,
            len: len as u32,
            decided: self.seen.decided(stripe.key, place),
            purpose,
        }
    }

    /// Computes a place's bytes from live members other than itself, all of one state of the
    /// stripe; says what the stripe stood for.
    ///
    /// # Errors
    /// [`Status::RETRY`] where they were caught between two states; [`Status::UNDECIDED`];
    /// [`Status::IO`] where too few are left.
    pub(super) fn read_from_others(
        &self,
        group: &Group,
        stripe: &Stripe,
        range: Range,
        out: &mut [u8],
        purpose: Purpose,
    ) -> Result<Covers, Status> {
        let others: Vec<_> = group.live().iter().filter(|p| *p != range.place).collect();
        match stripe.shape {
            Shape::Parity { .. } => self.decode(group, stripe, range, &others, out, purpose),
            Shape::Stripe | Shape::Mirror(_) => {
                let mut last = Status::IO;
                for place in others {
                    match self.read_one(group, stripe, place, range.offset, out, purpose) {
                        Err(Status::UNDECIDED) => return Err(Status::UNDECIDED),
                        Err(status) => last = status,
                        covers => return covers,
                    }
                }
                Err(last)
            }
        }
    }

    fn decode(
        &self,
        group: &Group,
        stripe: &Stripe,
        range: Range,
        others: &[usize],
        out: &mut [u8],
        purpose: Purpose,
    ) -> Result<Covers, Status> {
        // Data first. A lost data chunk needs a parity member, which says what all stand for.
        let data = stripe.shape.data();
        let parity = others.iter().filter(|p| **p >= data);
        let mut sources: Vec<usize> = others.iter().filter(|p| **p < data).copied().collect();
        sources.extend(parity);
        sources.truncate(data);
        if sources.len() < data {
            return Err(Status::IO);
        }
        let read = self.read_sources(group, stripe, range, &sources, purpose)?;
        let covers = one_state(stripe.shape, &read)?;
        let left: Vec<(usize, &[u8])> =
            read.iter().map(|(place, source)| (*place, source.bytes(range))).collect();
        code(stripe.shape)?.rebuild(&left, range.place, out).map_err(code_status)?;
        if purpose == Purpose::Use {
            for (place, source) in read.into_iter().filter(|(place, _)| *place < data) {
                if let Source::Read(bytes, covers) = source {
                    let (key, offset) = (stripe.key, range.offset);
                    self.rows.keep(Frame { key, place, offset, bytes, covers });
                }
            }
        }
        Ok(covers)
    }

    /// Reads the range of all sources at once; of those that are kept, only what they stand for.
    fn read_sources(
        &self,
        group: &Group,
        stripe: &Stripe,
        range: Range,
        sources: &[usize],
        purpose: Purpose,
    ) -> Result<Vec<(usize, Source)>, Status> {
        let kept = |place: &usize| self.rows.find(stripe.key, *place, range.offset, range.len);
        let kept: Vec<_> = sources.iter().map(kept).collect();
        let len = |kept: &Option<Arc<Frame>>| if kept.is_some() { 0 } else { range.len };
        let mut bytes: Vec<PooledBuf> = kept.iter().map(|kept| self.buffer(len(kept))).collect();
        let asks = sources.iter().zip(&mut bytes).map(|(place, into)| {
            let call = self.read_call(group, stripe, *place, range.offset, into.len(), purpose);
            Ask { target: call.target, call, payload: &[], into }
        });
        let replies = self.port.exchange(SessionId(0), asks.collect());
        let mut read = Vec::new();
        for ((place, reply), (kept, bytes)) in
            sources.iter().zip(replies).zip(kept.into_iter().zip(bytes))
        {
            let covers = reply?.covers;
            read.push((
                *place,
                match kept {
                    Some(frame) if frame.covers != covers => {
                        self.rows.forget(stripe.key.object);
                        return Err(Status::RETRY);
                    }
                    Some(frame) => Source::Kept(frame),
                    None => Source::Read(bytes, covers),
                },
            ));
        }
        Ok(read)
    }

    fn buffer(&self, len: usize) -> PooledBuf {
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
        let read = self.read_sources(group, stripe, range, &[place], Purpose::Use)?;
        for (place, source) in read {
            out.copy_from_slice(source.bytes(range));
            if let Source::Read(bytes, covers) = source {
                self.rows.keep(Frame { key: stripe.key, place, offset, bytes, covers });
            }
        }
        Ok(())
    }
}

/// A range of one member's chunk.
enum Source {
    Read(PooledBuf, Covers),
    Kept(Arc<Frame>),
}

impl Source {
    fn bytes(&self, range: Range) -> &[u8] {
        match self {
            Source::Read(bytes, _) => bytes,
            Source::Kept(frame) => frame.part(range.offset, range.len),
        }
    }

    fn covers(&self) -> &Covers {
        match self {
            Source::Read(_, covers) => covers,
            Source::Kept(frame) => &frame.covers,
        }
    }
}

/// What the stripe stands for, if all that was read is of one state (rule 5.9).
fn one_state(shape: Shape, read: &[(usize, Source)]) -> Result<Covers, Status> {
    let all: Vec<(usize, &Covers)> = read.iter().map(|(p, source)| (*p, source.covers())).collect();
    one_state_of(shape, &all)
}

fn one_state_of(shape: Shape, read: &[(usize, &Covers)]) -> Result<Covers, Status> {
    let vector = read.iter().find(|(place, _)| *place >= shape.data());
    let covers = vector.map(|(_, covers)| (*covers).clone()).unwrap_or_else(|| {
        let mut all = Covers::default();
        read.iter().for_each(|(place, c)| all.set(*place, c.get(0)));
        all
    });
    let fits = |(place, c): &(usize, &Covers)| c.same(&covers_at(shape, *place, &covers));
    let fits_all = read.iter().all(fits) || cfg!(nuri_break = "decode_any_state");
    if fits_all { Ok(covers) } else { Err(Status::RETRY) }
}

#[cfg(test)]
mod tests {
    use nuri_proto::stripe::Version;

    use super::*;

    const PARITY: Shape = Shape::Parity { k: 2, m: 1 };

    fn covers(versions: &[u64]) -> Covers {
        Covers(versions.iter().map(|v| Version(*v)).collect())
    }

    /// Catches `nuri_break = "decode_any_state"`.
    #[test]
    fn only_chunks_of_one_state_are_decoded() {
        let read = |data, parity: &[u64]| {
            one_state_of(PARITY, &[(1, &covers(&[data])), (2, &covers(parity))])
        };
        assert_eq!(read(5, &[4, 5]), Ok(covers(&[4, 5])));
        assert_eq!(read(5, &[4, 6]), Err(Status::RETRY));
        assert_eq!(
            one_state_of(PARITY, &[(0, &covers(&[3])), (1, &covers(&[]))]),
            Ok(covers(&[3, 0]))
        );
    }
}
