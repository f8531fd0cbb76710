//! The client's API: layouts of files, and the capacity of the space.

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
    /// A file's layout, or the layout that a directory's new files inherit.
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

    /// Sets the layout that a directory's new files inherit, or the layout of a file without data.
    ///
    /// # Errors
    /// `NOTDIR` for other inodes, `INVAL` for what cannot be stored.
    pub fn set_layout(&self, ino: Ino, policy: LayoutPolicy) -> Result<(), Status> {
        self.journal.flush()?;
        self.session.change(&LayoutSet { ino, policy }, &[])
    }

    /// Exchanges the content of two files. One is a durable copy of the other, made when the other
    /// had this change counter. Every client with a lease on one of them gives it back before, this
    /// client too. What a client knew of the file's place is then void.
    ///
    /// # Errors
    /// `BUSY` where the file was written since; `INVAL` where the two have not the same size.
    pub fn swap_data(&self, ino: Ino, with: Ino, change: u64) -> Result<(), Status> {
        self.journal.flush()?;
        self.session.change(&SwapData { ino, with, change }, &[])
    }

    /// Returns (bytes in all, bytes used, inodes used). Where a server does not answer soon, these
    /// are the numbers of the last call, because a program that asks how full a file system is
    /// should not hang.
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
