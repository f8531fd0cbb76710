//! Files whose locks one session decides about by itself.
//!
//! A session that locks a file is handed the file, if no other session holds or awaits a lock on
//! it. From then on the session grants and refuses locks without a call, and the table shows only
//! what the session held before. Before the server answers another session about the file, it asks
//! the holder. The holder tells which locks its programs hold (LOCK-7). A file that was taken back
//! stays with the server for a while, because handing it back and forth costs more than calls.

use std::collections::HashMap;

use nuri_proto::Status;
use nuri_proto::id::{Ino, SessionId};
use nuri_proto::limit::{DELEGATED_LOCKS, SESSION_LOCK_FILES};
use nuri_proto::op::lock::{HeldLock, LockClass, LockRecall, LockTell};
use nuri_proto::range_map::Span;
use nuri_rules::broken;

use super::file::LockFile;
use super::{FileKey, LockTable, Owner, Told};

const CLASSES: [LockClass; 2] = [LockClass::Range, LockClass::Flock];
/// After so many locks a file that was taken back may be handed over again.
const CONTENTION_BACKOFF: u32 = 64;
/// Files remembered that were taken back.
const MOST_CONTENDED: usize = 4096;

struct Delegated {
    session: SessionId,
    number: u64,
    is_recalled: bool,
}

/// The files whose locks sessions decide about; see the module's text.
#[derive(Default)]
pub(super) struct Delegations {
    files: HashMap<Ino, Delegated>,
    /// How many each session has.
    counts: HashMap<SessionId, usize>,
    contended: HashMap<Ino, u32>,
}

impl Delegations {
    fn insert(&mut self, ino: Ino, file: Delegated) {
        *self.counts.entry(file.session).or_default() += 1;
        self.files.insert(ino, file);
    }

    fn remove(&mut self, ino: Ino) -> Option<Delegated> {
        let file = self.files.remove(&ino)?;
        if let Some(count) = self.counts.get_mut(&file.session) {
            *count -= 1;
        }
        Some(file)
    }

    /// Files that the session has.
    fn count(&self, session: SessionId) -> usize {
        self.counts.get(&session).copied().unwrap_or_default()
    }

    /// Whether the file was taken back a short while ago. One more lock of it is over.
    fn is_contended(&mut self, ino: Ino) -> bool {
        let Some(left) = self.contended.get_mut(&ino) else { return false };
        *left -= 1;
        if *left == 0 {
            self.contended.remove(&ino);
        }
        true
    }

    pub(super) fn drop_session(&mut self, session: SessionId) {
        self.files.retain(|_, file| file.session != session);
        self.counts.remove(&session);
    }
}

impl LockTable {
    /// The other session that decides about the file's locks.
    pub fn decided_elsewhere(&self, ino: Ino, session: SessionId) -> Option<SessionId> {
        let holder = self.delegations.files.get(&ino)?.session;
        (holder != session).then_some(holder)
    }

    /// The recall to send to the session that decides about the file, if it was not sent yet.
    pub fn recall(&mut self, ino: Ino) -> Option<LockRecall> {
        let file = self.delegations.files.get_mut(&ino)?;
        let is_new = !std::mem::replace(&mut file.is_recalled, true);
        is_new.then_some(LockRecall { ino, number: file.number })
    }

    /// Called when the session was granted a lock by the change `number`. Returns whether the
    /// session decides from now on.
    pub fn delegate(&mut self, ino: Ino, session: SessionId, number: u64) -> bool {
        let is_free = !self.delegations.files.contains_key(&ino)
            && self.has_room_for_decisions(session)
            && (self.is_alone(ino, session) || broken!("locks_delegated_beside"))
            && !self.delegations.is_contended(ino);
        if is_free {
            let file = Delegated { session, number, is_recalled: false };
            self.delegations.insert(ino, file);
        }
        is_free
    }

    /// Whether the session stays within its limit, whatever it decides.
    fn has_room_for_decisions(&self, session: SessionId) -> bool {
        let (own, files) = (self.sessions.get(&session), self.delegations.count(session));
        let held = own.map_or(0, |count| count.locks);
        files < SESSION_LOCK_FILES
            && held + (files + 1) * DELEGATED_LOCKS <= self.limits.session_locks
    }

    /// Whether nobody else holds or awaits locks of the file, and not too many are held.
    fn is_alone(&self, ino: Ino, session: SessionId) -> bool {
        let files = CLASSES.iter().filter_map(|class| self.files.get(&(ino, *class)));
        let mut held = 0;
        for file in files {
            let is_others = |owner: &Owner| owner.session != session;
            let is_large = file.held.len() > DELEGATED_LOCKS / 2;
            if is_large || !file.queue.is_empty() || file.held.keys().any(is_others) {
                return false;
            }
            held += file.held.values().map(|held| held.ranges.len()).sum::<usize>();
        }
        held <= DELEGATED_LOCKS / 2
    }

    /// Called when the session gives the decisions back and tells what its programs hold. Returns
    /// whether that ended anything: a late copy does not.
    ///
    /// # Errors
    /// `INVAL` for impossible locks; then none of the locks is taken over.
    pub fn tell(
        &mut self,
        session: SessionId,
        call: &LockTell,
    ) -> Result<(bool, Vec<Told>), Status> {
        let locks = call.locks.as_deref().unwrap_or_default();
        if locks.len() > DELEGATED_LOCKS || !locks.iter().all(|lock| is_possible(lock, call.ino)) {
            return Err(Status::INVAL);
        }
        let named = |file: &Delegated| (file.session, file.number) == (session, call.number);
        if !self.delegations.files.get(&call.ino).is_some_and(named) {
            return Ok((false, Vec::new()));
        }
        if self.delegations.remove(call.ino).is_some_and(|file| file.is_recalled) {
            self.note_contention(call.ino);
        }
        let mut told = Vec::new();
        if call.locks.is_some() {
            for class in CLASSES {
                let of_class = locks.iter().filter(|lock| lock.class == class);
                told.extend(self.replace((call.ino, class), session, of_class));
            }
        }
        Ok((true, told))
    }

    fn note_contention(&mut self, ino: Ino) {
        let contended = &mut self.delegations.contended;
        if contended.len() >= MOST_CONTENDED {
            contended.clear();
        }
        contended.insert(ino, CONTENTION_BACKOFF);
    }

    /// The session holds these locks of the file, and no others.
    fn replace<'a>(
        &mut self,
        key: FileKey,
        session: SessionId,
        locks: impl Iterator<Item = &'a HeldLock>,
    ) -> Vec<Told> {
        let owners = |file: &LockFile| {
            let own = file.held.keys().copied().filter(|owner| owner.session == session);
            own.collect::<Vec<_>>()
        };
        for owner in self.files.get(&key).map(owners).into_iter().flatten() {
            self.change(key, owner, Span::ALL, None);
        }
        let mut granted = Vec::new();
        for lock in locks {
            let owner = Owner { session, id: lock.owner };
            self.change(key, owner, lock.span, Some(lock.mode));
            self.name(key, owner, lock.pid);
            granted.push(owner);
        }
        self.sweep(key, granted)
    }
}

fn is_possible(lock: &HeldLock, ino: Ino) -> bool {
    let is_whole = lock.class == LockClass::Range || lock.span == Span::ALL;
    lock.ino == ino && lock.span.is_valid() && is_whole
}
