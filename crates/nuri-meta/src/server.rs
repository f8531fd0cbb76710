//! Runs operations: checks session and slot, takes leases, runs one transaction, and makes it
//! durable before the reply.
//!
//! One lock owns sessions, leases and counters. The server holds it while an operation reads and
//! changes the store's memory. It never holds it while something is written, or while it waits for
//! another client. Callers: the node's service (`nuri-node`), the simulator, tests.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nuri_io::clock::Clock;
use nuri_kv::embedded::Embedded;
use nuri_kv::engine::{Batch, CommitId, Engine};
use nuri_proto::clock::{GRACE, SESSION_RENEW};
use nuri_proto::id::{Ino, SessionId};
use nuri_proto::limit::MAX_SESSIONS;
use nuri_proto::op::Op;
use nuri_proto::op::log::{Apply, Children, Reserve, TakeDirectory};
use nuri_proto::op::meta::{
    Accessed, Acquire, Event, Events, EventsReply, Extend, GetAttr, GroupUse, LayoutGet, LayoutSet,
    Link, Lookup, Make, MakeUnnamed, OrphanRelease, Publish, ReadDir, Release, Rename,
    SessionClose, SessionOpen, SessionReply, SetAttr, StatFs, SwapData, Time, TruncateDone, Unlink,
    XattrAll, XattrGet, XattrList, XattrRemove, XattrSet,
};
use nuri_proto::op::once::{CallsDone, ChangeOnce};
use nuri_proto::op::part::AcquirePart;
use nuri_proto::{Status, codec};
use nuri_rpc::{CallContext, Reply, Request, reply_to};
use nuri_rules::broken;
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::executor::pending_commits::PendingCommits;
use crate::group_use::LastUse;
use crate::lease::LeaseTable;
use crate::lease::directory_delegation::DirectoryDelegations;
use crate::lock::{Limits, LockTable};
use crate::namespace::deferred_unlink::DeferredUnlinks;
use crate::namespace::op::MetaOp;
use crate::namespace::recent_names::RecentNames;
use crate::namespace::schema::{self, Counters, Family, SessionRecord, SlotRecord};
use crate::namespace::txn::{ClusterView, Finished, Reads, Txn, kv_status};
use crate::session::eviction::Eviction;
use crate::session::{Session, SlotState};

/// Inodes with leases beyond which none is granted in passing.
const LEASE_LIMIT: usize = 400_000;

/// The metadata server of one shard.
pub struct MetaServer {
    pub(crate) engine: Arc<Embedded>,
    pub(crate) cluster: Arc<dyn ClusterView>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) core: Mutex<Core>,
    /// Leases or sessions changed: whoever waits looks again.
    pub(crate) changed: Condvar,
    /// A call ended: its repetition gets its answer.
    pub(crate) answered: Condvar,
    /// What was asked of groups last.
    last_use: LastUse,
    /// The store's disk has little room.
    full: AtomicBool,
    /// Calls wait for nothing (`executor/waits.rs`).
    pub(crate) is_polled: AtomicBool,
}

/// What a session was asked to give back.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Recalled {
    /// The lease of an inode.
    Lease(Ino),
    /// The decisions about a file's locks.
    Locks(Ino),
}

pub(crate) struct Core {
    pub(crate) leases: LeaseTable,
    pub(crate) locks: LockTable,
    /// When a session was asked last to give leases back.
    pub(crate) crowded: Duration,
    /// When waits for locks were relaxed last.
    pub(crate) relaxed: Duration,
    /// When it was looked at last how long others were silent.
    pub(crate) looked: Duration,
    pub(crate) counters: Counters,
    pub(crate) sessions: HashMap<SessionId, Session>,
    /// What sessions were asked to give back, and when.
    pub(crate) recalls: HashMap<(SessionId, Recalled), Duration>,
    pub(crate) grace: Option<Grace>,
    /// Sessions on their way out.
    pub(crate) evictions: HashMap<SessionId, Eviction>,
    /// Admission lists published by this server.
    pub(crate) lists: u64,
    /// What operations read waits for these commits.
    pub(crate) pending_commits: PendingCommits,
    pub(crate) deferred: DeferredUnlinks,
    pub(crate) recent: RecentNames,
    pub(crate) turns: DirectoryDelegations,
}

