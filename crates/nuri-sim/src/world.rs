//! The world: one queue of events in virtual time, drawn from one seed.
//!
//! Faults: messages are delayed, lost, overtaken and sent again. Targets lose power at any moment,
//! also in the middle of a write. There are full targets, rotten blocks, a metadata server that
//! crashes, and wall clocks that step. After the last fault everything must come to its end in
//! bounded time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use nuri_client::machine::Goal;
use nuri_io::rng::Rng;
use nuri_proto::Status;
use nuri_proto::id::{ObjectId, TargetId};
use nuri_proto::op::meta::FileRecord;
use nuri_stripe::locate::{Piece, pieces};

use crate::check::{Latest, Wrong, wrong};
use crate::client::{Client, MetaCall};
use crate::names::Names;
use crate::target::{Answer, Ask, Target};

/// Virtual milliseconds.
type Time = u64;

/// How long one run is.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Operations of each client.
    pub operations: u64,
}

impl Default for Scale {
    fn default() -> Self {
        Scale { operations: 60 }
    }
}

/// What a run did, for those who want to see that it did something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub virtual_ms: u64,
    pub operations: u64,
    pub messages: u64,
    pub lost: u64,
    pub target_crashes: u64,
    pub client_deaths: u64,
    pub meta_crashes: u64,
    pub meta_calls: u64,
    pub refused: u64,
}

/// A client gives an operation so long before somebody asks why, virtual milliseconds.
const PATIENCE: Time = 300_000;
const RESEND: Time = 2_000;

enum Event {
    Step(usize),
    Arrive { client: usize, request: u64, attempt: u32, connection: u32 },
    Answer { client: usize, request: u64, answer: Answer },
    Timeout { client: usize, request: u64, attempt: u32 },
    Crash(usize),
    Start(usize),
    Checkpoint(usize),
}

struct Entry {
    at: Time,
    order: u64,
    event: Event,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}
