//! Leases on ranges of a file that several clients write at the same time.
//!
//! A client that is the only writer of a file has the file's write lease. Where several clients
//! write the file, the server grants each client the bytes that it writes, and those that it will
//! write next. Meanwhile these clients know nothing of the file's attributes, and read nothing of
//! it. An operation that needs more gives the ranges up first. The client makes the written bytes
//! durable and publishes them, and then asks for the whole file. Meanwhile nothing is written under
//! the ranges, and grants that are on their way do not count.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nuri_proto::Status;
use nuri_proto::clock::REQUEST;
use nuri_proto::id::{Ino, SessionId};
use nuri_proto::limit::MAX_PARTS;
use nuri_proto::op::meta::{Attr, FileRecord, LeaseMode, RecallDone, Reclaim};
use nuri_proto::op::part::{AcquirePart, AcquirePartReply, Ahead, PartGrant};
use nuri_proto::range_map::Span;
use nuri_rpc::Awake;
use nuri_rules::broken;

use crate::inode::known_xattrs::KnownXattrs;
use crate::inode::{FileData, Inode, InodeState};
use crate::lease::acquire::{Asked, Leases};
use crate::lease::give_back::obey;
use crate::lease::held_ranges::RangeLease;
use crate::lease::revocation::Revocation;
use crate::writeback::machine::SyncScope;

/// A wait for what other threads do here.
const STEP: Duration = Duration::from_millis(20);
/// Writes without a gap after which as many more are foreseen, and bytes.
const STREAK: u64 = 4;
const MOST_AHEAD: u64 = 64 << 20;
/// In how many pieces they are asked for at most, and what each is a multiple of.
const PIECES: u64 = 16;
const PIECE: u64 = 64 << 10;
/// Runs that are foreseen.
const FORESEEN: u32 = 64;

/// What a write needs.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) span: Span,
    pub(crate) ahead: Ahead,
}

/// Bytes from there on, at least one.
pub(crate) fn span_of(offset: u64, len: usize) -> Span {
    let start = offset.min(Span::LAST);
    let end = start.saturating_add(len as u64).saturating_sub(1);
    Span { start, end: end.clamp(start, Span::LAST) }
}

/// The pattern in which an open file is written: runs without a gap, as long and as far apart as
/// the last ones. The kernel splits a write whose first page is not written as a whole.
#[derive(Default)]
pub(crate) struct Pattern {
    run: Run,
    last: Run,
    step: u64,
    streak: u32,
}

#[derive(Clone, Copy, Default)]
struct Run {
    start: u64,
    len: u64,
    writes: u64,
}

impl Pattern {
    /// Notes a write; returns what will likely be written next.
    pub(crate) fn write(&mut self, start: u64, len: u64) -> Ahead {
        if start == self.run.start + self.run.len {
            (self.run.len, self.run.writes) = (self.run.len + len, self.run.writes + 1);
        } else {
            let step = start.saturating_sub(self.run.start);
            let goes_on = step == self.step && self.run.len == self.last.len;
            self.streak = if goes_on { (self.streak + 1).min(FORESEEN) } else { 0 };
            (self.last, self.step) = (self.run, step);
            self.run = Run { start, len, writes: 1 };
        }
        let Pattern { run, last, step, .. } = *self;
        if self.streak > 0 && run.len <= last.len && last.len <= step {
            let count = FORESEEN.min(1 << self.streak.min(6));
            return Ahead { start: run.start, len: last.len, step, count };
        }
        if run.writes < STREAK {
            return Ahead::default();
        }
        // In pieces: where others write what comes after, those before it are granted.
        let most = run.len.clamp(1, MOST_AHEAD);
        let len = (most / PIECES).max(1).next_multiple_of(PIECE).min(most);
        let count = (most / len) as u32;
        Ahead { start: run.start + run.len, len, step: len, count }
    }
}

