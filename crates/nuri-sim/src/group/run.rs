//! One run: the space is made, clients work while things go wrong, all heals, all is checked.

use std::sync::Arc;

use nuri_cluster::authority::Authority;
use nuri_cluster::store::{MapStore, StoreError};
use nuri_cluster::transition::DEFAULT_POOL;
use nuri_io::clock::ManualClock;
use nuri_io::rng::Rng;
use nuri_proto::id::{ChunkKey, ObjectId, SessionId};
use nuri_proto::map::{Map, Standing};

use super::actors::read_all;
use super::faults::Plan;
use super::ground::Ground;
use super::history::Writers;
use super::members::RECOVERY;
use super::net::Host;
use super::node::{CLUSTER, Node};
use super::report::Report;
use super::world::{Event, Time, World};
use crate::check::Wrong;
use nuri_client::group::Stripe;

const CAPACITY: u64 = 16 << 20;
/// A run ends within this time, whatever happens.
const LONGEST: Time = 7200 * 1_000_000;

/// The map needs no disk here: the authority does not fall.
struct Kept;

impl MapStore for Kept {
    fn load(&self) -> Result<Option<Map>, StoreError> {
        Ok(None)
    }
    fn save(&self, _: &Map) -> Result<(), StoreError> {
        Ok(())
    }
}

/// Plays one seed.
///
/// # Errors
/// The promise that was broken, in words.
pub fn run(seed: u64) -> Result<Report, Wrong> {
    let mut rng = Rng::new(seed ^ 0x6772_6f75_7073);
    let plan = Plan::draw(&mut rng);
    play(rng, plan)
}

/// Plays a run by these rules.
///
/// # Errors
/// The promise that was broken, in words.
pub fn play(rng: Rng, plan: Plan) -> Result<Report, Wrong> {
    let mut world = make(rng, plan)?;
    let outcome = world.work().and_then(|()| world.end());
    outcome.map_err(|e| format!("{e} (at {} us)", world.now))?;
    Ok(world.report)
}

/// The world before anything happens.
///
/// # Errors
/// What the authority refuses.
pub(super) fn make(mut rng: Rng, plan: Plan) -> Result<World, Wrong> {
    let clock = Arc::new(ManualClock::default());
    let authority = Authority::open(Box::new(Kept), clock.clone(), CLUSTER);
    let authority = authority.map_err(|e| e.to_string())?;
    let mut nodes = Vec::new();
    for number in 0..plan.nodes {
        let mut node = Node::new(number, CAPACITY, &mut rng)?;
        let reply = authority.join(&node.join_call()).map_err(|s| s.to_string())?;
        node.adopt(reply.node, reply.targets[0])?;
        nodes.push(node);
    }
    let mut stripes = Vec::new();
    for (number, shape) in plan.shapes.iter().enumerate() {
        let groups = authority.groups(DEFAULT_POOL, *shape).map_err(|s| s.to_string())?;
        for stripe in 0..plan.stripes as u32 {
            let group = groups[rng.below(groups.len() as u64) as usize];
            // Each is the end of an object of its own, which a client may cut off.
            let object = ObjectId(10 + number as u64 * plan.stripes + u64::from(stripe));
            let key = ChunkKey { object, component: 0, stripe };
            stripes.push(Stripe { group, shape: *shape, key });
        }
    }
    let (operations, is_leased) = (plan.operations, plan.is_leased);
    let (history, cutting) = Default::default();
    let ground = Ground { stripes, history, cutting, operations, is_leased };
    Ok(World::new(rng, plan, nodes, (authority, clock), ground))
}

impl World {
    /// All nodes begin.
    ///
    /// # Errors
    /// A store that does not open.
    pub(super) fn begin(&mut self) -> Result<(), Wrong> {
        self.admit();
        for node in 0..self.nodes.len() {
            self.start(node)?;
            self.after(50_000, Event::Checkpoint(node));
        }
        Ok(())
    }

    /// Clients work while things go wrong.
    fn work(&mut self) -> Result<(), Wrong> {
        self.begin()?;
        for client in 0..self.plan.clients as usize {
            self.add_client(client)?;
        }
        self.admit();
        self.plan_faults();
        let works = |w: &World| {
            w.slots.iter().any(|s| matches!(s.host, Host::Client(_)) && !s.actor.has_ended())
        };
        self.step_while(LONGEST, works, "the clients do not come to an end")
    }

    /// # Errors
    /// `why`, where it goes on for too long.
    pub(super) fn step_while(
        &mut self,
        limit: Time,
        goes_on: impl Fn(&World) -> bool,
        why: &str,
    ) -> Result<(), Wrong> {
        let end = self.now + limit;
        while goes_on(self) {
            self.step()?;
            if self.now > end {
                return Err(why.into());
            }
        }
        Ok(())
    }

    /// All heals; then everything is read on every path and compared.
    ///
    /// # Errors
    /// The promise that was broken.
    pub(super) fn end(&mut self) -> Result<(), Wrong> {
        self.calm()?;
        let waits = |w: &World| {
            let is_live = |m: &nuri_proto::map::Member| m.standing == Standing::Live;
            let redundant = |g: &&nuri_proto::map::Group| g.shape.is_redundant();
            let map = w.authority.map();
            let whole = map.groups.iter().filter(redundant).all(|g| g.members.iter().all(is_live));
            !(whole && w.all_are_back())
        };
        let limit = RECOVERY.as_micros() as Time;
        self.step_while(limit, waits, "members do not become live again")?;
        self.report.epochs = self.authority.map().epoch.0;
        let ground = self.ground.clone();
        self.sessions += 1;
        let session = SessionId(self.sessions);
        let reader =
            self.add_actor(Host::Authority, session, move |b| read_all(&ground, session, b))?;
        let reads = |w: &World| !w.slots[reader].actor.has_ended();
        self.step_while(limit, reads, "the last reader does not come to an end")?;
        let writers = if self.ground.is_leased { Writers::Alone } else { Writers::Racing };
        self.ground.history.lock().check(writers)?;
        self.compare()?;
        self.sum_up();
        for node in &mut self.nodes {
            node.crash(&mut self.rng);
            node.check_disk()?;
        }
        Ok(())
    }

    fn sum_up(&mut self) {
        let history = self.ground.history.lock();
        let report = &mut self.report;
        (report.writes, report.failed_writes) = (history.acknowledged, history.failed);
        (report.reads, report.failed_reads) = (history.reads, history.failed_reads);
        report.virtual_ms = self.now / 1000;
    }
}
