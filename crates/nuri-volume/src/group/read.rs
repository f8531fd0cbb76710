//! Reads a piece from the member that has it, or else from the other members.

use std::time::Duration;

use nuri_proto::Status;
use nuri_proto::clock::REQUEST;
use nuri_proto::id::SessionId;
use nuri_proto::layout::Shape;
use nuri_proto::map::Group;
use nuri_proto::op::member::{MemberRead, Purpose};
use nuri_rpc::lock_within;
use nuri_stripe::locate::Piece;

use super::part::Range;
use super::port::Port;
use super::{Groups, Stripe};

impl<P: Port> Groups<P> {
    /// Fills `out` with what lies at `offset` of the chunk at `place` (of a mirror: of any copy).
    ///
    /// # Errors
    /// [`Status::IO`] and the like where too few members are left for too long.
    pub fn read(
        &self,
        stripe: &Stripe,
        place: usize,
        offset: u32,
        out: &mut [u8],
    ) -> Result<(), Status> {
        self.read_until(stripe, place, offset, out, self.port.now() + REQUEST)
    }

    /// As [`Groups::read`]; a read that is not possible now is tried again until the time `end`.
    ///
    /// # Errors
    /// As [`Groups::read`].
    pub fn read_until(
        &self,
        stripe: &Stripe,
        place: usize,
        offset: u32,
        out: &mut [u8],
        end: Duration,
    ) -> Result<(), Status> {
        let left = || end.saturating_sub(self.port.now());
        self.until(left(), || {
            let group = self.available(stripe.group)?;
            let outcome = self.read_once(&group, stripe, place, offset, out);
            if outcome != Err(Status::UNDECIDED) {
                return outcome;
            }
            self.settle_for_read(stripe, left())?;
            match self.read_once(&group, stripe, place, offset, out) {
                Err(Status::UNDECIDED) => Err(Status::RETRY),
                outcome => outcome,
            }
        })
    }

    /// The read of a piece at the member that has it.
    pub fn first_read(&self, stripe: &Stripe, piece: &Piece) -> Result<MemberRead, Status> {
        let group = self.available(stripe.group)?;
        if misses_data(&group, stripe.shape) {
            // Another way is taken.
            return Err(Status::RETRY);
        }
        let place = self.preferred(&group, stripe, piece.place);
        if self.is_unresponsive(group.members[place].target) {
            return Err(Status::RETRY);
        }
        let (offset, len) = (piece.offset, piece.len as usize);
        Ok(self.read_call(&group, stripe, place, offset, len, Purpose::Use))
    }

    /// Where a read of the piece goes first.
    fn preferred(&self, group: &Group, stripe: &Stripe, place: usize) -> usize {
        match stripe.shape {
            Shape::Parity { .. } => place,
            Shape::Stripe | Shape::Mirror(_) => {
                let speaks = |place: &usize| !self.is_unresponsive(group.members[*place].target);
                let first = || group.live().iter().next().unwrap_or(0);
                group.live().iter().find(speaks).unwrap_or_else(first)
            }
        }
    }

    fn read_once(
        &self,
        group: &Group,
        stripe: &Stripe,
        place: usize,
        offset: u32,
        out: &mut [u8],
    ) -> Result<(), Status> {
        let place = self.preferred(group, stripe, place);
        let unresponsive = self.is_unresponsive(group.members[place].target);
        if group.live().has(place) && !unresponsive {
            let read = match misses_data(group, stripe.shape) {
                true => self.read_and_keep(group, stripe, place, offset, out),
                false => self.read_one(group, stripe, place, offset, out, Purpose::Use).map(drop),
            };
            match read {
                Ok(()) => return Ok(()),
                Err(Status::UNDECIDED) => return Err(Status::UNDECIDED),
                Err(Status::CORRUPT) => self.damaged.add(*stripe),
                // Whatever else keeps it from answering, the others have it.
                Err(_) => {}
            }
        }
        let range = Range { place, offset, len: out.len() };
        match self.read_from_others(group, stripe, range, group.live(), out, Purpose::Use) {
            Err(status)
                if status != Status::UNDECIDED && unresponsive && group.live().has(place) =>
            {
                self.read_one(group, stripe, place, offset, out, Purpose::Use).map(drop)
            }
            outcome => outcome.map(drop),
        }
    }

    /// Settles a stripe that a member would not show. No client but this one may be writing it.
    pub(super) fn settle_for_read(&self, stripe: &Stripe, limit: Duration) -> Result<(), Status> {
        let seen = self.seen.entry(stripe.key);
        let knowledge = lock_within(&seen.state, limit);
        let mut knowledge = knowledge.ok_or(Status::UNREACHABLE)?;
        self.until(limit, || self.learn(SessionId(0), stripe, &mut knowledge))
    }
}

/// Whether chunks of the group have to be decoded.
fn misses_data(group: &Group, shape: Shape) -> bool {
    let data = match shape {
        Shape::Parity { .. } => shape.data(),
        Shape::Stripe | Shape::Mirror(_) => 0,
    };
    !(0..data).all(|place| group.live().has(place))
}
