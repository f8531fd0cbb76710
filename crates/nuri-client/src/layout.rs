//! The client's API: layouts, and how much room the space has.

use nuri_proto::Status;
use nuri_proto::id::Ino;
use nuri_proto::layout::LayoutPolicy;
use nuri_proto::op::meta::{LayoutGet, LayoutReply, LayoutSet, StatFs};

use crate::fs::Client;

impl Client {
    /// A file's layout, or what a directory's new files inherit.
    ///
    /// # Errors
    /// The server's.
    pub fn layout(&self, ino: Ino) -> Result<LayoutReply, Status> {
        self.shared.tell_of(ino)?;
        self.shared.session.call(&LayoutGet { ino })
    }

    /// Sets what a directory's new files inherit.
    ///
    /// # Errors
    /// `NOTDIR` for other inodes, `INVAL` for what cannot be stored.
    pub fn set_layout(&self, ino: Ino, policy: LayoutPolicy) -> Result<(), Status> {
        self.shared.tell_log()?;
        self.shared.session.change(&LayoutSet { ino, policy }, &[])
    }

    /// (bytes in all, bytes used, inodes used).
    ///
    /// # Errors
    /// Where a server does not answer.
    pub fn statfs(&self) -> Result<(u64, u64, u64), Status> {
        let (size, used) = self.shared.cluster.state()?.map.usable();
        let counts = self.shared.session.call(&StatFs {})?;
        Ok((size, used, counts.inodes))
    }
}
