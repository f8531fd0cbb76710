//! Names that the client found, so that the kernel's next question about one costs no call.
//!
//! The kernel trusts a name for a few seconds only, so that a frozen client does not leave it with
//! stale names (`lease/expiry.rs`). When the kernel asks again, the client may answer from here on
//! two conditions. The directory's lease was held without a gap, and this client changed nothing in
//! the directory. Each lease that leaves, and each change by this client, gives the directory a new
//! generation. Names found under an earlier generation do not count.
//!
//! Each inode keeps one name, so the bound on inodes bounds this cache too (`trim.rs`). A forgotten
//! directory leaves its place in the tree behind for a while. So a caller that asks where a file
//! lies gets the whole path.

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nuri_proto::id::Ino;
use nuri_proto::op::meta::Grant;
use nuri_rules::broken;
use parking_lot::Mutex;

use crate::inode::table::InodeTable;
use crate::inode::{Entry, InodeState};
use crate::session::MetaSession;

/// Forgotten directories whose places are kept.
const MOST_LEFT: usize = 1024;

/// Where an inode was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct CachedNames {
    parent: Ino,
    name: Box<[u8]>,
    /// Of the directory then.
    age: DirGeneration,
}

/// Tells times apart between which a directory's names may have changed. No value comes twice, not
/// even when an inode is forgotten and comes back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DirGeneration(u64);

impl DirGeneration {
    pub(crate) fn begin() -> DirGeneration {
        static LAST: AtomicU64 = AtomicU64::new(0);
        DirGeneration(LAST.fetch_add(1, Ordering::Relaxed))
    }
}

impl Default for DirGeneration {
    fn default() -> DirGeneration {
        DirGeneration::begin()
    }
}

/// What the client knows of a directory before a call that finds names in it.
#[derive(Clone, Copy)]
pub(crate) struct Before {
    age: DirGeneration,
    is_held: bool,
}

/// Inodes by their directory and name.
pub(crate) struct DentryCache {
    table: Arc<InodeTable>,
    session: Arc<MetaSession>,
    index: Index,
    left: Mutex<LeftPlaces>,
}

/// Where forgotten directories were found, the oldest first.
#[derive(Default)]
struct LeftPlaces(VecDeque<(Ino, CachedNames)>);

impl LeftPlaces {
    fn keep(&mut self, ino: Ino, found: CachedNames) {
        if self.0.len() == MOST_LEFT {
            self.0.pop_front();
        }
        self.0.push_back((ino, found));
    }

    /// The newest one: a directory may be forgotten again and again.
    fn find(&self, ino: Ino) -> Option<&CachedNames> {
        self.0.iter().rev().find(|(left, _)| *left == ino).map(|(_, found)| found)
    }
}

/// Which inode was found under a name.
#[derive(Default)]
struct Index {
    hasher: RandomState,
    /// By hash: the inode's own name tells whether it is the one.
    inodes: Mutex<HashMap<(Ino, u64), Ino>>,
}

impl DentryCache {
    pub(crate) fn new(table: Arc<InodeTable>, session: Arc<MetaSession>) -> DentryCache {
        DentryCache { table, session, index: Index::default(), left: Mutex::default() }
    }

    /// Forgets the inode.
    pub(crate) fn forget(&self, found: CachedNames, ino: Ino, is_dir: bool) {
        self.index.forget(&found, ino);
        if is_dir {
            self.left.lock().keep(ino, found);
        }
    }

    /// Where an inode was found, which may be an old place.
    pub(crate) fn place_of(&self, ino: Ino) -> Option<(Ino, Vec<u8>)> {
        let known = self.table.find(ino).and_then(|node| {
            let state = node.state.lock();
            state.found.as_deref().map(CachedNames::place)
        });
        known.or_else(|| self.left.lock().find(ino).map(CachedNames::place))
    }
}

impl CachedNames {
    fn place(&self) -> (Ino, Vec<u8>) {
        (self.parent, self.name.to_vec())
    }
}

impl Index {
    fn key(&self, parent: Ino, name: &[u8]) -> (Ino, u64) {
        (parent, self.hasher.hash_one(name))
    }

    fn get(&self, parent: Ino, name: &[u8]) -> Option<Ino> {
        self.inodes.lock().get(&self.key(parent, name)).copied()
    }

    fn insert(&self, parent: Ino, name: &[u8], ino: Ino) {
        self.inodes.lock().insert(self.key(parent, name), ino);
    }

    fn forget(&self, found: &CachedNames, ino: Ino) {
        let mut inodes = self.inodes.lock();
        let key = self.key(found.parent, &found.name);
        if inodes.get(&key) == Some(&ino) {
            inodes.remove(&key);
        }
    }
}

impl InodeState {
    /// Notes a change: what was found in the directory before does not count any more.
    pub(crate) fn names_changed(&mut self) {
        if !broken!("names_never_age") {
            self.age = DirGeneration::begin();
        }
    }

    /// The lease under which names may be cached, as the number of leases lost before it.
    pub(crate) fn names_held(&self) -> Option<u64> {
        let lost = if broken!("names_of_any_lease") { 0 } else { self.losses };
        self.hold.is_cacheable().then_some(lost)
    }

    /// The age of the names, where they are as they were at that age. The log answers for those
    /// that it knows.
    fn names_hold(&self) -> Option<DirGeneration> {
        (self.hold.mode.is_some() && !self.hold.revoking && !self.names_known).then_some(self.age)
    }
}

