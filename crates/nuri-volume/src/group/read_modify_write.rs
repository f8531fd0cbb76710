//! Reads what a write of less than a whole row has to know first. That is the bytes that it
//! replaces and, where that is less, the parity over them. All reads run at once.

use nuri_io::buf::PooledBuf;
use nuri_proto::Status;
use nuri_proto::id::SessionId;
use nuri_proto::map::Group;
use nuri_proto::op::member::Purpose;
use nuri_proto::stripe::{Covers, Members, Version};
use nuri_stripe::writer::covers_at;

use super::parity::Hull;
use super::part::Part;
use super::port::{Ask, Port};
use super::{Groups, Stripe};

/// Parity up to this long is read by the writer, beside the data, so that the parity members need
/// not read it between the write's arrival and its flush. Longer, moving it costs more.
const READ_PARITY: usize = 64 << 10;

/// A stripe as it was before a write.
pub(super) struct Old {
    /// For each part; `None` where nothing was ever written.
    pub(super) data: Vec<Option<Vec<u8>>>,
    /// By place, over the hull of the parts: of those parity members that showed it.
    pub(super) parity: Vec<(usize, PooledBuf)>,
}

/// A range that is read.
struct Wanted {
    place: usize,
    offset: u32,
    bytes: PooledBuf,
}

impl<P: Port> Groups<P> {
    /// Reads what the write of these parts replaces, of the state `base`.
    ///
    /// # Errors
    /// [`Status::RETRY`] where the stripe stands for something else by now; those of a read.
    pub(super) fn read_old(
        &self,
        group: &Group,
        stripe: &Stripe,
        parts: &[Part<'_>],
        base: &Covers,
        participants: Members,
    ) -> Result<Old, Status> {
        let is_there = |part: &Part<'_>| base.get(part.place) != Version::NONE;
        let readable = |place: &usize| {
            group.live().has(*place) && !self.is_unresponsive(group.members[*place].target)
        };
        let data = parts.iter().filter(|part| is_there(part) && readable(&part.place));
        let data = data.map(|part| self.wanted(part.place, part.offset, part.data.len()));
        let (hull, shape) = (Hull::of(parts), stripe.shape);
        let reads_parity = hull.len() <= READ_PARITY && *base != Covers::default();
        let places = (shape.data()..shape.members()).filter(|_| reads_parity);
        let places = places.filter(|place| participants.has(*place) && readable(place));
        let parity = places.map(|place| self.wanted(place, hull.start, hull.len()));
        let mut found = self.read_all_of(group, stripe, data.chain(parity).collect(), base)?;
        let parity = found.split_off(found.partition_point(|w| w.place < shape.data()));
        let data = parts.iter().map(|part| {
            if !is_there(part) {
                return Ok(None);
            }
            match found.iter().find(|wanted| wanted.place == part.place) {
                Some(wanted) => Ok(Some(wanted.bytes.to_vec())),
                None => self.old_from_others(group, stripe, part, base).map(Some),
            }
        });
        Ok(Old {
            data: data.collect::<Result<_, _>>()?,
            parity: parity.into_iter().map(|wanted| (wanted.place, wanted.bytes)).collect(),
        })
    }

    fn wanted(&self, place: usize, offset: u32, len: usize) -> Wanted {
        Wanted { place, offset, bytes: self.buffer(len) }
    }

    /// Those that could be read, by place.
    fn read_all_of(
        &self,
        group: &Group,
        stripe: &Stripe,
        mut wanted: Vec<Wanted>,
        base: &Covers,
    ) -> Result<Vec<Wanted>, Status> {
        if wanted.is_empty() {
            return Ok(wanted);
        }
        wanted.sort_by_key(|w| w.place);
        let asks = wanted.iter_mut().map(|w| {
            let len = w.bytes.len();
            let call = self.read_call(group, stripe, w.place, w.offset, len, Purpose::Base);
            Ask { target: call.target, call, payload: &[], into: &mut w.bytes }
        });
        let asked = self.port.now();
        let replies = self.port.exchange(SessionId(0), asks.collect());
        let mut found = Vec::new();
        for (wanted, reply) in wanted.into_iter().zip(replies) {
            match reply {
                Ok(reply) if reply.covers.same(&covers_at(stripe.shape, wanted.place, base)) => {
                    found.push(wanted);
                }
                Ok(_) => return Err(Status::RETRY),
                Err(Status::UNREACHABLE) => {
                    self.note_unreachable(group.members[wanted.place].target, asked);
                }
                Err(Status::CORRUPT | Status::RETRY) => {}
                Err(status) => return Err(status),
            }
        }
        Ok(found)
    }

    fn old_from_others(
        &self,
        group: &Group,
        stripe: &Stripe,
        part: &Part<'_>,
        base: &Covers,
    ) -> Result<Vec<u8>, Status> {
        let mut old = vec![0; part.data.len()];
        self.read_base(group, stripe, part.place, part.offset, &mut old, base)?;
        Ok(old)
    }
}
