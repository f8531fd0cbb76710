//! Operations that remove names, and the inodes that lost their last name.

use nuri_proto::Status;
use nuri_proto::id::Ino;
use nuri_proto::op::meta::{OrphanRelease, RemoveKind, RemoveReply, Unlink, UnlinkReply};

use super::MetaOp;
use crate::lease::{Claim, Want};
use crate::namespace::schema::{
    Body, GarbageRecord, Inode, done_prefix, garbage_key, inline_key, inode_key, orphan_key,
    xattr_prefix,
};
use crate::namespace::txn::Txn;

impl MetaOp for Unlink {
    fn claims(&self, txn: &Txn<'_>) -> Result<Vec<Claim>, Status> {
        let Some(entry) = txn.entry(self.parent, &self.name)? else {
            // Who has the directory alone may have the name.
            return Ok(vec![Claim { ino: self.parent, want: Want::Shared }]);
        };
        let alone = |ino| Claim { ino, want: Want::Alone };
        Ok(vec![alone(self.parent), alone(entry.ino)])
    }

    fn run(self, txn: &mut Txn<'_>, _: &[u8]) -> Result<UnlinkReply, Status> {
        let mut parent = txn.directory(self.parent)?;
        let entry = txn.entry(self.parent, &self.name)?.ok_or(Status::NOENT)?;
        let mut inode = txn.inode(entry.ino)?;
        match (self.kind, inode.is_dir()) {
            (RemoveKind::File, true) => return Err(Status::ISDIR),
            (RemoveKind::Directory, false) => return Err(Status::NOTDIR),
            (RemoveKind::Directory, true) if inode.attr.size > 0 => return Err(Status::NOTEMPTY),
            _ => {}
        }
        txn.remove_entry(&mut parent, &self.name, entry);
        txn.put_inode(&parent)?;
        Ok(UnlinkReply { removed: drop_link(txn, &mut inode)?, parent: parent.attr })
    }
}

/// Notes that one name of the inode is gone. Without its last name the inode is an orphan, which
/// lives while some session may have it open.
pub(crate) fn drop_link(txn: &mut Txn<'_>, inode: &mut Inode) -> Result<RemoveReply, Status> {
    let ino = inode.attr.ino;
    inode.attr.link_dropped(txn.now);
    let orphan = inode.attr.nlink == 0;
    let is_wanted = !txn.leases.interested(ino).is_empty();
    if orphan && !is_wanted && !txn.deferred.stays(ino) {
        drop_inode(txn, inode)?;
        return Ok(RemoveReply { ino, orphan: false });
    }
    if orphan && !is_wanted {
        txn.batch.put(orphan_key(ino), Vec::new());
        txn.lingers.push(ino);
        txn.put_inode(inode)?;
        return Ok(RemoveReply { ino, orphan: false });
    }
    if orphan {
        txn.batch.put(orphan_key(ino), Vec::new());
        txn.orphaned.push(ino);
    }
    txn.put_inode(inode)?;
    Ok(RemoveReply { ino, orphan })
}

/// Removes the inode; its object becomes garbage.
pub(crate) fn drop_inode(txn: &mut Txn<'_>, inode: &Inode) -> Result<(), Status> {
    let ino = inode.attr.ino;
    txn.delete(inode_key(ino));
    txn.delete(orphan_key(ino));
    if let Body::File(file) = &inode.body {
        if file.inline {
            txn.delete(inline_key(ino));
        }
        if file.may_have_data(inode.attr.size) {
            let layout = file.layout.clone();
            txn.put(garbage_key(file.object), &GarbageRecord { layout })?;
        }
    }
    // Only hidden files stand for addresses.
    let done = ino.is_hidden().then(|| done_prefix(ino));
    for prefix in [xattr_prefix(ino)].into_iter().chain(done) {
        let tails = txn.scan_all(&prefix)?;
        tails.into_keys().for_each(|key| txn.delete(key));
    }
    txn.counters.inodes = txn.counters.inodes.saturating_sub(1);
    txn.counters.allocated = txn.counters.allocated.saturating_sub(inode.attr.allocated);
    Ok(())
}

/// Drops the orphan if no session may have it open any more. An orphan that a reply named just now
/// stays a little.
pub(crate) fn reap(txn: &mut Txn<'_>, ino: Ino) -> Result<(), Status> {
    if txn.raw(&orphan_key(ino))?.is_none() || !txn.leases.interested(ino).is_empty() {
        return Ok(());
    }
    if txn.deferred.stays(ino) {
        txn.lingers.push(ino);
        return Ok(());
    }
    match txn.inode(ino) {
        Ok(inode) => drop_inode(txn, &inode),
        Err(Status::STALE) => {
            txn.delete(orphan_key(ino));
            Ok(())
        }
        Err(status) => Err(status),
    }
}

impl MetaOp for OrphanRelease {
    fn claims(&self, _: &Txn<'_>) -> Result<Vec<Claim>, Status> {
        Ok(Vec::new())
    }

    fn run(self, txn: &mut Txn<'_>, _: &[u8]) -> Result<(), Status> {
        for ino in self.inos {
            // Only orphans: a lease on a living inode is given back by `Release`.
            if txn.raw(&orphan_key(ino))?.is_some() {
                txn.forget(ino);
                reap(txn, ino)?;
            }
        }
        Ok(())
    }
}
