//! The door of a server for other servers, which forward to it what their clients ask of its
//! devices.
//!
//! An export of this door is named by an [`Entry`]: a secret that only members of the space can
//! know, the number of who forwards, and how often it connected. The first request of a higher
//! attempt waits for those of lower ones; after it they are refused. So what was left in a broken
//! connection never comes after something newer.

use std::collections::HashMap;
use std::io;
use std::ptr;
use std::sync::{Arc, Weak};

use nuri_rules::broken;
use parking_lot::{Condvar, Mutex};

use super::token::{Entry, Token};
use super::until::{ServerClock, Until};
use crate::export::{About, Asked, Export, Exports, Extent, Kept, Refusal, Zeroing};
use crate::order::Order;
use crate::protocol::Errno;

/// The devices that others may use by this server.
pub struct Door {
    address: String,
    rooms: Mutex<HashMap<Token, Room>>,
    clock: Arc<ServerClock>,
}

/// A device and who forwards to it.
struct Room {
    device: Weak<dyn Export>,
    forwarders: Forwarders,
}

impl Door {
    /// Other servers find it there.
    pub fn at(address: String) -> Door {
        Door { address, rooms: Mutex::default(), clock: Arc::default() }
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    /// Lets those in who know the token, while somebody has the device.
    ///
    /// # Errors
    /// As [`Token::random`].
    pub fn admit(&self, device: &Arc<dyn Export>) -> io::Result<Token> {
        let mut rooms = self.rooms.lock();
        rooms.retain(|_, room| room.device.strong_count() > 0);
        // Who forwards to it already keeps its number there: older connections end for newer ones.
        let is_it = |room: &Room| ptr::addr_eq(room.device.as_ptr(), Arc::as_ptr(device));
        if let Some((token, _)) = rooms.iter().find(|(_, room)| is_it(room)) {
            return Ok(*token);
        }
        let token = Token::random()?;
        let room = Room { device: Arc::downgrade(device), forwarders: Forwarders::default() };
        rooms.insert(token, room);
        Ok(token)
    }

    fn enter(&self, entry: Entry) -> Option<(Arc<dyn Export>, Arc<Gate>)> {
        let (device, gates) = {
            let mut rooms = self.rooms.lock();
            let room = rooms.get_mut(&entry.token)?;
            (room.device.upgrade()?, room.forwarders.open(entry.forwarder, entry.attempt)?)
        };
        let (gate, before) = gates;
        before.iter().for_each(|before| before.shut());
        Some((device, gate))
    }
}

impl Exports for Door {
    /// Nobody is told.
    fn names(&self) -> Result<Vec<String>, Refusal> {
        Ok(Vec::new())
    }

    fn about(&self, name: &str) -> Result<About, Refusal> {
        let device = Entry::parse(name).and_then(|entry| {
            self.rooms.lock().get(&entry.token).and_then(|room| room.device.upgrade())
        });
        let about = device.map(|device| About { name: name.into(), ..device.about() });
        about.ok_or_else(|| unknown(name))
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Export>, Refusal> {
        let entered = Entry::parse(name).and_then(|entry| self.enter(entry));
        let (device, gate) = entered.ok_or_else(|| unknown(name))?;
        device.look_anew().map_err(|errno| Refusal::Policy(errno.words().into()))?;
        let (name, clock) = (name.to_owned(), self.clock.clone());
        Ok(Arc::new(Forwarded { name, device, gate, clock }))
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

/// A device of this server, as one who forwards uses it.
struct Forwarded {
    name: String,
    device: Arc<dyn Export>,
    gate: Arc<Gate>,
    clock: Arc<ServerClock>,
}

impl Forwarded {
    /// To be held while the request is served.
    fn enter(&self, asked: Asked<'_>) -> Result<Inside<'_>, Errno> {
        let inside = self.gate.enter()?;
        match Until::of_cookie(asked.cookie).is_over(self.clock.stamp()) {
            true => Err(Errno::Shutdown),
            false => Ok(inside),
        }
    }
}

impl Export for Forwarded {
    fn about(&self) -> About {
        About { name: self.name.clone(), ..self.device.about() }
    }

    fn order(&self) -> &Order {
        self.device.order()
    }

    fn read(&self, asked: Asked<'_>, offset: u64, out: &mut [u8]) -> Result<(), Errno> {
        let _inside = self.enter(asked)?;
        self.device.read(asked, offset, out)
    }

    fn write(&self, asked: Asked<'_>, offset: u64, data: &[u8], kept: Kept) -> Result<(), Errno> {
        let _inside = self.enter(asked)?;
        self.device.write(asked, offset, data, kept)
    }

    fn flush(&self, asked: Asked<'_>) -> Result<(), Errno> {
        let _inside = self.enter(asked)?;
        self.device.flush(asked)
    }

    fn trim(&self, asked: Asked<'_>, offset: u64, len: u64) -> Result<(), Errno> {
        let _inside = self.enter(asked)?;
        self.device.trim(asked, offset, len)
    }

    fn write_zeroes(
        &self,
        asked: Asked<'_>,
        offset: u64,
        len: u64,
        how: Zeroing,
    ) -> Result<(), Errno> {
        let _inside = self.enter(asked)?;
        self.device.write_zeroes(asked, offset, len, how)
    }

    fn extents(
        &self,
        asked: Asked<'_>,
        offset: u64,
        len: u32,
        most: usize,
    ) -> Result<Vec<Extent>, Errno> {
        let _inside = self.enter(asked)?;
        self.device.extents(asked, offset, len, most)
    }

    /// Nobody knows what its clients were told before the last connection was lost.
    fn told_failures(&self) -> u64 {
        0
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
