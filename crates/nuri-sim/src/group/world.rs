//! The world: one queue of events in virtual time, and everything that they happen to.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nuri_cluster::authority::Authority;
use nuri_io::buf::BufPool;
use nuri_io::clock::ManualClock;
use nuri_io::rng::Rng;
use nuri_proto::Status;
use nuri_proto::checksum::{crc64, mix};
use nuri_proto::clock::MEMBER_TIMEOUT;
use nuri_proto::id::{ChunkKey, SessionId};
use nuri_proto::limit::MAX_PAYLOAD;
use nuri_proto::op::Op;
use nuri_proto::op::cluster::Admitted;
use nuri_proto::stripe::Covers;

use super::baton::{Actor, Answer, Packet, Want};
use super::faults::{Fault, Plan};
use super::ground::Ground;
use super::harm::{Injury, Kept, Snapshot};
use super::net::{Back, Fate, Held, Host, Net};
use super::node::{Node, call};
use super::report::Report;
use crate::check::Wrong;

/// Virtual microseconds.
pub(super) type Time = u64;

/// An actor asks the authority so long.
const AUTHORITY_PATIENCE: Time = 2_000_000;

/// A slow disk takes so long at most.
const SLOW: Time = 2_500_000;

pub(super) enum Event {
    Go {
        actor: usize,
        answers: Vec<Answer>,
    },
    Arrive {
        from: Host,
        to: Host,
        packet: Rc<Packet>,
        back: Back,
        /// The boot of the node that the packet's connection leads to, where that counts.
        life: Option<u64>,
    },
    Return {
        to: Host,
        back: Back,
        answer: Answer,
    },
    Patience {
        exchange: u64,
    },
    Beat {
        node: usize,
        boots: u64,
    },
    Start(usize),
    Checkpoint(usize),
    /// The node's regular heartbeat.
    Pulse {
        node: usize,
        boots: u64,
    },
    Fault(Fault),
    Fence,
    /// Somebody looks after what was harmed.
    Tend,
    /// A node loses power, and its disk what it took since it was this.
    PowerOff {
        node: usize,
        boots: u64,
        kept: Box<nuri_io::mem::MemDisk>,
    },
    /// A disk has room again.
    Roomy(usize),
    AuthorityStarts,
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

/// An actor and where it lives.
pub(super) struct Slot {
    pub(super) actor: Actor,
    pub(super) host: Host,
    pub(super) session: SessionId,
}

struct Exchange {
    actor: usize,
    answers: Vec<Option<Answer>>,
}

/// See the module's text.
pub(super) struct World {
    pub(super) rng: Rng,
    pub(super) now: Time,
    clock: Arc<AtomicU64>,
    order: u64,
    queue: BinaryHeap<Reverse<Entry>>,
    pub(super) plan: Plan,
    pub(super) net: Net,
    /// Nothing happens at these until then.
    pub(super) frozen: BTreeMap<Host, Time>,
    /// Nodes whose disks are slow until then.
    pub(super) slow: BTreeMap<usize, Time>,
    /// Nodes whose disks lost something that is not made good yet.
    pub(super) hurt: BTreeMap<usize, Injury>,
    /// Disks that lied and whose machines have not lost power yet: that comes whatever is calm.
    pub(super) lies: usize,
    /// What disks were.
    pub(super) snapshots: BTreeMap<usize, Snapshot>,
    pub(super) kept: Kept,
    pub(super) authority_is_up: bool,
    pub(super) list: Admitted,
    pub(super) authority: Authority,
    pub(super) authority_clock: Arc<ManualClock>,
    pub(super) nodes: Vec<Node>,
    pub(super) slots: Vec<Slot>,
    exchanges: BTreeMap<u64, Exchange>,
    next_exchange: u64,
    pub(super) locks: super::locks::Locks,
    pub(super) ground: Arc<Ground>,
    /// The furthest that each node's target ever covered a stripe.
    pub(super) reached: BTreeMap<(usize, ChunkKey), Covers>,
    /// The last session opened, and the last list of those that targets admit.
    pub(super) sessions: u64,
    pub(super) admitted: u64,
    /// Lists to be in force before these stripes are free.
    pub(super) fences: Vec<(u64, Vec<usize>)>,
    buffers: BufPool,
    pub(super) traces: bool,
    /// Changes of what is committed, so far.
    pub(super) changes: u64,
    pub(super) report: Report,
}

impl World {
    pub(super) fn new(
        rng: Rng,
        plan: Plan,
        nodes: Vec<Node>,
        (authority, authority_clock, kept): (Authority, Arc<ManualClock>, Kept),
        ground: Ground,
    ) -> World {
        World {
            rng,
            now: 0,
            clock: Arc::default(),
            order: 0,
            queue: BinaryHeap::new(),
            net: Net::new(plan.weather),
            plan,
            frozen: BTreeMap::new(),
            slow: BTreeMap::new(),
            hurt: BTreeMap::new(),
            lies: 0,
            snapshots: BTreeMap::new(),
            kept,
            authority_is_up: true,
            list: Admitted::default(),
            authority,
            authority_clock,
            nodes,
            slots: Vec::new(),
            exchanges: BTreeMap::new(),
            next_exchange: 0,
            locks: super::locks::Locks::new(ground.stripes.len()),
            ground: Arc::new(ground),
            reached: BTreeMap::new(),
            sessions: 0,
            admitted: 0,
            fences: Vec::new(),
            buffers: BufPool::new(MAX_PAYLOAD, 1),
            changes: 0,
            traces: super::trace::is_wanted(),
            report: Report::default(),
        }
    }

