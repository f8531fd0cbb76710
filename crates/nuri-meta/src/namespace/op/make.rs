//! Operations that make files, directories, links and special files.

use nuri_proto::Status;
use nuri_proto::acl::Inherited;
use nuri_proto::change::{S_IFBLK, S_IFCHR, S_IFDIR, S_IFIFO, S_IFLNK, S_IFMT, S_IFREG, S_IFSOCK};
use nuri_proto::id::{Ino, ObjectId};
use nuri_proto::limit::{MAX_LINKS, MAX_SYMLINK};
use nuri_proto::op::meta::{
    Attr, EntryReply, Exclusive, FileRecord, InodeReply, LeaseMode, Link, Make, MakeKind,
    MakeReply, MakeUnnamed, UnnamedReply,
};
use nuri_proto::xattr::ACL_DEFAULT;
use nuri_rules::broken;

use super::MetaOp;
use crate::lease::{Claim, Want};
use crate::namespace::schema::{
    Body, Directory, FIRST_COOKIE, File, Inode, NAMELESS, inline_key, orphan_key, xattr_key,
};
use crate::namespace::txn::{Txn, check_name};

impl MetaOp for Make {
    fn grows(&self) -> bool {
        true
    }

    fn claims(&self, txn: &Txn<'_>) -> Result<Vec<Claim>, Status> {
        let claim = |ino, want| Claim { ino, want };
        Ok(match txn.entry(self.parent, &self.name)? {
            Some(entry) => {
                vec![claim(self.parent, Want::Shared), claim(entry.ino, Want::Shared)]
            }
            None => vec![claim(self.parent, Want::Alone)],
        })
    }

    fn run(self, txn: &mut Txn<'_>, _: &[u8]) -> Result<MakeReply, Status> {
        let mut parent = directory_of_new(txn, self.parent)?;
        if parent.attr.nlink == 0 {
            return Err(Status::NOENT);
        }
        if let Some(entry) = txn.entry(self.parent, &self.name)? {
            return existing(txn, &self, entry.ino);
        }
        let ino = next_ino(txn, self.parent);
        let inode = new_inode(&self, txn, &parent, ino)?;
        txn.add_entry(&mut parent, &self.name, &inode)?;
        txn.put_inode(&parent)?;
        txn.put_inode(&inode)?;
        txn.counters.inodes += 1;
        let mode = match inode.body {
            Body::File(_) | Body::Directory(_) => LeaseMode::Write,
            _ => LeaseMode::Read,
        };
        let lease = txn.leases.offer(inode.attr.ino, txn.session, mode);
        let inode_reply = InodeReply { attr: inode.attr, lease };
        let dir_lease = txn.dir_lease(self.parent);
        let entry = EntryReply { inode: inode_reply, dir_lease };
        let (file, parent) = (file_record(txn, &inode)?, Some(parent.attr));
        Ok(MakeReply { entry, parent, file, existed: false })
    }
}

impl MetaOp for MakeUnnamed {
    fn grows(&self) -> bool {
        true
    }

    fn claims(&self, _: &Txn<'_>) -> Result<Vec<Claim>, Status> {
        Ok(Vec::new())
    }

    fn run(self, txn: &mut Txn<'_>, _: &[u8]) -> Result<UnnamedReply, Status> {
        let parent = directory_of_new(txn, self.parent)?;
        if parent.attr.nlink == 0 {
            return Err(Status::NOENT);
        }
        let MakeUnnamed { parent: dir, mode, umask, uid, gid } = self;
        let (kind, exclusive) = (MakeKind::File, Exclusive::Yes);
        let name = Vec::new();
        let call = Make { parent: dir, name, kind, mode, umask, uid, gid, exclusive };
        let ino = next_ino(txn, dir);
        let mut inode = new_inode(&call, txn, &parent, ino)?;
        inode.attr.nlink = 0;
        txn.put_inode(&inode)?;
        txn.batch.put(orphan_key(ino), NAMELESS.to_vec());
        txn.counters.inodes += 1;
        // Whatever becomes of the lease: the session has it open.
        txn.leases.note_open(ino, txn.session);
        let lease = txn.leases.offer(ino, txn.session, LeaseMode::Write);
        let file = file_record(txn, &inode)?;
        Ok(UnnamedReply { inode: InodeReply { attr: inode.attr, lease }, file })
    }
}

fn existing(txn: &mut Txn<'_>, call: &Make, ino: Ino) -> Result<MakeReply, Status> {
    if call.exclusive == Exclusive::Yes || call.kind != MakeKind::File {
        return Err(Status::EXIST);
    }
    let inode = txn.inode(ino)?;
    let entry = EntryReply { inode: txn.reply(&inode), dir_lease: txn.dir_lease(call.parent) };
    Ok(MakeReply { entry, parent: None, file: file_record(txn, &inode)?, existed: true })
}

/// The file's record with its inline data, for a regular file.
pub(super) fn file_record(txn: &Txn<'_>, inode: &Inode) -> Result<Option<FileRecord>, Status> {
    let Body::File(file) = &inode.body else {
        return Ok(None);
    };
    // Only the server knows whether an empty file was ever on the targets.
    let is_bare = inode.attr.size == 0 && !file.on_targets;
    let inline = match file.inline {
        true => txn.raw(&inline_key(inode.attr.ino))?,
        false => is_bare.then(Vec::new),
    };
    Ok(Some(file.record(inline)))
}

/// In the directory's shard: what is made in a hidden directory is hidden.
fn next_ino(txn: &mut Txn<'_>, parent: Ino) -> Ino {
    txn.counters.next_ino += 1;
    Ino::new(parent.shard(), txn.counters.next_ino)
}

