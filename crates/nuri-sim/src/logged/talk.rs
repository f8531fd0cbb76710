//! The calls of a client to the server: its journal, its leases, and its other reports. Their order
//! is that of `nuri-client`'s `journal/tell.rs` and `lease/give_back.rs`.

use std::collections::BTreeSet;
use std::time::Instant;

use nuri_client::lease::revocation::{self, Activity, Revocation};
use nuri_client::lease::state::Recalled;
use nuri_client::queue::Outcome;
use nuri_proto::Status;
use nuri_proto::id::{Ino, SessionId};
use nuri_proto::op::log::{Change, Reserve, Step};
use nuri_proto::op::meta::{
    Acquire, Downgrade, Event, Events, LeaseMode, OrphanRelease, Recall, RecallDone, Reclaim,
    Release, SessionClose, SessionOpen,
};

use super::World;
use super::client::{Client, Errand, Held, Wish};
use crate::check::{Wrong, wrong};

/// Calls that a client makes at most for one thing before it turns to another.
const TRIES: u32 = 6;
/// Numbers taken at a time: few, so that they run out.
const NUMBERS: u32 = 40;

/// How a call went.
pub enum Asked {
    Answered,
    Refused(Status),
    /// Nothing came back.
    Unheard,
}

impl World {
    /// What a client does beside its programs' work: its session, events, recalls and errands.
    /// Says whether it is in order.
    pub fn keep_up(&mut self, c: usize) -> Result<bool, Wrong> {
        if self.clients[c].is_gone {
            self.hear_of_the_end(c)?;
        }
        if self.clients[c].session.0 == 0 {
            return self.open(c);
        }
        // Nothing more is heard before everything is reclaimed.
        if self.clients[c].reclaims.is_none() && self.rng.one_in(2) {
            self.poll(c)?;
        }
        self.reclaim(c)?;
        self.obey_recalls(c)?;
        self.answer(c)?;
        self.tell_locks(c)?;
        self.run_errand(c)?;
        Ok(!self.clients[c].is_gone)
    }

    fn open(&mut self, c: usize) -> Result<bool, Wrong> {
        let call = SessionOpen { client: format!("sim{c}") };
        let Some(Ok(reply)) = self.send(SessionId(0), None, &call, &[])? else { return Ok(false) };
        let client = &mut self.clients[c];
        (client.session, client.boot) = (reply.session, reply.server_boot);
        client.void = reply.granted;
        client.locks.record.began(reply.server_boot);
        Ok(true)
    }

    /// Its session ended. Whatever it tells now is lost.
    fn hear_of_the_end(&mut self, c: usize) -> Result<(), Wrong> {
        let client = &self.clients[c];
        if client.queue.settled() < client.queue.last() && self.tell(c)? == Some(Outcome::Told) {
            return Err(wrong!("client {c}: told in a session that ended"));
        }
        if self.rng.one_in(2) {
            self.lock_something(c)?;
        }
        self.clients[c].lose().map_err(|wrong| wrong!("client {c}: {wrong}"))
    }

