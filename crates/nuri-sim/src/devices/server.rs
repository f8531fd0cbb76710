//! A server of the volume. It plays what `nuri-nbd`'s `connection.rs`, `ways.rs`, `link.rs`,
//! `door.rs` and `volume/` do together.
//!
//! The parts that decide are the real ones: the order of requests, their age, the gates for
//! forwarders, and what the volume says of its targets' memory.

use std::collections::BTreeMap;
use std::time::Instant;

use nuri_nbd::peer::{Gates, ServerClock, Until, Way};
use nuri_nbd::volume::{Mark, is_sure};
use nuri_nbd::{AGE, Age, Arrivals, Unanswered, Use, is_over};

use super::Ground;
use super::wire::{Act, Message, Place, Request};

/// How often a way is looked for, and the metadata server told that this one lives.
const SEEK: u64 = 200;
const BEAT: u64 = 500;
/// How often the owner is asked for its time, and when one that says nothing is given up.
const ASK: u64 = 500;
const SILENT: u64 = 3000;
/// How long an owner that was not reached is not called.
const MISSED: u64 = 3000;
/// Since when the metadata server must have been heard by who vouches for something.
const HEARD: u64 = 3000;

struct Reader {
    age: Age,
    /// It forwards what clients of another server ask.
    way: Option<Way>,
    unanswered: Unanswered,
    /// It is closed when nothing that was forwarded can be served any more.
    is_leaving: bool,
    /// All its threads are at work until then. One who forwards always finds one that reads.
    busy: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// For its turn, and for a way.
    Waits,
    /// The targets do it then, in this session.
    Acts { at: u64, session: u64 },
    /// It is done, with this outcome; only whether this server still owns the volume is not sure.
    Vouches(Result<u64, ()>),
    /// By this way, under a number of the unanswered ones.
    Sent(u64, u64),
}

struct Task {
    request: Request,
    wire: usize,
    deadline: Instant,
    /// In the order of requests; a flush has none.
    arrived: Option<u64>,
    /// Of one that was forwarded.
    forwarded: Option<(Way, Until)>,
    is_inside: bool,
    stage: Stage,
}

/// The volume, where this server owns it.
pub struct Own {
    pub session: u64,
    gates: Gates,
    clock: ServerClock,
    mark: Mark,
    /// What targets have in memory, of this server's time.
    unflushed: BTreeMap<usize, u64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    Own,
    /// By a connection.
    Link(usize),
}

struct Link {
    stamp: Option<(u32, Instant)>,
    asked: Option<u64>,
    ask_at: u64,
    heard: u64,
}

/// A connection that is being made to an owner.
pub struct Dial {
    pub from: usize,
    pub wire: usize,
    pub owner: usize,
    pub secret: u64,
    pub way: Way,
    pub since: u64,
    pub is_known: bool,
}

pub struct Server {
    number: usize,
    forwarder: u64,
    attempts: u64,
    session: Option<u64>,
    heard: u64,
    beat_at: u64,
    order: Arrivals,
    tasks: BTreeMap<u64, Task>,
    last_task: u64,
    readers: BTreeMap<usize, Reader>,
    pub own: Option<Own>,
    way: Option<(u64, Found)>,
    ways: u64,
    link: Option<Link>,
    seek_at: u64,
    is_dialing: bool,
    missed: Option<((usize, u64), u64)>,
}

impl Server {
    /// A new start; `forwarder` is drawn anew each time.
    pub fn new(number: usize, forwarder: u64) -> Server {
        Server {
            number,
            forwarder,
            attempts: 0,
            session: None,
            heard: 0,
            beat_at: 0,
            order: Arrivals::default(),
            tasks: BTreeMap::new(),
            last_task: 0,
            readers: BTreeMap::new(),
            own: None,
            way: None,
            ways: 0,
            link: None,
            seek_at: 0,
            is_dialing: false,
            missed: None,
        }
    }

