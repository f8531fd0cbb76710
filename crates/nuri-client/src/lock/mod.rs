//! Locks of programs. The client asks the metadata server, which parks those that must wait.
//!
//! A wait is also a record here. The front end gives the function to call at the end of the wait,
//! and no thread waits. The wait has the number that the front end gave to the request, so an
//! interruption names it by the same number. One worker gives up waits, asks again after a restart
//! of the server, and repeats what was not answered. Where the server handed a file over, the
//! client decides about its locks (`delegation.rs`). Another worker tells the server these locks
//! when it asks for them (`tell.rs`).

pub mod delegation;
pub mod record;
mod tell;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nuri_proto::Status;
use nuri_proto::clock::REQUEST;
use nuri_proto::id::Ino;
use nuri_proto::op::lock::{
    Deadlock, Granted, HeldLock, LockCancel, LockClass, LockEnd, LockHolder, LockMode, LockOutcome,
    LockReply, LockSet, LockTest, LockWait,
};
use nuri_proto::range_map::Span;
use nuri_rpc::Awake;
use nuri_rules::broken;
use parking_lot::{Condvar, Mutex};

use crate::journal::Journal;
use crate::session::MetaSession;
use delegation::Conflict;
use record::{Applied, Change, Closed, Done, LockKey, LockRecord, Wait};
use tell::{Decided, Tells};

/// What was not answered is tried again this often.
const AGAIN: Duration = Duration::from_secs(1);
/// Until the worker of events has noticed another server.
const NOTICE: Duration = Duration::from_millis(5);
/// From a close to the word that it was the last one.
const CLOSING: Duration = Duration::from_millis(100);
/// Waits given up in one call.
const CANCELS: usize = 4096;

/// The owner that asks for a lock, and the file.
#[derive(Clone, Copy, Debug)]
pub struct LockPlace {
    pub ino: Ino,
    /// The open file through which it asks.
    pub fh: u64,
    pub class: LockClass,
    pub owner: u64,
    pub span: Span,
    pub pid: u32,
}

impl LockPlace {
    fn key(&self) -> LockKey {
        LockKey { ino: self.ino, class: self.class, owner: self.owner }
    }
}

/// The locks of a client, and the calls that ask for them.
pub struct LockClient {
    session: Arc<MetaSession>,
    journal: Arc<Journal>,
    record: Mutex<LockRecord>,
    work: Mutex<Work>,
    wake: Condvar,
    tells: Tells,
    /// An open file with locks is gone.
    closed: Condvar,
    /// A lock was lost at some time: open files are to be looked at.
    losses: AtomicBool,
}

#[derive(Default)]
struct Work {
    /// Waits to give up.
    cancel: Vec<u64>,
    /// The server forgot all waits.
    ask_again: bool,
}

impl LockClient {
    pub(crate) fn new(session: Arc<MetaSession>, journal: Arc<Journal>) -> LockClient {
        let (record, work, wake, tells, closed, losses) = Default::default();
        let locks = LockClient { session, journal, record, work, wake, tells, closed, losses };
        locks.began(locks.session.standing().server_boot);
        locks
    }

    pub(crate) fn began(&self, boot: u64) {
        self.record.lock().began(boot);
    }

    /// See [`LockRecord::restarted`].
    pub(crate) fn restarted(&self, boot: u64) -> Vec<HeldLock> {
        let held = self.record.lock().restarted(boot);
        self.tells.wake();
        held
    }

    /// Takes over the restarted server's answer about the locks that this client reclaimed.
    pub(crate) fn reclaimed(&self, asked: &[HeldLock], held: &[bool]) {
        let mut record = self.record.lock();
        for (lock, _) in asked.iter().zip(held).filter(|(_, held)| !**held) {
            tracing::error!("client: a lock on inode {} is lost: another holds it", lock.ino);
            record.lose(lock);
            self.losses.store(true, Ordering::SeqCst);
        }
    }

    /// Asks the restarted server again for the locks that programs wait for, after it was told
    /// which are held.
    pub(crate) fn ask_again(&self) {
        self.work.lock().ask_again = true;
        self.wake.notify_all();
    }

    /// Tells programs that their locks are gone, because the session ended.
    pub(crate) fn session_ended(&self) {
        let (waits, lost) = self.record.lock().session_ended();
        self.tells.wake();
        self.losses.fetch_or(lost, Ordering::SeqCst);
        waits.into_iter().for_each(|wait| (wait.done)(Err(Status::IO)));
    }