    pub(super) fn after(&mut self, delay: Time, event: Event) {
        self.order += 1;
        let entry = Entry { at: self.now + delay, order: self.order, event };
        self.queue.push(Reverse(entry));
    }

    /// Lets the next event happen.
    ///
    /// # Errors
    /// A promise that was broken.
    pub(super) fn step(&mut self) -> Result<(), Wrong> {
        let Some(Reverse(entry)) = self.queue.pop() else {
            return Err("nothing happens any more".into());
        };
        let passed = entry.at - self.now;
        self.now = entry.at;
        self.clock.store(self.now, Ordering::SeqCst);
        self.authority_clock.advance(std::time::Duration::from_micros(passed));
        if let Some(until) = self.frozen_until(&entry.event) {
            let delay = until - self.now;
            self.after(delay, entry.event);
            return Ok(());
        }
        self.happen(entry.event)
    }

    fn frozen_until(&self, event: &Event) -> Option<Time> {
        let host = match event {
            Event::Go { actor, .. } => self.slots[*actor].host,
            Event::Arrive { to, .. } | Event::Return { to, .. } => *to,
            Event::Patience { exchange } => {
                let exchange = self.exchanges.get(exchange)?;
                self.slots[exchange.actor].host
            }
            Event::Beat { node, .. } | Event::Pulse { node, .. } | Event::Checkpoint(node) => {
                Host::Node(*node)
            }
            _ => return None,
        };
        self.frozen.get(&host).copied().filter(|until| *until > self.now)
    }

    fn happen(&mut self, event: Event) -> Result<(), Wrong> {
        match event {
            Event::Go { actor, answers } => self.go(actor, answers),
            Event::Arrive { to: Host::Node(node), life: Some(life), .. }
                if self.nodes[node].boots != life =>
            {
                Ok(())
            }
            // Nor does a process that is gone join.
            Event::Arrive { from: Host::Node(node), back: Back::Join { boots }, .. }
                if self.nodes[node].boots != boots =>
            {
                Ok(())
            }
            Event::Arrive { from, to, packet, back, .. } => self.arrive(from, to, &packet, back),
            Event::Return { to, back, answer } => self.answered(to, back, answer),
            Event::Patience { exchange } => self.out_of_patience(exchange),
            Event::Beat { node, boots } => {
                self.beat(node, boots);
                Ok(())
            }
            Event::Pulse { node, boots } => {
                self.pulse(node, boots);
                Ok(())
            }
            Event::Start(node) => self.start(node),
            Event::Checkpoint(node) => {
                if !self.nodes[node].checkpoint() {
                    self.fall(node)?;
                }
                let delay = 50_000 + self.rng.below(1_000_000);
                self.after(delay, Event::Checkpoint(node));
                Ok(())
            }
            Event::Fault(fault) => self.fault(fault),
            Event::Fence => self.fence(),
            Event::Tend => self.tend(),
            Event::PowerOff { node, boots, kept } => self.power_off(node, boots, *kept),
            Event::Roomy(node) => self.make_room(node),
            Event::AuthorityStarts => self.open_authority(),
        }
    }

