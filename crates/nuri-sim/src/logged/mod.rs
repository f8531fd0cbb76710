//! Clients that work by themselves in directories under write leases. The real queue of journal
//! steps (`nuri_client::queue`) runs against the real metadata server, from one seed.
//!
//! Everything is on one thread, so the server never waits: it sends its recalls and answers that
//! the caller should ask again. [`wire`] loses calls and answers and repeats them late. [`talk`]
//! sends what clients send, and [`work`] does what programs do. [`tree`] is what must be there, and
//! [`oracle`] compares it with what another client reads.
//!
//! These facts are checked:
//!
//! - After a hand-over, all that its holder did is seen, exactly.
//! - Of a client that dies, or whose session ends, a beginning of its journal is left. It has all
//!   that the client was told is durable.
//! - No two clients believe to hold leases or locks that exclude each other.

mod client;
mod locks;
mod oracle;
mod talk;
mod tree;
mod turns;
mod wire;
mod work;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nuri_io::rng::Rng;
use nuri_meta::namespace::txn::ClusterView;
use nuri_proto::Status;
use nuri_proto::id::{GroupId, Ino, PoolId, SessionId};
use nuri_proto::layout::Shape;
use nuri_proto::op::cluster::Admitted;
use nuri_proto::op::meta::{Exclusive, Make, MakeKind, SessionClose, SessionOpen};

use crate::check::Wrong;
use crate::meta::Meta;
use crate::names::step_wall;

use client::Client;
use tree::{Body, Item, Note, Tree};
use wire::Late;

/// What clients do in one run, all together.
const ACTS: u64 = 1500;
/// Of the store's log: a batch has to fit.
const SEGMENT: usize = 512 << 10;
/// Directories that they have in common.
const DIRECTORIES: u64 = 3;

/// What a run did, for those who want to see that it did something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub virtual_ms: u64,
    pub steps: u64,
    pub batches: u64,
    /// Batches told again.
    pub repeats: u64,
    /// Calls and answers.
    pub lost: u64,
    /// Copies that arrived after their call was over.
    pub late: u64,
    pub crashes: u64,
    pub reclaims: u64,
    pub handovers: u64,
    /// Directories taken for a turn, and changes of names told then.
    pub turns: u64,
    pub told: u64,
    /// Looks of one client at what others may have done.
    pub looks: u64,
    pub deaths: u64,
    pub evictions: u64,
    /// Of what clients left untold when they ended: done all the same, and not.
    pub kept: u64,
    pub gone: u64,
    /// Files whose locks a client was handed, locks that it decided about then, and files of
    /// which it told the server.
    pub delegated: u64,
    pub decided: u64,
    pub locks_told: u64,
}

impl Report {
    pub fn add(&mut self, other: &Report) {
        self.virtual_ms += other.virtual_ms;
        self.steps += other.steps;
        self.batches += other.batches;
        self.repeats += other.repeats;
        self.lost += other.lost;
        self.late += other.late;
        self.crashes += other.crashes;
        self.reclaims += other.reclaims;
        self.handovers += other.handovers;
        self.turns += other.turns;
        self.told += other.told;
        self.looks += other.looks;
        self.deaths += other.deaths;
        self.evictions += other.evictions;
        self.kept += other.kept;
        self.gone += other.gone;
        self.delegated += other.delegated;
        self.decided += other.decided;
        self.locks_told += other.locks_told;
    }
}

/// At one time in so many no group takes new files.
const NO_GROUP_EVERY: u64 = 25;

/// Groups for files, and targets that hear late which sessions ended.
#[derive(Default)]
struct View {
    has_no_group: AtomicBool,
    admitted: AtomicU64,
    in_force: AtomicU64,
}

