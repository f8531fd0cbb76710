//! The client's API: names. The client sends a call to the server where its journal (`journal/`)
//! cannot answer it.

use nuri_proto::id::Ino;
use nuri_proto::op::Call;
use nuri_proto::op::meta::{
    Acquire, Attr, Exclusive, FileRecord, GetAttr, InodeReply, LeaseMode, Link, Lookup, Make,
    MakeKind, MakeUnnamed, ReadDir, RemoveKind, Rename, RenameMode, Unlink, WithAttrs,
};
use nuri_proto::op::once::{CallDone, CallsDone, ChangeOnce, NameChange, Remember};
use nuri_proto::{Status, codec};
use nuri_rules::broken;

use crate::api::file::Access;
use crate::client::Client;
use crate::inode::{Entry, FileData};
use crate::writeback::machine::SyncScope;

/// Names that are asked for at once, of all that a directory has.
const NAMES: u32 = 1024;

/// Calls done at an address that are read at most: a server keeps a quarter of them.
const MOST_CALLS: usize = 16_384;

/// A name, and the directory that it is in.
type Place<'a> = (Ino, &'a [u8]);

/// The inode that has the name after a call that makes it. If the file need not be new, this may be
/// an inode that existed before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Made {
    pub entry: Entry,
    /// It was there before, so others may know it.
    pub was_there: bool,
}

/// A page of a directory.
pub struct Listing {
    pub entries: Vec<ListingEntry>,
    pub parent: Ino,
    pub end: bool,
    /// Where the next new name will be.
    pub next: u64,
}

/// An entry of a directory page.
pub struct ListingEntry {
    pub cookie: u64,
    pub ino: Ino,
    pub kind: u8,
    pub name: Vec<u8>,
}

impl Client {
    /// Finds a name.
    ///
    /// # Errors
    /// The server's; a missing name is `Ok(None)`.
    pub fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Option<Entry>, Status> {
        self.journal.take_turn(parent);
        if let Some(found) = self.journal.lookup_journalled(parent, name) {
            return Ok(found);
        }
        self.journal.fetch_children(parent, name);
        if let Some(found) = self.journal.lookup_journalled(parent, name) {
            return Ok(found);
        }
        if let Some(entry) = self.dentries.lookup_found(parent, name) {
            return Ok(Some(entry));
        }
        // While the directory is being given back its last names may not be told yet.
        self.journal.flush_of(parent)?;
        let before = self.dentries.before_finding(parent);
        let reply = self.session.call(&Lookup { parent, name: name.to_vec() })?;
        self.learn_dir(parent, reply.dir_lease);
        let Some(inode) = reply.inode else { return Ok(None) };
        let entry = self.refer(&inode);
        let age = self.dentries.age_of(parent, before, reply.dir_lease);
        self.dentries.note_found(parent, name, age, entry.ino);
        Ok(Some(entry))
    }

    /// Finds an inode by its number alone, for a caller that kept a handle of it.
    ///
    /// # Errors
    /// `STALE` where it is gone.
    pub fn lookup_number(&self, ino: Ino) -> Result<Entry, Status> {
        self.journal.flush_of(ino)?;
        let in_parts = self.is_in_parts(ino);
        let _asking = in_parts.then(|| self.leases.ask_whole(ino)).transpose()?;
        let inode = self.session.call(&GetAttr { ino })?;
        // It lost its last name, and waits for its last close.
        if inode.attr.nlink == 0 { Err(Status::STALE) } else { Ok(self.refer(&inode)) }
    }

    /// Finds the directory above a directory.
    ///
    /// # Errors
    /// `STALE` where the directory is gone.
    pub fn lookup_above(&self, dir: Ino) -> Result<Entry, Status> {
        let listing = self.readdir(dir, u64::MAX >> 1, 1, WithAttrs::No)?;
        self.lookup_number(listing.parent)
    }

    fn learn_dir(&self, dir: Ino, lease: Option<nuri_proto::op::meta::Grant>) {
        self.inodes.with(dir, |_, state| {
            state.names = true;
            state.hold.take(lease, self.session.standing());
        });
    }

    /// Takes over a reply that gives the kernel one more reference to the inode.
    fn refer(&self, reply: &InodeReply) -> Entry {
        let ino = reply.attr.ino;
        self.session.saw(&reply.attr);
        let attr = self.inodes.with(ino, |_, state| {
            state.apply(&reply.attr, reply.lease, self.session.standing());
            state.lookups += 1;
            state.shown(reply.attr)
        });
        Entry { ino, attr }
    }

