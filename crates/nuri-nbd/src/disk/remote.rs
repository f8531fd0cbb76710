//! A disk of another machine, which its node opens.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nuri_proto::id::BootId;
use parking_lot::Mutex;

use crate::export::{About, Asked, Export, Extent, Kept, Zeroing};
use crate::order::Order;
use crate::peer::{Forwarder, NoWay, Remote, Token, Ways};
use crate::protocol::Errno;

/// How long the first connection may take.
const FIRST: Duration = Duration::from_secs(10);

/// Where the node serves an opened disk.
pub struct OpenedThere {
    /// Of the node's door.
    pub address: String,
    pub token: Token,
    pub size: u64,
    pub block: u32,
    /// Since when the machine runs.
    pub boot: BootId,
}

/// Asks the node to open the disk, again where the connection is lost; an error in words.
pub type OpenThere = Box<dyn Fn() -> Result<OpenedThere, String> + Send + Sync>;

/// What of the disk may lie in the machine's or the disk's memory only. When the machine has
/// started anew meanwhile, a flush must not say that it is durable. Pure.
#[derive(Default, Debug)]
struct DiskMemory {
    boot: Option<BootId>,
    /// Writes that were answered, and those of them that a flush covered.
    written: u64,
    flushed: u64,
    is_lost: bool,
}

impl DiskMemory {
    fn reached(&mut self, boot: BootId) {
        let is_anew = self.boot.replace(boot).is_some_and(|known| known != boot);
        self.is_lost |= is_anew && self.written > self.flushed;
    }

    fn flushed(&mut self, written: u64) {
        self.flushed = self.flushed.max(written);
    }
}

/// See the module's text.
pub struct RemoteDisk {
    open: OpenThere,
    about: About,
    order: Order,
    ways: Ways,
    forwarder: Forwarder,
    memory: Mutex<DiskMemory>,
    /// The last failure that was told of.
    told: Mutex<Option<String>>,
}

impl RemoteDisk {
    /// A disk that its node has opened.
    ///
    /// # Errors
    /// Why it is not reached, in words.
    pub fn open(name: String, read_only: bool, open: OpenThere) -> Result<RemoteDisk, String> {
        let OpenedThere { size, block, .. } = open()?;
        let description = format!("the disk {name} of a Nuri space");
        let preferred_block = block.max(4096);
        let about = About { name, description, size, read_only, block, preferred_block };
        let disk = RemoteDisk {
            open,
            about,
            order: Order::default(),
            ways: Ways::default(),
            forwarder: Forwarder::default(),
            memory: Mutex::default(),
            told: Mutex::default(),
        };
        let sought = disk.ways.seek(Instant::now() + FIRST, || Ok::<_, Errno>(disk.find()));
        match sought {
            Ok(()) => Ok(disk),
            Err(NoWay::Late | NoWay::Failed(_)) => {
                Err(disk.told.into_inner().unwrap_or_else(|| "it does not answer".into()))
            }
        }
    }

    fn find(&self) -> Option<Arc<dyn Export>> {
        let linked = (self.open)().and_then(|there| {
            let link = self.forwarder.link(&there.address, there.token)?;
            Ok((there, link))
        });
        match linked {
            // Another disk by now.
            Ok((there, _)) if there.size < self.about.size => {
                self.tell(format!("it has {} bytes now", there.size));
                None
            }
            Ok((there, link)) => {
                self.memory.lock().reached(there.boot);
                *self.told.lock() = None;
                Some(Arc::new(Remote::new(link, self.about.clone())))
            }
            Err(why) => {
                self.tell(why);
                None
            }
        }
    }

    /// Once for each reason.
    fn tell(&self, why: String) {
        let mut told = self.told.lock();
        if told.as_ref() != Some(&why) {
            tracing::warn!("nbd: {}: {why}", self.about.description);
            *told = Some(why);
        }
    }

    fn by_way<T>(
        &self,
        asked: Asked,
        act: impl FnMut(&dyn Export) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        self.ways.by_way(asked, || Ok(self.find()), act)
    }
}

impl Export for RemoteDisk {
    fn about(&self) -> About {
        self.about.clone()
    }

    fn order(&self) -> &Order {
        &self.order
    }

    fn read(&self, asked: Asked, offset: u64, out: &mut [u8]) -> Result<(), Errno> {
        self.by_way(asked, |way| way.read(asked, offset, out))
    }

    fn write(&self, asked: Asked, offset: u64, data: &[u8], kept: Kept) -> Result<(), Errno> {
        // Counted first: it may be there although its answer was lost.
        self.memory.lock().written += 1;
        self.by_way(asked, |way| way.write(asked, offset, data, kept))
    }

    fn flush(&self, asked: Asked) -> Result<(), Errno> {
        let written = self.memory.lock().written;
        self.by_way(asked, |way| way.flush(asked))?;
        let mut memory = self.memory.lock();
        if memory.is_lost {
            self.tell("its machine started anew before all was durable: bytes are lost".into());
            return Err(Errno::Io);
        }
        memory.flushed(written);
        Ok(())
    }

    fn trim(&self, asked: Asked, offset: u64, len: u64) -> Result<(), Errno> {
        self.memory.lock().written += 1;
        self.by_way(asked, |way| way.trim(asked, offset, len))
    }

    fn write_zeroes(&self, asked: Asked, offset: u64, len: u64, how: Zeroing) -> Result<(), Errno> {
        self.memory.lock().written += 1;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_started_anew_lost_what_was_not_flushed() {
        let mut memory = DiskMemory::default();
        memory.reached(BootId(1));
        memory.written = 3;
        memory.flushed(3);
        memory.reached(BootId(2));
        assert!(!memory.is_lost, "all was durable");
        memory.written = 4;
        memory.reached(BootId(2));
        assert!(!memory.is_lost, "only the connection was lost");
        memory.flushed(3);
        memory.reached(BootId(3));
        assert!(memory.is_lost);
        memory.flushed(4);
        assert!(memory.is_lost, "for good");
    }
}
