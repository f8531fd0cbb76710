//! Answers operations from the journal. Everywhere, `None` means that the client has to ask the
//! server.

use std::sync::Arc;

use nuri_proto::Status;
use nuri_proto::acl::Inherited;
use nuri_proto::change::{S_IFBLK, S_IFCHR, S_IFDIR, S_IFIFO, S_IFLNK, S_IFMT, S_IFREG, S_IFSOCK};
use nuri_proto::id::Ino;
use nuri_proto::limit::{MAX_NAME, MAX_SYMLINK};
use nuri_proto::op::log::{Change, Fate, Step};
use nuri_proto::op::meta::{
    Attr, Extend, LeaseMode, Make, MakeKind, RemoveKind, Rename, RenameMode, SetAttr, Time, Unlink,
};
use nuri_rules::broken;
use parking_lot::MutexGuard;

use super::directory::{Child, Names};
use super::queue::Logged;
use super::xattrs::LONGEST;
use super::{Journal, JournalState, tell};
use crate::inode::known_xattrs::KnownXattrs;
use crate::inode::{Entry, FileData, Inode, InodeState};
use crate::lease::state::LeaseState;

const SPECIAL: [u32; 4] = [S_IFIFO, S_IFSOCK, S_IFCHR, S_IFBLK];

/// Whether the log can make that.
fn is_possible(call: &Make) -> bool {
    match &call.kind {
        MakeKind::File | MakeKind::Directory => true,
        MakeKind::Symlink(to) => (1..=MAX_SYMLINK).contains(&to.len()),
        MakeKind::Special { .. } => SPECIAL.contains(&(call.mode & S_IFMT)),
    }
}

/// Type bits of what is made.
fn type_of(call: &Make) -> u32 {
    match &call.kind {
        MakeKind::File => S_IFREG,
        MakeKind::Directory => S_IFDIR,
        MakeKind::Symlink(_) => S_IFLNK,
        MakeKind::Special { .. } => call.mode & S_IFMT,
    }
}

/// What the directory hands down, where that is known.
fn inherit(call: &Make, parent: &InodeState) -> Option<Inherited> {
    if matches!(call.kind, MakeKind::Symlink(_)) {
        return Some(Inherited::by_link());
    }
    let is_dir = call.kind == MakeKind::Directory;
    let list = parent.xattrs.default_list()?;
    // What waits in memory stays small.
    if list.is_some_and(|list| list.len() > LONGEST) {
        return None;
    }
    Inherited::from_directory(list, (call.mode & 0o7777, call.umask), is_dir).ok()
}

pub(super) fn is_plain_name(name: &[u8]) -> bool {
    (1..=MAX_NAME).contains(&name.len()) && name != b"." && name != b".."
}

impl InodeState {
    /// Attributes, while the inode is here alone and stays so.
    pub(crate) fn alone(&mut self) -> Option<&mut Attr> {
        let is_alone = self.hold.is_alone();
        self.attr.as_mut().filter(|_| is_alone)
    }

    /// Whether the inode lost its last name and is not open, as far as this mount knows. Then the
    /// server may have dropped it. Directories, special files and files opened only by path
    /// (`O_PATH`) are open in the kernel only.
    pub(super) fn may_be_gone(&self) -> bool {
        self.orphan && self.opens == 0 && !broken!("gone_is_journalled")
    }

    /// The time of the last change of a file that has bytes here and no place on the targets yet.
    pub(super) fn waits_for_place(&self) -> Option<Time> {
        let is_held = self.hold.mode == Some(LeaseMode::Write) && !self.orphan;
        let waits = |file: &&FileData| !file.is_placed() && !file.own.buffer.is_empty();
        self.file.as_deref().filter(|_| is_held).filter(waits)?;
        self.attr.map(|attr| attr.ctime)
    }

    /// As `alone`, of a directory whose names are known.
    pub(super) fn known_directory(&mut self) -> Option<&mut Attr> {
        if self.names_known { self.alone() } else { None }
    }
}

