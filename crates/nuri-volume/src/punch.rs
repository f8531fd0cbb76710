//! Punches, truncates and finds holes.

use std::collections::BTreeMap;

use nuri_proto::Status;
use nuri_proto::clock::{MEMBER_TIMEOUT, RECALL};
use nuri_proto::id::{ChunkKey, ObjectId, SessionId};
use nuri_proto::layout::{Layout, Shape};
use nuri_proto::op::data::{Capability, DataExtents, DataPunch, DataTrim};
use nuri_proto::stripe::Members;
use nuri_rpc::{CallContext, Deadline};
use nuri_rules::broken;
use nuri_stripe::locate::{Piece, pieces};

use crate::data_plane::{DataPlane, stripe_of};
use crate::group::{Guess, Part, Stripe};

/// Zeros for one frame.
static ZEROS: [u8; nuri_proto::limit::MAX_PAYLOAD] = [0; nuri_proto::limit::MAX_PAYLOAD];

/// What happens to the space of bytes that are made zeros.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Room {
    GivenBack,
    /// Of redundant shapes; others are filled again by who wants to keep it.
    Kept,
}

/// Bytes given back by a truncation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cut {
    /// With stripes beyond the new end, of redundant shapes also their versions.
    pub stripes: u64,
    /// Within the stripe in which the file ends.
    pub tail: u64,
}

/// Parts of redundant stripes that were made zeros.
#[derive(Default)]
struct Zeroed {
    /// Those that held something.
    pieces: Vec<Piece>,
    /// How many bytes of each stripe are zeros now, of those among them that held something.
    stripes: BTreeMap<ChunkKey, (Stripe, u64)>,
}

impl Zeroed {
    fn add(&mut self, piece: &Piece, held: bool) {
        let stripe = self.stripes.entry(piece.key).or_insert((stripe_of(piece), 0));
        stripe.1 += u64::from(piece.len);
        if held {
            self.pieces.push(*piece);
        }
    }
}

impl DataPlane {
    /// Makes a range read as zeros, durably. Returns bytes given back.
    ///
    /// # Errors
    /// The targets'. A target that restarts meanwhile may have lost it: it is done again, for a
    /// while.
    pub fn punch(
        &self,
        session: SessionId,
        of: (&Layout, ObjectId),
        range: (u64, u64),
        room: Room,
    ) -> Result<u64, Status> {
        // A recall that waits for it comes to an end in time.
        let deadline = Deadline::after(RECALL / 3);
        loop {
            match self.punch_once(session, of, range, room) {
                Err(Status::RETRY) if !deadline.passed() && !broken!("punch_once") => {}
                outcome => return outcome,
            }
        }
    }

    fn punch_once(
        &self,
        session: SessionId,
        (layout, object): (&Layout, ObjectId),
        (offset, len): (u64, u64),
        room: Room,
    ) -> Result<u64, Status> {
        let (mut freed, mut touched) = (0, Vec::new());
        let mut zeroed = Zeroed::default();
        for piece in pieces(layout, object, offset, len) {
            if piece.shape.is_redundant() {
                zeroed.add(&piece, self.zero(session, &piece)?);
                continue;
            }
            freed += self.cluster.until(Self::deadline(), |left| {
                let target = self.cluster.member(piece.group)?;
                let (key, offset, len) = (piece.key, piece.offset, piece.len);
                let capability = Capability::default();
                let call = DataPunch { target, key, offset, len, capability };
                let reply = self.change(session, target, &call, &[], left)?;
                if !touched.contains(&(target, reply.boot)) {
                    touched.push((target, reply.boot));
                }
                Ok(reply.freed)
            })?;
        }
        for (target, boot) in touched {
            // One that restarted in between may have lost the punch.
            if self.flush(target)? != boot {
                return Err(Status::RETRY);
            }
        }
        if room == Room::GivenBack {
            let chunk = layout.components.first().map_or(0, |c| c.chunk_size.bytes());
            freed += self.trim(session, &zeroed, chunk);
        }
        Ok(freed)
    }

