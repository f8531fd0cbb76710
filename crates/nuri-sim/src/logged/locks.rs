//! Programs that lock files: by calls to the server, or by the word of a client that the server
//! handed the file over to (`nuri_client::delegation`). Checked after each act: no two programs
//! believe to hold what excludes each other. What was held when the server stopped is held again.

use nuri_client::LockPlace;
use nuri_client::delegation::Conflict;
use nuri_client::record::{Applied, Change, Closed, LockKey};
use nuri_proto::Status;
use nuri_proto::id::Ino;
use nuri_proto::op::lock::{LockClass, LockMode, LockOutcome, LockReply, LockSet, LockWait};
use nuri_proto::range_map::Span;

use super::World;
use super::client::{Client, LockCall, Locks, OWNERS};
use crate::check::{Wrong, wrong};

/// Files that programs lock, and bytes of each.
const FILES: u64 = 2;
const BYTES: u64 = 6;
/// Where the files' numbers begin: locks need no file.
const FIRST: u64 = 1 << 40;
/// Calls of a client under way.
const MOST_CALLS: usize = 2;

fn place(key: LockKey, span: Span) -> LockPlace {
    let LockKey { ino, class, owner } = key;
    LockPlace { ino, fh: owner, class, owner, span, pid: 7 }
}

impl World {
    /// A program locks, unlocks or closes a file; or a call that is under way is sent again.
    pub fn lock_something(&mut self, c: usize) -> Result<(), Wrong> {
        self.tell_locks(c)?;
        if self.clients[c].reclaims.is_some() {
            return Ok(());
        }
        if self.clients[c].locks.calls.len() >= MOST_CALLS || self.rng.one_in(3) {
            return self.repeat_lock(c);
        }
        let flock = self.rng.one_in(5);
        let class = if flock { LockClass::Flock } else { LockClass::Range };
        let ino = Ino(FIRST + self.rng.below(FILES));
        let key = LockKey { ino, class, owner: 1 + self.rng.below(OWNERS) };
        let (a, b) = (self.rng.below(BYTES), self.rng.below(BYTES));
        let part = Span { start: a.min(b), end: a.max(b) };
        let span = if flock { Span::ALL } else { part };
        let mode = match self.rng.below(4) {
            0 => None,
            1 => Some(LockMode::Shared),
            _ => Some(LockMode::Exclusive),
        };
        let closes = mode.is_none() && self.rng.one_in(2);
        self.lock(c, key, if closes { Span::ALL } else { span }, mode, closes)
    }

    fn lock(
        &mut self,
        c: usize,
        key: LockKey,
        span: Span,
        mode: Option<LockMode>,
        closes: bool,
    ) -> Result<(), Wrong> {
        let locks = &mut self.clients[c].locks;
        // One call for each owner, as of a program with one thread.
        if locks.record.is_telling(key.ino) || locks.calls.iter().any(|call| call.key == key) {
            return Ok(());
        }
        let place = place(key, span);
        let decided = match closes {
            true => locks.record.close_here(key).map(|done| done.map(|()| LockOutcome::Done)),
            false => locks.record.set_here(&place, mode, Conflict::Refuses),
        };
        self.report.decided += u64::from(decided.is_some());
        if let Some(outcome) = decided {
            match outcome {
                Ok(LockOutcome::Done) => self.told(c, key, span, mode),
                Ok(_) if key.class == LockClass::Flock => self.told(c, key, span, None),
                Err(_) if closes => self.told(c, key, Span::ALL, None),
                _ => {}
            }
            return Ok(());
        }
        let locks = &mut self.clients[c].locks;
        if let Some(tell) = locks.record.begin_tell(key.ino) {
            locks.tells.push_back(tell);
            return Ok(());
        }
        let begun = match closes {
            true => locks.record.close(key).is_ok_and(|is_known| is_known),
            false => locks.record.begin(key, place.fh, place.pid).is_ok(),
        };
        if !begun {
            if closes {
                self.told(c, key, Span::ALL, None);
            }
            return Ok(());
        }
        let Some(slot) = self.clients[c].take_slot() else {
            self.clients[c].locks.record.finish(key);
            return Ok(());
        };
        let LockKey { ino, class, owner } = key;
        let wait = LockWait::No;
        let call = LockSet { ino, class, owner, span, mode, pid: place.pid, wait };
        let locks = &mut self.clients[c].locks;
        let generation = locks.record.generation();
        locks.calls.push_back(LockCall { slot, key, generation, call, closes });
        if self.rng.one_in(2) { self.repeat_lock(c) } else { Ok(()) }
    }

    /// Sends a call that is under way.
    fn repeat_lock(&mut self, c: usize) -> Result<(), Wrong> {
        let count = self.clients[c].locks.calls.len() as u64;
        if count == 0 {
            return Ok(());
        }
        let at = self.rng.below(count) as usize;
        let LockCall { slot, key, call, .. } = self.clients[c].locks.calls[at].clone();
        self.clients[c].locks.record.ask_for(key, call.span, call.mode);
        let session = self.clients[c].session;
        let back = self.send(session, Some(slot), &call, &[])?;
        match back {
            Some(Ok(reply)) => self.take_lock_reply(c, at, reply),
            None | Some(Err(Status::RETRY)) => {}
            Some(Err(Status::SESSION_GONE)) => self.lock_has_no_session(c, at),
            Some(Err(status)) => return Err(wrong!("client {c}: a lock is refused: {status}")),
        }
        Ok(())
    }

