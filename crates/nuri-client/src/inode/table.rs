//! The table of inodes that a client remembers.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use nuri_proto::id::Ino;
use nuri_proto::op::meta::{Attr, InodeReply};
use parking_lot::Mutex;

use super::{Inode, InodeState};
use crate::session::MetaSession;

/// All inodes by their number. The table owns which inodes are there. The state of each has its own
/// lock, which is taken after the table's lock.
pub(crate) struct InodeTable {
    inodes: Mutex<HashMap<Ino, Arc<Inode>>>,
    /// Recalls of inodes that were not known yet.
    session: Arc<MetaSession>,
    /// Counts looks of those who forget what is not used: uses are told apart by it.
    clock: AtomicU32,
}

impl InodeTable {
    pub(crate) fn new(session: Arc<MetaSession>) -> InodeTable {
        InodeTable { inodes: Mutex::default(), session, clock: AtomicU32::new(0) }
    }

    /// The present time, counted in looks.
    pub(crate) fn now(&self) -> u32 {
        self.clock.load(Ordering::Relaxed)
    }

    /// Notes that another look begins.
    pub(crate) fn tick(&self) {
        self.clock.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn find(&self, ino: Ino) -> Option<Arc<Inode>> {
        let inode = self.inodes.lock().get(&ino).cloned();
        inode.inspect(|inode| inode.note_use(self.now()))
    }

    pub(crate) fn count(&self) -> usize {
        self.inodes.lock().len()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Inode>> {
        self.inodes.lock().values().cloned().collect()
    }

    /// Runs `f` on the inode's state, which cannot leave the table meanwhile. An unknown inode is
    /// added.
    pub(crate) fn with<R>(&self, ino: Ino, f: impl FnOnce(&Arc<Inode>, &mut InodeState) -> R) -> R {
        let mut inodes = self.inodes.lock();
        let new = || Arc::new(Inode::new(ino, self.session.recalled(ino)));
        let inode = inodes.entry(ino).or_insert_with(new).clone();
        inode.note_use(self.now());
        let mut state = inode.state.lock();
        drop(inodes);
        f(&inode, &mut state)
    }

    /// As [`InodeTable::with`], but only for an inode that is known.
    pub(crate) fn with_known<R>(
        &self,
        ino: Ino,
        f: impl FnOnce(&mut InodeState) -> Option<R>,
    ) -> Option<R> {
        let inodes = self.inodes.lock();
        let inode = inodes.get(&ino)?.clone();
        inode.note_use(self.now());
        let mut state = inode.state.lock();
        drop(inodes);
        f(&mut state)
    }

    /// Takes over a reply; returns attributes as a program should see them.
    pub(crate) fn learn(&self, reply: &InodeReply) -> Attr {
        self.session.saw(&reply.attr);
        self.with(reply.attr.ino, |_, state| {
            state.apply(&reply.attr, reply.lease, self.session.standing());
            state.shown(reply.attr)
        })
    }

    /// Removes the inode where `may_go` says so, which also learns how many there are; `then` sees
    /// the state of one that went.
    pub(crate) fn remove_if(
        &self,
        inode: &Arc<Inode>,
        may_go: impl FnOnce(&mut InodeState, usize) -> bool,
        then: impl FnOnce(&mut InodeState),
    ) {
        let mut inodes = self.inodes.lock();
        let mut state = inode.state.lock();
        let is_current = inodes.get(&inode.ino).is_some_and(|known| Arc::ptr_eq(known, inode));
        if may_go(&mut state, inodes.len()) && is_current {
            inodes.remove(&inode.ino);
            then(&mut state);
        }
    }
}