/// The grace period after a restart: nothing is served before every known session came back or is
/// gone.
pub(crate) struct Grace {
    pub(crate) until: Duration,
    waiting: HashSet<SessionId>,
}

impl Grace {
    /// Whether the session has not reclaimed everything yet.
    pub(crate) fn waits_for(&self, session: SessionId) -> bool {
        self.waiting.contains(&session)
    }

    /// Notes that the session has reclaimed everything.
    pub(crate) fn came_back(&mut self, session: SessionId) {
        self.waiting.remove(&session);
    }
}

impl MetaServer {
    /// Opens the namespace in `engine`. The first time, it creates the root directory. Known
    /// sessions have a grace period to reclaim what they held.
    ///
    /// # Errors
    /// [`Status::CORRUPT`] or [`Status::IO`] from the store.
    pub fn open(
        engine: Arc<Embedded>,
        cluster: Arc<dyn ClusterView>,
        clock: Arc<dyn Clock>,
    ) -> Result<MetaServer, Status> {
        let stored = engine.get(&schema::counters_key()).map_err(|e| kv_status(&e))?;
        let counters = match stored {
            Some(bytes) => schema::decode(&bytes)?,
            None => create_root(&engine, &*clock)?,
        };
        let now = clock.monotonic();
        let sessions = load_sessions(&*engine, now)?;
        let waiting: HashSet<_> = sessions.keys().copied().collect();
        let grace = (!waiting.is_empty()).then_some(Grace { until: now + GRACE, waiting });
        let leases = LeaseTable::new(engine.epoch(), LEASE_LIMIT);
        let core = Core {
            leases,
            locks: LockTable::new(engine.epoch(), Limits::default()),
            crowded: Duration::ZERO,
            relaxed: now,
            looked: now,
            counters,
            sessions,
            recalls: HashMap::new(),
            grace,
            evictions: HashMap::new(),
            lists: 0,
            pending_commits: PendingCommits::new(engine.last_commit()),
            deferred: DeferredUnlinks::default(),
            recent: RecentNames::default(),
            turns: DirectoryDelegations::default(),
        };
        let core = Mutex::new(core);
        let (changed, answered) = (Condvar::new(), Condvar::new());
        let (last_use, full, is_polled) = Default::default();
        let server = MetaServer {
            engine,
            cluster,
            clock,
            core,
            changed,
            answered,
            last_use,
            full,
            is_polled,
        };
        server.publish_sessions(&mut server.core.lock());
        if server.core.lock().grace.is_none() {
            server.reap_orphans(&mut server.core.lock())?;
        }
        Ok(server)
    }

    /// Sets whether the store's disk has little space: then operations that need space are refused.
    pub fn set_full(&self, full: bool) {
        self.full.store(full, Ordering::Relaxed);
    }

    fn is_full(&self) -> bool {
        self.full.load(Ordering::Relaxed) && !broken!("full_store_grows")
    }

