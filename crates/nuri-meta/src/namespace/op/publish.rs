//! The operation with which a writer publishes sizes and times, under its write lease.

use nuri_proto::Status;
use nuri_proto::id::Ino;
use nuri_proto::limit::{MAX_ALLOCATED, MAX_FILE, MAX_INLINE};
use nuri_proto::op::meta::{Extend, InodeReply, Publish, PublishData, SetTime};
use nuri_rules::broken;

use super::MetaOp;
use crate::lease::Claim;
use crate::namespace::schema::{Inode, inline_key};
use crate::namespace::txn::Txn;

/// The inode of a writer, `NOENT` where it is gone: then there is nothing to keep.
fn written(txn: &Txn<'_>, ino: Ino) -> Result<Inode, Status> {
    txn.inode(ino).map_err(|status| if status == Status::STALE { Status::NOENT } else { status })
}

impl MetaOp for Publish {
    fn claims(&self, _: &Txn<'_>) -> Result<Vec<Claim>, Status> {
        Ok(Vec::new())
    }

    fn run(self, txn: &mut Txn<'_>, payload: &[u8]) -> Result<InodeReply, Status> {
        // Without the lease another writer may have been there: the report is void.
        if !txn.leases.may_publish(self.ino, txn.session) {
            return Err(Status::STALE);
        }
        if self.size > MAX_FILE || self.allocated > MAX_ALLOCATED {
            return Err(Status::FBIG);
        }
        let mut inode = written(txn, self.ino)?;
        let file = inode.as_file_mut()?;
        match self.data {
            PublishData::Inline => {
                let fits = payload.len() as u64 == self.size && self.size <= MAX_INLINE;
                if file.on_targets || !fits {
                    return Err(Status::INVAL);
                }
                file.inline = true;
                txn.batch.put(inline_key(self.ino), payload.to_vec());
            }
            PublishData::OnTargets | PublishData::CutDone => {
                if self.data == PublishData::CutDone {
                    file.punch_from = None;
                } else if file.punch_from.is_some_and(|from| self.size > from) {
                    // The next writer would punch what was written since.
                    return Err(Status::INVAL);
                }
                if file.inline {
                    txn.delete(inline_key(self.ino));
                }
                file.inline = false;
                file.on_targets = true;
                // Everything up to the new size is durable; what a dead writer left is above.
                file.grown_from = file.grown_from.map(|_| self.size);
            }
            PublishData::Part => {
                if file.inline || !file.on_targets {
                    return Err(Status::INVAL);
                }
                file.grown_from = file.grown_from.map(|from| from.max(self.size));
            }
        }
        let known = inode.attr;
        let (size, allocated, mtime) = match self.data {
            PublishData::Inline => (self.size, self.size.next_multiple_of(512), self.mtime),
            PublishData::OnTargets | PublishData::CutDone => {
                (self.size, self.allocated, self.mtime)
            }
            // Others write elsewhere in it: together they make it what it is.
            PublishData::Part => {
                let allocated = known.allocated.saturating_add(self.allocated);
                let later = |mtime: &SetTime| txn.at(*mtime) > known.mtime;
                (known.size.max(self.size), allocated, self.mtime.filter(later))
            }
        };
        let others = txn.counters.allocated.saturating_sub(inode.attr.allocated);
        txn.counters.allocated = others + allocated;
        inode.attr.allocated = allocated;
        inode.attr.size = size;
        let mtime = mtime.map(|mtime| txn.at(mtime));
        inode.attr.published(mtime);
        txn.saw(inode.attr.ctime);
        txn.put_inode(&inode)?;
        Ok(txn.reply(&inode))
    }
}

impl MetaOp for Extend {
    fn claims(&self, _: &Txn<'_>) -> Result<Vec<Claim>, Status> {
        Ok(Vec::new())
    }

    fn run(self, txn: &mut Txn<'_>, _: &[u8]) -> Result<(), Status> {
        if !txn.leases.may_publish(self.ino, txn.session) {
            return Err(Status::STALE);
        }
        let mut inode = written(txn, self.ino)?;
        let size = inode.attr.size;
        let file = inode.as_file_mut()?;
        if broken!("grow_unannounced") {
            return Ok(());
        }
        let known = if file.inline { 0 } else { size };
        if self.is_cut_done {
            file.punch_from = None;
        }
        file.grown_from = Some(file.grown_from.map_or(known, |from| from.min(known)));
        txn.put_inode(&inode)
    }
}
