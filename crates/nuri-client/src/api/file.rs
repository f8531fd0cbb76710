//! The client's API: data of files. It opens, reads, syncs and truncates them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nuri_proto::Status;
use nuri_proto::clock::REQUEST;
use nuri_proto::id::Ino;
use nuri_proto::limit::MAX_FILE;
use nuri_proto::op::meta::{Attr, LeaseMode, SetAttr};
use nuri_rpc::Awake;
use nuri_rules::broken;
use parking_lot::Mutex;

use crate::client::Client;
use crate::inode::{FileData, Inode};
use crate::lease::acquire::{Entered, Resizing};
use crate::lease::range::{Pattern, span_of};
use crate::writeback::buffer::BLOCK;
use crate::writeback::machine::SyncScope;

/// For so long a failed read of an inode is not told again.
const QUIET: Duration = Duration::from_secs(1);

/// An open file.
pub(crate) struct Handle {
    pub(crate) node: Arc<Inode>,
    access: Access,
    /// Errors of the node that syncs reported, or that were before the handle; and the same for
    /// closes. A close of a copy of the descriptor, in a child of the program maybe, must not take
    /// the error from the program's next sync.
    told_at_sync: AtomicU64,
    told_at_close: AtomicU64,
    pub(crate) pattern: Mutex<Pattern>,
}

impl Handle {
    /// So many errors of the node were reported through this handle, or were before it.
    fn told(&self) -> u64 {
        self.told_at_sync.load(Ordering::SeqCst).max(self.told_at_close.load(Ordering::SeqCst))
    }
}

/// The open files of a client by their numbers, none of which comes twice.
#[derive(Default)]
pub(crate) struct Handles {
    open: Mutex<HashMap<u64, Arc<Handle>>>,
    last: AtomicU64,
}

impl Handles {
    fn insert(&self, handle: Handle) -> u64 {
        let fh = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        self.open.lock().insert(fh, Arc::new(handle));
        fh
    }

    fn get(&self, fh: u64) -> Option<Arc<Handle>> {
        self.open.lock().get(&fh).cloned()
    }

    fn remove(&self, fh: u64) -> Option<Arc<Handle>> {
        self.open.lock().remove(&fh)
    }
}

/// What an open file was opened for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    Read,
    Write,
    Both,
}

impl Access {
    fn writes(self) -> bool {
        self != Access::Read
    }
}

/// What a sync must make durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sync {
    Data,
    All,
}

/// When reads of which inode failed last, so that a program that retries again and again does not
/// fill the log.
#[derive(Default)]
pub(crate) struct ReadErrors(Mutex<Option<(Ino, Instant)>>);

impl ReadErrors {
    fn is_news(&self, ino: Ino) -> bool {
        let mut last = self.0.lock();
        let is_old = last.is_some_and(|(known, at)| known == ino && at.elapsed() < QUIET);
        if !is_old {
            *last = Some((ino, Instant::now()));
        }
        !is_old
    }
}

impl Client {
    /// Opens a file; its inode lives until [`Client::release`].
    ///
    /// # Errors
    /// The server's.
    pub fn open(&self, ino: Ino, access: Access) -> Result<u64, Status> {
        // A lease tells the server that the file may be open here.
        let entered = self.leases.enter(ino, LeaseMode::Read)?;
        let node = entered.0.clone();
        let errors = {
            let mut state = node.state.lock();
            if state.dropped {
                return Err(Status::STALE);
            }
            state.opens += 1;
            state.writers += u32::from(access.writes());
            state.errors
        };
        drop(entered);
        let (told_at_sync, told_at_close) = (AtomicU64::new(errors), AtomicU64::new(errors));
        let pattern = Mutex::default();
        let handle = Handle { node, access, told_at_sync, told_at_close, pattern };
        Ok(self.handles.insert(handle))
    }

    pub(crate) fn handle(&self, fh: u64) -> Result<Arc<Handle>, Status> {
        self.handles.get(fh).ok_or(Status::BADF)
    }

