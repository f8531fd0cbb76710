//! One operation's view of the store: its reads see its own changes, and its writes gather in a
//! batch.
//!
//! A reply may show what was read here. So each read notes which commit the data comes from, and
//! the reply waits until that commit is durable. Only [`Reads`] knows the engine, so no read can
//! bypass this.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashSet};

use nuri_kv::engine::{Batch, CommitId, Engine, KvError, Pair};
use nuri_proto::Status;
use nuri_proto::change::S_IFDIR;
use nuri_proto::id::{GroupId, Ino, PoolId, SessionId};
use nuri_proto::layout::{LayoutPolicy, Shape};
use nuri_proto::limit::MAX_NAME;
use nuri_proto::op::cluster::Admitted;
use nuri_proto::op::log::NameChange;
use nuri_proto::op::meta::{Grant, InodeReply, LeaseMode, SetTime, Time};
use nuri_rules::broken;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::executor::pending_commits::PendingCommits;
use crate::lease::directory_delegation::Taken;
use crate::lease::{Forgotten, LeaseTable};
use crate::namespace::deferred_unlink::DeferredUnlinks;
use crate::namespace::recent_names::{Named, RecentNames};
use crate::namespace::schema::{
    self, CookieEntry, Counters, Entry, Inode, cookie_key, counters_key, entry_key, inline_key,
    inode_key,
};

/// What the server needs of the cluster around it.
pub trait ClusterView: Send + Sync + 'static {
    /// Groups that new files of the pool may use now.
    ///
    /// # Errors
    /// [`Status::INVAL`] where the shape cannot be stored on the targets that there are.
    fn groups(&self, pool: PoolId, shape: Shape) -> Result<Vec<GroupId>, Status>;

    /// Shape of files where no directory says another.
    fn default_shape(&self) -> Shape {
        Shape::Stripe
    }

    /// Targets shall accept changes of these sessions only.
    fn admit(&self, _list: Admitted) {}

    /// Whether the list of that version binds every target by now.
    fn is_in_force(&self, _version: u64) -> bool {
        true
    }
}

/// The store as an operation reads it, under the server's lock.
pub(crate) struct Reads<'a> {
    engine: &'a dyn Engine,
    pending_commits: &'a PendingCommits,
    /// Latest commit that something read is from.
    needed: Cell<CommitId>,
    /// Keys that had a value in the store.
    found: RefCell<HashSet<Vec<u8>>>,
}

impl<'a> Reads<'a> {
    pub(crate) fn new(engine: &'a dyn Engine, pending_commits: &'a PendingCommits) -> Reads<'a> {
        let (needed, found) = Default::default();
        Reads { engine, pending_commits, needed, found }
    }

    fn value(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Status> {
        self.need(self.pending_commits.changed(key));
        let value = self.engine.get(key).map_err(|e| kv_status(&e))?;
        if value.is_some() {
            self.found.borrow_mut().insert(key.to_vec());
        }
        Ok(value)
    }

    /// A value of which the caller tells only that it is there, and what never changes in it.
    fn lasting(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Status> {
        self.need(self.pending_commits.made(key));
        self.engine.get(key).map_err(|e| kv_status(&e))
    }

    fn scan(&self, prefix: &[u8], after: &[u8], limit: usize) -> Result<Vec<Pair>, Status> {
        // Any commit may have made or removed a key of the range.
        self.need(self.engine.last_commit());
        self.engine.scan(prefix, after, limit).map_err(|e| kv_status(&e))
    }

    fn need(&self, id: CommitId) {
        self.needed.set(self.needed.get().max(id));
    }
}

/// What a transaction leaves to do.
pub(crate) struct Finished {
    pub(crate) batch: Batch,
    /// Inodes that lost their last name in this transaction.
    pub(crate) orphaned: Vec<Ino>,
    /// And those of them that stay for a while though nobody has a lease on them.
    pub(crate) lingers: Vec<Ino>,
    /// Changes of names in directories that are followed.
    pub(crate) named: Vec<(Ino, Named)>,
    /// A turn that begins.
    pub(crate) taken: Option<Taken>,
    /// Keys that had a value before.
    pub(crate) found: HashSet<Vec<u8>>,
}

/// A transaction under the server's lock.
pub struct Txn<'a> {
    pub(crate) reads: Reads<'a>,
    pub(crate) cluster: &'a dyn ClusterView,
    pub(crate) leases: &'a mut LeaseTable,
    pub(crate) counters: &'a mut Counters,
    pub(crate) session: SessionId,
    pub(crate) now: Time,
    pub(crate) batch: Batch,
    /// Inodes that lost their last name in this transaction.
    pub(crate) orphaned: Vec<Ino>,
    pub(crate) deferred: &'a mut DeferredUnlinks,
    /// Inodes that lost their last name and stay for a while.
    pub(crate) lingers: Vec<Ino>,
    pub(crate) recent: &'a mut RecentNames,
    pub(crate) named: Vec<(Ino, Named)>,
    pub(crate) taken: Option<Taken>,
    /// Replies carry leases: somebody reads them.
    pub(crate) offers: bool,
    /// What the session gave up in this transaction. It has that again where the transaction fails.
    pub(crate) forgotten: Vec<Forgotten>,
}

