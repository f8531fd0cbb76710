//! Writes through: where the targets have little space, a write is on them before it returns. Or it
//! is refused, and nothing of it counts. Nothing of the write is buffered.
//!
//! 1 what is buffered of these bytes is pushed and flushed: it was accepted before
//! 2 the bytes of the write go to the targets, durably, in their order in the file; before them
//!   those of a small file that lay with its inode
//!                          crash: old or new; beyond the size they do not count
//! 3 size and times change here, and are published as those of any write
//!
//! One write at a time is written through to a file, and no other write runs meanwhile. A write
//! that finds another one at work leaves the lease before it waits. Meanwhile the client does not
//! take the file's data over with a new lease. A write that finds that the lease was lost on the
//! way does nothing more. Where space runs out in the middle of a write, the write is as long as
//! there was space for.

use std::sync::Arc;
use std::time::Instant;

use nuri_proto::Status;
use nuri_proto::op::data::{Durability, Room};
use nuri_stripe::locate::pieces;
use nuri_volume::punch;
use nuri_volume::transfer::LARGEST;

use crate::inode::{FileData, Inode};
use crate::lease::range::span_of;
use crate::writeback::Writeback;
use crate::writeback::accept::{RetryReason, WriteOutcome, buffer_pieces};
use crate::writeback::buffer::{BLOCK, Push, WriteBuffer};
use crate::writeback::payload::{Position, WritePayload, WriteResult};
use crate::writeback::push_row::{Row, sets};

/// The file is written through; ends when dropped.
pub(crate) struct ExclusiveWrite<'a>(&'a Inode);

impl Drop for ExclusiveWrite<'_> {
    fn drop(&mut self) {
        if let Some(file) = &mut self.0.state.lock().file {
            file.is_written_through = false;
        }
        self.0.changed.notify_all();
    }
}

impl ExclusiveWrite<'_> {
    /// The file's data, unless the lease was lost: the data of another client is not marked.
    pub(crate) fn of<'f>(
        &self,
        file: &'f mut Option<Box<FileData>>,
    ) -> Result<&'f mut FileData, Status> {
        file.as_deref_mut().filter(|file| file.is_written_through).ok_or(Status::IO)
    }

    pub(crate) fn check(&self) -> Result<(), Status> {
        self.of(&mut self.0.state.lock().file).map(|_| ())
    }
}

/// How far a write has come.
pub(crate) struct Progress {
    /// All bytes before it are on the targets.
    to: u64,
    pub(crate) allocated: u64,
    pub(crate) outcome: Result<(), Status>,
    /// Nothing of the rest can lie beyond the size.
    is_cut: bool,
}

impl Progress {
    pub(crate) fn towards(to: u64) -> Progress {
        Progress { to, allocated: 0, outcome: Ok(()), is_cut: true }
    }
}

impl Writeback {
    /// Writes `data` through.
    ///
    /// # Errors
    /// Why nothing of it could be kept.
    pub(crate) fn write_through(
        &self,
        node: &Arc<Inode>,
        position: Position,
        data: &WritePayload<'_>,
    ) -> Result<WriteOutcome, Status> {
        let Some(_no_take_over) = node.taking_over.try_lock() else {
            return Ok(WriteOutcome::Nowhere(RetryReason::Busy));
        };
        let Some((at, alone)) = begin(node, position)? else {
            return Ok(WriteOutcome::Nowhere(RetryReason::Untaken));
        };
        let end = at + data.len() as u64;
        self.settle_part(node, span_of(at, data.len()))?;
        let (mut own, mut row, size) = {
            let mut state = node.state.lock();
            let file = alone.of(&mut state.file)?;
            if !file.is_placed() {
                // It was just cut to nothing.
                drop(state);
                return Ok(WriteOutcome::Nowhere(RetryReason::Busy));
            }
            let mut own = WriteBuffer::default();
            if let Some(inline) = file.own.inline() {
                own.write(0, 0, inline);
            }
            (own, row_of(file), file.own.size())
        };
        buffer_pieces(&mut own, at, data);
        let mut done = Progress::towards(end);
        for block in own.pushable_blocks() {
            alone.check()?;
            row.pushes = own.begin_push(block).into_iter().collect();
            self.send(node, &row, &mut done);
            if done.outcome.is_err() {
                alone.check()?;
                done.is_cut = self.cut_beyond(&row, size.max(done.to), end);
                break;
            }
        }
        self.written_through(&alone, node, (at, data), &done).map(WriteOutcome::Through)
    }

