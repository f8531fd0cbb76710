//! The door of a server for other servers, which forward to it what their clients ask of volumes
//! that it owns.
//!
//! An export of this door is named `TOKEN.FORWARDER.ATTEMPT`: the secret that the volume tells
//! ([`super::owner`]), the number of who forwards, and how often it connected. The first request of
//! a higher attempt waits for those of lower ones; after it they are refused. So what was left in a
//! broken connection never comes after something newer.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use nuri_proto::Status;
use nuri_proto::id::Ino;
use nuri_rules::broken;
use parking_lot::{Condvar, Mutex};

use super::device::Volume;
use super::owner::Token;
use crate::export::{About, Asked, Export, Exports, Extent, Kept, Refusal, Zeroing};
use crate::order::Order;
use crate::peer::{ServerClock, Until};
use crate::protocol::Errno;

/// What is owned here.
#[derive(Default)]
pub struct Door {
    /// Where it is reached; unset: nowhere.
    address: Mutex<Option<String>>,
    rooms: Mutex<HashMap<Token, Room>>,
    clock: Arc<ServerClock>,
}

/// A volume and who forwards to it.
struct Room {
    ino: Ino,
    volume: Weak<Volume>,
    forwarders: Forwarders,
}

impl Door {
    /// Other servers find it there.
    pub fn at(address: String) -> Door {
        Door { address: Mutex::new(Some(address)), ..Door::default() }
    }

    pub(super) fn address(&self) -> Option<String> {
        self.address.lock().clone()
    }

    /// Lets those in who know the token.
    pub(super) fn admit(&self, ino: Ino, volume: &Arc<Volume>) -> Result<Token, Status> {
        let token = Token::random()?;
        let room = Room { ino, volume: Arc::downgrade(volume), forwarders: Forwarders::default() };
        let mut rooms = self.rooms.lock();
        rooms.retain(|_, room| room.volume.strong_count() > 0);
        rooms.insert(token, room);
        Ok(token)
    }

    /// The volume, where this server owns it.
    pub(super) fn owned(&self, ino: Ino) -> Option<Arc<Volume>> {
        let volumes: Vec<_> = {
            let rooms = self.rooms.lock();
            let own = rooms.values().filter(|room| room.ino == ino);
            own.filter_map(|room| room.volume.upgrade()).collect()
        };
        volumes.into_iter().find(|volume| volume.is_ours())
    }

    fn enter(&self, name: &str) -> Option<(Arc<Volume>, Arc<Gate>)> {
        let mut words = name.split('.');
        let token: Token = words.next()?.parse().ok()?;
        let forwarder = u64::from_str_radix(words.next()?, 16).ok()?;
        let attempt = words.next()?.parse().ok()?;
        let (volume, gates) = {
            let mut rooms = self.rooms.lock();
            let room = rooms.get_mut(&token)?;
            (room.volume.upgrade()?, room.forwarders.open(forwarder, attempt)?)
        };
        let (gate, before) = gates;
        before.iter().for_each(|before| before.shut());
        Some((volume, gate))
    }
}

/// The name of an export of another server's door.
pub(super) fn export_name(token: Token, forwarder: u64, attempt: u64) -> String {
    format!("{token}.{forwarder:x}.{attempt}")
}

impl Exports for Door {
    /// Nobody is told.
    fn names(&self) -> Result<Vec<String>, Refusal> {
        Ok(Vec::new())
    }

    fn about(&self, name: &str) -> Result<About, Refusal> {
        let token = name.split('.').next().and_then(|token| token.parse().ok());
        let volume = token.and_then(|token: Token| {
            self.rooms.lock().get(&token).and_then(|room| room.volume.upgrade())
        });
        let about = volume.map(|volume| About { name: name.into(), ..volume.about() });
        about.ok_or_else(|| unknown(name))
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Export>, Refusal> {
        let (volume, gate) = self.enter(name).ok_or_else(|| unknown(name))?;
        volume.learn_size().map_err(|status| Refusal::Policy(status.to_string()))?;
        let (name, clock) = (name.to_owned(), self.clock.clone());
        Ok(Arc::new(Forwarded { name, volume, gate, clock }))
    }
}

fn unknown(name: &str) -> Refusal {
    Refusal::Unknown { name: name.into(), there: Vec::new() }
}

/// Connections of those who forward, each the last one of its forwarder.
#[derive(Default)]
struct Forwarders(HashMap<u64, (u64, Arc<Gate>)>);

impl Forwarders {
    /// The gate of a new connection, and that of the one before. `None` for one that is not the
    /// last.
    fn open(&mut self, forwarder: u64, attempt: u64) -> Option<(Arc<Gate>, Option<Arc<Gate>>)> {
        if self.0.get(&forwarder).is_some_and(|(last, _)| *last >= attempt) {
            return None;
        }
        // Of those that went for good nothing runs any more.
        self.0.retain(|number, (_, gate)| *number == forwarder || Arc::strong_count(gate) > 1);
        let gate = Arc::<Gate>::default();
        let before = self.0.insert(forwarder, (attempt, gate.clone()));
        Some((gate, before.map(|(_, gate)| gate)))
    }
}

/// Lets requests of a connection in until another one takes its place.
#[derive(Default)]
struct Gate {
    state: Mutex<GateState>,
    ended: Condvar,
}

#[derive(Default)]
struct GateState {
    running: usize,
    is_shut: bool,
}

/// A request that was let in.
struct Inside<'g>(&'g Gate);