impl DentryCache {
    /// Called before a call that finds names in the directory.
    pub(crate) fn before_finding(&self, dir: Ino) -> Before {
        self.table
            .with(dir, |_, state| Before { age: state.age, is_held: state.names_hold().is_some() })
    }

    /// The generation of the directory's names in the call's answer. The names are valid where the
    /// lease was held all the time, or came with the answer and was not recalled since.
    pub(crate) fn age_of(
        &self,
        dir: Ino,
        before: Before,
        lease: Option<Grant>,
    ) -> Option<DirGeneration> {
        let standing = self.session.standing();
        self.table.with(dir, |_, state| {
            let is_granted = lease.is_some_and(|grant| state.hold.counts(grant, standing));
            let holds = (before.is_held || is_granted) && state.age == before.age;
            state.names_hold().filter(|_| holds)
        })
    }

    /// Notes where an inode was found.
    pub(crate) fn note_found(
        &self,
        parent: Ino,
        name: &[u8],
        age: Option<DirGeneration>,
        ino: Ino,
    ) {
        let Some(age) = age else { return self.note_place(parent, name, ino) };
        let found = CachedNames { parent, name: name.into(), age };
        self.table.with(ino, |_, state| {
            if state.hold.mode.is_none() || state.found.as_deref() == Some(&found) {
                return;
            }
            if let Some(old) = state.found.take() {
                self.index.forget(&old, ino);
            }
            self.index.insert(parent, name, ino);
            state.found = Some(Box::new(found));
        });
    }

    /// Notes where an inode is now; no question is answered from this.
    pub(crate) fn note_place(&self, parent: Ino, name: &[u8], ino: Ino) {
        let found = CachedNames { parent, name: name.into(), age: DirGeneration::begin() };
        self.table.with(ino, |_, state| {
            if state.found.is_none() {
                state.found = Some(Box::new(found));
            }
        });
    }

    /// The name's inode, where leases say that name and inode are as they were.
    pub(crate) fn lookup_found(&self, parent: Ino, name: &[u8]) -> Option<Entry> {
        if !self.session.trusts_leases() {
            return None;
        }
        let ino = self.index.get(parent, name)?;
        let age = self.table.find(parent)?.state.lock().names_hold()?;
        self.table.with_known(ino, |state| {
            let found = state.found.as_ref()?;
            let is_it = found.parent == parent && *found.name == *name && found.age == age;
            let attr = state
                .view()
                .filter(|_| is_it && state.hold.mode.is_some() && !state.hold.revoking)?;
            state.lookups += 1;
            Some(Entry { ino, attr })
        })
    }
}

#[cfg(test)]
mod tests {
    use nuri_proto::op::meta::LeaseMode;

    use super::*;

    /// Catches `broken!("names_of_any_lease")`.
    #[test]
    fn a_lease_that_came_back_is_another_one() {
        let mut state = InodeState::default();
        assert_eq!(state.names_held(), None);
        state.hold.mode = Some(LeaseMode::Read);
        let before = state.names_held();
        assert!(before.is_some());
        state.hold.give_back(None);
        state.forget_leased();
        assert_eq!(state.names_held(), None);
        state.hold.mode = Some(LeaseMode::Read);
        assert_ne!(state.names_held(), before);
    }

    /// Catches `broken!("names_never_age")`.
    #[test]
    fn names_hold_while_the_lease_does() {
        let mut state = InodeState::default();
        assert_eq!(state.names_hold(), None);
        state.hold.mode = Some(LeaseMode::Read);
        let age = state.names_hold();
        assert!(age.is_some());
        state.hold.revoking = true;
        assert_eq!(state.names_hold(), None, "it is being given back");
        state.hold.revoking = false;
        assert_eq!(state.names_hold(), age);
        state.forget_leased();
        assert_ne!(state.names_hold(), age, "a later lease");
        let age = state.names_hold();
        state.names_changed();
        assert_ne!(state.names_hold(), age, "an own change");
        assert_ne!(InodeState::default().age, state.age, "another life of the inode");
    }

    #[test]
    fn forgotten_directories_leave_their_last_places() {
        let mut left = LeftPlaces::default();
        let keep = |left: &mut LeftPlaces, ino, name: &[u8]| {
            let (parent, age) = (Ino(1), DirGeneration::begin());
            left.keep(Ino(ino), CachedNames { parent, name: name.into(), age });
        };
        keep(&mut left, 7, b"old");
        keep(&mut left, 7, b"new");
        assert_eq!(left.find(Ino(7)).map(CachedNames::place), Some((Ino(1), b"new".to_vec())));
        (0..MOST_LEFT as u64).for_each(|n| keep(&mut left, 100 + n, b"other"));
        assert!(left.find(Ino(7)).is_none() && left.0.len() == MOST_LEFT);
    }

    #[test]
    fn an_inode_that_got_another_name_keeps_that() {
        let index = Index::default();
        let found = |name: &[u8]| CachedNames {
            parent: Ino(1),
            name: name.into(),
            age: DirGeneration::begin(),
        };
        index.insert(Ino(1), b"a", Ino(7));
        index.forget(&found(b"a"), Ino(8));
        assert_eq!(index.get(Ino(1), b"a"), Some(Ino(7)), "another one has that name now");
        index.forget(&found(b"a"), Ino(7));
        assert_eq!(index.get(Ino(1), b"a"), None);
    }
}