    /// The inode of an open file, and what it was opened for.
    ///
    /// # Errors
    /// `BADF`
    pub fn opened(&self, fh: u64) -> Result<(Ino, Access), Status> {
        self.handle(fh).map(|handle| (handle.node.ino, handle.access))
    }

    pub(crate) fn opened_node(&self, fh: u64) -> Result<Arc<Inode>, Status> {
        self.handle(fh).map(|handle| handle.node.clone())
    }

    /// Closes a file.
    pub fn release(&self, fh: u64) {
        let Some(handle) = self.handles.remove(fh) else {
            return;
        };
        let node = &handle.node;
        let orphan = {
            let mut state = node.state.lock();
            state.opens -= 1;
            state.writers -= u32::from(handle.access.writes());
            if handle.access.writes() && handle.told() < state.errors {
                // Lost since the program's last call, which its end has made by now.
                self.writeback.note_untold(&state);
            }
            let stays = state.lingers && !broken!("gone_when_closed");
            state.opens == 0 && state.orphan && !stays
        };
        if orphan {
            self.leases.note_orphan(node.ino);
        }
        self.releaser.drop_if_unused(node);
    }

    /// Reads into `out`. Returns the number of bytes read, which is less than asked for at the
    /// file's end.
    ///
    /// # Errors
    /// A target's.
    pub fn read(&self, ino: Ino, offset: u64, out: &mut [u8]) -> Result<usize, Status> {
        self.read_trusted(|| self.read_once(ino, offset, out))
    }

    /// As [`Client::read`], for programs that bypass the kernel's cache: reads ahead for them.
    ///
    /// # Errors
    /// A target's.
    pub fn read_direct(&self, ino: Ino, offset: u64, out: &mut [u8]) -> Result<usize, Status> {
        self.read_trusted(|| {
            let entered = self.leases.enter(ino, LeaseMode::Read)?;
            match self.readahead.read(&entered.0, offset, out) {
                0 => self.read_entered(&entered, offset, out),
                len if len == out.len() => Ok(len),
                len => {
                    let at = offset + len as u64;
                    Ok(len + self.read_entered(&entered, at, &mut out[len..])?)
                }
            }
        })
    }

    fn read_trusted(
        &self,
        mut read: impl FnMut() -> Result<usize, Status>,
    ) -> Result<usize, Status> {
        let start = Awake::now();
        loop {
            let len = read()?;
            // What was read counts only if the lease was still trusted after it.
            if self.session.trusts_leases() {
                return Ok(len);
            }
            if start.elapsed() > REQUEST {
                return Err(Status::IO);
            }
        }
    }

    fn read_once(&self, ino: Ino, offset: u64, out: &mut [u8]) -> Result<usize, Status> {
        let entered = self.leases.enter_read(ino, span_of(offset, out.len()))?;
        self.read_entered(&entered, offset, out)
    }

    fn read_entered(
        &self,
        entered: &Entered,
        offset: u64,
        out: &mut [u8],
    ) -> Result<usize, Status> {
        let (len, gaps, object, layout) = {
            let state = entered.0.state.lock();
            let file = state.file.as_ref().ok_or(Status::IO)?;
            let len = file.own.size().saturating_sub(offset).min(out.len() as u64) as usize;
            let out = &mut out[..len];
            if let Some(inline) = file.own.inline() {
                if len > 0 {
                    out.copy_from_slice(&inline[offset as usize..offset as usize + len]);
                }
                return Ok(len);
            }
            (len, read_buffered(file, offset, out), file.object, file.layout.clone())
        };
        for (start, end) in gaps {
            if layout.components.is_empty() {
                // It has no place yet: no target has anything of it.
                out[start..end].fill(0);
                continue;
            }
            let (into, at) = (&mut out[start..end], offset + start as u64);
            let len = into.len() as u64;
            self.data.read(&layout, object, at, into).inspect_err(|status| {
                let ino = entered.0.ino;
                if self.read_errors.is_news(ino) {
                    let places = self.data.places(&layout, object, (at, len));
                    tracing::error!(
                        "client: {len} bytes of inode {ino} from {at} on cannot be read, \
                         {places}: {status}"
                    );
                }
            })?;
        }
        Ok(len)
    }