    /// Adds an actor; it begins now.
    ///
    /// # Errors
    /// No thread.
    pub(super) fn add_actor(
        &mut self,
        host: Host,
        session: SessionId,
        body: impl FnOnce(Arc<super::baton::Baton>) -> Result<(), Wrong> + Send + 'static,
    ) -> Result<usize, Wrong> {
        let actor = Actor::new(self.clock.clone(), body)?;
        self.slots.push(Slot { actor, host, session });
        let actor = self.slots.len() - 1;
        self.after(1, Event::Go { actor, answers: Vec::new() });
        Ok(actor)
    }

    /// Gives the baton to an actor and takes what it wants next.
    fn go(&mut self, actor: usize, answers: Vec<Answer>) -> Result<(), Wrong> {
        if self.slots[actor].actor.has_ended() {
            return Ok(());
        }
        let Some(want) = self.slots[actor].actor.run(answers)? else {
            self.report.trace = mix(&[self.report.trace, self.now, actor as u64]);
            return Ok(());
        };
        let host = self.slots[actor].host;
        match want {
            Want::Pause(time) => {
                let delay = (time.as_micros() as u64).max(1);
                self.after(delay, Event::Go { actor, answers: Vec::new() });
            }
            Want::Lock(stripe) => {
                if self.locks.take(stripe, actor) {
                    self.after(1, Event::Go { actor, answers: Vec::new() });
                }
            }
            Want::Unlock(stripe) => {
                self.unlock(stripe);
                self.after(1, Event::Go { actor, answers: Vec::new() });
            }
            Want::Authority(packet) => {
                let exchange = self.exchange(actor, 1, AUTHORITY_PATIENCE);
                let back = Back::Exchange { exchange, index: 0 };
                self.send(host, Host::Authority, packet, back);
            }
            Want::Exchange(packets) if packets.is_empty() => {
                self.after(1, Event::Go { actor, answers: Vec::new() });
            }
            Want::Exchange(packets) => {
                let patience = MEMBER_TIMEOUT.as_micros() as u64;
                let exchange = self.exchange(actor, packets.len(), patience);
                for (index, (target, packet)) in packets.into_iter().enumerate() {
                    let back = Back::Exchange { exchange, index };
                    let node = self.nodes.iter().position(|n| n.target == target);
                    match node {
                        Some(node) => self.send(host, Host::Node(node), packet, back),
                        None => self.give_back(host, back, Err(Status::UNREACHABLE)),
                    }
                }
            }
        }
        Ok(())
    }

    /// The next one who waits for the stripe has it.
    pub(super) fn unlock(&mut self, stripe: usize) {
        if let Some(actor) = self.locks.release(stripe) {
            self.after(1, Event::Go { actor, answers: Vec::new() });
        }
    }

    fn exchange(&mut self, actor: usize, asks: usize, patience: Time) -> u64 {
        self.next_exchange += 1;
        let exchange = Exchange { actor, answers: vec![None; asks] };
        self.exchanges.insert(self.next_exchange, exchange);
        self.after(patience, Event::Patience { exchange: self.next_exchange });
        self.next_exchange
    }

    /// Puts a packet on the wire.
    pub(super) fn send(&mut self, from: Host, to: Host, packet: Packet, back: Back) {
        self.report.packets += 1;
        let packet = Rc::new(packet);
        let fate = self.net.fate(packet.op, to, false);
        if matches!(fate, Some(Fate::Held | Fate::Copied)) {
            let (packet, back) = (packet.clone(), back.clone());
            self.net.held.push(Held { from, to, packet, back });
        }
        if matches!(fate, Some(Fate::Held | Fate::Lost)) {
            self.report.lost += 1;
            return;
        }
        let copies = self.net.send(&mut self.rng, from, to, self.now);
        self.report.lost += u64::from(copies.is_empty());
        self.report.doubled += u64::from(copies.len() > 1);
        // A session's changes go over connections, each once, and come once at most, and not to a
        // later process. Versions alone tell where nothing is cut off: there all may come again.
        let (most, life) = match (packet.op, to) {
            (Op::DataTruncate | Op::MemberStage, Host::Node(node)) if self.ground.cuts => {
                (1, Some(self.nodes[node].boots))
            }
            _ => (copies.len(), None),
        };
        for delay in copies.into_iter().take(most) {
            let (packet, back) = (packet.clone(), back.clone());
            self.after(delay, Event::Arrive { from, to, packet, back, life });
        }
    }

