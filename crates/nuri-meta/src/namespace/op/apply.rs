//! Applies a client's journal: the operations that the client answered by itself, in order, all or
//! none.
//!
//! JOURNAL-1 A step changes only inodes whose write lease its session holds. Otherwise another
//!    client might have seen the state from before.
//! JOURNAL-2 Steps are one transaction together with the reply slot, in the client's order. No step
//!    survives without an earlier one, and no step is done twice. Steps that could not be done
//!    leave the leases as they were, so that the client can hand them over again.

use nuri_proto::Status;
use nuri_proto::id::Ino;
use nuri_proto::op::log::{Applied, Apply, Change, Fate, Reserve, Reserved, Step};
use nuri_proto::op::meta::{
    Extend, FileRecord, Grant, LeaseMode, Link, Make, Publish, PublishData, Rename, Unlink,
};
use nuri_rules::broken;

use super::MetaOp;
use super::make::{file_record, new_inode};
use super::xattr;
use crate::lease::Claim;
use crate::namespace::schema::{Body, counters_key, inode_key};
use crate::namespace::txn::Txn;

/// Most numbers that one call takes.
const MAX_RESERVED: u32 = 65_536;

impl MetaOp for Reserve {
    fn grows(&self) -> bool {
        true
    }

    fn claims(&self, _: &Txn<'_>) -> Result<Vec<Claim>, Status> {
        Ok(Vec::new())
    }

    fn run(self, txn: &mut Txn<'_>, _: &[u8]) -> Result<Reserved, Status> {
        let count = self.count.clamp(1, MAX_RESERVED);
        let first = Ino::new(0, txn.counters.next_ino + 1);
        txn.counters.next_ino += u64::from(count);
        let counters = *txn.counters;
        txn.put(counters_key(), &counters)?;
        Ok(Reserved { first, count })
    }
}

impl MetaOp for Apply {
    fn claims(&self, _: &Txn<'_>) -> Result<Vec<Claim>, Status> {
        Ok(Vec::new())
    }

    fn run(self, txn: &mut Txn<'_>, payload: &[u8]) -> Result<Applied, Status> {
        let (mut made, mut placed, mut inline) = (Vec::new(), Vec::new(), payload);
        // The client learns of the leases of what it made, and of no later numbers.
        txn.offers = false;
        for Step { at, change } in self.steps {
            txn.now = at;
            txn.saw(at);
            match change {
                Change::Make(ino, call) => made.push(make(txn, ino, &call)?),
                Change::Unlink(call, fate) => unlink(txn, call, fate)?,
                Change::Rename(call, fate) => rename(txn, call, fate)?,
                Change::SetAttr(call) => {
                    check_alone(txn, call.ino)?;
                    if call.size.is_some_and(|size| size > 0) {
                        return Err(Status::INVAL);
                    }
                    call.run(txn, &[])?;
                }
                Change::Link(call) => link(txn, call)?,
                Change::XattrSet(call) => {
                    check_alone(txn, call.ino)?;
                    call.run(txn, &[])?;
                }
                Change::XattrRemove(call) => {
                    check_alone(txn, call.ino)?;
                    xattr::remove_if_set(txn, &call)?;
                }
                Change::Publish(call) => inline = publish(txn, call, inline)?,
                Change::Extend(call) => placed.push(extend(txn, call)?),
            }
        }
        if inline.is_empty() { Ok(Applied { made, placed }) } else { Err(Status::MALFORMED) }
    }
}

/// JOURNAL-1
fn check_alone(txn: &Txn<'_>, ino: Ino) -> Result<(), Status> {
    let alone = txn.leases.held(ino, txn.session) == Some(LeaseMode::Write);
    if alone || broken!("apply_unleased") { Ok(()) } else { Err(Status::STALE) }
}

