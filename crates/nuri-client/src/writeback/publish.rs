//! Telling the metadata server a file's size, times and inline data.

use std::sync::Arc;

use nuri_proto::Status;
use nuri_proto::id::Ino;
use nuri_proto::limit::MAX_INLINE;
use nuri_proto::op::meta::{Attr, InodeReply, Publish, PublishData, SetTime};
use nuri_rules::broken;

use crate::inode::{FileData, Inode, InodeState};
use crate::lease::state::GrantValidity;
use crate::writeback::{SyncScope, Writeback};

impl Writeback {
    /// Tells the metadata server size, times and inline data.
    pub(super) fn publish(&self, node: &Arc<Inode>, scope: SyncScope) -> Result<(), Status> {
        self.journal.flush_of(node.ino)?;
        let (call, inline, version) = {
            let state = node.state.lock();
            let Some(file) = &state.file else {
                return Ok(());
            };
            let unchanged = file.inline.is_none() && file.size == file.published_size;
            if file.unpublished.is_none() || (scope == SyncScope::Data && unchanged) {
                return Ok(());
            }
            (publication(node.ino, file), file.inline.clone(), file.version)
        };
        let reply = self.session.change(&call, inline.as_deref().unwrap_or_default());
        let mut state = node.state.lock();
        match reply {
            Ok(reply) => {
                if let Some(file) = &mut state.file {
                    file.published_size = call.size;
                    if call.data == PublishData::Part {
                        file.beside = file.beside.map(|known| known + call.allocated);
                    }
                    if file.version == version {
                        file.unpublished = None;
                    }
                }
                state.published(&call, &reply, self.session.standing());
                Ok(())
            }
            // Removed meanwhile: nothing is left to be kept.
            Err(Status::NOENT) => {
                if let Some(file) = &mut state.file {
                    file.unpublished = None;
                }
                Ok(())
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

fn publication(ino: Ino, file: &FileData) -> Publish {
    let mtime = file.mtime.map(SetTime::At);
    if let Some(known) = file.beside {
        let (allocated, data) = (file.allocated.saturating_sub(known), PublishData::Part);
        return Publish { ino, size: file.size, allocated, mtime, data };
    }
    let data = match &file.inline {
        Some(inline) if inline.len() as u64 == file.size && file.size <= MAX_INLINE => {
            PublishData::Inline
        }
        _ => PublishData::OnTargets,
    };
    Publish { ino, size: file.size, allocated: file.allocated, mtime, data }
}
