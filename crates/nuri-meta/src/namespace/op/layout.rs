//! Operations on layouts: show and set the layout of files, and change it by exchanging the content
//! of two files.

use nuri_proto::Status;
use nuri_proto::op::meta::{LayoutGet, LayoutReply, LayoutSet, SwapData};
use nuri_rules::broken;

use super::MetaOp;
use crate::lease::{Claim, Want};
use crate::namespace::schema::{Body, inline_key};
use crate::namespace::txn::Txn;

impl MetaOp for LayoutSet {
    fn claims(&self, txn: &Txn<'_>) -> Result<Vec<Claim>, Status> {
        let is_dir = txn.inode(self.ino)?.is_dir();
        // Who holds a file knows its layout.
        let want = if is_dir { Want::Alone } else { Want::Nobody };
        Ok(vec![Claim { ino: self.ino, want }])
    }

    fn run(self, txn: &mut Txn<'_>, _: &[u8]) -> Result<(), Status> {
        self.policy.check().map_err(|_| Status::INVAL)?;
        let groups = txn.cluster.groups(self.policy.pool, self.policy.shape)?;
        let mut inode = txn.inode(self.ino)?;
        match &mut inode.body {
            Body::File(file) if inode.attr.size == 0 && !file.on_targets => {
                file.layout = self.policy.instantiate(&groups, file.object.0);
            }
            _ => inode.as_dir_mut()?.policy = Some(self.policy),
        }
        txn.changed(&mut inode);
        txn.put_inode(&inode)
    }
}

impl MetaOp for SwapData {
    fn claims(&self, _: &Txn<'_>) -> Result<Vec<Claim>, Status> {
        let nobody = |ino| Claim { ino, want: Want::Nobody };
        Ok(vec![nobody(self.ino), nobody(self.with)])
    }

    fn run(self, txn: &mut Txn<'_>, _: &[u8]) -> Result<(), Status> {
        if self.ino == self.with {
            return Err(Status::INVAL);
        }
        let (mut inode, mut other) = (txn.inode(self.ino)?, txn.inode(self.with)?);
        // Those who could have written gave their leases back, and told all.
        if inode.attr.change != self.change && !broken!("swap_whatever_was_written") {
            return Err(Status::BUSY);
        }
        if inode.attr.size != other.attr.size {
            return Err(Status::INVAL);
        }
        let inline = [self.ino, self.with].map(|ino| txn.raw(&inline_key(ino)));
        let [of_inode, of_other] = inline;
        txn.put_inline(self.ino, of_other?);
        txn.put_inline(self.with, of_inode?);
        std::mem::swap(inode.as_file_mut()?, other.as_file_mut()?);
        std::mem::swap(&mut inode.attr.allocated, &mut other.attr.allocated);
        inode.attr.change += 1;
        other.attr.change += 1;
        txn.put_inode(&inode)?;
        txn.put_inode(&other)
    }
}

impl MetaOp for LayoutGet {
    fn claims(&self, _: &Txn<'_>) -> Result<Vec<Claim>, Status> {
        Ok(Vec::new())
    }

    fn run(self, txn: &mut Txn<'_>, _: &[u8]) -> Result<LayoutReply, Status> {
        let inode = txn.inode(self.ino)?;
        match inode.body {
            Body::File(file) => {
                let on_targets = if file.inline { 0 } else { inode.attr.size };
                Ok(LayoutReply::File(file.object, file.layout, on_targets))
            }
            Body::Directory(dir) => {
                Ok(LayoutReply::Directory(dir.policy.unwrap_or_else(|| txn.default_policy())))
            }
            _ => Err(Status::NODATA),
        }
    }
}
