//! A volume that several servers give to a client with a channel to each (`cargo sim devices`).
//!
//! Servers are killed and stand still, connections are cut and deliver what was sent long before,
//! and targets lose their memory. The client repeats on another channel the requests that have no
//! answer. It must read each block's last answered value, whatever was served late (NBD-1). What a
//! FLUSH covers is durable, or the FLUSH fails (NBD-2). Time goes in steps of a few milliseconds.

mod client;
mod server;
mod store;
mod wire;

use std::time::{Duration, Instant};

use nuri_io::rng::Rng;

use crate::check::{Wrong, wrong};
use client::Client;
use server::{Dial, Server};
use store::{Metadata, Store};
use wire::{Place, Wire};

const SERVERS: usize = 3;
/// Milliseconds of a step, of the part of a run with faults, and of what it takes at most after.
const STEP: u64 = 5;
const FAULTY: u64 = 60_000;
const HEALED: u64 = 60_000;
/// How long a handshake is waited for.
const PATIENCE: u64 = 2000;

/// What a run did, for those who want to see that it did something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub virtual_ms: u64,
    pub answered: u64,
    /// Requests sent again on another channel, and forwarded ones.
    pub repeats: u64,
    pub forwarded: u64,
    /// Messages that arrived more than a second after they were sent.
    pub late: u64,
    pub takeovers: u64,
    /// Clients that were left without an answer.
    pub left: u64,
    pub kills: u64,
    pub pauses: u64,
    pub cuts: u64,
    pub restarts: u64,
    pub flushes: u64,
    pub failed_flushes: u64,
    /// Volumes that were found to have lost something.
    pub doubts: u64,
    /// Milliseconds that one request waited for its answer.
    pub longest: u64,
}

impl Report {
    pub fn add(&mut self, other: &Report) {
        self.virtual_ms += other.virtual_ms;
        self.answered += other.answered;
        self.repeats += other.repeats;
        self.forwarded += other.forwarded;
        self.late += other.late;
        self.takeovers += other.takeovers;
        self.left += other.left;
        self.kills += other.kills;
        self.pauses += other.pauses;
        self.cuts += other.cuts;
        self.restarts += other.restarts;
        self.flushes += other.flushes;
        self.failed_flushes += other.failed_flushes;
        self.doubts += other.doubts;
        self.longest = self.longest.max(other.longest);
    }
}

/// What all share.
struct Ground {
    now: u64,
    start: Instant,
    rng: Rng,
    is_stripe: bool,
    /// Connections; those that are over leave a place.
    wires: Vec<Wire>,
    /// Until when two places are cut off from each other.
    cuts: Vec<(Place, Place, u64)>,
    /// Until when each server stands still, and is down.
    paused: [u64; SERVERS],
    down: [u64; SERVERS],
    metadata: Metadata,
    store: Store,
    dials: Vec<Dial>,
    /// Connections of the client to servers.
    accepts: Vec<(usize, usize)>,
    restarts: u64,
    report: Report,
}

impl Ground {
    fn at(&self, millis: u64) -> Instant {
        self.start + Duration::from_millis(millis)
    }

    fn instant(&self) -> Instant {
        self.at(self.now)
    }

    fn is_whole(&self, one: Place, other: Place) -> bool {
        let is_cut = |(a, b, until): &(Place, Place, u64)| {
            *until > self.now && ((*a, *b) == (one, other) || (*b, *a) == (one, other))
        };
        !self.cuts.iter().any(is_cut)
    }

    /// Whether the server answers.
    fn is_up(&self, server: usize) -> bool {
        self.paused[server] <= self.now && self.down[server] <= self.now
    }

    /// As [`Wire::new`].
    fn connect(&mut self, places: (Place, Place), untaken: u64) -> usize {
        self.wires.push(Wire::new(places, untaken, self.now));
        self.wires.len() - 1
    }

    fn carry(&mut self) {
        for at in 0..self.wires.len() {
            if self.wires[at].is_over() {
                continue;
            }
            let is_whole = self.is_whole(self.wires[at].place(0), self.wires[at].place(1));
            self.report.late += self.wires[at].carry(self.now, is_whole, &mut self.rng);
        }
    }
}

struct World {
    ground: Ground,
    servers: Vec<Server>,
    client: Client,
}