    /// Notes that a wait ended at the server. A repeated message finds no such wait any more.
    pub(crate) fn ended(&self, end: LockEnd) {
        let mut record = self.record.lock();
        let Some(wait) = record.take_wait(end.request) else { return };
        let (span, mode, number) = (wait.span, Some(wait.mode), end.number);
        let outcome = match end.granted {
            Granted::Yes => {
                let change = Some(Change { span, mode, number });
                record.apply(wait.key, wait.generation, number, change);
                Ok(())
            }
            Granted::Deadlock => {
                self.changed_nothing(&mut record, wait.key);
                Err(Status::DEADLK)
            }
        };
        record.finish(wait.key);
        drop(record);
        (wait.done)(outcome);
    }

    /// The kernel tells that an open file is gone only after `close` has returned: who was refused
    /// may have been refused for a lock that went with it. Whether there was anything to wait for.
    fn wait_for_closes(&self, place: &LockPlace) -> bool {
        let start = Instant::now();
        let mut record = self.record.lock();
        let mut has_waited = false;
        while let Some(fh) = record.closing_beside(place.ino, place.fh) {
            has_waited = true;
            while record.is_closing(fh) && start.elapsed() < CLOSING {
                self.closed.wait_for(&mut record, CLOSING);
            }
            // A copy of the descriptor is open.
            record.not_closing(fh);
        }
        has_waited
    }

    /// A call or wait of the owner ended and changed nothing.
    fn changed_nothing(&self, record: &mut LockRecord, key: LockKey) {
        let is_lost = record.changed_nothing(key);
        self.losses.fetch_or(is_lost, Ordering::SeqCst);
    }

    fn cancel(&self, ticket: u64) {
        self.work.lock().cancel.push(ticket);
        self.wake.notify_all();
    }

    fn end(&self, ticket: u64, outcome: Result<(), Status>) {
        let mut record = self.record.lock();
        let Some(wait) = record.take_wait(ticket) else { return };
        if outcome.is_err() {
            self.changed_nothing(&mut record, wait.key);
        }
        record.finish(wait.key);
        drop(record);
        (wait.done)(outcome);
    }
}

/// Whether a status says that nothing was done.
fn is_refusal(status: Status) -> bool {
    [Status::DEADLK, Status::NOLCK, Status::INVAL, Status::SESSION_GONE].contains(&status)
}

impl LockClient {
    /// Asks until the answer is one of the present server. `then` sees it before anybody can learn
    /// of another server.
    fn set_lock(
        &self,
        key: LockKey,
        generation: u64,
        call: &LockSet,
        then: impl Fn(&mut LockRecord, LockReply),
    ) -> Result<LockReply, Status> {
        let start = Awake::now();
        loop {
            self.record.lock().ask_for(key, call.span, call.mode);
            let told = self.journal.flush_of(call.ino);
            let reply = match told.and_then(|()| self.session.change(call, &[])) {
                Ok(reply) => reply,
                Err(status) => {
                    let mut record = self.record.lock();
                    if is_refusal(status) {
                        self.changed_nothing(&mut record, key);
                    } else {
                        record.doubt(key);
                    }
                    return Err(status);
                }
            };
            let (mut record, change) = (self.record.lock(), Change::of(call, reply));
            match record.apply(key, generation, reply.number, change) {
                Applied::Yes => {
                    if reply.outcome == LockOutcome::Refused && change.is_none() {
                        self.changed_nothing(&mut record, key);
                    }
                    if reply.delegated {
                        record.take_delegation(call.ino, reply.number);
                    }
                    then(&mut record, reply);
                    return Ok(reply);
                }
                Applied::AskAgain if start.elapsed() < REQUEST => {}
                // Held by nobody's knowledge: given up at the next close.
                _ => {
                    record.doubt(key);
                    return Err(Status::IO);
                }
            }
            drop(record);
            std::thread::sleep(NOTICE);
        }
    }

    /// Asks for a wait that is recorded already.
    fn ask_wait(&self, ticket: u64) {
        let Some((key, generation, call)) = self.record.lock().ask(ticket) else { return };
        let park = |record: &mut LockRecord, reply: LockReply| {
            if reply.outcome == LockOutcome::Waits
                && let Some(wait) = record.wait(ticket)
            {
                wait.parked = true;
            }
        };
        match self.set_lock(key, generation, &call, park) {
            Ok(reply) if reply.outcome == LockOutcome::Waits => {
                let mut record = self.record.lock();
                let interrupted = record.wait(ticket).is_some_and(|wait| wait.interrupted);
                let abandoned = record.is_abandoned();
                drop(record);
                if interrupted {
                    self.cancel(ticket);
                }
                if abandoned {
                    self.end(ticket, Err(Status::IO));
                }
            }
            Ok(_) => self.end(ticket, Ok(())),
            Err(status) => {
                if !is_refusal(status) {
                    self.cancel(ticket);
                }
                self.end(ticket, Err(status));
            }
        }
        self.record.lock().finish(key);
    }