    /// Answers the calls of `op::meta`.
    pub fn serve(&self, request: &Request<'_>) -> Reply {
        match request.op {
            Op::SessionOpen => reply_to::<SessionOpen>(request.args, |c| self.session_open(c)),
            Op::SessionClose => self.plain(request, |s, _: SessionClose| s.session_close(request)),
            Op::Events => self.plain(request, |s, c| s.events(request.context, &c)),
            Op::RecallDone => self.plain(request, |s, c| s.recall_done(request.context, &c)),
            Op::Downgrade => self.plain(request, |s, c| s.downgrade(request.context, &c)),
            Op::Reclaim => self.plain(request, |s, c| s.reclaim(request.context, c)),
            Op::Lookup => self.run::<Lookup>(request),
            Op::GetAttr => self.run::<GetAttr>(request),
            Op::SetAttr => self.run::<SetAttr>(request),
            Op::Make => self.run::<Make>(request),
            Op::Link => self.run::<Link>(request),
            Op::MakeUnnamed => self.run::<MakeUnnamed>(request),
            Op::Accessed => self.run::<Accessed>(request),
            Op::Unlink => self.run::<Unlink>(request),
            Op::Rename => self.run::<Rename>(request),
            Op::ReadDir => self.run::<ReadDir>(request),
            Op::Acquire => self.run::<Acquire>(request),
            Op::Release => self.run::<Release>(request),
            Op::Publish => self.run::<Publish>(request),
            Op::XattrGet => self.run::<XattrGet>(request),
            Op::XattrSet => self.run::<XattrSet>(request),
            Op::XattrAll => self.run::<XattrAll>(request),
            Op::XattrList => self.run::<XattrList>(request),
            Op::XattrRemove => self.run::<XattrRemove>(request),
            Op::LayoutSet => self.run::<LayoutSet>(request),
            Op::LayoutGet => self.run::<LayoutGet>(request),
            Op::Extend => self.run::<Extend>(request),
            Op::StatFs => self.run::<StatFs>(request),
            Op::OrphanRelease => self.run::<OrphanRelease>(request),
            Op::TruncateDone => self.run::<TruncateDone>(request),
            Op::Reserve => self.run::<Reserve>(request),
            Op::Apply => self.run::<Apply>(request),
            Op::AcquirePart => self.run::<AcquirePart>(request),
            Op::TakeDirectory => self.run::<TakeDirectory>(request),
            Op::Children => self.run::<Children>(request),
            Op::SwapData => self.run::<SwapData>(request),
            Op::ChangeOnce => self.run::<ChangeOnce>(request),
            Op::CallsDone => self.run::<CallsDone>(request),
            Op::GroupUse => {
                self.plain(request, |s, call: GroupUse| s.last_use.of(&*s.engine, call))
            }
            _ => self.serve_locks(request),
        }
    }

    fn plain<C: nuri_proto::op::Call>(
        &self,
        request: &Request<'_>,
        f: impl FnOnce(&Self, C) -> Result<C::Reply, Status>,
    ) -> Reply {
        reply_to::<C>(request.args, |call| f(self, call))
    }

    fn run<C: MetaOp>(&self, request: &Request<'_>) -> Reply {
        let outcome = codec::decode::<C>(request.args)
            .and_then(|call| self.execute(request.context, call, request.payload));
        match outcome {
            Ok(args) => Reply { status: Status::OK, args, payload: None },
            Err(status) => Reply::failed(status),
        }
    }

    /// Runs one operation; returns the encoded reply once it may be sent.
    pub(crate) fn execute<C: MetaOp>(
        &self,
        context: CallContext,
        call: C,
        payload: &[u8],
    ) -> Result<Vec<u8>, Status> {
        let session = SessionId(context.session);
        let mut core = self.core.lock();
        self.hear(&mut core, session)?;
        self.wait_grace(&mut core)?;
        if context.sequence > 0
            && let Some(done) = self.enter_slot(&mut core, context)?
        {
            let id = self.engine.last_commit();
            drop(core);
            self.durable(id)?;
            return Status(done.status).into_result().map(|()| done.reply);
        }
        let room = match call.grows() && self.is_full() {
            true => Err(Status::NOSPC),
            false => Ok(()),
        };
        let (id, outcome) = match room.and_then(|()| self.wait_leases(&mut core, session, &call)) {
            Ok(()) => self.transact(&mut core, context, call, payload),
            // What was read for the claims is not noted.
            Err(status) => (self.engine.last_commit(), Err(status)),
        };
        if context.sequence > 0 {
            if let Some(s) = core.sessions.get_mut(&session) {
                s.busy.remove(&context.slot);
            }
            self.answered.notify_all();
        }
        drop(core);
        self.durable(id)?;
        outcome
    }

