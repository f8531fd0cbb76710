//! Extended attributes.

use nuri_proto::Status;
use nuri_proto::id::Ino;
use nuri_proto::limit::{MAX_NAME, MAX_XATTR_LIST, MAX_XATTR_VALUE};
use nuri_proto::op::meta::{XattrGet, XattrList, XattrMode, XattrRemove, XattrSet};

use super::MetaOp;
use crate::lease::{Claim, Want};
use crate::schema::{key_tail, xattr_key, xattr_prefix};
use crate::txn::{Txn, kv_status};

fn alone(ino: Ino) -> Result<Vec<Claim>, Status> {
    Ok(vec![Claim { ino, want: Want::Alone }])
}

fn names(txn: &Txn<'_>, ino: Ino) -> Result<Vec<Vec<u8>>, Status> {
    let prefix = xattr_prefix(ino);
    let pairs = txn.engine.scan(&prefix, &prefix, usize::MAX).map_err(|e| kv_status(&e))?;
    Ok(pairs.iter().map(|(key, _)| key_tail(key).to_vec()).collect())
}

fn note_change(txn: &mut Txn<'_>, ino: Ino) -> Result<(), Status> {
    let mut inode = txn.inode(ino)?;
    txn.changed(&mut inode);
    txn.put_inode(&inode)
}

impl MetaOp for XattrGet {
    fn claims(&self, _: &Txn<'_>) -> Result<Vec<Claim>, Status> {
        Ok(Vec::new())
    }

    fn run(self, txn: &mut Txn<'_>, _: &[u8]) -> Result<Vec<u8>, Status> {
        txn.raw(&xattr_key(self.ino, &self.name))?.ok_or(Status::NODATA)
    }
}

impl MetaOp for XattrSet {
    fn claims(&self, _: &Txn<'_>) -> Result<Vec<Claim>, Status> {
        alone(self.ino)
    }

    fn run(self, txn: &mut Txn<'_>, _: &[u8]) -> Result<(), Status> {
        if self.name.is_empty() || self.name.len() > MAX_NAME {
            return Err(Status::RANGE);
        }
        if self.value.len() > MAX_XATTR_VALUE {
            return Err(Status(7));
        }
        let key = xattr_key(self.ino, &self.name);
        match (self.mode, txn.raw(&key)?.is_some()) {
            (XattrMode::Create, true) => return Err(Status::EXIST),
            (XattrMode::Replace, false) => return Err(Status::NODATA),
            (_, false) => {
                let used: usize = names(txn, self.ino)?.iter().map(|n| n.len() + 1).sum();
                if used + self.name.len() + 1 > MAX_XATTR_LIST {
                    return Err(Status::NOSPC);
                }
            }
            _ => {}
        }
        txn.batch.put(key, self.value);
        note_change(txn, self.ino)
    }
}

impl MetaOp for XattrList {
    fn claims(&self, _: &Txn<'_>) -> Result<Vec<Claim>, Status> {
        Ok(Vec::new())
    }

    fn run(self, txn: &mut Txn<'_>, _: &[u8]) -> Result<Vec<Vec<u8>>, Status> {
        txn.inode(self.ino)?;
        names(txn, self.ino)
    }
}

impl MetaOp for XattrRemove {
    fn claims(&self, _: &Txn<'_>) -> Result<Vec<Claim>, Status> {
        alone(self.ino)
    }

    fn run(self, txn: &mut Txn<'_>, _: &[u8]) -> Result<(), Status> {
        let key = xattr_key(self.ino, &self.name);
        if txn.raw(&key)?.is_none() {
            return Err(Status::NODATA);
        }
        txn.delete(key);
        note_change(txn, self.ino)
    }
}
