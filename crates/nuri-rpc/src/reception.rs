//! Connections whose peers have proved nothing yet.
//!
//! RECEPTION-1 Until its peer has proved the secret, a connection has no thread, and no memory but
//!    for its proof.
//! RECEPTION-2 The number of waiting connections is bounded, for each source and in all. Beyond the
//!    bound the oldest one is closed. A peer that knows the secret is through within milliseconds;
//!    a peer that does nothing makes room for others.
//! RECEPTION-3 A connection that has proved nothing in time is closed.
//!
//! One thread looks after all of them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use nuri_proto::op::Role;
use nuri_rules::broken;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};

use crate::handshake::{Acceptance, HELLO, Step, TIMEOUT};
use crate::secret::Secret;
use crate::stream::{Listener, Source, Stream};

/// Of one source, and of all.
const OF_ONE: usize = 64;
const OF_ALL: usize = 1024;
/// Events that are looked at together, and connections that are taken together.
const TOGETHER: usize = 64;
/// Without any event it is looked as often whether the server ends.
const LOOK: Duration = Duration::from_secs(1);
/// After the system gave no descriptor.
const PAUSE: Duration = Duration::from_millis(10);

/// Who waits, oldest first. Pure.
#[derive(Default)]
struct Line {
    all: BTreeMap<u64, Source>,
    by_source: HashMap<Source, BTreeSet<u64>>,
}

impl Line {
    /// Adds one; says who has to go for it (RECEPTION-2).
    fn add(&mut self, id: u64, source: Source) -> Option<u64> {
        self.all.insert(id, source);
        let own = self.by_source.entry(source).or_default();
        own.insert(id);
        let most = if source == Source::Own { OF_ALL } else { OF_ONE };
        let goes = match own.len() > most {
            _ if broken!("strangers_stay") => None,
            true => own.first().copied(),
            false if self.all.len() > OF_ALL => self.all.keys().next().copied(),
            false => None,
        };
        goes.inspect(|id| self.remove(*id))
    }

    fn remove(&mut self, id: u64) {
        let Some(source) = self.all.remove(&id) else { return };
        if let Some(own) = self.by_source.get_mut(&source) {
            own.remove(&id);
            if own.is_empty() {
                self.by_source.remove(&source);
            }
        }
    }
}

/// Somebody who has proved nothing yet.
struct Stranger {
    stream: Stream,
    acceptance: Acceptance,
    until: Instant,
}

/// See the module's text.
pub(crate) struct Reception {
    epoll: OwnedFd,
    listeners: Vec<Listener>,
    secret: Secret,
    /// By number; they rise.
    strangers: BTreeMap<u64, Stranger>,
    line: Line,
    next: u64,
}

