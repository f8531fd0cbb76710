//! Publishes a file's size, times and inline data to the metadata server.

use std::sync::Arc;
use std::time::Instant;

use nuri_proto::Status;
use nuri_proto::op::meta::{Attr, InodeReply, Publish};
use nuri_rules::broken;

use crate::inode::{Inode, InodeState};
use crate::lease::state::GrantValidity;
use crate::writeback::Writeback;
use crate::writeback::machine::{SyncScope, Told};

#[derive(PartialEq, Eq)]
pub(super) enum Done {
    Yes,
    No,
}

impl Writeback {
    /// Publishes size, times and inline data to the metadata server. Bytes up to `durable_to` are
    /// on the targets. `No`: other bytes must leave before.
    pub(super) fn publish(
        &self,
        node: &Arc<Inode>,
        scope: SyncScope,
        durable_to: u64,
    ) -> Result<Done, Status> {
        self.journal.flush_of(node.ino)?;
        let told = {
            let state = node.state.lock();
            let Some(file) = &state.file else { return Ok(Done::Yes) };
            match file.own.publication(node.ino, scope, durable_to) {
                Told::Call(told) => told,
                Told::Early => return Ok(Done::No),
                Told::Nothing => return Ok(Done::Yes),
            }
        };
        let reply = self.session.change(&told.call, &told.inline);
        let mut state = node.state.lock();
        match reply {
            Ok(reply) => {
                if let Some(file) = &mut state.file {
                    file.own.published(&told, Instant::now());
                }
                state.published(&told.call, &reply, self.session.standing());
                Ok(Done::Yes)
            }
            // Removed meanwhile.
            Err(Status::NOENT) => {
                if let Some(file) = &mut state.file {
                    file.own.has_nothing_to_publish();
                }
                Ok(Done::Yes)
            }
            Err(status) => Err(status),
        }
    }
}

impl InodeState {
    /// Takes over what a publication made of the attributes. Of an inode that is here alone it is
    /// done here as the server did it: the answer knows nothing of what was logged since it was
    /// sent.
    fn published(&mut self, call: &Publish, reply: &InodeReply, standing: GrantValidity) {
        let told = reply.attr;
        let own = self.alone().filter(|_| !broken!("publication_hides_log")).map(|attr| {
            attr.published(call.mtime.map(|mtime| mtime.at(told.mtime)));
            Attr { size: told.size, allocated: told.allocated, ..*attr }
        });
        self.apply(&own.unwrap_or(told), reply.lease, standing);
    }
}