    /// The program is answered, before the client has heard that its session ended.
    fn lock_has_no_session(&mut self, c: usize, at: usize) {
        let call = self.clients[c].locks.calls.remove(at);
        let Some(LockCall { key, slot, closes, generation, .. }) = call else { return };
        self.clients[c].free_slot(slot);
        let is_noted_later = self.rng.one_in(2);
        let Locks { record, late_closes, .. } = &mut self.clients[c].locks;
        record.changed_nothing(key);
        match closes {
            // The end of the session may be heard of in between.
            true if is_noted_later => late_closes.push((key, generation)),
            true => record.closed(key, generation, Closed::SessionGone),
            false => record.finish(key),
        }
        if closes {
            self.told(c, key, Span::ALL, None);
        }
    }

    fn take_lock_reply(&mut self, c: usize, at: usize, reply: LockReply) {
        let LockCall { key, generation, call, closes, .. } =
            self.clients[c].locks.calls[at].clone();
        let record = &mut self.clients[c].locks.record;
        let change = Change::of(&call, reply);
        let applied = record.apply(key, generation, reply.number, change);
        let freed = self.clients[c].locks.calls.remove(at);
        if let Some(LockCall { slot, .. }) = freed {
            self.clients[c].free_slot(slot);
        }
        if applied == Applied::Yes {
            match change {
                Some(change) => self.told(c, key, change.span, change.mode),
                None if self.clients[c].locks.record.changed_nothing(key) => {
                    // Its programs hear that locks are lost.
                    self.told(c, key, Span::ALL, None);
                }
                None => {}
            }
        }
        if applied == Applied::AskAgain {
            let Some(slot) = self.clients[c].take_slot() else { return };
            let again = LockCall { slot, key, generation, call, closes };
            return self.clients[c].locks.calls.push_back(again);
        }
        let record = &mut self.clients[c].locks.record;
        if reply.delegated {
            record.take_delegation(key.ino, reply.number);
            self.report.delegated += 1;
        }
        match closes {
            true => record.closed(key, generation, Closed::Told),
            false => record.finish(key),
        }
    }

    /// Tells what was decided here, where that is asked for or in the way of a call.
    pub fn tell_locks(&mut self, c: usize) -> Result<(), Wrong> {
        if self.rng.one_in(20) {
            let locks = &mut self.clients[c].locks;
            let idle = locks.record.give_idle_back();
            locks.tells.extend(idle);
        }
        while let Some(tell) = self.clients[c].locks.tells.front().cloned() {
            match self.ask(c, &tell)? {
                Some(Ok(())) => {
                    let locks = &mut self.clients[c].locks;
                    locks.record.told(tell.ino, tell.number);
                    locks.tells.pop_front();
                    self.report.locks_told += u64::from(tell.locks.is_some());
                }
                Some(Err(Status::RETRY | Status::SESSION_GONE)) | None => break,
                Some(Err(status)) => {
                    return Err(wrong!("client {c}: locks are not taken: {status}"));
                }
            }
        }
        Ok(())
    }

    /// A program was told what it holds from here on.
    fn told(&mut self, c: usize, key: LockKey, span: Span, mode: Option<LockMode>) {
        let LockKey { ino, class, owner } = key;
        let held = self.clients[c].locks.told.entry((ino, class, owner)).or_default();
        held.assign(span, mode);
    }

    /// No two programs were told that they hold what excludes each other, whichever clients they
    /// are of. Who waits for an answer may hold less by now.
    pub fn check_locks(&self) -> Result<(), Wrong> {
        let live = self.clients.iter().filter(|client| client.session.0 > 0 && !client.is_gone);
        let mut held = Vec::new();
        for Client { session, locks, .. } in live {
            let waits = |ino, class, owner| {
                let key = LockKey { ino, class, owner };
                locks.calls.iter().any(|call| call.key == key)
            };
            for ((ino, class, owner), ranges) in &locks.told {
                if !waits(*ino, *class, *owner) {
                    let who = (*session, *owner);
                    held.extend(ranges.iter().map(|range| ((*ino, *class), who, range)));
                }
            }
        }
        for (i, (file, who, (span, mode))) in held.iter().enumerate() {
            let excludes = |(other_file, other, (part, have)): &&(_, _, (Span, LockMode))| {
                let shared = (*mode, *have) == (LockMode::Shared, LockMode::Shared);
                file == other_file && who != other && span.meets(*part) && !shared
            };
            if let Some((.., other, theirs)) = held[i + 1..].iter().find(excludes) {
                let mine = (span, mode);
                return Err(wrong!("{file:?}: {who:?} holds {mine:?}, {other:?} {theirs:?}"));
            }
        }
        Ok(())
    }
}
