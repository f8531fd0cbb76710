//! Acquires leases. An operation enters under the lease that it needs. The client asks the server
//! where it does not hold that lease.

use std::sync::Arc;
use std::time::Duration;

use nuri_proto::Status;
use nuri_proto::clock::REQUEST;
use nuri_proto::id::{Ino, SessionId};
use nuri_proto::limit::MAX_INLINE;
use nuri_proto::op::meta::{
    Acquire, Attr, FileRecord, InodeReply, LeaseMode, RemoveReply, TruncateDone,
};
use nuri_proto::range_map::Span;
use nuri_rpc::Awake;
use nuri_rules::broken;
use nuri_volume::DataPlane;
use parking_lot::Mutex;

use crate::inode::deferred_unlink::DeferredUnlinks;
use crate::inode::size_change::{KeptAway, WritingPast};
use crate::inode::table::InodeTable;
use crate::inode::{FileData, Inode, InodeState};
use crate::journal::Journal;
use crate::lease::invalidate::{Awaiting, KernelCaches};
use crate::lease::range::Wanted;
use crate::session::MetaSession;
use crate::writeback::Writeback;

/// The leases of a client: how they are acquired, given back and lost.
pub(crate) struct Leases {
    pub(super) session: Arc<MetaSession>,
    pub(super) inodes: Arc<InodeTable>,
    pub(super) journal: Arc<Journal>,
    pub(super) data: DataPlane,
    pub(super) writeback: Arc<Writeback>,
    pub(super) kernel: Arc<KernelCaches>,
    pub(super) deferred: Arc<DeferredUnlinks>,
    /// Inodes without a name that nobody has open here: the server is told.
    pub(super) orphans: Mutex<Vec<Ino>>,
}

/// What [`Leases`] work with.
pub(crate) struct LeaseParts {
    pub(crate) session: Arc<MetaSession>,
    pub(crate) inodes: Arc<InodeTable>,
    pub(crate) journal: Arc<Journal>,
    pub(crate) data: DataPlane,
    pub(crate) writeback: Arc<Writeback>,
    pub(crate) kernel: Arc<KernelCaches>,
    pub(crate) deferred: Arc<DeferredUnlinks>,
}

/// A lease that was asked for.
pub(crate) struct Asked {
    pub(crate) mode: LeaseMode,
    /// Since when it was held before the call.
    pub(crate) before: Option<u64>,
    /// A capability may be set on the file.
    pub(crate) has_capability: bool,
}

/// Which bytes an operation reads or writes.
#[derive(Clone, Copy)]
enum Bytes {
    /// It is not known what the kernel keeps locked for it.
    None,
    Read(Span),
    Written(Wanted),
    /// Written at the file's end, wherever that is.
    Appended(Span),
}

impl Bytes {
    /// Whether the operation must wait while a lease is given back: else the recall of a file that
    /// is written all the time comes to no end. It may, because the recall knows which page the
    /// kernel keeps locked for it. Reads of many programs would take all requests of the mount.
    fn waits_for_recall(self, state: &InodeState) -> bool {
        matches!(self, Bytes::Written(_) | Bytes::Appended(_)) && state.hold.revoking
    }
}

/// What a change of a file's size runs under; ends when dropped.
pub(crate) enum Resizing {
    /// The write lease.
    Alone(Entered),
    /// A lease to read that is being given back: until it is, nobody else writes the file.
    Recalled(Entered),
}

/// An operation that runs under a lease; ends when dropped.
pub(crate) struct Entered(pub(crate) Arc<Inode>, Option<WritingPast>);

