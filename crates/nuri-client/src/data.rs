//! Bulk data: pieces to and from targets, with retries until the request's deadline.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nuri_proto::Status;
use nuri_proto::clock::REQUEST;
use nuri_proto::id::{BootId, ChunkKey, GroupId, ObjectId, SessionId, TargetId};
use nuri_proto::layout::Layout;
use nuri_proto::op::Call;
use nuri_proto::op::data::{
    Capability, DataDelete, DataExtents, DataFlush, DataPunch, DataRead, DataTruncate, DataWrite,
    Durability, FlushReply, WriteReply,
};
use nuri_rpc::{CallContext, Deadline, Started};
use nuri_stripe::locate::{Piece, pieces};

use crate::cluster::Cluster;

/// Calls to targets on behalf of one session.
#[derive(Clone)]
pub struct DataPlane {
    cluster: Cluster,
    /// Number of the attempt that changes are sent under: raised when one got no answer, so that
    /// what is left of it can be told from what comes later.
    attempt: Arc<AtomicU64>,
}

/// A read under way at one target.
struct Flight<'a> {
    piece: Piece,
    into: &'a mut [u8],
    started: Result<Started, Status>,
}

/// How long one deletion of many objects may take before it is tried again later.
const DELETE: Duration = Duration::from_secs(10);
/// Reads in flight at once of one request.
const FLIGHTS: usize = 8;

impl DataPlane {
    pub fn new(cluster: &Cluster) -> DataPlane {
        DataPlane { cluster: cluster.clone(), attempt: Arc::default() }
    }

    /// Sends a change on behalf of a session: targets refuse those of one that ended.
    fn change<C: Call>(
        &self,
        session: SessionId,
        target: TargetId,
        call: &C,
        payload: &[u8],
        left: Duration,
    ) -> Result<C::Reply, Status> {
        let attempt = self.attempt.load(Ordering::SeqCst);
        let context =
            CallContext { session: session.0, sequence: attempt, ..CallContext::default() };
        let outcome = self.cluster.target(target)?.call_once(context, call, payload, left);
        if let Err(Status::UNREACHABLE) = outcome {
            self.attempt.fetch_max(attempt + 1, Ordering::SeqCst);
        }
        outcome
    }

    fn deadline() -> Deadline {
        Deadline::after(REQUEST)
    }

    /// Writes one piece; says which target holds it under which boot id.
    pub(crate) fn write(
        &self,
        session: SessionId,
        piece: &Piece,
        data: &[u8],
        durability: Durability,
    ) -> Result<(TargetId, WriteReply), Status> {
        self.cluster.until(Self::deadline(), |left| {
            let target = self.cluster.member(piece.group)?;
            let (key, offset) = (piece.key, piece.offset);
            let capability = Capability::default();
            let call = DataWrite { target, key, offset, durability, capability };
            Ok((target, self.change(session, target, &call, data, left)?))
        })
    }

    fn read_call(&self, piece: &Piece) -> Result<DataRead, Status> {
        let target = self.cluster.member(piece.group)?;
        let (key, offset, len) = (piece.key, piece.offset, piece.len);
        Ok(DataRead { target, key, offset, len, capability: Capability::default() })
    }

    fn read_piece(&self, piece: &Piece, into: &mut [u8]) -> Result<(), Status> {
        self.cluster.until(Self::deadline(), |left| {
            let call = self.read_call(piece)?;
            let peer = self.cluster.target(call.target)?;
            let (_, len) = peer.call(CallContext::default(), &call, &[], into, left)?;
            if len == into.len() { Ok(()) } else { Err(Status::MALFORMED) }
        })
    }