    /// Gives everything up that the owner has on the file.
    fn close_owner(&self, key: LockKey) -> Result<(), Status> {
        if !self.record.lock().knows(key) {
            return Ok(());
        }
        let generation = match self.decide(key.ino, |record| record.close_here(key)) {
            Ok(Decided::Here(closed)) => return closed,
            Ok(Decided::There(mut record)) => {
                if !record.close(key)? {
                    return Ok(());
                }
                record.generation()
            }
            // The worker repeats it, once what was decided here is told.
            Err(status) => {
                let mut record = self.record.lock();
                if record.close(key)? {
                    let generation = record.generation();
                    record.closed(key, generation, Closed::Untold);
                }
                return Err(status);
            }
        };
        let told = self.set_lock(key, generation, &unlock(key), |_, _| {});
        let end = match told {
            Ok(_) => Closed::Told,
            Err(Status::SESSION_GONE) => Closed::SessionGone,
            Err(_) => Closed::Untold,
        };
        self.record.lock().closed(key, generation, end);
        // Its locks were lost before this client noticed.
        if end == Closed::SessionGone { Err(Status::IO) } else { Ok(()) }
    }

    /// The worker: gives up waits, asks again and repeats calls, for as long as the client lives.
    pub(crate) fn run(&self) {
        while !self.session.stopping() {
            let (cancel, ask_again) = {
                let mut work = self.work.lock();
                if work.cancel.is_empty() && !work.ask_again {
                    self.wake.wait_for(&mut work, AGAIN);
                }
                let some = work.cancel.len().min(CANCELS);
                let cancel: Vec<_> = work.cancel.drain(..some).collect();
                (cancel, std::mem::take(&mut work.ask_again))
            };
            if ask_again {
                self.ask_all_again();
            }
            if !cancel.is_empty() {
                self.cancel_waits(cancel);
            }
            self.close_stale();
        }
    }

    fn ask_all_again(&self) {
        let parked = self.record.lock().parked();
        for ticket in parked {
            let interrupted = self.record.lock().wait(ticket).is_some_and(|wait| {
                wait.parked = false;
                wait.interrupted
            });
            if interrupted {
                // The new server has not heard of it.
                self.end(ticket, Err(Status::INTR));
            } else {
                self.ask_wait(ticket);
            }
        }
    }

    fn cancel_waits(&self, requests: Vec<u64>) {
        match self.session.change(&LockCancel { requests: requests.clone() }, &[]) {
            Ok(were) => {
                for (ticket, _) in requests.into_iter().zip(were).filter(|(_, waited)| *waited) {
                    self.end(ticket, Err(Status::INTR));
                }
            }
            Err(Status::SESSION_GONE) => {}
            Err(_) => {
                std::thread::sleep(AGAIN);
                self.work.lock().cancel.extend(requests);
            }
        }
    }

    /// Closes that the server did not answer.
    fn close_stale(&self) {
        let stale = self.record.lock().stale();
        for key in stale {
            if self.session.change(&unlock(key), &[]).is_ok() {
                self.record.lock().refreshed(key);
            }
        }
    }
}

fn outcome_of(outcome: LockOutcome) -> Result<(), Status> {
    if outcome == LockOutcome::Done { Ok(()) } else { Err(Status::AGAIN) }
}

fn unlock(key: LockKey) -> LockSet {
    let LockKey { ino, class, owner } = key;
    let (span, mode, pid, wait) = (Span::ALL, None, 0, LockWait::No);
    LockSet { ino, class, owner, span, mode, pid, wait }
}

impl LockClient {
    /// Sets or (`None`) gives up a lock without waiting for other holders.
    ///
    /// # Errors
    /// `AGAIN` where another holds it, `NOLCK`, `IO` for a lock that was lost.
    pub fn lock(&self, place: &LockPlace, mode: Option<LockMode>) -> Result<(), Status> {
        match self.lock_once(place, mode) {
            Err(Status::AGAIN) if self.wait_for_closes(place) => self.lock_once(place, mode),
            outcome => outcome,
        }
    }

    fn lock_once(&self, place: &LockPlace, mode: Option<LockMode>) -> Result<(), Status> {
        let key = place.key();
        if mode.is_none() && self.record.lock().tell_loss(key) {
            return Err(Status::IO);
        }
        if mode.is_none() && !self.record.lock().knows(key) {
            return Ok(());
        }
        let here = |record: &mut LockRecord| record.set_here(place, mode, Conflict::Refuses);
        let generation = match self.decide(place.ino, here)? {
            Decided::Here(decided) => return outcome_of(decided?),
            Decided::There(mut record) => record.begin(key, place.fh, place.pid)?,
        };
        let LockPlace { ino, class, owner, span, pid, .. } = *place;
        let call = LockSet { ino, class, owner, span, mode, pid, wait: LockWait::No };
        let outcome = self.set_lock(key, generation, &call, |_, _| {});
        self.record.lock().finish(key);
        outcome_of(outcome?.outcome)
    }

