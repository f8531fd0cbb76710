//! The door: where a server accepts connections of other servers. They forward to it what their
//! clients ask of its devices.
//!
//! An export of the door is named by an [`Entry`]: a secret that only members of the space can
//! know, the forwarder's number, and how often the forwarder connected. [`Gates`] says which of a
//! forwarder's connections may ask.

use std::collections::HashMap;
use std::io;
use std::ptr;
use std::sync::{Arc, Weak};

use parking_lot::{Condvar, Mutex};

use super::gates::{Gates, Way};
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
    entrance: Arc<Entrance>,
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
        let room = Room { device: Arc::downgrade(device), entrance: Arc::default() };
        rooms.insert(token, room);
        Ok(token)
    }

    fn find(&self, token: Token) -> Option<(Arc<dyn Export>, Arc<Entrance>)> {
        let rooms = self.rooms.lock();
        let room = rooms.get(&token)?;
        Some((room.device.upgrade()?, room.entrance.clone()))
    }
}

impl Exports for Door {
    /// Nobody is told.
    fn names(&self) -> Result<Vec<String>, Refusal> {
        Ok(Vec::new())
    }

    fn about(&self, name: &str) -> Result<About, Refusal> {
        let found = Entry::parse(name).and_then(|entry| self.find(entry.token));
        let about = found.map(|(device, _)| About { name: name.into(), ..device.about() });
        about.ok_or_else(|| unknown(name))
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Export>, Refusal> {
        let entry = Entry::parse(name).ok_or_else(|| unknown(name))?;
        let (device, entrance) = self.find(entry.token).ok_or_else(|| unknown(name))?;
        let way = Way { forwarder: entry.forwarder, attempt: entry.attempt };
        if !entrance.open(way) {
            return Err(unknown(name));
        }
        let (name, clock) = (name.to_owned(), self.clock.clone());
        let forwarded = Forwarded { name, device, entrance, way, clock };
        let looked = forwarded.device.look_anew();
        looked.map_err(|errno| Refusal::Policy(errno.words().into()))?;
        Ok(Arc::new(forwarded))
    }
}

fn unknown(name: &str) -> Refusal {
    Refusal::Unknown { name: name.into(), there: Vec::new() }
}

/// Where requests of those who forward to a device are let in.
#[derive(Default)]
struct Entrance {
    gates: Mutex<Gates>,
    ended: Condvar,
}

/// A request that was let in.
struct Inside<'e>(&'e Entrance, Way);

impl Entrance {
    /// Returns when nothing of the forwarder's older connections is inside. False: a later one is
    /// known.
    fn open(&self, way: Way) -> bool {
        let mut gates = self.gates.lock();
        let is_open = gates.open(way);
        while is_open && !gates.is_clear(way) {
            self.ended.wait(&mut gates);
        }
        is_open
    }

    fn enter(&self, way: Way) -> Result<Inside<'_>, Errno> {
        if self.gates.lock().enter(way) { Ok(Inside(self, way)) } else { Err(Errno::Shutdown) }
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.gates.lock().leave(self.1);
        self.0.ended.notify_all();
    }
}

/// A device of this server, as one who forwards uses it.
struct Forwarded {
    name: String,
    device: Arc<dyn Export>,
    entrance: Arc<Entrance>,
    way: Way,
    clock: Arc<ServerClock>,
}

impl Drop for Forwarded {
    fn drop(&mut self) {
        self.entrance.gates.lock().close(self.way);
    }
}

impl Forwarded {
    /// To be held while the request is served.
    fn enter(&self, asked: Asked<'_>) -> Result<Inside<'_>, Errno> {
        let inside = self.entrance.enter(self.way)?;
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
