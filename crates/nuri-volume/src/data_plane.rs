//! Moves bulk data: pieces to and from targets, with retries until the request's deadline.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nuri_proto::Status;
use nuri_proto::clock::{MEMBER_TIMEOUT, REQUEST};
use nuri_proto::id::{BootId, ObjectId, SessionId, TargetId};
use nuri_proto::layout::Layout;
use nuri_proto::op::Call;
use nuri_proto::op::data::{
    Capability, DataDelete, DataFlush, DataRead, DataWrite, Durability, FlushReply, Room,
    WriteReply,
};
use nuri_proto::op::member::MemberRead;
use nuri_rpc::{CallContext, Deadline, Started};
use nuri_stripe::locate::{Piece, short_pieces};

use crate::group::{Groups, RpcPort, Stripe};
use crate::map_cache::Cluster;
use crate::transfer::{Flow, Way};

/// Calls to targets on behalf of one session.
#[derive(Clone)]
pub struct DataPlane {
    pub(crate) cluster: Cluster,
    groups: Arc<Groups<RpcPort>>,
    pub(crate) flow: Arc<Flow>,
}

/// A read under way at one target.
struct Flight<'a> {
    piece: Piece,
    into: &'a mut [u8],
    started: Result<Started<'static>, Status>,
    /// Whom it asked and when.
    asked: Option<(TargetId, Duration)>,
}

/// The redundant stripe that a piece belongs to.
pub fn stripe_of(piece: &Piece) -> Stripe {
    Stripe { group: piece.group, shape: piece.shape, key: piece.key }
}

/// Targets that a message names.
const MOST_NAMED: usize = 8;
/// How long one deletion of many objects may take before it is tried again later.
const DELETE: Duration = Duration::from_secs(10);

impl DataPlane {
    pub fn new(cluster: &Cluster) -> DataPlane {
        let port = RpcPort::new(cluster);
        // A process that goes on with a session numbers its writes above what went before.
        let first = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let groups = Arc::new(Groups::new(port, first.as_micros() as u64));
        DataPlane { cluster: cluster.clone(), groups, flow: Arc::default() }
    }

    /// Stripes of redundant shapes.
    pub fn groups(&self) -> &Groups<RpcPort> {
        &self.groups
    }

    /// The flow buffers that move its bytes.
    pub fn flow(&self) -> &Flow {
        &self.flow
    }

    /// Sends a change on behalf of a session. Targets refuse changes of a session that ended.
    pub fn change<C: Call>(
        &self,
        session: SessionId,
        target: TargetId,
        call: &C,
        payload: &[u8],
        left: Duration,
    ) -> Result<C::Reply, Status> {
        self.groups().port().send_change(session, target, call, payload, left)
    }

    /// Asks a target something on behalf of a session, once.
    pub fn ask<C: Call>(
        &self,
        session: SessionId,
        target: TargetId,
        call: &C,
        patience: Duration,
    ) -> Result<C::Reply, Status> {
        self.groups().port().ask_for(session, target, call, patience)
    }

    pub fn deadline() -> Deadline {
        Deadline::after(REQUEST)
    }

    /// Writes one piece; returns which target holds it under which boot id.
    pub fn write(
        &self,
        session: SessionId,
        piece: &Piece,
        data: &[u8],
        (durability, room): (Durability, Room),
    ) -> Result<(TargetId, WriteReply), Status> {
        self.cluster.until(Self::deadline(), |left| {
            let target = self.cluster.member(piece.group)?;
            let (key, offset) = (piece.key, piece.offset);
            let capability = Capability::default();
            let call = DataWrite { target, key, offset, durability, room, capability };
            Ok((target, self.change(session, target, &call, data, left)?))
        })
    }

    fn read_call(&self, piece: &Piece) -> Result<DataRead, Status> {
        let target = self.cluster.member(piece.group)?;
        let (key, offset, len) = (piece.key, piece.offset, piece.len);
        Ok(DataRead { target, key, offset, len, capability: Capability::default() })
    }

    fn read_piece(&self, piece: &Piece, into: &mut [u8], end: Deadline) -> Result<(), Status> {
        if piece.shape.is_redundant() {
            let end = self.groups.now() + end.left();
            return self.groups.read_until(&stripe_of(piece), piece.place, piece.offset, into, end);
        }
        self.cluster.until(end, |left| {
            let call = self.read_call(piece)?;
            let peer = self.cluster.target(call.target)?;
            let (_, len) = peer.call(CallContext::default(), &call, &[], into, left)?;
            if len == into.len() { Ok(()) } else { Err(Status::MALFORMED) }
        })
    }

    /// Reads a range of an object into `out`, from all targets at once.
    ///
    /// # Errors
    /// The first piece's that failed.
    pub fn read(
        &self,
        layout: &Layout,
        object: ObjectId,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), Status> {
        self.read_until(layout, object, offset, out, Self::deadline())
    }

    /// As [`DataPlane::read`], but gives up at an earlier time.
    ///
    /// # Errors
    /// As [`DataPlane::read`].
    pub fn read_until(
        &self,
        layout: &Layout,
        object: ObjectId,
        offset: u64,
        out: &mut [u8],
        end: Deadline,
    ) -> Result<(), Status> {
        let bytes = out.len() as u64;
        self.flow.carry(Way::Read, bytes, || self.read_pieces(layout, object, offset, out, end))
    }