    /// Reads a range of an object into `out`, all targets at once.
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
        let mut todo = pieces(layout, object, offset, out.len() as u64);
        let mut rest = out;
        loop {
            let mut flights: Vec<Flight<'_>> = Vec::new();
            while flights.len() < FLIGHTS
                && let Some(piece) = todo.next()
            {
                let (into, tail) = std::mem::take(&mut rest).split_at_mut(piece.len as usize);
                rest = tail;
                if flights.is_empty() && rest.is_empty() {
                    return self.read_piece(&piece, into);
                }
                let started = self.start_read(&piece);
                flights.push(Flight { piece, into, started });
            }
            if flights.is_empty() {
                return if rest.is_empty() { Ok(()) } else { Err(Status::FBIG) };
            }
            let mut outcome = Ok(());
            for flight in flights {
                outcome = outcome.and(self.land(flight));
            }
            outcome?;
        }
    }

    fn start_read(&self, piece: &Piece) -> Result<Started, Status> {
        let call = self.read_call(piece)?;
        let peer = self.cluster.target(call.target)?;
        peer.start(CallContext::default(), &call, &[], REQUEST)
    }

    fn land(&self, flight: Flight<'_>) -> Result<(), Status> {
        let Flight { piece, into, started } = flight;
        match started.and_then(|s| s.finish::<DataRead>(into)) {
            Ok((_, len)) if len == into.len() => Ok(()),
            Ok(_) => Err(Status::MALFORMED),
            Err(status) if status.retry() == nuri_proto::status::RetryClass::Later => {
                self.read_piece(&piece, into)
            }
            Err(status) => Err(status),
        }
    }

    /// Makes what the target acknowledged durable; its boot id says whether it still had it.
    pub(crate) fn flush(&self, target: TargetId) -> Result<BootId, Status> {
        self.cluster.until(Self::deadline(), |left| {
            let peer = self.cluster.target(target)?;
            let call = DataFlush { target };
            let (reply, _): (FlushReply, _) =
                peer.call(CallContext::default(), &call, &[], &mut [], left)?;
            Ok(reply.boot)
        })
    }

    /// Makes a range a hole, durably. Returns bytes given back.
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
            let chunk = component.chunk_size.bytes();
            let from = u32::try_from(size.div_ceil(chunk)).map_err(|_| Status::FBIG)?;
            for group in &component.groups {
                freed += self.truncate_group(session, *group, object, from)?;
            }
            let tail = size.div_ceil(chunk) * chunk - size;
            if tail > 0 {
                freed += self.punch(session, layout, object, size, tail)?;
            }
        }
        Ok(freed)
    }

    fn truncate_group(
        &self,
        session: SessionId,
        group: GroupId,
        object: ObjectId,
        from: u32,
    ) -> Result<u64, Status> {
        self.cluster.until(Self::deadline(), |left| {
            let target = self.cluster.member(group)?;
            let capability = Capability::default();
            let call = DataTruncate { target, object, from, capability };
            Ok(self.change(session, target, &call, &[], left)?.freed)
        })
    }

    /// Deletes whole objects on the groups of their layouts; returns those that are gone from all
    /// of their targets. Repeating it for the others is harmless.
    pub fn delete(&self, objects: &[(ObjectId, Layout)]) -> Vec<ObjectId> {
        let mut by_target: BTreeMap<TargetId, Vec<ObjectId>> = BTreeMap::new();
        let mut left = HashSet::new();
        for (object, layout) in objects {
            for group in layout.components.iter().flat_map(|c| &c.groups) {
                match self.cluster.member(*group) {
                    Ok(target) => by_target.entry(target).or_default().push(*object),
                    Err(_) => drop(left.insert(*object)),
                }
            }
        }
        for (target, objects) in by_target {
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

    /// Ranges of a chunk that hold data.
    pub(crate) fn extents(&self, group: GroupId, key: ChunkKey) -> Result<Vec<(u32, u32)>, Status> {
        self.cluster.until(Self::deadline(), |left| {
            let target = self.cluster.member(group)?;
            let peer = self.cluster.target(target)?;
            let call = DataExtents { target, key };
            let (reply, _) = peer.call(CallContext::default(), &call, &[], &mut [], left)?;
            Ok(reply)
        })
    }
}
