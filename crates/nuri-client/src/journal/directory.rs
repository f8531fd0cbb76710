//! Directories that this client holds exclusively, with all their names.
//!
//! The names are valid while the inode's state says so (`InodeState::names_known`), under the write
//! lease. The client fetches them for a directory that it changes again and again, and that nobody
//! else changes. A directory that was just made has no names to fetch.
//!
//! A directory that other clients change too is taken for turns. When a turn ends, the client keeps
//! the names that it knows. When it takes the directory again, the server tells it what changed
//! (DELEGATION-2). Names from before a loss of journal steps are not kept, because some of them may
//! come from lost steps (DELEGATION-3).

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use nuri_proto::Status;
use nuri_proto::change::S_IFDIR;
use nuri_proto::id::Ino;
use nuri_proto::limit::MAX_READDIR;
use nuri_proto::op::log::{Children, DirectoryTaken, NameChange, Reserve, TakeDirectory};
use nuri_proto::op::meta::{Acquire, Attr, Grant, LeaseMode, ReadDir, WithAttrs};

use super::usage::Take;
use super::{Journal, JournalState};
use crate::inode::{Inode, InodeState};

/// Directories with more names are not held alone.
const MOST_NAMES: u64 = 50_000;
/// Directories that others have for now whose names are kept, and names in all of them.
const MOST_PARTED: usize = 16;
const MOST_PARTED_NAMES: usize = 200_000;
/// Files of a directory that are remembered to be shared when turns are over.
const MOST_FRESH: usize = 16_384;
/// Inodes of a directory asked for at once, where one after the other is looked for.
const MOST_AHEAD: usize = 64;
/// Inode numbers taken at a time.
const NUMBERS: u32 = 4096;
/// How often an own recall is waited for before a turn is asked for: longer than one takes.
const RECALL_WAITS: u32 = 100;
/// Turns in which something is tried before the server is asked directly.
const TURNS: u32 = 4;

/// The names of a directory.
#[derive(Default)]
pub(super) struct Names {
    children: HashMap<Vec<u8>, Child>,
    /// Files among them, in the order in which they were made.
    files: BTreeSet<Ino>,
    /// How many were asked for at once the last time.
    ahead: usize,
    /// The directory's change counter when the server told of them last.
    known: u64,
    /// Files made since their leases were given up last.
    fresh: Vec<Ino>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Child {
    pub(super) ino: Ino,
    pub(super) is_dir: bool,
}

impl Names {
    /// The names of a directory that was just made.
    pub(super) fn of_new(attr: &Attr) -> Names {
        Names { known: attr.change, ..Names::default() }
    }

    pub(super) fn get(&self, name: &[u8]) -> Option<Child> {
        self.children.get(name).copied()
    }

    pub(super) fn insert(&mut self, name: &[u8], child: Child) {
        if !child.is_dir {
            self.files.insert(child.ino);
        }
        let replaced = self.children.insert(name.to_vec(), child);
        self.forget_file(replaced.filter(|replaced| replaced.ino != child.ino));
    }

    fn forget_file(&mut self, gone: Option<Child>) {
        if let Some(child) = gone {
            // One with a further name here is not asked for ahead; that costs a call.
            self.files.remove(&child.ino);
        }
    }

    /// Notes a file or directory that was made here.
    pub(super) fn note_made(&mut self, name: &[u8], child: Child) {
        self.insert(name, child);
        // Those beyond it are asked for one by one.
        if !child.is_dir && self.fresh.len() < MOST_FRESH {
            self.fresh.push(child.ino);
        }
    }

    pub(super) fn remove(&mut self, name: &[u8]) {
        let gone = self.children.remove(name);
        self.forget_file(gone);
    }

    /// A file that is looked for, with those made after it: each time twice as many as the last
    /// time, because who looks for one after the other goes on.
    fn with_next(&mut self, ino: Ino) -> Vec<Ino> {
        self.ahead = (self.ahead * 2).clamp(1, MOST_AHEAD);
        let next = self.files.range(ino..).skip(1).take(self.ahead - 1);
        std::iter::once(ino).chain(next.copied()).collect()
    }

