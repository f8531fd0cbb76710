//! A volume as the clients of this server use it: owned here, or reached by way of the server that
//! owns it.
//!
//! Every server serves every volume. One of them owns it: it holds the volume's lock, and orders
//! the requests of all. The others forward. The owner may be lost: it was killed, stands still, or
//! is cut off. Then each server looks for the owner anew and tries the lock, until one server gets
//! it. Requests without an answer wait meanwhile and are sent again. Requests that become too old
//! are not answered, and their clients are disconnected.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use nuri_proto::id::Ino;
use parking_lot::Mutex;

use super::catalog::{Catalog, VolumeError, at};
use super::device::Volume;
use super::owner::Owner;
use crate::export::{About, Asked, Export, Extent, Kept, Zeroing};
use crate::order::Order;
use crate::peer::{Door, Forwarder, NoLink, NoWay, Remote, Ways};
use crate::protocol::Errno;

/// How long an owner that was not reached is not called.
const CALL_AGAIN: Duration = Duration::from_secs(3);

/// The volumes that this server owns, and the door for others.
pub(super) struct Owned {
    pub(super) door: Arc<Door>,
    volumes: Mutex<HashMap<Ino, Weak<Volume>>>,
}

impl Owned {
    pub(super) fn by(door: Arc<Door>) -> Owned {
        Owned { door, volumes: Mutex::default() }
    }

    fn find(&self, ino: Ino) -> Option<Arc<Volume>> {
        let volume = self.volumes.lock().get(&ino).and_then(Weak::upgrade);
        volume.filter(|volume| volume.is_ours())
    }

    fn note(&self, volume: &Arc<Volume>) {
        let mut volumes = self.volumes.lock();
        volumes.retain(|_, volume| volume.strong_count() > 0);
        volumes.insert(volume.ino(), Arc::downgrade(volume));
    }
}

/// See the module's text.
pub(super) struct ServedVolume {
    catalog: Arc<Catalog>,
    owned: Arc<Owned>,
    name: String,
    /// Another volume may get the name when nobody owns this one.
    ino: Ino,
    about: About,
    size: AtomicU64,
    /// That of the volume, where it is owned here.
    order: Arc<Order>,
    ways: Ways,
    forwarder: Forwarder,
    /// The owner that could not be reached was told of.
    told: Mutex<Option<String>>,
    /// And when it was tried last.
    missed: Mutex<Option<(Owner, Instant)>>,
}

impl ServedVolume {
    /// Of a volume that an owner is found for, or that is owned from here on.
    pub(super) fn open(
        catalog: Arc<Catalog>,
        owned: Arc<Owned>,
        about: About,
        deadline: Instant,
    ) -> Result<ServedVolume, VolumeError> {
        let ino = catalog.find(&about.name)?.ino;
        let own = owned.find(ino);
        let order = own.map(|volume| volume.shared_order()).unwrap_or_default();
        let served = ServedVolume {
            catalog,
            owned,
            name: about.name.clone(),
            ino,
            size: AtomicU64::new(about.size),
            about,
            order,
            ways: Ways::default(),
            forwarder: Forwarder::default(),
            told: Mutex::default(),
            missed: Mutex::default(),
        };
        let sought = served.ways.seek(deadline, || served.find());
        sought.map_err(|none| match none {
            NoWay::Late => VolumeError::InUse(served.name.clone()),
            NoWay::Failed(error) => error,
        })?;
        Ok(served)
    }

    /// It may have grown since others connected; an older link knows the older size.
    pub(super) fn note_size(&self, size: u64) {
        self.size.store(size, Ordering::SeqCst);
        // One that is owned here learns it; a link is made anew.
        let _ = self.ways.known().map(|way| way.look_anew());
        self.ways.lose_where(|way| way.about().size < size);
    }

