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
use super::rows::Frame;
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
    /// Reads the range of these places at once; of those that are kept, only what they stand for.
    pub(super) fn read_sources(
        &self,
        group: &Group,
        stripe: &Stripe,
        range: Range,
        places: &[usize],
        purpose: Purpose,
    ) -> Result<Sources, Status> {
        let kept = |place: &usize| self.rows.find(stripe.key, *place, range.offset, range.len);
        let kept: Vec<_> = places.iter().map(kept).collect();
        let len = |kept: &Option<Arc<Frame>>| if kept.is_some() { 0 } else { range.len };
        let mut bytes: Vec<PooledBuf> = kept.iter().map(|kept| self.buffer(len(kept))).collect();
        let asks = places.iter().zip(&mut bytes).map(|(place, into)| {
            let call = self.read_call(group, stripe, *place, range.offset, into.len(), purpose);
            Ask { target: call.target, call, payload: &[], into }
        });
        let asked = self.port.now();
        let replies = self.port.exchange(SessionId(0), asks.collect());
        let (mut read, mut failed, mut why) = (Vec::new(), Vec::new(), Status::UNREACHABLE);
        let found = kept.into_iter().zip(bytes);
        for ((place, reply), (kept, bytes)) in places.iter().zip(replies).zip(found) {
            match (reply, kept) {
                (Err(Status::UNDECIDED), _) => return Err(Status::UNDECIDED),
                (Err(status), _) => {
                    if status == Status::UNREACHABLE {
                        self.note_unreachable(group.members[*place].target, asked);
                    }
                    failed.push(*place);
                    why = status;
                }
                (Ok(reply), Some(frame)) if frame.covers != reply.covers => {
                    self.rows.forget(stripe.key.object);
                    return Err(Status::RETRY);
                }
                (Ok(_), Some(frame)) => read.push((*place, Source::Kept(frame))),
                (Ok(reply), None) => read.push((*place, Source::Read(bytes, reply.covers))),
            }
        }
        Ok(if failed.is_empty() { Sources::All(read) } else { Sources::Without(failed, why) })
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
                self.keep_data(stripe, offset, read);
                Ok(())
            }
        }
    }

    /// Keeps what was read of data chunks.
    pub(super) fn keep_data(&self, stripe: &Stripe, offset: u32, read: Vec<(usize, Source)>) {
        for (place, source) in read.into_iter().filter(|(p, _)| *p < stripe.shape.data()) {
            if let Source::Read(bytes, covers) = source {
                self.rows.keep(Frame { key: stripe.key, place, offset, bytes, covers });
            }
        }
    }
}
