//! A disk of another machine, which that machine's node opens.
//!
//! When that machine starts anew, what the disk had in its memory may be lost, and `/dev/sdb` may
//! be another disk. So nothing is served from then on.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nuri_proto::Status;
use nuri_proto::id::{BootId, NodeId};
use nuri_rules::broken;
use parking_lot::Mutex;

use crate::export::{About, Asked, Export, Extent, Kept, Zeroing};
use crate::order::Order;
use crate::peer::{Forwarder, Link, NoLink, NoWay, Remote, Token, Ways};
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

/// Why a node does not list or open its disks.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NodeError {
    #[error("there is no node {0}: nuri status")]
    Unknown(NodeId),
    #[error("raw disks need the space's own token, not that for mounts")]
    NotPermitted,
    #[error("node {0} is of an older version")]
    TooOld(NodeId),
    #[error("node {node}: {status}")]
    Call { node: NodeId, status: Status },
    /// In the node's words.
    #[error("node {node}: {why}")]
    Refused { node: NodeId, why: String },
    /// It left the space after it had opened the disk.
    #[error("the node is gone")]
    Gone,
}

/// Asks the node to open the disk, again where the connection is lost.
pub type OpenThere = Box<dyn Fn() -> Result<OpenedThere, NodeError> + Send + Sync>;

/// Why a disk of another machine is not reached.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    #[error(transparent)]
    Node(#[from] NodeError),
    #[error(transparent)]
    Link(#[from] NoLink),
    #[error("its machine started anew: start this server anew too")]
    Restarted,
    #[error("it has {size} bytes now")]
    Resized { size: u64 },
    #[error("it does not answer")]
    Late,
}

/// See the module's text.
pub struct RemoteDisk {
    open: OpenThere,
    about: About,
    order: Order,
    ways: Ways,
    forwarder: Forwarder,
    /// Of the machine, when it was reached first.
    boot: BootId,
    /// The last failure that was told of.
    told: Mutex<Option<RemoteError>>,
}

impl RemoteDisk {
    /// A disk that its node has opened.
    ///
    /// # Errors
    /// Why it is not reached.
    pub fn open(name: String, read_only: bool, open: OpenThere) -> Result<RemoteDisk, RemoteError> {
        let OpenedThere { size, block, boot, .. } = open()?;
        let description = format!("the disk {name} of a Nuri space");
        let preferred_block = block.max(4096);
        let about = About { name, description, size, read_only, block, preferred_block };
        let disk = RemoteDisk {
            open,
            about,
            order: Order::default(),
            ways: Ways::default(),
            forwarder: Forwarder::default(),
            boot,
            told: Mutex::default(),
        };
        let sought = disk.ways.seek(Instant::now() + FIRST, || Ok::<_, Errno>(disk.find()));
        match sought {
            Ok(()) => Ok(disk),
            Err(NoWay::Late | NoWay::Failed(_)) => {
                Err(disk.told.into_inner().unwrap_or(RemoteError::Late))
            }
        }
    }

    fn find(&self) -> Option<Arc<dyn Export>> {
        match self.link() {
            Ok(link) => {
                *self.told.lock() = None;
                Some(Arc::new(Remote::new(link, self.about.clone())))
            }
            Err(why) => {
                self.tell(why);
                None
            }
        }
    }

    /// A link to the disk, if it is still the one that was opened first.
    fn link(&self) -> Result<Arc<Link>, RemoteError> {
        let there = (self.open)()?;
        let link = self.forwarder.link(&there.address, there.token)?;
        // What was not flushed may be lost, and the name may be that of another disk.
        if there.boot != self.boot && !broken!("disk_reboots") {
            return Err(RemoteError::Restarted);
        }
        if there.size != self.about.size {
            return Err(RemoteError::Resized { size: there.size });
        }
        Ok(link)
    }

    /// Once for each reason, as it reads.
    fn tell(&self, why: RemoteError) {
        let mut told = self.told.lock();
        if told.as_ref().map(ToString::to_string) != Some(why.to_string()) {
            tracing::warn!("nbd: {}: {why}", self.about.description);
            *told = Some(why);
        }
    }

    fn by_way<T>(
        &self,
        asked: Asked<'_>,
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

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::age::AGE;
    use crate::client::Client;
    use crate::peer::Door;
    use crate::peer::tests::{Memory, SIZE, listen};
    use crate::socket::Socket;

    /// Catches `broken!("disk_reboots")`.
    #[test]
    fn a_disk_of_a_machine_that_started_anew_is_not_served() {
        let device: Arc<dyn Export> = Arc::new(Memory::new());
        let node = || {
            let door = Arc::new(Door::at(String::new()));
            let token = door.admit(&device).unwrap();
            assert_eq!(door.admit(&device).unwrap(), token, "it is the same device");
            let (server, address) = listen(door);
            (server, token, address)
        };
        let there = Arc::new(Mutex::new((node(), BootId(1))));
        let asked_there = there.clone();
        let open: OpenThere = Box::new(move || {
            let ((_, token, address), boot) = &*asked_there.lock();
            let (token, address, boot) = (*token, address.clone(), *boot);
            Ok(OpenedThere { address, token, size: SIZE as u64, block: 1, boot })
        });
        let disk = RemoteDisk::open("1:sdb".into(), false, open).unwrap();
        let (client, _other_end) = UnixStream::pair().unwrap();
        let client = Client::new(Arc::new(Socket::from(client)));
        let write = |value: u8, age: Duration| {
            let deadline = Instant::now() + AGE.saturating_sub(age);
            disk.write(Asked { deadline, cookie: 0, client: &client }, 0, &[value], Kept::Durably)
        };
        assert_eq!(write(1, Duration::ZERO), Ok(()));
        let restart = |boot| {
            there.lock().0.0.stop();
            *there.lock() = (node(), BootId(boot));
        };
        restart(1);
        assert_eq!(write(2, Duration::ZERO), Ok(()), "only the process started anew");
        restart(2);
        assert_eq!(write(3, AGE - Duration::from_secs(1)), Err(Errno::Shutdown));
    }
}