impl Eq for Entry {}
impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Entry {
    fn cmp(&self, other: &Entry) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

struct World {
    rng: Rng,
    now: Time,
    order: u64,
    queue: BinaryHeap<Reverse<Entry>>,
    targets: Vec<Target>,
    clients: Vec<Client>,
    names: Names,
    scale: Scale,
    /// Faults of this seed: a run without a kind of fault reaches what others never do.
    loss: u64,
    crash_every: Time,
    quiet: bool,
    garbage: Vec<ObjectId>,
    report: Report,
}

/// Plays one seed.
///
/// # Errors
/// The promise that was broken, in words.
pub fn run(seed: u64, scale: Scale) -> Result<Report, Wrong> {
    let mut world = World::new(seed, scale)?;
    world.play()?;
    world.finish()?;
    Ok(world.report)
}

impl World {
    fn new(seed: u64, scale: Scale) -> Result<World, Wrong> {
        let mut rng = Rng::new(seed);
        let count = 3 + rng.below(2) as u32;
        // Small targets are full soon.
        let small = rng.one_in(2);
        let capacity = if small { 4 << 20 } else { 16 << 20 };
        let mut targets = Vec::new();
        for id in 0..count {
            let target = Target::new(TargetId(id), capacity)?;
            if small {
                target.fill((200 + rng.below(600)) << 10)?;
            }
            targets.push(target);
        }
        let mut names = Names::new(count)?;
        let mut clients = Vec::new();
        for number in 0..2 + rng.below(2) {
            let client = names.join(&mut rng)?;
            clients.push(Client::new(number + 1));
            for file in 0..2 {
                let name = format!("data{file}");
                let (attr, record) = names.file(client, &name, &mut rng)?;
                clients[client].add_file(name, &attr, record);
            }
        }
        let loss = [0, 12, 30][rng.below(3) as usize];
        let crash_every = [2000, 5000, 15_000][rng.below(3) as usize];
        let mut world = World {
            rng,
            now: 0,
            order: 0,
            queue: BinaryHeap::new(),
            targets,
            clients,
            names,
            scale,
            loss,
            crash_every,
            quiet: false,
            garbage: Vec::new(),
            report: Report::default(),
        };
        for client in 0..world.clients.len() {
            world.after(1, Event::Step(client));
        }
        for target in 0..world.targets.len() {
            world.plan_crash(target);
            world.after(50, Event::Checkpoint(target));
        }
        Ok(world)
    }

    fn after(&mut self, delay: Time, event: Event) {
        self.order += 1;
        let entry = Entry { at: self.now + delay, order: self.order, event };
        self.queue.push(Reverse(entry));
    }

    fn plan_crash(&mut self, target: usize) {
        let delay = 1 + self.rng.below(2 * self.crash_every);
        self.after(delay, Event::Crash(target));
    }

    fn play(&mut self) -> Result<(), Wrong> {
        while self
            .clients
            .iter()
            .any(|c| c.done < self.scale.operations || c.is_busy || !c.is_idle())
        {
            let Some(Reverse(entry)) = self.queue.pop() else {
                return Err("nothing happens any more".into());
            };
            self.now = entry.at;
            self.happen(entry.event)?;
            self.flush_outboxes();
            let oldest = self.clients.iter().filter_map(Client::oldest).min();
            if oldest.is_some_and(|since| self.now > since + PATIENCE) {
                return Err(wrong!("an operation blocks for ever, at {} ms", self.now));
            }
        }
        self.report.virtual_ms = self.now;
        Ok(())
    }

    fn happen(&mut self, event: Event) -> Result<(), Wrong> {
        match event {
            Event::Step(client) => self.step(client)?,
            Event::Arrive { client, request, attempt, connection } => {
                self.arrive(client, request, attempt, connection);
            }
            Event::Answer { client, request, answer } => {
                if matches!(answer, Answer::Refused(Status::NOSPC)) {
                    self.report.refused += 1;
                }
                let now = self.now;
                self.clients[client]
                    .answered(request, answer)
                    .map_err(|e| wrong!("client {client} at {now} ms: {e}"))?;
                self.advance(client)?;
            }
            Event::Timeout { client, request, attempt } => {
                let c = &mut self.clients[client];
                if let Some(w) = c.waiting.get(&request)
                    && w.attempt == attempt
                {
                    let target = w.target;
                    c.reconnect(target);
                }
            }
            Event::Crash(target) => {
                if self.targets[target].is_up() && !self.quiet {
                    if self.rng.one_in(2) {
                        self.targets[target].crash_soon(&mut self.rng);
                    } else {
                        self.fall(target);
                    }
                }
                self.plan_crash(target);
            }
            Event::Start(target) => self.targets[target].start()?,
            Event::Checkpoint(target) => {
                if !self.targets[target].checkpoint() {
                    self.fall(target);
                }
                let delay = 20 + self.rng.below(400);
                self.after(delay, Event::Checkpoint(target));
            }
        }
        Ok(())
    }

    fn step(&mut self, client: usize) -> Result<(), Wrong> {
        if self.quiet || self.clients[client].done >= self.scale.operations {
            return Ok(());
        }
        if self.rng.one_in(20) {
            self.names.step_clock(&mut self.rng);
        }
        if self.rng.one_in(3) {
            self.names.step(client, &mut self.rng)?;
        }
        if self.rng.one_in(40) {
            self.die(client)?;
        }
        if self.rng.one_in(25) && self.clients[client].is_idle() {
            self.empty(client)?;
        }
        let now = self.now;
        self.clients[client].begin(&mut self.rng, now)?;
        self.advance(client)
    }

    /// A file is cut to nothing.
    fn empty(&mut self, client: usize) -> Result<(), Wrong> {
        let file = self.rng.below(self.clients[client].files.len() as u64) as usize;
        let f = &self.clients[client].files[file];
        let (name, old) = (f.name.clone(), f.object);
        let object = self.names.empty(client, &name, &mut self.rng)?;
        self.clients[client].emptied(file, object);
        if object != old {
            self.garbage.push(old);
        }
        Ok(())
    }

    /// Carries out what the client's machine asks for, as far as no answer is needed.
    fn advance(&mut self, client: usize) -> Result<(), Wrong> {
        while self.clients[client].may_advance() {
            let now = self.now;
            let before = self.clients[client].waiting.len();
            let call = self.clients[client].advance(now)?;
            match call {
                Some(call) => self.tell(client, call)?,
                None if self.clients[client].waiting.len() == before => break,
                None => {}
            }
        }
        if self.clients[client].settle() {
            self.report.operations += 1;
            let delay = 1 + self.rng.below(30);
            self.after(delay, Event::Step(client));
        }
        Ok(())
    }

    /// Asks the metadata server. The client may die before it hears the answer.
    fn tell(&mut self, client: usize, call: MetaCall) -> Result<(), Wrong> {
        let (file, rng) = (call.file(), &mut self.rng);
        let ino = self.clients[client].files[file].ino;
        match &call {
            MetaCall::Extend { cut, .. } => self.names.extend(client, ino, cut.is_some(), rng)?,
            MetaCall::Publish { told, .. } => self.names.publish(client, told, rng)?,
        }
        if !self.quiet && self.rng.one_in(30) {
            let is_busy = self.clients[client].is_busy;
            self.die(client)?;
            self.clients[client].is_busy = is_busy;
            return Ok(());
        }
        self.clients[client].told(call);
        Ok(())
    }

    /// The client dies, and another one takes its files over.
    fn die(&mut self, client: usize) -> Result<(), Wrong> {
        self.report.client_deaths += 1;
        self.clients[client].died();
        self.names.died(client, &mut self.rng)?;
        for file in 0..self.clients[client].files.len() {
            let ino = self.clients[client].files[file].ino;
            let (attr, record) = self.names.take_over(client, ino, &mut self.rng)?;
            if let Some(from) = record.punch_from {
                self.cut(&record, from)?;
                self.names.cut_done(client, ino, &mut self.rng)?;
            }
            self.clients[client].take_over(file, &attr, record)?;
        }
        Ok(())
    }

    /// Takes off the targets what lies beyond the end of a file.
    fn cut(&mut self, record: &FileRecord, from: u64) -> Result<(), Wrong> {
        for component in &record.layout.components {
            let stripe = component.chunk_size.bytes() * component.shape.data() as u64;
            for group in &component.groups {
                let first = from.div_ceil(stripe) as u32;
                self.insist(group.0, &[Ask::Truncate(record.object, first)])?;
            }
            let tail = from.next_multiple_of(stripe) - from;
            for Piece { key, offset, len, group, .. } in
                pieces(&record.layout, record.object, from, tail)
            {
                self.insist(group.0, &[Ask::Punch { key, offset, len }, Ask::Flush])?;
            }
        }
        Ok(())
    }

    /// Asks until all was done by one start of the target.
    fn insist(&mut self, target: u32, asks: &[Ask]) -> Result<(), Wrong> {
        let target = target as usize;
        for _ in 0..10 {
            self.targets[target].start()?;
            let done = asks.iter().try_for_each(|ask| match self.targets[target].ask(ask) {
                Some(Answer::Done | Answer::Flushed(_)) => Ok(()),
                answer => Err(answer),
            });
            match done {
                Ok(()) => return Ok(()),
                Err(None) => self.targets[target].crash(&mut self.rng),
                Err(Some(Answer::Refused(Status::NOSPC))) => {
                    self.targets[target].checkpoint();
                }
                Err(Some(_)) => return Err(wrong!("target {target} does not cut")),
            }
        }
        Err(wrong!("target {target} never cuts"))
    }

    /// Puts what clients want to send on the wire.
    fn flush_outboxes(&mut self) {
        for client in 0..self.clients.len() {
            for request in std::mem::take(&mut self.clients[client].outbox) {
                let c = &self.clients[client];
                let Some(w) = c.waiting.get(&request) else { continue };
                let connection = c.connection.get(&w.target).copied().unwrap_or(0);
                let attempt = w.attempt;
                self.report.messages += 1;
                if !self.is_lost() {
                    let delay = self.delay();
                    self.after(delay, Event::Arrive { client, request, attempt, connection });
                }
                self.after(RESEND, Event::Timeout { client, request, attempt });
            }
        }
    }

    fn is_lost(&mut self) -> bool {
        let lost = self.loss > 0 && !self.quiet && self.rng.one_in(self.loss);
        self.report.lost += u64::from(lost);
        lost
    }

    fn delay(&mut self) -> Time {
        if self.rng.one_in(20) { self.rng.below(3 * RESEND) } else { 1 + self.rng.below(8) }
    }

    fn arrive(&mut self, client: usize, request: u64, attempt: u32, connection: u32) {
        let c = &self.clients[client];
        let Some(w) = c.waiting.get(&request) else { return };
        let current = c.connection.get(&w.target).copied().unwrap_or(0);
        let target = w.target.0 as usize;
        if current != connection || w.attempt != attempt || !self.targets[target].is_up() {
            return;
        }
        let Some(answer) = self.targets[target].ask(&w.ask) else {
            self.fall(target);
            return;
        };
        if !self.is_lost() {
            let delay = self.delay();
            self.after(delay, Event::Answer { client, request, answer });
        }
    }

    /// The target loses power and comes back later.
    fn fall(&mut self, target: usize) {
        self.report.target_crashes += 1;
        self.targets[target].crash(&mut self.rng);
        let delay = 1 + self.rng.below(3000);
        self.after(delay, Event::Start(target));
    }

    /// The end: everything is synced, everything crashes once more, everything is there.
    fn finish(&mut self) -> Result<(), Wrong> {
        self.quiet = true;
        self.report.meta_crashes = self.names.crashes();
        self.report.meta_calls = self.names.calls();
        self.names.finish(&mut self.rng)?;
        self.reopen()?;
        for file in 0..2 {
            for client in 0..self.clients.len() {
                self.clients[client].sync(file, Goal::Published, self.now);
                self.advance(client)?;
            }
            self.flush_outboxes();
            self.play()?;
        }
        self.reopen()?;
        self.check_all(Latest::Required, Rot::None)?;
        for target in 0..self.targets.len() {
            let garbage = Ask::Delete(self.garbage.clone());
            if self.targets[target].ask(&garbage).is_none() {
                return Err("deleting garbage failed".into());
            }
        }
        for client in 0..self.clients.len() {
            self.die(client)?;
        }
        self.check_all(Latest::NotRequired, Rot::None)?;
        self.targets.iter().for_each(|t| t.rot(&mut self.rng));
        self.check_all(Latest::NotRequired, Rot::Some)
    }

    /// Crashes every target, checks it while it is down, and starts it again.
    fn reopen(&mut self) -> Result<(), Wrong> {
        for target in &mut self.targets {
            target.crash(&mut self.rng);
            target.check()?;
            target.start()?;
        }
        Ok(())
    }

    fn check_all(&self, latest: Latest, rot: Rot) -> Result<(), Wrong> {
        let files = self
            .clients
            .iter()
            .flat_map(|client| (0..client.files.len()).map(move |file| (client, file)));
        for (client, file) in files {
            let history = &client.files[file].history;
            let wrong = |e| format!("at the end, {latest:?}: {e}");
            let pieces = match client.contents(file) {
                Ok(pieces) => pieces,
                Err(inline) => {
                    history.check_stored(0, inline, latest).map_err(wrong)?;
                    continue;
                }
            };
            for (piece, cells) in pieces {
                let ask = Ask::Read { key: piece.key, offset: piece.offset, len: piece.len };
                match self.targets[piece.group.0 as usize].ask(&ask) {
                    Some(Answer::Bytes(bytes)) => {
                        history.check_stored(cells.start, &bytes, latest).map_err(wrong)?;
                    }
                    Some(Answer::Refused(Status::CORRUPT)) if rot == Rot::Some => {}
                    _ => return Err(wrong!("chunk {:?} cannot be read", piece.key)),
                }
            }
        }
        Ok(())
    }
}

/// Whether blocks on the disks were damaged: then they may be refused, never returned.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rot {
    None,
    Some,
}
