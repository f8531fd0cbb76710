//! Calls about locks: the lock table in the server, its grace period and its events.
//!
//! The table is memory, and so are the outcomes in the reply slots: a restarted server knows
//! nothing of either. Sessions bring back what they held before anything else is served (rule
//! LOCK-4), and ask again for what they wait for. Nothing here waits for the disk or for another
//! client.

use nuri_proto::id::SessionId;
use nuri_proto::op::lock::{HeldLock, LockCancel, LockReply, LockSet, LockTest};
use nuri_proto::op::meta::Event;
use nuri_proto::op::{Call, Op};
use nuri_proto::{Status, clock, codec};
use nuri_rpc::{Reply, Request};
use nuri_rules::broken;

use crate::lock::Told;
use crate::namespace::schema::SlotRecord;
use crate::server::{Core, MetaServer};

impl MetaServer {
    /// Answers the calls of `op::lock`.
    pub(crate) fn serve_locks(&self, request: &Request<'_>) -> Reply {
        let outcome = match request.op {
            Op::LockSet => self.once(request, Self::lock_set),
            Op::LockTest => self.once(request, |_, core, session, call: &LockTest| {
                Ok(core.locks.test(session, call))
            }),
            Op::LockCancel => self.once(request, Self::lock_cancel),
            _ => Err(Status::NOTSUP),
        };
        match outcome {
            Ok(args) => Reply { status: Status::OK, args, payload: None },
            Err(status) => Reply::failed(status),
        }
    }

    /// Runs a call under the server's lock, once for each sequence of its slot.
    fn once<C: Call>(
        &self,
        request: &Request<'_>,
        run: impl FnOnce(&Self, &mut Core, SessionId, &C) -> Result<C::Reply, Status>,
    ) -> Result<Vec<u8>, Status> {
        let call = codec::decode::<C>(request.args)?;
        let (context, session) = (request.context, SessionId(request.context.session));
        let mut core = self.core.lock();
        self.hear(&mut core, session)?;
        if !broken!("lock_in_grace") {
            self.wait_grace(&mut core)?;
        }
        if context.sequence > 0
            && let Some(done) = self.enter_slot(&mut core, context)?
        {
            return Status(done.status).into_result().map(|()| done.reply);
        }
        // It may have ended while this waited.
        let known = core.sessions.contains_key(&session);
        let outcome =
            if known { run(self, &mut core, session, &call) } else { Err(Status::SESSION_GONE) };
        let outcome = outcome.and_then(|reply| codec::encode(&reply));
        if context.sequence > 0
            && let Some(s) = core.sessions.get_mut(&session)
        {
            s.busy.remove(&context.slot);
            let status = outcome.as_ref().map_or_else(|status| status.0, |_| 0);
            let reply = outcome.clone().unwrap_or_default();
            let record = SlotRecord { sequence: context.sequence, status, reply };
            s.slots.insert(context.slot, record);
            self.answered.notify_all();
        }
        outcome
    }

    fn lock_set(
        &self,
        core: &mut Core,
        session: SessionId,
        call: &LockSet,
    ) -> Result<LockReply, Status> {
        let (number, outcome, told) = core.locks.set(session, call)?;
        self.tell_locks(core, told);
        Ok(LockReply { number, outcome })
    }

    fn lock_cancel(
        &self,
        core: &mut Core,
        session: SessionId,
        call: &LockCancel,
    ) -> Result<Vec<bool>, Status> {
        let mut were = Vec::with_capacity(call.requests.len());
        for request in &call.requests {
            let (was, told) = core.locks.cancel(session, *request);
            were.push(was);
            self.tell_locks(core, told);
        }
        Ok(were)
    }

    /// Tells sessions the ends of their waits, the way that recalls go.
    pub(crate) fn tell_locks(&self, core: &mut Core, told: Vec<Told>) {
        for Told { session, end } in told {
            if let Some(session) = core.sessions.get_mut(&session) {
                session.push(Event::Lock(end));
            }
        }
    }

    /// Takes back what a session held before the restart; says of each whether it is held now.
    pub(crate) fn reclaim_locks(
        &self,
        core: &mut Core,
        session: SessionId,
        locks: &[HeldLock],
    ) -> Vec<bool> {
        // A late copy of the call must not bring back what was given up since.
        let reclaims = core.grace.as_ref().is_some_and(|g| g.waits_for(session));
        let mut take = |lock: &HeldLock| {
            core.locks.holds(session, lock) || (reclaims && core.locks.reclaim(session, lock))
        };
        locks.iter().map(&mut take).collect()
    }

    /// Lets those go on that wait behind others for long.
    pub(crate) fn relax_locks(&self, core: &mut Core) {
        let now = self.clock.monotonic();
        if now.saturating_sub(core.relaxed) >= clock::LOCK_RELAX {
            core.relaxed = now;
            let told = core.locks.relax();
            self.tell_locks(core, told);
        }
    }
}