impl Entered {
    /// Notes that the operation writes past the kernel. `false`: the file's size is being changed.
    pub(crate) fn goes_past_the_kernel(&mut self, kept: Option<&KeptAway>) -> bool {
        self.1 = self.0.write_past(kept);
        self.1.is_some()
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl Leases {
    pub(crate) fn new(parts: LeaseParts) -> Leases {
        let LeaseParts { session, inodes, journal, data, writeback, kernel, deferred } = parts;
        let orphans = Mutex::default();
        Leases { session, inodes, journal, data, writeback, kernel, deferred, orphans }
    }

    /// Enters an operation on data under at least `need`; asks the server where necessary.
    pub(crate) fn enter(&self, ino: Ino, need: LeaseMode) -> Result<Entered, Status> {
        self.enter_with(ino, need, Bytes::None)
    }

    /// Enters a read of some bytes.
    pub(crate) fn enter_read(&self, ino: Ino, bytes: Span) -> Result<Entered, Status> {
        self.enter_with(ino, LeaseMode::Read, Bytes::Read(bytes))
    }

    /// Enters a write of some bytes.
    pub(crate) fn enter_write(&self, ino: Ino, wanted: Wanted) -> Result<Entered, Status> {
        self.enter_with(ino, LeaseMode::Write, Bytes::Written(wanted))
    }

    /// Enters an append that has these pages of the kernel.
    pub(crate) fn enter_append(&self, ino: Ino, pages: Span) -> Result<Entered, Status> {
        self.enter_with(ino, LeaseMode::Write, Bytes::Appended(pages))
    }

    fn enter_with(&self, ino: Ino, need: LeaseMode, bytes: Bytes) -> Result<Entered, Status> {
        let start = Awake::now();
        if let (Bytes::None, Some(node)) = (bytes, self.inodes.find(ino)) {
            node.yield_to_recall();
        }
        loop {
            if let Some(entered) = self.try_enter(ino, need, bytes)? {
                return Ok(entered);
            }
            if start.elapsed() > REQUEST {
                return Err(Status::IO);
            }
        }
    }

    /// Enters a change of the file's size.
    pub(crate) fn enter_resize(&self, ino: Ino) -> Result<Resizing, Status> {
        let start = Awake::now();
        if let Some(node) = self.inodes.find(ino) {
            node.yield_to_slow_recall();
        }
        while start.elapsed() <= REQUEST {
            if let Some(entered) = self.enter_what_goes(ino) {
                return Ok(Resizing::Recalled(entered));
            }
            if let Some(entered) = self.try_enter(ino, LeaseMode::Write, Bytes::None)? {
                return Ok(Resizing::Alone(entered));
            }
        }
        Err(Status::IO)
    }

    /// Enters a change of size under a lease to read, while that is given back (LEASE-4c).
    fn enter_what_goes(&self, ino: Ino) -> Option<Entered> {
        let node = self.inodes.find(ino)?;
        let mut state = node.state.lock();
        let goes = state.hold.revoking && state.hold.mode == Some(LeaseMode::Read);
        let is_known = state.file.is_some() && state.parts.is_none();
        let counts = goes && is_known && self.session.trusts_leases();
        if !counts || broken!("resize_waits_for_recall") {
            return None;
        }
        state.active += 1;
        drop(state);
        Some(Entered(node, None))
    }

    /// Enters where what is needed is held; else asks for it, once.
    fn try_enter(
        &self,
        ino: Ino,
        need: LeaseMode,
        bytes: Bytes,
    ) -> Result<Option<Entered>, Status> {
        let entered = self.inodes.with(ino, |node, state| {
            let in_part = || match bytes {
                Bytes::Written(wanted) => state.writes_part(wanted.span),
                _ => false,
            };
            // A lease that came without the data was asked for to change a name.
            let serves = |file: &FileData| need == LeaseMode::Read || file.is_writable;
            let is_whole =
                state.hold.mode >= Some(need) && state.file.as_deref().is_some_and(serves);
            let have = state.file.is_some() && (is_whole || in_part());
            let enters = have && !bytes.waits_for_recall(state);
            enters.then(|| {
                state.active += 1;
                state.reads += u64::from(need == LeaseMode::Read);
                Entered(node.clone(), None)
            })
        });
        match entered {
            Some(entered) if self.session.trusts_leases() => return Ok(Some(entered)),
            Some(_) => self.wait_for_server(),
            None => self.wait_or_acquire(ino, need, bytes)?,
        }
        Ok(None)
    }

    /// Waits for the end of an own recall, else asks for the lease. The kernel keeps pages of the
    /// operation locked meanwhile.
    fn wait_or_acquire(&self, ino: Ino, need: LeaseMode, bytes: Bytes) -> Result<(), Status> {
        let node = self.inodes.with(ino, |node, _| node.clone());
        let _awaiting = match bytes {
            Bytes::None => None,
            Bytes::Read(span) => Some(Awaiting::read(node.clone(), span)),
            Bytes::Written(Wanted { span, .. }) | Bytes::Appended(span) => {
                Some(Awaiting::write(node.clone(), span))
            }
        };
        if node.wait_for_recall(|state| bytes.waits_for_recall(state)) {
            return Ok(());
        }
        match bytes {
            Bytes::Written(wanted) => self.acquire_part(ino, wanted),
            _ => self.acquire(ino, need),
        }
    }

    /// Enters an operation that a recall of this client waits for, under whatever lease is being
    /// recalled.
    pub(crate) fn enter_recalled(&self, ino: Ino, bytes: Span) -> Option<Entered> {
        let node = self.inodes.find(ino)?;
        let mut state = node.state.lock();
        let all = state.hold.revoking && (state.hold.mode.is_some() || state.parts.is_some());
        let under_recall = all || state.leaving.iter().any(|leaving| leaving.meets(bytes));
        if !under_recall || state.file.is_none() || !self.session.trusts_leases() {
            return None;
        }
        state.active += 1;
        drop(state);
        Some(Entered(node, None))
    }

    pub(crate) fn acquire(&self, ino: Ino, mode: LeaseMode) -> Result<(), Status> {
        self.journal.flush_of(ino)?;
        let _asking = self.ask_whole(ino)?;
        let session = self.session.id();
        let before = self.inodes.with(ino, |_, state| state.held_since(mode));
        let reply = self.session.call(&Acquire { ino, mode })?;
        let asked = Asked { mode, before, has_capability: true };
        self.granted(session, &reply.inode, reply.file, asked)
    }

    /// Takes over the requested lease. Where it was not granted, the caller asks again.
    pub(crate) fn granted(
        &self,
        session: SessionId,
        inode: &InodeReply,
        record: Option<FileRecord>,
        Asked { mode, before, has_capability }: Asked,
    ) -> Result<(), Status> {
        let Some(record) = record else {
            return Err(if inode.attr.is_dir() { Status::ISDIR } else { Status::INVAL });
        };
        self.session.saw(&inode.attr);
        let entered = self.inodes.with(inode.attr.ino, |node, state| {
            let (lease, standing) = (inode.lease, self.session.standing());
            state.apply(&inode.attr, lease, standing);
            // Another grant may count where this one does not: its answer told of something newer.
            let counts = match lease {
                Some(grant) => state.hold.counts(grant, standing),
                // Our own recall is under way, and may wait for us: the old lease is good for
                // what was answered while it was held.
                None => before.is_some() && before == state.held_since(mode),
            };
            // Counted from here on: a recall waits until the data is taken over.
            let granted = counts && state.hold.mode >= Some(mode);
            state.active += u32::from(granted);
            if granted && !has_capability {
                state.xattrs.note_no_capability();
            }
            granted.then(|| Entered(node.clone(), None))
        });
        let Some(entered) = entered else {
            // The end of our own recall comes first.
            std::thread::sleep(Duration::from_millis(1));
            return Ok(());
        };
        let lies_inline = record.inline.is_some() && inode.attr.size > MAX_INLINE;
        if lies_inline && mode == LeaseMode::Read {
            // Its bytes have to be moved, which a reader may not.
            drop(entered);
            return self.acquire(inode.attr.ino, LeaseMode::Write);
        }
        self.take_over(session, &entered, &inode.attr, record, mode)
    }

    /// Takes over a file's data record under the lease that came with it, one at a time. What
    /// another thread took over meanwhile stays: it may have written since.
    fn take_over(
        &self,
        session: SessionId,
        entered: &Entered,
        attr: &Attr,
        record: FileRecord,
        mode: LeaseMode,
    ) -> Result<(), Status> {
        let node = &entered.0;
        let _one_at_a_time = node.taking_over.lock();
        // What was taken over for parts knows too little, unless it still has to be kept.
        let serves = |f: &FileData| {
            (mode == LeaseMode::Read || f.is_writable)
                && (!f.own.is_written_beside() || f.own.is_dirty())
        };
        if node.state.lock().file.as_ref().is_some_and(|f| serves(f)) {
            return Ok(());
        }
        self.data.groups().forget_object(record.object);
        if let (Some(from), LeaseMode::Write) = (record.punch_from, mode) {
            self.finish_truncation(session, node.ino, &record, from)?;
        }
        let mut state = node.state.lock();
        let is_writable = mode == LeaseMode::Write;
        match &mut state.file {
            Some(file) if file.own.is_dirty() => file.is_writable |= is_writable,
            file => {
                let data = FileData::new(session, record, attr);
                *file = Some(Box::new(FileData { is_writable, ..data }));
            }
        }
        Ok(())
    }

    /// Finishes a truncation that another client did not finish, where there is one. The caller is
    /// about to grow the file under a lease that is being given back.
    pub(crate) fn finish_truncation_of(&self, ino: Ino) -> Result<(), Status> {
        let session = self.session.id();
        let reply = self.session.call(&Acquire { ino, mode: LeaseMode::Read })?;
        let Some(record) = reply.file else { return Ok(()) };
        let finish = |from| self.finish_truncation(session, ino, &record, from);
        record.punch_from.map_or(Ok(()), finish)
    }

    /// A truncation that its client did not finish: under the write lease, before any growth.
    fn finish_truncation(
        &self,
        session: SessionId,
        ino: Ino,
        record: &FileRecord,
        from: u64,
    ) -> Result<(), Status> {
        self.data.truncate(session, &record.layout, record.object, from)?;
        self.session.change(&TruncateDone { ino }, &[])
    }

    pub(crate) fn removed(&self, reply: RemoveReply) {
        if reply.orphan {
            self.note_orphan(reply.ino);
        }
        // Link count and change time are others now.
        self.forget_attr(reply.ino);
    }

    /// Notes that a call of this client changed the inode, and did not answer with its new state.
    pub(crate) fn forget_attr(&self, ino: Ino) {
        if let Some(node) = self.inodes.find(ino) {
            node.state.lock().outdate_attr();
        }
    }
}