    fn arrive(&mut self, from: Host, to: Host, packet: &Packet, back: Back) -> Result<(), Wrong> {
        let sum = crc64(&packet.args) ^ crc64(&packet.payload);
        self.report.trace = mix(&[self.report.trace, self.now, packet.op as u64, sum]);
        let answer = match to {
            Host::Authority => self.authority_is_up.then(|| self.ask_authority(packet)),
            Host::Node(node) => self.serve(node, packet)?,
            Host::Client(_) => None,
        };
        if self.traces {
            let line = super::trace::line(packet, answer.as_ref());
            eprintln!("{:>12} {from:?} -> {to:?}: {line}", self.now);
        }
        if self.net.fate(packet.op, to, true).is_some() {
            self.report.lost += 1;
            return Ok(());
        }
        match answer {
            Some(answer) => self.reply(to, from, back, answer),
            // A connection to nobody is refused at once, or nothing is heard.
            None if self.rng.one_in(2) => self.reply(to, from, back, Err(Status::UNREACHABLE)),
            None => {}
        }
        Ok(())
    }

    pub(super) fn ask_authority(&self, packet: &Packet) -> Answer {
        call(packet, &self.buffers, |request| self.authority.serve(request))
    }

    fn serve(&mut self, node: usize, packet: &Packet) -> Result<Option<Answer>, Wrong> {
        let now = self.now;
        self.nodes[node].run_clock(now);
        if self.nodes[node].server.is_none() {
            return Ok(None);
        }
        let answer = self.nodes[node].serve(packet);
        if answer.is_none() {
            self.fall(node)?;
        } else if packet.op == Op::MemberCommit || packet.op == Op::MemberInstall {
            self.check_reached(node)?;
            self.look()?;
        }
        if packet.op == Op::DataTruncate {
            // Versions begin anew, maybe also where the answer tells of a failure.
            let cut = self.ground.cutting.lock().clone();
            let keys: Vec<_> = cut.iter().map(|s| self.ground.stripes[*s].key).collect();
            self.reached.retain(|(_, key), _| !keys.contains(key));
        }
        if answer == Some(Err(Status::EPOCH)) {
            // It may be this node that knows too little: it asks soon.
            let boots = self.nodes[node].boots;
            self.after(1_000, Event::Beat { node, boots });
        }
        Ok(answer)
    }

    fn reply(&mut self, from: Host, to: Host, back: Back, answer: Answer) {
        let copies = self.net.send(&mut self.rng, from, to, self.now);
        self.report.lost += u64::from(copies.is_empty());
        // A second answer finds nobody who waits.
        if let Some(delay) = copies.first() {
            let is_slow = |n: &usize| self.slow.get(n).is_some_and(|until| *until > self.now);
            let more = match from {
                Host::Node(node) if is_slow(&node) => self.rng.below(SLOW),
                _ => 0,
            };
            self.after(*delay + more, Event::Return { to, back, answer });
        }
    }

    fn give_back(&mut self, to: Host, back: Back, answer: Answer) {
        self.after(10, Event::Return { to, back, answer });
    }

    fn answered(&mut self, to: Host, back: Back, answer: Answer) -> Result<(), Wrong> {
        let Back::Exchange { exchange, index } = back else {
            return self.node_answered(to, back, answer);
        };
        let Some(waiting) = self.exchanges.get_mut(&exchange) else { return Ok(()) };
        waiting.answers[index].get_or_insert(answer);
        if waiting.answers.iter().any(Option::is_none) {
            return Ok(());
        }
        self.out_of_patience(exchange)
    }

    /// Gives the actor what came; the rest is lost.
    fn out_of_patience(&mut self, exchange: u64) -> Result<(), Wrong> {
        let Some(done) = self.exchanges.remove(&exchange) else { return Ok(()) };
        let lost = |answer: Option<Answer>| answer.unwrap_or(Err(Status::UNREACHABLE));
        let answers = done.answers.into_iter().map(lost).collect();
        self.go(done.actor, answers)
    }
}
