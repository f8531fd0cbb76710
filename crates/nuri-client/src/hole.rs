//! Holes: punching, truncating, finding them.

use nuri_proto::Status;
use nuri_proto::id::{ObjectId, SessionId};
use nuri_proto::layout::Layout;
use nuri_proto::op::data::{Capability, DataExtents, DataPunch};
use nuri_rpc::CallContext;
use nuri_stripe::locate::{Piece, pieces};

use crate::data::{DataPlane, stripe_of};
use crate::group::{Guess, Part};

/// Zeros for one frame.
static ZEROS: [u8; nuri_proto::limit::MAX_PAYLOAD] = [0; nuri_proto::limit::MAX_PAYLOAD];

impl DataPlane {
    /// Makes a range read as zeros, durably. Returns bytes given back.
    pub(crate) fn punch(
        &self,
        session: SessionId,
        layout: &Layout,
        object: ObjectId,
        offset: u64,
        len: u64,
    ) -> Result<u64, Status> {
        let (mut freed, mut touched) = (0, Vec::new());
        for piece in pieces(layout, object, offset, len) {
            if piece.shape.is_redundant() {
                self.zero(session, &piece)?;
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
            // A target that restarted in between may have lost the punch: say so, the caller
            // keeps its intent and does it again.
            if self.flush(target)? != boot {
                return Err(Status::RETRY);
            }
        }
        Ok(freed)
    }

    /// Writes zeros over what holds data of a redundant stripe, so that parity follows.
    fn zero(&self, session: SessionId, piece: &Piece) -> Result<(), Status> {
        let end = piece.offset + piece.len;
        for (at, len) in self.extents(piece)? {
            let (from, to) = (at.max(piece.offset), (at + len).min(end));
            if from < to {
                let data = &ZEROS[..(to - from) as usize];
                let part = Part { place: piece.place, offset: from, data };
                self.groups().write(session, &stripe_of(piece), &[part], Guess::Unknown)?;
            }
        }
        Ok(())
    }

    /// Deletes all data of an object from `size` on, durably. Returns bytes given back.
    pub(crate) fn truncate(
        &self,
        session: SessionId,
        layout: &Layout,
        object: ObjectId,
        size: u64,
    ) -> Result<u64, Status> {
        let mut freed = 0;
        for component in &layout.components {
            let stripe = component.chunk_size.bytes() * component.shape.data() as u64;
            let from = u32::try_from(size.div_ceil(stripe)).map_err(|_| Status::FBIG)?;
            for group in &component.groups {
                freed += self.groups().truncate(session, *group, object, from)?;
            }
            let tail = size.div_ceil(stripe) * stripe - size;
            if tail > 0 {
                freed += self.punch(session, layout, object, size, tail)?;
            }
        }
        Ok(freed)
    }

    /// Ranges of the piece's chunk that hold data. Where only others can tell, ranges that may.
    pub(crate) fn extents(&self, piece: &Piece) -> Result<Vec<(u32, u32)>, Status> {
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
