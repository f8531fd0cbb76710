//! Extended attributes.

use nuri_proto::Status;
use nuri_proto::change::S_ISGID;
use nuri_proto::id::Ino;
use nuri_proto::limit::{MAX_NAME, MAX_XATTR_LIST, MAX_XATTR_VALUE};
use nuri_proto::op::meta::{SetGroupId, XattrGet, XattrList, XattrMode, XattrRemove, XattrSet};

use super::MetaOp;
use crate::lease::{Claim, Want};
use crate::namespace::acl::{self, Acl};
use crate::namespace::schema::{key_tail, xattr_key, xattr_prefix};
use crate::namespace::txn::Txn;

fn alone(ino: Ino) -> Result<Vec<Claim>, Status> {
    Ok(vec![Claim { ino, want: Want::Alone }])
}

fn names(txn: &Txn<'_>, ino: Ino) -> Result<Vec<Vec<u8>>, Status> {
    let prefix = xattr_prefix(ino);
    let pairs = txn.scan(&prefix, &prefix, usize::MAX)?;
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
    fn grows(&self) -> bool {
        true
    }

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
        if self.name == acl::ACCESS || self.name == acl::DEFAULT {
            return set_list(self, txn);
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

/// An access control list: the mode follows, and a list that only repeats the mode is none.
fn set_list(call: XattrSet, txn: &mut Txn<'_>) -> Result<(), Status> {
    let acl = Acl::parse(&call.value)?;
    let mut inode = txn.inode(call.ino)?;
    let key = xattr_key(call.ino, &call.name);
    if call.name == acl::DEFAULT {
        inode.as_dir()?;
        txn.batch.put(key, acl.encode());
    } else {
        inode.attr.mode = inode.attr.mode & !0o777 | acl.mode();
        if call.group_id == SetGroupId::Drop {
            inode.attr.mode &= !S_ISGID;
        }
        if acl.is_plain() {
            txn.delete(key);
        } else {
            txn.batch.put(key, acl.encode());
        }
    }
    txn.changed(&mut inode);
    txn.put_inode(&inode)
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