    /// Called at `close`: pushes the written bytes to the targets, so that errors appear here.
    /// Short new files stay in the buffer. No target can refuse them, and a program that makes many
    /// of them waits for none.
    ///
    /// # Errors
    /// Data of this file could not be kept (told once per open file).
    pub fn flush(&self, fh: u64) -> Result<(), Status> {
        let handle = self.handle(fh)?;
        let stays_here = {
            let state = handle.node.state.lock();
            // A file without a place is short, and has room wherever it will be.
            let is_unplaced = |file: &FileData| !file.is_placed();
            state.orphan || state.file.as_deref().is_some_and(is_unplaced)
        };
        if !stays_here {
            self.writeback.push_all(&handle.node);
        }
        report_error(&handle.node, &handle.told_at_close)
    }

    /// Makes data, and with [`Sync::All`] attributes, durable.
    ///
    /// # Errors
    /// Data of this file could not be kept (told once per open file), or cannot be now.
    pub fn fsync(&self, fh: u64, what: Sync) -> Result<(), Status> {
        let handle = self.handle(fh)?;
        let scope = match what {
            Sync::Data => SyncScope::Data,
            Sync::All => SyncScope::All,
        };
        // Else it might never end.
        let _no_writes_past_the_kernel = handle.node.change_size();
        // With the names that lead to it.
        let told = self.journal.flush();
        let outcome = told.and_then(|()| self.writeback.sync_node(&handle.node, scope));
        report_error(&handle.node, &handle.told_at_sync)?;
        outcome
    }

    /// Changes attributes, the size among them, durably.
    ///
    /// # Errors
    /// As [`Client::setattr`], and where it could not be kept.
    pub fn setattr_durably(&self, change: &SetAttr) -> Result<Attr, Status> {
        let node = self.inodes.with(change.ino, |node, _| node.clone());
        let before = node.state.lock().errors;
        let attr = self.setattr(change)?;
        self.journal.flush()?;
        // Else it might never end.
        let _no_writes_past_the_kernel = node.change_size();
        self.writeback.sync_node(&node, SyncScope::All)?;
        let state = node.state.lock();
        match state.last_error {
            Some(status) if state.errors > before => Err(status),
            _ => Ok(attr),
        }
    }

    /// Sets the size, together with the other attributes that are to change.
    pub(crate) fn truncate(&self, change: &SetAttr) -> Result<Attr, Status> {
        let node = self.inodes.with(change.ino, |node, _| node.clone());
        let _no_writes_past_the_kernel = node.change_size();
        if change.size > Some(MAX_FILE) {
            return Err(Status::FBIG);
        }
        match self.leases.enter_resize(change.ino)? {
            Resizing::Alone(entered) => self.resize_alone(&entered.0, change),
            Resizing::Recalled(entered) => self.resize_recalled(&entered.0, change),
        }
    }

    /// Under the write lease and `Inode::change_size`.
    pub(crate) fn resize_alone(&self, node: &Arc<Inode>, change: &SetAttr) -> Result<Attr, Status> {
        let size = change.size.unwrap_or(0);
        if let Some(attr) = self.truncate_here(node, change, size)? {
            return Ok(attr);
        }
        let (attr, punch_from) = self.resize_by_server(node, change)?;
        if let Some(from) = punch_from {
            self.cut_off(node, from);
        }
        let state = node.state.lock();
        Ok(state.shown(attr))
    }

    /// While a lease to read is being given back (LEASE-4c). What is cut off the next writer takes
    /// off the targets, and what the last one left there goes before the file grows.
    fn resize_recalled(&self, node: &Arc<Inode>, change: &SetAttr) -> Result<Attr, Status> {
        self.leases.finish_truncation_of(node.ino)?;
        let (attr, _) = self.resize_by_server(node, change)?;
        let state = node.state.lock();
        Ok(state.shown(attr))
    }

