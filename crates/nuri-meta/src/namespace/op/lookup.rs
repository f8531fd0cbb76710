//! Operations that find names and read attributes.

use nuri_proto::Status;
use nuri_proto::op::meta::{GetAttr, InodeReply, Lookup, LookupReply, StatFs, StatFsReply};

use super::MetaOp;
use crate::lease::{Claim, Want};
use crate::namespace::schema::Counters;
use crate::namespace::txn::Txn;

impl MetaOp for Lookup {
    fn claims(&self, txn: &Txn<'_>) -> Result<Vec<Claim>, Status> {
        let entry = txn.entry(self.parent, &self.name)?;
        // Who has the directory alone may have names that are not here yet.
        let inos = [self.parent].into_iter().chain(entry.map(|e| e.ino));
        Ok(inos.map(|ino| Claim { ino, want: Want::Shared }).collect())
    }

    fn run(self, txn: &mut Txn<'_>, _: &[u8]) -> Result<LookupReply, Status> {
        txn.check_directory(self.parent)?;
        let inode = match txn.entry(self.parent, &self.name)? {
            Some(entry) => {
                let inode = txn.inode(entry.ino)?;
                let reply = txn.reply_in(self.parent, &inode);
                if reply.lease.is_none() {
                    txn.deferred.note_told(entry.ino);
                }
                Some(reply)
            }
            None => None,
        };
        let dir_lease = txn.dir_lease(self.parent);
        Ok(LookupReply { inode, dir_lease })
    }
}

impl MetaOp for GetAttr {
    fn claims(&self, _: &Txn<'_>) -> Result<Vec<Claim>, Status> {
        Ok(vec![Claim { ino: self.ino, want: Want::Shared }])
    }

    fn run(self, txn: &mut Txn<'_>, _: &[u8]) -> Result<InodeReply, Status> {
        let inode = txn.inode(self.ino)?;
        Ok(txn.reply(&inode))
    }
}

impl MetaOp for StatFs {
    fn claims(&self, _: &Txn<'_>) -> Result<Vec<Claim>, Status> {
        Ok(Vec::new())
    }

    fn run(self, txn: &mut Txn<'_>, _: &[u8]) -> Result<StatFsReply, Status> {
        let Counters { inodes, allocated, .. } = txn.read_counters();
        Ok(StatFsReply { inodes, allocated })
    }
}
