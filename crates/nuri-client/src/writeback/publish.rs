//! Telling the metadata server a file's size, times and inline data.

use std::sync::Arc;

use nuri_proto::Status;
use nuri_proto::id::Ino;
use nuri_proto::limit::MAX_INLINE;
use nuri_proto::op::meta::{Attr, InodeReply, Publish, PublishData, SetTime};
use nuri_rules::broken;

use crate::inode::{FileData, Inode, InodeState};
use crate::lease::state::GrantValidity;
use crate::writeback::{Before, Done, SyncScope, Writeback};

impl Writeback {
    /// Tells the metadata server size, times and inline data. `No`: bytes must leave before.
    pub(super) fn publish(
        &self,
        node: &Arc<Inode>,
        scope: SyncScope,
        before: Before,
    ) -> Result<Done, Status> {
        self.journal.flush_of(node.ino)?;
        let (call, inline, (version, cut)) = {
            let state = node.state.lock();
            let Some(file) = &state.file else {
                return Ok(Done::Yes);
            };
            let is_early = before == Before::AllBytes && !file.buffer.is_empty();
            if is_early && !broken!("published_before_bytes") {
                return Ok(Done::No);
            }
            let unchanged = file.inline.is_none() && file.size == file.published_size;
            let is_told = file.unpublished.is_none() && file.untold_cut.is_none();
            if is_told || (scope == SyncScope::Data && unchanged) {
                return Ok(Done::Yes);
            }
            let mut call = publication(node.ino, file);
            if let (Before::BytesFrom(written), PublishData::OnTargets | PublishData::CutDone) =
                (before, call.data)
            {
                call.size = call.size.min(written);
            }
            (call, file.inline.clone(), (file.version, file.untold_cut))
        };
        let reply = self.session.change(&call, inline.as_deref().unwrap_or_default());
        let mut state = node.state.lock();
        match reply {
            Ok(reply) => {
                if let Some(file) = &mut state.file {
                    file.published_size = call.size;
                    file.cut_is_told(cut.filter(|_| call.data == PublishData::CutDone));
                    if call.data == PublishData::Part {
                        file.beside = file.beside.map(|known| known + call.allocated);
                    }
                    // Blocks of what is still here are not counted yet.
                    let is_whole = file.buffer.is_empty() || broken!("published_before_bytes");
                    if file.version == version && is_whole && call.size == file.size {
                        file.unpublished = None;
                    }
                }
                state.published(&call, &reply, self.session.standing());
                Ok(Done::Yes)
            }
            // Removed meanwhile: nothing is left to be kept.
            Err(Status::NOENT) => {
                if let Some(file) = &mut state.file {
                    file.unpublished = None;
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
        _ if file.untold_cut.is_some() => PublishData::CutDone,
        _ => PublishData::OnTargets,
    };
    Publish { ino, size: file.size, allocated: file.allocated, mtime, data }
}
