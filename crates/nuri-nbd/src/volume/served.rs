//! A volume as the clients of this server use it: owned here, or by way of the server that owns it.
//!
//! Every server serves every volume. One of them owns it: it holds the volume's lock, and orders
//! the requests of all. The others forward. Where the owner is lost (it was killed, stands still,
//! or is cut off), each server looks for it anew and tries the lock, until one gets it. Requests
//! that have no answer wait meanwhile and are sent again; those that become too old are not
//! answered, and their clients are left.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::catalog::{Catalog, VolumeError, at};
use super::device::Volume;
use super::door::{Door, export_name};
use super::owner::Owner;
use super::remote::Remote;
use crate::export::{About, Asked, Export, Extent, Kept, Zeroing};
use crate::order::Order;
use crate::peer::{AGE, Link, dial, is_too_old};
use crate::protocol::Errno;

/// How often the lock and the owner are tried.
const AGAIN: Duration = Duration::from_millis(200);

/// By which way requests go.
#[derive(Clone)]
struct Way {
    /// Counts the ways.
    number: u64,
    export: Arc<dyn Export>,
}

/// See the module's text.
pub(super) struct ServedVolume {
    catalog: Arc<Catalog>,
    door: Arc<Door>,
    name: String,
    about: About,
    size: AtomicU64,
    /// That of the volume, where it is owned here.
    order: Arc<Order>,
    way: Mutex<Option<Way>>,
    ways: AtomicU64,
    /// Held by who looks for the owner.
    seeking: Mutex<()>,
    /// Of this, towards owners.
    forwarder: u64,
    /// The owner that could not be reached was told of.
    told: Mutex<Option<String>>,
}

impl ServedVolume {
    /// Of a volume that an owner is found for, or that is owned from here on.
    pub(super) fn open(
        catalog: Arc<Catalog>,
        door: Arc<Door>,
        about: About,
        deadline: Instant,
    ) -> Result<ServedVolume, VolumeError> {
        let forwarder = getrandom::u64().unwrap_or_else(|_| u64::from(std::process::id()));
        let owned = door.owned(catalog.find(&about.name)?.ino);
        let order = owned.map(|volume| volume.shared_order()).unwrap_or_default();
        let served = ServedVolume {
            catalog,
            door,
            name: about.name.clone(),
            size: AtomicU64::new(about.size),
            about,
            order,
            way: Mutex::default(),
            ways: AtomicU64::new(0),
            seeking: Mutex::default(),
            forwarder,
            told: Mutex::default(),
        };
        served.seek(deadline)?;
        Ok(served)
    }

    /// It may have grown since others connected; an older link knows the older size.
    pub(super) fn note_size(&self, size: u64) {
        self.size.store(size, Ordering::SeqCst);
        let mut way = self.way.lock();
        if way.as_ref().is_some_and(|way| way.export.about().size < size) {
            *way = None;
        }
    }

    /// Looks for a way until the deadline, one thread at a time.
    fn seek(&self, deadline: Instant) -> Result<Way, VolumeError> {
        let in_use = || VolumeError::InUse(self.name.clone());
        let _one = self.seeking.try_lock_until(deadline).ok_or_else(in_use)?;
        loop {
            if let Some(way) = &*self.way.lock() {
                return Ok(way.clone());
            }
            if let Some(export) = self.find()? {
                let number = self.ways.fetch_add(1, Ordering::SeqCst);
                let way = Way { number, export };
                *self.way.lock() = Some(way.clone());
                return Ok(way);
            }
            if Instant::now() + AGAIN >= deadline {
                return Err(in_use());
            }
            std::thread::sleep(AGAIN);
        }
    }

    /// The volume, if nobody owns it or this server does, or a link to its owner.
    fn find(&self) -> Result<Option<Arc<dyn Export>>, VolumeError> {
        let ino = self.catalog.find(&self.name)?.ino;
        if let Some(volume) = self.door.owned(ino) {
            volume.learn_size().map_err(at("its size is not known"))?;
            return Ok(Some(volume));
        }
        if let Some(volume) = self.catalog.take(&self.name, &self.order)? {
            return self.own(volume).map(Some);
        }
        let Some(owner) = self.catalog.owner(ino)? else { return Ok(None) };
        match self.link(&owner) {
            Ok(link) => {
                tracing::info!("nbd: volume {} is forwarded to {}", self.name, owner.address);
                *self.told.lock() = None;
                Ok(Some(Arc::new(Remote::new(link, self.about.clone()))))
            }
            Err(why) => {
                self.tell(&owner.address, &why);
                Ok(None)
            }
        }
    }