impl JournalState {
    pub(super) fn names(&mut self, dir: Ino) -> Option<&mut Names> {
        self.directories.get_mut(&dir)
    }
}

impl Journal {
    /// The journal, where it may answer now. A full journal is flushed first; its directories stay
    /// here.
    pub(super) fn open_journal(&self) -> Option<MutexGuard<'_, JournalState>> {
        let log = self.session.trusts_leases().then(|| self.state.lock())?;
        if log.queue.has_room() {
            return Some(log);
        }
        drop(log);
        self.flush().ok()?;
        Some(self.state.lock()).filter(|log| log.queue.has_room())
    }

    /// A stamp by the server's clock, and not before `floor`.
    pub(super) fn stamp(&self, floor: Time) -> Time {
        self.session.now().max(floor)
    }

    /// Finds a name in a known directory.
    pub(crate) fn lookup_journalled(&self, parent: Ino, name: &[u8]) -> Option<Option<Entry>> {
        if !is_plain_name(name) {
            return None;
        }
        let mut log = self.open_journal()?;
        let dir = self.inodes.find(parent)?;
        dir.state.lock().known_directory()?;
        let Some(child) = log.names(parent)?.get(name) else { return Some(None) };
        let node = self.inodes.find(child.ino)?;
        let mut state = node.state.lock();
        let attr = state.view().filter(|_| state.hold.mode.is_some())?;
        state.lookups += 1;
        Some(Some(Entry { ino: child.ino, attr }))
    }

    /// Whether the name is in a known directory.
    pub(crate) fn is_known_there(&self, parent: Ino, name: &[u8]) -> bool {
        let is_there = || {
            let mut log = self.open_journal()?;
            self.inodes.find(parent)?.state.lock().known_directory()?;
            log.names(parent)?.get(name)
        };
        is_there().is_some()
    }

    /// Makes a file, a directory or a symbolic link.
    pub(crate) fn make_journalled(&self, call: &Make) -> Option<Entry> {
        if !is_possible(call) || !is_plain_name(&call.name) {
            return None;
        }
        let dir = self.inodes.find(call.parent)?;
        if !dir.state.lock().names_known {
            return None;
        }
        self.provide_numbers();
        let mut log = self.open_journal()?;
        if log.names(call.parent)?.get(&call.name).is_some() {
            return None;
        }
        let mut parent = dir.state.lock();
        let now = self.stamp(parent.attr?.ctime);
        let inherited = inherit(call, &parent)?;
        let attr = parent.known_directory().filter(|attr| attr.nlink > 0)?;
        let ino = log.take_number()?;
        let is_dir = call.kind == MakeKind::Directory;
        let size = if let MakeKind::Symlink(to) = &call.kind { to.len() as u64 } else { 0 };
        let rdev = if let MakeKind::Special { rdev } = call.kind { rdev } else { 0 };
        let mode = type_of(call) | inherited.mode;
        let made = attr.made(mode, (call.uid, call.gid), now);
        let made = Attr { ino, size, rdev, change: inherited.change(), ..made };
        attr.name_added(is_dir, now);
        let step = Step { at: now, change: Change::Make(ino, call.clone()) };
        let step = log.append(Logged::new(step, &[ino, call.parent]));
        parent.logged = step;
        parent.usage.note_change();
        drop(parent);
        log.names(call.parent)?.note_made(&call.name, Child { ino, is_dir });
        if is_dir {
            log.directories.insert(ino, Names::of_new(&made));
        }
        self.hold_new(&made, inherited, step);
        Some(Entry { ino, attr: made })
    }

    /// Notes an inode that was made in the log, referred to by the kernel once.
    fn hold_new(&self, attr: &Attr, inherited: Inherited, step: u64) {
        self.inodes.with(attr.ino, |_, state| {
            (state.hold, state.attr, state.logged) = (LeaseState::own(), Some(*attr), step);
            state.xattrs = KnownXattrs::of_new(inherited);
            state.lookups += 1;
            (state.names, state.names_known) = (attr.is_dir(), attr.is_dir());
            if attr.mode & S_IFMT == S_IFREG {
                state.file = Some(Box::new(FileData::empty(self.session.id())));
            }
        });
    }

    /// Removes a name.
    pub(crate) fn remove_journalled(
        &self,
        parent: Ino,
        name: &[u8],
        kind: RemoveKind,
    ) -> Option<Result<(), Status>> {
        if !is_plain_name(name) {
            return None;
        }
        let mut log = self.open_journal()?;
        let dir = self.inodes.find(parent)?;
        dir.state.lock().known_directory()?;
        let Some(child) = log.names(parent)?.get(name) else { return Some(Err(Status::NOENT)) };
        match (kind, child.is_dir) {
            (RemoveKind::File, true) => return Some(Err(Status::ISDIR)),
            (RemoveKind::Directory, false) => return Some(Err(Status::NOTDIR)),
            _ => {}
        }
        let node = self.inodes.find(child.ino)?;
        if child.is_dir && self.has_names(child.ino)? {
            return Some(Err(Status::NOTEMPTY));
        }
        let step = log.queue.last() + 1;
        let (fate, now) = self.drop_name(&node, &dir, step, false)?;
        let mut parent_state = dir.state.lock();
        parent_state.attr.as_mut()?.name_removed(child.is_dir, now);
        parent_state.logged = step;
        parent_state.usage.note_change();
        drop(parent_state);
        log.names(parent)?.remove(name);
        log.directories.remove(&child.ino);
        let call = Unlink { parent, name: name.to_vec(), kind };
        let step = Step { at: now, change: Change::Unlink(call, fate) };
        log.append(Logged::new(step, &[child.ino, parent]));
        drop(log);
        self.forget_dropped(&node);
        Some(Ok(()))
    }

    /// An inode that is here alone loses a name, maybe to another one: then it lingers.
    fn drop_name(
        &self,
        node: &Arc<Inode>,
        dir: &Arc<Inode>,
        step: u64,
        is_replaced: bool,
    ) -> Option<(Fate, Time)> {
        let floor = dir.state.lock().alone()?.ctime;
        let mut state = node.state.lock();
        let attr = state.alone()?;
        let now = self.stamp(floor.max(attr.ctime));
        attr.link_dropped(now);
        let is_last = attr.nlink == 0;
        state.logged = step;
        state.orphan |= is_last;
        state.lingers |= is_last && is_replaced;
        let is_kept = is_replaced || state.opens > 0;
        let fate = if is_last && !is_kept { Fate::Dropped } else { Fate::Open };
        state.dropped = is_last && !is_kept;
        Some((fate, now))
    }

    /// What nobody can read again is not written out.
    fn forget_dropped(&self, node: &Arc<Inode>) {
        let mut state = node.state.lock();
        if !state.orphan || state.opens > 0 {
            return;
        }
        let Some(file) = &mut state.file else { return };
        let freed = file.own.forget();
        drop(state);
        self.budget.give(freed);
    }

    /// Changes attributes, without the size.
    pub(crate) fn setattr_journalled(&self, change: &SetAttr) -> Option<Attr> {
        let node = self.inodes.find(change.ino)?;
        let mut log = self.open_journal()?;
        let mut state = node.state.lock();
        // A publication on its way must not overwrite the times that are set here. One that comes
        // later tells the log first.
        let no_publication = node.sync.try_lock()?;
        if change.size.is_some() || state.may_be_gone() {
            return None;
        }
        let now = self.stamp(state.attr?.ctime);
        state.alone()?.set(change, now);
        if change.mtime.is_some()
            && let Some(file) = &mut state.file
        {
            file.own.mtime_is_set();
        }
        if change.atime.is_some() {
            state.accessed = None;
        }
        if let Some(mode) = change.mode {
            state.xattrs.follow_mode(mode);
        }
        let step = Step { at: now, change: Change::SetAttr(change.clone()) };
        state.logged = log.append(Logged::new(step, &[change.ino]));
        drop(no_publication);
        state.view()
    }

    /// Truncates a file to 0. Its data gets another object, which is not known before the file
    /// grows again, as with a file that was made here.
    pub(crate) fn empty_journalled(&self, change: &SetAttr) -> Option<Attr> {
        let node = self.inodes.find(change.ino)?;
        let mut log = self.open_journal()?;
        let mut state = node.state.lock();
        let now = self.stamp(state.alone()?.ctime);
        let is_named = !state.orphan;
        let file = state.file.as_mut().filter(|file| {
            let is_idle = !file.own.buffer.has_flying() && !file.is_written_through;
            is_named && is_idle && file.is_writable && !file.own.is_written_beside()
        })?;
        let step = Step { at: now, change: Change::SetAttr(change.clone()) };
        let step = log.append(Logged::new(step, &[change.ino]));
        let freed = file.begin_anew(step);
        state.alone()?.emptied(change, now);
        state.logged = step;
        let attr = state.view();
        drop((state, log));
        self.budget.give(freed);
        attr
    }

    /// Journals that a file gets too long to be inline.
    pub(super) fn extend_journalled(&self, ino: Ino) -> Option<()> {
        let node = self.inodes.find(ino)?;
        let mut log = self.open_journal()?;
        let mut state = node.state.lock();
        let is_named = !state.orphan;
        let floor = state.alone().filter(|_| is_named)?.ctime;
        state.logged = log.append(self.extension(ino, floor));
        Some(())
    }

    /// As above, for a file with bytes that have to leave before its lease is given back.
    pub(super) fn extend_to_push(&self, ino: Ino) -> Option<()> {
        let node = self.inodes.find(ino)?;
        let mut log = self.open_journal()?;
        let mut state = node.state.lock();
        let floor = state.waits_for_place()?;
        state.logged = log.append(self.extension(ino, floor));
        Some(())
    }

    pub(super) fn extension(&self, ino: Ino, floor: Time) -> Logged {
        let step = Step {
            at: self.stamp(floor),
            change: Change::Extend(Extend { ino, is_cut_done: false }),
        };
        Logged::new(step, &[ino])
    }

    /// Moves a name, over another one or over nothing. A directory is moved only where no rename
    /// that another client asks for meanwhile makes a loop with it (JOURNAL-7).
    pub(crate) fn rename_journalled(&self, call: &Rename) -> Option<Result<(), Status>> {
        let are_plain = is_plain_name(&call.name) && is_plain_name(&call.new_name);
        if call.mode == RenameMode::Exchange || call.mode.leaves_whiteout() || !are_plain {
            return None;
        }
        let mut log = self.open_journal()?;
        let (from, to) = (self.inodes.find(call.parent)?, self.inodes.find(call.new_parent)?);
        from.state.lock().known_directory()?;
        to.state.lock().known_directory()?;
        let Some(moved) = log.names(call.parent)?.get(&call.name) else {
            return Some(Err(Status::NOENT));
        };
        let replaced = log.names(call.new_parent)?.get(&call.new_name);
        match replaced {
            Some(_) if !call.mode.may_replace() => return Some(Err(Status::EXIST)),
            Some(other) if other.ino == moved.ino => return Some(Ok(())),
            Some(other) if !moved.is_dir && other.is_dir => return Some(Err(Status::ISDIR)),
            Some(other) if moved.is_dir && !other.is_dir => return Some(Err(Status::NOTDIR)),
            Some(other) if other.is_dir && self.has_names(other.ino)? => {
                return Some(Err(Status::NOTEMPTY));
            }
            _ => {}
        }
        let node = self.inodes.find(moved.ino)?;
        if moved.is_dir && !self.may_move_directory(call, &node)? {
            return None;
        }
        let over = replaced.map(|other| self.inodes.find(other.ino).ok_or(())).transpose().ok()?;
        if let Some(over) = &over {
            over.state.lock().alone()?;
        }
        self.publish_before(&mut log, &node)?;
        let step = log.queue.last() + 1;
        let mut fate = Fate::Dropped;
        if let Some(over) = &over {
            fate = self.drop_name(over, &to, step, true)?.0;
        }
        let replaced_dir = replaced.map(|other| other.is_dir);
        let now = self.move_name((&from, &to), &node, replaced_dir, step)?;
        from.state.lock().usage.note_change();
        to.state.lock().usage.note_change();
        log.names(call.parent)?.remove(&call.name);
        log.names(call.new_parent)?.insert(&call.new_name, moved);
        if let Some(Child { ino, is_dir: true }) = replaced {
            log.directories.remove(&ino);
        }
        let step = Step { at: now, change: Change::Rename(call.clone(), fate) };
        let replaced = replaced.map_or(moved.ino, |other| other.ino);
        log.append(Logged::new(step, &[call.parent, call.new_parent, moved.ino, replaced]));
        drop(log);
        let is_gone = |over: &Arc<Inode>| over.state.lock().orphan;
        over.filter(is_gone).iter().for_each(|over| self.deferred.defer(over.ino));
        Some(Ok(()))
    }

    /// Whether there is anything in a directory that is known here.
    fn has_names(&self, dir: Ino) -> Option<bool> {
        Some(self.inodes.find(dir)?.state.lock().known_directory()?.size > 0)
    }

    /// Whether the journal may move the directory: within its parent, or while there are no
    /// directories in it.
    fn may_move_directory(&self, call: &Rename, node: &Inode) -> Option<bool> {
        let mut state = node.state.lock();
        if call.parent == call.new_parent {
            return state.alone().map(|_| true);
        }
        // While its names are known here the server is asked to make none in it.
        let is_leaf = state.known_directory()?.nlink == 2;
        Some(is_leaf && node.ino != call.new_parent)
    }

    /// The file of a known directory, if it has unpublished data that the journal does not take.
    pub(crate) fn with_pushed_data(&self, parent: Ino, name: &[u8]) -> Option<Arc<Inode>> {
        let child = self.open_journal()?.names(parent)?.get(name)?;
        let node = self.inodes.find(child.ino)?;
        let state = node.state.lock();
        let is_flushed = self.is_flushed(state.logged);
        let file = state.file.as_ref().filter(|f| f.own.is_dirty())?;
        let waits = file.own.inline().is_none() || is_flushed;
        drop(state);
        waits.then_some(node)
    }

    /// Data must not come after the name that it is moved to: what is not published goes into the
    /// log first.
    fn publish_before(&self, log: &mut JournalState, node: &Arc<Inode>) -> Option<()> {
        let mut state = node.state.lock();
        state.alone()?;
        if state.file.as_ref().is_none_or(|f| !f.own.is_dirty()) {
            return Some(());
        }
        if self.is_flushed(state.logged) {
            return None;
        }
        let logged = tell::publication(&mut state, self.session.now())?;
        if let Some(file) = &mut state.file {
            file.own.published_inline(file.own.size(), file.own.version());
        }
        state.logged = log.append(logged);
        Some(())
    }

    /// Attributes of both directories and the inode after a name moved.
    fn move_name(
        &self,
        (from, to): (&Arc<Inode>, &Arc<Inode>),
        node: &Arc<Inode>,
        replaced_dir: Option<bool>,
        step: u64,
    ) -> Option<Time> {
        let latest = [from, to, node]
            .into_iter()
            .filter_map(|n| n.state.lock().attr.map(|attr| attr.ctime))
            .max()?;
        let now = self.stamp(latest);
        let alter = |node: &Arc<Inode>, change: &dyn Fn(&mut Attr)| {
            let mut state = node.state.lock();
            state.logged = step;
            state.attr.as_mut().map(change)
        };
        let is_dir = node.state.lock().attr?.is_dir();
        if let Some(was_dir) = replaced_dir {
            alter(to, &|attr| attr.name_removed(was_dir, now))?;
        }
        alter(from, &|attr| attr.name_removed(is_dir, now))?;
        alter(to, &|attr| attr.name_added(is_dir, now))?;
        alter(node, &|attr| attr.changed(now))?;
        Some(now)
    }
}
