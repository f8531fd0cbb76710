//! Operations that acquire leases and give them back.

use nuri_proto::Status;
use nuri_proto::change::CAPABILITY;
use nuri_proto::limit::{MAX_AHEAD, MAX_CHILDREN};
use nuri_proto::op::log::{Children, ChildrenReply, DirectoryTaken, TakeDirectory};
use nuri_proto::op::meta::{Acquire, AcquireReply, InodeReply, LeaseMode, Release};
use nuri_proto::op::part::{AcquirePart, AcquirePartReply, Ahead};
use nuri_proto::xattr::ACL_DEFAULT;
use nuri_rules::broken;

use super::MetaOp;
use super::make::file_record;
use super::remove::reap;
use crate::lease::directory_delegation::Taken;
use crate::lease::{Claim, Want};
use crate::namespace::schema::{Body, xattr_key};
use crate::namespace::txn::Txn;

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

/// Whether the call is answered with a part of the file. One that lies with its inode, or has bytes
/// of a dead writer beyond its size, is for one writer alone.
fn is_in_parts(txn: &Txn<'_>, call: &AcquirePart) -> Result<bool, Status> {
    if !txn.leases.is_in_parts(call.ino, txn.session) {
        return Ok(false);
    }
    let inode = txn.inode(call.ino)?;
    let Body::File(file) = &inode.body else { return Ok(false) };
    // What is written in parts grows.
    let is_clean = file.grown_from.is_none() || txn.leases.has_parts(call.ino);
    Ok(file.on_targets && !file.inline && file.punch_from.is_none() && is_clean)
}

impl MetaOp for AcquirePart {
    fn claims(&self, txn: &Txn<'_>) -> Result<Vec<Claim>, Status> {
        let want = if is_in_parts(txn, self)? { Want::Part(self.need) } else { Want::Alone };
        Ok(vec![Claim { ino: self.ino, want }])
    }

    fn run(self, txn: &mut Txn<'_>, _: &[u8]) -> Result<AcquirePartReply, Status> {
        if !self.need.is_valid() {
            return Err(Status::INVAL);
        }
        let inode = txn.inode(self.ino)?;
        let mut reply = AcquirePartReply {
            inode: InodeReply { attr: inode.attr, lease: None },
            part: None,
            has_capability: txn.raw(&xattr_key(self.ino, CAPABILITY))?.is_some(),
            file: None,
        };
        let in_parts = is_in_parts(txn, &self)?;
        if in_parts {
            let count = self.ahead.count.min(MAX_AHEAD);
            let ahead = Ahead { count, ..self.ahead };
            reply.part = txn.leases.grant_part(self.ino, txn.session, self.need, ahead);
        } else {
            reply.inode.lease = txn.leases.grant(self.ino, txn.session, LeaseMode::Write);
        }
        if !in_parts || !self.known {
            reply.file = file_record(txn, &inode)?;
        }
        Ok(reply)
    }
}

impl MetaOp for TakeDirectory {
    fn claims(&self, _: &Txn<'_>) -> Result<Vec<Claim>, Status> {
        Ok(vec![Claim { ino: self.ino, want: Want::Alone }])
    }

    fn run(self, txn: &mut Txn<'_>, _: &[u8]) -> Result<DirectoryTaken, Status> {
        let TakeDirectory { ino: dir, known } = self;
        let attr = txn.directory(dir)?.attr;
        let is_bare = txn.raw(&xattr_key(dir, ACL_DEFAULT))?.is_none();
        // A directory that is taken once is nobody else's, mostly.
        if known.is_some() {
            txn.recent.follow(dir, attr.change);
        }
        let changes = known.and_then(|known| txn.recent.since(dir, known, txn.session));
        txn.tells_of_all();
        let unread = if changes.is_some() { 0 } else { attr.size };
        txn.taken = Some(Taken { dir, unread });
        let lease = txn.leases.grant(dir, txn.session, LeaseMode::Write);
        Ok(DirectoryTaken { inode: InodeReply { attr, lease }, is_bare, changes })
    }
}

impl MetaOp for Children {
    fn claims(&self, _: &Txn<'_>) -> Result<Vec<Claim>, Status> {
        Ok(Vec::new())
    }

    fn run(self, txn: &mut Txn<'_>, _: &[u8]) -> Result<ChildrenReply, Status> {
        if self.inos.len() > MAX_CHILDREN {
            return Err(Status::INVAL);
        }
        let held = txn.leases.held(self.dir, txn.session);
        let is_alone = held == Some(LeaseMode::Write) || broken!("children_of_others");
        let mut inodes = Vec::new();
        for ino in self.inos.into_iter().filter(|_| is_alone) {
            if txn.leases.written_elsewhere(ino, txn.session) {
                continue;
            }
            match txn.inode(ino) {
                Ok(inode) => inodes.push(txn.reply_in(self.dir, &inode)),
                Err(Status::STALE) => {}
                Err(status) => return Err(status),
            }
        }
        Ok(ChildrenReply { inodes })
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
