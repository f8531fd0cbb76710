//! A scripted run: clients do what a scenario says, packets are lost, held and copied by rule, and
//! nodes crash at a named point. The checks are those of every run.

use std::sync::Arc;
use std::time::Duration;

use nuri_io::rng::Rng;
use nuri_proto::Status;
use nuri_proto::id::{SessionId, TargetId};
use nuri_proto::layout::Shape;
use nuri_proto::map::{Group, Standing};
use nuri_proto::op::Op;
use nuri_volume::group::{Guess, Stripe};
use parking_lot::Mutex;

use super::actors::{Client, Program};
use super::faults::{Budget, Plan};
use super::history::Span;
use super::members::RECOVERY;
use super::net::{Fate, Host, Rule, Weather};
use super::run::make;
use super::world::{Event, World};
use crate::check::{Wrong, wrong};

/// Enough for a group of the widest shape, and one more node.
const NODES: u32 = 6;
/// Cells of a write that fits a record of the log, and that begins where every attack looks.
pub(super) const SMALL: usize = 4;

/// A client's program that was begun.
pub(super) struct Begun<T> {
    actor: usize,
    outcome: Arc<Mutex<Option<T>>>,
}

/// See the module's text.
pub(super) struct Script {
    pub(super) world: World,
    clients: usize,
}

/// The first cells of a place of the first stripe.
pub(super) fn small(place: usize) -> Span {
    Span { stripe: 0, place, cells: 0..SMALL }
}

/// Cells of all data places: a write that needs nothing of what is there.
pub(super) fn row(places: usize) -> Vec<Span> {
    (0..places).map(small).collect()
}

impl Script {
    /// All nodes serve; nothing goes wrong by itself.
    pub(super) fn new(shape: Shape) -> Result<Script, Wrong> {
        Script::with_stripes(shape, 1)
    }

    /// As [`Script::new`], with so many stripes of one group.
    pub(super) fn with_stripes(shape: Shape, stripes: u64) -> Result<Script, Wrong> {
        let plan = Plan {
            shapes: vec![shape],
            nodes: NODES,
            stripes,
            clients: 0,
            operations: 0,
            is_leased: true,
            weather: Weather::default(),
            faults: Vec::new(),
            deaths: 0,
            budget: Budget::Kept,
        };
        let mut script = Script { world: make(Rng::new(1), plan)?, clients: 0 };
        let ground = Arc::get_mut(&mut script.world.ground).ok_or("somebody plays already")?;
        let group = ground.stripes[0].group;
        ground.stripes.iter_mut().for_each(|stripe| stripe.group = group);
        script.world.begin()?;
        script.wait(Duration::from_secs(1))?;
        Ok(script)
    }

    pub(super) fn stripe(&self) -> Stripe {
        self.world.ground.stripes[0]
    }

    /// Data places of the stripe.
    pub(super) fn places(&self) -> usize {
        self.world.ground.places(0)
    }

    pub(super) fn group(&self) -> Result<Group, Wrong> {
        let map = self.world.authority.map();
        Ok(map.group(self.stripe().group).ok_or("a group is gone")?.clone())
    }

    /// The node that serves a place of the stripe.
    pub(super) fn node(&self, place: usize) -> Result<usize, Wrong> {
        let target = self.group()?.members[place].target;
        let node = self.world.nodes.iter().position(|n| n.target == target);
        node.ok_or_else(|| "no node serves the place".into())
    }

    /// What happens to the next `count` packets of a kind to a place.
    pub(super) fn rule(
        &mut self,
        op: Op,
        place: usize,
        fate: Fate,
        count: u32,
    ) -> Result<(), Wrong> {
        let to = Host::Node(self.node(place)?);
        self.world.net.rules.push(Rule { op, to, fate, count });
        Ok(())
    }

    /// Nothing more happens to packets; those that were held stay so.
    pub(super) fn no_rules(&mut self) {
        self.world.net.rules.clear();
    }

    /// Lets go what was held.
    pub(super) fn release(&mut self) {
        for held in std::mem::take(&mut self.world.net.held) {
            let super::net::Held { from, to, packet, back } = held;
            self.world.after(1, Event::Arrive { from, to, packet, back, life: None });
        }
    }