    /// All inodes but directories.
    fn files(&self) -> Vec<Ino> {
        self.files.iter().copied().collect()
    }

    fn name_of(&self, ino: Ino) -> Option<&Vec<u8>> {
        self.children.iter().find(|(_, child)| child.ino == ino).map(|(name, _)| name)
    }

    fn follow(&mut self, changes: Vec<NameChange>) {
        for NameChange { name, to } in changes {
            match to {
                Some((ino, is_dir)) => self.insert(&name, Child { ino, is_dir }),
                None => self.remove(&name),
            }
        }
    }
}

/// Names of directories that other clients have for now, in the order in which they were given
/// back.
#[derive(Default)]
pub(super) struct Parted(Vec<(Ino, Names)>);

impl Parted {
    fn keep(&mut self, dir: Ino, names: Names) {
        self.take(dir);
        self.0.push((dir, names));
        while self.0.len() > MOST_PARTED || self.count() > MOST_PARTED_NAMES {
            self.0.remove(0);
        }
    }

    fn count(&self) -> usize {
        self.0.iter().map(|(_, names)| names.children.len()).sum()
    }

    fn take(&mut self, dir: Ino) -> Option<Names> {
        let at = self.0.iter().position(|(parted, _)| *parted == dir)?;
        Some(self.0.remove(at).1)
    }

