//! Calls of who serves a file as a block device: its clients are told when a write is where a crash
//! of the server cannot take it, which is earlier than durable.

use nuri_proto::Status;
use nuri_proto::id::Ino;

use crate::client::Client;
use crate::lease::range::span_of;
use crate::writeback::payload::WritePayload;

impl Client {
    /// Writes all of `data`, as [`Client::write_past`], and returns when its targets have it:
    /// durably where the file is redundant, else in their memory until a sync.
    ///
    /// # Errors
    /// As [`Client::write_past`], and where a target did not take the bytes.
    pub fn write_to_targets<'a>(
        &self,
        (ino, fh): (Ino, u64),
        offset: u64,
        data: impl Into<WritePayload<'a>>,
    ) -> Result<(), Status> {
        let (node, data) = (self.opened_node(fh)?, data.into());
        let len = data.len();
        let before = node.state.lock().errors;
        let wrote = self.write_past((ino, fh), offset, data)?;
        if wrote.len < len as u64 {
            return Err(Status::NOSPC);
        }
        self.writeback.push_part(&node, span_of(offset, len));
        let state = node.state.lock();
        match state.last_error.filter(|_| state.errors != before) {
            Some(status) => Err(status),
            None => Ok(()),
        }
    }

    /// Makes durable what was written of these bytes. The file's size and times may follow later.
    ///
    /// # Errors
    /// A target's.
    pub fn sync_bytes(&self, fh: u64, offset: u64, len: u64) -> Result<(), Status> {
        let node = self.opened_node(fh)?;
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        self.writeback.settle_part(&node, span_of(offset, len))
    }
}
