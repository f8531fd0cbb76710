//! Pushes dirty bytes of redundant files by whole rows of stripes, so that parity follows from what
//! is written.
//!
//! Bytes that a group acknowledged are durable, so the client keeps nothing to send again.

use std::sync::Arc;

use nuri_proto::Status;
use nuri_proto::id::{ObjectId, SessionId};
use nuri_proto::layout::Layout;
use nuri_proto::op::data::Room;
use nuri_stripe::locate::{Piece, row_blocks, short_pieces};
use nuri_volume::group::{Guess, Part, Written};
use nuri_volume::stripe_of;
use nuri_volume::transfer::Way;

use super::found_rows::FoundRows;
use crate::inode::Inode;
use crate::writeback::Writeback;
use crate::writeback::buffer::{BLOCK, Push, PushedBytes};

/// Which rows are worth pushing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rows {
    /// Those that are dirty as a whole.
    Full,
    All,
}

/// The row of a file, taken for a push.
pub(crate) struct Row {
    pub(crate) session: SessionId,
    pub(crate) object: ObjectId,
    pub(crate) layout: Arc<Layout>,
    /// Nothing was ever written from here on, as far as is known.
    pub(crate) fresh_from: u64,
    /// Others write the file too, and perhaps beyond.
    pub(crate) beside: Option<Arc<FoundRows>>,
    pub(crate) pushes: Vec<Push>,
}

/// A dirty range on its way.
struct Bit<'a> {
    piece: Piece,
    data: &'a [u8],
    bytes: PushedBytes,
}

impl<'a> Bit<'a> {
    fn part(&self) -> Part<'a> {
        Part { place: self.piece.place, offset: self.piece.offset, data: self.data }
    }
}

/// Bits of one stripe that are written together.
pub(crate) struct Set<'a> {
    bits: Vec<Bit<'a>>,
}

impl Writeback {
    /// Pushes the dirty bytes of the row that the block belongs to, if no other push of it is in
    /// flight. Whether there were any.
    pub(crate) fn push_row(&self, node: &Arc<Inode>, block: u64, rows: Rows) -> bool {
        let Some(row) = take_row(node, block, rows) else { return false };
        let last = row.pushes.iter().map(|p| p.block).max().unwrap_or(block);
        let announced = self.announce_growth(node, last);
        for set in sets(&row, self.data.flow().buffer(Way::Write)) {
            let write = || self.write_set(&row, &set, Room::Promised);
            let carry = |()| self.data.flow().carry(Way::Write, set.bytes(), write);
            let mut outcome = announced.and_then(carry);
            for bit in &set.bits {
                self.push_ended(node, bit.bytes, outcome);
                if outcome.is_ok() {
                    self.settle_one(node, bit.bytes);
                }
                // Counted once.
                outcome = outcome.map(|_| 0);
            }
        }
        node.changed.notify_all();
        // It may have filled again meanwhile, unnoticed because this push was in flight.
        if is_full_again(node, &row) {
            self.queue_push(node, last, Rows::Full);
        }
        true
    }

    pub(crate) fn write_set(&self, row: &Row, set: &Set<'_>, room: Room) -> Result<u64, Status> {
        let parts: Vec<Part<'_>> = set.bits.iter().map(Bit::part).collect();
        let piece = &set.bits[0].piece;
        let component = &row.layout.components[usize::from(piece.key.component)];
        let length = component.chunk_size.bytes() * component.shape.data() as u64;
        let is_fresh = u64::from(piece.key.stripe) * length >= row.fresh_from;
        let is_fresh = row.beside.as_ref().map_or(is_fresh, |rows| rows.are_fresh());
        let guess = if is_fresh { Guess::Fresh } else { Guess::Unknown };
        let stripe = stripe_of(piece);
        let outcome = self.data.groups().write_into(room, row.session, &stripe, &parts, guess);
        if let (Some(rows), Ok(Written { fresh: Some(fresh), .. })) = (&row.beside, outcome) {
            rows.found(fresh);
        }
        let outcome = outcome.map(|written| written.allocated);
        self.reservations.heard(piece.group, outcome);
        outcome
    }
}

fn is_full_again(node: &Inode, row: &Row) -> bool {
    let blocks: Vec<u64> = row.pushes.iter().map(|p| p.block).collect();
    node.state.lock().file.as_ref().is_some_and(|f| f.own.buffer.all_full(&blocks))
}

fn take_row(node: &Inode, block: u64, rows: Rows) -> Option<Row> {
    let mut state = node.state.lock();
    let file = state.file.as_mut()?;
    let blocks = row_blocks(file.layout.components.first()?, block);
    if rows == Rows::Full && !file.own.buffer.all_full(&blocks) {
        return None;
    }
    Some(Row {
        session: file.session,
        object: file.object,
        layout: file.layout.clone(),
        fresh_from: file.own.published_size(),
        beside: file.own.is_written_beside().then(|| file.found_rows.clone()),
        pushes: file.own.buffer.begin_push_all(&blocks)?,
    })
}

/// The row's dirty ranges in sets that are written together: of one stripe and one flow buffer of
/// its chunks, one range per data member, and not so far apart that their parity is mostly idle.
pub(crate) fn sets(row: &Row, buffer: u32) -> Vec<Set<'_>> {
    let mut sets: Vec<Set<'_>> = Vec::new();
    for bit in bits(row, buffer) {
        match sets.iter_mut().find(|set| set.takes(&bit, buffer)) {
            Some(set) => set.bits.push(bit),
            None => sets.push(Set { bits: vec![bit] }),
        }
    }
    sets
}

fn bits(row: &Row, buffer: u32) -> Vec<Bit<'_>> {
    let mut bits = Vec::new();
    for push in &row.pushes {
        for (start, end) in &push.ranges {
            let at = push.block * BLOCK + u64::from(*start);
            let range = (at, u64::from(end - start));
            for piece in short_pieces(&row.layout, row.object, range, buffer) {
                let from = (piece.file_offset - push.block * BLOCK) as u32;
                let range = (from, from + piece.len);
                bits.push(Bit { piece, data: push.bytes(range), bytes: push.part(range) });
            }
        }
    }
    bits
}

impl Set<'_> {
    /// Where in the file its first byte lies.
    pub(crate) fn start(&self) -> u64 {
        let start = |bit: &Bit<'_>| bit.piece.file_offset;
        self.bits.iter().map(start).min().unwrap_or(u64::MAX)
    }

    fn bytes(&self) -> u64 {
        self.bits.iter().map(|bit| bit.data.len() as u64).sum()
    }

    fn takes(&self, bit: &Bit<'_>, buffer: u32) -> bool {
        let (first, new) = (&self.bits[0].piece, &bit.piece);
        let frame = |p: &Piece| (p.key, p.offset / buffer);
        if frame(first) != frame(new) || self.bits.iter().any(|b| b.piece.place == new.place) {
            return false;
        }
        let all = || self.bits.iter().map(|b| &b.piece).chain([new]);
        let start = all().map(|p| p.offset).min().unwrap_or(0);
        let end = all().map(|p| p.offset + p.len).max().unwrap_or(0);
        let bytes: u32 = all().map(|p| p.len).sum();
        u64::from(end - start) <= 2 * u64::from(bytes)
    }
}