fn make(txn: &mut Txn<'_>, ino: Ino, call: &Make) -> Result<Option<Grant>, Status> {
    check_alone(txn, call.parent)?;
    let is_reserved = ino > Ino::ROOT && ino <= Ino::new(0, txn.counters.next_ino);
    // Hidden inodes are numbered here.
    let is_reserved = is_reserved && !call.parent.is_hidden();
    if !is_reserved || txn.raw(&inode_key(ino))?.is_some() {
        return Err(Status::INVAL);
    }
    let mut parent = txn.directory(call.parent)?;
    if parent.attr.nlink == 0 {
        return Err(Status::NOENT);
    }
    if txn.entry(call.parent, &call.name)?.is_some() {
        return Err(Status::EXIST);
    }
    let inode = new_inode(call, txn, &parent, ino)?;
    txn.add_entry(&mut parent, &call.name, &inode)?;
    txn.put_inode(&parent)?;
    txn.put_inode(&inode)?;
    txn.counters.inodes += 1;
    Ok(txn.leases.grant(ino, txn.session, LeaseMode::Write))
}

/// What never had a name is given one by the server itself.
fn link(txn: &mut Txn<'_>, call: Link) -> Result<(), Status> {
    check_alone(txn, call.parent)?;
    check_alone(txn, call.ino)?;
    if txn.inode(call.ino)?.attr.nlink == 0 {
        return Err(Status::INVAL);
    }
    call.run(txn, &[]).map(|_| ())
}

fn unlink(txn: &mut Txn<'_>, call: Unlink, fate: Fate) -> Result<(), Status> {
    check_alone(txn, call.parent)?;
    let entry = txn.entry(call.parent, &call.name)?.ok_or(Status::NOENT)?;
    lose_name(txn, entry.ino, fate)?;
    call.run(txn, &[]).map(|_| ())
}

fn rename(txn: &mut Txn<'_>, call: Rename, fate: Fate) -> Result<(), Status> {
    check_alone(txn, call.parent)?;
    check_alone(txn, call.new_parent)?;
    let moved = txn.entry(call.parent, &call.name)?.ok_or(Status::NOENT)?;
    check_alone(txn, moved.ino)?;
    check_harmless(txn, &call, moved.ino)?;
    if let Some(replaced) = txn.entry(call.new_parent, &call.new_name)?
        && replaced.ino != moved.ino
    {
        lose_name(txn, replaced.ino, fate)?;
    }
    call.run(txn, &[]).map(|_| ())
}

/// JOURNAL-7 No journalled rename puts a directory where another client's rename, which the
/// server may have done meanwhile, could make a loop of the two: it stays in its parent, or has no
/// directories in it, and its lease keeps others from moving one there.
fn check_harmless(txn: &Txn<'_>, call: &Rename, moved: Ino) -> Result<(), Status> {
    let attr = txn.inode(moved)?.attr;
    let is_harmless = !attr.is_dir() || call.parent == call.new_parent || attr.nlink == 2;
    if is_harmless || broken!("log_moves_trees") { Ok(()) } else { Err(Status::INVAL) }
}

/// The inode is about to lose a name. If it is the last one and the session does not need the
/// inode any more, it goes at once, unless others have it open.
fn lose_name(txn: &mut Txn<'_>, ino: Ino, fate: Fate) -> Result<(), Status> {
    check_alone(txn, ino)?;
    let inode = txn.inode(ino)?;
    let is_last = inode.attr.nlink <= 1 || matches!(inode.body, Body::Directory(_));
    if is_last && fate == Fate::Dropped {
        txn.forget(ino);
    }
    Ok(())
}

fn extend(txn: &mut Txn<'_>, call: Extend) -> Result<FileRecord, Status> {
    let ino = call.ino;
    check_alone(txn, ino)?;
    call.run(txn, &[])?;
    let inode = txn.inode(ino)?;
    let record = file_record(txn, &inode)?.ok_or(Status::INVAL)?;
    // The client has its bytes, and many places must fit into one answer.
    Ok(FileRecord { inline: None, ..record })
}

/// Returns the payload that is left.
fn publish<'p>(txn: &mut Txn<'_>, call: Publish, payload: &'p [u8]) -> Result<&'p [u8], Status> {
    check_alone(txn, call.ino)?;
    let len = usize::try_from(call.size).unwrap_or(usize::MAX);
    if call.data != PublishData::Inline || len > payload.len() {
        return Err(Status::MALFORMED);
    }
    let (own, rest) = payload.split_at(len);
    call.run(txn, own)?;
    Ok(rest)
}
