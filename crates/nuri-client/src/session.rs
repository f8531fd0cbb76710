//! The client's session at the metadata server: calls with reply slots, events, and the reclaim of
//! leases and locks.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nuri_proto::Status;
use nuri_proto::clock::{
    CLIENT_LEASE, FAILURE_DETECTION, KERNEL_TTL, REQUEST, SESSION_RENEW, SUSPEND,
};
use nuri_proto::id::{Ino, SessionId};
use nuri_proto::limit::SESSION_SLOTS;
use nuri_proto::op::Call;
use nuri_proto::op::meta::{Attr, Events, EventsReply, SessionClose, SessionOpen, Time};
use nuri_rpc::{CallContext, Deadline};
use nuri_rules::broken;
use parking_lot::{Condvar, Mutex};

use crate::lease::state::GrantValidity;
use nuri_volume::Cluster;

/// Recalls remembered for inodes that are not known (yet).
const REMEMBER: Duration = Duration::from_secs(60);

/// A session. One per client.
pub(crate) struct MetaSession {
    cluster: Cluster,
    name: String,
    id: AtomicU64,
    pub(crate) server_boot: AtomicU64,
    /// Grants up to this number are void.
    void_grants: AtomicU64,
    /// Server's wall clock less our monotonic one, nanoseconds; and the latest stamp that was seen
    /// or given here.
    offset: AtomicI64,
    stamp: AtomicI64,
    start: Instant,
    renewed: Renewed,
    slots: Mutex<Vec<Slot>>,
    slot_free: Condvar,
    recalled: Mutex<HashMap<Ino, (u64, Instant)>>,
    stopping: AtomicBool,
}

/// Reply slots make a change happen once: the same number and sequence is the same change.
#[derive(Clone, Copy)]
pub(crate) struct Slot {
    number: u32,
    next: u64,
}

/// When the latest call was sent that renewed the session.
struct Renewed(Mutex<Instant>);

impl Renewed {
    fn new(sent: Instant) -> Renewed {
        Renewed(Mutex::new(sent))
    }

    /// A call was answered that was sent then. Answers may overtake each other.
    fn note(&self, sent: Instant) {
        let mut latest = self.0.lock();
        *latest = sent.max(*latest);
    }

    fn silence(&self) -> Duration {
        self.0.lock().elapsed()
    }
}

impl MetaSession {
    /// Opens a session.
    pub(crate) fn open(cluster: &Cluster, name: &str) -> Result<MetaSession, Status> {
        let slots = (0..SESSION_SLOTS).rev().map(|number| Slot { number, next: 1 }).collect();
        let session = MetaSession {
            cluster: cluster.clone(),
            name: name.into(),
            id: AtomicU64::new(0),
            server_boot: AtomicU64::new(0),
            void_grants: AtomicU64::new(0),
            offset: AtomicI64::new(0),
            stamp: AtomicI64::new(0),
            start: Instant::now(),
            renewed: Renewed::new(Instant::now()),
            slots: Mutex::new(slots),
            slot_free: Condvar::new(),
            recalled: Mutex::default(),
            stopping: AtomicBool::new(false),
        };
        session.renew()?;
        Ok(session)
    }

    /// Opens another session in place of one that ended.
    pub(crate) fn renew(&self) -> Result<(), Status> {
        let call = SessionOpen { client: self.name.clone() };
        let deadline = Deadline::after(REQUEST);
        let (sent, reply) = self.cluster.until(deadline, |left| {
            let meta = self.cluster.meta()?;
            let (context, sent) = (CallContext::default(), Instant::now());
            meta.call(context, &call, &[], &mut [], left).map(|(reply, _)| (sent, reply))
        })?;
        self.void_grants.store(reply.granted, Ordering::SeqCst);
        self.id.store(reply.session.0, Ordering::SeqCst);
        self.server_boot.store(reply.server_boot, Ordering::SeqCst);
        self.set_clock(reply.server_time);
        self.renewed.note(sent);
        Ok(())
    }

    /// Makes all grants void until another session is opened.
    pub(crate) fn void_grants(&self) {
        self.void_grants.store(u64::MAX, Ordering::SeqCst);
    }

    /// Which grants are valid now.
    pub(crate) fn standing(&self) -> GrantValidity {
        let void = self.void_grants.load(Ordering::SeqCst);
        GrantValidity { server_boot: self.server_boot.load(Ordering::SeqCst), void }
    }