    /// Hears what the server has to tell, also that it started anew.
    pub fn poll(&mut self, c: usize) -> Result<(), Wrong> {
        let Client { acknowledged, boot: server_boot, .. } = self.clients[c];
        let call = Events { acknowledged, server_boot };
        let Some(Ok(reply)) = self.ask(c, &call)? else { return Ok(()) };
        let client = &mut self.clients[c];
        client.acknowledged = reply.upto;
        if reply.server_boot != server_boot {
            (client.acknowledged, client.boot) = (0, reply.server_boot);
            let held = |(ino, held): (&Ino, &Held)| held.hold.mode.map(|mode| (*ino, mode));
            client.reclaims = Some(client.holds.iter().filter_map(held).collect());
            client.held_locks = client.locks.record.restarted(reply.server_boot);
        }
        for event in reply.events {
            match event {
                Event::Recall(recall) => client.recalls.push((recall, None)),
                Event::LockRecall(recall) => {
                    let tell = client.locks.record.recalled(recall);
                    client.locks.tells.extend(tell);
                }
                // Nobody has it open here: the model has no open files of others.
                Event::Unlinked(ino) if client.orphans.iter().all(|(_, own)| *own != ino) => {
                    client.holds.remove(&ino);
                    if let Some(slot) = client.take_slot() {
                        client.errands.push_back((slot, Errand::Orphans(vec![ino])));
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Tells a new start of the server what is held, a few leases at a time.
    fn reclaim(&mut self, c: usize) -> Result<(), Wrong> {
        let Some(rest) = self.clients[c].reclaims.clone() else { return Ok(()) };
        let count = rest.len().min(1 + self.rng.below(6) as usize);
        let (now, later) = rest.split_at(count);
        let open = self.clients[c].orphans.iter().map(|(_, ino)| *ino).collect();
        let (server_boot, more) = (self.clients[c].boot, !later.is_empty());
        let (leases, locks) = (now.to_vec(), self.clients[c].held_locks.clone());
        let call = Reclaim { server_boot, leases, open, locks, more, ..Reclaim::default() };
        let reply = match self.ask(c, &call)? {
            Some(Ok(reply)) => reply,
            // Another start by now: it is told everything.
            Some(Err(Status::STALE)) => {
                self.clients[c].reclaims = None;
                return Ok(());
            }
            _ => return Ok(()),
        };
        self.report.reclaims += 1;
        if reply.locks.contains(&false) {
            return Err(wrong!("client {c}: a lock is not given back to it"));
        }
        let client = &mut self.clients[c];
        for ((ino, mode), grant) in now.iter().zip(&reply.leases) {
            let Some(grant) = grant else {
                return Err(wrong!("client {c}: {mode:?} on {ino} is not given back to it"));
            };
            let held = client.holds.entry(*ino).or_default();
            held.is_known &= held.hold.mode.is_some();
            held.hold.reclaimed(*grant);
        }
        client.reclaims = more.then(|| later.to_vec());
        Ok(())
    }

    /// Each recall is obeyed by a thread of its own, in any order.
    fn obey_recalls(&mut self, c: usize) -> Result<(), Wrong> {
        for at in (0..self.clients[c].recalls.len()).rev() {
            if self.rng.one_in(2) {
                self.obey(c, at)?;
            }
        }
        Ok(())
    }

    /// Obeys one of the recalls: gives a lease back, after everything that was logged is told. What
    /// cannot be told yet has it tried again.
    fn obey(&mut self, c: usize, at: usize) -> Result<(), Wrong> {
        let (Recall { ino, number, keep, part }, begun) = self.clients[c].recalls[at];
        let now = self.now();
        let kept = match begun {
            Some(revocation) => self.revoke(c, at, revocation, now)?,
            None => {
                let hold = &mut self.clients[c].holds.entry(ino).or_default().hold;
                match hold.recall(number, hold.number, false) {
                    Recalled::Kept(mode) => Some(mode),
                    Recalled::Lease => self.revoke(c, at, Revocation::of_lease(keep, now), now)?,
                }
            }
        };
        if let Some(kept) = kept {
            let client = &mut self.clients[c];
            client.recalls.remove(at);
            client.answers.push_back(RecallDone { ino, number, kept, part, settled: false });
        }
        Ok(())
    }

    /// Lets a revocation go on; what is kept of the lease, once it left.
    fn revoke(
        &mut self,
        c: usize,
        at: usize,
        mut revocation: Revocation,
        now: Instant,
    ) -> Result<Option<Option<LeaseMode>>, Wrong> {
        let Recall { ino, keep, .. } = self.clients[c].recalls[at].0;
        loop {
            match revocation.next(Activity::default(), now) {
                revocation::Step::Drain => {
                    let is_told = self.sync(c)?;
                    if is_told {
                        self.share(c, ino)?;
                        self.part(c, ino);
                    }
                    revocation.drained(is_told);
                }
                revocation::Step::GiveBack => {
                    let held = self.clients[c].holds.entry(ino).or_default();
                    let kept = held.hold.give_back(keep);
                    held.taken = None;
                    held.is_known &= kept.is_some();
                    self.report.handovers += 1;
                    return Ok(Some(kept));
                }
                revocation::Step::Wait(_) => break,
                // Nothing of what is played is lost but with the session: it tries on.
                revocation::Step::GiveUp => revocation = Revocation::of_lease(keep, now),
            }
        }
        self.clients[c].recalls[at].1 = Some(revocation);
        Ok(None)
    }

    /// Only reads the files of a directory from here on that is being given back.
    fn share(&mut self, c: usize, dir: Ino) -> Result<(), Wrong> {
        let Some(names) = self.latest.names(dir) else { return Ok(()) };
        if !self.rng.one_in(2) {
            return Ok(());
        }
        let client = &mut self.clients[c];
        let alone: BTreeSet<Ino> =
            names.values().copied().filter(|i| client.is_alone(*i)).collect();
        let mut leases = Vec::new();
        for ino in alone {
            if let Some(Held { hold, .. }) = client.holds.get_mut(&ino) {
                hold.step_down();
                leases.push((ino, hold.number, true));
            }
        }
        self.ask(c, &Downgrade { leases }).map(|_| ())
    }

    /// Says that recalls were obeyed, until that is heard.
    fn answer(&mut self, c: usize) -> Result<(), Wrong> {
        while let Some(done) = self.clients[c].answers.front().cloned() {
            match self.ask(c, &done)? {
                Some(_) => self.clients[c].answers.pop_front(),
                None => break,
            };
        }
        Ok(())
    }

    /// Tells one batch; `None` where there is nothing to tell, or no slot free.
    pub fn tell(&mut self, c: usize) -> Result<Option<Outcome>, Wrong> {
        let now = self.now();
        let client = &mut self.clients[c];
        if client.queue.settled() == client.queue.last() {
            return Ok(None);
        }
        let mut batch = client.queue.next(client.session, now);
        self.report.batches += 1;
        self.report.repeats += u64::from(batch.kept.is_some());
        let Some(slot) = batch.kept.or_else(|| client.take_slot()) else {
            client.queue.unsure(batch);
            return Ok(None);
        };
        batch.kept = Some(slot);
        let back = self.send(batch.session, Some(slot), &batch.call, &batch.payload)?;
        let client = &mut self.clients[c];
        let status = match &back {
            None => Status::UNREACHABLE,
            Some(answer) => answer.as_ref().err().copied().unwrap_or(Status::OK),
        };
        let outcome = Outcome::of(status);
        match (outcome, back) {
            (Outcome::Told, Some(Ok(applied))) => {
                client.free_slot(slot);
                client.queue.told(&batch);
                let grows = |step: &&Step| matches!(step.change, Change::Extend(_));
                let grown = batch.call.steps.iter().filter(grows).count();
                if applied.placed.len() != grown {
                    return Err(wrong!("{} places for {grown} files", applied.placed.len()));
                }
                for (ino, grant) in batch.made.iter().zip(applied.made) {
                    client.take_lease(*ino, grant);
                }
                self.settle(c)?;
            }
            (Outcome::Unsure, _) => client.queue.unsure(batch),
            _ if status != Status::SESSION_GONE => {
                return Err(wrong!("client {c}: what it logged is refused: {status}"));
            }
            _ => {}
        }
        Ok(Some(outcome))
    }

    /// What is told is durable.
    fn settle(&mut self, c: usize) -> Result<(), Wrong> {
        let client = &mut self.clients[c];
        let settled = client.queue.settled();
        while client.undecided.front().is_some_and(|note| note.number <= settled) {
            if let Some(note) = client.undecided.pop_front() {
                self.durable.apply(&note)?;
            }
        }
        client.holds.retain(|_, hold| hold.gone_at.is_none_or(|at| at > settled));
        Ok(())
    }

    /// Tells everything; says whether it is told.
    pub fn sync(&mut self, c: usize) -> Result<bool, Wrong> {
        for _ in 0..TRIES {
            self.tell(c)?;
        }
        let client = &self.clients[c];
        Ok(client.queue.settled() == client.queue.last() && !client.is_gone)
    }

    fn run_errand(&mut self, c: usize) -> Result<(), Wrong> {
        let client = &mut self.clients[c];
        if client.numbers.is_empty()
            && client.errands.iter().all(|(_, errand)| !matches!(errand, Errand::Reserve))
            && let Some(slot) = client.take_slot()
        {
            client.errands.push_back((slot, Errand::Reserve));
        }
        let Some((slot, errand)) = client.errands.front().cloned() else { return Ok(()) };
        let session = client.session;
        let is_done = match errand {
            Errand::Reserve => {
                let back = self.send(session, Some(slot), &Reserve { count: NUMBERS }, &[])?;
                if let Some(Ok(reply)) = &back {
                    let first = reply.first.0;
                    self.clients[c].numbers = first..first + u64::from(reply.count);
                }
                matches!(back, Some(Ok(_)))
            }
            Errand::Release(leases) => {
                matches!(self.send(session, Some(slot), &Release { leases }, &[])?, Some(Ok(())))
            }
            Errand::Orphans(inos) => {
                let call = OrphanRelease { inos };
                matches!(self.send(session, Some(slot), &call, &[])?, Some(Ok(())))
            }
        };
        if is_done {
            self.clients[c].errands.pop_front();
            self.clients[c].free_slot(slot);
        }
        Ok(())
    }

    /// Gives up what was removed while open, once its removal is told.
    pub fn release_orphans(&mut self, c: usize) {
        let client = &mut self.clients[c];
        let settled = client.queue.settled();
        let Some(at) = client.orphans.iter().position(|(step, _)| *step <= settled) else { return };
        if let Some(slot) = client.take_slot() {
            let (_, ino) = client.orphans.remove(at);
            client.holds.remove(&ino);
            client.errands.push_back((slot, Errand::Orphans(vec![ino])));
        }
    }

    /// Forgets an inode, without being asked.
    pub fn release(&mut self, c: usize) {
        let client = &mut self.clients[c];
        let is_free = |ino: &Ino, held: &Held| {
            let is_logged = client.undecided.iter().any(|note| note.touched.contains(ino));
            let is_told = held.hold.number > 0 && !is_logged && held.gone_at.is_none();
            is_told && !held.hold.revoking && client.orphans.iter().all(|(_, own)| own != ino)
        };
        let free = client.holds.iter().filter(|(ino, held)| is_free(ino, held));
        let free: Vec<_> = free.map(|(ino, held)| (*ino, held.hold.number)).collect();
        if free.is_empty() || client.reclaims.is_some() {
            return;
        }
        let (ino, number) = free[self.rng.below(free.len() as u64) as usize];
        if let Some(slot) = client.take_slot() {
            client.holds.remove(&ino);
            client.errands.push_back((slot, Errand::Release(vec![(ino, number)])));
        }
    }

    /// Tells everything, gives all leases back and goes; another client comes in its place.
    pub fn leave(&mut self, c: usize) -> Result<(), Wrong> {
        if !self.sync(c)? {
            return Ok(());
        }
        let session = std::mem::replace(&mut self.clients[c], Client::new()).session;
        self.send(session, None, &SessionClose {}, &[]).map(|_| ())
    }

    /// Asks for what it wants; what it is told must be so.
    pub fn ask_for_lease(&mut self, c: usize) -> Result<(), Wrong> {
        let Some(wish) = self.clients[c].wish.take() else { return Ok(()) };
        let is_dir = self.latest.names(wish.ino).is_some();
        if is_dir && wish.mode == LeaseMode::Write && self.rng.one_in(2) {
            match self.take_directory(c, wish.ino)? {
                Asked::Answered => {}
                Asked::Refused(status) => self.wish_on(c, wish, status == Status::STALE),
                Asked::Unheard => self.wish_on(c, wish, false),
            }
            return Ok(());
        }
        let back = self.ask(c, &Acquire { ino: wish.ino, mode: wish.mode })?;
        if let Some(Ok(reply)) = &back {
            let is_new = self.check_inode(c, reply)?;
            let client = &mut self.clients[c];
            let counts = client.take_lease(wish.ino, reply.inode.lease);
            let is_dir = reply.inode.attr.is_dir();
            if let Some(hold) = client.holds.get_mut(&wish.ino).filter(|_| counts) {
                hold.is_known |= !is_dir && is_new;
            }
            return if counts && is_dir { self.read_names(c, wish.ino) } else { Ok(()) };
        }
        self.wish_on(c, wish, matches!(back, Some(Err(Status::STALE))));
        Ok(())
    }

    /// It was not given what it wished for.
    fn wish_on(&mut self, c: usize, mut wish: Wish, is_gone: bool) {
        wish.patience = wish.patience.saturating_sub(1);
        self.clients[c].wish = (wish.patience > 0 && !is_gone).then_some(wish);
    }
}
