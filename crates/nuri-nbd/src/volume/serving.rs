//! The volumes that a server gives to its clients, by name.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::catalog::{Catalog, VolumeError};
use super::served::{Owned, ServedVolume};
use crate::export::{About, Export, Exports, Refusal};
use crate::peer::Door;

/// How long a new client waits until the volume has an owner: somewhat longer than it takes until
/// the session of one that crashed is over.
const TAKE_OVER: Duration = Duration::from_secs(12);

/// Volumes that are open here, by name.
type Open = HashMap<String, Arc<Mutex<Weak<ServedVolume>>>>;

/// See the module's text.
pub struct Serving {
    catalog: Arc<Catalog>,
    owned: Arc<Owned>,
    /// What the empty name stands for, and whether there are no others for clients.
    only: Option<String>,
    read_only: bool,
    open: Mutex<Open>,
}

impl Serving {
    /// Other servers reach those that are owned here by the door.
    pub fn new(catalog: Arc<Catalog>, door: Arc<Door>) -> Serving {
        let owned = Arc::new(Owned::by(door));
        Serving { catalog, owned, only: None, read_only: false, open: Mutex::default() }
    }

    /// Clients get this volume only, also under the empty name.
    #[must_use]
    pub fn only(self, name: String) -> Serving {
        Serving { only: Some(name), ..self }
    }

    /// Clients may read only.
    #[must_use]
    pub fn read_only(self) -> Serving {
        Serving { read_only: true, ..self }
    }

    /// The volume that a client means.
    fn meant<'n>(&'n self, name: &'n str) -> Result<&'n str, Refusal> {
        match &self.only {
            Some(only) if name.is_empty() || name == only => Ok(only),
            Some(only) => Err(Refusal::Unknown { name: name.into(), there: vec![only.clone()] }),
            None => Ok(name),
        }
    }

    fn about_volume(&self, name: &str) -> Result<About, Refusal> {
        let about = self.catalog.about(name).map_err(refusal)?;
        Ok(About { read_only: self.read_only, ..about })
    }
}

fn refusal(error: VolumeError) -> Refusal {
    match error {
        VolumeError::Unknown { name, there } => Refusal::Unknown { name, there },
        VolumeError::Name(name) => Refusal::Unknown { name, there: Vec::new() },
        error => Refusal::Policy(error.to_string()),
    }
}

impl Exports for Serving {
    fn names(&self) -> Result<Vec<String>, Refusal> {
        match &self.only {
            Some(only) => Ok(vec![only.clone()]),
            None => self.catalog.names().map_err(refusal),
        }
    }

    fn about(&self, name: &str) -> Result<About, Refusal> {
        self.about_volume(self.meant(name)?)
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Export>, Refusal> {
        let (name, deadline) = (self.meant(name)?, Instant::now() + TAKE_OVER);
        let own = {
            let mut open = self.open.lock();
            open.retain(|_, slot| Arc::strong_count(slot) > 1 || slot.lock().strong_count() > 0);
            open.entry(name.to_owned()).or_default().clone()
        };
        let about = self.about_volume(name)?;
        // Who waits for an owner does not keep those behind it for ever.
        let in_use = || refusal(VolumeError::InUse(name.into()));
        let mut slot = own.try_lock_until(deadline).ok_or_else(in_use)?;
        if let Some(volume) = slot.upgrade() {
            volume.note_size(about.size);
            return Ok(volume);
        }
        let (catalog, owned) = (self.catalog.clone(), self.owned.clone());
        let volume = ServedVolume::open(catalog, owned, about, deadline).map_err(refusal)?;
        let volume = Arc::new(volume);
        *slot = Arc::downgrade(&volume);
        Ok(volume)
    }
}
