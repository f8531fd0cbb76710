//! Fencing: which sessions' changes a node's targets accept, and until when.
//!
//! F1 A change is accepted only under a service lease, and only from a session that the admission
//!    list admits. The heartbeat renews the lease, which is counted from when the heartbeat was
//!    sent.
//! F2 A new list is in force only once no change that the old one admitted is still running. The
//!    lease that came with the list begins after that.
//! F3 A read is answered only if the lease still held after its bytes were taken.
//! F4 A client whose call was sent and got no answer repeats it under a higher *attempt* number.
//!    The first change of a higher attempt waits for those of lower attempts. After it, changes of
//!    lower attempts are refused. So what was left in a broken connection never comes after
//!    something newer.
//!
//! So the authority needs one of two facts: it heard that a list is in force here, or it has not
//! heard of this node for longer than a lease. Then nothing of a session outside the list will
//! happen any more.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nuri_io::clock::Clock;
use nuri_proto::Status;
use nuri_proto::clock::SERVICE;
use nuri_proto::id::SessionId;
use nuri_proto::op::cluster::Admitted;
use nuri_rules::broken;
use parking_lot::{Condvar, Mutex, RwLock, RwLockReadGuard};

/// The gate before all targets of a node.
pub struct Admission {
    clock: Arc<dyn Clock>,
    /// End of the service lease, milliseconds of the monotonic clock.
    until: AtomicU64,
    list: RwLock<Admitted>,
    attempts: Mutex<HashMap<SessionId, Attempts>>,
    ended: Condvar,
}

/// Changes of one session.
#[derive(Default)]
struct Attempts {
    highest: u64,
    /// How many run now, by attempt.
    running: BTreeMap<u64, usize>,
}

/// Held while a change runs: a new list, and a higher attempt, wait for it.
pub struct Admittance<'a> {
    admission: &'a Admission,
    session: SessionId,
    attempt: u64,
    _list: RwLockReadGuard<'a, Admitted>,
}

impl Drop for Admittance<'_> {
    fn drop(&mut self) {
        let mut attempts = self.admission.attempts.lock();
        let Some(own) = attempts.get_mut(&self.session) else { return };
        if let Some(running) = own.running.get_mut(&self.attempt) {
            *running -= 1;
            if *running == 0 {
                own.running.remove(&self.attempt);
                self.admission.ended.notify_all();
            }
        }
    }
}

impl Admission {
    /// Accepts nothing before the first [`Admission::renew`].
    pub fn new(clock: Arc<dyn Clock>) -> Admission {
        Admission {
            clock,
            until: AtomicU64::new(0),
            list: RwLock::default(),
            attempts: Mutex::default(),
            ended: Condvar::new(),
        }
    }

    /// Now, as `renew` wants it.
    pub fn now(&self) -> Duration {
        self.clock.monotonic()
    }

    /// A heartbeat sent at `sent` was answered, maybe with a newer list. Waits for changes that
    /// the old list admitted.
    pub fn renew(&self, sent: Duration, list: Option<Admitted>) {
        if let Some(list) = list {
            let mut current = self.list.write();
            if list.version > current.version {
                self.attempts.lock().retain(|session, _| list.admits(*session));
                *current = list;
            }
        }
        if self.version() > 0 {
            let until = (sent + SERVICE).as_millis() as u64;
            self.until.fetch_max(until, Ordering::SeqCst);
        }
    }

    /// Version of the list in force, 0 for none.
    pub fn version(&self) -> u64 {
        self.list.read().version
    }

    /// Whether the service lease holds.
    ///
    /// # Errors
    /// [`Status::RETRY`]: the caller repeats the call until the authority was heard again.
    pub fn check_lease(&self) -> Result<(), Status> {
        let now = self.clock.monotonic().as_millis() as u64;
        if now < self.until.load(Ordering::SeqCst) { Ok(()) } else { Err(Status::RETRY) }
    }

