//! The network: what it does to a packet is drawn from the seed.

use nuri_io::rng::Rng;

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

pub(super) struct Net {
    pub(super) weather: Weather,
    /// Nothing goes from the first to the second until then.
    cuts: Vec<(Host, Host, u64)>,
}

impl Net {
    pub(super) fn new(weather: Weather) -> Net {
        Net { weather, cuts: Vec::new() }
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

    pub(super) fn heal(&mut self) {
        *self = Net::new(Weather::default());
    }
}

fn happens(rng: &mut Rng, one_in: u64) -> bool {
    one_in > 0 && rng.one_in(one_in)
}
