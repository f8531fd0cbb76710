//! The lock table: which program holds which bytes. Pure: calls in, ends of waits out, no clock.
//!
//! Rules (LOCK-1 to LOCK-7 in ARCHITECTURE.md):
//! - Two owners never hold the same byte unless both share it. An owner's last call decides about
//!   each byte: ranges are split, merged, raised and lowered. `fcntl` and `flock` are apart.
//! - A wait is a record here. It ends as a lock, by a call of its session, or with its session.
//! - Waits are looked at in their order. A later wait that fits goes first, as on Linux. But once a
//!   wait was passed `PASSES` times, the waits behind it that are in its way wait as well. That
//!   lasts until the next but one `relax`, because programs may wait for each other in ways that
//!   the table does not see.
//! - A wait of a process that closes a circle of waits is refused, through whatever mounts the
//!   circle goes.
//! - Everything is counted: ranges and waits, for each session and in all.
//! - A file may be handed to the only session that uses its locks (`delegation.rs`).

pub(crate) mod calls;
mod circle;
mod delegation;
mod file;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};

use delegation::Delegations;
use file::{Held, LockFile};
use nuri_proto::Status;
use nuri_proto::id::{Ino, SessionId};
use nuri_proto::limit::{MAX_LOCK_WAITS, MAX_LOCKS, SESSION_LOCK_WAITS, SESSION_LOCKS};
use nuri_proto::op::lock::{
    Deadlock, Granted, HeldLock, LockClass, LockEnd, LockHolder, LockMode, LockOutcome, LockSet,
    LockTest, LockWait,
};
use nuri_proto::op::meta::Grant;
use nuri_proto::range_map::Span;
use nuri_rules::broken;

/// How often others may go before a wait that came earlier. Not never: a program may need a shared
/// lock before the holder of another one goes on, while a writer waits for both.
/// In tests so few that the model meets it.
const PASSES: u32 = if cfg!(test) { 3 } else { 64 };

fn passes() -> u32 {
    if broken!("lock_passes") { u32::MAX } else { PASSES }
}

/// Who holds or waits: a number of a session.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Owner {
    pub session: SessionId,
    pub id: u64,
}

/// A session's wait by its number.
type WaitKey = (SessionId, u64);
type FileKey = (Ino, LockClass);

/// A lock that is not granted yet.
#[derive(Clone, Copy)]
struct Wait {
    owner: Owner,
    request: u64,
    span: Span,
    mode: LockMode,
    pid: u32,
    deadlock: Deadlock,
    /// How often another lock in its way was granted since it came.
    passed: u32,
    /// It was passed often enough at the last `relax`.
    relaxed: bool,
}

/// The end of a wait, to be told to its session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Told {
    pub session: SessionId,
    pub end: LockEnd,
}

/// What there may be at most.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub session_locks: usize,
    pub locks: usize,
    pub session_waits: usize,
    pub waits: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            session_locks: SESSION_LOCKS,
            locks: MAX_LOCKS,
            session_waits: SESSION_LOCK_WAITS,
            waits: MAX_LOCK_WAITS,
        }
    }
}

#[derive(Clone, Copy, Default)]
struct Count {
    locks: usize,
    waits: usize,
}

/// All locks of one metadata server.
pub struct LockTable {
    files: HashMap<FileKey, LockFile>,
    waits: HashMap<WaitKey, FileKey>,
    /// Numbers of the waits of each owner of byte ranges: the edges of a circle of waits.
    waiting: BTreeMap<Owner, Vec<u64>>,
    delegations: Delegations,
    sessions: HashMap<SessionId, Count>,
    all: Count,
    limits: Limits,
    next: u64,
}

impl LockTable {
    /// A table whose numbers are above all those of earlier epochs.
    pub fn new(epoch: u64, limits: Limits) -> LockTable {
        LockTable {
            files: HashMap::new(),
            waits: HashMap::new(),
            waiting: BTreeMap::new(),
            delegations: Delegations::default(),
            sessions: HashMap::new(),
            all: Count::default(),
            limits,
            next: epoch << Grant::EPOCH_SHIFT,
        }
    }

