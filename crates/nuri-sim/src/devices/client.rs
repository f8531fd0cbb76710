//! A client with a channel to each server, and a program for each block.
//!
//! When a channel is lost, the client sends the requests without an answer on another one. It does
//! so at once, like clients that connect anew by themselves. Or it does so after a time of its own,
//! like Linux for `nuri volume attach`.

use std::collections::BTreeMap;

use super::Ground;
use super::store::BLOCKS;
use super::wire::{Act, Message, Place, Request};
use crate::check::{Wrong, wrong};

/// After which time Linux sends a request again (`attach/device.rs`), and a channel ends of which
/// nothing is taken.
const ANSWER: u64 = 15_000;
/// How often it is tried to have a channel back.
const AGAIN: u64 = 500;

struct Channel {
    wire: Option<usize>,
    again_at: u64,
}

struct Sent {
    act: Act,
    /// `None`: it has to be sent again.
    wire: Option<usize>,
    /// When it was sent last.
    at: u64,
    /// When it was sent first.
    since: u64,
}

pub struct Client {
    is_linux: bool,
    channels: Vec<Channel>,
    requests: BTreeMap<u64, Sent>,
    last: u64,
    /// The last values that were written, answered, and covered by a flush.
    written: [u64; BLOCKS],
    answered: [u64; BLOCKS],
    flushed: [u64; BLOCKS],
    /// What was answered when the flush under way was sent.
    covers: [u64; BLOCKS],
    next_at: [u64; BLOCKS],
    /// It found that answered bytes are lost.
    has_loss: bool,
}

impl Client {
    pub fn new(servers: usize, is_linux: bool) -> Client {
        let channel = |_| Channel { wire: None, again_at: 0 };
        Client {
            is_linux,
            channels: (0..servers).map(channel).collect(),
            requests: BTreeMap::new(),
            last: 0,
            written: [0; BLOCKS],
            answered: [0; BLOCKS],
            flushed: [0; BLOCKS],
            covers: [0; BLOCKS],
            next_at: [0; BLOCKS],
            has_loss: false,
        }
    }

    /// `works`: new requests are made.
    pub fn act(&mut self, works: bool, g: &mut Ground) -> Result<(), Wrong> {
        for channel in 0..self.channels.len() {
            self.look_after(channel, g)?;
        }
        self.send_again(g);
        if works {
            for block in 0..BLOCKS {
                self.go_on(block, g);
            }
            let flushes = self.requests.values().any(|sent| sent.act == Act::Flush);
            if !flushes && g.rng.one_in(100) {
                self.covers = self.answered;
                self.ask(Act::Flush, g);
            }
        }
        Ok(())
    }

    pub fn is_idle(&self) -> bool {
        self.requests.is_empty()
    }

    /// Reads every block, or flushes.
    pub fn look(&mut self, g: &mut Ground) {
        (0..BLOCKS).for_each(|block| self.ask(Act::Read(block), g));
    }

    pub fn flush(&mut self, g: &mut Ground) {
        self.covers = self.answered;
        self.ask(Act::Flush, g);
    }

    fn look_after(&mut self, at: usize, g: &mut Ground) -> Result<(), Wrong> {
        let Some(wire) = self.channels[at].wire else {
            let is_reached = g.is_up(at) && g.is_whole(Place::Client, Place::Server(at));
            if self.channels[at].again_at <= g.now && is_reached {
                self.channels[at].again_at = g.now + AGAIN;
                let wire = g.connect((Place::Client, Place::Server(at)), ANSWER);
                g.accepts.push((at, wire));
                self.channels[at].wire = Some(wire);
            }
            return Ok(());
        };
        while let Some(message) = g.wires[wire].receive(0) {
            if let Message::Answer(number, outcome) = message {
                self.hear(number, outcome, g)?;
            }
        }
        let is_late = |sent: &Sent| sent.wire == Some(wire) && g.now - sent.at >= ANSWER;
        let gives_up = self.is_linux && self.requests.values().any(is_late);
        if g.wires[wire].is_left(0) || gives_up {
            // What was sent may still arrive.
            g.wires[wire].close(0, g.now);
            self.channels[at].wire = None;
        }
        Ok(())
    }