impl Reception {
    /// Takes connections from these listeners.
    ///
    /// # Errors
    /// The system has no descriptors.
    pub(crate) fn new(listeners: Vec<Listener>, secret: &Secret) -> std::io::Result<Reception> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (i, listener) in listeners.iter().enumerate() {
            listener.set_nonblocking()?;
            epoll::add(
                &epoll,
                listener,
                epoll::EventData::new_u64(i as u64),
                epoll::EventFlags::IN,
            )?;
        }
        let next = listeners.len() as u64;
        let (strangers, line) = Default::default();
        Ok(Reception { epoll, listeners, secret: secret.clone(), strangers, line, next })
    }

    /// Hands over who has proved the secret, until the server stops.
    pub(crate) fn run(mut self, is_stopping: impl Fn() -> bool, proven: impl Fn(Stream, Role)) {
        let mut events = Vec::with_capacity(TOGETHER);
        loop {
            events.clear();
            let timeout = self.timeout();
            // Interrupted, or nothing in time: the deadlines are looked at all the same.
            let _ = epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&timeout));
            if is_stopping() {
                return;
            }
            for event in &events {
                let epoll::Event { data, .. } = *event;
                match data.u64() {
                    id if id < self.listeners.len() as u64 => self.take(id as usize),
                    id => self.hear(id, &proven),
                }
            }
            self.send_late_away();
        }
    }

    /// Until the oldest has been here too long. All have the same time, so the oldest is first.
    fn timeout(&self) -> Timespec {
        let first = self.strangers.values().next().map(|stranger| stranger.until);
        let left = first.map_or(LOOK, |until| until.saturating_duration_since(Instant::now()));
        let left = left.min(LOOK);
        Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
    }

    fn take(&mut self, listener: usize) {
        for _ in 0..TOGETHER {
            let accepted = self.listeners.get(listener).map(Listener::accept);
            match accepted {
                Some(Ok(stream)) => self.let_in(stream),
                Some(Err(error)) if error.kind() == ErrorKind::WouldBlock => return,
                Some(Err(error)) if error.kind() == ErrorKind::Interrupted => {}
                // Out of descriptors or the like: pause rather than spin.
                _ => return std::thread::sleep(PAUSE),
            }
        }
    }

    fn let_in(&mut self, stream: Stream) {
        let (id, until) = (self.next, Instant::now() + TIMEOUT);
        self.next += 1;
        let (data, flags) = (epoll::EventData::new_u64(id), epoll::EventFlags::IN);
        let is_ready = stream.set_nonblocking(true).is_ok()
            && epoll::add(&self.epoll, &stream, data, flags).is_ok();
        let Some(source) = stream.source().filter(|_| is_ready) else { return };
        let Ok(place) = stream.reached() else { return };
        self.strangers.insert(id, Stranger { stream, acceptance: Acceptance::new(place), until });
        if let Some(oldest) = self.line.add(id, source) {
            self.strangers.remove(&oldest);
        }
    }

    fn leaves(&mut self, id: u64) -> Option<Stranger> {
        self.line.remove(id);
        let stranger = self.strangers.remove(&id)?;
        let _ = epoll::delete(&self.epoll, &stranger.stream);
        Some(stranger)
    }

    /// Something came from a stranger.
    fn hear(&mut self, id: u64, proven: &impl Fn(Stream, Role)) {
        match self.strangers.get_mut(&id).map(|stranger| stranger.hear(&self.secret)) {
            None | Some(Heard::Waits) => {}
            Some(Heard::Ended) => drop(self.leaves(id)),
            Some(Heard::Proven(role)) => {
                let stranger = self.leaves(id);
                if let Some(stream) = stranger.and_then(|s| s.stream.becomes_known().ok()) {
                    proven(stream, role);
                }
            }
        }
    }

    fn send_late_away(&mut self) {
        let now = Instant::now();
        while let Some((id, stranger)) = self.strangers.first_key_value()
            && stranger.until <= now
        {
            let id = *id;
            self.leaves(id);
        }
    }
}

/// What became of a stranger.
enum Heard {
    Waits,
    Proven(Role),
    /// Gone, or has said something else than its proof.
    Ended,
}

impl Stranger {
    fn hear(&mut self, secret: &Secret) -> Heard {
        let mut buf = [0; HELLO];
        loop {
            let wanted = self.acceptance.wants();
            let got = match self.stream.read_now(&mut buf[..wanted]) {
                Ok(0) => return Heard::Ended,
                Ok(got) => got,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Heard::Waits,
                Err(_) => return Heard::Ended,
            };
            // A fresh socket takes so few bytes at once.
            match self.acceptance.take(secret, &buf[..got]) {
                Step::More => {}
                Step::Answer(bytes) if self.stream.write_now(&bytes) => {}
                Step::Proven(role, bytes) if self.stream.write_now(&bytes) => {
                    return Heard::Proven(role);
                }
                Step::Refused(bytes) => {
                    self.stream.write_now(&bytes);
                    return Heard::Ended;
                }
                Step::Answer(_) | Step::Proven(..) => return Heard::Ended,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    fn from(last: u8) -> Source {
        Source::Address(IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)))
    }

    /// Catches `broken!("strangers_stay")`.
    #[test]
    fn of_one_source_the_oldest_goes() {
        let mut line = Line::default();
        for id in 0..OF_ONE as u64 {
            assert_eq!(line.add(id, from(1)), None);
        }
        assert_eq!(line.add(1000, from(2)), None, "another source");
        assert_eq!(line.add(1001, from(1)), Some(0));
        line.remove(1);
        assert_eq!(line.add(1002, from(1)), None, "one has left");
        assert_eq!(line.add(1003, from(1)), Some(2));
    }

    #[test]
    fn of_all_the_oldest_goes_and_who_is_known_has_no_bound_of_its_own() {
        let mut line = Line::default();
        for id in 0..OF_ALL as u64 {
            assert_eq!(line.add(id, Source::Own), None);
        }
        assert_eq!(line.add(5000, from(1)), Some(0));
        assert_eq!(line.add(5001, Source::Own), Some(1));
        assert_eq!(line.all.len(), OF_ALL);
        (0..6000).for_each(|id| line.remove(id));
        assert!(line.all.is_empty() && line.by_source.is_empty());
    }
}