impl InodeState {
    /// Whether the bytes may be written under parts.
    pub(crate) fn writes_part(&self, span: Span) -> bool {
        let covers = |parts: &RangeLease| parts.held.covers(span);
        self.asking_whole == 0 && self.parts.as_deref().is_some_and(covers)
    }

    /// Whether the file is still the one that is known here: as long as a part of it is held nobody
    /// cuts it, or gives it another object.
    fn knows_file_in_parts(&self) -> bool {
        let is_any = broken!("parts_remember");
        let holds = |parts: &RangeLease| is_any || !parts.held.is_empty();
        self.file.is_some() && self.parts.as_deref().is_some_and(holds)
    }

    /// Parts of calls under way do not count any more.
    fn void_parts(&mut self) {
        self.part_voids += 1;
    }

    pub(crate) fn forget_parts(&mut self) {
        self.void_parts();
        if self.parts.take().is_some() && self.hold.mode.is_none() {
            self.xattrs = KnownXattrs::default();
        }
    }

    fn take_part(&mut self, span: Span, ahead: Ahead, grant: PartGrant) {
        self.has_part_pages = true;
        let parts = self.parts.get_or_insert_default();
        let granted = ahead.spans().take(grant.count as usize);
        for span in [span].into_iter().chain(granted) {
            parts.held.assign(span, Some(()));
        }
        parts.number = parts.number.max(grant.number);
    }
}

impl InodeState {
    fn note_privileges(&mut self, attr: &Attr, has_capability: bool) {
        if let Some(parts) = &mut self.parts {
            parts.mode = Some(attr.mode);
        }
        if !has_capability {
            self.xattrs.note_no_capability();
        }
    }

    /// Notes that the file's mode changes here.
    pub(crate) fn forget_mode(&mut self) {
        if let Some(parts) = &mut self.parts {
            parts.mode = None;
        }
    }
}

/// The whole of a file is being asked for: nothing is written under parts until this ends.
pub(crate) struct AskingWhole(Arc<Inode>);

impl Drop for AskingWhole {
    fn drop(&mut self) {
        self.0.state.lock().asking_whole -= 1;
        self.0.changed.notify_all();
    }
}

impl Leases {
    /// Called before the server is asked for more than ranges of the file, or for its attributes.
    pub(crate) fn ask_whole(&self, ino: Ino) -> Result<AskingWhole, Status> {
        let asking = self.inodes.with(ino, |node, state| {
            state.asking_whole += 1;
            state.void_parts();
            AskingWhole(node.clone())
        });
        self.give_up_parts(&asking.0)?;
        Ok(asking)
    }

    /// Makes what was written under parts durable and known, and gives them up. Nothing is written
    /// under them meanwhile.
    fn give_up_parts(&self, node: &Arc<Inode>) -> Result<(), Status> {
        let start = Awake::now();
        loop {
            {
                let mut state = node.state.lock();
                if state.parts.is_none() {
                    return Ok(());
                }
                let is_dirty = state.file.as_ref().is_some_and(|file| file.own.is_dirty());
                // A recall of them takes what the kernel wrote under them, and ends by itself.
                let is_recalled = state.hold.revoking;
                if state.active == 0 && !is_dirty && !is_recalled {
                    // The server takes them back with what it grants instead.
                    state.forget_parts();
                    state.file = None;
                    return Ok(());
                }
                if state.active > 0 || is_recalled {
                    node.changed.wait_for(&mut state, STEP);
                }
            }
            if start.elapsed() > REQUEST {
                return Err(Status::IO);
            }
            self.writeback.sync_node(node, SyncScope::All)?;
        }
    }

