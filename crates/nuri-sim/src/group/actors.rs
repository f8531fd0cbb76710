//! The programs of the actors: clients that read and write, workers that bring members up to
//! date, and the reader of the end.

use std::sync::Arc;
use std::time::Duration;

use nuri_io::rng::Rng;
use nuri_proto::Status;
use nuri_proto::clock::PROOF;
use nuri_proto::id::{BootId, ChunkKey, GroupId, SessionId, TargetId};
use nuri_proto::map::{Group, Standing};
use nuri_proto::op::cluster::{GroupRenew, MemberSynced, TargetProved};
use nuri_proto::stripe::Members;
use nuri_volume::group::{
    Compared, Groups, Guess, Kept, Missed, Part, Port, Proofs, Stripe, Unheard, Verdict,
};

use super::baton::{Baton, Want};
use super::ground::{CELLS, Ground};
use super::history::Span;
use super::port::SimPort;
use crate::check::{Wrong, wrong};

/// A program's request takes no longer, virtual microseconds, whatever happens: the promise is 30 s
/// beside what a frozen machine or a wait for an attempt under way adds.
pub(super) const BOUND: u64 = 130_000_000;
/// As in the node's worker.
const IDLE: Duration = Duration::from_millis(300);
const TRIES: usize = 20;
const TRY_PAUSE: Duration = Duration::from_millis(20);

/// One life of a client.
pub(super) struct Client {
    pub(super) who: usize,
    pub(super) session: SessionId,
    pub(super) seed: u64,
}

/// A client at work: each of its verbs is told to the history.
pub(super) struct Program {
    client: Client,
    ground: Arc<Ground>,
    pub(super) baton: Arc<Baton>,
    pub(super) groups: Groups<SimPort>,
    rng: Rng,
}

impl Client {
    /// Reads and writes until it has done its share.
    pub(super) fn run(self, ground: Arc<Ground>, baton: Arc<Baton>) -> Result<(), Wrong> {
        let operations = ground.operations;
        let mut program = self.begin(ground, baton);
        (0..operations).try_for_each(|_| program.step())
    }

    /// Knows nothing but the map.
    pub(super) fn begin(self, ground: Arc<Ground>, baton: Arc<Baton>) -> Program {
        let port = SimPort::new(baton.clone());
        port.refresh();
        let groups = Groups::new(port, 0);
        let rng = Rng::new(self.seed);
        Program { client: self, ground, baton, groups, rng }
    }
}

impl Program {
    fn step(&mut self) -> Result<(), Wrong> {
        let stripe = self.rng.below(self.ground.stripes.len() as u64) as usize;
        if self.ground.is_leased {
            self.baton.want(Want::Lock(stripe));
            self.groups.forget_object(self.ground.stripes[stripe].key.object);
        }
        // A sole right lasts for some operations.
        for _ in 0..1 + self.rng.below(3) {
            if self.ground.is_cut_open(stripe) {
                break;
            }
            let began = self.baton.now();
            match self.rng.below(12) {
                0..4 => self.read_some(stripe)?,
                4 if self.ground.is_leased => drop(self.punch_some(stripe)),
                5 if self.ground.cuts => drop(self.cut(stripe)),
                _ => self.write_some(stripe),
            }
            let took = self.baton.now() - began;
            if took > BOUND {
                return Err(wrong!("client {}: an operation took {took} us", self.client.who));
            }
        }
        while self.ground.is_cut_open(stripe) {
            // Nobody sees it before that is done.
            let _ = self.cut(stripe);
        }
        if self.ground.is_leased {
            self.baton.want(Want::Unlock(stripe));
        }
        if self.rng.one_in(2) {
            self.groups.tell_commits();
        }
        if self.groups.wait_damaged(Duration::ZERO) {
            for (_, verdict) in self.groups.repair_damaged() {
                self.ground.check_verdict(&verdict)?;
            }
        }
        let pause = if self.rng.one_in(10) { 2_000_000 } else { 30_000 };
        self.baton.want(Want::Pause(Duration::from_micros(self.rng.below(pause))));
        Ok(())
    }

    fn cells(&mut self) -> std::ops::Range<usize> {
        let most = if self.rng.one_in(4) { CELLS } else { 12 };
        let len = 1 + self.rng.below(most as u64) as usize;
        let start = self.rng.below((CELLS - len + 1) as u64) as usize;
        // Most of what is written is written again.
        let start = if self.rng.one_in(3) { start } else { start % 8 };
        start..(start + len).min(CELLS)
    }