    fn place(&self) -> Place {
        Place::Server(self.number)
    }

    pub fn act(&mut self, g: &mut Ground) {
        self.beat(g);
        for wire in self.readers.keys().copied().collect::<Vec<_>>() {
            self.read(wire, g);
        }
        self.read_link(g);
        for task in self.tasks.keys().copied().collect::<Vec<_>>() {
            self.advance(task, g);
        }
        self.seek(g);
    }

    fn beat(&mut self, g: &mut Ground) {
        if g.now < self.beat_at || !g.is_whole(self.place(), Place::Metadata) {
            return;
        }
        self.beat_at = g.now + BEAT;
        self.heard = g.now;
        if !self.session.is_some_and(|session| g.metadata.hear(session, g.now)) {
            self.session = Some(g.metadata.open_session(g.now));
            self.own = None;
        }
    }

    /// A client connected, or one who forwards.
    pub fn accept(&mut self, wire: usize, way: Option<Way>, now: Instant) {
        let (age, unanswered) = (Age::new(now), Unanswered::default());
        let (is_leaving, busy) = (false, 0);
        self.readers.insert(wire, Reader { age, way, unanswered, is_leaving, busy });
    }

    fn read(&mut self, wire: usize, g: &mut Ground) {
        let now = g.instant();
        let Some(reader) = self.readers.get_mut(&wire) else { return };
        if reader.is_leaving {
            if reader.unanswered.until(now).is_none() {
                self.close(wire, g);
            }
            return;
        }
        if g.now < reader.busy {
            return;
        }
        if reader.age.is_stale(now) && g.rng.one_in(20) {
            let heard = g.at(g.wires[wire].heard(1));
            reader.age.look(g.wires[wire].waiting(1), now, heard);
        }
        while let Some(message) = g.wires[wire].receive(1) {
            let Some(reader) = self.readers.get_mut(&wire) else { return };
            reader.age.took(1);
            let (deadline, way) = (reader.age.since() + AGE, reader.way);
            match message {
                Message::Ask(request) => self.take((request, None), wire, deadline, g),
                Message::Forward(request, until) => {
                    self.take((request, way.map(|way| (way, until))), wire, deadline, g);
                }
                Message::AskTime => match &self.own {
                    Some(own) => {
                        let stamp = own.clock.stamp_at(now);
                        g.wires[wire].send(1, Message::Time(stamp), g.now);
                    }
                    None => g.wires[wire].close(1, g.now),
                },
                _ => {}
            }
            if g.rng.one_in(8) {
                let long = if way.is_none() && g.rng.one_in(40) { 3000 } else { 20 };
                if let Some(reader) = self.readers.get_mut(&wire) {
                    reader.busy = g.now + g.rng.below(long);
                }
                return;
            }
        }
        let is_idle = self.tasks.values().all(|task| task.wire != wire);
        if is_idle && g.wires[wire].is_left(1) {
            self.close(wire, g);
        }
    }

    fn close(&mut self, wire: usize, g: &mut Ground) {
        g.wires[wire].close(1, g.now);
        let way = self.readers.remove(&wire).and_then(|reader| reader.way);
        if let (Some(own), Some(way)) = (&mut self.own, way) {
            own.gates.close(way);
        }
    }

    /// Whether a client has left, or will be left.
    fn is_left(&self, wire: usize, g: &Ground) -> bool {
        g.wires[wire].is_left(1) || self.readers.get(&wire).is_none_or(|reader| reader.is_leaving)
    }

