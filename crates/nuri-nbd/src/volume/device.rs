//! A volume that this server owns.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nuri_client::{Allocate, Client, Kept as InClient, Seek, Sync as What};
use nuri_proto::Status;
use nuri_proto::id::Ino;
use nuri_proto::op::meta::LayoutReply;
use nuri_rules::broken;

use super::memory::TargetMemory;
use crate::export::{About, Asked, Export, Extent, Kept, Zeroing};
use crate::order::Order;
use crate::protocol::Errno;

/// Bytes that are trimmed or zeroed at once.
const PART: u64 = 64 << 20;
/// A client that asks for data and holes gets what was found in so long, and asks again.
const LOOKING: Duration = Duration::from_millis(100);

/// How often a server that is cut off looks whether it is heard again.
const AGAIN: Duration = Duration::from_millis(50);

/// Whether a server knows that it still owns what it locked: the metadata server was heard lately.
pub fn is_sure(is_ours: bool, is_heard: bool) -> bool {
    (is_ours && is_heard) || broken!("nbd_unheard")
}

/// Held open and locked; both end with it.
pub(super) struct Volume {
    client: Arc<Client>,
    ino: Ino,
    fh: u64,
    about: About,
    /// Of the clients of this server and of those of others.
    order: Arc<Order>,
    memory: TargetMemory,
    is_redundant: bool,
    size: AtomicU64,
}

impl Volume {
    /// Of an open file that this server has locked.
    pub(super) fn new(
        client: Arc<Client>,
        (ino, fh): (Ino, u64),
        (about, order): (About, Arc<Order>),
    ) -> Result<Volume, Status> {
        let memory = TargetMemory::take(&client, ino)?;
        let LayoutReply::File(_, layout, _) = client.layout(ino)? else {
            return Err(Status::ISDIR);
        };
        let is_redundant = layout.components.iter().any(|part| part.shape.is_redundant());
        let size = AtomicU64::new(about.size);
        Ok(Volume { client, ino, fh, about, order, memory, is_redundant, size })
    }

    /// It may have grown since others connected.
    pub(super) fn learn_size(&self) -> Result<(), Status> {
        self.size.store(self.client.getattr(self.ino)?.size, Ordering::SeqCst);
        Ok(())
    }

    /// The lock goes with the session: from then on another server may have the volume.
    fn check_lock(&self) -> Result<(), Status> {
        self.client.locks().check_locks(self.fh)
    }

    pub(super) fn shared_order(&self) -> Arc<Order> {
        self.order.clone()
    }

    pub(super) fn ino(&self) -> Ino {
        self.ino
    }

    pub(super) fn is_ours(&self) -> bool {
        self.check_lock().is_ok()
    }

    /// A server that is cut off holds the lock as far as it knows, and another one may own the
    /// volume. Where nothing has to be written, nobody else would tell it.
    fn be_sure(&self, asked: Asked<'_>) -> Result<(), Errno> {
        while self.is_ours() && !self.client.is_heard() && !asked.is_too_old() {
            std::thread::sleep(AGAIN);
        }
        if is_sure(self.is_ours(), self.client.is_heard()) { Ok(()) } else { Err(Errno::Shutdown) }
    }

    /// Who knew a larger volume may ask for more than there is.
    fn check_range(&self, offset: u64, len: u64) -> Result<(), Errno> {
        let size = self.size.load(Ordering::SeqCst);
        if offset.saturating_add(len) > size { Err(Errno::NoSpace) } else { Ok(()) }
    }

    fn begin_change(&self) -> Result<(), Status> {
        self.check_lock()?;
        self.memory.note_write(&self.client, self.ino)
    }

    /// Other requests go on between the parts.
    fn in_parts(&self, offset: u64, len: u64, how: Allocate) -> Result<(), Status> {
        let (mut at, end) = (offset, offset + len);
        while at < end {
            self.begin_change()?;
            let count = (end - at).min(PART);
            self.client.allocate(self.ino, how, at, count)?;
            at += count;
        }
        Ok(())
    }

