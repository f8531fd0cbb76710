//! One run: the space is made, clients work while faults happen, all faults are healed, and
//! everything is checked.

use std::sync::Arc;

use nuri_cluster::authority::Authority;
use nuri_cluster::transition::DEFAULT_POOL;
use nuri_io::clock::ManualClock;
use nuri_io::rng::Rng;
use nuri_proto::id::{ChunkKey, ObjectId, SessionId};
use nuri_proto::map::Standing;

use super::actors::{read_all, read_some};
use super::faults::{Budget, Plan};
use super::ground::Ground;
use super::harm::Kept;
use super::members::RECOVERY;
use super::net::Host;
use super::node::{CLUSTER, Node};
use super::report::Report;
use super::world::{Event, Time, World};
use crate::check::{Wrong, wrong};
use nuri_volume::group::Stripe;

const CAPACITY: u64 = 16 << 20;
/// A run ends within this time, whatever happens.
const LONGEST: Time = 7200 * 1_000_000;

/// Plays one seed.
///
/// # Errors
/// The promise that was broken, in words.
pub fn run(seed: u64) -> Result<Report, Wrong> {
    let mut rng = Rng::new(seed ^ 0x6772_6f75_7073);
    let plan = Plan::draw(&mut rng);
    play(rng, plan)
}

/// Plays one seed with clients that hold leases, and within the budget.
///
/// # Errors
/// The promise that was broken, in words.
pub fn run_leased(seed: u64) -> Result<Report, Wrong> {
    let mut rng = Rng::new(seed ^ 0x6c65_6173_6564);
    let plan = Plan { is_leased: true, budget: Budget::Kept, ..Plan::draw(&mut rng) };
    play(rng, plan)
}

/// Plays one seed with clients that race for few stripes: none has a sole right to what it writes.
///
/// # Errors
/// The promise that was broken, in words.
pub fn run_racing(seed: u64) -> Result<Report, Wrong> {
    let mut rng = Rng::new(seed ^ 0x7261_6369_6e67);
    let drawn = Plan::draw(&mut rng);
    let plan = Plan { is_leased: false, stripes: 1, clients: 3, operations: 40, ..drawn };
    play(rng, plan)
}

/// Plays a run by these rules.
///
/// # Errors
/// The promise that was broken, in words.
pub fn play(rng: Rng, plan: Plan) -> Result<Report, Wrong> {
    let mut world = make(rng, plan)?;
    let outcome = world.work().and_then(|()| world.end());
    let budget = world.plan.budget;
    outcome.map_err(|e| wrong!("{e} (at {} us, budget {budget:?})", world.now))?;
    Ok(world.report)
}

/// The world before anything happens.
///
/// # Errors
/// What the authority refuses.
pub(super) fn make(mut rng: Rng, plan: Plan) -> Result<World, Wrong> {
    let clock = Arc::new(ManualClock::default());
    let kept = Kept::default();
    let authority = Authority::open(Box::new(kept.clone()), clock.clone(), CLUSTER);
    let authority = authority.map_err(|e| e.to_string())?;
    let mut nodes = Vec::new();
    for number in 0..plan.nodes {
        let mut node = Node::new(number, CAPACITY, &mut rng)?;
        let reply = authority.join(&node.join_call())?;
        node.adopt(reply.node, reply.targets[0])?;
        nodes.push(node);
    }
    let mut stripes = Vec::new();
    for (number, shape) in plan.shapes.iter().enumerate() {
        let groups = authority.groups(DEFAULT_POOL, *shape)?;
        for stripe in 0..plan.stripes as u32 {
            let group = groups[rng.below(groups.len() as u64) as usize];
            // Each is the end of an object of its own, which a client may cut off.
            let object = ObjectId(10 + number as u64 * plan.stripes + u64::from(stripe));
            // None is the whole object's: that would be deleted, not cut off.
            let key = ChunkKey { object, component: 0, stripe: stripe + 1 };
            stripes.push(Stripe { group, shape: *shape, key });
        }
    }
    let (operations, is_leased) = (plan.operations, plan.is_leased);
    let cuts = is_leased && plan.budget == Budget::Kept;
    let (history, cutting, rotten) = Default::default();
    let ground = Ground { stripes, history, cutting, rotten, operations, is_leased, cuts };
    Ok(World::new(rng, plan, nodes, (authority, clock, kept), ground))
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
        self.after(1, Event::Tend);
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
        if self.plan.budget == Budget::Exceeded {
            return self.end_beyond();
        }
        let waits = |w: &World| {
            let is_live = |m: &nuri_proto::map::Member| m.standing == Standing::Live && !m.unproven;
            let redundant = |g: &&nuri_proto::map::Group| g.shape.is_redundant();
            let map = w.authority.map();
            let whole = map.groups.iter().filter(redundant).all(|g| g.members.iter().all(is_live));
            !(whole && w.hurt.is_empty() && w.lies == 0 && w.all_are_back())
        };
        let limit = RECOVERY.as_micros() as Time;
        let why = "members do not become live again";
        self.step_while(limit, waits, why).map_err(|e| wrong!("{e}: {}", self.absent()))?;
        self.report.epochs = self.authority.map().epoch.0;
        let ground = self.ground.clone();
        self.sessions += 1;
        let session = SessionId(self.sessions);
        let reader =
            self.add_actor(Host::Authority, session, move |b| read_all(&ground, session, b))?;
        let reads = |w: &World| !w.slots[reader].actor.has_ended();
        self.step_while(limit, reads, "the last reader does not come to an end")?;
        self.ground.history.lock().check(self.ground.writers())?;
        self.compare()?;
        self.sum_up();
        for node in &mut self.nodes {
            node.crash(&mut self.rng);
            node.check_disk()?;
        }
        Ok(())
    }

    /// Who is not live, in words.
    fn absent(&self) -> String {
        let map = self.authority.map();
        let members = map.groups.iter().flat_map(|g| g.members.iter().map(|m| (g.id, m)));
        let absent = members.filter(|(_, m)| m.standing != Standing::Live);
        let words: Vec<_> =
            absent.map(|(g, m)| format!("{g} {}:{:?}", m.target, m.standing)).collect();
        format!("{}; harmed: {:?}", words.join(", "), self.hurt)
    }

    /// More was lost than the shapes bear: whatever can be read is right.
    fn end_beyond(&mut self) -> Result<(), Wrong> {
        let end = self.now + RECOVERY.as_micros() as Time;
        self.step_while(LONGEST, |w| w.now < end, "time does not pass")?;
        let ground = self.ground.clone();
        let reader =
            self.add_actor(Host::Authority, SessionId(0), move |b| read_some(&ground, b))?;
        let reads = |w: &World| !w.slots[reader].actor.has_ended();
        self.step_while(LONGEST, reads, "the last reader does not come to an end")?;
        self.ground.history.lock().check(self.ground.writers())?;
        self.sum_up();
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
