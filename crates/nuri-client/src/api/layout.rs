//! The client's API: layouts, and how much room the space has.

use std::time::Duration;

use nuri_proto::Status;
use nuri_proto::id::{GroupId, Ino};
use nuri_proto::layout::LayoutPolicy;
use nuri_proto::map::{Map, Standing, TargetState};
use nuri_proto::op::meta::{LayoutGet, LayoutReply, LayoutSet, StatFs, SwapData};

use nuri_rpc::Deadline;

use crate::client::Client;

/// How long servers are asked how full the space is.
const COUNTED: Duration = Duration::from_secs(3);

impl Client {
    /// A file's layout, or what a directory's new files inherit.
    ///
    /// # Errors
    /// The server's.
    pub fn layout(&self, ino: Ino) -> Result<LayoutReply, Status> {
        self.journal.flush_of(ino)?;
        self.session.call(&LayoutGet { ino })
    }

    /// Bytes of a file that cannot be read now: their groups miss too many members.
    ///
    /// # Errors
    /// The server's.
    pub fn out_of_reach(&self, ino: Ino) -> Result<u64, Status> {
        let LayoutReply::File(_, layout, size) = self.layout(ino)? else { return Ok(0) };
        let map = self.cluster.state()?.map;
        Ok(layout.bytes_on(size, |group| !can_be_read(&map, group)))
    }

    /// Sets what a directory's new files inherit, or how a file will lie that has no data yet.
    ///
    /// # Errors
    /// `NOTDIR` for other inodes, `INVAL` for what cannot be stored.
    pub fn set_layout(&self, ino: Ino, policy: LayoutPolicy) -> Result<(), Status> {
        self.journal.flush()?;
        self.session.change(&LayoutSet { ino, policy }, &[])
    }

    /// Exchanges what two files hold: one is a copy of the other, made when that had this change
    /// counter, and is durable. Whoever holds a lease on one of them gives it back before, this
    /// client too: what it knew of the file's place is void.
    ///
    /// # Errors
    /// `BUSY` where the file was written since; `INVAL` where the two have not the same size.
    pub fn swap_data(&self, ino: Ino, with: Ino, change: u64) -> Result<(), Status> {
        self.journal.flush()?;
        self.session.change(&SwapData { ino, with, change }, &[])
    }

    /// (bytes in all, bytes used, inodes used). Where a server does not answer soon they are those
    /// of last time: who asks how full a file system is had better not hang.
    ///
    /// # Errors
    /// Where a server does not answer, and did not before.
    pub fn statfs(&self) -> Result<(u64, u64, u64), Status> {
        let deadline = Deadline::after(COUNTED);
        let count = || {
            let (size, used) = self.cluster.state_by(deadline)?.usable;
            let counts = self.session.call_by(deadline, &StatFs {})?;
            Ok((size, used, counts.inodes))
        };
        match count() {
            Ok(counts) => Ok(*self.counted.lock().insert(counts)),
            Err(status) => self.counted.lock().ok_or(status),
        }
    }
}

/// Whether enough members of the group are there.
fn can_be_read(map: &Map, id: GroupId) -> bool {
    let Some(group) = map.group(id) else { return false };
    let serves = |t| map.target(t).is_some_and(|t| t.state == TargetState::Up);
    let is_there = |m: &&nuri_proto::map::Member| m.standing == Standing::Live && serves(m.target);
    group.members.iter().filter(is_there).count() >= group.shape.data()
}