    /// Runs one call of a session. A wait that is queued already stays as it is.
    ///
    /// # Errors
    /// `DEADLK`, `NOLCK`, `INVAL`.
    pub fn set(
        &mut self,
        session: SessionId,
        call: &LockSet,
    ) -> Result<(u64, LockOutcome, Vec<Told>), Status> {
        if !call.span.is_valid() || (call.class == LockClass::Flock && call.span != Span::ALL) {
            return Err(Status::INVAL);
        }
        let key = (call.ino, call.class);
        let owner = Owner { session, id: call.owner };
        let Some(mode) = call.mode else {
            self.check_room(key, owner, call.span, None)?;
            let number = self.change(key, owner, call.span, None);
            return Ok((number, LockOutcome::Done, self.sweep(key, Vec::new())));
        };
        if let LockWait::Queue { request, .. } = call.wait
            && self.waits.contains_key(&(session, request))
        {
            return Ok((self.next, LockOutcome::Waits, Vec::new()));
        }
        self.check_room(key, owner, call.span, Some(mode))?;
        if call.class == LockClass::Flock && self.held(key, owner) == Some(mode) {
            self.next += 1;
            return Ok((self.next, LockOutcome::Done, Vec::new()));
        }
        if matches!(call.wait, LockWait::Queue { .. }) {
            self.check_waits(session)?;
        }
        if call.class == LockClass::Flock {
            // A conversion gives the old lock up first, so that two of them end.
            self.change(key, owner, call.span, None);
        }
        let outcome = self.lock(key, owner, mode, call)?;
        self.next += 1;
        let number = self.next;
        let granted = if outcome == LockOutcome::Done { vec![owner] } else { Vec::new() };
        Ok((number, outcome, self.sweep(key, granted)))
    }

    fn lock(
        &mut self,
        key: FileKey,
        owner: Owner,
        mode: LockMode,
        call: &LockSet,
    ) -> Result<LockOutcome, Status> {
        let file = self.files.entry(key).or_default();
        let waits = matches!(call.wait, LockWait::Queue { .. });
        let all = file.queue.len();
        let mut blocked = file.held_against(owner, call.span, mode).next().is_some();
        if waits && !blocked {
            // Who would not wait is refused by what is held alone.
            blocked = file.queued_against(owner, call.span, mode, all).next().is_some();
        }
        if !blocked || broken!("lock_unchecked") {
            file.pass(owner, call.span, mode, all);
            self.change(key, owner, call.span, Some(mode));
            self.name(key, owner, call.pid);
            return Ok(LockOutcome::Done);
        }
        let LockWait::Queue { request, deadlock } = call.wait else {
            return Ok(LockOutcome::Refused);
        };
        let (span, pid) = (call.span, call.pid);
        self.push(
            key,
            Wait { owner, request, span, mode, pid, deadlock, passed: 0, relaxed: false },
        );
        let at = self.files[&key].queue.len() - 1;
        if self.closes_a_circle(key, at) {
            self.take_wait(key, at);
            return Err(Status::DEADLK);
        }
        Ok(LockOutcome::Waits)
    }

    /// Who would be in the way of a byte-range lock: the first one.
    pub fn test(&self, session: SessionId, call: &LockTest) -> Option<LockHolder> {
        let file = self.files.get(&(call.ino, LockClass::Range))?;
        let owner = Owner { session, id: call.owner };
        let held = file.held_against(owner, call.span, call.mode);
        let (other, span, mode) = held.min_by_key(|(other, span, _)| (span.start, *other))?;
        let own = other.session == session;
        let pid = if own { file.held.get(&other).map_or(0, |h| h.pid) } else { 0 };
        Some(LockHolder { span, mode, pid })
    }

    /// Gives a wait up; says whether there was one.
    pub fn cancel(&mut self, session: SessionId, request: u64) -> (bool, Vec<Told>) {
        let Some(key) = self.waits.get(&(session, request)).copied() else {
            return (false, Vec::new());
        };
        let named = |w: &Wait| (w.owner.session, w.request) == (session, request);
        if let Some(at) = self.files.get(&key).and_then(|f| f.queue.iter().position(named)) {
            self.take_wait(key, at);
        }
        (true, self.sweep(key, Vec::new()))
    }