/// Plays a seed.
///
/// # Errors
/// What was broken.
pub fn run(seed: u64) -> Result<Report, Wrong> {
    let mut rng = Rng::new(seed);
    let is_stripe = rng.one_in(2);
    let mut ground = Ground {
        now: 0,
        start: Instant::now(),
        is_stripe,
        wires: Vec::new(),
        cuts: Vec::new(),
        paused: [0; SERVERS],
        down: [0; SERVERS],
        metadata: Metadata::default(),
        store: Store::default(),
        dials: Vec::new(),
        accepts: Vec::new(),
        restarts: 0,
        report: Report::default(),
        rng,
    };
    let servers = (0..SERVERS).map(|number| Server::new(number, number as u64)).collect();
    let client = Client::new(SERVERS, ground.rng.one_in(2));
    let mut world = World { ground, servers, client };
    // Targets keep their memory in most runs: then every read must find what was answered.
    let loses = is_stripe && world.ground.rng.one_in(2);
    while world.ground.now < FAULTY {
        world.draw_fault(loses);
        world.step(true)?;
    }
    world.heal();
    world.settle("requests")?;
    world.client.look(&mut world.ground);
    world.settle("reads")?;
    world.client.flush(&mut world.ground);
    world.settle("a flush")?;
    world.ground.report.virtual_ms = world.ground.now;
    Ok(world.ground.report)
}

impl World {
    fn step(&mut self, works: bool) -> Result<(), Wrong> {
        let g = &mut self.ground;
        g.now += STEP;
        g.metadata.look(g.now);
        g.carry();
        let first = g.rng.below(SERVERS as u64) as usize;
        for number in (0..SERVERS).map(|i| (first + i) % SERVERS) {
            if self.ground.is_up(number) {
                self.servers[number].act(&mut self.ground);
            }
        }
        self.client.act(works, &mut self.ground)?;
        self.accept();
        Ok(())
    }

    fn settle(&mut self, what: &str) -> Result<(), Wrong> {
        let until = self.ground.now + HEALED;
        while !self.client.is_idle() {
            if self.ground.now > until {
                return Err(wrong!("{what} are not answered although all is well"));
            }
            self.step(false)?;
        }
        Ok(())
    }

    /// Connections that are being made.
    fn accept(&mut self) {
        let now = self.ground.instant();
        for (server, wire) in std::mem::take(&mut self.ground.accepts) {
            self.servers[server].accept(wire, None, now);
        }
        for mut dial in std::mem::take(&mut self.ground.dials) {
            let (from, to) = (Place::Server(dial.from), Place::Server(dial.owner));
            let is_reached = self.ground.is_up(dial.owner) && self.ground.is_whole(from, to);
            let mut opened = None;
            if is_reached {
                opened = self.servers[dial.owner].open(&mut dial, now);
            }
            if opened.is_none() && self.ground.now - dial.since < PATIENCE {
                self.ground.dials.push(dial);
                continue;
            }
            let is_open = opened == Some(true);
            if !is_open {
                self.ground.wires[dial.wire].leave(0, is_reached);
            }
            self.servers[dial.from].dialed(&dial, is_open, self.ground.now);
        }
    }

    /// Short ones, and some that last longer than a request may be served.
    fn how_long(&mut self) -> u64 {
        let most = [800, 8000, 18_000][self.ground.rng.below(3) as usize];
        self.ground.now + 100 + self.ground.rng.below(most)
    }

    fn draw_fault(&mut self, loses: bool) {
        if !self.ground.rng.one_in(3000 / STEP) {
            return;
        }
        let until = self.how_long();
        let g = &mut self.ground;
        let server = g.rng.below(SERVERS as u64) as usize;
        let own = Place::Server(server);
        let other = Place::Server((server + 1 + g.rng.below(2) as usize) % SERVERS);
        match g.rng.below(7) {
            0 => self.kill(server, until),
            1 | 2 => {
                g.paused[server] = until;
                g.report.pauses += 1;
            }
            // The machine's cable.
            3 => self.cut(&[(own, Place::Client), (own, other), (own, Place::Metadata)], until),
            4 => self.cut(&[(own, Place::Client)], until),
            5 => {
                let to = if g.rng.one_in(2) { other } else { Place::Metadata };
                self.cut(&[(own, to)], until);
            }
            _ if loses => {
                let target = g.rng.below(g.store.targets() as u64) as usize;
                g.store.restart(target);
                g.restarts += 1;
                g.report.restarts += 1;
            }
            _ => {}
        }
    }

    fn cut(&mut self, pairs: &[(Place, Place)], until: u64) {
        self.ground.cuts.extend(pairs.iter().map(|(one, other)| (*one, *other, until)));
        self.ground.report.cuts += 1;
    }

    fn kill(&mut self, server: usize, until: u64) {
        let g = &mut self.ground;
        (g.down[server], g.paused[server]) = (until, 0);
        g.report.kills += 1;
        for at in 0..g.wires.len() {
            let (from, to) = (g.wires[at].place(0), g.wires[at].place(1));
            if from == Place::Server(server) {
                let is_whole = g.is_whole(from, to);
                g.wires[at].leave(0, is_whole);
            } else if to == Place::Server(server) {
                g.wires[at].close(1, g.now);
            }
        }
        g.dials.retain(|dial| dial.from != server);
        self.servers[server] = Server::new(server, g.rng.next());
    }

    fn heal(&mut self) {
        let g = &mut self.ground;
        g.cuts.clear();
        (g.paused, g.down) = ([0; SERVERS], [0; SERVERS]);
    }
}