    /// Makes a directory entry. Files come with their data record, ready to be written.
    ///
    /// # Errors
    /// The server's.
    pub fn make(&self, call: &Make) -> Result<Entry, Status> {
        self.make_or_find(call).map(|made| made.entry)
    }

    /// As [`Client::make`], remembered with the change if `done` says as what.
    ///
    /// # Errors
    /// The server's; `DONE_BEFORE` where it was done under the same key.
    pub fn make_once(&self, call: &Make, done: Option<Remember>) -> Result<Entry, Status> {
        match done {
            Some(_) => self.make_by_server(call, done).map(|made| made.entry),
            None => self.make(call),
        }
    }

    /// As [`Client::make`]; tells whether it was there.
    ///
    /// # Errors
    /// The server's.
    pub fn make_or_find(&self, call: &Make) -> Result<Made, Status> {
        let make = || {
            self.journal.take_directory(call.parent);
            self.make_here(call).transpose()
        };
        if let Some(outcome) = self.journal.in_turns(&[call.parent], make) {
            // Of files the journal knows it, where it matters.
            if let (Ok(made), MakeKind::Directory) = (&outcome, &call.kind) {
                self.dentries.note_place(call.parent, &call.name, made.entry.ino);
            }
            return outcome;
        }
        self.make_by_server(call, None)
    }

    fn make_by_server(&self, call: &Make, done: Option<Remember>) -> Result<Made, Status> {
        let _direct = self.journal.begin_direct(&[call.parent])?;
        let forgotten = self.forgotten(call.parent);
        let reply = self.change_name(call, done)?;
        self.learn_dir(call.parent, reply.entry.dir_lease);
        self.directory_changed(call.parent, reply.parent, forgotten);
        let inode = &reply.entry.inode;
        let entry = self.refer(inode);
        self.take_record(reply.file, &inode.attr);
        if !reply.existed {
            self.note_made(inode.attr.ino);
        }
        self.dentries.note_place(call.parent, &call.name, inode.attr.ino);
        self.journal.know_new_directory(&inode.attr);
        Ok(Made { entry, was_there: reply.existed })
    }

    /// Opens the inode that was just made or found. If the open fails, no reference to the inode
    /// stays.
    ///
    /// # Errors
    /// The server's.
    pub fn open_made(&self, ino: Ino, access: Access) -> Result<u64, Status> {
        self.open(ino, access).inspect_err(|_| _ = self.forget(ino, 1))
    }

    /// It was made here: as long as the write lease is kept nobody else has it open.
    fn note_made(&self, ino: Ino) {
        self.inodes.with(ino, |_, state| state.hold.is_private = state.hold.is_alone());
    }

    /// Makes it by the log, or finds it in a directory that is known here; `None`: the server has
    /// to be asked.
    fn make_here(&self, call: &Make) -> Result<Option<Made>, Status> {
        if let Some(entry) = self.journal.make_journalled(call) {
            return Ok(Some(Made { entry, was_there: false }));
        }
        if !self.journal.is_known_there(call.parent, &call.name) {
            return Ok(None);
        }
        if call.exclusive == Exclusive::Yes || call.kind != MakeKind::File {
            return Err(Status::EXIST);
        }
        let found = self.lookup(call.parent, &call.name)?;
        Ok(found.map(|entry| Made { entry, was_there: true }))
    }

    fn take_record(&self, record: Option<FileRecord>, attr: &Attr) {
        let Some(record) = record else { return };
        self.inodes.with(attr.ino, |_, state| {
            if state.hold.mode.is_some() && state.file.is_none() && record.punch_from.is_none() {
                self.data.groups().forget_object(record.object);
                let is_writable = state.hold.mode == Some(LeaseMode::Write);
                let data = FileData::new(self.session.id(), record, attr);
                state.file = Some(Box::new(FileData { is_writable, ..data }));
            }
        });
    }

    /// Makes a file without a name and opens it. [`Client::link`] may give it a name; otherwise the
    /// file is removed at its last close.
    ///
    /// # Errors
    /// The server's.
    pub fn make_unnamed(&self, call: &MakeUnnamed, access: Access) -> Result<(Entry, u64), Status> {
        self.journal.flush_of(call.parent)?;
        let reply = self.session.change(call, &[])?;
        let entry = self.refer(&reply.inode);
        self.take_record(reply.file, &reply.inode.attr);
        self.note_made(entry.ino);
        self.inodes.with(entry.ino, |_, state| state.orphan = true);
        let opened = self.open(entry.ino, access);
        if opened.is_err() {
            self.leases.note_orphan(entry.ino);
            self.forget(entry.ino, 1);
        }
        Ok((entry, opened?))
    }

