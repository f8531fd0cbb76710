//! Room that was promised to sessions: what a client accepted from its programs and has not sent
//! yet finds its place. Pure; in blocks.
//!
//! K1 A session takes room only beside what others were promised; who was promised nothing, beside
//!    all that was promised to anybody, and leaves a margin for what writes take for a moment.
//! K2 What a session takes comes out of what it was promised.
//! K3 More is promised only of what nobody was promised beyond the margin: as much as is needed,
//!    or nothing.
//!
//! Promises are in memory: a client repeats its own several times a second, and they end with its
//! session.

use std::collections::HashMap;

use nuri_proto::id::SessionId;
use nuri_rules::broken;

use super::BLOCK;

/// Never promised, but in small stores.
const MARGIN: u64 = (16 << 20) / BLOCK as u64;
/// Nor is this part of a store.
const MARGIN_PART: u64 = 16;
/// Of what is left beyond the need of who asks: so much stays for others who ask.
const GENEROSITY: u64 = 4;

/// For whom blocks are taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Payer {
    /// Out of what it was promised.
    Session(SessionId),
    /// Programs that were told of no promise, and wait for the answer.
    Nobody,
    /// The space itself, which keeps what it holds whole: a rebuild does not wait for room that
    /// programs might want.
    Upkeep,
}

/// What a session asks for: as much as it must have, and as much as it would like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wish {
    pub needed: u64,
    pub wanted: u64,
}

/// What each session was promised.
#[derive(Default)]
pub struct Credits {
    promised: HashMap<SessionId, u64>,
    total: u64,
}

impl Credits {
    /// What must be left of a store's `size` when somebody takes so many blocks: what others were
    /// promised, and beside that the margin where they are more than it was promised itself.
    pub fn kept_from(&self, payer: Payer, blocks: u64, size: u64) -> u64 {
        let (others, own) = match payer {
            _ if broken!("credit_taken") => return 0,
            Payer::Session(session) => (self.of_others(session), self.of(session)),
            Payer::Nobody => (self.total, 0),
            Payer::Upkeep => return 0,
        };
        if others > 0 && blocks > own { others + margin(size) } else { others }
    }

    fn of_others(&self, session: SessionId) -> u64 {
        self.total - self.of(session)
    }

    fn of(&self, session: SessionId) -> u64 {
        self.promised.get(&session).copied().unwrap_or(0)
    }

    fn set(&mut self, session: SessionId, blocks: u64) {
        self.total = self.total - self.of(session) + blocks;
        match blocks {
            0 => self.promised.remove(&session),
            blocks => self.promised.insert(session, blocks),
        };
    }

    /// Blocks were taken (K2).
    pub fn take(&mut self, payer: Payer, blocks: u64) {
        if let Payer::Session(session) = payer {
            self.set(session, self.of(session).saturating_sub(blocks));
        }
    }

    /// Promises the session so much from now on, in the place of what it was promised before, where
    /// so many blocks are free of a store's `size` (K3). Returns how much it is.
    pub fn promise(&mut self, session: SessionId, wish: Wish, free: u64, size: u64) -> u64 {
        let most = free.saturating_sub(margin(size) + self.of_others(session));
        let fair = most.checked_sub(wish.needed).map(|more| wish.needed + more / GENEROSITY);
        let promised = wish.wanted.min(self.of(session).max(fair.unwrap_or(0)));
        self.set(session, promised);
        promised
    }

    /// Sessions that ended are promised nothing.
    pub fn retain(&mut self, lives: impl Fn(SessionId) -> bool) {
        self.promised.retain(|session, _| lives(*session));
        self.total = self.promised.values().sum();
    }
}

fn margin(size: u64) -> u64 {
    MARGIN.min(size / MARGIN_PART)
}

#[cfg(test)]
mod tests {
    use nuri_io::rng::Rng;

    use super::*;

    const A: SessionId = SessionId(1);
    const B: SessionId = SessionId(2);
    const SIZE: u64 = 1 << 20;

    fn wish(needed: u64, wanted: u64) -> Wish {
        Wish { needed, wanted }
    }

    #[test]
    fn what_one_was_promised_others_do_not_get() {
        let mut credits = Credits::default();
        assert_eq!(credits.promise(A, wish(50, 50), MARGIN + 100, SIZE), 50);
        assert_eq!(credits.kept_from(Payer::Session(B), 1, SIZE), 50 + MARGIN);
        assert_eq!(credits.kept_from(Payer::Session(A), 1000, SIZE), 0, "nobody else is there");
        assert_eq!(credits.kept_from(Payer::Upkeep, 1, SIZE), 0);
        assert_eq!(credits.kept_from(Payer::Nobody, 1, SIZE), 50 + MARGIN);
        assert_eq!(credits.promise(B, wish(60, 60), MARGIN + 100, SIZE), 0, "less than it needs");
        assert_eq!(credits.promise(B, wish(40, 60), MARGIN + 100, SIZE), 42);
        assert_eq!(credits.promise(B, wish(0, 0), MARGIN + 100, SIZE), 0, "given back");
        credits.retain(|session| session != A);
        assert_eq!(credits.kept_from(Payer::Session(B), 1, SIZE), 0);
    }

    #[test]
    fn what_is_taken_was_promised_and_what_is_wished_beyond_the_need_is_shared() {
        let mut credits = Credits::default();
        assert_eq!(credits.promise(A, wish(100, 5000), MARGIN + 4100, SIZE), 1100);
        credits.take(Payer::Session(A), 300);
        assert_eq!(credits.kept_from(Payer::Session(B), 1, SIZE), 800 + MARGIN);
        credits.take(Payer::Upkeep, 300);
        credits.take(Payer::Session(A), 900);
        assert_eq!(credits.kept_from(Payer::Session(B), 1, SIZE), 0);
    }

    #[test]
    fn a_promise_is_not_taken_back_where_free_room_shrinks() {
        let mut credits = Credits::default();
        assert_eq!(credits.promise(A, wish(100, 100), MARGIN + 100, SIZE), 100);
        assert_eq!(credits.promise(A, wish(100, 200), MARGIN, SIZE), 100);
        assert_eq!(credits.promise(B, wish(1, 1), MARGIN + 100, SIZE), 0);
    }

    /// Sessions that take no more than they were promised never find that others took it.
    /// Catches `broken!("credit_taken")`.
    #[test]
    fn who_was_promised_room_finds_it() {
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let (mut credits, mut free) = (Credits::default(), MARGIN + rng.below(2000));
            let mut believed = [0u64; 3];
            for _ in 0..300 {
                let who = rng.below(3) as usize;
                let session = SessionId(who as u64);
                let kept = |taken| credits.kept_from(Payer::Session(session), taken, SIZE);
                match rng.below(3) {
                    0 => {
                        let needed = rng.below(500);
                        let wish = wish(needed, needed + rng.below(500));
                        believed[who] = credits.promise(session, wish, free, SIZE);
                    }
                    1 => {
                        let taken = rng.below(believed[who] + 1);
                        assert!(taken + kept(taken) <= free, "seed {seed}: {taken} of {free}");
                        credits.take(Payer::Session(session), taken);
                        (free, believed[who]) = (free - taken, believed[who] - taken);
                    }
                    // Without a promise: what is refused is told at once.
                    _ => {
                        let taken = rng.below(500);
                        if taken + credits.kept_from(Payer::Nobody, taken, SIZE) <= free {
                            credits.take(Payer::Nobody, taken);
                            free -= taken;
                        }
                    }
                }
            }
        }
    }
}