    /// The session is on its way out: nothing more is granted to it. What it holds stays.
    pub fn drop_waits(&mut self, session: SessionId) -> Vec<Told> {
        let waits = self.waits.iter().filter(|((owner, _), _)| *owner == session);
        let mut keys: Vec<_> = waits.map(|(_, key)| *key).collect();
        keys.sort_unstable();
        keys.dedup();
        let of_session = |w: &Wait| w.owner.session == session;
        for key in &keys {
            while let Some(at) =
                self.files.get(key).and_then(|f| f.queue.iter().position(of_session))
            {
                self.take_wait(*key, at);
            }
        }
        keys.into_iter().flat_map(|key| self.sweep(key, Vec::new())).collect()
    }

    /// The session ended: all that it held is free.
    pub fn drop_session(&mut self, session: SessionId) -> Vec<Told> {
        let mut told = self.drop_waits(session);
        self.delegations.drop_session(session);
        let holds = |f: &LockFile| f.held.keys().any(|owner| owner.session == session);
        let keys: Vec<_> = self.files.iter().filter(|(_, f)| holds(f)).map(|(k, _)| *k).collect();
        for key in keys {
            let owners = self.files.get(&key).map(|f| f.held.keys().copied().collect::<Vec<_>>());
            for owner in owners.into_iter().flatten().filter(|o| o.session == session) {
                self.change(key, owner, Span::ALL, None);
            }
            told.extend(self.sweep(key, Vec::new()));
        }
        self.sessions.remove(&session);
        told
    }

    /// A session holds this since before the restart; says whether it still can.
    pub fn reclaim(&mut self, session: SessionId, lock: &HeldLock) -> bool {
        let call = LockSet {
            ino: lock.ino,
            class: lock.class,
            owner: lock.owner,
            span: lock.span,
            mode: Some(lock.mode),
            pid: lock.pid,
            wait: LockWait::No,
        };
        matches!(self.set(session, &call), Ok((_, LockOutcome::Done, _)))
    }

    /// Whether the session holds all of that.
    pub fn holds(&self, session: SessionId, lock: &HeldLock) -> bool {
        let owner = Owner { session, id: lock.owner };
        let held = self.files.get(&(lock.ino, lock.class)).and_then(|f| f.held.get(&owner));
        let covers = |(part, mode): (Span, LockMode)| {
            part.start <= lock.span.start && lock.span.end <= part.end && mode == lock.mode
        };
        held.is_some_and(|h| h.ranges.meeting(lock.span).any(covers))
    }

    /// Called every few seconds: who was passed often enough twice in a row is passed again.
    pub fn relax(&mut self) -> Vec<Told> {
        let mut relaxed = Vec::new();
        for (key, file) in &mut self.files {
            for wait in file.queue.iter_mut().filter(|w| w.passed >= passes()) {
                if std::mem::replace(&mut wait.relaxed, true) {
                    (wait.passed, wait.relaxed) = (0, false);
                    relaxed.push(*key);
                }
            }
        }
        relaxed.sort_unstable();
        relaxed.dedup();
        relaxed.into_iter().flat_map(|key| self.sweep(key, Vec::new())).collect()
    }

    /// What an owner of a `flock` has.
    fn held(&self, key: FileKey, owner: Owner) -> Option<LockMode> {
        let held = self.files.get(&key)?.held.get(&owner)?;
        held.ranges.iter().next().map(|(_, mode)| mode)
    }

    /// Refuses what could raise the number of ranges above the limits.
    fn check_room(
        &self,
        key: FileKey,
        owner: Owner,
        span: Span,
        mode: Option<LockMode>,
    ) -> Result<(), Status> {
        let held = self.files.get(&key).and_then(|f| f.held.get(&owner));
        let splits = |h: &Held| {
            h.ranges.meeting(span).any(|(part, _)| part.start < span.start && span.end < part.end)
        };
        let more = match mode {
            Some(_) => 2,
            None => usize::from(held.is_some_and(splits)),
        };
        let own = self.sessions.get(&owner.session).map_or(0, |c| c.locks);
        let fits =
            own + more <= self.limits.session_locks && self.all.locks + more <= self.limits.locks;
        if more == 0 || fits { Ok(()) } else { Err(Status::NOLCK) }
    }

