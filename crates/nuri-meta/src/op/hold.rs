//! Leases asked for and given back.

use nuri_proto::Status;
use nuri_proto::op::meta::{Acquire, AcquireReply, InodeReply, LeaseMode, Release};

use super::MetaOp;
use super::make::file_record;
use super::remove::reap;
use crate::lease::{Claim, Want};
use crate::schema::Body;
use crate::txn::Txn;

impl MetaOp for Acquire {
    fn claims(&self, _: &Txn<'_>) -> Result<Vec<Claim>, Status> {
        let want = match self.mode {
            LeaseMode::Read => Want::Shared,
            LeaseMode::Write => Want::Alone,
        };
        Ok(vec![Claim { ino: self.ino, want }])
    }

    fn run(self, txn: &mut Txn<'_>, _: &[u8]) -> Result<AcquireReply, Status> {
        let inode = txn.inode(self.ino)?;
        let lease = txn.leases.grant(self.ino, txn.session, self.mode);
        let symlink = match &inode.body {
            Body::Symlink(to) => Some(to.clone()),
            _ => None,
        };
        let file = file_record(txn, &inode)?;
        Ok(AcquireReply { inode: InodeReply { attr: inode.attr, lease }, file, symlink })
    }
}

impl MetaOp for Release {
    fn claims(&self, _: &Txn<'_>) -> Result<Vec<Claim>, Status> {
        Ok(Vec::new())
    }

    fn run(self, txn: &mut Txn<'_>, _: &[u8]) -> Result<(), Status> {
        for (ino, number) in self.leases {
            txn.leases.release(ino, txn.session, number);
            reap(txn, ino)?;
        }
        Ok(())
    }
}
