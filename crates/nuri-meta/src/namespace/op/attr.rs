//! Operations that change attributes: modes, owners, times, and truncation.

use nuri_proto::Status;
use nuri_proto::acl;
use nuri_proto::id::{Ino, ObjectId};
use nuri_proto::limit::MAX_FILE;
use nuri_proto::op::meta::{Accessed, SetAttr, SetAttrReply, TruncateDone};
use nuri_proto::xattr::ACL_ACCESS;
use nuri_rules::broken;

use super::MetaOp;
use crate::lease::{Claim, Want};
use crate::namespace::schema::{Body, GarbageRecord, Inode, garbage_key, inline_key, xattr_key};
use crate::namespace::txn::Txn;

impl MetaOp for SetAttr {
    fn claims(&self, _: &Txn<'_>) -> Result<Vec<Claim>, Status> {
        Ok(vec![Claim { ino: self.ino, want: Want::Alone }])
    }

    fn run(self, txn: &mut Txn<'_>, _: &[u8]) -> Result<SetAttrReply, Status> {
        let mut inode = txn.inode(self.ino)?;
        if let Some(mode) = self.mode {
            follow_mode(txn, self.ino, mode)?;
        }
        if let Some(size) = self.size {
            truncate(txn, &mut inode, size)?;
        }
        inode.attr.set(&self, txn.now);
        txn.put_inode(&inode)?;
        let (object, punch_from) = match &inode.body {
            Body::File(file) => (file.object, file.punch_from),
            _ => (ObjectId(0), None),
        };
        Ok(SetAttrReply { inode: txn.reply_changed(&inode), object, punch_from })
    }
}

/// `chmod`: the inode's list follows its mode.
fn follow_mode(txn: &mut Txn<'_>, ino: Ino, mode: u32) -> Result<(), Status> {
    let key = xattr_key(ino, ACL_ACCESS);
    if let Some(list) = txn.raw(&key)? {
        let list = acl::follow_mode(&list, mode).map_err(|_| Status::CORRUPT)?;
        txn.batch.put(key, list);
    }
    Ok(())
}

/// Sets the size. To zero: a new object, the old one becomes garbage, so nothing of the old data
/// can come back. To less: the rest is recorded as to be punched before the file may grow.
fn truncate(txn: &mut Txn<'_>, inode: &mut Inode, size: u64) -> Result<(), Status> {
    if size > MAX_FILE {
        return Err(Status::FBIG);
    }
    let (ino, old) = (inode.attr.ino, inode.attr.size);
    let file = inode.as_file_mut()?;
    if size == 0 && file.may_have_data(old) {
        let layout = file.layout.clone();
        txn.put(garbage_key(file.object), &GarbageRecord { layout })?;
        txn.counters.next_object += 1;
        file.object = ObjectId(txn.counters.next_object);
        file.on_targets = false;
        (file.punch_from, file.grown_from) = (None, None);
    }
    file.truncate_version += 1;
    if size < old {
        shrink(txn, ino, file, (old, size))?;
    } else if file.punch_from.is_some() && size > old {
        // Only the lease holder gets here, and it punches before it asks to grow.
        return Err(Status::RETRY);
    } else {
        // The holder published all that it pushed before it asked.
        file.grown_from = file.grown_from.map(|_| size);
    }
    if size == 0 {
        set_allocated(txn, inode, 0);
    } else if inode.as_file_mut()?.inline {
        // Data on the targets is given back when it is punched.
        let left = inode.attr.allocated.min(size.next_multiple_of(512));
        set_allocated(txn, inode, left);
    }
    inode.attr.size = size;
    txn.touch(inode);
    Ok(())
}

fn set_allocated(txn: &mut Txn<'_>, inode: &mut Inode, left: u64) {
    let given_back = inode.attr.allocated - left;
    txn.counters.allocated -= given_back.min(txn.counters.allocated);
    inode.attr.allocated = left;
}

fn shrink(
    txn: &mut Txn<'_>,
    ino: Ino,
    file: &mut crate::namespace::schema::File,
    (old, size): (u64, u64),
) -> Result<(), Status> {
    if file.inline {
        let mut data = txn.raw(&inline_key(ino))?.unwrap_or_default();
        data.truncate(size as usize);
        file.inline = !data.is_empty();
        if file.inline {
            txn.batch.put(inline_key(ino), data);
        } else {
            txn.delete(inline_key(ino));
        }
    }
    if size > 0 && file.may_have_data(old) && !broken!("cut_is_not_recorded") {
        file.punch_from = Some(file.punch_from.map_or(size, |from| from.min(size)));
    }
    Ok(())
}

impl MetaOp for TruncateDone {
    fn claims(&self, _: &Txn<'_>) -> Result<Vec<Claim>, Status> {
        Ok(vec![Claim { ino: self.ino, want: Want::Alone }])
    }

    fn run(self, txn: &mut Txn<'_>, _: &[u8]) -> Result<(), Status> {
        let Ok(mut inode) = txn.inode(self.ino) else {
            return Ok(());
        };
        let file = inode.as_file_mut()?;
        (file.punch_from, file.grown_from) = (None, None);
        txn.put_inode(&inode)
    }
}

impl MetaOp for Accessed {
    fn claims(&self, _: &Txn<'_>) -> Result<Vec<Claim>, Status> {
        Ok(Vec::new())
    }

    fn run(self, txn: &mut Txn<'_>, _: &[u8]) -> Result<(), Status> {
        for (ino, at) in self.at {
            // It may be gone by now.
            if let Ok(mut inode) = txn.inode(ino)
                && inode.attr.atime < at
                // What changed since then was maybe its time.
                && inode.attr.ctime <= at
            {
                inode.attr.atime = at.min(txn.now);
                txn.put_inode(&inode)?;
            }
        }
        Ok(())
    }
}