    /// Asks to write bytes of a file: the whole is granted, or these.
    pub(crate) fn acquire_part(&self, ino: Ino, wanted: Wanted) -> Result<(), Status> {
        self.journal.flush_of(ino)?;
        let node = self.inodes.with(ino, |node, _| node.clone());
        let (voids, known) = {
            let mut state = node.state.lock();
            if state.asking_whole > 0 {
                node.changed.wait_for(&mut state, STEP);
                return Ok(());
            }
            (state.part_voids, state.knows_file_in_parts())
        };
        let session = self.session.id();
        let Wanted { span: need, ahead } = wanted;
        let reply = self.session.call(&AcquirePart { ino, need, ahead, known })?;
        let AcquirePartReply { inode, part, has_capability, file } = reply;
        self.session.saw(&inode.attr);
        let grant = match (part, inode.lease) {
            (Some(grant), _) => grant,
            (None, Some(_)) => {
                let asked = Asked { mode: LeaseMode::Write, before: None, has_capability };
                return self.granted(session, &inode, file, asked);
            }
            (None, None) => {
                // The end of our own recall comes first.
                std::thread::sleep(Duration::from_millis(1));
                return Ok(());
            }
        };
        let (has_room, number) = {
            let mut state = node.state.lock();
            let counts = self.session.standing().counts_number(grant.number)
                && grant.number > state.hold.recalled
                && state.part_voids == voids
                && state.hold.mode.is_none();
            if !counts || !self.take_over_part(&mut state, session, &inode.attr, file) {
                return Ok(());
            }
            state.take_part(need, ahead, grant);
            state.note_privileges(&inode.attr, has_capability);
            let parts = state.parts.as_deref();
            (parts.is_none_or(|parts| parts.held.len() < MAX_PARTS), grant.number)
        };
        if has_room { Ok(()) } else { self.return_parts(&node, number) }
    }

    /// The file's record for writing parts of it; false where it is not known.
    fn take_over_part(
        &self,
        state: &mut InodeState,
        session: SessionId,
        attr: &Attr,
        record: Option<FileRecord>,
    ) -> bool {
        let is_kept =
            record.is_none() || state.file.as_ref().is_some_and(|file| file.own.is_dirty());
        if state.file.is_some() && is_kept {
            return state.parts.is_some();
        }
        let Some(record) = record else { return false };
        self.data.groups().forget_object(record.object);
        let mut file = FileData::new(session, record, attr);
        file.is_writable = true;
        file.own.write_beside(attr.allocated);
        state.file = Some(Box::new(file));
        true
    }

    /// There are too many parts to be kept: all are given back.
    fn return_parts(&self, node: &Arc<Inode>, number: u64) -> Result<(), Status> {
        self.give_part_back(node, Span::ALL);
        let (ino, part) = (node.ino, Some(Span::ALL));
        self.session.call(&RecallDone { ino, number, kept: None, part, settled: false })
    }

    /// Reclaims the ranges at a restarted server, a file at a time.
    pub(crate) fn reclaim_parts(&self, nodes: &[Arc<Inode>], server_boot: u64) {
        for node in nodes {
            let Some(spans) = node.state.lock().parts.as_ref().map(|parts| parts.spans()) else {
                continue;
            };
            let parts = vec![(node.ino, spans)];
            let call = Reclaim { server_boot, parts, more: true, ..Reclaim::default() };
            match self.session.call(&call) {
                Ok(reply) if reply.parts == [true] => {}
                Ok(_) => {
                    self.give_up(node, "the restarted server has another holder");
                }
                // The rest of what is reclaimed meets it too.
                Err(Status::SESSION_GONE | Status::STALE) => return,
                Err(status) => tracing::warn!("client: parts could not be reclaimed: {status}"),
            }
        }
    }

    /// Obeys the recall of a part: others may write and read it when this returns.
    pub(crate) fn give_part_back(&self, node: &Arc<Inode>, span: Span) {
        {
            let mut state = node.state.lock();
            state.void_parts();
            if let Some(parts) = &mut state.parts {
                parts.held.assign(span, None);
            }
            state.leaving.push(span);
        }
        if !self.leave_part(node, span) {
            self.give_up(node, "busy during the recall of a part");
        }
        let leaving = &mut node.state.lock().leaving;
        if let Some(at) = leaving.iter().position(|other| *other == span) {
            leaving.swap_remove(at);
        }
    }

