//! Operations on extended attributes.

use nuri_proto::Status;
use nuri_proto::id::Ino;
use nuri_proto::limit::MAX_XATTRS_READ;
use nuri_proto::op::meta::{XattrAll, XattrGet, XattrList, XattrRemove, XattrSet};
use nuri_proto::xattr::is_acl;

use super::MetaOp;
use crate::lease::{Claim, Want};
use crate::namespace::schema::{key_tail, xattr_key, xattr_prefix};
use crate::namespace::txn::Txn;

fn alone(ino: Ino) -> Result<Vec<Claim>, Status> {
    Ok(vec![Claim { ino, want: Want::Alone }])
}

/// Who has the inode alone may have changed its attributes by its log.
fn shared(ino: Ino) -> Result<Vec<Claim>, Status> {
    Ok(vec![Claim { ino, want: Want::Shared }])
}

fn names(txn: &Txn<'_>, ino: Ino) -> Result<Vec<Vec<u8>>, Status> {
    let pairs = txn.scan_all(&xattr_prefix(ino))?;
    Ok(pairs.keys().map(|key| key_tail(key).to_vec()).collect())
}

fn note_change(txn: &mut Txn<'_>, ino: Ino) -> Result<(), Status> {
    let mut inode = txn.inode(ino)?;
    txn.changed(&mut inode);
    txn.put_inode(&inode)
}

impl MetaOp for XattrGet {
    fn claims(&self, _: &Txn<'_>) -> Result<Vec<Claim>, Status> {
        shared(self.ino)
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
        self.check_lengths()?;
        if is_acl(&self.name) {
            return set_list(self, txn);
        }
        let there = names(txn, self.ino)?;
        self.check(there.iter().map(Vec::as_slice))?;
        txn.batch.put(xattr_key(self.ino, &self.name), self.value);
        note_change(txn, self.ino)
    }
}

fn set_list(call: XattrSet, txn: &mut Txn<'_>) -> Result<(), Status> {
    let mut inode = txn.inode(call.ino)?;
    let list = call.set_list(&mut inode.attr)?;
    let key = xattr_key(call.ino, &call.name);
    match list {
        Some(list) => txn.batch.put(key, list),
        None => txn.delete(key),
    }
    txn.changed(&mut inode);
    txn.put_inode(&inode)
}

impl MetaOp for XattrList {
    fn claims(&self, _: &Txn<'_>) -> Result<Vec<Claim>, Status> {
        shared(self.ino)
    }

    fn run(self, txn: &mut Txn<'_>, _: &[u8]) -> Result<Vec<Vec<u8>>, Status> {
        txn.inode(self.ino)?;
        names(txn, self.ino)
    }
}

impl MetaOp for XattrAll {
    fn claims(&self, _: &Txn<'_>) -> Result<Vec<Claim>, Status> {
        shared(self.ino)
    }

    fn run(self, txn: &mut Txn<'_>, _: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>, Status> {
        txn.inode(self.ino)?;
        let pairs = txn.scan_all(&xattr_prefix(self.ino))?;
        let pair = |(key, value): (Vec<u8>, Vec<u8>)| (key_tail(&key).to_vec(), value);
        let all: Vec<_> = pairs.into_iter().map(pair).collect();
        let bytes: usize = all.iter().map(|(name, value)| name.len() + value.len()).sum();
        if bytes > MAX_XATTRS_READ { Err(Status::FBIG) } else { Ok(all) }
    }
}

impl MetaOp for XattrRemove {
    fn claims(&self, _: &Txn<'_>) -> Result<Vec<Claim>, Status> {
        alone(self.ino)
    }

    fn run(self, txn: &mut Txn<'_>, _: &[u8]) -> Result<(), Status> {
        if txn.raw(&xattr_key(self.ino, &self.name))?.is_none() {
            return Err(Status::NODATA);
        }
        remove_if_set(txn, &self)
    }
}

/// Removes an attribute that the caller knows to be set.
pub(super) fn remove_if_set(txn: &mut Txn<'_>, call: &XattrRemove) -> Result<(), Status> {
    txn.delete(xattr_key(call.ino, &call.name));
    note_change(txn, call.ino)
}
