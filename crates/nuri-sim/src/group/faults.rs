//! Which faults happen in a run, and how often: drawn from the seed, or set by a scenario.

use nuri_io::rng::Rng;
use nuri_proto::id::SessionId;
use nuri_proto::layout::Shape;
use nuri_proto::op::cluster::Admitted;

use super::actors::{Client, end_cut};
use super::net::{Host, Weather};
use super::world::{Event, Time, World};
use crate::check::Wrong;

/// A kind of fault that comes again and again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Fault {
    /// A node loses power.
    Crash,
    /// All of them at once.
    CrashAll,
    /// Two hosts do not hear each other, or one does not hear the other.
    Cut,
    /// A host does nothing for a while: longer than its leases, sometimes.
    Freeze,
    /// A client dies, and is another one afterwards.
    Death,
    /// A disk answers seconds later than it should, for a while.
    Slow,
    /// A disk has no room for anything new, for a while.
    Full,
    /// The authority's process dies and starts again.
    Authority,
    /// A disk is lost; an empty one takes its place.
    Wipe,
    /// A disk becomes what it was some time ago.
    Restore,
    /// A bit of a chunk turns over.
    Rot,
    /// A node loses power, and its disk all that it said was durable since a moment ago.
    Lie,
}

impl Fault {
    /// Whether it takes away what was durable.
    fn is_harm(self) -> bool {
        matches!(self, Fault::Wipe | Fault::Restore | Fault::Rot | Fault::Lie)
    }
}

/// How many members may be harmed, or away while others are, at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Budget {
    /// As many as every shape of the run bears: all promises hold.
    Kept,
    /// Any number: an error or the right bytes, never wrong ones.
    Exceeded,
}

/// The rules of one run.
#[derive(Clone, Debug)]
pub struct Plan {
    pub shapes: Vec<Shape>,
    pub nodes: u32,
    pub stripes: u64,
    pub clients: u64,
    /// Of each client.
    pub operations: u64,
    pub is_leased: bool,
    pub(super) weather: Weather,
    /// Kinds of faults, and the mean time between two of a kind, virtual microseconds.
    pub faults: Vec<(Fault, Time)>,
    /// Deaths of clients, at most.
    pub deaths: u64,
    pub budget: Budget,
}

pub(super) const SHAPES: [Shape; 4] = [
    Shape::Mirror(2),
    Shape::Mirror(3),
    Shape::Parity { k: 3, m: 1 },
    Shape::Parity { k: 2, m: 2 },
];

impl Plan {
    /// A run without a kind of fault reaches what others never do.
    pub(super) fn draw(rng: &mut Rng) -> Plan {
        let mut some = |all: &[u64]| all[rng.below(all.len() as u64) as usize];
        let weather =
            Weather { loss: some(&[0, 15, 60]), twice: some(&[0, 20]), late: some(&[0, 100]) };
        let second: Time = 1_000_000;
        let kinds = [
            (Fault::Crash, some(&[0, 2, 6])),
            (Fault::CrashAll, some(&[0, 0, 20])),
            (Fault::Cut, some(&[0, 2, 8])),
            (Fault::Freeze, some(&[0, 4, 10])),
            (Fault::Death, some(&[0, 4])),
            (Fault::Slow, some(&[0, 0, 5])),
            (Fault::Full, some(&[0, 0, 5])),
            (Fault::Authority, some(&[0, 0, 8])),
        ];
        let harm = some(&[0, 0, 0, 1, 1, 2]);
        let mut harms = |fault, happens| (fault, some(&[0, 2, 5]) * u64::from(happens));
        let harms = [
            harms(Fault::Wipe, harm > 0),
            // Beyond the budget an older state is refused, but not for ever: see docs/testing.md.
            harms(Fault::Restore, harm == 1),
            harms(Fault::Rot, harm > 0),
            harms(Fault::Lie, harm == 1),
        ];
        let kinds = kinds.into_iter().chain(harms);
        let happens = kinds.filter(|(_, every)| *every > 0);
        Plan {
            shapes: vec![
                SHAPES[some(&[0, 1, 2, 3]) as usize],
                SHAPES[some(&[0, 1, 2, 3]) as usize],
            ],
            nodes: 5 + some(&[0, 0, 1]) as u32,
            stripes: some(&[1, 2, 5]),
            clients: some(&[2, 3]),
            operations: 25,
            is_leased: some(&[0, 1, 1]) == 1,
            weather,
            faults: happens.map(|(fault, every)| (fault, every * second)).collect(),
            deaths: 3,
            budget: if harm == 2 { Budget::Exceeded } else { Budget::Kept },
        }
    }
}