    fn take(
        &mut self,
        (request, forwarded): (Request, Option<(Way, Until)>),
        wire: usize,
        deadline: Instant,
        g: &Ground,
    ) {
        let arrived = match request.act {
            Act::Flush => None,
            Act::Read(block) => Some((block as u64, Use::Reads)),
            Act::Write(block, _) => Some((block as u64, Use::Changes)),
        };
        let arrived = arrived.map(|(at, how)| self.order.arrive(at, at + 1, how));
        if g.wires[wire].is_left(1) {
            arrived.map(|number| self.order.end(number));
            return;
        }
        self.last_task += 1;
        let (is_inside, stage) = (false, Stage::Waits);
        let task = Task { request, wire, deadline, arrived, forwarded, is_inside, stage };
        self.tasks.insert(self.last_task, task);
    }

    fn advance(&mut self, id: u64, g: &mut Ground) {
        let Some(task) = self.tasks.get(&id) else { return };
        match task.stage {
            Stage::Waits if task.arrived.is_some_and(|number| !self.order.may_run(number)) => {}
            Stage::Waits if is_over(task.deadline, g.instant()) => self.leave(id, g),
            Stage::Waits if task.forwarded.is_some() => self.enter(id, g),
            Stage::Waits => self.send_by_way(id, g),
            Stage::Acts { at, session } if at <= g.now => self.have_done(id, session, g),
            Stage::Acts { .. } => {}
            Stage::Vouches(outcome) => self.vouch(id, outcome, g),
            Stage::Sent(way, _) if self.way.is_none_or(|(known, _)| known != way) => {
                self.set(id, Stage::Waits);
            }
            Stage::Sent(..) => {}
        }
    }

    fn set(&mut self, id: u64, stage: Stage) {
        if let Some(task) = self.tasks.get_mut(&id) {
            task.stage = stage;
        }
    }

    /// It is not answered, and its client is left.
    fn leave(&mut self, id: u64, g: &mut Ground) {
        let Some(task) = self.end(id) else { return };
        if let Some(reader) = self.readers.get_mut(&task.wire) {
            reader.is_leaving = true;
        }
        g.report.left += 1;
    }

    fn end(&mut self, id: u64) -> Option<Task> {
        let task = self.tasks.remove(&id)?;
        task.arrived.map(|number| self.order.end(number));
        if let (Some(own), Some((way, _)), true) = (&mut self.own, task.forwarded, task.is_inside) {
            own.gates.leave(way);
        }
        Some(task)
    }

    fn answer(&mut self, id: u64, outcome: Result<u64, ()>, g: &mut Ground) {
        let Some(task) = self.end(id) else { return };
        if let (Some(reader), Stage::Sent(_, sent)) = (self.readers.get_mut(&task.wire), task.stage)
        {
            reader.unanswered.answered(sent);
        }
        let answer = Message::Answer(task.request.number, outcome);
        g.wires[task.wire].send(1, answer, g.now);
    }

    /// A request that another server forwarded.
    fn enter(&mut self, id: u64, g: &mut Ground) {
        let Some(Task { forwarded: Some((way, until)), .. }) = self.tasks.get(&id) else { return };
        let (way, until) = (*way, *until);
        let Some(own) = &mut self.own else { return self.leave(id, g) };
        if !own.gates.enter(way) {
            return self.leave(id, g);
        }
        let stamp = own.clock.stamp_at(g.instant());
        if let Some(task) = self.tasks.get_mut(&id) {
            task.is_inside = true;
        }
        match until.is_over(stamp) {
            true => self.leave(id, g),
            false => self.begin(id, g),
        }
    }

    fn is_ours(&self) -> bool {
        self.own.as_ref().is_some_and(|own| Some(own.session) == self.session)
    }

    /// This server owns the volume.
    fn begin(&mut self, id: u64, g: &mut Ground) {
        if !self.is_ours() {
            return self.leave(id, g);
        }
        let Some(own) = &mut self.own else { return };
        let is_write = self.tasks.get(&id).is_some_and(|t| matches!(t.request.act, Act::Write(..)));
        if is_write && g.is_stripe && own.mark == Mark::Clean {
            // No write is answered before the volume says where it lies.
            own.mark = Mark::InMemory(g.store.settle());
            g.metadata.mark = own.mark.clone();
        }
        let long = if g.rng.one_in(60) { 3000 } else { 60 };
        let (at, session) = (g.now + 1 + g.rng.below(long), own.session);
        self.set(id, Stage::Acts { at, session });
    }