    /// Says how the file is now, and from where on the targets may have bytes that are gone.
    fn resize_by_server(
        &self,
        node: &Arc<Inode>,
        change: &SetAttr,
    ) -> Result<(Attr, Option<u64>), Status> {
        let size = change.size.unwrap_or(0);
        self.journal.flush()?;
        self.journal.ensure_placed(change.ino)?;
        let grows = node.state.lock().file.as_ref().is_some_and(|f| size > f.own.size());
        if grows {
            self.writeback.spill(node, size);
        }
        // One cut after the other: what the last one gave back is told with the next one's.
        let was_just_cut = node.state.lock().file.as_ref().is_some_and(|f| f.own.was_just_cut());
        let is_cut_again = was_just_cut && !grows && size > 0;
        if size > 0 {
            let scope = if is_cut_again { SyncScope::Data } else { SyncScope::All };
            self.writeback.sync_node(node, scope)?;
        }
        if grows {
            self.writeback.tell_cut(node)?;
        }
        let _no_publication = node.sync.lock();
        if size == 0 {
            self.writeback.drop_buffer(node);
        }
        let reply = self.session.change(change, &[])?;
        self.session.saw(&reply.inode.attr);
        {
            let mut state = node.state.lock();
            if let Some(file) = &mut state.file {
                if size == 0 {
                    file.object = reply.object;
                }
                file.own.resized(size, Instant::now());
                if is_cut_again {
                    file.own.changed(Instant::now());
                }
            }
            state.apply(&reply.inode.attr, reply.inode.lease, self.session.standing());
        }
        if is_cut_again {
            self.writeback.mark_dirty(node);
        }
        Ok((reply.inode.attr, reply.punch_from))
    }

    /// Takes what lies beyond the new end off the targets. Where it cannot be, the server knows
    /// that, and whoever writes the file next tries it again before the file grows: this client
    /// too.
    fn cut_off(&self, node: &Arc<Inode>, from: u64) {
        let Err(status) = self.writeback.punch_tail(node, from) else { return };
        tracing::warn!(
            "client: inode {} was cut at {from}; what lay beyond is still on its targets, and is \
             taken off before the file grows: {status}",
            node.ino
        );
        if let Some(file) = &mut node.state.lock().file {
            file.keep_writable(broken!("cut_is_forgotten"));
        }
    }

    /// Sets the size where the server need not be asked now: what changes is only here, or it is a
    /// matter of the journal.
    fn truncate_here(
        &self,
        node: &Arc<Inode>,
        change: &SetAttr,
        size: u64,
    ) -> Result<Option<Attr>, Status> {
        if *change != (SetAttr { ino: change.ino, size: Some(size), ..SetAttr::default() }) {
            return Ok(None);
        }
        let resized = self.writeback.resize_buffered(node, size);
        if resized.is_some() || size > 0 {
            return Ok(resized);
        }
        let _no_publication = node.sync.lock();
        self.writeback.wait_for_pushes(node);
        Ok(self.journal.empty_journalled(change))
    }
}

/// Tells once that data of the file could not be kept.
fn report_error(node: &Inode, told: &AtomicU64) -> Result<(), Status> {
    let state = node.state.lock();
    let seen = told.swap(state.errors, Ordering::SeqCst);
    match state.last_error {
        Some(status) if seen < state.errors => Err(status),
        _ => Ok(()),
    }
}

/// Copies what is buffered; returns the parts of `out` that the targets have.
fn read_buffered(file: &FileData, offset: u64, out: &mut [u8]) -> Vec<(usize, usize)> {
    if file.own.buffer.is_empty() {
        return if out.is_empty() { Vec::new() } else { vec![(0, out.len())] };
    }
    let mut gaps: Vec<(usize, usize)> = Vec::new();
    let mut done = 0;
    while done < out.len() {
        let at = offset + done as u64;
        let within = at % BLOCK;
        let len = ((BLOCK - within) as usize).min(out.len() - done);
        for (s, e) in file.own.buffer.read(at / BLOCK, within as u32, &mut out[done..done + len]) {
            let from = |x: u32| done + (u64::from(x) - within) as usize;
            gaps.push((from(s), from(e)));
        }
        done += len;
    }
    gaps
}
