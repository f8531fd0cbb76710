//! The network: the seed decides what happens to each packet.

use std::rc::Rc;

use nuri_io::rng::Rng;
use nuri_proto::op::Op;
use nuri_proto::op::cluster::Admitted;

use super::baton::Packet;

/// Who waits for an answer.
#[derive(Clone, Debug)]
pub(super) enum Back {
    /// Part of what an actor asked at once.
    Exchange {
        exchange: u64,
        index: usize,
    },
    /// A node's heartbeat, sent at that time of its clock, in that life of it.
    Beat {
        boots: u64,
        sent: std::time::Duration,
    },
    /// The map that a heartbeat told of, with the list that came with it.
    Map {
        boots: u64,
        sent: std::time::Duration,
        list: Option<Admitted>,
    },
    Join {
        boots: u64,
    },
}

/// Who sends and receives.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Host {
    Authority,
    Node(usize),
    Client(usize),
}

/// How bad it is, as chances of one in so many (0: never).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Weather {
    pub(super) loss: u64,
    pub(super) twice: u64,
    /// A packet that comes seconds later, when everybody has gone on.
    pub(super) late: u64,
}

/// Longest that a packet is on its way, microseconds.
const LATE: u64 = 20_000_000;
const USUAL: u64 = 2_000;

/// What a scenario wants to happen to a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    Lost,
    /// It arrives, and its answer does not.
    AnswerLost,
    /// It waits until the scenario lets it go.
    Held,
    /// It arrives, and so does a copy that waits until the scenario lets it go.
    Copied,
}

/// The next packets of a kind to a host.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rule {
    pub(super) op: Op,
    pub(super) to: Host,
    pub(super) fate: Fate,
    /// So many of them.
    pub(super) count: u32,
}

/// A packet that waits.
pub(super) struct Held {
    pub(super) from: Host,
    pub(super) to: Host,
    pub(super) packet: Rc<Packet>,
    pub(super) back: Back,
}

pub(super) struct Net {
    pub(super) weather: Weather,
    /// Of a scenario.
    pub(super) rules: Vec<Rule>,
    pub(super) held: Vec<Held>,
    /// Nothing goes from the first to the second until then.
    cuts: Vec<(Host, Host, u64)>,
}

impl Net {
    pub(super) fn new(weather: Weather) -> Net {
        Net { weather, rules: Vec::new(), held: Vec::new(), cuts: Vec::new() }
    }

    /// Whether a rule is about this packet or, where `answers`, about its answer.
    pub(super) fn fate(&mut self, op: Op, to: Host, answers: bool) -> Option<Fate> {
        let is_it = |r: &&mut Rule| {
            (r.op, r.to) == (op, to) && r.count > 0 && (r.fate == Fate::AnswerLost) == answers
        };
        let rule = self.rules.iter_mut().find(is_it)?;
        rule.count -= 1;
        Some(rule.fate)
    }

    /// When copies of a packet arrive, counted from now: none where it is lost.
    pub(super) fn send(&self, rng: &mut Rng, from: Host, to: Host, now: u64) -> Vec<u64> {
        let is_cut = |c: &&(Host, Host, u64)| (c.0, c.1) == (from, to) && now < c.2;
        let is_lost = happens(rng, self.weather.loss);
        if is_lost || self.cuts.iter().any(|c| is_cut(&c)) {
            return Vec::new();
        }
        let copies = 1 + u64::from(happens(rng, self.weather.twice));
        (0..copies).map(|copy| self.delay(rng, copy > 0)).collect()
    }

    fn delay(&self, rng: &mut Rng, is_copy: bool) -> u64 {
        if happens(rng, self.weather.late) || is_copy && rng.one_in(2) {
            rng.below(LATE)
        } else {
            50 + rng.below(USUAL)
        }
    }

    pub(super) fn cut(&mut self, from: Host, to: Host, until: u64) {
        self.cuts.push((from, to, until));
    }

    /// Whether anything between the host and others is cut.
    pub(super) fn is_cut_off(&self, host: Host, now: u64) -> bool {
        self.cuts.iter().any(|c| (c.0 == host || c.1 == host) && now < c.2)
    }

    pub(super) fn heal(&mut self) {
        *self = Net::new(Weather::default());
    }
}

fn happens(rng: &mut Rng, one_in: u64) -> bool {
    one_in > 0 && rng.one_in(one_in)
}