    /// Sends a block of the write.
    pub(crate) fn send(&self, node: &Arc<Inode>, row: &Row, done: &mut Progress) {
        let Some(push) = row.pushes.first() else { return };
        let Push { block, ranges, .. } = push;
        let (base, how) = (block * BLOCK, (Durability::Stable, Room::Unpromised));
        if let (Some(file), Some((_, end))) = (&mut node.state.lock().file, ranges.last()) {
            file.own.buffer.note_sent(base + u64::from(*end));
        }
        if let Err(status) = self.announce_growth(node, *block) {
            (done.to, done.outcome) = (base + u64::from(ranges[0].0), Err(status));
            return;
        }
        if row.layout.components.first().is_some_and(|c| c.shape.is_redundant()) {
            return self.send_sets(row, done);
        }
        for (start, end) in ranges.iter().flat_map(|(start, end)| whole_units(*start, *end)) {
            let at = base + u64::from(start);
            for piece in pieces(&row.layout, row.object, at, u64::from(end - start)) {
                let from = (piece.file_offset - base) as u32;
                let bytes = push.bytes((from, from + piece.len));
                let wrote = self.data.write(row.session, &piece, bytes, how);
                let took = wrote.map(|(_, reply)| reply.allocated);
                self.reservations.heard(piece.group, took);
                match took {
                    Ok(allocated) => done.allocated += allocated,
                    Err(status) => {
                        (done.to, done.outcome) = (piece.file_offset, Err(status));
                        return;
                    }
                }
            }
        }
    }

    fn send_sets(&self, row: &Row, done: &mut Progress) {
        let sets = sets(row, LARGEST);
        for (i, set) in sets.iter().enumerate() {
            match self.write_set(row, set, Room::Unpromised) {
                Ok(allocated) => done.allocated += allocated,
                Err(status) => {
                    let missing = sets[i..].iter().map(|set| set.start()).min();
                    (done.to, done.outcome) = (missing.unwrap_or(0), Err(status));
                    return;
                }
            }
        }
    }

    /// Part of what failed may be on its target. Beyond the size it must not be: there it would be
    /// seen when the file grows.
    fn cut_beyond(&self, row: &Row, from: u64, end: u64) -> bool {
        let len = end.saturating_sub(from);
        let cut = || {
            let file = (&*row.layout, row.object);
            self.data.punch(row.session, file, (from, len), punch::Room::GivenBack).is_ok()
        };
        len == 0 || cut()
    }

    /// The file as it is after the write.
    fn written_through(
        &self,
        alone: &ExclusiveWrite<'_>,
        node: &Arc<Inode>,
        (at, data): (u64, &WritePayload<'_>),
        done: &Progress,
    ) -> Result<WriteResult, Status> {
        let now = self.session.now();
        let stored = done.to.saturating_sub(at);
        let mut state = node.state.lock();
        let file = alone.of(&mut state.file)?;
        // Else the next write lease sees to it.
        if !done.is_cut {
            file.own.note_failed();
        }
        if stored == 0 {
            // What was fetched ahead meanwhile may be of a piece that was written in part.
            file.own.outdate();
            return done.outcome.map(|()| WriteResult { at, len: 0 });
        }
        data.note_reach(file.own.size(), done.to);
        file.own.written_through(done.allocated);
        file.own.reached(done.to);
        file.own.touch(now, Instant::now());
        drop(state);
        self.mark_dirty(node);
        Ok(WriteResult { at, len: stored })
    }
}

/// Keeps other writes away from the file; returns where this write goes. `None` where the file's
/// data must first be taken over for writing.
pub(crate) fn begin(
    node: &Inode,
    position: Position,
) -> Result<Option<(u64, ExclusiveWrite<'_>)>, Status> {
    let mut state = node.state.lock();
    let file = state.file.as_mut().ok_or(Status::IO)?;
    if !file.is_writable {
        return Ok(None);
    }
    file.is_written_through = true;
    Ok(Some((position.within(file.own.size()), ExclusiveWrite(node))))
}

/// A range in pieces that a target takes or refuses as a whole: what lies within one of its
/// blocks, and whole blocks.
fn whole_units(start: u32, end: u32) -> impl Iterator<Item = (u32, u32)> {
    const UNIT: u32 = 4096;
    let first = start.next_multiple_of(UNIT).min(end);
    let last = (end / UNIT * UNIT).max(first);
    [(start, first), (first, last), (last, end)].into_iter().filter(|(s, e)| s < e)
}

pub(crate) fn row_of(file: &FileData) -> Row {
    Row {
        session: file.session,
        object: file.object,
        layout: file.layout.clone(),
        fresh_from: file.own.published_size(),
        beside: None,
        pushes: Vec::new(),
    }
}