    /// What a write covers: whole rows, or some ranges.
    fn spans(&mut self, stripe: usize) -> Vec<Span> {
        let places = self.ground.places(stripe);
        let row = self.rng.one_in(3).then(|| self.cells());
        let must = self.rng.below(places as u64) as usize;
        let mut spans = Vec::new();
        for place in 0..places {
            let cells = match &row {
                Some(row) => row.clone(),
                None if place != must && self.rng.one_in(2) => continue,
                None => self.cells(),
            };
            spans.push(Span { stripe, place, cells });
        }
        spans
    }

    fn write_some(&mut self, stripe: usize) {
        let spans = self.spans(stripe);
        let guess = if self.rng.one_in(4) { Guess::Fresh } else { Guess::Unknown };
        // What fails is in the history.
        let _ = self.write(&spans, guess);
    }

    fn read_some(&mut self, stripe: usize) -> Result<(), Wrong> {
        let place = self.rng.below(self.ground.places(stripe) as u64) as usize;
        let span = Span { stripe, place, cells: self.cells() };
        self.read(&span).map(drop)
    }

    /// Writes the spans, all of one stripe, at once. Returns the number of the write.
    pub(super) fn write(&mut self, spans: &[Span], guess: Guess) -> Result<u64, Status> {
        let Some(stripe) = spans.first().map(|s| s.stripe) else { return Err(Status::INVAL) };
        let (who, now) = (self.client.who, self.baton.now());
        let id = self.ground.history.lock().begin_write(who, now, spans);
        let bytes: Vec<_> = spans.iter().map(|span| span.bytes(id)).collect();
        self.write_bytes(stripe, id, (spans, &bytes), guess)
    }

    fn write_bytes(
        &self,
        stripe: usize,
        id: u64,
        (spans, bytes): (&[Span], &[Vec<u8>]),
        guess: Guess,
    ) -> Result<u64, Status> {
        let part = |(s, data): (&Span, _)| Part { place: s.place, offset: s.offset(), data };
        let parts: Vec<_> = spans.iter().zip(bytes.iter().map(Vec::as_slice)).map(part).collect();
        let session = self.client.session;
        let done = self.groups.write(session, &self.ground.stripes[stripe], &parts, guess);
        self.ground.history.lock().end_write(id, self.baton.now(), done.is_ok());
        done.map(|_| id)
    }

    /// Punches a hole into one place: parity follows, so zeros are written.
    fn punch_some(&mut self, stripe: usize) -> Result<u64, Status> {
        let place = self.rng.below(self.ground.places(stripe) as u64) as usize;
        let span = [Span { stripe, place, cells: self.cells() }];
        let (who, now) = (self.client.who, self.baton.now());
        let id = self.ground.history.lock().begin_zeros(who, now, &span);
        self.write_bytes(stripe, id, (&span, &[span[0].bytes(0)]), Guess::Unknown)
    }

    /// Cuts the stripe off. Where that fails it is to be done again before anybody else looks.
    pub(super) fn cut(&self, number: usize) -> Result<u64, Status> {
        let (who, stripe) = (self.client.who, self.ground.stripes[number]);
        self.ground.cutting.lock().insert(number);
        let all = self.ground.all(number);
        let id = self.ground.history.lock().begin_zeros(who, self.baton.now(), &all);
        let key = stripe.key;
        let done = self.groups.truncate(self.client.session, stripe.group, key.object, key.stripe);
        self.ground.history.lock().end_write(id, self.baton.now(), done.is_ok());
        if done.is_ok() {
            self.ground.cutting.lock().remove(&number);
        }
        done.map(|_| id)
    }

    /// Reads a span. Returns the number of the write that its first cell is of.
    ///
    /// # Errors
    /// Bytes that no write put there.
    pub(super) fn read(&mut self, span: &Span) -> Result<Result<u64, Status>, Wrong> {
        let mut out = vec![0xee; span.len()];
        let began = self.baton.now();
        let (offset, it) = (span.offset(), &self.ground.stripes[span.stripe]);
        match self.groups.read(it, span.place, offset, &mut out) {
            Ok(()) => {
                self.ground.note_read(span, (began, self.baton.now()), &out)?;
                Ok(Ok(super::history::id_of(&out)))
            }
            Err(status) => {
                self.ground.history.lock().failed_reads += 1;
                Ok(Err(status))
            }
        }
    }
}

