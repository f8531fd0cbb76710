//! The client's API for a server that exports a file as a block device.
//!
//! Such a server answers a write as soon as a crash of the server cannot lose the bytes. That is
//! earlier than durable: the bytes may be in a target's memory.

use std::collections::BTreeSet;

use nuri_proto::Status;
use nuri_proto::id::{BootId, Ino, TargetId};
use nuri_proto::op::meta::{LayoutReply, SetGroupId, XattrMode};

use crate::api::xattr::Privileges;
use crate::client::Client;
use crate::lease::range::span_of;
use crate::writeback::payload::WritePayload;

/// Where the bytes of a write are when the write is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kept {
    /// On the targets: durable where the file is redundant, else in their memory until a sync.
    ByTargets,
    Durably,
}

impl Client {
    /// Writes all of `data`, as [`Client::write_past`], and returns when it is kept so.
    ///
    /// # Errors
    /// As [`Client::write_past`], and where a target did not take the bytes or lost them.
    pub fn write_to_targets<'a>(
        &self,
        (ino, fh): (Ino, u64),
        offset: u64,
        data: impl Into<WritePayload<'a>>,
        kept: Kept,
    ) -> Result<(), Status> {
        let (node, data) = (self.opened_node(fh)?, data.into());
        let len = data.len();
        let before = node.state.lock().errors;
        let wrote = self.write_past((ino, fh), offset, data, Privileges::All)?;
        if wrote.len < len as u64 {
            return Err(Status::NOSPC);
        }
        match kept {
            Kept::ByTargets => self.writeback.push_part(&node, span_of(offset, len)),
            Kept::Durably => self.writeback.settle_part(&node, span_of(offset, len))?,
        }
        let state = node.state.lock();
        match state.last_error.filter(|_| state.errors != before) {
            Some(status) => Err(status),
            None => Ok(()),
        }
    }

    /// Asks all targets of a file to make durable what they hold in memory, from any writer.
    /// Returns their boot ids. A redundant file has none of its bytes only in memory, so the result
    /// is empty.
    ///
    /// # Errors
    /// The servers'.
    pub fn settle_targets(&self, ino: Ino) -> Result<Vec<(TargetId, BootId)>, Status> {
        let LayoutReply::File(_, layout, _) = self.layout(ino)? else { return Err(Status::ISDIR) };
        let volatile = layout.components.iter().filter(|part| !part.shape.is_redundant());
        let groups: BTreeSet<_> = volatile.flat_map(|part| part.groups.iter().copied()).collect();
        let known = groups.into_iter().map(|group| self.cluster.group(group).ok_or(Status::IO));
        let groups = known.collect::<Result<Vec<_>, _>>()?;
        let members = groups.iter().flat_map(|group| &group.members);
        let targets: BTreeSet<_> = members.map(|member| member.target).collect();
        targets.into_iter().map(|target| Ok((target, self.data.flush(target)?))).collect()
    }

    /// Sets an attribute of a hidden inode, durably.
    ///
    /// # Errors
    /// The server's.
    pub fn mark_hidden(&self, ino: Ino, name: &[u8], value: &[u8]) -> Result<(), Status> {
        self.xattr_set(ino, name, value, (XattrMode::Any, SetGroupId::Keep))?;
        self.journal.flush()
    }
}
