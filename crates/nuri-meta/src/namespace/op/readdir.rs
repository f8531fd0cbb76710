//! The operation that lists a directory by stable positions.

use nuri_proto::Status;
use nuri_proto::limit::MAX_READDIR;
use nuri_proto::op::meta::{DirEntry, ReadDir, ReadDirReply, WithAttrs};

use super::MetaOp;
use crate::lease::{Claim, Want};
use crate::namespace::schema::{self, CookieEntry, cookie_key, cookie_prefix, key_tail};
use crate::namespace::txn::Txn;

/// Most bytes of names in one reply.
const MAX_NAMES: usize = 64 << 10;

impl MetaOp for ReadDir {
    fn claims(&self, _: &Txn<'_>) -> Result<Vec<Claim>, Status> {
        Ok(vec![Claim { ino: self.ino, want: Want::Shared }])
    }

    fn run(self, txn: &mut Txn<'_>, _: &[u8]) -> Result<ReadDirReply, Status> {
        let dir = txn.directory(self.ino)?;
        let (parent, next) = (dir.as_dir()?.parent, dir.as_dir()?.next_cookie);
        let max = self.max.clamp(1, MAX_READDIR) as usize;
        let prefix = cookie_prefix(self.ino);
        let after = cookie_key(self.ino, self.cookie);
        let pairs = txn.scan(&prefix, &after, max)?;
        let mut end = pairs.len() < max;
        let mut entries = Vec::with_capacity(pairs.len());
        let mut names = 0;
        for (key, value) in pairs {
            let record: CookieEntry = schema::decode(&value)?;
            names += record.name.len();
            if names > MAX_NAMES {
                end = false;
                break;
            }
            let tail = key_tail(&key).try_into().map_err(|_| Status::CORRUPT)?;
            entries.push(entry(&self, txn, u64::from_be_bytes(tail), record)?);
        }
        let dir_lease = txn.dir_lease(self.ino);
        Ok(ReadDirReply { entries, dir_lease, parent, end, next })
    }
}

fn entry(
    call: &ReadDir,
    txn: &mut Txn<'_>,
    cookie: u64,
    record: CookieEntry,
) -> Result<DirEntry, Status> {
    let ino = record.ino;
    let wanted = call.attrs == WithAttrs::Yes;
    let inode = if wanted && !txn.leases.written_elsewhere(ino, txn.session) {
        let inode = txn.inode(ino)?;
        Some(txn.reply_in(call.ino, &inode))
    } else {
        None
    };
    Ok(DirEntry { cookie, ino, kind: record.kind, name: record.name, inode })
}
