//! The way to the server. Calls and answers get lost, a call that was sent once arrives again much
//! later, and the server loses power in the middle.

use nuri_proto::Status;
use nuri_proto::codec;
use nuri_proto::id::SessionId;
use nuri_proto::op::{Call, Op};
use nuri_rpc::CallContext;

use super::World;
use super::client::Slot;
use crate::check::{Wrong, wrong};

/// Copies of calls that may still arrive.
const MOST_LATE: usize = 24;

/// A copy on its way.
#[derive(Clone)]
pub struct Late {
    op: Op,
    context: CallContext,
    args: Vec<u8>,
    payload: Vec<u8>,
}

/// What came back of a call: nothing, an answer or a refusal.
pub type Back<T> = Result<Option<Result<T, Status>>, Wrong>;

impl World {
    /// A call in the session of a client.
    pub fn ask<C: Call>(&mut self, client: usize, call: &C) -> Back<C::Reply> {
        let session = self.clients[client].session;
        self.send(session, None, call, &[])
    }

    pub fn send<C: Call>(
        &mut self,
        session: SessionId,
        slot: Option<Slot>,
        call: &C,
        payload: &[u8],
    ) -> Back<C::Reply> {
        let (number, sequence) = slot.map_or((0, 0), |slot| (slot.number, slot.sequence));
        let context = CallContext { session: session.0, slot: number, sequence, epoch: 0 };
        let args = codec::encode(call).map_err(|e| wrong!("encode: {e}"))?;
        let late = Late { op: C::OP, context, args, payload: payload.to_vec() };
        if self.arrive_late()? {
            return Ok(None);
        }
        if self.is_faulty && self.rng.one_in(self.crash_every) {
            self.meta.fail_soon(&mut self.rng);
        }
        if self.is_lost() {
            self.keep(late);
            return Ok(None);
        }
        if self.rng.one_in(4) {
            self.keep(late.clone());
        }
        let Some(reply) = self.deliver(&late)? else { return Ok(None) };
        // Somebody's end may be part of the answer: what he left is looked at first.
        let is_unheard = self.notice() || self.is_lost();
        if self.is_faulty && self.rng.one_in(4 * self.crash_every) {
            self.crash()?;
        }
        if is_unheard {
            return Ok(None);
        }
        Ok(Some(match reply.status {
            Status::OK => codec::decode(&reply.args),
            status => Err(status),
        }))
    }

    fn is_lost(&mut self) -> bool {
        let is_lost = self.is_faulty && self.loss > 0 && self.rng.one_in(self.loss);
        self.report.lost += u64::from(is_lost);
        is_lost
    }

    fn keep(&mut self, late: Late) {
        if self.is_faulty {
            self.late.push(late);
        }
        if self.late.len() > MOST_LATE {
            self.late.remove(0);
        }
    }

    /// A copy of an earlier call may arrive; nobody hears the answer. As `notice`.
    fn arrive_late(&mut self) -> Result<bool, Wrong> {
        if self.late.is_empty() || !self.rng.one_in(6) {
            return Ok(false);
        }
        let at = self.rng.below(self.late.len() as u64) as usize;
        let late = self.late.remove(at);
        self.report.late += 1;
        self.deliver(&late)?;
        Ok(self.notice())
    }

    fn deliver(&mut self, call: &Late) -> Result<Option<nuri_rpc::Reply>, Wrong> {
        let reply = self.meta.serve(call.op, call.context, &call.args, &call.payload);
        if std::env::var_os("NURI_SIM_TRACE").is_some() {
            let (now, status) = (self.meta.now(), reply.as_ref().map(|reply| reply.status));
            eprintln!("{now:?} {:?} {:?}: {status:?}", call.op, call.context);
        }
        if reply.is_none() {
            self.crash()?;
        }
        Ok(reply)
    }

    /// The server loses power and starts again.
    pub fn crash(&mut self) -> Result<(), Wrong> {
        self.meta.crash(&mut self.rng)?;
        // What became of it only the server knew that is gone. A copy came by a connection to that
        // one, and none comes by another.
        self.late.retain(|late| late.op != Op::LockSet);
        self.started()
    }

    /// What every start needs.
    pub fn started(&mut self) -> Result<(), Wrong> {
        let server = self.meta.server().ok_or("no server")?;
        server.never_wait();
        Ok(())
    }

    /// Notes sessions that the server ended; says whether any of them leaves steps behind of which
    /// nobody knows how many were done.
    pub fn notice(&mut self) -> bool {
        let Some(server) = self.meta.server() else { return false };
        let open = server.sessions();
        let is_over = |id: SessionId| id.0 > 0 && !open.iter().any(|(session, _)| *session == id);
        let before = self.ghosts.len();
        for client in self.clients.iter_mut().filter(|c| !c.is_gone && is_over(c.session)) {
            client.is_gone = true;
            self.ghosts.push(std::mem::take(&mut client.undecided).into());
            self.report.evictions += 1;
        }
        for (_, left) in self.dead.extract_if(.., |(session, _)| is_over(*session)) {
            self.ghosts.push(left);
        }
        self.ghosts.retain(|left| !left.is_empty());
        self.ghosts.len() > before
    }
}