/// Ends what a dead client began to cut off, then gives the stripe free: as the metadata server.
pub(super) fn end_cut(
    client: Client,
    stripe: usize,
    ground: Arc<Ground>,
    baton: Arc<Baton>,
) -> Result<(), Wrong> {
    let program = client.begin(ground, baton);
    while program.ground.is_cut_open(stripe) {
        // It is tried until it is done.
        let _ = program.cut(stripe);
    }
    program.baton.want(Want::Unlock(stripe));
    Ok(())
}

/// Brings what a node's target missed to it, as `nuri`'s worker does, and scrubs one stripe in a
/// while.
pub(super) struct Worker {
    pub(super) target: TargetId,
    /// Tells its lives apart.
    pub(super) life: u64,
    /// Starts of its machine.
    pub(super) power: u64,
    pub(super) ground: Arc<Ground>,
}

impl Worker {
    pub(super) fn run(self, baton: Arc<Baton>) -> Result<(), Wrong> {
        let groups = Groups::new(SimPort::new(baton), self.life << 32);
        let (had_time, mut is_proven) = (groups.port().now() + PROOF, false);
        let (mut kept, mut proofs) = (Kept::default(), Proofs::default());
        for round in 0.. {
            let port = groups.port();
            port.pause(if is_proven { IDLE } else { TRY_PAUSE });
            port.refresh();
            is_proven = is_proven || self.prove(&groups, had_time, &mut proofs);
            let map = port.map();
            let mine = |g: &&Group| {
                let place = g.place(self.target);
                place.is_some_and(|p| matches!(g.members[p].standing, Standing::Syncing { .. }))
            };
            let syncing: Vec<_> = map.groups.iter().filter(mine).map(|g| g.id).collect();
            for group in syncing {
                // What fails is tried again with the next round.
                let _ = self.bring_up(&groups, group, &mut kept);
            }
            self.scrub(&groups, round)?;
        }
        Ok(())
    }

    /// As `nuri`'s worker does after a start of the machine. Returns whether nothing is left.
    fn prove(&self, groups: &Groups<SimPort>, until: Duration, proofs: &mut Proofs) -> bool {
        let port = groups.port();
        let map = port.map();
        // The map that tells of this life.
        let own = map.target(self.target).filter(|t| t.machine == BootId(self.power));
        let Some(own) = own else { return false };
        let is_unproven = |g: &Group| g.place(self.target).is_some_and(|p| g.unproven().has(p));
        if !map.groups.iter().any(is_unproven) {
            return true;
        }
        let unheard = if port.now() < until { Unheard::Waited } else { Unheard::LeftOut };
        let Compared { proven, behind } = groups.prove(self.target, &map.groups, (unheard, proofs));
        if !proven.is_empty() || !behind.is_empty() {
            // What fails is tried again.
            let _ = port.ask(&TargetProved { target: self.target, boot: own.boot, proven, behind });
        }
        false
    }

    fn scrub(&self, groups: &Groups<SimPort>, round: usize) -> Result<(), Wrong> {
        let stripe = &self.ground.stripes[round / 2 % self.ground.stripes.len()];
        let group = groups.port().group(stripe.group);
        if round.is_multiple_of(2) || group.is_none_or(|g| g.place(self.target).is_none()) {
            return Ok(());
        }
        let mut verdict = Verdict::default();
        // Where members are busy or silent it is looked at another time.
        let _ = groups.scrub(stripe, &mut verdict);
        self.ground.check_verdict(&verdict)
    }

    fn bring_up(
        &self,
        groups: &Groups<SimPort>,
        group: GroupId,
        kept: &mut Kept,
    ) -> Result<(), Status> {
        let Some(missed) = groups.missed(group, self.target)? else { return Ok(()) };
        let epoch = missed.epoch();
        for key in &missed.stripes {
            let outcome = bring(groups, &missed, *key);
            if outcome == Err(Status::RETRY) && kept.is_for_long(group, epoch, groups.port().now())
            {
                groups.port().ask(&GroupRenew { group, epoch })?;
            }
            outcome?;
        }
        kept.forget(group);
        let call = MemberSynced { group, target: self.target, epoch: missed.epoch() };
        groups.port().ask(&call)
    }
}

