//! What an endpoint does, for one caller at a time. The engine owns all state and never waits.
//!
//! [`Engine::progress`] takes events from the watcher's desk, pushes sends that wait for room, and
//! takes one record or chunk from each peer. Callers repeat it until what they wait for has
//! happened.

mod loan;
mod receive;
mod send;
mod stored;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nuri_rules::broken;
pub(crate) use receive::Now;
use stored::Stored;

use crate::bell::NAP;
use crate::config::Config;
use crate::distance::Cores;
use crate::error::{Error, Result};
use crate::heap::Heap;
use crate::info::{Info, PeerInfo};
use crate::link::{self, Incoming, Outgoing};
use crate::matching::Matching;
use crate::requests::{Completion, Request, Requests, Work};
use crate::session::Session;
use crate::socket;
use crate::watcher::{Desk, Event, Watched, Watcher};
use crate::window::{self, Window};

/// Between two tries to reach a peer that is not there yet; doubled up to [`NAP`].
const KNOCK: Duration = Duration::from_millis(1);

/// What is known about a rank.
#[derive(Debug)]
struct Peer {
    out: Option<Outgoing>,
    /// Sends not finished, in order.
    queue: VecDeque<Request>,
    /// Since when a link to it is wanted, and when and how long after to try again.
    wanted: Option<Wanted>,
    /// It was there and is not any more.
    gone: bool,
    /// It is in `Engine::busy`.
    listed: bool,
}

#[derive(Clone, Copy, Debug)]
struct Wanted {
    since: Instant,
    next: Instant,
    pause: Duration,
}

/// The state of an endpoint. Fields are dropped in order: peers learn of the end before the name
/// goes.
pub struct Engine {
    config: Config,
    requests: Requests,
    matching: Matching<Request, u32>,
    stored: Stored,
    heap: Arc<Heap>,
    peers: Vec<Peer>,
    /// Ranks with sends that wait or a link that is wanted.
    busy: Vec<u32>,
    ins: Vec<Incoming>,
    desk: Arc<Desk>,
    _watcher: Watcher,
    session: Session,
}

impl Engine {
    /// Takes the rank and starts listening.
    pub(crate) fn open(config: Config) -> Result<Self> {
        config.check()?;
        let (session, listener) = Session::join(&config)?;
        let watcher = Watcher::start(listener, config.size)?;
        let peer = |_| Peer {
            out: None,
            queue: VecDeque::new(),
            wanted: None,
            gone: false,
            listed: false,
        };
        Ok(Self {
            peers: (0..config.size).map(peer).collect(),
            heap: Heap::create(config.heap)?,
            config,
            requests: Requests::default(),
            matching: Matching::new(),
            stored: Stored::default(),
            busy: Vec::new(),
            ins: Vec::new(),
            desk: Arc::clone(watcher.desk()),
            _watcher: watcher,
            session,
        })
    }

    /// What the watcher's thread shares.
    pub(crate) fn desk(&self) -> &Arc<Desk> {
        &self.desk
    }

    /// The session's name, rank and bounds.
    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// What is used and how much of it.
    pub(crate) fn info(&self) -> Info {
        let kept = self.stored.memory();
        let outs = self.peers.iter().filter_map(|p| p.out.as_ref());
        let rings = outs.map(|out| out.records.memory().bytes() + out.bulk.memory()).sum();
        let peer = |(rank, peer): (u32, &Peer)| PeerInfo {
            rank,
            sends: self.is_linked(rank),
            receives: peer.out.is_some(),
            gone: peer.gone,
            cores: peer.out.as_ref().map_or(Cores::Unknown, |out| out.distance.cores()),
            cross_memory: peer.out.as_ref().map(|out| out.cross_memory),
        };
        let peers = (0..).zip(&self.peers).filter(|(rank, _)| *rank != self.config.rank);
        let peers = peers.map(peer).filter(|p| p.sends || p.receives || p.gone).collect();
        Info { rings, kept, heap: self.heap.used(), peers }
    }