    fn check_waits(&self, session: SessionId) -> Result<(), Status> {
        let own = self.sessions.get(&session).map_or(0, |c| c.waits);
        let full = own >= self.limits.session_waits || self.all.waits >= self.limits.waits;
        if full { Err(Status::NOLCK) } else { Ok(()) }
    }

    /// Gives bytes to the owner, or takes them from it; returns the change's number.
    fn change(&mut self, key: FileKey, owner: Owner, span: Span, mode: Option<LockMode>) -> u64 {
        self.next += 1;
        let file = self.files.entry(key).or_default();
        let held = file.held.entry(owner).or_default();
        let before = held.ranges.len();
        held.ranges.assign(span, mode);
        let after = held.ranges.len();
        if after == 0 {
            file.held.remove(&owner);
        }
        let count = self.sessions.entry(owner.session).or_default();
        count.locks = count.locks + after - before;
        self.all.locks = self.all.locks + after - before;
        self.next
    }

    fn name(&mut self, key: FileKey, owner: Owner, pid: u32) {
        if let Some(held) = self.files.get_mut(&key).and_then(|f| f.held.get_mut(&owner)) {
            held.pid = pid;
        }
    }

    fn push(&mut self, key: FileKey, wait: Wait) {
        let Wait { owner, request, .. } = wait;
        self.files.entry(key).or_default().queue.push(wait);
        self.waits.insert((owner.session, request), key);
        if key.1 == LockClass::Range {
            self.waiting.entry(owner).or_default().push(request);
        }
        self.sessions.entry(owner.session).or_default().waits += 1;
        self.all.waits += 1;
    }

    fn take_wait(&mut self, key: FileKey, at: usize) -> Option<Wait> {
        let wait = self.files.get_mut(&key)?.queue.remove(at);
        let Wait { owner, request, .. } = wait;
        self.waits.remove(&(owner.session, request));
        if let Some(requests) = self.waiting.get_mut(&owner) {
            requests.retain(|other| *other != request);
            if requests.is_empty() {
                self.waiting.remove(&owner);
            }
        }
        if let Some(count) = self.sessions.get_mut(&owner.session) {
            count.waits -= 1;
        }
        self.all.waits -= 1;
        Some(wait)
    }

    fn drop_unused(&mut self, key: FileKey) {
        if self.files.get(&key).is_some_and(LockFile::is_unused) {
            self.files.remove(&key);
        }
    }

    /// After a change: grants what can be granted, in order. `granted` got a lock just now.
    fn sweep(&mut self, key: FileKey, mut granted: Vec<Owner>) -> Vec<Told> {
        let mut told = Vec::new();
        loop {
            let (mut at, mut again) = (0, false);
            while self.files.get(&key).is_some_and(|f| at < f.queue.len()) {
                if !self.files[&key].may_go(at) {
                    at += 1;
                    continue;
                }
                let Some(wait) = self.take_wait(key, at) else { break };
                let Wait { owner, request, span, mode, pid, .. } = wait;
                if let Some(file) = self.files.get_mut(&key) {
                    // Lowering what it had may free others.
                    again |= mode == LockMode::Shared && file.held.contains_key(&owner);
                    again |= file.queue[..at].iter().any(|w| w.owner == owner);
                    file.pass(owner, span, mode, at);
                }
                let number = self.change(key, owner, span, Some(mode));
                self.name(key, owner, pid);
                granted.push(owner);
                let end = LockEnd { request, number, granted: Granted::Yes };
                told.push(Told { session: owner.session, end });
            }
            if !again && !self.end_circles(key, &granted, &mut told) {
                break;
            }
        }
        self.drop_unused(key);
        told
    }

    /// Locks held, and waits: (locks, waits).
    pub fn counts(&self) -> (usize, usize) {
        (self.all.locks, self.all.waits)
    }
}
