//! The client's API: `fallocate`. It reserves space for a range, punches holes, and writes zeros.

use std::time::Instant;

use nuri_proto::Status;
use nuri_proto::id::Ino;
use nuri_proto::limit::MAX_FILE;
use nuri_proto::op::meta::{LeaseMode, SetAttr};
use nuri_rules::{broken, pause};
use nuri_volume::punch::Room;

use crate::client::Client;
use crate::writeback::machine::SyncScope;

/// What `fallocate` shall do with a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Allocate {
    /// Have room for the range, and the file reach its end.
    Extend,
    /// Have room for the range, also for what lies beyond the file's end.
    KeepSize,
    /// Make the range a hole.
    Punch,
    /// Make the range read as zeros, have room for it, and extend the file to its end.
    Zero,
    /// As `Zero`, without extending.
    ZeroKeepSize,
}

impl Client {
    /// Allocates, punches or zeros a range of a file, and may change the file's size.
    ///
    /// # Errors
    /// The servers'.
    pub fn allocate(&self, ino: Ino, how: Allocate, at: u64, len: u64) -> Result<(), Status> {
        let end = at.checked_add(len).filter(|end| *end <= MAX_FILE).ok_or(Status::FBIG)?;
        let node = self.inodes.with(ino, |node, _| node.clone());
        let _no_writes_past_the_kernel = node.change_size();
        self.journal.ensure_placed(ino)?;
        match how {
            Allocate::Punch => self.punch(ino, at, end, Room::GivenBack)?,
            Allocate::Zero | Allocate::ZeroKeepSize => self.punch(ino, at, end, Room::Kept)?,
            Allocate::Extend | Allocate::KeepSize => {}
        }
        if how != Allocate::Punch {
            self.have_room(ino, at, end)?;
        }
        let extends = matches!(how, Allocate::Extend | Allocate::Zero);
        if extends { self.grow_alone(ino, end) } else { Ok(()) }
    }

    /// Makes a file that is shorter as long as that. Looks under the lease by which it grows:
    /// another mount may write further meanwhile. Under `Inode::change_size`.
    fn grow_alone(&self, ino: Ino, end: u64) -> Result<(), Status> {
        let seen = self.getattr(ino)?.size;
        pause!("grow");
        let entered = self.leases.enter(ino, LeaseMode::Write)?;
        let node = &entered.0;
        let size = match broken!("grown_unseen") {
            true => seen,
            false => node.state.lock().file.as_ref().ok_or(Status::IO)?.own.size(),
        };
        pause!("grow");
        if size < end {
            self.resize_alone(node, &SetAttr { ino, size: Some(end), ..SetAttr::default() })?;
        }
        Ok(())
    }

    fn punch(&self, ino: Ino, at: u64, end: u64, room: Room) -> Result<(), Status> {
        let entered = self.leases.enter(ino, LeaseMode::Write)?;
        let node = &entered.0;
        self.writeback.sync_node(node, SyncScope::All)?;
        let _no_publication = node.sync.lock();
        let now = self.session.now();
        let (session, layout, object, end) = {
            let mut state = node.state.lock();
            let file = state.file.as_mut().ok_or(Status::IO)?;
            let end = end.min(file.own.size());
            file.own.touch(now, Instant::now());
            if file.own.zero_inline(at..end) {
                drop(state);
                self.writeback.mark_dirty(node);
                return Ok(());
            }
            (file.session, file.layout.clone(), file.object, end)
        };
        let len = end.saturating_sub(at);
        let punched = self.data.punch(session, (&layout, object), (at, len), room);
        if let Some(file) = &mut node.state.lock().file {
            // What was fetched ahead meanwhile is from before, whole or in part.
            file.own.touch(now, Instant::now());
            file.own.gave_back(*punched.as_ref().unwrap_or(&0), (at, end));
        }
        self.writeback.mark_dirty(node);
        punched.map(|_| ())
    }
}