/// The status that a caller gets for an error of the store.
pub fn kv_status(error: &KvError) -> Status {
    match error {
        KvError::NoSpace => Status::NOSPC,
        KvError::Stopped => Status::OUT_OF_SERVICE,
        KvError::Damaged(_) => Status::CORRUPT,
        // E2BIG.
        KvError::TooLarge { .. } => Status::TOOBIG,
        _ => Status::IO,
    }
}

impl Txn<'_> {
    pub(crate) fn raw(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Status> {
        if let Some(change) = self.batch.get(key) {
            return Ok(change.map(<[u8]>::to_vec));
        }
        self.reads.value(key)
    }

    /// Pairs of the store, without this transaction's changes.
    pub(crate) fn scan(
        &self,
        prefix: &[u8],
        after: &[u8],
        limit: usize,
    ) -> Result<Vec<Pair>, Status> {
        self.reads.scan(prefix, after, limit)
    }

    /// All pairs under a prefix, with this transaction's changes.
    pub(crate) fn scan_all(&self, prefix: &[u8]) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, Status> {
        let mut found = BTreeMap::from_iter(self.scan(prefix, prefix, usize::MAX)?);
        for (key, value) in self.batch.changes_under(prefix) {
            match value {
                Some(value) => found.insert(key.to_vec(), value.to_vec()),
                None => found.remove(key),
            };
        }
        Ok(found)
    }

    /// Notes that the reply tells what every commit changes: the counters.
    pub(crate) fn read_counters(&self) -> Counters {
        self.tells_of_all();
        *self.counters
    }

    /// Notes that the reply tells what any operations did, even those that may not be durable.
    pub(crate) fn tells_of_all(&self) {
        self.reads.need(self.reads.engine.last_commit());
    }

    /// The commit that must be durable before a reply may tell what was read.
    pub(crate) fn needed(&self) -> CommitId {
        if broken!("read_before_durable") {
            return CommitId::default();
        }
        self.reads.needed.get()
    }

    pub(crate) fn get<T: DeserializeOwned>(&self, key: &[u8]) -> Result<Option<T>, Status> {
        self.raw(key)?.map(|bytes| schema::decode(&bytes)).transpose()
    }

    pub(crate) fn put<T: Serialize>(&mut self, key: Vec<u8>, value: &T) -> Result<(), Status> {
        self.batch.put(key, schema::encode(value)?);
        Ok(())
    }

    pub(crate) fn delete(&mut self, key: Vec<u8>) {
        self.batch.delete(key);
    }

    /// Sets the inode's inline data.
    pub(crate) fn put_inline(&mut self, ino: Ino, data: Option<Vec<u8>>) {
        match data {
            Some(data) => self.batch.put(inline_key(ino), data),
            None => self.delete(inline_key(ino)),
        }
    }

    /// The policy that new files inherit in a directory without a policy of its own.
    pub(crate) fn default_policy(&self) -> LayoutPolicy {
        LayoutPolicy { shape: self.cluster.default_shape(), ..LayoutPolicy::default() }
    }

    /// Reads the inode. `STALE` where it is gone: the name that led there belongs to another inode
    /// by now, or to none. So the caller's kernel looks the name up again.
    pub(crate) fn inode(&self, ino: Ino) -> Result<Inode, Status> {
        self.get(&inode_key(ino))?.ok_or(Status::STALE)
    }

    pub(crate) fn directory(&self, ino: Ino) -> Result<Inode, Status> {
        let inode = self.inode(ino)?;
        inode.as_dir()?;
        Ok(inode)
    }

    /// Refuses an inode that is no directory. A directory stays one from when it is made until it
    /// is removed, so this check depends on no other change of it. So a look-up does not wait for
    /// operations that add names, which change the directory's times.
    pub(crate) fn check_directory(&self, ino: Ino) -> Result<(), Status> {
        let key = inode_key(ino);
        let bytes = match self.batch.get(&key) {
            Some(change) => change.map(<[u8]>::to_vec),
            None => self.reads.lasting(&key)?,
        };
        let inode: Inode = schema::decode(&bytes.ok_or(Status::STALE)?)?;
        inode.as_dir().map(|_| ())
    }

    pub(crate) fn put_inode(&mut self, inode: &Inode) -> Result<(), Status> {
        self.put(inode_key(inode.attr.ino), inode)
    }

    pub(crate) fn entry(&self, parent: Ino, name: &[u8]) -> Result<Option<Entry>, Status> {
        check_name(name)?;
        self.get(&entry_key(parent, name))
    }

    /// Adds a name to a directory record that the caller stores afterwards.
    pub(crate) fn add_entry(
        &mut self,
        dir: &mut Inode,
        name: &[u8],
        child: &Inode,
    ) -> Result<(), Status> {
        let record = dir.as_dir_mut()?;
        let cookie = record.next_cookie;
        record.next_cookie += 1;
        self.add_entry_at(dir, cookie, name, child)
    }

    /// Adds a name at a position of the directory that is free.
    pub(crate) fn add_entry_at(
        &mut self,
        dir: &mut Inode,
        cookie: u64,
        name: &[u8],
        child: &Inode,
    ) -> Result<(), Status> {
        let parent = dir.attr.ino;
        let (ino, kind) = (child.attr.ino, child.kind());
        self.put(entry_key(parent, name), &Entry { ino, cookie, kind })?;
        self.put(cookie_key(parent, cookie), &CookieEntry { ino, kind, name: name.to_vec() })?;
        dir.attr.name_added(child.is_dir(), self.now);
        self.note_name(dir, name, Some((ino, child.is_dir())));
        Ok(())
    }

    /// Takes a name out of a directory record that the caller stores afterwards.
    pub(crate) fn remove_entry(&mut self, dir: &mut Inode, name: &[u8], entry: Entry) {
        let parent = dir.attr.ino;
        self.delete(entry_key(parent, name));
        self.delete(cookie_key(parent, entry.cookie));
        dir.attr.name_removed(u32::from(entry.kind) << 12 == S_IFDIR, self.now);
        self.note_name(dir, name, None);
    }

    /// Notes the change of a name in the directory, whose counter has the change already.
    pub(crate) fn note_name(&mut self, dir: &Inode, name: &[u8], to: Option<(Ino, bool)>) {
        if self.recent.is_followed(dir.attr.ino) {
            // Who does not read the reply did it by itself.
            let known_to = (!self.offers).then_some(self.session);
            let change = NameChange { name: name.to_vec(), to };
            let named = Named { counter: dir.attr.change, known_to, change };
            self.named.push((dir.attr.ino, named));
        }
    }

    /// The session has the inode open no more, and no lease on it, if the transaction is done.
    pub(crate) fn forget(&mut self, ino: Ino) {
        self.forgotten.extend(self.leases.forget(ino, self.session));
    }

    /// Notes that data (or entries) and attributes changed now.
    pub(crate) fn touch(&self, inode: &mut Inode) {
        inode.attr.touched(self.now);
    }

    /// Notes that attributes changed now.
    pub(crate) fn changed(&self, inode: &mut Inode) {
        inode.attr.changed(self.now);
    }

    /// Notes a client's stamp: stamps from now on are later.
    pub(crate) fn saw(&mut self, stamp: Time) {
        if !stamp.is_beyond(self.counters.stamp) {
            self.counters.stamp = self.counters.stamp.max(stamp);
        }
    }

    pub(crate) fn at(&self, time: SetTime) -> Time {
        time.at(self.now)
    }

    /// The reply for an inode, with a read lease offered in passing.
    pub(crate) fn reply(&mut self, inode: &Inode) -> InodeReply {
        if !self.offers {
            return InodeReply { attr: inode.attr, lease: None };
        }
        let lease = self.leases.offer(inode.attr.ino, self.session, LeaseMode::Read);
        InodeReply { attr: inode.attr, lease }
    }

    /// The reply for an inode of a directory. A session that holds the directory exclusively is
    /// offered the inode exclusively too. Then it can remove and rename by itself.
    pub(crate) fn reply_in(&mut self, dir: Ino, inode: &Inode) -> InodeReply {
        if self.leases.held(dir, self.session) != Some(LeaseMode::Write) {
            return self.reply(inode);
        }
        self.reply_alone(inode)
    }

    /// The reply for an inode that the caller held exclusively while it was changed. If the inode
    /// is no directory, the reply offers it exclusively: a client that changes an inode mostly
    /// changes it again, and then needs no server. A directory is taken with its names
    /// (`TakeDirectory`).
    pub(crate) fn reply_changed(&mut self, inode: &Inode) -> InodeReply {
        if inode.is_dir() || !self.offers {
            return self.reply(inode);
        }
        self.reply_alone(inode)
    }

    /// The reply for an inode that is offered alone, or with a read lease where that cannot be.
    fn reply_alone(&mut self, inode: &Inode) -> InodeReply {
        let lease = self.leases.offer(inode.attr.ino, self.session, LeaseMode::Write);
        if lease.is_some() { InodeReply { attr: inode.attr, lease } } else { self.reply(inode) }
    }

    /// A read lease on a directory, offered in passing.
    pub(crate) fn dir_lease(&mut self, dir: Ino) -> Option<Grant> {
        self.leases.offer(dir, self.session, LeaseMode::Read)
    }

    /// Closes the transaction: its batch, with the counters in it where anything changed.
    pub(crate) fn finish(mut self) -> Result<Finished, Status> {
        if !self.batch.is_empty() {
            let counters = *self.counters;
            self.put(counters_key(), &counters)?;
        }
        let found = self.reads.found.into_inner();
        let Txn { batch, orphaned, lingers, named, taken, .. } = self;
        Ok(Finished { batch, orphaned, lingers, named, taken, found })
    }
}

/// Refuses names that no directory may hold.
pub(crate) fn check_name(name: &[u8]) -> Result<(), Status> {
    if name.len() > MAX_NAME {
        return Err(Status::NAMETOOLONG);
    }
    let bad = name.is_empty() || name == b"." || name == b"..";
    if bad || name.contains(&b'/') || name.contains(&0) { Err(Status::INVAL) } else { Ok(()) }
}
