//! A volume that is served.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nuri_client::{Allocate, Client, Seek, Sync as What};
use nuri_proto::Status;
use nuri_proto::id::Ino;

use crate::export::{About, Export, Extent, ZeroedRoom};
use crate::order::Order;
use crate::protocol::Errno;

/// A client that asks for data and holes gets what was found in so long, and asks again.
const LOOKING: Duration = Duration::from_millis(100);

/// Held open and locked; both end with it.
pub(super) struct Volume {
    client: Arc<Client>,
    ino: Ino,
    fh: u64,
    about: About,
    order: Order,
}

impl Volume {
    pub(super) fn new(client: Arc<Client>, (ino, fh): (Ino, u64), about: About) -> Volume {
        Volume { client, ino, fh, about, order: Order::default() }
    }

    fn told<T>(&self, outcome: Result<T, Status>) -> Result<T, Errno> {
        outcome.map_err(|status| match status {
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
        self.client.locks().release_locks(self.fh);
        self.client.release(self.fh);
    }
}

impl Export for Volume {
    fn about(&self) -> About {
        self.about.clone()
    }

    fn order(&self) -> &Order {
        &self.order
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Errno> {
        let count = self.told(self.client.read(self.ino, offset, out))?;
        // It was made smaller by force.
        if count < out.len() { Err(Errno::Io) } else { Ok(()) }
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), Errno> {
        self.told(self.client.write_to_targets((self.ino, self.fh), offset, data))
    }

    fn sync(&self, offset: u64, len: u64) -> Result<(), Errno> {
        self.told(self.client.sync_bytes(self.fh, offset, len))
    }

    fn flush(&self) -> Result<(), Errno> {
        self.told(self.client.fsync(self.fh, What::Data))
    }

    fn trim(&self, offset: u64, len: u64) -> Result<(), Errno> {
        self.told(self.client.allocate(self.ino, Allocate::Punch, offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64, room: ZeroedRoom) -> Result<(), Errno> {
        let how = match room {
            ZeroedRoom::GivenBack => Allocate::Punch,
            ZeroedRoom::Kept => Allocate::ZeroKeepSize,
        };
        self.told(self.client.allocate(self.ino, how, offset, len))
    }

    fn extents(&self, offset: u64, len: u32, most: usize) -> Result<Vec<Extent>, Errno> {
        let (start, end) = (Instant::now(), offset + u64::from(len));
        let next = |at, what| match self.client.seek(self.ino, at, what) {
            Err(Status::NXIO) => Ok(end),
            found => self.told(found).map(|found| found.min(end)),
        };
        let (mut at, mut extents) = (offset, Vec::new());
        while at < end && extents.len() < most && (at == offset || start.elapsed() < LOOKING) {
            let data = next(at, Seek::Data)?;
            let is_hole = data > at;
            let until = if is_hole { data } else { next(at, Seek::Hole)? };
            extents.push(Extent { len: (until - at) as u32, is_hole });
            at = until;
        }
        Ok(extents)
    }
}
