//! The disks that a server gives to its clients.

use std::path::Path;
use std::sync::Arc;

use super::device::{Device, OpenError, Writes};
use super::remote::RemoteDisk;
use crate::export::{About, Export, Exports, Refusal};

/// Each under its name. They stay open.
#[derive(Default)]
pub struct Disks {
    disks: Vec<(String, Arc<dyn Export>)>,
}

impl Disks {
    /// Adds one of this machine.
    ///
    /// # Errors
    /// Why it is not served.
    pub fn add_own(&mut self, path: &Path, writes: Writes) -> Result<(), OpenError> {
        let name = path.strip_prefix("/dev").unwrap_or(path).display().to_string();
        let device = Device::open(path, name.clone(), writes)?;
        self.disks.push((name, Arc::new(device)));
        Ok(())
    }

    /// Adds one of another machine.
    pub fn add_remote(&mut self, disk: RemoteDisk) {
        self.disks.push((disk.about().name, Arc::new(disk)));
    }

    /// A single one is also served under the empty name.
    fn find(&self, name: &str) -> Result<&Arc<dyn Export>, Refusal> {
        if let ("", [(_, only)]) = (name, &self.disks[..]) {
            return Ok(only);
        }
        let found = self.disks.iter().find(|(own, _)| own == name).map(|(_, disk)| disk);
        found.ok_or_else(|| {
            let there = self.disks.iter().map(|(name, _)| name.clone()).collect();
            Refusal::Unknown { name: name.into(), there }
        })
    }
}

impl Exports for Disks {
    fn names(&self) -> Result<Vec<String>, Refusal> {
        Ok(self.disks.iter().map(|(name, _)| name.clone()).collect())
    }

    fn about(&self, name: &str) -> Result<About, Refusal> {
        self.find(name).map(|disk| disk.about())
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Export>, Refusal> {
        self.find(name).cloned()
    }
}
