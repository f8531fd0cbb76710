//! Where the volume's bytes lie: targets with memory. Also the metadata server that hands out the
//! volume's lock.

use std::collections::BTreeMap;

use nuri_nbd::volume::{Boots, Mark};
use nuri_proto::id::{BootId, TargetId};

/// Blocks of the volume; each lies on one target.
pub const BLOCKS: usize = 3;
const TARGETS: usize = 2;
/// Milliseconds until a session ends of which nothing is heard.
const SESSION: u64 = 6000;

/// The targets, on which a stripe keeps what was not flushed in memory.
#[derive(Default)]
pub struct Store {
    pub durable: [u64; BLOCKS],
    memory: [Option<u64>; BLOCKS],
    boots: [u64; TARGETS],
}

impl Store {
    pub fn write(&mut self, block: usize, value: u64, is_durable: bool) {
        match is_durable {
            true => (self.durable[block], self.memory[block]) = (value, None),
            false => self.memory[block] = Some(value),
        }
    }

    pub fn read(&self, block: usize) -> u64 {
        self.memory[block].unwrap_or(self.durable[block])
    }

    /// Makes everything durable; says at which boots.
    pub fn settle(&mut self) -> Boots {
        for block in 0..BLOCKS {
            self.durable[block] = self.read(block);
            self.memory[block] = None;
        }
        let boot = |(target, boot): (usize, &u64)| (TargetId(target as u32), BootId(*boot));
        self.boots.iter().enumerate().map(boot).collect()
    }

    /// The target starts anew, without what was in its memory.
    pub fn restart(&mut self, target: usize) {
        self.boots[target] += 1;
        (target..BLOCKS).step_by(TARGETS).for_each(|block| self.memory[block] = None);
    }

    pub fn targets(&self) -> usize {
        TARGETS
    }
}

/// Sessions, the lock, and what is written at the volume.
pub struct Metadata {
    /// When each was heard last.
    sessions: BTreeMap<u64, u64>,
    last: u64,
    holder: Option<u64>,
    /// Which server says that it owns the volume, with its secret.
    pub owner: Option<(usize, u64)>,
    pub mark: Mark,
}

impl Default for Metadata {
    fn default() -> Metadata {
        let (sessions, last, holder, owner) = (BTreeMap::new(), 0, None, None);
        Metadata { sessions, last, holder, owner, mark: Mark::Clean }
    }
}

impl Metadata {
    pub fn open_session(&mut self, now: u64) -> u64 {
        self.last += 1;
        self.sessions.insert(self.last, now);
        self.last
    }

    /// False: the session is over.
    pub fn hear(&mut self, session: u64, now: u64) -> bool {
        self.sessions.get_mut(&session).map(|heard| *heard = now).is_some()
    }

    /// Ends sessions of which nothing was heard.
    pub fn look(&mut self, now: u64) {
        self.sessions.retain(|_, heard| now - *heard < SESSION);
        self.holder = self.holder.filter(|holder| self.sessions.contains_key(holder));
    }

    /// True: the session has the lock now.
    pub fn lock(&mut self, session: u64) -> bool {
        if self.sessions.contains_key(&session) {
            self.holder.get_or_insert(session);
        }
        self.holder == Some(session)
    }

    /// Whether targets take what is sent in the session.
    pub fn admits(&self, session: u64) -> bool {
        self.sessions.contains_key(&session)
    }
}