    /// Admits a change on behalf of `session`.
    ///
    /// # Errors
    /// [`Status::SESSION_GONE`] where the session is fenced; [`Status::RETRY`] without a lease, or
    /// where a higher attempt was seen.
    pub fn admit(&self, session: SessionId, attempt: u64) -> Result<Admittance<'_>, Status> {
        let list = self.list.read();
        self.check_lease()?;
        if !list.admits(session) && !broken!("no_fence") {
            return Err(Status::SESSION_GONE);
        }
        let mut attempts = self.attempts.lock();
        loop {
            let own = attempts.entry(session).or_default();
            if attempt < own.highest && !broken!("late_data") {
                return Err(Status::RETRY);
            }
            own.highest = own.highest.max(attempt);
            if own.running.first_key_value().is_none_or(|(lowest, _)| *lowest >= attempt) {
                *own.running.entry(attempt).or_default() += 1;
                return Ok(Admittance { admission: self, session, attempt, _list: list });
            }
            self.ended.wait(&mut attempts);
        }
    }
}

#[cfg(test)]
mod tests {
    use nuri_io::clock::ManualClock;

    use super::*;

    const OLD: SessionId = SessionId(3);
    const LIVE: SessionId = SessionId(5);

    fn list(version: u64, live: &[SessionId]) -> Option<Admitted> {
        Some(Admitted { version, horizon: SessionId(7), live: live.to_vec() })
    }

    fn admission() -> (Arc<ManualClock>, Admission) {
        let clock = Arc::new(ManualClock::default());
        clock.advance(Duration::from_secs(100));
        (clock.clone(), Admission::new(clock))
    }

    /// Catches `broken!("no_fence")`.
    #[test]
    fn a_fenced_session_changes_nothing() {
        let (_, admission) = admission();
        admission.renew(admission.now(), list(1, &[OLD, LIVE]));
        assert!(admission.admit(OLD, 0).is_ok());
        admission.renew(admission.now(), list(2, &[LIVE]));
        assert_eq!(admission.admit(OLD, 0).err(), Some(Status::SESSION_GONE));
        assert!(admission.admit(LIVE, 0).is_ok());
        assert!(admission.admit(SessionId(8), 0).is_ok(), "opened after the list was made");
        admission.renew(admission.now(), list(1, &[OLD, LIVE]));
        assert_eq!(admission.version(), 2, "a delayed older list changes nothing");
    }

    #[test]
    fn without_a_heartbeat_nothing_is_served() {
        let (clock, admission) = admission();
        assert_eq!(admission.admit(LIVE, 0).err(), Some(Status::RETRY));
        admission.renew(admission.now(), None);
        assert_eq!(admission.check_lease(), Err(Status::RETRY), "a lease without a list");
        let sent = admission.now();
        clock.advance(SERVICE / 2);
        admission.renew(sent, list(1, &[LIVE]));
        assert!(admission.admit(LIVE, 0).is_ok());
        clock.advance(SERVICE / 2);
        assert_eq!(admission.admit(LIVE, 0).err(), Some(Status::RETRY), "counted from the sending");
        assert_eq!(admission.check_lease(), Err(Status::RETRY));
    }

    #[test]
    fn a_new_list_waits_for_changes_under_the_old_one() {
        let (_, admission) = admission();
        admission.renew(admission.now(), list(1, &[OLD]));
        let running = admission.admit(OLD, 0).unwrap();
        std::thread::scope(|scope| {
            let renewing = scope.spawn(|| admission.renew(admission.now(), list(2, &[])));
            std::thread::sleep(Duration::from_millis(30));
            assert!(!renewing.is_finished());
            drop(running);
            renewing.join().unwrap();
        });
        assert_eq!(admission.version(), 2);
    }

    /// Catches `broken!("late_data")`.
    #[test]
    fn what_is_left_of_a_lower_attempt_is_refused() {
        let (_, admission) = admission();
        admission.renew(admission.now(), list(1, &[LIVE, OLD]));
        let first = admission.admit(LIVE, 0).unwrap();
        std::thread::scope(|scope| {
            let again = scope.spawn(|| admission.admit(LIVE, 1).map(drop));
            std::thread::sleep(Duration::from_millis(30));
            assert!(!again.is_finished(), "the first one still runs");
            drop(first);
            again.join().unwrap().unwrap();
        });
        assert_eq!(admission.admit(LIVE, 0).err(), Some(Status::RETRY));
        assert!(admission.admit(OLD, 0).is_ok(), "of another session");
    }
}