    /// Sets a lock and waits for other holders: `done` is called at its end, maybe at once.
    /// `ticket` is the front end's number of the request, for [`LockClient::interrupt`].
    pub fn lock_wait(
        &self,
        place: &LockPlace,
        mode: LockMode,
        deadlock: Deadlock,
        ticket: u64,
        done: impl FnOnce(Result<(), Status>) + Send + 'static,
    ) {
        let done: Done = Box::new(done);
        if self.record.lock().was_interrupted(ticket) {
            return done(Err(Status::INTR));
        }
        let here = |record: &mut LockRecord| record.set_here(place, Some(mode), Conflict::Waits);
        let mut record = match self.decide(place.ino, here) {
            Ok(Decided::There(record)) => record,
            Ok(Decided::Here(decided)) => return done(decided.and_then(outcome_of)),
            Err(status) => return done(Err(status)),
        };
        let (key, span, pid) = (place.key(), place.span, place.pid);
        // It may have been interrupted while the server was told what is held.
        let begun = match record.was_interrupted(ticket) {
            true => Err(Status::INTR),
            false => record.begin(key, place.fh, pid),
        };
        let generation = match begun {
            Ok(generation) => generation,
            Err(status) => {
                drop(record);
                return done(Err(status));
            }
        };
        let (parked, interrupted) = (false, false);
        let wait = Wait { key, span, mode, pid, deadlock, parked, interrupted, generation, done };
        record.add_wait(ticket, wait);
        drop(record);
        self.ask_wait(ticket);
    }

    /// Finds the owner that would be in the way of a byte-range lock.
    ///
    /// # Errors
    /// The server's, `IO` for an owner whose lock was lost.
    pub fn lock_test(
        &self,
        place: &LockPlace,
        mode: LockMode,
    ) -> Result<Option<LockHolder>, Status> {
        self.check_locks(place.fh)?;
        let (ino, owner, span) = (place.ino, place.owner, place.span);
        if let Decided::Here(holder) = self.decide(ino, |record| record.test_here(place, mode))? {
            return Ok(holder);
        }
        self.journal.flush_of(ino)?;
        self.session.call(&LockTest { ino, owner, span, mode })
    }

    /// Notes that a signal came for the request. Returns at once.
    pub fn interrupt(&self, ticket: u64) {
        if self.record.lock().interrupt(ticket) {
            self.cancel(ticket);
        }
    }

    /// Releases the byte-range locks of a process that closes one of its descriptors of the file.
    ///
    /// # Errors
    /// `IO` where they were lost before.
    pub fn close_locks(&self, ino: Ino, owner: u64) -> Result<(), Status> {
        self.close_owner(LockKey { ino, class: LockClass::Range, owner })
    }

    /// Notes that a process closes one of its descriptors of the open file, maybe the last one.
    pub fn note_closing(&self, ino: Ino, fh: u64) {
        self.record.lock().note_closing(ino, fh);
    }

    /// Releases all locks that belong to an open file that is gone, and no others.
    pub fn release_locks(&self, fh: u64) {
        let keys = self.record.lock().end_handle(fh);
        for key in keys {
            let _ = self.close_owner(key);
        }
        self.record.lock().not_closing(fh);
        self.closed.notify_all();
    }

    /// The place with an owner that no other open file can have: the kernel names owners by
    /// addresses that are used again. `is_of_open_file` tells whether an owner of byte ranges is
    /// the open file and not a process; it is asked where that matters.
    pub fn owned_place(
        &self,
        place: LockPlace,
        is_of_open_file: impl FnOnce() -> bool,
    ) -> LockPlace {
        let LockPlace { ino, fh, owner: named, .. } = place;
        if broken!("owner_is_an_address") {
            return place;
        }
        if place.class == LockClass::Flock {
            return LockPlace { owner: fh, ..place };
        }
        let known = self.record.lock().range_owner(ino, fh, named);
        let owner = match known {
            Some(owner) => owner,
            None if is_of_open_file() => {
                self.record.lock().rename(fh, named);
                fh
            }
            None => named,
        };
        LockPlace { owner, ..place }
    }

    /// Checks whether a program may go on using the open file.
    ///
    /// # Errors
    /// `IO` where a lock that was taken through it was lost.
    pub fn check_locks(&self, fh: u64) -> Result<(), Status> {
        let any = self.losses.load(Ordering::SeqCst);
        let lost = any && self.record.lock().lost_through(fh);
        if lost { Err(Status::IO) } else { Ok(()) }
    }

    /// Drops all waits, because the front end is gone and nobody can be answered any more.
    pub fn abandon_waits(&self) {
        let waits = self.record.lock().abandon();
        waits.into_iter().for_each(|ticket| self.end(ticket, Err(Status::IO)));
    }
}
