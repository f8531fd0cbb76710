//! Answers calls about locks: the lock table in the server, its grace period and its events.
//!
//! The table lies in memory, and so do the outcomes in the reply slots. A restarted server knows
//! nothing of either. Sessions first reclaim the locks that they held, before anything else is
//! served (rule LOCK-4). Then they ask again for the locks that they wait for. Nothing here waits
//! for the disk. A call waits for another client only where that client decides about the file's
//! locks by itself, until it has told them.

use std::time::Duration;

use nuri_proto::id::{Ino, SessionId};
use nuri_proto::op::lock::{
    HeldLock, LockCancel, LockHolder, LockOutcome, LockReply, LockSet, LockTell, LockTest,
};
use nuri_proto::op::meta::Event;
use nuri_proto::op::{Call, Op};
use nuri_proto::{Status, clock, codec};
use nuri_rpc::{Reply, Request};
use nuri_rules::broken;
use parking_lot::MutexGuard;

use crate::lock::Told;
use crate::namespace::schema::SlotRecord;
use crate::server::{Core, MetaServer, Recalled};

type Guard<'a> = MutexGuard<'a, Core>;

/// Who waits for locks to be told looks again after so long also where nobody told of a change.
const LOOK: Duration = Duration::from_millis(100);

impl MetaServer {
    /// Answers the calls of `op::lock`.
    pub(crate) fn serve_locks(&self, request: &Request<'_>) -> Reply {
        let outcome = match request.op {
            Op::LockSet => self.once(request, Self::lock_set),
            Op::LockTest => self.once(request, Self::lock_test),
            Op::LockTell => self.once(request, Self::lock_tell),
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
        run: impl FnOnce(&Self, &mut Guard<'_>, SessionId, &C) -> Result<C::Reply, Status>,
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
            self.answered.notify_all();
            // It was not carried out, and comes again.
            if outcome == Err(Status::RETRY) {
                return outcome;
            }
            let status = outcome.as_ref().map_or_else(|status| status.0, |_| 0);
            let reply = outcome.clone().unwrap_or_default();
            let record = SlotRecord { sequence: context.sequence, status, reply };
            s.slots.insert(context.slot, record);
        }
        outcome
    }

    fn lock_set(
        &self,
        core: &mut Guard<'_>,
        session: SessionId,
        call: &LockSet,
    ) -> Result<LockReply, Status> {
        self.wait_decisions(core, session, call.ino)?;
        let (number, outcome, told) = core.locks.set(session, call)?;
        self.tell_locks(core, told);
        let is_granted = outcome == LockOutcome::Done && call.mode.is_some();
        let delegated = is_granted && core.locks.delegate(call.ino, session, number);
        Ok(LockReply { number, outcome, delegated })
    }

    fn lock_test(
        &self,
        core: &mut Guard<'_>,
        session: SessionId,
        call: &LockTest,
    ) -> Result<Option<LockHolder>, Status> {
        self.wait_decisions(core, session, call.ino)?;
        Ok(core.locks.test(session, call))
    }

    /// Asks the client that decides about the file's locks for them, and waits until it told them
    /// or is gone.
    fn wait_decisions(
        &self,
        core: &mut Guard<'_>,
        session: SessionId,
        ino: Ino,
    ) -> Result<(), Status> {
        let start = self.clock.monotonic();
        while let Some(holder) = core.locks.decided_elsewhere(ino, session) {
            if broken!("decisions_not_awaited") {
                break;
            }
            let now = self.clock.monotonic();
            if let Some(recall) = core.locks.recall(ino)
                && let Some(holding) = core.sessions.get_mut(&holder)
            {
                holding.push(Event::LockRecall(recall));
                core.recalls.entry((holder, Recalled::Locks(ino))).or_insert(now);
            }
            if now.saturating_sub(start) > clock::REQUEST {
                return Err(Status::RETRY);
            }
            self.pause(core, LOOK)?;
            self.expire(core)?;
            self.hear(core, session)?;
        }
        Ok(())
    }

    fn lock_tell(
        &self,
        core: &mut Guard<'_>,
        session: SessionId,
        call: &LockTell,
    ) -> Result<(), Status> {
        let (was_decided, told) = core.locks.tell(session, call)?;
        self.tell_locks(core, told);
        if was_decided {
            core.recalls.remove(&(session, Recalled::Locks(call.ino)));
            self.wake();
        }
        Ok(())
    }

    fn lock_cancel(
        &self,
        core: &mut Guard<'_>,
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

    /// Sends sessions the ends of their waits, as events like recalls.
    pub(crate) fn tell_locks(&self, core: &mut Core, told: Vec<Told>) {
        for Told { session, end } in told {
            if let Some(session) = core.sessions.get_mut(&session) {
                session.push(Event::Lock(end));
            }
        }
    }

    /// Reclaims the locks that a session held before the restart. Returns for each one whether it
    /// is held now.
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

    /// Releases waits that have been behind others for long.
    pub(crate) fn relax_locks(&self, core: &mut Core) {
        let now = self.clock.monotonic();
        if now.saturating_sub(core.relaxed) >= clock::LOCK_RELAX {
            core.relaxed = now;
            let told = core.locks.relax();
            self.tell_locks(core, told);
        }
    }
}
