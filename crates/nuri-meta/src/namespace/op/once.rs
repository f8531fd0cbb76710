//! Changes that are made once although two sessions ask for them (`nuri_proto::op::once`): what was
//! done is remembered in the transaction of the change.

use nuri_proto::op::meta::{Link, Make, MakeReply, Rename, Unlink};
use nuri_proto::op::once::{
    CallDone, CallKey, CallsDone, CallsDoneReply, ChangeOnce, ChangeOnceReply, MOST_FORGOTTEN,
    NameChange, Remember,
};
use nuri_proto::{Status, codec};
use nuri_rules::broken;

use super::MetaOp;
use crate::lease::Claim;
use crate::namespace::schema::{self, DoneRecord, done_key, done_prefix};
use crate::namespace::txn::Txn;

/// Of one answer.
const MOST: u32 = 1024;

fn was_done(txn: &Txn<'_>, done: &Remember) -> Result<bool, Status> {
    let Remember { place, key, ref forget, .. } = *done;
    // Only hidden files stand for addresses.
    if !place.is_hidden() || forget.len() > MOST_FORGOTTEN {
        return Err(Status::INVAL);
    }
    Ok(txn.raw(&done_key(place, key))?.is_some() && !broken!("done_twice"))
}

impl MetaOp for ChangeOnce {
    fn claims(&self, txn: &Txn<'_>) -> Result<Vec<Claim>, Status> {
        if was_done(txn, &self.done)? {
            return Ok(Vec::new());
        }
        match &self.change {
            NameChange::Make(change) => change.claims(txn),
            NameChange::Link(change) => change.claims(txn),
            NameChange::Unlink(change) => change.claims(txn),
            NameChange::Rename(change) => change.claims(txn),
        }
    }

    fn grows(&self) -> bool {
        match &self.change {
            NameChange::Make(change) => Make::grows(change),
            NameChange::Link(change) => Link::grows(change),
            NameChange::Unlink(change) => Unlink::grows(change),
            NameChange::Rename(change) => Rename::grows(change),
        }
    }

    fn run(self, txn: &mut Txn<'_>, payload: &[u8]) -> Result<ChangeOnceReply, Status> {
        if was_done(txn, &self.done)? {
            return Err(Status::DONE_BEFORE);
        }
        txn.inode(self.done.place)?;
        let (reply, made) = match self.change {
            NameChange::Make(change) => {
                let reply: MakeReply = change.run(txn, payload)?;
                (codec::encode(&reply)?, Some(reply.entry.inode.attr.ino))
            }
            NameChange::Link(change) => (codec::encode(&change.run(txn, payload)?)?, None),
            NameChange::Unlink(change) => (codec::encode(&change.run(txn, payload)?)?, None),
            NameChange::Rename(change) => (codec::encode(&change.run(txn, payload)?)?, None),
        };
        let Remember { place, key, number, forget } = self.done;
        txn.put(done_key(place, key), &DoneRecord { number, made })?;
        let older = forget.into_iter().filter(|older| *older != key);
        older.for_each(|older| txn.delete(done_key(place, older)));
        Ok(ChangeOnceReply { reply })
    }
}

impl MetaOp for CallsDone {
    fn claims(&self, _: &Txn<'_>) -> Result<Vec<Claim>, Status> {
        Ok(Vec::new())
    }

    fn run(self, txn: &mut Txn<'_>, _: &[u8]) -> Result<CallsDoneReply, Status> {
        txn.tells_of_all();
        let prefix = done_prefix(self.place);
        let after = self.after.map_or(prefix.clone(), |key| done_key(self.place, key));
        let found = txn.scan(&prefix, &after, self.max.min(MOST) as usize)?;
        let call = |(key, value): (Vec<u8>, Vec<u8>)| {
            let DoneRecord { number, made } = schema::decode(&value)?;
            let key = schema::key_tail(&key).try_into().map_err(|_| Status::CORRUPT)?;
            Ok(CallDone { key: CallKey(key), number, made })
        };
        Ok(CallsDoneReply { calls: found.into_iter().map(call).collect::<Result<_, Status>>()? })
    }
}