    /// A new client's program begins; it runs while the script waits.
    pub(super) fn begin<T: Send + 'static>(
        &mut self,
        body: impl FnOnce(&mut Program) -> Result<T, Wrong> + Send + 'static,
    ) -> Result<Begun<T>, Wrong> {
        self.clients += 1;
        self.world.sessions += 1;
        let session = SessionId(self.world.sessions);
        let client = Client { who: self.clients, session, seed: session.0 };
        let outcome = Arc::new(Mutex::new(None));
        let (ground, result) = (self.world.ground.clone(), outcome.clone());
        let host = Host::Client(self.clients);
        let actor = self.world.add_actor(host, session, move |baton| {
            let done = body(&mut client.begin(ground, baton))?;
            *result.lock() = Some(done);
            Ok(())
        })?;
        Ok(Begun { actor, outcome })
    }

    /// Waits for the program's end.
    pub(super) fn end_of<T>(&mut self, begun: &Begun<T>) -> Result<T, Wrong> {
        let limit = RECOVERY.as_micros() as u64;
        let runs = |w: &World| !w.slots[begun.actor].actor.has_ended();
        self.world.step_while(limit, runs, "a client does not come to an end")?;
        begun.outcome.lock().take().ok_or_else(|| "the client died".into())
    }

    pub(super) fn run<T: Send + 'static>(
        &mut self,
        body: impl FnOnce(&mut Program) -> Result<T, Wrong> + Send + 'static,
    ) -> Result<T, Wrong> {
        let begun = self.begin(body)?;
        self.end_of(&begun)
    }

    /// A client's process dies where it stands, and is fenced.
    pub(super) fn kill<T>(&mut self, begun: &Begun<T>) -> Result<(), Wrong> {
        let slot = &mut self.world.slots[begun.actor];
        slot.actor.end()?;
        let Host::Client(who) = slot.host else { return Ok(()) };
        let now = self.world.now;
        self.world.ground.history.lock().died(who, now);
        self.world.admit();
        Ok(())
    }

    /// Writes; it must be acknowledged. Commits are not told.
    pub(super) fn write(&mut self, spans: Vec<Span>) -> Result<u64, Wrong> {
        let done = self.run(move |p| Ok(p.write(&spans, Guess::Unknown)))?;
        done.map_err(|status| wrong!("a write failed: {status}"))
    }

    /// Writes, as a client of its own.
    pub(super) fn try_write(&mut self, spans: Vec<Span>) -> Result<Result<u64, Status>, Wrong> {
        self.run(move |p| Ok(p.write(&spans, Guess::Unknown)))
    }

    /// Reads the first cell of a place; the number of the write that it is of.
    pub(super) fn read(&mut self, place: usize) -> Result<Result<u64, Status>, Wrong> {
        self.run(move |p| p.read(&small(place)))
    }

    /// A read must give that write.
    pub(super) fn expect(&mut self, place: usize, write: u64) -> Result<(), Wrong> {
        match self.read(place)? {
            Ok(found) if found == write => Ok(()),
            other => Err(wrong!("place {place}: {other:?}, not write {write}")),
        }
    }

    /// Every place must show that write.
    pub(super) fn expect_all(&mut self, write: u64) -> Result<(), Wrong> {
        (0..self.places()).try_for_each(|place| self.expect(place, write))
    }

    pub(super) fn wait(&mut self, time: Duration) -> Result<(), Wrong> {
        let end = self.world.now + time.as_micros() as u64;
        while self.world.now < end {
            self.world.step()?;
        }
        Ok(())
    }

    /// Waits for a state.
    pub(super) fn until(
        &mut self,
        what: &str,
        is_so: impl Fn(&World) -> bool,
    ) -> Result<(), Wrong> {
        let limit = RECOVERY.as_micros() as u64;
        self.world.step_while(limit, |w| !is_so(w), &format!("never: {what}"))
    }

    /// Waits until so many packets wait.
    pub(super) fn until_held(&mut self, count: usize) -> Result<(), Wrong> {
        self.until("packets are held", |w| w.net.held.len() >= count)
    }

    /// Waits until the stripe's group goes on without the place.
    pub(super) fn until_absent(&mut self, place: usize) -> Result<(), Wrong> {
        self.until_standing(place, "a member is out", |s| matches!(s, Standing::Absent { .. }))
    }

    pub(super) fn until_live(&mut self, place: usize) -> Result<(), Wrong> {
        self.until_standing(place, "a member is live", |s| s == Standing::Live)
    }

    fn until_standing(
        &mut self,
        place: usize,
        what: &str,
        is_so: impl Fn(Standing) -> bool,
    ) -> Result<(), Wrong> {
        let id = self.stripe().group;
        let standing = |w: &World| w.authority.map().group(id).map(|g| g.members[place].standing);
        self.until(what, |w| standing(w).is_some_and(&is_so))
    }

    /// The node of a place loses power until [`Script::start`].
    pub(super) fn stop(&mut self, place: usize) -> Result<usize, Wrong> {
        let node = self.node(place)?;
        self.world.stop(node)?;
        Ok(node)
    }

    pub(super) fn start(&mut self, node: usize) -> Result<(), Wrong> {
        self.world.start(node)
    }

    /// The disk of a place is lost while its node is down; the node comes back with an empty one,
    /// which takes the place.
    pub(super) fn replace(&mut self, place: usize, node: usize) -> Result<(), Wrong> {
        let old = self.world.wipe(node)?;
        self.world.start(node)?;
        self.until("the new target has an id", |w| w.nodes[node].target != TargetId(0))?;
        let end = self.world.now + RECOVERY.as_micros() as u64;
        while self.world.replace(old, node).is_err() {
            self.wait(Duration::from_millis(100))?;
            if self.world.now > end {
                return Err("the target cannot be replaced".into());
            }
        }
        self.until_live(place)
    }

    /// Nodes that are down start; then all that every run checks at its end.
    pub(super) fn finish(mut self) -> Result<(), Wrong> {
        self.release();
        let down = |n: &usize| self.world.nodes[*n].server.is_none();
        let down: Vec<_> = (0..self.world.nodes.len()).filter(down).collect();
        down.into_iter().try_for_each(|node| self.world.start(node))?;
        self.world.end()
    }
}