    /// The targets do what was asked, or refuse the session.
    fn have_done(&mut self, id: u64, session: u64, g: &mut Ground) {
        let Some(act) = self.tasks.get(&id).map(|task| task.request.act) else { return };
        let is_durable = !g.is_stripe;
        let Some(own) = self.own.as_mut().filter(|own| own.session == session) else {
            return self.leave(id, g);
        };
        let has_work = matches!(act, Act::Write(..)) || !own.unflushed.is_empty();
        if has_work && !matches!(act, Act::Read(_)) && !g.metadata.admits(session) {
            return self.leave(id, g);
        }
        let outcome = match act {
            Act::Read(block) => {
                Ok(own.unflushed.get(&block).copied().unwrap_or_else(|| g.store.read(block)))
            }
            Act::Write(block, value) => {
                g.store.write(block, value, is_durable);
                if !is_durable {
                    own.unflushed.insert(block, value);
                }
                return self.answer(id, Ok(value), g);
            }
            Act::Flush if own.mark == Mark::Doubtful => Err(()),
            Act::Flush => {
                for (block, value) in std::mem::take(&mut own.unflushed) {
                    g.store.write(block, value, true);
                }
                Ok(0)
            }
        };
        self.set(id, Stage::Vouches(outcome));
    }

    /// One that is cut off may own the volume no more.
    fn vouch(&mut self, id: u64, outcome: Result<u64, ()>, g: &mut Ground) {
        let Some(task) = self.tasks.get(&id) else { return };
        let is_heard = g.now - self.heard < HEARD;
        if is_sure(self.is_ours(), is_heard) {
            self.answer(id, outcome, g);
        } else if !self.is_ours() || is_over(task.deadline, g.instant()) {
            self.leave(id, g);
        }
    }

    /// A request of a client of this server.
    fn send_by_way(&mut self, id: u64, g: &mut Ground) {
        let Some(Task { request, wire, deadline, .. }) = self.tasks.get(&id) else { return };
        let (request, deadline, from) = (*request, *deadline, *wire);
        if self.is_left(from, g) {
            return self.leave(id, g);
        }
        match self.way {
            Some((_, Found::Own)) if self.is_ours() => self.begin(id, g),
            Some((_, Found::Own)) => self.way = None,
            Some((number, Found::Link(wire))) => {
                let Some(stamp) = self.link.as_ref().and_then(|link| link.stamp) else { return };
                let until = Until::of(deadline, stamp);
                let Some(reader) = self.readers.get_mut(&from) else { return };
                let sent = reader.unanswered.sent(deadline, g.instant());
                g.wires[wire].send(0, Message::Forward(request, until), g.now);
                g.report.forwarded += 1;
                self.set(id, Stage::Sent(number, sent));
            }
            None if g.at(g.now + SEEK) >= deadline => self.leave(id, g),
            None => {}
        }
    }

    /// Answers of the owner, and its time.
    fn read_link(&mut self, g: &mut Ground) {
        let Some((_, Found::Link(wire))) = self.way else { return };
        while let Some(message) = g.wires[wire].receive(0) {
            let Some(link) = &mut self.link else { return };
            link.heard = g.now;
            match message {
                Message::Time(stamp) => {
                    (link.stamp, link.asked) = (Some((stamp, g.instant())), None);
                    link.ask_at = g.now + ASK;
                }
                Message::Answer(number, outcome) => self.hear(number, outcome, g),
                _ => {}
            }
        }
        let Some(link) = &mut self.link else { return };
        if g.wires[wire].is_left(0) || g.now - link.heard >= SILENT {
            let is_whole = g.is_whole(g.wires[wire].place(0), g.wires[wire].place(1));
            g.wires[wire].leave(0, is_whole);
            (self.way, self.link) = (None, None);
        } else if link.asked.is_none() && link.ask_at <= g.now {
            link.asked = Some(g.now);
            g.wires[wire].send(0, Message::AskTime, g.now);
        }
    }