    /// Stops the workers, because the client is about to end.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
    }

    pub(crate) fn stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Whether leases may be relied on now.
    pub(crate) fn trusts_leases(&self) -> bool {
        self.silence() < SUSPEND || broken!("trust_for_ever")
    }

    /// How long the kernel may keep what a lease covers.
    pub(crate) fn kernel_time(&self) -> Duration {
        if !self.trusts_leases() {
            return Duration::ZERO;
        }
        KERNEL_TTL.min(CLIENT_LEASE.saturating_sub(self.silence()))
    }

    /// How long ago the last call was sent that renewed the session.
    pub(crate) fn silence(&self) -> Duration {
        self.renewed.silence()
    }

    pub(crate) fn id(&self) -> SessionId {
        SessionId(self.id.load(Ordering::SeqCst))
    }

    /// The server's clock says so. Ours may be stepped: it is counted on from here.
    fn set_clock(&self, server_time: Time) {
        let offset = server_time.nanos() - self.start.elapsed().as_nanos() as i64;
        self.offset.store(offset, Ordering::SeqCst);
    }

    fn clock(&self) -> Time {
        let offset = self.offset.load(Ordering::Relaxed);
        Time::of_nanos(self.start.elapsed().as_nanos() as i64 + offset)
    }

    /// Now, by the server's clock, and later than all stamps that were seen or given here.
    pub(crate) fn now(&self) -> Time {
        let clock = self.clock();
        let next = |last| Some(Time::of_nanos(last).next(clock).nanos());
        let order = Ordering::SeqCst;
        let last = self.stamp.fetch_update(order, order, next).unwrap_or_default();
        Time::of_nanos(last).next(clock)
    }

    /// Notes the stamps of attributes that were shown here: stamps from now on are later.
    pub(crate) fn saw(&self, attr: &Attr) {
        // Programs set the other times as they like.
        if !attr.ctime.is_beyond(self.clock()) {
            self.stamp.fetch_max(attr.ctime.nanos(), Ordering::SeqCst);
        }
    }

    fn context(&self) -> CallContext {
        CallContext { session: self.id().0, ..CallContext::default() }
    }

    /// A call that may be repeated.
    pub(crate) fn call<C: Call>(&self, call: &C) -> Result<C::Reply, Status> {
        self.call_by(Deadline::after(REQUEST), call)
    }

    /// As [`MetaSession::call`], given up earlier.
    pub(crate) fn call_by<C: Call>(
        &self,
        deadline: Deadline,
        call: &C,
    ) -> Result<C::Reply, Status> {
        loop {
            let context = self.context();
            let attempt = |left| self.attempt(context, call, &[], left);
            let outcome = self.cluster.until(deadline, attempt);
            let gone = outcome.as_ref().is_err_and(|status| *status == Status::SESSION_GONE);
            if !gone || deadline.passed() {
                return outcome;
            }
            // The event worker is about to open another session.
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// A call that must not be done twice: it holds a reply slot until its outcome is known.
    pub(crate) fn change<C: Call>(&self, call: &C, payload: &[u8]) -> Result<C::Reply, Status> {
        let slot = self.take_slot();
        let outcome = self.change_in(slot, call, payload);
        self.free_slot(slot);
        outcome
    }

    /// Sends a change in its slot; once more if its outcome is not known.
    pub(crate) fn change_in<C: Call>(
        &self,
        slot: Slot,
        call: &C,
        payload: &[u8],
    ) -> Result<C::Reply, Status> {
        let context = CallContext { slot: slot.number, sequence: slot.next, ..self.context() };
        let attempt = |left| self.attempt(context, call, payload, left);
        self.cluster.until(Deadline::after(REQUEST), attempt)
    }

    /// One attempt. The server hears of the session by every call, so what it answered renews it.
    fn attempt<C: Call>(
        &self,
        context: CallContext,
        call: &C,
        payload: &[u8],
        timeout: Duration,
    ) -> Result<C::Reply, Status> {
        let (meta, sent) = (self.cluster.meta()?, Instant::now());
        let (reply, _) = meta.call(context, call, payload, &mut [], timeout)?;
        self.renewed.note(sent);
        Ok(reply)
    }

    /// Frees the slot of a change that is over.
    pub(crate) fn free_slot(&self, slot: Slot) {
        self.slots.lock().push(Slot { next: slot.next + 1, ..slot });
        self.slot_free.notify_one();
    }

    pub(crate) fn take_slot(&self) -> Slot {
        let mut slots = self.slots.lock();
        loop {
            match slots.pop() {
                Some(slot) => return slot,
                None => self.slot_free.wait(&mut slots),
            }
        }
    }

    /// Waits for events, one attempt.
    pub(crate) fn events(&self, acknowledged: u64) -> Result<EventsReply, Status> {
        let server_boot = self.standing().server_boot;
        let call = Events { acknowledged, server_boot };
        let reply = self.attempt(self.context(), &call, &[], SESSION_RENEW + FAILURE_DETECTION)?;
        self.set_clock(reply.server_time);
        Ok(reply)
    }

    /// Ends the session.
    pub(crate) fn close(&self) {
        if let Ok(meta) = self.cluster.meta() {
            let timeout = Duration::from_secs(2);
            let _ = meta.call(self.context(), &SessionClose {}, &[], &mut [], timeout);
        }
    }

    /// Notes a recall of an inode that is not known: a grant may still be on its way.
    pub(crate) fn note_recall(&self, ino: Ino, number: u64) {
        let mut recalled = self.recalled.lock();
        if recalled.len() > 1024 {
            recalled.retain(|_, (_, at)| at.elapsed() < REMEMBER);
        }
        recalled.insert(ino, (number, Instant::now()));
    }

    pub(crate) fn recalled(&self, ino: Ino) -> u64 {
        self.recalled.lock().get(&ino).map_or(0, |(number, _)| *number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_was_waited_for_long_takes_no_time_from_a_later_one() {
        let now = Instant::now();
        let renewed = Renewed::new(now - Duration::from_secs(9));
        renewed.note(now - Duration::from_secs(1));
        renewed.note(now - Duration::from_secs(5));
        assert!(renewed.silence() < Duration::from_secs(3));
    }
}
