//! Space that was promised to sessions: bytes that a client accepted from its programs, and has not
//! sent yet, find their place. Pure; in blocks.
//!
//! RESERVE-1 A session takes space only beside what others were promised. A session without a
//!    promise takes space only beside all promises.
//! RESERVE-2 What a session takes comes out of what it was promised.
//! RESERVE-3 Only space that is promised to nobody, beyond the margin, can be promised. A session
//!    gets as much as it needs, or nothing.
//! RESERVE-4 A write that makes a store fuller leaves the margin. A write over existing blocks
//!    takes new ones for a moment, and finds them in the margin. So it never lacks space, however
//!    full the store is, and `fallocate` can promise that.
//!
//! Promises are in memory. A client repeats its own several times a second, and they end with its
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

/// Blocks that somebody takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Need {
    pub blocks: u64,
    /// By how many the store becomes fuller: the others replace what is there.
    pub gained: u64,
}

impl Need {
    pub const NONE: Need = Need::new(0);

    /// Blocks that replace none.
    pub const fn new(blocks: u64) -> Need {
        Need { blocks, gained: blocks }
    }
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
    /// What must be left when somebody takes blocks: what others were promised (RESERVE-1), and
    /// beside that the margin where the store gains more than was promised for it (RESERVE-4).
    pub fn kept_from(&self, payer: Payer, need: Need, margin: u64) -> u64 {
        let (others, own) = match payer {
            _ if broken!("credit_taken") => return 0,
            Payer::Session(session) => (self.of_others(session), self.of(session)),
            Payer::Nobody => (self.total, 0),
            Payer::Upkeep => return 0,
        };
        let is_over = need.gained == 0 || broken!("margin_filled");
        if is_over || need.blocks <= own { others } else { others + margin }
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

    /// Blocks were taken (RESERVE-2).
    pub fn take(&mut self, payer: Payer, blocks: u64) {
        if let Payer::Session(session) = payer {
            self.set(session, self.of(session).saturating_sub(blocks));
        }
    }

    /// Promises the session so much from now on, in the place of what it was promised before, where
    /// so many blocks are free beside the margin (RESERVE-3). Returns how much it is.
    pub fn promise(&mut self, session: SessionId, wish: Wish, free: u64) -> u64 {
        let most = free.saturating_sub(self.of_others(session));
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

/// What is never promised of a store of so many blocks, nor filled.
pub fn margin(size: u64) -> u64 {
    MARGIN.min(size / MARGIN_PART)
}

#[cfg(test)]
mod tests {
    use nuri_io::rng::Rng;

    use super::*;

    const A: SessionId = SessionId(1);
    const B: SessionId = SessionId(2);
    fn wish(needed: u64, wanted: u64) -> Wish {
        Wish { needed, wanted }
    }

    #[test]
    fn what_one_was_promised_others_do_not_get() {
        let mut credits = Credits::default();
        assert_eq!(credits.promise(A, wish(50, 50), 100), 50);
        assert_eq!(credits.kept_from(Payer::Session(B), Need::new(1), MARGIN), 50 + MARGIN);
        assert_eq!(credits.kept_from(Payer::Session(A), Need::new(50), MARGIN), 0);
        assert_eq!(credits.kept_from(Payer::Session(A), Need::new(51), MARGIN), MARGIN);
        assert_eq!(credits.kept_from(Payer::Upkeep, Need::new(1), MARGIN), 0);
        assert_eq!(credits.kept_from(Payer::Nobody, Need::new(1), MARGIN), 50 + MARGIN);
        assert_eq!(credits.promise(B, wish(60, 60), 100), 0, "less than it needs");
        assert_eq!(credits.promise(B, wish(40, 60), 100), 42);
        assert_eq!(credits.promise(B, wish(0, 0), 100), 0, "given back");
        credits.retain(|session| session != A);
        assert_eq!(credits.kept_from(Payer::Session(B), Need::new(1), MARGIN), MARGIN);
    }

    /// What `broken!("margin_filled")` breaks; a test of whole stores catches it.
    #[test]
    fn what_replaces_blocks_may_use_the_margin_and_nobody_else() {
        let mut credits = Credits::default();
        let over = Need { blocks: 256, gained: 0 };
        for payer in [Payer::Nobody, Payer::Session(A)] {
            assert_eq!(credits.kept_from(payer, over, MARGIN), 0);
            assert_eq!(credits.kept_from(payer, Need { gained: 1, ..over }, MARGIN), MARGIN);
        }
        credits.promise(B, wish(50, 50), 100);
        assert_eq!(credits.kept_from(Payer::Nobody, over, MARGIN), 50, "which B may need");
    }

    #[test]
    fn what_is_taken_was_promised_and_what_is_wished_beyond_the_need_is_shared() {
        let mut credits = Credits::default();
        assert_eq!(credits.promise(A, wish(100, 5000), 4100), 1100);
        credits.take(Payer::Session(A), 300);
        assert_eq!(credits.kept_from(Payer::Session(B), Need::new(1), 0), 800);
        credits.take(Payer::Upkeep, 300);
        credits.take(Payer::Session(A), 900);
        assert_eq!(credits.kept_from(Payer::Session(B), Need::new(1), 0), 0);
    }

    #[test]
    fn a_promise_is_not_taken_back_where_free_room_shrinks() {
        let mut credits = Credits::default();
        assert_eq!(credits.promise(A, wish(100, 100), 100), 100);
        assert_eq!(credits.promise(A, wish(100, 200), 0), 100);
        assert_eq!(credits.promise(B, wish(1, 1), 100), 0);
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
                let payer = Payer::Session(session);
                let kept = |taken| credits.kept_from(payer, Need::new(taken), MARGIN);
                match rng.below(3) {
                    0 => {
                        let needed = rng.below(500);
                        let wish = wish(needed, needed + rng.below(500));
                        let beside = free.saturating_sub(MARGIN);
                        believed[who] = credits.promise(session, wish, beside);
                    }
                    1 => {
                        let taken = rng.below(believed[who] + 1);
                        assert!(taken + kept(taken) <= free, "seed {seed}: {taken} of {free}");
                        credits.take(payer, taken);
                        (free, believed[who]) = (free - taken, believed[who] - taken);
                    }
                    // Without a promise: what is refused is told at once.
                    _ => {
                        let taken = rng.below(500);
                        let kept = credits.kept_from(Payer::Nobody, Need::new(taken), MARGIN);
                        if taken + kept <= free {
                            credits.take(Payer::Nobody, taken);
                            free -= taken;
                        }
                    }
                }
            }
        }
    }
}