    /// Moves everything on by a step; says whether anything moved.
    #[inline]
    pub(crate) fn progress(&mut self) -> bool {
        let mut moved = self.hear();
        if !self.busy.is_empty() {
            moved |= self.push_busy();
        }
        let mut i = 0;
        while i < self.ins.len() {
            moved |= self.pull(i);
            i += 1;
        }
        moved
    }

    /// Takes what the watcher left; says whether there was anything.
    #[inline]
    fn hear(&mut self) -> bool {
        let Some(events) = self.desk.news() else { return false };
        events.into_iter().for_each(|event| self.on(event));
        true
    }

    /// Whether a request has ended.
    #[inline]
    pub(crate) fn is_done(&mut self, request: Request) -> Result<bool> {
        self.requests.is_done(request)
    }

    /// Takes the end of a request.
    #[inline]
    pub(crate) fn take(&mut self, request: Request) -> Option<Completion> {
        self.requests.take(request)
    }

    /// Takes a request back, unless bytes have moved for it: then it goes on, and this says so.
    pub(crate) fn cancel(&mut self, request: Request) -> Result<bool> {
        if self.requests.is_done(request)? {
            return Ok(false);
        }
        if let Some(receiving) = self.requests.receiving(request) {
            let Some(key) = receiving.waits.take() else { return Ok(false) };
            self.matching.cancel(key);
        } else if let Some(sending) = self.requests.sending(request) {
            if sending.sent > 0 {
                return Ok(false);
            }
            let to = sending.to as usize;
            self.peers[to].queue.retain(|r| *r != request);
        }
        self.requests.finish(request, Err(Error::Cancelled));
        Ok(true)
    }

    /// Whether a peer runs on this core.
    pub(crate) fn crowded(&self) -> bool {
        let here = self.desk.bell().here();
        let outs = self.peers.iter().filter_map(|p| p.out.as_ref()).map(|out| &out.bell);
        self.ins.iter().map(|link| &link.bell).chain(outs).any(|bell| bell.cpu() == here)
    }

    /// How long to sleep at most: peers that are not there yet do not ring.
    pub(crate) fn nap(&self) -> Duration {
        let now = Instant::now();
        let wanted = self.busy.iter().filter_map(|rank| self.peers[*rank as usize].wanted);
        wanted.map(|w| w.next.saturating_duration_since(now)).fold(NAP, Duration::min)
    }

    fn on(&mut self, event: Event) {
        match event {
            Event::Joined(link) => {
                self.peers[link.rank as usize].gone = false;
                self.ins.push(*link);
            }
            Event::Gone { link } => {
                if let Some(link) = self.ins.iter_mut().find(|l| l.id == link) {
                    link.gone = true;
                    return;
                }
                let is_it = |p: &Peer| p.out.as_ref().is_some_and(|out| out.id == link);
                if let Some(rank) = self.peers.iter().position(is_it) {
                    self.lose_out(rank as u32, &Error::PeerGone { rank: rank as u32 });
                }
            }
        }
    }

    /// Our link to a rank is over. What it answered before counts.
    fn lose_out(&mut self, rank: u32, why: &Error) {
        if !broken!("end_before_answer") {
            self.hear_answer(rank);
        }
        if let Some(out) = self.peers[rank as usize].out.take() {
            self.desk.cut(out.id);
        }
        self.fail_queue(rank, why);
        self.lose_rank(rank, why);
    }

    fn fail_queue(&mut self, rank: u32, why: &Error) {
        for request in std::mem::take(&mut self.peers[rank as usize].queue) {
            self.requests.finish(request, Err(why.clone()));
        }
    }

    /// A rank is gone: nobody waits for it any longer, once all it sent has been read.
    fn lose_rank(&mut self, rank: u32, why: &Error) {
        self.peers[rank as usize].gone = true;
        if self.ins.iter().any(|link| link.rank == rank) {
            return;
        }
        for request in self.matching.desert(rank) {
            self.requests.finish(request, Err(why.clone()));
        }
        if self.alone() {
            for request in self.matching.desert_all() {
                self.requests.finish(request, Err(why.clone()));
            }
        }
    }

    /// Whether all others were there and are gone.
    fn alone(&self) -> bool {
        let others = self.peers.iter().zip(0..).filter(|(_, rank)| *rank != self.config.rank);
        self.ins.is_empty() && self.config.size > 1 && others.into_iter().all(|(p, _)| p.gone)
    }