    /// Does it by the journal, where it need not be remembered.
    fn journalled<T>(
        &self,
        done: &Option<Remember>,
        dirs: &[Ino],
        act: impl Fn() -> Option<T>,
    ) -> Option<T> {
        done.is_none().then(|| self.journal.in_turns(dirs, act)).flatten()
    }

    fn change_name<C: Call + Clone + Into<NameChange>>(
        &self,
        call: &C,
        done: Option<Remember>,
    ) -> Result<C::Reply, Status> {
        let Some(done) = done else { return self.session.change(call, &[]) };
        let call = ChangeOnce { done, change: call.clone().into() };
        codec::decode(&self.session.change(&call, &[])?.reply)
    }

    /// Calls that were done at the address that a file stands for.
    ///
    /// # Errors
    /// The server's.
    pub fn calls_done(&self, place: Ino) -> Result<Vec<CallDone>, Status> {
        let mut all: Vec<CallDone> = Vec::new();
        loop {
            let after = all.last().map(|last| last.key);
            let page = self.session.call(&CallsDone { place, after, max: NAMES })?.calls;
            if page.is_empty() || all.len() > MOST_CALLS {
                return Ok(all);
            }
            all.extend(page);
        }
    }

    fn forgotten(&self, dir: Ino) -> u64 {
        self.inodes.find(dir).map_or(0, |node| node.state.lock().forgotten)
    }

    /// An own call changed a directory, if the answer has its attributes.
    fn directory_changed(&self, dir: Ino, attr: Option<Attr>, forgotten: u64) {
        if let Some(attr) = attr {
            self.session.saw(&attr);
            self.inodes.with(dir, |_, state| state.directory_changed(attr, forgotten));
        }
    }

    /// A directory's own attributes changed with its entries.
    fn forget_dir_attr(&self, dir: Ino) {
        self.leases.forget_attr(dir);
    }

    /// Gives an inode a further name.
    ///
    /// # Errors
    /// The server's.
    pub fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Entry, Status> {
        self.link_once(ino, (parent, name), None)
    }

    /// As [`Client::link`], remembered as [`Client::make_once`] is.
    ///
    /// # Errors
    /// The server's.
    pub fn link_once(
        &self,
        ino: Ino,
        (parent, name): (Ino, &[u8]),
        done: Option<Remember>,
    ) -> Result<Entry, Status> {
        let call = Link { ino, parent, name: name.to_vec() };
        let link = || {
            self.journal.take_directory(parent);
            self.journal.take_linked(ino, parent);
            self.journal.link_journalled(&call)
        };
        if let Some(outcome) = self.journalled(&done, &[parent], link) {
            return outcome;
        }
        let _direct = self.journal.begin_direct(&[parent])?;
        let reply = self.change_name(&call, done)?;
        self.learn_dir(parent, reply.dir_lease);
        self.forget_dir_attr(parent);
        // A file that never had a name has one now.
        self.inodes.with(ino, |_, state| state.orphan = false);
        Ok(self.refer(&reply.inode))
    }

    /// Removes a name.
    ///
    /// # Errors
    /// The server's.
    pub fn remove(&self, parent: Ino, name: &[u8], kind: RemoveKind) -> Result<(), Status> {
        self.remove_once((parent, name), kind, None)
    }

    /// As [`Client::remove`], remembered as [`Client::make_once`] is.
    ///
    /// # Errors
    /// The server's.
    pub fn remove_once(
        &self,
        (parent, name): (Ino, &[u8]),
        kind: RemoveKind,
        done: Option<Remember>,
    ) -> Result<(), Status> {
        let remove = || {
            self.journal.take_directory(parent);
            self.journal.take_child(parent, name);
            self.journal.remove_journalled(parent, name, kind)
        };
        if let Some(outcome) = self.journalled(&done, &[parent], remove) {
            return outcome;
        }
        let _direct = self.journal.begin_direct(&[parent])?;
        let call = Unlink { parent, name: name.to_vec(), kind };
        let forgotten = self.forgotten(parent);
        let reply = self.change_name(&call, done)?;
        self.directory_changed(parent, Some(reply.parent), forgotten);
        self.leases.removed(reply.removed);
        Ok(())
    }

    /// Moves a name. Unsynced data of the moved file is made durable first, so that a crash
    /// never leaves the new name without the data.
    ///
    /// # Errors
    /// The server's.
    pub fn rename(
        &self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        mode: RenameMode,
    ) -> Result<(), Status> {
        self.rename_once((from, to), mode, None)
    }