impl World {
    /// Begins the plan's faults.
    pub(super) fn plan_faults(&mut self) {
        for (fault, every) in self.plan.faults.clone() {
            let delay = self.rng.below(2 * every);
            self.after(delay, Event::Fault(fault));
        }
    }

    /// # Errors
    /// What falls over wrongly.
    pub(super) fn fault(&mut self, fault: Fault) -> Result<(), Wrong> {
        let planned = self.plan.faults.iter().find(|(kind, _)| *kind == fault);
        let Some(every) = planned.map(|(_, every)| *every) else { return Ok(()) };
        let node = self.rng.below(self.nodes.len() as u64) as usize;
        match fault {
            fault if fault.is_harm() => self.harm(fault, node)?,
            Fault::Crash if self.may_trouble(Host::Node(node)) => self.crash(node)?,
            Fault::CrashAll if self.hurt.is_empty() => {
                (0..self.nodes.len()).try_for_each(|node| self.crash(node))?;
            }
            Fault::Cut => self.cut_some(),
            Fault::Slow if self.may_trouble(Host::Node(node)) => {
                let until = self.now + self.rng.below(5_000_000);
                self.slow.insert(node, until);
            }
            Fault::Full => self.fill(node),
            Fault::Authority => self.stop_authority()?,
            Fault::Freeze => {
                let host = self.some_host();
                if !self.may_trouble(host) {
                    return self.again(fault, every);
                }
                let time = [100_000, 1_500_000, 5_000_000][self.rng.below(3) as usize];
                let until = self.now + self.rng.below(time);
                self.frozen.insert(host, until);
                self.report.freezes += 1;
            }
            Fault::Death if self.report.deaths < self.plan.deaths => self.kill_client()?,
            _ => {}
        }
        self.again(fault, every)
    }

    fn again(&mut self, fault: Fault, every: Time) -> Result<(), Wrong> {
        let delay = 1 + self.rng.below(2 * every);
        self.after(delay, Event::Fault(fault));
        Ok(())
    }

    fn crash(&mut self, node: usize) -> Result<(), Wrong> {
        if self.nodes[node].server.is_none() {
            return Ok(());
        }
        if self.rng.one_in(2) {
            self.nodes[node].crash_soon(&mut self.rng);
            return Ok(());
        }
        self.fall(node)
    }

    fn some_host(&mut self) -> Host {
        let (nodes, clients) = (self.nodes.len() as u64, self.plan.clients);
        match self.rng.below(nodes + clients) {
            n if n < nodes => Host::Node(n as usize),
            n => Host::Client((n - nodes) as usize),
        }
    }

    /// One host is cut off from another, from the authority, or from all; one way or both.
    fn cut_some(&mut self) {
        let host = self.some_host();
        if !self.may_trouble(host) {
            return;
        }
        let time = [500_000, 3_000_000, 8_000_000][self.rng.below(3) as usize];
        let until = self.now + self.rng.below(time);
        let nodes = (0..self.nodes.len()).map(Host::Node);
        let clients = (0..self.plan.clients as usize).map(Host::Client);
        let all: Vec<_> = nodes.chain(clients).chain([Host::Authority]).collect();
        let others = match self.rng.below(3) {
            0 => vec![Host::Authority],
            1 => vec![all[self.rng.below(all.len() as u64) as usize]],
            _ => all,
        };
        let ways = self.rng.below(3);
        for other in others {
            if ways != 1 {
                self.net.cut(host, other, until);
            }
            if ways != 2 {
                self.net.cut(other, host, until);
            }
        }
        self.report.cuts += 1;
    }

