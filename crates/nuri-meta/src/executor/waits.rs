//! Waits inside a call, for leases that are in its way or for the end of grace.
//!
//! A program that runs the server and its clients on one thread cannot wait. Then a call that would
//! wait sends its recalls and is answered `RETRY`. The caller asks again, as after a wait that took
//! too long.

use std::sync::atomic::Ordering;
use std::time::Duration;

use nuri_proto::Status;
use nuri_proto::clock::REQUEST;
use nuri_proto::id::{Ino, SessionId};
use nuri_proto::op::Op;
use nuri_proto::op::meta::{Event, LeaseMode, Recall};
use nuri_rules::broken;
use parking_lot::MutexGuard;

use crate::lease::{Claim, Turn};
use crate::namespace::op::MetaOp;
use crate::server::{Core, MetaServer, Recalled};

/// A reader lets writers go first that wait already, so long: who reads in a loop from several
/// mounts would keep them waiting. Longer only waits a writer whose holders do not answer.
const QUEUE: Duration = Duration::from_secs(1);

/// Whoever waits for leases looks again after so long also where nobody told of a change.
const LOOK: Duration = Duration::from_millis(100);

impl MetaServer {
    /// From now on no call waits.
    pub fn never_wait(&self) {
        self.is_polled.store(true, Ordering::Relaxed);
    }

    pub(crate) fn never_waits(&self) -> bool {
        self.is_polled.load(Ordering::Relaxed)
    }

    /// Waits until leases or sessions changed, at most so long.
    pub(crate) fn pause(
        &self,
        core: &mut MutexGuard<'_, Core>,
        at_most: Duration,
    ) -> Result<(), Status> {
        if self.never_waits() {
            return Err(Status::RETRY);
        }
        self.changed.wait_for(core, at_most);
        Ok(())
    }

    /// Recalls the leases in the operation's way, and waits until they are gone.
    pub(crate) fn wait_leases<C: MetaOp>(
        &self,
        core: &mut MutexGuard<'_, Core>,
        session: SessionId,
        call: &C,
    ) -> Result<(), Status> {
        let (mut waiting, turn) = (Vec::new(), core.leases.turn(session));
        let outcome = self.wait_claims(core, call, turn, &mut waiting);
        if core.leases.end_wait(&waiting, turn) {
            self.changed.notify_all();
        }
        outcome
    }

    fn wait_claims<C: MetaOp>(
        &self,
        core: &mut MutexGuard<'_, Core>,
        call: &C,
        turn: Turn,
        waiting: &mut Vec<Claim>,
    ) -> Result<(), Status> {
        let (start, session) = (self.clock.monotonic(), turn.session);
        loop {
            let claims = call.claims(&self.txn(core, session))?;
            let waited = self.clock.monotonic() - start;
            // The others get no lease, or only one in passing.
            let queues = C::OP == Op::Acquire && waited < QUEUE;
            let (mut blocked, mut pause) = (false, LOOK);
            for claim in &claims {
                if C::OP == Op::TakeDirectory
                    && let Some(left) = self.has_to_queue(core, claim.ino, turn)
                {
                    (blocked, pause) = (true, pause.min(left));
                    continue;
                }
                blocked |= queues && core.leases.comes_after(*claim, turn);
                for (holder, recall) in core.leases.conflicts(*claim, session) {
                    blocked = true;
                    self.send_recall(core, holder, claim.ino, recall);
                }
            }
            if !blocked {
                return Ok(());
            }
            // What it names may change while it waits.
            core.leases.end_wait(waiting, turn);
            core.leases.begin_wait(&claims, turn);
            *waiting = claims;
            if waited > REQUEST {
                return Err(Status::RETRY);
            }
            self.pause(core, pause)?;
            self.expire(core)?;
            self.hear(core, session)?;
        }
    }

    /// How long who wants a directory for a turn waits before it looks again, where another one
    /// has it for a turn, or was there before.
    fn has_to_queue(&self, core: &Core, dir: Ino, turn: Turn) -> Option<Duration> {
        if broken!("turns_unordered") {
            return None;
        }
        let holds = |session| core.leases.held(dir, session) == Some(LeaseMode::Write);
        match core.turns.current(dir, self.clock.monotonic()) {
            Some((holder, _)) if holder == turn.session && holds(holder) => return None,
            Some((holder, left)) if holds(holder) => return Some(left),
            _ => {}
        }
        core.leases.is_awaited_before(dir, turn).then_some(LOOK)
    }

    fn send_recall(&self, core: &mut Core, holder: SessionId, ino: Ino, recall: Option<Recall>) {
        let now = self.clock.monotonic();
        // Else it was told already, or is being evicted.
        if let (Some(session), Some(recall)) = (core.sessions.get_mut(&holder), recall) {
            session.push(Event::Recall(recall));
            core.recalls.entry((holder, Recalled::Lease(ino))).or_insert(now);
        }
    }
}
