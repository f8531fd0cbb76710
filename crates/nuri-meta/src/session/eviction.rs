//! Evicts a session that is silent, that does not give leases back, or that did not return after a
//! restart.
//!
//! 1 the session is unknown from now on: its calls fail, it is not renewed; what it holds stays
//!   in the way of others
//! 2 targets accept no more changes of it (`ClusterView::admit`, `is_in_force`)
//! 3 its own clock ran out: it trusts no lease any more (counted from when it was heard last)
//! 4 its leases, slots and record are gone; the calls that waited for them go on
//!
//! A crash of this server before step 4 leaves a known session, which has its grace period.

use std::collections::HashSet;
use std::time::Duration;

use nuri_kv::engine::Batch;
use nuri_proto::Status;
use nuri_proto::clock::{RECALL, SESSION};
use nuri_proto::id::{Ino, SessionId};
use nuri_proto::op::cluster::Admitted;
use nuri_rules::broken;

use crate::namespace::op::reap;
use crate::namespace::schema;
use crate::namespace::txn::Finished;
use crate::server::{Core, MetaServer};
use crate::session::Session;

/// Orphans dropped in one batch.
const REAP_AT_ONCE: usize = 64;

/// The server looks much more often at how long others were silent.
const STANDSTILL: Duration = Duration::from_secs(2);

/// A session between steps 1 and 4.
pub(crate) struct Eviction {
    session: Session,
    /// Version of the first list without it.
    version: u64,
}

impl MetaServer {
    /// Tells targets which sessions live; returns the list's version.
    pub(crate) fn publish_sessions(&self, core: &mut Core) -> u64 {
        core.lists += 1;
        // Above every version of an earlier server.
        let version = (self.engine.epoch() << 32) + core.lists;
        let horizon = SessionId(core.counters.next_session);
        let live = core.sessions.keys().copied().collect();
        self.cluster.admit(Admitted { version, horizon, live });
        version
    }

    /// Evicts sessions that were silent too long or do not obey a recall. Ends sessions whose
    /// eviction is complete.
    pub(crate) fn expire(&self, core: &mut Core) -> Result<(), Status> {
        self.discount_standstill(core);
        let now = self.clock.monotonic();
        if core.grace.is_none() {
            let silent = |(id, s): (&SessionId, &Session)| {
                (now.saturating_sub(s.heard) > SESSION).then_some(*id)
            };
            let silent: Vec<_> = core.sessions.iter().filter_map(silent).collect();
            self.evict(core, &silent, "was silent too long");
            let stubborn = core.recalls.iter().filter(|(_, at)| now.saturating_sub(**at) > RECALL);
            let stubborn: HashSet<_> = stubborn.map(|((id, _), _)| *id).collect();
            let stubborn: Vec<_> = stubborn.into_iter().collect();
            self.evict(core, &stubborn, "did not give a lease back");
        }
        self.complete_evictions(core, now)
    }

    /// Discounts time in which this server itself stood still, because its machine was paused or
    /// its process stopped. Such time is no silence of a session: the messages of that time lie in
    /// the server's sockets.
    pub(crate) fn discount_standstill(&self, core: &mut Core) {
        let now = self.clock.monotonic();
        let stood = now.saturating_sub(core.looked);
        core.looked = now;
        if stood < STANDSTILL || broken!("own_standstill_is_silence") {
            return;
        }
        tracing::warn!("metadata: this process stood still for {:.1} s", stood.as_secs_f64());
        // Some may have been heard since.
        let later = |at: &mut Duration| *at = (*at + stood).min(now);
        core.sessions.values_mut().for_each(|session| later(&mut session.heard));
        core.recalls.values_mut().for_each(later);
        if let Some(grace) = &mut core.grace {
            grace.until += stood;
        }
    }

    /// Steps 1 and 2.
    pub(crate) fn evict(&self, core: &mut Core, ids: &[SessionId], why: &str) {
        let mut removed = Vec::new();
        for id in ids {
            if let Some(session) = core.sessions.remove(id) {
                tracing::error!("metadata: session {id} ({}) is evicted: it {why}", session.client);
                core.recalls.retain(|(holder, _), _| holder != id);
                let told = core.locks.drop_waits(*id);
                self.tell_locks(core, told);
                removed.push((*id, session));
            }
        }
        if removed.is_empty() {
            return;
        }
        let version = self.publish_sessions(core);
        for (id, session) in removed {
            core.evictions.insert(id, Eviction { session, version });
        }
        self.wake();
    }

    /// Steps 3 and 4.
    fn complete_evictions(&self, core: &mut Core, now: Duration) -> Result<(), Status> {
        let over = |e: &Eviction| {
            now.saturating_sub(e.session.heard) >= SESSION && self.is_fenced(e.version)
        };
        let over = core.evictions.iter().filter(|(_, e)| over(e)).map(|(id, _)| *id);
        for id in over.collect::<Vec<_>>() {
            if let Some(eviction) = core.evictions.remove(&id) {
                self.strike(core, id, &eviction.session)?;
            }
        }
        Ok(())
    }

    fn is_fenced(&self, version: u64) -> bool {
        self.cluster.is_in_force(version) || broken!("evict_unfenced")
    }

    /// Ends a session that gave up everything that it held and closes.
    pub(crate) fn end_session(&self, core: &mut Core, id: SessionId) -> Result<(), Status> {
        let Some(session) = core.sessions.remove(&id) else {
            return Ok(());
        };
        core.recalls.retain(|(holder, _), _| *holder != id);
        self.publish_sessions(core);
        self.strike(core, id, &session)
    }

    /// Removes everything that the session has here.
    fn strike(&self, core: &mut Core, id: SessionId, session: &Session) -> Result<(), Status> {
        let inos = core.leases.drop_session(id);
        let told = core.locks.drop_session(id);
        self.tell_locks(core, told);
        let mut batch = Batch::new();
        batch.delete(schema::session_key(id));
        session.slots.keys().for_each(|slot| batch.delete(schema::slot_key(id, *slot)));
        self.commit(core, batch, &HashSet::new())?;
        self.reap_all(core, id, &inos)?;
        self.wake();
        Ok(())
    }

    /// Lets go the inodes whose deferred unlink is due, unless somebody opened them.
    pub(crate) fn end_deferred(&self, core: &mut Core) -> Result<(), Status> {
        let over = core.deferred.over(self.clock.monotonic());
        self.reap_all(core, SessionId(0), &over)
    }

    /// Drops those of the inodes that are orphans nobody has open, in batches that the log takes.
    pub(crate) fn reap_all(
        &self,
        core: &mut Core,
        session: SessionId,
        inos: &[Ino],
    ) -> Result<(), Status> {
        for part in inos.chunks(REAP_AT_ONCE) {
            let mut txn = self.txn(core, session);
            for ino in part {
                reap(&mut txn, *ino)?;
            }
            let Finished { batch, lingers, found, .. } = txn.finish()?;
            self.commit(core, batch, &found)?;
            let now = self.clock.monotonic();
            lingers.into_iter().for_each(|ino| core.deferred.wait(ino, now));
        }
        Ok(())
    }
}