    /// As [`Client::rename`], remembered as [`Client::make_once`] is.
    ///
    /// # Errors
    /// The server's.
    pub fn rename_once(
        &self,
        (from, to): (Place<'_>, Place<'_>),
        mode: RenameMode,
        done: Option<Remember>,
    ) -> Result<(), Status> {
        let call = Rename {
            parent: from.0,
            name: from.1.to_vec(),
            new_parent: to.0,
            new_name: to.1.to_vec(),
            mode,
        };
        let rename = || {
            for (dir, name) in [from, to] {
                self.journal.take_directory(dir);
                self.journal.take_child(dir, name);
            }
            let moved = self.journal.with_pushed_data(from.0, from.1);
            match moved.map_or(Ok(()), |moved| self.writeback.sync_node(&moved, SyncScope::All)) {
                Ok(()) => self.journal.rename_journalled(&call),
                Err(status) => Some(Err(status)),
            }
        };
        if let Some(outcome) = self.journalled(&done, &[from.0, to.0], rename) {
            return outcome;
        }
        let _direct = self.journal.begin_direct(&[from.0, to.0])?;
        if self.writeback.has_dirty_files() {
            let call = Lookup { parent: from.0, name: from.1.to_vec() };
            let found = self.session.call(&call)?.inode;
            if let Some(node) = found.and_then(|inode| self.inodes.find(inode.attr.ino)) {
                self.writeback.sync_node(&node, SyncScope::All)?;
            }
        }
        let reply = self.change_name(&call, done)?;
        self.forget_dir_attr(from.0);
        self.forget_dir_attr(to.0);
        self.leases.forget_attr(reply.moved);
        if let Some(replaced) = reply.replaced {
            if replaced.orphan {
                self.deferred.defer(replaced.ino);
            }
            self.leases.forget_attr(replaced.ino);
        }
        Ok(())
    }

    /// Makes all changes of names and attributes so far durable, those of the directory and its
    /// parents too.
    ///
    /// # Errors
    /// The server is not reached; once, something of the directory could not be kept.
    pub fn sync_directory(&self, ino: Ino) -> Result<(), Status> {
        let told = match broken!("sync_without_log") {
            true => Ok(()),
            false => self.journal.flush(),
        };
        let lost = self.inodes.with(ino, |_, state| std::mem::take(&mut state.errors));
        if lost > 0 { Err(Status::IO) } else { told }
    }

    /// Where a symbolic link points.
    ///
    /// # Errors
    /// `INVAL` for other inodes.
    pub fn readlink(&self, ino: Ino) -> Result<Vec<u8>, Status> {
        self.journal.flush_of(ino)?;
        let reply = self.session.call(&Acquire { ino, mode: LeaseMode::Read })?;
        self.inodes.learn(&reply.inode);
        reply.symlink.ok_or(Status::INVAL)
    }

    /// All names of a directory. If the directory was never made, there are none.
    ///
    /// # Errors
    /// The server's.
    pub fn all_names(&self, dir: Ino) -> Result<Vec<Vec<u8>>, Status> {
        let (mut names, mut cookie) = (Vec::new(), 0);
        loop {
            let page = match self.readdir(dir, cookie, NAMES, WithAttrs::No) {
                Err(Status::STALE) => return Ok(names),
                page => page?,
            };
            cookie = page.entries.last().map_or(cookie, |entry| entry.cookie);
            names.extend(page.entries.into_iter().map(|entry| entry.name));
            if page.end {
                return Ok(names);
            }
        }
    }

    /// Lists a directory after `cookie`.
    ///
    /// # Errors
    /// The server's.
    pub fn readdir(
        &self,
        ino: Ino,
        cookie: u64,
        max: u32,
        attrs: WithAttrs,
    ) -> Result<Listing, Status> {
        // Positions are the server's.
        self.journal.flush()?;
        let before = self.dentries.before_finding(ino);
        let reply = self.session.call(&ReadDir { ino, cookie, max, attrs })?;
        let standing = self.session.standing();
        self.inodes.with(ino, |_, state| _ = state.hold.take(reply.dir_lease, standing));
        let age = self.dentries.age_of(ino, before, reply.dir_lease);
        let entry = |e: nuri_proto::op::meta::DirEntry| {
            if let Some(inode) = e.inode {
                self.inodes.learn(&inode);
                self.dentries.note_found(ino, &e.name, age, e.ino);
            }
            ListingEntry { cookie: e.cookie, ino: e.ino, kind: e.kind, name: e.name }
        };
        let entries = reply.entries.into_iter().map(entry).collect();
        let (parent, end, next) = (reply.parent, reply.end, reply.next);
        Ok(Listing { entries, parent, end, next })
    }
}