    /// Up to when the names of the directory are known.
    fn known(&self, dir: Ino) -> Option<u64> {
        self.0.iter().find(|(parted, _)| *parted == dir).map(|(_, names)| names.known)
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

impl JournalState {
    /// Stops journalling in the directory. Its names are kept if the directory is taken by turns,
    /// else returned.
    pub(super) fn leave(&mut self, dir: Ino, state: &mut InodeState) -> Option<Names> {
        state.names_known = false;
        state.names_changed();
        let names = self.directories.remove(&dir)?;
        if !state.usage.takes_turns() {
            return Some(names);
        }
        self.parted.keep(dir, names);
        None
    }
}

impl Journal {
    /// The place of an inode in the directories whose names are known. Looks at all of these
    /// directories.
    pub(crate) fn place_of(&self, ino: Ino) -> Option<(Ino, Vec<u8>)> {
        let state = self.state.lock();
        let parted = state.parted.0.iter().map(|(dir, names)| (dir, names));
        let name_in = |(dir, names): (&Ino, &Names)| Some((*dir, names.name_of(ino)?.clone()));
        state.directories.iter().chain(parted).find_map(name_in)
    }

    /// A directory that was just made here under its write lease is empty, and known as a whole.
    pub(crate) fn know_new_directory(&self, attr: &Attr) {
        let is_new = attr.is_dir() && attr.size == 0 && attr.change == 1;
        if !is_new {
            return;
        }
        let mut log = self.state.lock();
        self.inodes.with(attr.ino, |_, state| {
            let is_ours = state.hold.is_alone();
            let is_untouched = state.attr.is_some_and(|known| known.change == 1);
            if is_ours && is_untouched && state.usage.begun == 0 {
                (state.names, state.names_known) = (true, true);
                log.directories.insert(attr.ino, Names::of_new(attr));
            }
        });
    }

    /// Takes a directory exclusively where that is worth it. A failure leaves the directory as it
    /// is.
    pub(crate) fn take_directory(&self, dir: Ino) {
        self.take_as(dir, |_| true);
    }

    /// Takes a directory where that is worth a turn. A client that only looks a name up there would
    /// end the turn of another mount.
    pub(crate) fn take_turn(&self, dir: Ino) {
        self.take_as(dir, |take| take == Take::Turn);
    }

    /// Journals a change of directories, in as many turns as it takes, because a turn may end while
    /// something else is asked for. `None`: the server has to be asked.
    pub(crate) fn in_turns<T>(&self, dirs: &[Ino], act: impl Fn() -> Option<T>) -> Option<T> {
        let takes_turns = |dir: &Ino| {
            self.inodes.find(*dir).is_some_and(|node| {
                let state = node.state.lock();
                !state.names_known && state.usage.takes_turns()
            })
        };
        for _ in 0..TURNS {
            let done = act();
            if done.is_some() || !dirs.iter().any(takes_turns) {
                return done;
            }
        }
        None
    }

    fn take_as(&self, dir: Ino, suits: impl Fn(Take) -> bool) {
        let Some(node) = self.inodes.find(dir).filter(|_| !dir.is_hidden()) else { return };
        let wanted = |state: &InodeState| {
            let wanted = if state.names_known { None } else { state.usage.wanted() };
            wanted.filter(|take| suits(*take))
        };
        let take = wanted(&node.state.lock());
        let Some(take) = take else { return };
        if take == Take::Turn {
            // For the end of the last one.
            let waits = || node.wait_for_recall(|state| state.hold.revoking);
            (0..RECALL_WAITS).take_while(|_| waits()).for_each(drop);
        }
        let _taking = node.taking_over.lock();
        let begun = {
            let state = node.state.lock();
            if state.hold.revoking || wanted(&state).is_none() {
                return;
            }
            state.usage.begun
        };
        match self.fetch_directory(&node, begun) {
            Ok(()) => {}
            Err(Status::FBIG) => node.state.lock().usage.is_unfit = true,
            Err(_) => node.state.lock().usage.asked_elsewhere(),
        }
    }

    fn fetch_directory(&self, node: &Arc<Inode>, begun: u64) -> Result<(), Status> {
        let dir = node.ino;
        let (known, losses) = {
            let log = self.state.lock();
            (log.parted.known(dir), log.losses)
        };
        let DirectoryTaken { inode, is_bare, changes } =
            self.session.call(&TakeDirectory { ino: dir, known })?;
        self.inodes.learn(&inode);
        if inode.attr.size > MOST_NAMES {
            return Err(Status::FBIG);
        }
        self.learn_default_list(node, inode.lease, is_bare)?;
        let parted = self.state.lock().parted.take(dir);
        let mut names = match (parted, changes) {
            (Some(mut names), Some(changes)) if Some(names.known) == known => {
                names.follow(changes);
                names
            }
            (parted, _) => {
                let fresh = parted.map(|names| names.fresh).unwrap_or_default();
                Names { fresh, ..self.read_names(dir)? }
            }
        };
        names.known = inode.attr.change;
        let mut log = self.state.lock();
        if log.losses != losses {
            return Ok(());
        }
        let mut state = node.state.lock();
        let is_ours = self.is_alone_by(&state, inode.lease);
        let is_untouched = state.usage.direct == 0 && state.usage.begun == begun;
        if is_ours && state.xattrs.default_list().is_none() {
            return Err(Status::RETRY);
        }
        if is_ours && is_untouched && state.attr.is_some() {
            (state.names, state.names_known) = (true, true);
            state.usage.counted = None;
            log.directories.insert(dir, names);
        } else {
            log.parted.keep(dir, names);
        }
        Ok(())
    }

    /// Whether the inode is here alone by this grant. No later one: there may have been others in
    /// between.
    fn is_alone_by(&self, state: &InodeState, lease: Option<Grant>) -> bool {
        let standing = self.session.standing();
        let is_granted =
            |grant| state.hold.counts(grant, standing) && state.hold.number == grant.number;
        state.hold.is_alone() && lease.is_some_and(is_granted)
    }

    /// What a directory that was just taken hands down to new inodes.
    fn learn_default_list(
        &self,
        node: &Inode,
        lease: Option<Grant>,
        is_bare: bool,
    ) -> Result<(), Status> {
        let is_known = {
            let mut state = node.state.lock();
            if is_bare && self.is_alone_by(&state, lease) {
                state.xattrs.note_no_default_list();
            }
            state.xattrs.default_list().is_some()
        };
        if is_known { Ok(()) } else { self.fetch_xattrs(node.ino) }
    }

    /// All names of a directory that is held here.
    fn read_names(&self, dir: Ino) -> Result<Names, Status> {
        let mut names = Names::default();
        let mut cookie = 0;
        loop {
            let call = ReadDir { ino: dir, cookie, max: MAX_READDIR, attrs: WithAttrs::No };
            let page = self.session.call(&call)?;
            for entry in page.entries {
                cookie = entry.cookie;
                let is_dir = u32::from(entry.kind) << 12 == S_IFDIR;
                names.insert(&entry.name, Child { ino: entry.ino, is_dir });
            }
            if page.end {
                return Ok(names);
            }
        }
    }

    /// Stops journalling in a directory that is about to be given back. Returns the files in it
    /// that other clients may look at next.
    pub(crate) fn leave_directory(&self, node: &Inode) -> Vec<Ino> {
        let mut log = self.state.lock();
        let mut state = node.state.lock();
        state.usage.asked_elsewhere();
        log.leave(node.ino, &mut state).map(|names| names.files()).unwrap_or_default()
    }

    /// Files of directories in which this client did nothing for a while, so that other clients may
    /// look at them.
    pub(crate) fn take_files_of_ended_turns(&self) -> Vec<Ino> {
        let is_over = |dir: Ino| {
            self.inodes.find(dir).is_none_or(|node| !node.state.lock().usage.takes_turns())
        };
        let kept: Vec<_> = self.state.lock().parted.0.iter().map(|(dir, _)| *dir).collect();
        let mut files = Vec::new();
        for dir in kept.into_iter().filter(|dir| is_over(*dir)) {
            let mut state = self.state.lock();
            let parted = state.parted.0.iter_mut().find(|(parted, _)| *parted == dir);
            files.extend(parted.map(|(_, names)| std::mem::take(&mut names.fresh)));
        }
        files.concat()
    }

    /// Takes the inode of a name exclusively. A client that removes or moves the name by the
    /// journal has to hold the inode too.
    pub(crate) fn take_child(&self, parent: Ino, name: &[u8]) {
        let child = self.state.lock().directories.get(&parent).and_then(|n| n.get(name));
        if let Some(Child { ino, is_dir: false }) = child {
            self.take_inode(ino);
        }
    }

    /// Takes an inode exclusively.
    pub(super) fn take_inode(&self, ino: Ino) {
        let is_alone = self.inodes.find(ino).is_some_and(|node| {
            let state = node.state.lock();
            state.hold.mode == Some(LeaseMode::Write) && state.attr.is_some()
        });
        if is_alone || self.flush_of(ino).is_err() {
            return;
        }
        if let Ok(reply) = self.session.call(&Acquire { ino, mode: LeaseMode::Write }) {
            self.inodes.learn(&reply.inode);
        }
    }

    /// Fetches the inode of a known name that is not here, and those of files that are probably
    /// looked for next.
    pub(crate) fn fetch_children(&self, dir: Ino, name: &[u8]) {
        let mut log = self.state.lock();
        let Some(names) = log.directories.get_mut(&dir) else { return };
        let Some(Child { ino, is_dir: false }) = names.get(name) else { return };
        let is_here = |ino: Ino| {
            self.inodes.find(ino).is_some_and(|node| {
                let state = node.state.lock();
                state.hold.mode.is_some() || state.hold.revoking
            })
        };
        if is_here(ino) {
            return;
        }
        let inos: Vec<_> = names.with_next(ino).into_iter().filter(|ino| !is_here(*ino)).collect();
        drop(log);
        if let Ok(reply) = self.session.call(&Children { dir, inos }) {
            let taken = reply.inodes.iter().map(|inode| self.inodes.learn(inode).ino);
            self.note_fresh(dir, taken.collect());
        }
    }

    /// Files of which others may ask later are here alone for now.
    fn note_fresh(&self, dir: Ino, inos: Vec<Ino>) {
        let mut log = self.state.lock();
        if let Some(names) = log.directories.get_mut(&dir) {
            let room = MOST_FRESH.saturating_sub(names.fresh.len());
            names.fresh.extend(inos.into_iter().take(room));
        }
    }

    /// Reserves numbers for new inodes, where none are left.
    pub(super) fn provide_numbers(&self) {
        if !self.state.lock().numbers.is_empty() {
            return;
        }
        if let Ok(reserved) = self.session.change(&Reserve { count: NUMBERS }, &[]) {
            let first = reserved.first.0;
            self.state.lock().numbers = first..first + u64::from(reserved.count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(count: u64, known: u64) -> Names {
        let mut names = Names { known, ..Names::default() };
        let child = |ino| Child { ino: Ino(ino), is_dir: false };
        (0..count).for_each(|ino| names.insert(ino.to_string().as_bytes(), child(ino)));
        names
    }

    #[test]
    fn files_made_next_to_each_other_are_asked_for_in_growing_numbers() {
        let mut names = named(200, 0);
        let dir = Child { ino: Ino(1000), is_dir: true };
        names.insert(b"3", dir);
        names.remove(b"5");
        let ask = |names: &mut Names, ino| names.with_next(Ino(ino)).iter().map(|i| i.0).collect();
        let asked: [Vec<u64>; 4] = [0, 1, 2, 9].map(|ino| ask(&mut names, ino));
        assert_eq!(asked[..3], [vec![0], vec![1, 2], vec![2, 4, 6, 7]]);
        assert_eq!(asked[3], (9..17).collect::<Vec<_>>());
        (0..9).for_each(|_| drop(names.with_next(Ino(0))));
        assert_eq!(names.with_next(Ino(100)).len(), MOST_AHEAD);
        assert_eq!(names.with_next(Ino(199)), [Ino(199)]);
    }

    #[test]
    fn names_of_directories_that_others_have_are_kept_within_bounds() {
        let mut parted = Parted::default();
        (0..=MOST_PARTED as u64).for_each(|dir| parted.keep(Ino(dir), named(1, dir)));
        assert_eq!((parted.known(Ino(0)), parted.known(Ino(1))), (None, Some(1)));
        parted.keep(Ino(1), named(1, 7));
        assert_eq!((parted.known(Ino(1)), parted.0.len()), (Some(7), MOST_PARTED));
        parted.keep(Ino(99), named(MOST_PARTED_NAMES as u64, 9));
        assert_eq!(parted.0.iter().map(|(dir, _)| dir.0).collect::<Vec<_>>(), [99]);
        assert_eq!(parted.take(Ino(99)).unwrap().known, 9);
        assert!(parted.take(Ino(99)).is_none());
    }

    #[test]
    fn files_that_come_and_go_take_no_memory_for_ever() {
        let mut names = Names::default();
        for ino in 0..2 * MOST_FRESH as u64 {
            names.note_made(b"again", Child { ino: Ino(ino), is_dir: false });
            names.remove(b"again");
        }
        assert_eq!((names.fresh.len(), names.children.len()), (MOST_FRESH, 0));
    }

    #[test]
    fn changes_are_followed_in_their_order() {
        let mut names = named(2, 5);
        let change = |name: &str, to| NameChange { name: name.into(), to };
        let changes = [
            change("0", None),
            change("new", Some((Ino(9), true))),
            change("1", Some((Ino(8), false))),
            change("new", None),
            change("0", Some((Ino(7), false))),
        ];
        names.follow(changes.into());
        let found = ["0", "1", "new"].map(|name| names.get(name.as_bytes()).map(|c| c.ino.0));
        assert_eq!(found, [Some(7), Some(8), None]);
    }
}