/// The directory that something is made in. That of the volumes is there when it is needed first.
fn directory_of_new(txn: &mut Txn<'_>, ino: Ino) -> Result<Inode, Status> {
    match txn.directory(ino) {
        Err(Status::STALE) if ino == Ino::VOLUMES => {
            txn.counters.inodes += 1;
            let volumes = Inode::new_directory(ino, ino, 0o700, txn.now);
            txn.put_inode(&volumes)?;
            Ok(volumes)
        }
        found => found,
    }
}

/// The inode that the call makes, in the directory.
pub(super) fn new_inode(
    call: &Make,
    txn: &mut Txn<'_>,
    parent: &Inode,
    ino: Ino,
) -> Result<Inode, Status> {
    let inherited = match call.kind {
        MakeKind::Symlink(_) => Inherited::by_link(),
        _ => inherit(call, txn)?,
    };
    let permissions = inherited.mode;
    let (mode, body, size) = match &call.kind {
        MakeKind::File => (S_IFREG | permissions, new_file(txn, parent)?, 0),
        MakeKind::Directory => {
            let policy = parent.as_dir()?.policy;
            let next_cookie = FIRST_COOKIE;
            let body = Directory { parent: call.parent, next_cookie, policy };
            (S_IFDIR | permissions, Body::Directory(body), 0)
        }
        MakeKind::Symlink(to) => {
            if to.is_empty() || to.len() > MAX_SYMLINK {
                return Err(if to.is_empty() { Status::NOENT } else { Status::NAMETOOLONG });
            }
            (S_IFLNK | permissions, Body::Symlink(to.clone()), to.len() as u64)
        }
        MakeKind::Special { .. } => {
            let kind = call.mode & S_IFMT;
            if ![S_IFIFO, S_IFSOCK, S_IFCHR, S_IFBLK].contains(&kind) {
                return Err(Status::INVAL);
            }
            (kind | permissions, Body::Special, 0)
        }
    };
    let rdev = if let MakeKind::Special { rdev } = call.kind { rdev } else { 0 };
    let made = parent.attr.made(mode, (call.uid, call.gid), txn.now);
    let attr = Attr { ino, rdev, size, change: inherited.change(), ..made };
    for (name, list) in inherited.into_xattrs() {
        txn.batch.put(xattr_key(ino, name), list);
    }
    Ok(Inode { attr, tree: parent.tree, body })
}

/// What the directory hands down.
fn inherit(call: &Make, txn: &Txn<'_>) -> Result<Inherited, Status> {
    let list = txn.raw(&xattr_key(call.parent, ACL_DEFAULT))?;
    let (asked, is_dir) = ((call.mode & 0o7777, call.umask), call.kind == MakeKind::Directory);
    let inherited = Inherited::from_directory(list.as_deref(), asked, is_dir);
    inherited.map_err(|_| Status::CORRUPT)
}

fn new_file(txn: &mut Txn<'_>, parent: &Inode) -> Result<Body, Status> {
    let policy = parent.as_dir()?.policy.unwrap_or_else(|| txn.default_policy());
    let groups = txn.cluster.groups(policy.pool, policy.shape)?;
    if groups.is_empty() {
        return Err(Status::RETRY);
    }
    txn.counters.next_object += 1;
    let object = ObjectId(txn.counters.next_object);
    Ok(Body::File(File {
        object,
        layout: policy.instantiate(&groups, object.0),
        truncate_version: 0,
        inline: false,
        on_targets: false,
        punch_from: None,
        grown_from: None,
    }))
}

/// Refuses a name that leads from one shard into another, so that a hidden inode stays hidden.
pub(super) fn check_same_shard(ino: Ino, dir: Ino) -> Result<(), Status> {
    let is_same = ino.shard() == dir.shard() || broken!("volumes_get_names");
    if is_same { Ok(()) } else { Err(Status::XDEV) }
}

impl MetaOp for Link {
    fn grows(&self) -> bool {
        true
    }

    fn claims(&self, _: &Txn<'_>) -> Result<Vec<Claim>, Status> {
        check_name(&self.name)?;
        let alone = |ino| Claim { ino, want: Want::Alone };
        Ok(vec![alone(self.parent), alone(self.ino)])
    }

    fn run(self, txn: &mut Txn<'_>, _: &[u8]) -> Result<EntryReply, Status> {
        let mut parent = txn.directory(self.parent)?;
        if parent.attr.nlink == 0 {
            return Err(Status::NOENT);
        }
        if txn.entry(self.parent, &self.name)?.is_some() {
            return Err(Status::EXIST);
        }
        let mut inode = txn.inode(self.ino)?;
        if inode.is_dir() {
            return Err(Status::PERM);
        }
        check_same_shard(self.ino, self.parent)?;
        if inode.attr.nlink == 0 {
            // Only what never had a name can be given one.
            if txn.raw(&orphan_key(self.ino))?.as_deref() != Some(NAMELESS) {
                return Err(Status::NOENT);
            }
            txn.delete(orphan_key(self.ino));
        }
        if inode.attr.nlink >= MAX_LINKS {
            return Err(Status::MLINK);
        }
        inode.attr.link_added(txn.now);
        txn.add_entry(&mut parent, &self.name, &inode)?;
        txn.put_inode(&parent)?;
        txn.put_inode(&inode)?;
        Ok(EntryReply { inode: txn.reply(&inode), dir_lease: txn.dir_lease(self.parent) })
    }
}
