//! Operations that move names, replace them, and exchange them.

use nuri_proto::Status;
use nuri_proto::change::S_IFCHR;
use nuri_proto::id::Ino;
use nuri_proto::op::meta::{
    Exclusive, Make, MakeKind, RemoveReply, Rename, RenameMode, RenameReply,
};
use nuri_rules::broken;

use super::MetaOp;
use super::make::check_same_shard;
use super::remove::drop_link;
use crate::lease::{Claim, Want};
use crate::namespace::schema::{Body, CookieEntry, Entry, Inode, cookie_key, entry_key};
use crate::namespace::txn::{Txn, check_name};

impl MetaOp for Rename {
    fn grows(&self) -> bool {
        self.mode.leaves_whiteout()
    }

    fn claims(&self, txn: &Txn<'_>) -> Result<Vec<Claim>, Status> {
        let replaced = txn.entry(self.new_parent, &self.new_name)?;
        let Some(moved) = txn.entry(self.parent, &self.name)? else {
            // Who has the directory alone may have the name.
            return Ok(vec![Claim { ino: self.parent, want: Want::Shared }]);
        };
        let mut inos = vec![self.parent, moved.ino];
        if self.new_parent != self.parent {
            inos.push(self.new_parent);
        }
        inos.extend(replaced.map(|e| e.ino).filter(|ino| *ino != moved.ino));
        Ok(inos.into_iter().map(|ino| Claim { ino, want: Want::Alone }).collect())
    }

    fn run(self, txn: &mut Txn<'_>, _: &[u8]) -> Result<RenameReply, Status> {
        check_name(&self.new_name)?;
        check_same_shard(self.parent, self.new_parent)?;
        let entry = txn.entry(self.parent, &self.name)?.ok_or(Status::NOENT)?;
        let other = txn.entry(self.new_parent, &self.new_name)?;
        let moved = txn.inode(entry.ino)?;
        if txn.directory(self.new_parent)?.attr.nlink == 0 {
            return Err(Status::NOENT);
        }
        if moved.is_dir() {
            refuse_loop(txn, moved.attr.ino, self.new_parent)?;
        }
        match (self.mode, other) {
            (mode, Some(_)) if !mode.may_replace() => Err(Status::EXIST),
            (RenameMode::Exchange, None) => Err(Status::NOENT),
            (RenameMode::Exchange, Some(other)) => exchange(&self, txn, entry, other),
            // Two names of one inode: POSIX says that nothing happens.
            (_, Some(other)) if other.ino == entry.ino => {
                Ok(RenameReply { moved: entry.ino, replaced: None })
            }
            (_, other) => replace(&self, txn, entry, moved, other),
        }
    }
}

/// A directory must not move below itself.
fn refuse_loop(txn: &Txn<'_>, moved: Ino, into: Ino) -> Result<(), Status> {
    let mut at = into;
    loop {
        if at == moved {
            return Err(Status::INVAL);
        }
        if at == Ino::ROOT {
            return Ok(());
        }
        let parent = txn.inode(at)?.as_dir()?.parent;
        if parent == at {
            return Ok(());
        }
        at = parent;
    }
}

fn replace(
    call: &Rename,
    txn: &mut Txn<'_>,
    entry: Entry,
    mut moved: Inode,
    other: Option<Entry>,
) -> Result<RenameReply, Status> {
    let mut replaced = None;
    if let Some(other) = other {
        replaced = Some(take_replaced(call, txn, &moved, other)?);
    }
    let mut from = txn.directory(call.parent)?;
    txn.remove_entry(&mut from, &call.name, entry);
    txn.put_inode(&from)?;
    let mut to = txn.directory(call.new_parent)?;
    if let Body::Directory(dir) = &mut moved.body {
        dir.parent = call.new_parent;
    }
    let is_within = call.parent == call.new_parent && !broken!("renamed_to_the_end");
    // What stays in its directory keeps a position there: who lists it meanwhile must not meet it
    // twice, or for ever.
    match other.filter(|_| !broken!("replaced_to_the_end")) {
        Some(other) => txn.add_entry_at(&mut to, other.cookie, &call.new_name, &moved)?,
        None if is_within => txn.add_entry_at(&mut to, entry.cookie, &call.new_name, &moved)?,
        None => txn.add_entry(&mut to, &call.new_name, &moved)?,
    }
    txn.put_inode(&to)?;
    txn.changed(&mut moved);
    txn.put_inode(&moved)?;
    if call.mode.leaves_whiteout() {
        leave_whiteout(call, txn)?;
    }
    Ok(RenameReply { moved: entry.ino, replaced })
}

/// What hides a name of the layers below one, as overlay file systems have it.
fn leave_whiteout(call: &Rename, txn: &mut Txn<'_>) -> Result<(), Status> {
    let (parent, name, kind) = (call.parent, call.name.clone(), MakeKind::Special { rdev: 0 });
    let (mode, umask, uid, gid, exclusive) = (S_IFCHR, 0, 0, 0, Exclusive::Yes);
    let make = Make { parent, name, kind, mode, umask, uid, gid, exclusive };
    make.run(txn, &[]).map(|_| ())
}

fn take_replaced(
    call: &Rename,
    txn: &mut Txn<'_>,
    moved: &Inode,
    other: Entry,
) -> Result<RemoveReply, Status> {
    let mut target = txn.inode(other.ino)?;
    match (moved.is_dir(), target.is_dir()) {
        (true, false) => return Err(Status::NOTDIR),
        (false, true) => return Err(Status::ISDIR),
        (true, true) if target.attr.size > 0 => return Err(Status::NOTEMPTY),
        _ => {}
    }
    let mut to = txn.directory(call.new_parent)?;
    txn.remove_entry(&mut to, &call.new_name, other);
    txn.put_inode(&to)?;
    drop_link(txn, &mut target)
}

fn exchange(call: &Rename, txn: &mut Txn<'_>, a: Entry, b: Entry) -> Result<RenameReply, Status> {
    if txn.inode(b.ino)?.is_dir() {
        refuse_loop(txn, b.ino, call.parent)?;
    }
    point(txn, (call.parent, &call.name, a), (call.new_parent, b))?;
    point(txn, (call.new_parent, &call.new_name, b), (call.parent, a))?;
    let other = RemoveReply { ino: b.ino, orphan: false };
    Ok(RenameReply { moved: a.ino, replaced: Some(other) })
}

/// Makes the name at `place` point to what `now` pointed to, keeping its position.
fn point(txn: &mut Txn<'_>, place: (Ino, &[u8], Entry), now: (Ino, Entry)) -> Result<(), Status> {
    let (parent, name, old) = place;
    let (from, new) = now;
    let (ino, kind, cookie) = (new.ino, new.kind, old.cookie);
    txn.put(entry_key(parent, name), &Entry { ino, cookie, kind })?;
    txn.put(cookie_key(parent, cookie), &CookieEntry { ino, kind, name: name.to_vec() })?;
    let mut inode = txn.inode(ino)?;
    if let Body::Directory(dir) = &mut inode.body {
        dir.parent = parent;
    }
    txn.changed(&mut inode);
    txn.put_inode(&inode)?;
    let mut dir = txn.directory(parent)?;
    let gained = u32::from(inode.is_dir());
    let lost = u32::from(txn.inode(old.ino)?.is_dir());
    if from != parent {
        dir.attr.nlink = dir.attr.nlink + gained - lost;
    }
    txn.touch(&mut dir);
    txn.note_name(&dir, name, Some((ino, inode.is_dir())));
    txn.put_inode(&dir)
}