fn bring(groups: &Groups<SimPort>, missed: &Missed, key: ChunkKey) -> Result<(), Status> {
    let mut outcome = groups.bring(missed, key);
    for _ in 0..TRIES {
        if outcome.is_ok() {
            break;
        }
        groups.port().pause(TRY_PAUSE);
        outcome = groups.bring(missed, key);
    }
    outcome.map(drop)
}

/// Reads everything on every path: from the member that has it, and with as many members left out
/// as the shape bears, in every choice.
pub(super) fn read_all(
    ground: &Ground,
    session: SessionId,
    baton: Arc<Baton>,
) -> Result<(), Wrong> {
    let groups = Groups::new(SimPort::new(baton), 0);
    groups.port().refresh();
    for (number, stripe) in ground.stripes.iter().enumerate() {
        for place in 0..ground.places(number) {
            read_place(ground, &groups, stripe, (number, place))?;
        }
        write_row(ground, &groups, session, number)?;
    }
    groups.tell_commits();
    for (number, stripe) in ground.stripes.iter().enumerate() {
        let group = groups.port().group(stripe.group).ok_or("a group is gone")?;
        let most = stripe.shape.members() - stripe.shape.data();
        for left_out in 0..1u32 << group.members.len() {
            if left_out.count_ones() as usize > most {
                continue;
            }
            let places = Members(left_out).iter();
            let without = places.map(|place| group.members[place].target).collect();
            *groups.port().without.lock() = without;
            for place in 0..ground.places(number) {
                read_place(ground, &groups, stripe, (number, place))?;
            }
        }
    }
    Ok(())
}

/// Reads what can be read.
///
/// # Errors
/// Bytes that no write put there.
pub(super) fn read_some(ground: &Ground, baton: Arc<Baton>) -> Result<(), Wrong> {
    let groups = Groups::new(SimPort::new(baton), 0);
    groups.port().refresh();
    for (number, stripe) in ground.stripes.iter().enumerate() {
        for place in 0..ground.places(number) {
            let span = ground.whole(number, place);
            let mut out = vec![0xee; span.len()];
            let began = groups.port().now().as_micros() as u64;
            if groups.read(stripe, place, 0, &mut out).is_ok() {
                let ended = groups.port().now().as_micros() as u64;
                ground.note_read(&span, (began, ended), &out)?;
            }
        }
    }
    Ok(())
}

/// One more write, after which nothing of the stripe is undecided.
fn write_row(
    ground: &Ground,
    groups: &Groups<SimPort>,
    session: SessionId,
    stripe: usize,
) -> Result<(), Wrong> {
    let now = || groups.port().now().as_micros() as u64;
    let span = |place| Span { stripe, place, cells: 0..1 };
    let spans: Vec<_> = (0..ground.places(stripe)).map(span).collect();
    let id = ground.history.lock().begin_write(usize::MAX, now(), &spans);
    let bytes: Vec<_> = spans.iter().map(|span| span.bytes(id)).collect();
    let parts = bytes.iter().enumerate();
    let parts: Vec<_> = parts.map(|(place, data)| Part { place, offset: 0, data }).collect();
    let done = groups.write(session, &ground.stripes[stripe], &parts, Guess::Unknown);
    ground.history.lock().end_write(id, now(), done.is_ok());
    done.map(drop).map_err(|s| wrong!("at the end stripe {stripe} cannot be written: {s}"))
}

fn read_place(
    ground: &Ground,
    groups: &Groups<SimPort>,
    stripe: &Stripe,
    (number, place): (usize, usize),
) -> Result<(), Wrong> {
    let span = ground.whole(number, place);
    let mut out = vec![0xee; span.len()];
    let began = groups.port().now().as_micros() as u64;
    let done = groups.read(stripe, place, 0, &mut out);
    let without = groups.port().without.lock().clone();
    let at = || format!("stripe {number} place {place} without {without:?}");
    done.map_err(|status| wrong!("at the end {} cannot be read: {status}", at()))?;
    let ended = groups.port().now().as_micros() as u64;
    ground.note_read(&span, (began, ended), &out).map_err(|e| wrong!("{}: {e}", at()))
}