    pub(crate) fn hear(&self, core: &mut Core, session: SessionId) -> Result<(), Status> {
        let now = self.clock.monotonic();
        let session = core.sessions.get_mut(&session).ok_or(Status::SESSION_GONE)?;
        session.heard = now;
        Ok(())
    }

    pub(crate) fn wait_grace(&self, core: &mut MutexGuard<'_, Core>) -> Result<(), Status> {
        loop {
            let Some(grace) = &core.grace else {
                return Ok(());
            };
            let left = grace.until.saturating_sub(self.clock.monotonic());
            if !self.end_grace(core)? {
                let pause = left.clamp(Duration::from_millis(10), Duration::from_millis(200));
                self.pause(core, pause)?;
            }
        }
    }

    /// Ends the grace period where it is over; says whether it has ended.
    fn end_grace(&self, core: &mut Core) -> Result<bool, Status> {
        self.discount_standstill(core);
        let Some(grace) = &mut core.grace else {
            return Ok(true);
        };
        let late = self.clock.monotonic() >= grace.until;
        if !grace.waiting.is_empty() && !late {
            return Ok(false);
        }
        // What a lost session holds is not known here: everybody waits until it is fenced.
        let lost: Vec<_> = std::mem::take(&mut grace.waiting).into_iter().collect();
        self.evict(core, &lost, "did not come back after the restart");
        self.expire(core)?;
        if !core.evictions.is_empty() {
            return Ok(false);
        }
        core.grace = None;
        self.reap_orphans(core)?;
        self.wake();
        Ok(true)
    }

    /// Wakes waiting calls, because leases or sessions changed.
    pub(crate) fn wake(&self) {
        self.changed.notify_all();
    }

    /// Takes the slot for this call, or returns what the call's first attempt answered.
    pub(crate) fn enter_slot(
        &self,
        core: &mut MutexGuard<'_, Core>,
        context: CallContext,
    ) -> Result<Option<SlotRecord>, Status> {
        let id = SessionId(context.session);
        loop {
            let session = core.sessions.get_mut(&id).ok_or(Status::SESSION_GONE)?;
            match session.slot(context.slot, context.sequence) {
                SlotState::Done(_) if broken!("slots_forget") => return Ok(None),
                SlotState::Done(record) => return Ok(Some(record)),
                SlotState::Overtaken => return Err(Status::MALFORMED),
                SlotState::New => {
                    session.busy.insert(context.slot, context.sequence);
                    return Ok(None);
                }
                SlotState::Running => {
                    self.answered.wait_for(core, Duration::from_millis(100));
                }
            }
        }
    }

    pub(crate) fn txn<'a>(&'a self, core: &'a mut Core, session: SessionId) -> Txn<'a> {
        let (wall, last) = (time_of(self.clock.wall()), core.counters.stamp);
        if last.is_beyond(wall) {
            let days = (last.sec - wall.sec) as f64 / 86_400.0;
            tracing::warn!("metadata: the clock was {days:.4} days ahead; stamps follow it back");
        }
        let now = last.next(wall);
        core.counters.stamp = now;
        Txn {
            reads: Reads::new(&*self.engine, &core.pending_commits),
            cluster: &*self.cluster,
            leases: &mut core.leases,
            counters: &mut core.counters,
            session,
            now,
            batch: Batch::new(),
            orphaned: Vec::new(),
            deferred: &mut core.deferred,
            lingers: Vec::new(),
            recent: &mut core.recent,
            named: Vec::new(),
            taken: None,
            offers: true,
            forgotten: Vec::new(),
        }
    }

