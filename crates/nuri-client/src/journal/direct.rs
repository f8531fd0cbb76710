//! Changes that go to the server directly, without the journal.

use nuri_proto::Status;
use nuri_proto::id::Ino;
use nuri_proto::op::meta::{Acquire, FileRecord, LeaseMode};

use super::Journal;
use crate::inode::{FileData, Inode, InodeState};

/// A direct change of directories; ends when dropped.
pub(crate) struct Direct<'s> {
    journal: &'s Journal,
    dirs: Vec<Ino>,
}

impl Drop for Direct<'_> {
    fn drop(&mut self) {
        for dir in &self.dirs {
            if let Some(node) = self.journal.inodes.find(*dir) {
                let mut state = node.state.lock();
                state.names_changed();
                state.usage.direct = state.usage.direct.saturating_sub(1);
            }
        }
    }
}

impl Journal {
    /// Called before the server is asked to change directories. From now on nothing is journalled
    /// in them, and everything that was journalled anywhere is flushed (JOURNAL-5).
    ///
    /// # Errors
    /// The journal cannot be flushed.
    pub(crate) fn begin_direct(&self, dirs: &[Ino]) -> Result<Direct<'_>, Status> {
        let mut log = self.state.lock();
        for dir in dirs {
            self.inodes.with(*dir, |_, state| {
                log.leave(*dir, state);
                state.usage.begin();
            });
        }
        drop(log);
        let direct = Direct { journal: self, dirs: dirs.to_vec() };
        self.flush()?;
        Ok(direct)
    }

    /// Makes sure that the server knows the inode.
    ///
    /// # Errors
    /// The journal cannot be flushed.
    pub(crate) fn flush_of(&self, ino: Ino) -> Result<(), Status> {
        let logged = self.inodes.find(ino).map_or(0, |node| node.state.lock().logged);
        if self.is_flushed(logged) { Ok(()) } else { self.flush() }
    }

    /// Makes sure that the file has a place on the targets.
    ///
    /// # Errors
    /// The server's.
    pub(crate) fn ensure_placed(&self, ino: Ino) -> Result<(), Status> {
        if self.is_placed(ino) {
            return Ok(());
        }
        let emptied_at = |state: &InodeState| state.file.as_ref().map(|file| file.emptied_at);
        let before = self.inodes.with(ino, |_, state| emptied_at(state));
        self.flush()?;
        let reply = self.session.call(&Acquire { ino, mode: LeaseMode::Write })?;
        let record = reply.file.ok_or(Status::IO)?;
        self.inodes.with(ino, |_, state| {
            state.hold.take(reply.inode.lease, self.session.standing());
            let is_current = before == emptied_at(state);
            if let Some(file) = state.file.as_mut().filter(|_| is_current) {
                self.place(file, record);
            }
        });
        Ok(())
    }

    fn is_placed(&self, ino: Ino) -> bool {
        let is_placed =
            |node: &Inode| node.state.lock().file.as_ref().is_none_or(|f| f.is_placed());
        self.inodes.find(ino).is_none_or(|node| is_placed(&node))
    }

    /// Notes where the file's data goes, if that was not known.
    pub(super) fn place(&self, file: &mut FileData, record: FileRecord) {
        if !file.is_placed() {
            self.data.groups().forget_object(record.object);
            (file.object, file.layout) = (record.object, record.layout.into());
        }
    }

    /// As [`Journal::ensure_placed`], before bytes leave for that place. One call, with everything
    /// that was journalled before, says that the file grows, and its answer says where the data
    /// goes.
    ///
    /// # Errors
    /// The server's.
    pub(crate) fn ensure_placed_to_grow(&self, ino: Ino) -> Result<(), Status> {
        if !self.is_placed(ino) && self.extend_journalled(ino).is_some() {
            self.flush()?;
        }
        self.ensure_placed(ino)
    }

    /// As [`Journal::ensure_placed_to_grow`], for a file with bytes that are about to leave, also
    /// while its lease is recalled. The lease is given back after these bytes.
    ///
    /// # Errors
    /// The server's.
    pub(crate) fn ensure_placed_to_push(&self, ino: Ino) -> Result<(), Status> {
        if self.extend_to_push(ino).is_some() {
            self.flush()?;
        }
        self.ensure_placed(ino)
    }
}