    fn hear(&mut self, number: u64, outcome: Result<u64, ()>, g: &mut Ground) {
        let is_it =
            |task: &Task| task.request.number == number && matches!(task.stage, Stage::Sent(..));
        let found = self.tasks.iter().find(|(_, task)| is_it(task)).map(|(id, _)| *id);
        if let Some(id) = found {
            self.answer(id, outcome, g);
        }
    }

    /// Takes the volume, or calls who owns it.
    fn seek(&mut self, g: &mut Ground) {
        let wants = |task: &Task| task.stage == Stage::Waits && task.forwarded.is_none();
        let is_wanted = self.way.is_none() && self.tasks.values().any(wants);
        if !is_wanted || self.is_dialing || g.now < self.seek_at {
            return;
        }
        self.seek_at = g.now + SEEK;
        let Some(session) = self.session else { return };
        if self.is_ours() {
            self.find(Found::Own);
        } else if !g.is_whole(self.place(), Place::Metadata) {
        } else if g.metadata.lock(session) {
            self.own(session, g);
        } else if let Some(owner) = g.metadata.owner {
            let is_missed =
                |(known, at): &((usize, u64), u64)| *known == owner && g.now - at < MISSED;
            if owner.0 != self.number && !self.missed.as_ref().is_some_and(is_missed) {
                self.dial(owner, g);
            }
        }
    }

    fn find(&mut self, found: Found) {
        self.ways += 1;
        self.way = Some((self.ways, found));
    }

    /// The volume is locked by this server.
    fn own(&mut self, session: u64, g: &mut Ground) {
        let mark = match g.metadata.mark.clone() {
            Mark::Clean => Mark::Clean,
            mark => mark.settled(&g.store.settle()),
        };
        g.report.doubts += u64::from(mark == Mark::Doubtful && g.metadata.mark != mark);
        g.metadata.mark = mark.clone();
        g.metadata.owner = Some((self.number, session));
        g.report.takeovers += 1;
        let clock = ServerClock::from(g.instant());
        let (gates, unflushed) = (Gates::default(), BTreeMap::new());
        self.own = Some(Own { session, gates, clock, mark, unflushed });
        self.find(Found::Own);
    }

    fn dial(&mut self, (owner, secret): (usize, u64), g: &mut Ground) {
        self.attempts += 1;
        let way = Way { forwarder: self.forwarder, attempt: self.attempts };
        let wire = g.connect((self.place(), Place::Server(owner)), u64::MAX);
        let (from, since, is_known) = (self.number, g.now, false);
        g.dials.push(Dial { from, wire, owner, secret, way, since, is_known });
        self.is_dialing = true;
    }

    /// One who forwards is at the door: `None` while something older of it is inside.
    pub fn open(&mut self, dial: &mut Dial, now: Instant) -> Option<bool> {
        let Some(own) = self.own.as_mut().filter(|own| own.session == dial.secret) else {
            return Some(false);
        };
        if !dial.is_known && !own.gates.open(dial.way) {
            return Some(false);
        }
        dial.is_known = true;
        if !own.gates.is_clear(dial.way) {
            return None;
        }
        self.accept(dial.wire, Some(dial.way), now);
        Some(true)
    }

    /// How a connection to an owner went.
    pub fn dialed(&mut self, dial: &Dial, is_open: bool, now: u64) {
        self.is_dialing = false;
        if is_open {
            self.find(Found::Link(dial.wire));
            self.link = Some(Link { stamp: None, asked: None, ask_at: now, heard: now });
        } else {
            self.missed = Some(((dial.owner, dial.secret), now));
        }
    }
}