    /// Returns the outcome and which commit must be durable before it is told.
    fn transact<C: MetaOp>(
        &self,
        core: &mut Core,
        context: CallContext,
        call: C,
        payload: &[u8],
    ) -> (CommitId, Result<Vec<u8>, Status>) {
        let before = core.counters;
        let mut txn = self.txn(core, SessionId(context.session));
        let ran = call.run(&mut txn, payload);
        // A refusal tells what was read as much as an answer does ("exists", "not empty").
        let needed = txn.needed();
        let forgotten = std::mem::take(&mut txn.forgotten);
        let finished = ran.and_then(|reply| Ok((codec::encode(&reply)?, txn.finish()?)));
        let outcome = finished.and_then(|(reply, finished)| {
            let own = self.conclude(core, context, &reply, finished)?;
            Ok((own, reply))
        });
        match outcome {
            Ok((own, reply)) => (own.max(needed), Ok(reply)),
            Err(status) => {
                core.counters = Counters { stamp: core.counters.stamp, ..before };
                if !broken!("forgotten_for_good") {
                    forgotten.into_iter().rev().for_each(|had| core.leases.remember(had));
                }
                (needed, Err(status))
            }
        }
    }

    /// Commits what an operation changed, with its reply in the slot, and tells who has to know.
    fn conclude(
        &self,
        core: &mut Core,
        context: CallContext,
        reply: &[u8],
        finished: Finished,
    ) -> Result<CommitId, Status> {
        let session = SessionId(context.session);
        let Finished { mut batch, orphaned, lingers, named, taken, found } = finished;
        let outcome = if context.sequence > 0 && !batch.is_empty() {
            let sequence = context.sequence;
            let record = SlotRecord { sequence, status: 0, reply: reply.to_vec() };
            batch.put(schema::slot_key(session, context.slot), schema::encode(&record)?);
            Some(record)
        } else {
            None
        };
        let id = self.commit(core, batch, &found)?;
        if let (Some(record), Some(s)) = (outcome, core.sessions.get_mut(&session)) {
            s.slots.insert(context.slot, record);
        }
        let now = self.clock.monotonic();
        lingers.into_iter().for_each(|ino| core.deferred.wait(ino, now));
        named.into_iter().for_each(|(dir, named)| core.recent.note(dir, named));
        if let Some(taken) = taken {
            core.turns.begin(taken, session, now);
        }
        for ino in orphaned {
            for other in core.leases.interested(ino).into_iter().filter(|s| *s != session) {
                if let Some(s) = core.sessions.get_mut(&other) {
                    s.push(Event::Unlinked(ino));
                }
            }
        }
        Ok(id)
    }

    fn session_open(&self, call: SessionOpen) -> Result<SessionReply, Status> {
        let now = self.clock.monotonic();
        let mut core = self.core.lock();
        // Nodes must be told of all in one answer.
        if core.sessions.len() >= MAX_SESSIONS {
            return Err(Status::BUSY);
        }
        core.counters.next_session += 1;
        let session = SessionId(core.counters.next_session);
        let record = SessionRecord { client: call.client.clone() };
        let mut batch = Batch::new();
        batch.put(schema::session_key(session), schema::encode(&record)?);
        batch.put(schema::counters_key(), schema::encode(&core.counters)?);
        let id = self.commit(&mut core, batch, &HashSet::new())?;
        core.sessions.insert(session, Session::new(call.client, now));
        let granted = core.leases.last();
        drop(core);
        self.durable(id)?;
        let (server_boot, server_time) = (self.engine.epoch(), time_of(self.clock.wall()));
        Ok(SessionReply { session, server_boot, server_time, granted })
    }

    fn session_close(&self, request: &Request<'_>) -> Result<(), Status> {
        let mut core = self.core.lock();
        self.end_session(&mut core, SessionId(request.context.session))?;
        let id = self.engine.last_commit();
        drop(core);
        self.durable(id)
    }