impl View {
    /// All targets have the last list.
    fn enforce(&self) {
        self.in_force.store(self.admitted.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

impl ClusterView for View {
    fn groups(&self, _: PoolId, _: Shape) -> Result<Vec<GroupId>, Status> {
        let is_usable = !self.has_no_group.load(Ordering::Relaxed);
        Ok(is_usable.then_some([GroupId(0), GroupId(1)]).into_iter().flatten().collect())
    }

    fn admit(&self, list: Admitted) {
        self.admitted.store(list.version, Ordering::Relaxed);
    }

    fn is_in_force(&self, version: u64) -> bool {
        version <= self.in_force.load(Ordering::Relaxed)
    }
}

struct World {
    rng: Rng,
    /// Of its own, so that all else of a seed stays as it is.
    group_rng: Rng,
    meta: Meta,
    view: Arc<View>,
    start: Instant,
    clients: Vec<Client>,
    /// Sessions of clients that died, with what these had not heard to be durable.
    dead: Vec<(SessionId, Vec<Note>)>,
    /// The same of sessions that ended: some beginning of it was done.
    ghosts: Vec<Vec<Note>>,
    /// Copies on their way.
    late: Vec<Late>,
    /// Everything that was done, and what of it is durable for sure.
    latest: Tree,
    durable: Tree,
    top: Vec<Ino>,
    /// One call or answer in so many is lost; a crash comes as often.
    loss: u64,
    crash_every: u64,
    is_faulty: bool,
    report: Report,
}

/// Plays one seed.
///
/// # Errors
/// The promise that was broken, in words.
pub fn run(seed: u64) -> Result<Report, Wrong> {
    let mut world = World::new(seed)?;
    for _ in 0..ACTS {
        world.act()?;
        world.check_leases()?;
        world.check_locks()?;
        world.bury()?;
    }
    world.finish()?;
    world.report.virtual_ms = world.start_to_now().as_millis() as u64;
    world.report.crashes = world.meta.crashes;
    Ok(world.report)
}

impl World {
    fn new(seed: u64) -> Result<World, Wrong> {
        let mut rng = Rng::new(seed);
        let view = Arc::new(View::default());
        let meta = Meta::new(view.clone(), SEGMENT)?;
        let clients = (0..2 + rng.below(2)).map(|_| Client::new()).collect();
        let (loss, crash_every) = ([0, 12, 30][rng.below(3) as usize], 20 + rng.below(400));
        let start = Instant::now();
        let (dead, ghosts, late, latest, durable, top, report) = Default::default();
        let mut world = World {
            rng,
            group_rng: Rng::new(!seed),
            meta,
            view,
            start,
            clients,
            dead,
            ghosts,
            late,
            latest,
            durable,
            top,
            loss,
            crash_every,
            is_faulty: false,
            report,
        };
        world.started()?;
        world.found()?;
        world.is_faulty = true;
        Ok(world)
    }

    /// Makes the common directories.
    fn found(&mut self) -> Result<(), Wrong> {
        let open = SessionOpen { client: "founder".into() };
        let Some(Ok(reply)) = self.send(SessionId(0), None, &open, &[])? else {
            return Err("no session to begin with".into());
        };
        for number in 0..DIRECTORIES {
            let call = make(Ino::ROOT, format!("d{number}").into(), MakeKind::Directory);
            let Some(Ok(made)) = self.send(reply.session, None, &call, &[])? else {
                return Err("no directory to begin with".into());
            };
            let attr = made.entry.inode.attr;
            self.top.push(attr.ino);
            self.latest.0.insert(attr.ino, Item::new(attr, Body::Directory(Default::default())));
        }
        self.durable = self.latest.clone();
        self.send(reply.session, None, &SessionClose {}, &[]).map(|_| ())
    }

    fn start_to_now(&self) -> Duration {
        self.meta.now() - Duration::from_secs(1_000_000)
    }

    /// As the queue counts time.
    fn now(&self) -> Instant {
        self.start + self.meta.now()
    }

    /// Time passes, and the server's housekeeping is done now and then.
    fn pass(&mut self, time: Duration) -> Result<(), Wrong> {
        self.meta.clock().advance(time);
        let has_no_group = self.is_faulty && self.group_rng.one_in(NO_GROUP_EVERY);
        self.view.has_no_group.store(has_no_group, Ordering::Relaxed);
        if self.rng.one_in(3) {
            self.view.enforce();
        }
        if self.rng.one_in(3) {
            let ticked = self.meta.server().map(|server| server.tick());
            if ticked.is_none_or(|ticked| ticked.is_err()) {
                self.crash()?;
            }
            self.notice();
        }
        Ok(())
    }

    /// One thing that one client does.
    fn act(&mut self) -> Result<(), Wrong> {
        let long = self.rng.one_in(25);
        let time = Duration::from_millis(self.rng.below(if long { 1500 } else { 30 }));
        self.pass(time)?;
        if self.rng.one_in(60) {
            step_wall(self.meta.clock(), &mut self.rng);
        }
        let c = self.rng.below(self.clients.len() as u64) as usize;
        if !self.ghosts.is_empty() || self.clients[c].frozen > self.meta.now() {
            return Ok(());
        }
        if !self.keep_up(c)? || !self.ghosts.is_empty() {
            return Ok(());
        }
        match self.rng.below(200) {
            0 => self.die(c),
            1 => {
                let time = Duration::from_millis(self.rng.below(9000));
                self.clients[c].frozen = self.meta.now() + time;
            }
            2 => self.leave(c)?,
            3..=5 => (0..300).try_for_each(|_| self.log_something(c))?,
            6..=15 => self.release(c),
            16..=35 => self.sync(c).map(|_| ())?,
            36..=55 => self.look(c)?,
            56..=70 => self.release_orphans(c),
            71..=110 => self.want_something(c)?,
            111..=135 => (0..1 + self.rng.below(6)).try_for_each(|_| self.lock_something(c))?,
            _ => (0..1 + self.rng.below(5)).try_for_each(|_| self.log_something(c))?,
        }
        if self.clients[c].wish.is_some() && self.ghosts.is_empty() {
            self.ask_for_lease(c)?;
        }
        if self.clients[c].queue.is_due(self.now()) && self.rng.one_in(2) {
            self.tell(c)?;
        }
        Ok(())
    }

    /// A client is killed. Another one comes in its place.
    fn die(&mut self, c: usize) {
        let client = std::mem::replace(&mut self.clients[c], Client::new());
        self.dead.push((client.session, client.undecided.into()));
        self.report.deaths += 1;
    }
}

fn make(parent: Ino, name: Vec<u8>, kind: MakeKind) -> Make {
    let exclusive = Exclusive::Yes;
    Make { parent, name, kind, mode: 0o755, umask: 0, uid: 0, gid: 0, exclusive }
}