    fn told<T>(&self, outcome: Result<T, Status>) -> Result<T, Errno> {
        outcome.map_err(|status| match status {
            // It is another server's, or may be.
            _ if !self.is_ours() || !self.client.is_heard() => Errno::Shutdown,
            Status::NOSPC => Errno::NoSpace,
            Status::INVAL | Status::FBIG => Errno::Invalid,
            status => {
                tracing::error!("nbd: volume {}: {status}", self.about.name);
                Errno::Io
            }
        })
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        if self.is_ours() {
            // Else whoever serves it next looks at it more closely.
            let _ = match self.client.fsync(self.fh, What::Data) {
                Ok(()) => self.memory.leave(&self.client, self.ino),
                Err(status) => {
                    let name = &self.about.name;
                    tracing::error!("nbd: volume {name}: its last bytes are lost: {status}");
                    self.memory.doubt(&self.client, self.ino)
                }
            };
        }
        self.client.locks().release_locks(self.fh);
        self.client.release(self.fh);
    }
}

impl Export for Volume {
    fn about(&self) -> About {
        About { size: self.size.load(Ordering::SeqCst), ..self.about.clone() }
    }

    fn order(&self) -> &Order {
        &self.order
    }

    fn look_anew(&self) -> Result<(), Errno> {
        self.told(self.learn_size())
    }

    fn read(&self, _: Asked<'_>, offset: u64, out: &mut [u8]) -> Result<(), Errno> {
        let count = self.told(self.client.read(self.ino, offset, out))?;
        // It was made smaller by force.
        if count < out.len() { Err(Errno::Io) } else { Ok(()) }
    }

    fn write(&self, _: Asked<'_>, offset: u64, data: &[u8], kept: Kept) -> Result<(), Errno> {
        self.check_range(offset, data.len() as u64)?;
        self.told(self.begin_change())?;
        let kept = match kept {
            Kept::BeyondACrash => InClient::ByTargets,
            Kept::Durably => {
                self.told(self.memory.check())?;
                InClient::Durably
            }
        };
        self.told(self.client.write_to_targets((self.ino, self.fh), offset, data, kept))
    }

    fn flush(&self, asked: Asked<'_>) -> Result<(), Errno> {
        self.told(self.check_lock().and_then(|()| self.memory.check()))?;
        self.told(self.client.fsync(self.fh, What::Data))?;
        self.be_sure(asked)
    }

    fn trim(&self, _: Asked<'_>, offset: u64, len: u64) -> Result<(), Errno> {
        self.check_range(offset, len)?;
        self.told(self.in_parts(offset, len, Allocate::Punch))
    }

    fn write_zeroes(&self, _: Asked<'_>, offset: u64, len: u64, how: Zeroing) -> Result<(), Errno> {
        self.check_range(offset, len)?;
        // Holes of redundant files are written first, and room is asked for at every target.
        if how.is_fast && (how.keeps_room || self.is_redundant) {
            return Err(Errno::NotSupported);
        }
        let how = if how.keeps_room { Allocate::ZeroKeepSize } else { Allocate::Punch };
        self.told(self.in_parts(offset, len, how))
    }

    fn extents(
        &self,
        _: Asked<'_>,
        offset: u64,
        len: u32,
        most: usize,
    ) -> Result<Vec<Extent>, Errno> {
        let (start, end) = (Instant::now(), offset + u64::from(len));
        // What was answered is with the targets.
        let next = |at, what| match self.client.seek_on_targets(self.ino, at, what) {
            Err(Status::NXIO) => Ok(end),
            found => self.told(found).map(|found| found.min(end)),
        };
        let (mut at, mut extents) = (offset, Vec::new());
        while at < end && extents.len() < most && (extents.is_empty() || start.elapsed() < LOOKING)
        {
            let data = next(at, Seek::Data)?;
            let is_hole = data > at;
            let until = if is_hole { data } else { next(at, Seek::Hole)? };
            // Else it was trimmed between the two looks.
            if until > at {
                extents.push(Extent { len: (until - at) as u32, is_hole });
            }
            at = until;
        }
        Ok(extents)
    }
}