    /// This server has locked it.
    fn own(&self, volume: Volume) -> Result<Arc<dyn Export>, VolumeError> {
        let volume = Arc::new(volume);
        let ino = volume.ino();
        let token = self.door.admit(ino, &volume).map_err(at("no secret"))?;
        if let Some(address) = self.door.address() {
            self.catalog.set_owner(ino, &Owner { address, token })?;
        }
        tracing::info!("nbd: volume {} is owned by this server", self.name);
        Ok(volume)
    }

    fn link(&self, owner: &Owner) -> Result<Arc<Link>, String> {
        // Higher than all before, also where the last one found nobody.
        let attempt = self.ways.fetch_add(1, Ordering::SeqCst);
        let name = export_name(owner.token, self.forwarder, attempt);
        let dialed = dial(&owner.address, &name).map_err(|error| error.to_string())?;
        Link::start(dialed).map_err(|lost| lost.to_string())
    }

    /// Once for each owner.
    fn tell(&self, address: &str, why: &str) {
        let told = self.told.lock().replace(address.to_owned());
        if told.as_deref() != Some(address) {
            let name = &self.name;
            tracing::warn!("nbd: volume {name}: its owner at {address} is not reached: {why}");
        }
    }

    /// Does something by whichever way there is, again where the way was lost.
    fn by_way<T>(
        &self,
        asked: Asked,
        mut act: impl FnMut(&dyn Export) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        loop {
            if is_too_old(asked.since) {
                return Err(Errno::Shutdown);
            }
            let known = self.way.lock().clone();
            let way = match known {
                Some(way) => way,
                None => self.seek(asked.since + AGE).map_err(|error| self.without_a_way(&error))?,
            };
            match act(&*way.export) {
                Err(Errno::Shutdown) => self.lose(way.number),
                outcome => return outcome,
            }
        }
    }

    fn without_a_way(&self, error: &VolumeError) -> Errno {
        tracing::warn!("nbd: volume {}: {error}", self.name);
        match error {
            VolumeError::Unknown { .. } => Errno::Io,
            _ => Errno::Shutdown,
        }
    }

    fn lose(&self, number: u64) {
        let mut way = self.way.lock();
        if way.as_ref().is_some_and(|way| way.number == number) {
            *way = None;
        }
    }
}

impl Export for ServedVolume {
    fn about(&self) -> About {
        About { size: self.size.load(Ordering::SeqCst), ..self.about.clone() }
    }

    fn order(&self) -> &Order {
        &self.order
    }

    fn read(&self, asked: Asked, offset: u64, out: &mut [u8]) -> Result<(), Errno> {
        self.by_way(asked, |way| way.read(asked, offset, out))
    }

    fn write(&self, asked: Asked, offset: u64, data: &[u8], kept: Kept) -> Result<(), Errno> {
        self.by_way(asked, |way| way.write(asked, offset, data, kept))
    }

    fn flush(&self, asked: Asked) -> Result<(), Errno> {
        self.by_way(asked, |way| way.flush(asked))
    }

    fn trim(&self, asked: Asked, offset: u64, len: u64) -> Result<(), Errno> {
        self.by_way(asked, |way| way.trim(asked, offset, len))
    }

    fn write_zeroes(&self, asked: Asked, offset: u64, len: u64, how: Zeroing) -> Result<(), Errno> {
        self.by_way(asked, |way| way.write_zeroes(asked, offset, len, how))
    }

    fn extents(
        &self,
        asked: Asked,
        offset: u64,
        len: u32,
        most: usize,
    ) -> Result<Vec<Extent>, Errno> {
        self.by_way(asked, |way| way.extents(asked, offset, len, most))
    }
}