    /// Nothing of the part is left in the kernel or unpublished; false where that takes too long.
    fn leave_part(&self, node: &Arc<Inode>, span: Span) -> bool {
        let drain = || {
            self.kernel.empty_pages_for_recall(node, span);
            broken!("part_unflushed") || self.writeback.sync_part(node, span).is_ok()
        };
        obey(node, Revocation::of_range(Instant::now()), drain).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_in_equal_steps_are_foreseen() {
        let mut pattern = Pattern::default();
        let mut ahead = Vec::new();
        for i in 1..7 {
            // Split by the kernel.
            ahead.push(pattern.write(i * 400, 30 + i));
            ahead.push(pattern.write(i * 400 + 30 + i, 70 - i));
        }
        let counts: Vec<_> = ahead.iter().map(|a| a.count).collect();
        assert_eq!(counts, [0, 0, 0, 0, 2, 2, 4, 4, 8, 8, 16, 16]);
        assert_eq!(ahead[5], Ahead { start: 1200, len: 100, step: 400, count: 2 });
        assert_eq!(pattern.write(0, 100).count, 0, "backwards");
        assert_eq!(pattern.write(0, 100).count, 0, "the same again");
    }

    #[test]
    fn as_much_again_is_foreseen_of_a_long_run() {
        let mut pattern = Pattern::default();
        let ahead: Vec<_> = (0..8).map(|i| pattern.write(i * 4096, 4096)).collect();
        let len = 8 * 4096;
        assert_eq!(ahead[2].count, 0);
        assert_eq!(ahead[7], Ahead { start: len, len, step: len, count: 1 });
        let mut short = Pattern::default();
        let ahead: Vec<_> = (0..8).map(|i| short.write(i, 1)).collect();
        assert_eq!(ahead[7], Ahead { start: 8, len: 8, step: 8, count: 1 });
        let (start, piece) = (33 * len, PIECE * 2);
        let ahead = pattern.write(len, 32 * len);
        assert_eq!(ahead, Ahead { start, len: piece, step: piece, count: 8 }, "in pieces");
        assert_eq!(pattern.write(1 << 30, 100).count, 0, "elsewhere");
    }

    #[test]
    fn parts_are_written_while_nobody_asks_for_the_whole() {
        let mut state = InodeState::default();
        let span = |start, end| Span { start, end };
        let grant = PartGrant { number: 7, count: 2 };
        state.take_part(span(0, 9), Ahead { start: 20, len: 10, step: 20, count: 5 }, grant);
        assert!(state.writes_part(span(2, 5)) && state.writes_part(span(40, 49)));
        assert!(!state.writes_part(span(8, 20)) && !state.writes_part(span(60, 61)));
        state.asking_whole = 1;
        assert!(!state.writes_part(span(2, 5)));
    }

    /// Catches `broken!("parts_remember")`.
    #[test]
    fn a_file_is_known_while_a_part_of_it_is_held() {
        let layout = nuri_proto::layout::Layout { generation: 0, components: Vec::new() };
        let (object, inline) = (nuri_proto::id::ObjectId(1), None);
        let record = FileRecord { object, layout, truncate_version: 0, inline, punch_from: None };
        let file = FileData::new(SessionId(1), record, &Attr::default());
        let mut state = InodeState { file: Some(Box::new(file)), ..InodeState::default() };
        assert!(!state.knows_file_in_parts());
        let grant = PartGrant { number: 7, count: 0 };
        state.take_part(Span { start: 0, end: 9 }, Ahead::default(), grant);
        assert!(state.knows_file_in_parts());
        state.parts.as_mut().unwrap().held.assign(Span::ALL, None);
        assert!(!state.knows_file_in_parts(), "whoever took it back may have cut the file");
    }
}
