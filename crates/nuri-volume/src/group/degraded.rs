//! Reads one member's bytes from the other members.

use nuri_proto::Status;
use nuri_proto::id::SessionId;
use nuri_proto::layout::Shape;
use nuri_proto::map::Group;
use nuri_proto::op::member::{MemberRead, Purpose};
use nuri_proto::stripe::{Covers, Members};
use nuri_rules::broken;
use nuri_stripe::writer::covers_at;

use super::parity::{code, code_status};
use super::part::Range;
use super::port::{Ask, Port};
use super::sources::{Source, Sources};
use super::{Groups, Stripe};

impl<P: Port> Groups<P> {
    /// Reads the content of a place where the stripe stands for `covers`, from its member or from
    /// others.
    pub(super) fn read_base(
        &self,
        group: &Group,
        stripe: &Stripe,
        place: usize,
        offset: u32,
        out: &mut [u8],
        covers: &Covers,
    ) -> Result<(), Status> {
        if group.live().has(place) && !self.is_unresponsive(group.members[place].target) {
            let wanted = covers_at(stripe.shape, place, covers);
            match self.read_one(group, stripe, place, offset, out, Purpose::Base) {
                Ok(found) if found.same(&wanted) => return Ok(()),
                Ok(_) => return Err(Status::RETRY),
                Err(Status::CORRUPT | Status::UNREACHABLE | Status::RETRY) => {}
                Err(status) => return Err(status),
            }
        }
        let range = Range { place, offset, len: out.len() };
        let found =
            self.read_from_others(group, stripe, range, group.live(), out, Purpose::Base)?;
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
        let asked = self.port.now();
        let reply = self.port.exchange(SessionId(0), vec![ask]).pop().ok_or(Status::IO)?;
        if let Err(Status::UNREACHABLE) = reply {
            self.note_unreachable(group.members[place].target, asked);
        }
        Ok(reply?.covers)
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

    /// Computes a place's bytes from those of `sources` other than itself, all of one state of the
    /// stripe. Returns what the stripe stood for.
    ///
    /// # Errors
    /// [`Status::RETRY`] where they were caught between two states; [`Status::UNDECIDED`];
    /// [`Status::UNREACHABLE`] where too few are left, as far as the map at hand says.
    pub(super) fn read_from_others(
        &self,
        group: &Group,
        stripe: &Stripe,
        range: Range,
        sources: Members,
        out: &mut [u8],
        purpose: Purpose,
    ) -> Result<Covers, Status> {
        let mut others: Vec<_> = sources.iter().filter(|p| *p != range.place).collect();
        others.sort_by_key(|place| self.is_unresponsive(group.members[*place].target));
        let outcome = match stripe.shape {
            Shape::Parity { .. } => self.decode(group, stripe, range, &others, out, purpose),
            Shape::Stripe | Shape::Mirror(_) => {
                self.read_a_copy(group, stripe, range, &others, out, purpose)
            }
        };
        match outcome {
            // A member of the live set that has not heard of it yet.
            Err(Status::BEHIND) => Err(Status::RETRY),
            outcome => outcome,
        }
    }

    fn read_a_copy(
        &self,
        group: &Group,
        stripe: &Stripe,
        range: Range,
        others: &[usize],
        out: &mut [u8],
        purpose: Purpose,
    ) -> Result<Covers, Status> {
        let mut last = Status::UNREACHABLE;
        for place in others {
            match self.read_one(group, stripe, *place, range.offset, out, purpose) {
                Err(Status::UNDECIDED) => return Err(Status::UNDECIDED),
                Err(status) => last = status,
                covers => return covers,
            }
        }
        Err(last)
    }

    /// Computes them from as many others as there are data members. Where one of them cannot say
    /// its part another one may, if there are more.
    fn decode(
        &self,
        group: &Group,
        stripe: &Stripe,
        range: Range,
        others: &[usize],
        out: &mut [u8],
        purpose: Purpose,
    ) -> Result<Covers, Status> {
        // A lost data chunk needs a parity member, which says what all stand for: it is among
        // as many as there are data members.
        let data = stripe.shape.data();
        let (mut left, mut why) = (others.to_vec(), Status::UNREACHABLE);
        while left.len() >= data {
            match self.read_sources(group, stripe, range, &left[..data], purpose)? {
                Sources::All(read) => {
                    let covers = one_state(stripe.shape, &read)
                        .inspect_err(|_| self.rows.forget(stripe.key.object))?;
                    let known: Vec<(usize, &[u8])> =
                        read.iter().map(|(place, source)| (*place, source.bytes(range))).collect();
                    code(stripe.shape)?.rebuild(&known, range.place, out).map_err(code_status)?;
                    return Ok(covers);
                }
                Sources::Without(failed, status) => {
                    left.retain(|place| !failed.contains(place));
                    why = status;
                }
            }
        }
        Err(why)
    }
}

/// What the stripe stands for, if all that was read is of one state.
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
    let fits_all = read.iter().all(fits) || broken!("decode_any_state");
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

    /// Catches `broken!("decode_any_state")`.
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