    fn events(&self, context: CallContext, call: &Events) -> Result<EventsReply, Status> {
        let id = SessionId(context.session);
        let mut core = self.core.lock();
        let until = self.clock.monotonic() + SESSION_RENEW;
        // Numbers of another boot say nothing of what this one has told.
        let same_boot = call.server_boot == self.engine.epoch();
        let acknowledged = if same_boot { call.acknowledged } else { 0 };
        let mut waited = false;
        loop {
            self.hear(&mut core, id)?;
            self.expire(&mut core)?;
            let session = core.sessions.get_mut(&id).ok_or(Status::SESSION_GONE)?;
            let (upto, events) = session.pending(acknowledged);
            let now = self.clock.monotonic();
            if !events.is_empty() || waited || now >= until || !same_boot {
                let (server_boot, server_time) = (self.engine.epoch(), time_of(self.clock.wall()));
                return Ok(EventsReply { server_boot, server_time, upto, events });
            }
            let told = session.told.clone();
            // Ends also where a test's clock stands still.
            waited = self.never_waits() || told.wait_for(&mut core, until - now).timed_out();
        }
    }

    fn reap_orphans(&self, core: &mut Core) -> Result<(), Status> {
        let prefix = schema::family_prefix(Family::Orphan);
        let orphans = self.engine.scan(&prefix, &prefix, usize::MAX).map_err(|e| kv_status(&e))?;
        let ino = |(key, _): (Vec<u8>, _)| schema::key_id(&key).map(Ino).ok_or(Status::CORRUPT);
        let inos = orphans.into_iter().map(ino).collect::<Result<Vec<_>, _>>()?;
        self.reap_all(core, SessionId(0), &inos)
    }

    /// The open sessions: (id, client).
    pub fn sessions(&self) -> Vec<(SessionId, String)> {
        let core = self.core.lock();
        core.sessions.iter().map(|(id, s)| (*id, s.client.clone())).collect()
    }

    /// Housekeeping that must happen also when nobody calls: expiry and the end of grace.
    ///
    /// # Errors
    /// As the store's.
    pub fn tick(&self) -> Result<(), Status> {
        let mut core = self.core.lock();
        self.end_grace(&mut core)?;
        self.relax_locks(&mut core);
        self.shed_leases(&mut core);
        self.end_deferred(&mut core)?;
        self.expire(&mut core)
    }
}

fn time_of(wall: Duration) -> Time {
    Time { sec: wall.as_secs() as i64, nsec: wall.subsec_nanos() }
}

fn create_root(engine: &Embedded, clock: &dyn Clock) -> Result<Counters, Status> {
    let wall = clock.wall();
    let now = Time { sec: wall.as_secs() as i64, nsec: wall.subsec_nanos() };
    let root = schema::Inode::new_directory(Ino::ROOT, Ino::ROOT, 0o755, now);
    let counters = Counters { next_ino: Ino::ROOT.0, inodes: 1, stamp: now, ..Counters::default() };
    let mut batch = Batch::new();
    batch.put(schema::inode_key(Ino::ROOT), schema::encode(&root)?);
    batch.put(schema::counters_key(), schema::encode(&counters)?);
    let committed = engine.commit(batch).and_then(|id| engine.wait_durable(id));
    committed.map_err(|e| kv_status(&e))?;
    Ok(counters)
}

fn load_sessions(
    engine: &dyn Engine,
    now: Duration,
) -> Result<HashMap<SessionId, Session>, Status> {
    let all = |family| {
        let prefix = schema::family_prefix(family);
        engine.scan(&prefix, &prefix, usize::MAX).map_err(|e| kv_status(&e))
    };
    let mut sessions = HashMap::new();
    for (key, value) in all(Family::Session)? {
        let id = schema::key_id(&key).ok_or(Status::CORRUPT)?;
        let record: SessionRecord = schema::decode(&value)?;
        sessions.insert(SessionId(id), Session::new(record.client, now));
    }
    for (key, value) in all(Family::Slot)? {
        let id = schema::key_id(&key).ok_or(Status::CORRUPT)?;
        let slot = schema::key_tail(&key).try_into().map_err(|_| Status::CORRUPT)?;
        if let Some(session) = sessions.get_mut(&SessionId(id)) {
            session.slots.insert(u32::from_be_bytes(slot), schema::decode(&value)?);
        }
    }
    Ok(sessions)
}