    /// Wants a link to a rank, now or as soon as it is there. A rank that is gone is tried once.
    fn want(&mut self, rank: u32) -> Result<()> {
        let peer = &self.peers[rank as usize];
        if peer.out.is_some() {
            return Ok(());
        }
        if peer.gone && !self.connect(rank)? {
            return Err(Error::PeerGone { rank });
        }
        let now = Instant::now();
        let peer = &mut self.peers[rank as usize];
        if peer.out.is_none() && peer.wanted.is_none() {
            peer.wanted = Some(Wanted { since: now, next: now, pause: KNOCK });
            self.list(rank);
        }
        Ok(())
    }

    fn list(&mut self, rank: u32) {
        let peer = &mut self.peers[rank as usize];
        if !peer.listed {
            peer.listed = true;
            self.busy.push(rank);
        }
    }

    /// Tries to set a link up; says whether it is.
    fn connect(&mut self, rank: u32) -> Result<bool> {
        let Some(socket) = socket::connect(&self.session.socket(rank))? else { return Ok(false) };
        self.desk.bell().here();
        let bell = std::os::fd::AsFd::as_fd(self.desk.bell_fd());
        let offered = link::offer(socket, self.desk.number(), &self.config, &self.heap, bell)?;
        let Some(made) = offered else { return Ok(false) };
        let watched = Watched { link: made.link.id, socket: made.socket, pidfd: made.pidfd };
        self.desk.watch(watched);
        let peer = &mut self.peers[rank as usize];
        peer.out = Some(made.link);
        peer.wanted = None;
        peer.gone = false;
        Ok(true)
    }

    /// Attaches to a peer's window, if it is there by now.
    pub(crate) fn attach(&mut self, rank: u32, number: u64) -> Result<Option<Window>> {
        self.check_rank(rank)?;
        match socket::connect(&self.session.socket(rank))? {
            Some(socket) => window::attach(&socket, number),
            None => Ok(None),
        }
    }

    /// Pushes what waits; drops ranks from the list for which nothing does.
    fn push_busy(&mut self) -> bool {
        let mut moved = false;
        for rank in std::mem::take(&mut self.busy) {
            self.peers[rank as usize].listed = false;
            if self.peers[rank as usize].wanted.is_some() {
                moved |= self.knock(rank);
            }
            moved |= self.push(rank);
            let peer = &self.peers[rank as usize];
            if peer.wanted.is_some() || !peer.queue.is_empty() {
                self.list(rank);
            }
        }
        moved
    }

    /// Tries again to reach a rank whose turn it is. Only sends run out of time.
    fn knock(&mut self, rank: u32) -> bool {
        let Some(mut wanted) = self.peers[rank as usize].wanted else { return false };
        let now = Instant::now();
        if now < wanted.next {
            return false;
        }
        let failed = match self.connect(rank) {
            Ok(true) => return true,
            // It was there, and ended before it was linked to from here.
            Ok(false) if self.peers[rank as usize].gone && !self.is_linked(rank) => {
                self.peers[rank as usize].wanted = None;
                self.fail_queue(rank, &Error::PeerGone { rank });
                return true;
            }
            Ok(false) if now - wanted.since < self.config.connect => None,
            Ok(false) => Some(Error::PeerAbsent { rank }),
            Err(e) => Some(e),
        };
        if let Some(why) = &failed {
            self.fail_queue(rank, why);
        }
        wanted.next = now + wanted.pause;
        wanted.pause = (wanted.pause * 2).min(NAP);
        self.peers[rank as usize].wanted = Some(wanted);
        failed.is_some()
    }

    fn check_rank(&self, rank: u32) -> Result<()> {
        let size = self.config.size;
        if rank < size { Ok(()) } else { Err(Error::WrongRank { rank, size }) }
    }
}

#[cfg(test)]
impl Engine {
    pub(crate) fn link(&mut self, rank: u32) -> Option<&mut Outgoing> {
        self.peers[rank as usize].out.as_mut()
    }
}

#[cfg(test)]
mod tests;