    /// A client dies where it stands; what it had is free once it is fenced.
    fn kill_client(&mut self) -> Result<(), Wrong> {
        let lives =
            |s: &&super::world::Slot| matches!(s.host, Host::Client(_)) && !s.actor.has_ended();
        let all: Vec<_> = (0..self.slots.len()).filter(|i| lives(&&self.slots[*i])).collect();
        if all.is_empty() {
            return Ok(());
        }
        let dead = all[self.rng.below(all.len() as u64) as usize];
        self.slots[dead].actor.end()?;
        self.report.deaths += 1;
        let Host::Client(who) = self.slots[dead].host else { return Ok(()) };
        self.ground.history.lock().died(who, self.now);
        let had = self.locks.died(dead);
        self.add_client(who)?;
        let version = self.admit();
        self.fences.push((version, had));
        self.after(1, Event::Fence);
        Ok(())
    }

    /// # Errors
    /// No thread.
    pub(super) fn add_client(&mut self, who: usize) -> Result<(), Wrong> {
        self.sessions += 1;
        let session = SessionId(self.sessions);
        let client = Client { who, session, seed: self.rng.next() };
        let ground = self.ground.clone();
        self.add_actor(Host::Client(who), session, |baton| client.run(ground, baton))?;
        Ok(())
    }

    /// Targets accept changes of clients that live, from when they hear of it. Returns the number
    /// of the list.
    pub(super) fn admit(&mut self) -> u64 {
        self.admitted += 1;
        let is_client = |s: &&super::world::Slot| !matches!(s.host, Host::Node(_));
        let alive = self.slots.iter().filter(is_client).filter(|s| !s.actor.has_ended());
        let live = alive.map(|s| s.session).collect();
        let horizon = SessionId(self.sessions);
        self.list = Admitted { version: self.admitted, horizon, live };
        self.authority.admit(self.list.clone());
        self.admitted
    }

    /// Nobody has the stripe any more, once a cut that was begun is done.
    fn give_free(&mut self, stripe: usize) -> Result<(), Wrong> {
        if !self.ground.is_cut_open(stripe) {
            self.unlock(stripe);
            return Ok(());
        }
        self.sessions += 1;
        let session = SessionId(self.sessions);
        let client = Client { who: usize::MAX, session, seed: 0 };
        let ground = self.ground.clone();
        self.add_actor(Host::Authority, session, move |b| end_cut(client, stripe, ground, b))?;
        Ok(())
    }

    /// Frees what dead clients had, as soon as nothing of them can happen any more.
    ///
    /// # Errors
    /// No thread.
    pub(super) fn fence(&mut self) -> Result<(), Wrong> {
        let fences = std::mem::take(&mut self.fences);
        for (version, had) in fences {
            if self.authority.is_in_force(version) {
                had.into_iter().try_for_each(|stripe| self.give_free(stripe))?;
            } else {
                self.fences.push((version, had));
            }
        }
        if !self.fences.is_empty() {
            self.after(100_000, Event::Fence);
        }
        Ok(())
    }

    /// Nothing goes wrong any more.
    ///
    /// # Errors
    /// What falls over wrongly.
    pub(super) fn calm(&mut self) -> Result<(), Wrong> {
        self.plan.faults.clear();
        self.net.heal();
        self.frozen.clear();
        self.slow.clear();
        (0..self.nodes.len()).try_for_each(|node| self.make_room(node))?;
        let dying: Vec<_> = (0..self.nodes.len()).filter(|n| self.nodes[*n].dying).collect();
        dying.into_iter().try_for_each(|node| self.fall(node))
    }
}