    /// Writes zeros over what holds data of a redundant stripe, so that parity follows. Whether
    /// anything did.
    fn zero(&self, session: SessionId, piece: &Piece) -> Result<bool, Status> {
        let end = piece.offset + piece.len;
        let mut held = false;
        for (at, len) in self.extents(piece)? {
            let (from, to) = (at.max(piece.offset), (at + len).min(end));
            if from < to {
                let data = &ZEROS[..(to - from) as usize];
                let part = Part { place: piece.place, offset: from, data };
                self.groups().write(session, &stripe_of(piece), &[part], Guess::Unknown)?;
                held = true;
            }
        }
        Ok(held)
    }

    /// Gives the room of zeros back: of the pieces, and of the parity of whole stripes. What is not
    /// reached keeps it.
    fn trim(&self, session: SessionId, zeroed: &Zeroed, chunk: u64) -> u64 {
        let mut freed = 0;
        for piece in &zeroed.pieces {
            let places = match piece.shape {
                Shape::Parity { .. } => Members::of([piece.place]),
                Shape::Stripe | Shape::Mirror(_) => Members::of(0..piece.shape.members()),
            };
            let range = (piece.offset, piece.len);
            freed += self.groups().trim(session, &stripe_of(piece), places, range);
        }
        for (stripe, bytes) in zeroed.stripes.values() {
            let data = stripe.shape.data();
            if *bytes == chunk * data as u64 {
                let parity = Members::of(data..stripe.shape.members());
                self.groups().trim(session, stripe, parity, (0, chunk as u32));
            }
        }
        freed
    }

    /// As [`DataPlane::punch`], for a range that holds nothing but zeros. Only the space changes.
    pub fn give_back(
        &self,
        session: SessionId,
        (layout, object): (&Layout, ObjectId),
        (offset, len): (u64, u64),
    ) -> u64 {
        let mut freed = 0;
        for piece in pieces(layout, object, offset, len) {
            let places = Members::of(0..piece.shape.members());
            let range = (piece.offset, piece.len);
            freed += match piece.shape.is_redundant() {
                true => self.groups().trim(session, &stripe_of(&piece), places, range),
                false => {
                    let target = self.cluster.member(piece.group);
                    let (key, (offset, len)) = (piece.key, range);
                    let trim = |target| DataTrim { target, key, offset, len };
                    let ask = |target| self.ask(session, target, &trim(target), MEMBER_TIMEOUT);
                    target.and_then(ask).map_or(0, |reply| reply.freed)
                }
            };
        }
        freed
    }

    /// Deletes all data of an object from `size` on, durably.
    pub fn truncate(
        &self,
        session: SessionId,
        layout: &Layout,
        object: ObjectId,
        size: u64,
    ) -> Result<Cut, Status> {
        let mut cut = Cut::default();
        for component in &layout.components {
            let stripe = component.chunk_size.bytes() * component.shape.data() as u64;
            let from = u32::try_from(size.div_ceil(stripe)).map_err(|_| Status::FBIG)?;
            for group in &component.groups {
                cut.stripes += self.groups().truncate(session, *group, object, from)?;
            }
            let tail = size.div_ceil(stripe) * stripe - size;
            if tail > 0 {
                cut.tail += self.punch(session, (layout, object), (size, tail), Room::GivenBack)?;
            }
        }
        Ok(cut)
    }

    /// Ranges of the piece's chunk that hold data. Where only other members can tell, ranges that
    /// may hold data.
    pub fn extents(&self, piece: &Piece) -> Result<Vec<(u32, u32)>, Status> {
        if piece.shape.is_redundant() {
            return self.groups().extents(&stripe_of(piece), piece.place);
        }
        self.cluster.until(Self::deadline(), |left| {
            let target = self.cluster.member(piece.group)?;
            let peer = self.cluster.target(target)?;
            let call = DataExtents { target, key: piece.key };
            let (reply, _) = peer.call(CallContext::default(), &call, &[], &mut [], left)?;
            Ok(reply)
        })
    }
}