    fn read_pieces(
        &self,
        layout: &Layout,
        object: ObjectId,
        offset: u64,
        out: &mut [u8],
        end: Deadline,
    ) -> Result<(), Status> {
        let (range, buffer) = ((offset, out.len() as u64), self.flow.buffer(Way::Read));
        let mut todo = short_pieces(layout, object, range, buffer);
        let most = self.flow.reads();
        let mut rest = out;
        loop {
            let mut flights: Vec<Flight<'_>> = Vec::new();
            while flights.len() < most
                && let Some(piece) = todo.next()
            {
                let (into, tail) = std::mem::take(&mut rest).split_at_mut(piece.len as usize);
                rest = tail;
                if flights.is_empty() && rest.is_empty() {
                    return self.read_piece(&piece, into, end);
                }
                flights.push(self.start_read(piece, into));
            }
            if flights.is_empty() {
                return if rest.is_empty() { Ok(()) } else { Err(Status::FBIG) };
            }
            for flight in flights {
                self.land(flight, end)?;
            }
        }
    }

    fn start_read<'a>(&self, piece: Piece, into: &'a mut [u8]) -> Flight<'a> {
        if piece.shape.is_redundant() {
            let call = self.groups.first_read(&stripe_of(&piece), &piece);
            let asked = call.as_ref().ok().map(|call| (call.target, self.groups.now()));
            let started = call.and_then(|call| {
                let peer = self.cluster.target(call.target)?;
                peer.start(CallContext::default(), &call, &[], MEMBER_TIMEOUT)
            });
            return Flight { piece, into, started, asked };
        }
        let started = self.read_call(&piece).and_then(|call| {
            let peer = self.cluster.target(call.target)?;
            peer.start(CallContext::default(), &call, &[], REQUEST)
        });
        Flight { piece, into, started, asked: None }
    }

    fn land(&self, flight: Flight<'_>, end: Deadline) -> Result<(), Status> {
        let Flight { piece, into, started, asked } = flight;
        if piece.shape.is_redundant() {
            let len = into.len();
            let outcome = started.and_then(|s| s.finish::<MemberRead>(into));
            if let (Err(Status::UNREACHABLE), Some((target, when))) = (&outcome, asked) {
                self.groups.note_unreachable(target, when);
            }
            return match outcome {
                Ok((_, got)) if got == len => Ok(()),
                // Whatever it is, there are other ways to these bytes.
                _ => self.read_piece(&piece, into, end),
            };
        }
        match started.and_then(|s| s.finish::<DataRead>(into)) {
            Ok((_, len)) if len == into.len() => Ok(()),
            Ok(_) => Err(Status::MALFORMED),
            Err(status) if status.retry() == nuri_proto::status::RetryClass::Later => {
                self.read_piece(&piece, into, end)
            }
            Err(status) => Err(status),
        }
    }

    /// The targets that bytes of an object lie on, in words for people.
    pub fn places(&self, layout: &Layout, object: ObjectId, range: (u64, u64)) -> String {
        let groups: BTreeSet<_> =
            short_pieces(layout, object, range, u32::MAX).map(|piece| piece.group).collect();
        let found = groups.iter().filter_map(|group| self.cluster.group(*group));
        let targets: BTreeSet<_> =
            found.flat_map(|group| group.members).map(|m| m.target).collect();
        let named: Vec<_> = targets.iter().take(MOST_NAMED).map(ToString::to_string).collect();
        match (targets.len(), targets.len() - named.len()) {
            (0, _) => "no known target".into(),
            (1, _) => format!("target {}", named[0]),
            (_, 0) => format!("targets {}", named.join(", ")),
            (_, more) => format!("targets {} and {more} more", named.join(", ")),
        }
    }

    /// Makes what the target acknowledged durable; its boot id says whether it still had it.
    pub fn flush(&self, target: TargetId) -> Result<BootId, Status> {
        self.cluster.until(Self::deadline(), |left| {
            let peer = self.cluster.target(target)?;
            let call = DataFlush { target };
            let (reply, _): (FlushReply, _) =
                peer.call(CallContext::default(), &call, &[], &mut [], left)?;
            Ok(reply.boot)
        })
    }

    /// Deletes whole objects on the groups of their layouts. Returns the objects that are gone from
    /// all their targets. Repeating the call for the others is harmless.
    pub fn delete(&self, objects: &[(ObjectId, Layout)]) -> Vec<ObjectId> {
        let mut by_target: BTreeMap<TargetId, BTreeSet<ObjectId>> = BTreeMap::new();
        let mut left = HashSet::new();
        for (object, layout) in objects {
            for group in layout.components.iter().flat_map(|c| &c.groups) {
                let Some(group) = self.cluster.group(*group) else {
                    left.insert(*object);
                    continue;
                };
                for member in group.members {
                    by_target.entry(member.target).or_default().insert(*object);
                }
            }
        }
        for (target, objects) in by_target {
            let objects: Vec<_> = objects.into_iter().collect();
            if self.delete_at(target, &objects).is_err() {
                left.extend(objects);
            }
        }
        objects.iter().map(|(object, _)| *object).filter(|o| !left.contains(o)).collect()
    }

    fn delete_at(&self, target: TargetId, objects: &[ObjectId]) -> Result<(), Status> {
        let peer = self.cluster.target(target)?;
        let call = DataDelete { target, objects: objects.to_vec() };
        peer.call(CallContext::default(), &call, &[], &mut [], DELETE).map(|_| ())
    }
}