    /// The volume, if nobody owns it or this server does, or a link to its owner.
    fn find(&self) -> Result<Option<Arc<dyn Export>>, VolumeError> {
        let ino = self.catalog.find(&self.name)?.ino;
        if ino != self.ino {
            let (name, there) = (self.name.clone(), self.catalog.names()?);
            return Err(VolumeError::Unknown { name, there });
        }
        if let Some(volume) = self.owned.find(ino) {
            volume.learn_size().map_err(at("its size is not known"))?;
            return Ok(Some(volume));
        }
        if let Some(volume) = self.catalog.take(&self.name, &self.order)? {
            return self.own(volume).map(Some);
        }
        let Some(owner) = self.catalog.owner(ino)? else { return Ok(None) };
        if self.was_just_missed(&owner) {
            return Ok(None);
        }
        match self.forwarder.link(&owner.address, owner.token) {
            Ok(link) => {
                tracing::info!("nbd: volume {} is forwarded to {}", self.name, owner.address);
                *self.told.lock() = None;
                Ok(Some(Arc::new(Remote::new(link, self.about.clone()))))
            }
            Err(why) => {
                self.tell(&owner.address, &why);
                *self.missed.lock() = Some((owner, Instant::now()));
                Ok(None)
            }
        }
    }

    /// To try the lock often is worth more than to call one that does not answer.
    fn was_just_missed(&self, owner: &Owner) -> bool {
        let missed = self.missed.lock();
        missed.as_ref().is_some_and(|(known, at)| known == owner && at.elapsed() < CALL_AGAIN)
    }

    /// This server has locked it.
    fn own(&self, volume: Volume) -> Result<Arc<dyn Export>, VolumeError> {
        let volume = Arc::new(volume);
        self.owned.note(&volume);
        let ino = volume.ino();
        let export: Arc<dyn Export> = volume;
        let token = self.owned.door.admit(&export).map_err(VolumeError::Token)?;
        let address = self.owned.door.address().to_owned();
        self.catalog.set_owner(ino, &Owner { address, token })?;
        tracing::info!("nbd: volume {} is owned by this server", self.name);
        Ok(export)
    }

    /// Once for each owner.
    fn tell(&self, address: &str, why: &NoLink) {
        let told = self.told.lock().replace(address.to_owned());
        if told.as_deref() != Some(address) {
            let name = &self.name;
            tracing::warn!("nbd: volume {name}: its owner at {address} is not reached: {why}");
        }
    }

    fn by_way<T>(
        &self,
        asked: Asked<'_>,
        act: impl FnMut(&dyn Export) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let find = || self.find().map_err(|error| self.without_a_way(&error));
        self.ways.by_way(asked, find, act)
    }

    fn without_a_way(&self, error: &VolumeError) -> Errno {
        tracing::warn!("nbd: volume {}: {error}", self.name);
        match error {
            VolumeError::Unknown { .. } => Errno::Io,
            _ => Errno::Shutdown,
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

    fn read(&self, asked: Asked<'_>, offset: u64, out: &mut [u8]) -> Result<(), Errno> {
        self.by_way(asked, |way| way.read(asked, offset, out))
    }

    fn write(&self, asked: Asked<'_>, offset: u64, data: &[u8], kept: Kept) -> Result<(), Errno> {
        self.by_way(asked, |way| way.write(asked, offset, data, kept))
    }

    fn flush(&self, asked: Asked<'_>) -> Result<(), Errno> {
        self.by_way(asked, |way| way.flush(asked))
    }

    fn trim(&self, asked: Asked<'_>, offset: u64, len: u64) -> Result<(), Errno> {
        self.by_way(asked, |way| way.trim(asked, offset, len))
    }

    fn write_zeroes(
        &self,
        asked: Asked<'_>,
        offset: u64,
        len: u64,
        how: Zeroing,
    ) -> Result<(), Errno> {
        self.by_way(asked, |way| way.write_zeroes(asked, offset, len, how))
    }

    fn extents(
        &self,
        asked: Asked<'_>,
        offset: u64,
        len: u32,
        most: usize,
    ) -> Result<Vec<Extent>, Errno> {
        self.by_way(asked, |way| way.extents(asked, offset, len, most))
    }
}