impl Gate {
    fn enter(&self) -> Result<Inside<'_>, Errno> {
        let mut state = self.state.lock();
        if state.is_shut && !broken!("nbd_attempts") {
            return Err(Errno::Shutdown);
        }
        state.running += 1;
        Ok(Inside(self))
    }

    /// Nobody is let in any more, and nobody is inside.
    fn shut(&self) {
        let mut state = self.state.lock();
        state.is_shut = true;
        while state.running > 0 {
            self.ended.wait(&mut state);
        }
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.running -= 1;
        if state.running == 0 {
            self.0.ended.notify_all();
        }
    }
}

/// A volume that is owned here, as one who forwards uses it.
struct Forwarded {
    name: String,
    volume: Arc<Volume>,
    gate: Arc<Gate>,
    clock: Arc<ServerClock>,
}

impl Forwarded {
    /// To be held while the request is served.
    fn enter(&self, asked: Asked) -> Result<Inside<'_>, Errno> {
        let inside = self.gate.enter()?;
        match Until::of_cookie(asked.cookie).is_over(self.clock.stamp()) {
            true => Err(Errno::Shutdown),
            false => Ok(inside),
        }
    }
}

impl Export for Forwarded {
    fn about(&self) -> About {
        About { name: self.name.clone(), ..self.volume.about() }
    }

    fn order(&self) -> &Order {
        self.volume.order()
    }

    fn read(&self, asked: Asked, offset: u64, out: &mut [u8]) -> Result<(), Errno> {
        let _inside = self.enter(asked)?;
        self.volume.read(asked, offset, out)
    }

    fn write(&self, asked: Asked, offset: u64, data: &[u8], kept: Kept) -> Result<(), Errno> {
        let _inside = self.enter(asked)?;
        self.volume.write(asked, offset, data, kept)
    }

    fn flush(&self, asked: Asked) -> Result<(), Errno> {
        let _inside = self.enter(asked)?;
        self.volume.flush(asked)
    }

    fn trim(&self, asked: Asked, offset: u64, len: u64) -> Result<(), Errno> {
        let _inside = self.enter(asked)?;
        self.volume.trim(asked, offset, len)
    }

    fn write_zeroes(&self, asked: Asked, offset: u64, len: u64, how: Zeroing) -> Result<(), Errno> {
        let _inside = self.enter(asked)?;
        self.volume.write_zeroes(asked, offset, len, how)
    }

    fn extents(
        &self,
        asked: Asked,
        offset: u64,
        len: u32,
        most: usize,
    ) -> Result<Vec<Extent>, Errno> {
        let _inside = self.enter(asked)?;
        self.volume.extents(asked, offset, len, most)
    }

    fn stamp(&self) -> Option<u32> {
        Some(self.clock.stamp())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Catches `broken!("nbd_attempts")`.
    #[test]
    fn what_is_left_of_an_older_connection_is_refused() {
        let mut forwarders = Forwarders::default();
        let (first, before) = forwarders.open(7, 1).unwrap();
        assert!(before.is_none());
        let running = first.enter().unwrap();
        let (second, before) = forwarders.open(7, 2).unwrap();
        assert!(forwarders.open(7, 2).is_none() && forwarders.open(7, 1).is_none());
        std::thread::scope(|scope| {
            let shutting = scope.spawn(|| before.unwrap().shut());
            std::thread::sleep(Duration::from_millis(30));
            assert!(!shutting.is_finished(), "one of the first connection still runs");
            drop(running);
            shutting.join().unwrap();
        });
        assert!(first.enter().is_err() && second.enter().is_ok());
        assert!(forwarders.open(8, 1).unwrap().1.is_none(), "another one who forwards");
    }
}