    /// In the order in which they were sent; those of one block on one channel.
    fn send_again(&mut self, g: &mut Ground) {
        let alive: Vec<usize> = self.channels.iter().filter_map(|channel| channel.wire).collect();
        let waits = if self.is_linux { ANSWER } else { 0 };
        let is_lost = |wire: usize| !alive.contains(&wire);
        for sent in self.requests.values_mut() {
            sent.wire = sent.wire.filter(|wire| !is_lost(*wire) || g.now - sent.at < waits);
        }
        if alive.is_empty() {
            return;
        }
        for number in self.requests.keys().copied().collect::<Vec<_>>() {
            let Some(Sent { act, wire: None, since, .. }) = self.requests.get(&number) else {
                continue;
            };
            let (act, since) = (*act, *since);
            let is_beside =
                |sent: &&Sent| meets(sent.act, act) && sent.wire.is_some_and(|wire| !is_lost(wire));
            let beside = self.requests.values().find(is_beside);
            let drawn = alive[g.rng.below(alive.len() as u64) as usize];
            let wire = beside.and_then(|sent| sent.wire).unwrap_or(drawn);
            g.report.repeats += u64::from(since != g.now);
            g.wires[wire].send(0, Message::Ask(Request { number, act }), g.now);
            self.requests.insert(number, Sent { act, wire: Some(wire), at: g.now, since });
        }
    }

    fn ask(&mut self, act: Act, g: &mut Ground) {
        self.last += 1;
        let sent = Sent { act, wire: None, at: g.now, since: g.now };
        self.requests.insert(self.last, sent);
        self.send_again(g);
    }

    /// The block's program: one request at a time, or two writes in a row.
    fn go_on(&mut self, block: usize, g: &mut Ground) {
        let is_its = |sent: &Sent| meets(sent.act, Act::Read(block));
        if g.now < self.next_at[block] || self.requests.values().any(is_its) {
            return;
        }
        self.next_at[block] = g.now + g.rng.below(120);
        if g.rng.one_in(3) {
            return self.ask(Act::Read(block), g);
        }
        let count = 1 + u64::from(g.rng.one_in(4));
        for _ in 0..count {
            self.written[block] += 1;
            self.ask(Act::Write(block, self.written[block]), g);
        }
    }

    fn hear(&mut self, number: u64, outcome: Result<u64, ()>, g: &mut Ground) -> Result<(), Wrong> {
        let Some(sent) = self.requests.remove(&number) else { return Ok(()) };
        g.report.answered += 1;
        g.report.longest = g.report.longest.max(g.now - sent.since);
        match (sent.act, outcome) {
            (Act::Write(block, value), _) => {
                self.answered[block] = self.answered[block].max(value);
                Ok(())
            }
            (Act::Read(block), Ok(found)) => self.check_read(block, found, g),
            (Act::Read(block), Err(())) => Err(wrong!("block {block} cannot be read")),
            (Act::Flush, Ok(_)) => self.check_flush(g),
            (Act::Flush, Err(())) => {
                g.report.failed_flushes += 1;
                Ok(())
            }
        }
    }

    fn check_read(&mut self, block: usize, found: u64, g: &Ground) -> Result<(), Wrong> {
        let (answered, flushed) = (self.answered[block], self.flushed[block]);
        if found == answered {
            return Ok(());
        }
        // Memory of targets was lost, and with it what was not flushed.
        if g.restarts > 0 && found < answered && found >= flushed {
            self.has_loss = true;
            self.answered[block] = found;
            return Ok(());
        }
        Err(wrong!("at {} ms block {block} has {found}, not {answered}", g.now))
    }

    fn check_flush(&mut self, g: &mut Ground) -> Result<(), Wrong> {
        g.report.flushes += 1;
        if self.has_loss {
            return Err(wrong!("at {} ms a flush succeeds, and answered bytes are lost", g.now));
        }
        for block in 0..BLOCKS {
            let (durable, covers) = (g.store.durable[block], self.covers[block]);
            if durable < covers {
                let now = g.now;
                return Err(wrong!(
                    "at {now} ms {durable} of block {block} is flushed, not {covers}"
                ));
            }
        }
        self.flushed = self.covers;
        Ok(())
    }
}

/// Whether two requests are of one block.
fn meets(one: Act, other: Act) -> bool {
    let block = |act| match act {
        Act::Read(block) | Act::Write(block, _) => Some(block),
        Act::Flush => None,
    };
    block(one).is_some() && block(one) == block(other)
}
